"""One scrape of a cluster: what is asked, and the families that are written from it.

Names and labels are those of kafka_exporter, so its boards and alerts work. Its rules hold, too. A group's topic is
shown when the group has committed any of its partitions. Those without a commit have -1 for offset and lag. The sum of
offsets adds these -1, the sum of lags leaves them out. Lag is the high watermark less the committed offset; it is
negative where a topic was deleted and created again. ``kafka_consumergroup_lag_seconds`` is ours: the age of the
record that the group reads next. What is not known is no series. Source: danielqsj/kafka_exporter, kafka_exporter.go.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.client.consume.record_timestamps import Place
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import TopicInfo
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.survey.record_times import RecordTimeCache
from spark_kafkalite.client.survey.survey import NOT_KNOWN, MonitoredCluster, SurveyedGroup, TopicOffsets
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.exporter.registry_lags import RegistryLags
from spark_kafkalite.exposition.http import gzip
from spark_kafkalite.exposition.text import Page, labels, open_labels
from spark_kafkalite.model import TopicPartition

_LOG: Final = logging.getLogger("spark_kafkalite.exporter")

# Names may have 32 KB: a page of a million series is bounded by its text, too.
_MOST_CHARS: Final = 64 << 20
# Shares of the time of a scrape: of one answer of a broker, which may hang; of all ages; and of
# the registry.
_BROKER_SHARE: Final = 0.3
_AGES_SHARE: Final = 0.4
_REGISTRY_SHARE: Final = 0.3
_MOST_NEW_AGES: Final = 20_000


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """What a scrape shows. ``within_ms``: how long one may take, which must be less than a scraper waits."""

    topics: re.Pattern[str]
    not_topics: re.Pattern[str] | None
    groups: re.Pattern[str]
    not_groups: re.Pattern[str] | None
    with_ages: bool
    max_series: int
    within_ms: int

    def shows_topic(self, name: str) -> bool:
        return self.topics.search(name) is not None and not (self.not_topics and self.not_topics.search(name))

    def shows_group(self, name: str) -> bool:
        return self.groups.search(name) is not None and not (self.not_groups and self.not_groups.search(name))


class Scraper:
    """Makes pages of one cluster. For one thread at a time."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ExporterSettings,
        registry: RegistryLags | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._clock = clock
        self._cluster = cluster
        self._survey = MonitoredCluster(cluster, broker_ms=round(settings.within_ms * _BROKER_SHARE), clock=clock)
        self._times = RecordTimeCache(cluster)
        self._has_warned = False

    def page(self) -> bytes:
        """Ask the cluster and return a page, compressed by gzip. Raises KafkaliteError when no broker answers."""
        settings, survey = self._settings, self._survey
        began_s = self._clock.monotonic_s()
        page = Page(settings.max_series, _MOST_CHARS)
        survey.begin(settings.within_ms)
        snapshot = survey.topics()
        topics = {
            name: info
            for name, info in sorted(snapshot.topics.items())
            if not info.error_code and settings.shows_topic(name)
        }
        offsets = survey.log_offsets(topics)
        listed = [group for group in survey.list_groups() if settings.shows_group(group.group_id)]
        groups = survey.group_offsets(listed, most_offsets=settings.max_series)
        times = self._ages(groups, offsets) if settings.with_ages else {}
        _write_brokers(page, survey)
        _write_topics(page, topics, offsets)
        left_out = _write_groups(page, groups, offsets, times, self._clock.wall_ms(), with_ages=settings.with_ages)
        if self._registry is not None:
            within_ms = min(max(0.0, survey.left_ms), settings.within_ms * _REGISTRY_SHARE)
            self._registry.write(page, offsets, settings.shows_group, Deadline.after_ms(within_ms, self._clock))
        text = "Whether the broker answered all that the exporter asked it."
        page.family("kafkalite_exporter_broker_answers", "gauge", text)
        for broker in sorted(snapshot.nodes):
            page.add("kafkalite_exporter_broker_answers", labels(id=broker), broker not in survey.failures)
        for name, text, value in (
            ("groups_left_out", "Groups whose coordinator did not answer for them.", survey.groups_left_out),
            ("ages_left_out", "Lags in seconds that are not known in this scrape.", left_out),
            ("series_left_out", "Series that are left out because of --max-series.", page.dropped),
        ):
            page.one(f"kafkalite_exporter_{name}", "gauge", text, value)
        taken_s = round(self._clock.monotonic_s() - began_s, 3)
        page.one("kafkalite_exporter_scrape_seconds", "gauge", "How long this scrape took.", taken_s)
        return gzip(piece.encode("utf-8", "replace") for piece in page.taken())

    def _ages(self, groups: list[SurveyedGroup], offsets: dict[str, TopicOffsets]) -> dict[Place, int]:
        within_ms = min(self._survey.left_ms, self._settings.within_ms * _AGES_SHARE)
        deadline = Deadline.after_ms(within_ms, self._clock)
        known = self._times.look(_behind(groups, offsets), most=_MOST_NEW_AGES, deadline=deadline)
        if self._times.problem is not None and not self._has_warned:
            self._has_warned = True
            _LOG.warning("%s; --no-lag-seconds leaves it out", self._times.problem)
        return known


