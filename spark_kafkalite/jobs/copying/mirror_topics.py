"""Which topics a mirror copies, what their targets lack, and which mirrors never end. Pure.

A topic's target is the topic of its name, behind a prefix if one is given. A mirror commits what it has read to a group
on the cluster that it reads, ``kafkalite-mirror-TARGET_CLUSTER`` with the prefix behind it: lag tools show it, and a
mirror in the other direction sees it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_kafkalite.client.group.lag import PartitionLag
from spark_kafkalite.jobs.load.planning import PlanError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import listed

_GROUP_PREFIX = "kafkalite-mirror-"
# Not legal in a cluster's id, and legal in a topic's name.
_BEFORE_PREFIX = "."


@dataclass(frozen=True, slots=True)
class MirroredTopics:
    """The topics to copy: ``topics`` by name, or all that ``pattern`` matches anywhere; ``prefix`` is the targets'."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    prefix: str = ""

    def of(self, there: Iterable[str]) -> list[str]:
        """Return those of a cluster's topics that are copied."""
        return sorted(topic for topic in there if self.takes(topic))

    def takes(self, topic: str) -> bool:
        """Return whether a topic of this name is copied."""
        return topic in self.topics if self.pattern is None else re.search(self.pattern, topic) is not None

    def target(self, topic: str) -> str:
        """Return the name of a topic's target."""
        return self.prefix + topic

    def source_options(self) -> dict[str, str]:
        """Return what has Spark's source read them."""
        return {"subscribe": ",".join(self.topics)} if self.pattern is None else {"subscribePattern": self.pattern}


def group_of(to_cluster: str, prefix: str) -> str:
    """Return the group to which a mirror commits what it has read."""
    return f"{_GROUP_PREFIX}{to_cluster}{_BEFORE_PREFIX + prefix if prefix else ''}"


def prefix_of(group: str, to_cluster: str) -> str | None:
    """Return the prefix of a mirror to a cluster, by its group's name; None where the group is no such mirror's."""
    plain = group_of(to_cluster, "")
    if group == plain:
        return ""
    return group.removeprefix(plain + _BEFORE_PREFIX) if group.startswith(plain + _BEFORE_PREFIX) else None


def check_clusters(
    selection: MirroredTopics, topics: Iterable[str], from_cluster: str | None, to_cluster: str | None
) -> None:
    """Raise PlanError for a topic that would be copied into itself, or into one that is copied as well."""
    if from_cluster is None or from_cluster != to_cluster:
        return
    for topic in topics:
        target = selection.target(topic)
        if target == topic:
            raise PlanError(
                f"topic {topic}: both ends are the cluster with id {to_cluster}, so it would be copied into itself; "
                "give another --to-bootstrap-server, or a --topic-prefix"
            )
        if selection.takes(target):
            raise PlanError(
                f"topic {topic}: its target {target} is on the same cluster and is copied as well, so its records "
                "would be copied without end; name the topics so that targets are not among them"
            )


def check_quarantine(selection: MirroredTopics, topics: Iterable[str], quarantine: str, *, is_read_too: bool) -> None:
    """Raise PlanError for a quarantine topic that is a target, or that this mirror reads.

    ``is_read_too``: both ends are one cluster.
    """
    for topic in topics:
        if selection.target(topic) == quarantine:
            raise PlanError(f"--quarantine-topic {quarantine}: it is the target of topic {topic}; give another one")
    if is_read_too and selection.takes(quarantine):
        raise PlanError(f"--quarantine-topic {quarantine}: it is among the topics that are copied; give another one")


def check_no_way_back(
    selection: MirroredTopics, topics: Iterable[str], group: str, back_prefix: str, read_there: Iterable[str]
) -> None:
    """Raise PlanError when a mirror back reads a target of this one and writes it into a topic that this one reads.

    ``group`` on the target's cluster is that mirror's, with ``read_there``, the topics that it has read.
    """
    read = set(read_there)
    for topic in topics:
        target = selection.target(topic)
        if target in read and selection.takes(back_prefix + target):
            raise PlanError(
                f"topic {topic}: group {group} on the target's cluster shows a mirror that copies {target} back to "
                f"{back_prefix + target}, so its records would be copied without end; stop that mirror and delete its "
                "group, or give a --topic-prefix"
            )


@dataclass(frozen=True, slots=True)
class TargetChanges:
    """What is to be done before records can be copied: topics to create and to grow, with numbers of partitions."""

    create: Mapping[str, int]
    grow: Mapping[str, int]


def changes_of_targets(
    selection: MirroredTopics, source: Mapping[str, int], target: Mapping[str, int]
) -> TargetChanges:
    """Return what the targets of topics lack; both have the numbers of partitions by name.

    A target may have more partitions than its source: those that it has besides stay empty.
    """
    wanted = {selection.target(topic): count for topic, count in source.items()}
    return TargetChanges(
        {name: count for name, count in wanted.items() if name not in target},
        {name: count for name, count in wanted.items() if name in target and target[name] < count},
    )


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far the mirror of a topic is behind: offsets, and the age of the oldest record that waits, where known."""

    topic: str
    lag: int
    age_ms: int | None

    def __str__(self) -> str:
        age = "" if self.age_ms is None or not self.lag else f" ({self.age_ms / 1000:.0f} s)"
        return f"{self.topic} {self.lag}{age}"


def by_topic(lags: Mapping[TopicPartition, PartitionLag]) -> list[TopicLag]:
    """Return the lag of each topic: the sum of its partitions', and the age of the oldest record that waits."""
    topics: dict[str, list[PartitionLag]] = {}
    for tp, each in sorted(lags.items()):
        topics.setdefault(tp.topic, []).append(each)
    return [
        TopicLag(
            topic,
            sum(max(0, each.records or 0) for each in partitions),
            max((each.age_ms for each in partitions if each.records and each.age_ms is not None), default=None),
        )
        for topic, partitions in topics.items()
    ]


def shown(lags: Iterable[TopicLag]) -> str:
    """Return the lag of all topics as one line."""
    lags = list(lags)
    behind = listed([str(each) for each in lags if each.lag])
    return f"{sum(each.lag for each in lags)} offsets behind: {behind or 'nothing waits'}"
