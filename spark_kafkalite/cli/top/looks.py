"""Reads the state of a cluster again and again, and what has changed in between.

A look is bounded however large the cluster is. The topics and groups that were at the top of the last look are asked
for each time, the others in turn, so that one that begins to move is found after a few looks. Lists of topics and of
groups are read again when ten times as long has passed as reading them took.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafkalite.cli.top.broker_pages import read_status, status_address
from spark_kafkalite.cli.top.view import BY_LAG, BrokerRow, GroupRow, TopicRow, View, p99_ms, partition_rows
from spark_kafkalite.client.consume.record_timestamps import Place
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.survey.record_times import RecordTimeCache
from spark_kafkalite.client.survey.survey import NOT_KNOWN, ListedGroup, MonitoredCluster, SurveyedGroup, TopicOffsets
from spark_kafkalite.errors import KafkaError, KafkaliteError
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin

_LOOK_MS: Final = 5_000
_BROKER_MS: Final = 2_000
_PARTITIONS_A_LOOK: Final = 5_000
_GROUPS_A_LOOK: Final = 500
# Rows that are asked for in every look, of each kind.
_TOP_ROWS: Final = 60
# In looks.
_STARTS_EVERY: Final = 10
_DISKS_EVERY_S: Final = 5.0
_MOST_SETTINGS: Final = 100
_AGES_OF: Final = 30
_MOST_AGES: Final = 300
_AGES_MS: Final = 500
_NO_LIMIT: Final = 1 << 60
_Item = TypeVar("_Item")


@dataclass(slots=True)
class _Topic:
    """A topic as it was last read: when, the ends of its logs, and its rate."""

    at_s: float
    ends: array[int]
    records_per_s: float | None = None
    # Of its leaders.
    by_broker: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """A group as it was last read."""

    at_s: float
    offsets: SurveyedGroup
    lag: int
    growth_per_s: float | None = None


@dataclass(slots=True)
class _StatusPage:
    """The last status page of a broker, and what came of the last two."""

    at_s: float
    page: dict[str, Any]
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    loop_lag_p99_ms: float | None = None


class Looks:
    """Reads the state of one cluster. For one thread."""

    def __init__(
        self,
        admin: Admin,
        *,
        token: str | None,
        groups_by: str = BY_LAG,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``token``: what brokers' metrics listeners ask for. ``groups_by``: see :class:`.view.View`."""
        self._groups_by = groups_by
        self._admin = admin
        self._token = token
        self._now_s = monotonic_s
        self._survey = MonitoredCluster(admin.cluster, broker_ms=_BROKER_MS)
        self._times = RecordTimeCache(admin.cluster)
        self._lists_at_s = 0.0
        self._disks_at_s = 0.0
        self._listed: list[ListedGroup] = []
        self._offsets: dict[str, TopicOffsets] = {}
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, _Group] = {}
        self._listeners: dict[int, str | None] = {}
        self._disks: dict[int, tuple[float, int]] = {}
        self._statuses: dict[int, _StatusPage] = {}
        self._next_topic = self._next_group = self._count = 0
        self._view = View()

    def look(self, *, everything: bool = False) -> View:
        """Return the state now, with ``everything`` of all topics and groups.

        An error is in the view, with what was known before.
        """
        try:
            self._view = self._look(everything)
        except KafkaliteError as error:
            self._view = replace(self._view, problem=str(error))
        return self._view

    def _look(self, everything: bool) -> View:
        survey = self._survey
        survey.begin(_NO_LIMIT if everything else _LOOK_MS)
        began_s = self._now_s()
        if everything or began_s >= self._lists_at_s:
            survey.topics()
            self._listed = survey.list_groups()
            ended_s = self._now_s()
            self._lists_at_s = ended_s + max(0.9, 10 * (ended_s - began_s))
            self._forget()
        self._look_at_topics(self._chosen_topics(everything), everything)
        self._look_at_groups(self._chosen_groups(everything), everything)
        if everything or began_s >= self._disks_at_s:
            self._disks_at_s = self._now_s() + _DISKS_EVERY_S
            survey.each_broker(survey.cluster.snapshot.nodes, self._look_at_disks)
        survey.each_broker(survey.cluster.snapshot.nodes, self._look_at_status)
        return self._made()

    def _forget(self) -> None:
        """Forget what there is no more."""
        there = self._survey.cluster.snapshot.topics
        self._topics = {name: seen for name, seen in self._topics.items() if name in there}
        self._offsets = {name: seen for name, seen in self._offsets.items() if name in there}
        listed = {each.group_id for each in self._listed}
        self._groups = {name: seen for name, seen in self._groups.items() if name in listed}

    # Topics ---------------------------------------------------------------------------------------------------------

    def _chosen_topics(self, everything: bool) -> list[str]:
        topics = self._survey.cluster.snapshot.topics
        names = sorted(name for name, info in topics.items() if not info.error_code)
        if everything:
            return names
        chosen = dict.fromkeys(name for name in self._top_topics() if name in topics)
        for group in self._top_groups():
            chosen.update(dict.fromkeys(name for name in group.offsets.committed if name in topics))
        room = _PARTITIONS_A_LOOK - sum(len(topics[name].partitions) for name in chosen)
        taken = 0
        for name in _in_turn(names, self._next_topic):
            if room <= 0 or taken >= len(names):
                break
            taken += 1
            if name not in chosen:
                chosen[name] = None
                room -= len(topics[name].partitions)
        self._next_topic = (self._next_topic + taken) % max(1, len(names))
        return list(chosen)

    def _top_topics(self) -> list[str]:
        moving = [(seen.records_per_s or 0.0, name) for name, seen in self._topics.items()]
        return [name for _, name in sorted(moving, reverse=True)[:_TOP_ROWS]]

    def _look_at_topics(self, chosen: Sequence[str], everything: bool) -> None:
        # Where logs begin changes seldom.
        self._count += 1
        with_starts = self._count % _STARTS_EVERY == 1
        new = {name for name in chosen if with_starts or everything or name not in self._offsets}
        self._survey.log_offsets((name for name in chosen if name not in new), self._offsets, with_starts=False)
        self._survey.log_offsets(new, self._offsets)
        now_s = self._now_s()
        topics = self._survey.cluster.snapshot.topics
        for name in chosen:
            if (offsets := self._offsets.get(name)) is None:
                continue
            before = self._topics.get(name)
            seen = _Topic(now_s, offsets.ends[:])
            if before is not None and len(before.ends) == len(offsets.ends) and now_s > before.at_s:
                seconds = now_s - before.at_s
                grown = [
                    max(0, end - last) if NOT_KNOWN not in (end, last) else 0
                    for end, last in zip(offsets.ends, before.ends, strict=True)
                ]
                seen.records_per_s = sum(grown) / seconds
                for info, more in zip(topics[name].partitions, grown, strict=False):
                    if more:
                        rate = more / seconds
                        seen.by_broker[info.leader] = seen.by_broker.get(info.leader, 0.0) + rate
            self._topics[name] = seen

    # Groups ---------------------------------------------------------------------------------------------------------

    def _chosen_groups(self, everything: bool) -> list[ListedGroup]:
        if everything or len(self._listed) <= _GROUPS_A_LOOK:
            return self._listed
        top = {seen.offsets.group_id for seen in self._top_groups()}
        chosen = {each.group_id: each for each in self._listed if each.group_id in top}
        taken = 0
        for each in _in_turn(self._listed, self._next_group):
            if len(chosen) >= _GROUPS_A_LOOK or taken >= len(self._listed):
                break
            taken += 1
            chosen[each.group_id] = each
        self._next_group = (self._next_group + taken) % len(self._listed)
        return list(chosen.values())

    def _top_groups(self) -> list[_Group]:
        seen = self._groups.values()
        by_lag = sorted(seen, key=lambda each: -each.lag)[:_TOP_ROWS]
        by_growth = sorted(seen, key=lambda each: -(each.growth_per_s or 0.0))[:_TOP_ROWS]
        return list({each.offsets.group_id: each for each in (*by_lag, *by_growth)}.values())

    def _look_at_groups(self, groups: Sequence[ListedGroup], everything: bool) -> None:
        found = self._survey.group_offsets(groups, most_offsets=_NO_LIMIT)
        # Of topics that were not looked at in this look.
        unseen = {topic for group in found for topic in group.committed if topic not in self._offsets}
        if unseen and not everything:
            self._survey.log_offsets(islice(sorted(unseen), _PARTITIONS_A_LOOK), self._offsets)
        now_s = self._now_s()
        for group in found:
            lag = sum(lag for *_, lag in self._lags(group))
            before = self._groups.get(group.group_id)
            seen = _Group(now_s, group, lag)
            if before is not None and now_s > before.at_s:
                seen.growth_per_s = (lag - before.lag) / (now_s - before.at_s)
            self._groups[group.group_id] = seen

    def _lags(self, group: SurveyedGroup) -> Iterator[tuple[str, int, int, int]]:
        """Yield topic, partition, next offset and lag of what a group has committed."""
        for topic, (partitions, committed) in group.committed.items():
            offsets = self._offsets.get(topic)
            for partition, offset in zip(partitions, committed, strict=True):
                if offsets is not None and (end := offsets.end(partition)) != NOT_KNOWN:
                    # The end may be from an earlier look than the commit.
                    yield topic, partition, max(offset, offsets.starts[partition]), max(0, end - offset)

    @property
    def warning(self) -> str | None:
        """What the client lacks to see everything, None as far as it is known to lack nothing."""
        return self._times.problem

    def _ages(self, groups: Iterable[_Group]) -> dict[str, float | None]:
        """Return how far behind groups are in seconds, at their slowest partition; None where it is not known."""
        places: dict[str, list[Place]] = {
            seen.offsets.group_id: [
                (TopicPartition(topic, partition), offset)
                for topic, partition, offset, lag in self._lags(seen.offsets)
                if lag
            ]
            for seen in groups
        }
        wanted = (place for of_group in places.values() for place in of_group)
        known = self._times.look(wanted, most=_MOST_AGES, deadline=Deadline.after_ms(_AGES_MS))
        now_ms = time.time() * 1000
        found: dict[str, float | None] = {}
        for group_id, of_group in places.items():
            ages = [max(0.0, now_ms - known[place]) / 1000 for place in of_group if known.get(place, -1) >= 0]
            found[group_id] = round(max(ages), 3) if ages else None if of_group else 0.0
        return found

    # Brokers --------------------------------------------------------------------------------------------------------

    def _look_at_disks(self, broker: int) -> None:
        timeout_ms = round(self._survey.deadline(broker).left_s() * 1000)
        try:
            found = self._admin.describe_log_dirs([broker], topics=[], timeout_ms=timeout_ms)
        except KafkaError:
            return  # not allowed to, or too old
        used = [
            (100 * (1 - each.usable_bytes / each.total_bytes), each.usable_bytes)
            for each in found[broker]
            if each.total_bytes and each.usable_bytes is not None
        ]
        if used:
            # The fullest one.
            self._disks[broker] = max(used)

    def _look_at_status(self, broker: int) -> None:
        timeout_ms = round(self._survey.deadline(broker).left_s() * 1000)
        node = self._survey.cluster.snapshot.nodes[broker]
        if broker not in self._listeners:
            try:
                settings = self._admin.describe_configs(broker_id=broker, timeout_ms=timeout_ms)
            except KafkaError:
                settings = {}
            entry = settings.get("metrics.listener")
            self._listeners[broker] = None if entry is None else entry.value
        address = status_address(self._listeners[broker], node)
        page = None if address is None else read_status(address, self._token)
        if page is None:
            self._statuses.pop(broker, None)
            return
        now_s = self._now_s()
        seen = _StatusPage(now_s, page)
        before = self._statuses.get(broker)
        try:
            if before is not None and now_s > before.at_s:
                seconds = now_s - before.at_s
                seen.bytes_in_per_s = max(0, page["bytesIn"] - before.page["bytesIn"]) / seconds
                seen.bytes_out_per_s = max(0, page["bytesOut"] - before.page["bytesOut"]) / seconds
            seen.loop_lag_p99_ms = p99_ms(before.page["loopLag"] if before else None, page["loopLag"])
        except (KeyError, TypeError, IndexError, ValueError):
            return  # another version's page
        self._statuses[broker] = seen

    # The view -------------------------------------------------------------------------------------------------------

    def _made(self) -> View:
        snapshot = self._survey.cluster.snapshot
        problems = partition_rows(snapshot, {})
        if problems:
            problems = partition_rows(snapshot, self._min_insync_replicas({row.topic for row in problems}))
        shown = sorted(self._groups.values(), key=self._group_rank)
        ages = self._ages(shown[:_AGES_OF])
        topics = sorted(self._topics.items(), key=lambda each: (-(each[1].records_per_s or 0.0), each[0]))
        rates = [seen.records_per_s for seen in self._topics.values() if seen.records_per_s is not None]
        infos = [info for topic in snapshot.topics.values() for info in topic.partitions]
        return View(
            snapshot.cluster_id,
            snapshot.controller_id,
            tuple(self._broker_rows()),
            tuple(
                TopicRow(
                    name,
                    len(snapshot.topics[name].partitions),
                    _records(self._offsets[name]),
                    _rounded(seen.records_per_s),
                )
                for name, seen in topics
                if name in snapshot.topics
            ),
            tuple(
                GroupRow(
                    seen.offsets.group_id,
                    seen.offsets.state,
                    seen.offsets.members,
                    len(seen.offsets.committed),
                    seen.lag,
                    _rounded(seen.growth_per_s),
                    ages.get(seen.offsets.group_id),
                )
                for seen in shown
            ),
            tuple(problems),
            {
                "brokers": len(snapshot.nodes),
                "topics": len(snapshot.topics),
                "partitions": len(infos),
                "groups": len(self._listed),
                "not_led_by_preferred_replica": sum(
                    info.leader in snapshot.nodes and info.replicas[:1] != (info.leader,) for info in infos
                ),
            },
            _rounded(sum(rates)) if rates else None,
            self._groups_by,
        )

    def _group_rank(self, seen: _Group) -> tuple[float, float, str]:
        """Return what groups are sorted by."""
        lag, growth = -float(seen.lag), -(seen.growth_per_s or 0.0)
        first, second = (lag, growth) if self._groups_by == BY_LAG else (growth, lag)
        return first, second, seen.offsets.group_id

    def _broker_rows(self) -> Iterator[BrokerRow]:
        snapshot = self._survey.cluster.snapshot
        leaders: dict[int, int] = {}
        replicas: dict[int, int] = {}
        for topic in snapshot.topics.values():
            for info in topic.partitions:
                leaders[info.leader] = leaders.get(info.leader, 0) + 1
                for broker in info.replicas:
                    replicas[broker] = replicas.get(broker, 0) + 1
        rates: dict[int, float] = {}
        for seen in self._topics.values():
            for broker, rate in seen.by_broker.items():
                rates[broker] = rates.get(broker, 0.0) + rate
        is_known = any(seen.records_per_s is not None for seen in self._topics.values())
        for broker in sorted({*snapshot.nodes, *replicas}):
            node = snapshot.nodes.get(broker)
            disk = self._disks.get(broker)
            status = self._statuses.get(broker) if node else None
            yield BrokerRow(
                broker,
                node.address if node else "",
                node is not None,
                broker == snapshot.controller_id,
                leaders.get(broker, 0),
                replicas.get(broker, 0),
                _rounded(rates.get(broker, 0.0)) if node and is_known else None,
                _rounded(status.bytes_in_per_s) if status else None,
                _rounded(status.bytes_out_per_s) if status else None,
                round(disk[0], 1) if disk else None,
                disk[1] if disk else None,
                _rounded(status.loop_lag_p99_ms, 2) if status else None,
                self._survey.failures.get(broker) if node else "it is not in the cluster at present",
            )

    def _min_insync_replicas(self, topics: set[str]) -> Mapping[str, int]:
        chosen = sorted(topics)[:_MOST_SETTINGS]
        try:
            found = self._admin.describe_topic_settings(chosen, ["min.insync.replicas"], timeout_ms=_BROKER_MS)
        except KafkaliteError:
            return {}
        return {
            name: int(entry.value)
            for name, settings in found.items()
            if (entry := settings.get("min.insync.replicas")) is not None and entry.value
        }


def _in_turn(items: Sequence[_Item], start: int) -> Iterator[_Item]:
    """Yield all items, beginning at ``start`` and going round."""
    first = min(start, len(items))
    yield from islice(items, first, None)
    yield from islice(items, 0, first)


def _records(offsets: TopicOffsets) -> int:
    bounds = zip(offsets.starts, offsets.ends, strict=True)
    return sum(max(0, end - start) for start, end in bounds if NOT_KNOWN not in (start, end))


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