def _next_offset(offsets: TopicOffsets, partition: int, committed: int) -> int:
    """Return what a group reads next: records before the start of the log are gone."""
    return max(committed, offsets.starts[partition])


def _behind(groups: list[SurveyedGroup], offsets: dict[str, TopicOffsets]) -> Iterator[Place]:
    """Yield the places of groups that have something to read."""
    # One for all groups: the places are kept.
    keys: dict[str, list[TopicPartition]] = {}
    for group in groups:
        for topic, (partitions, committed) in group.committed.items():
            of_topic = offsets.get(topic)
            if of_topic is None:
                continue
            of_partitions = keys.get(topic)
            if of_partitions is None:
                of_partitions = keys[topic] = [TopicPartition(topic, number) for number in range(len(of_topic.ends))]
            for partition, offset in zip(partitions, committed, strict=True):
                if offset < of_topic.end(partition):
                    yield of_partitions[partition], _next_offset(of_topic, partition, offset)


def _write_brokers(page: Page, survey: MonitoredCluster) -> None:
    nodes = survey.cluster.snapshot.nodes
    page.one("kafka_brokers", "gauge", "Number of brokers in the cluster.", len(nodes))
    page.family("kafka_broker_info", "gauge", "Information about a broker.")
    for _, node in sorted(nodes.items()):
        page.add("kafka_broker_info", labels(id=node.node_id, address=node.address), 1)


def _write_topics(page: Page, topics: dict[str, TopicInfo], offsets: dict[str, TopicOffsets]) -> None:
    page.family("kafka_topic_partitions", "gauge", "Number of partitions of a topic.")
    page.extend("kafka_topic_partitions", [(labels(topic=name), len(info.partitions)) for name, info in topics.items()])
    texts = {
        name: [labels(topic=name, partition=each.partition) for each in info.partitions]
        for name, info in topics.items()
    }

    def write(suffix: str, text: str, series: Iterator[list[tuple[str, int]]]) -> None:
        name = f"kafka_topic_partition_{suffix}"
        page.family(name, "gauge", text)
        for of_topic in series:
            page.extend(name, of_topic)

    def of_logs(*, ends: bool) -> Iterator[list[tuple[str, int]]]:
        for name in topics:
            if (found := offsets.get(name)) is not None:
                known = found.ends if ends else found.starts
                yield [
                    (text, offset)
                    # Metadata may have been refreshed in between, with more partitions.
                    for text, offset in zip(texts[name], known, strict=False)
                    if offset != NOT_KNOWN
                ]

    write("current_offset", "High watermark of a partition.", of_logs(ends=True))
    write("oldest_offset", "First offset of a partition.", of_logs(ends=False))
    write("leader", "Id of the broker that leads the partition.", (
        [(text, each.leader) for text, each in zip(texts[name], info.partitions, strict=True) if each.leader >= 0]
        for name, info in topics.items()
    ))  # fmt: skip
    write("replicas", "Number of replicas of a partition.", (
        [(text, len(each.replicas)) for text, each in zip(texts[name], info.partitions, strict=True)]
        for name, info in topics.items()
    ))  # fmt: skip
    write("in_sync_replica", "Number of replicas that are in sync.", (
        [(text, len(each.isr)) for text, each in zip(texts[name], info.partitions, strict=True)]
        for name, info in topics.items()
    ))  # fmt: skip
    write("leader_is_preferred", "1 if the preferred replica leads the partition.", (
        [
            (text, each.replicas[:1] == (each.leader,))
            for text, each in zip(texts[name], info.partitions, strict=True)
            if each.leader >= 0
        ]
        for name, info in topics.items()
    ))  # fmt: skip
    write("under_replicated_partition", "1 if a replica is not in sync.", (
        [(text, len(each.isr) < len(each.replicas)) for text, each in zip(texts[name], info.partitions, strict=True)]
        for name, info in topics.items()
    ))  # fmt: skip


def _write_groups(
    page: Page,
    groups: list[SurveyedGroup],
    offsets: dict[str, TopicOffsets],
    times: dict[Place, int],
    now_ms: int,
    *,
    with_ages: bool,
) -> int:
    """Write the families of groups; return how many ages are left out."""
    name = "kafka_consumergroup_members"
    page.family(name, "gauge", "Number of members of a group.")
    page.extend(
        name, [(labels(consumergroup=each.group_id), each.members) for each in groups if each.members is not None]
    )
    shown: Final = list(_shown(groups, offsets))
    name = "kafka_consumergroup_current_offset"
    page.family(name, "gauge", "Committed offset of a group; -1: the group has none for this partition.")
    for each in shown:
        page.extend(name, [(text, committed) for text, _, committed, _ in each.partitions()])
    name = "kafka_consumergroup_current_offset_sum"
    page.family(name, "gauge", "Committed offsets of a group, all partitions of a topic.")
    page.extend(name, [(each.text, sum(committed for *_, committed, _ in each.partitions())) for each in shown])
    name = "kafka_consumergroup_lag"
    page.family(name, "gauge", "Records from a group's committed offset to the high watermark; -1: none committed.")
    for each in shown:
        page.extend(name, [(text, lag) for text, _, _, lag in each.partitions() if lag is not None])
    name = "kafka_consumergroup_lag_sum"
    page.family(name, "gauge", "Lag of a group, all partitions of a topic that have a committed offset.")
    page.extend(name, [(each.text, each.lag_sum()) for each in shown])
    if not with_ages:
        return 0
    left_out = 0
    name = "kafka_consumergroup_lag_seconds"
    page.family(name, "gauge", "Age of the record that a group reads next, by its timestamp; 0: nothing to read.")
    for each in shown:
        for text, partition, committed, lag in each.partitions():
            if committed == NOT_KNOWN or lag is None:
                continue
            if lag <= 0:
                page.add(name, text, 0)
                continue
            place = TopicPartition(each.topic, partition), _next_offset(each.offsets, partition, committed)
            timestamp_ms = times.get(place, NOT_KNOWN)
            if timestamp_ms < 0:
                left_out += 1
            else:
                # A producer's clock may be ahead of ours.
                page.add(name, text, max(0, now_ms - timestamp_ms) / 1000)
    return left_out


@dataclass(slots=True)
class _GroupTopic:
    """A topic that a group has committed offsets of. ``text``: its labels."""

    topic: str
    text: str
    offsets: TopicOffsets
    committed: dict[int, int]

    def partitions(self) -> Iterator[tuple[str, int, int, int | None]]:
        """Yield labels, partition, committed offset and lag (None: not known) of all partitions of the topic."""
        begin = open_labels(self.text)
        for partition, end in enumerate(self.offsets.ends):
            committed = self.committed.get(partition, NOT_KNOWN)
            lag = -1 if committed == NOT_KNOWN else None if end == NOT_KNOWN else end - committed
            yield f'{begin}partition="{partition}"}}', partition, committed, lag

    def lag_sum(self) -> int:
        """Return the sum of the lags that are known."""
        ends = self.offsets
        return sum(
            end - committed
            for partition, committed in self.committed.items()
            if (end := ends.end(partition)) != NOT_KNOWN
        )


def _shown(groups: list[SurveyedGroup], offsets: dict[str, TopicOffsets]) -> Iterator[_GroupTopic]:
    """Yield what groups have committed, of topics that there are."""
    for group in groups:
        for topic, (partitions, committed) in group.committed.items():
            if (of_topic := offsets.get(topic)) is not None:
                text = labels(consumergroup=group.group_id, topic=topic)
                yield _GroupTopic(topic, text, of_topic, dict(zip(partitions, committed, strict=True)))
