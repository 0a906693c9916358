"""Which offsets a run loads: pure arithmetic over what was loaded before and what the log holds now.

A range starts at the next offset in the newest manifest. For a partition that was not loaded before it starts at the
log start offset. It ends at the log end (the last stable offset) at the time of planning, or earlier if the run is
bounded. A run writes its plan before it reads, with the task that reads each range (``task_planning``). So a task that
runs again reads the same ranges and writes the same files.

A run never skips offsets silently. By the caller's policies it fails (the default), or reports the following and
writes it into the manifest:

- The start has left the log: the records between it and the log start offset are gone.
- The topic was deleted and created again: its offsets start at 0 again, and the offsets of the last run do not apply.
  Offsets from 0 on that the new log no longer holds are lost. The topic's id shows that it is a new one. Where no id is
  known (manifests of format 1, clusters older than Kafka 2.8), only two signs show it: a log that ends before the last
  run's end, or a partition that is gone.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.jobs.load.time_range import TimeRange
from spark_kafkalite.manifests.manifest import LoadedTopic, LostRange, RecreatedTopic
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

OutOfRangePolicy = Literal["fail", "earliest", "latest", "nearest", "skip"]
RecreatedPolicy = Literal["fail", "earliest"]
NewPartitionPolicy = Literal["earliest", "latest"]
Tasks = tuple[tuple[OffsetRange, ...], ...]


class PlanError(KafkaliteError):
    """The log does not hold what the run is to read."""


class DataLossError(PlanError):
    """The run would skip records, or mix the records of two logs, and no option allows that."""


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """The logs of some topics in the cluster. ``topic_ids`` are in Kafka's text; topics without an id are not in it.

    ``ended_at_ms`` is the time, in ms since the epoch, at which the run asked for the ends, or a little earlier.
    """

    bounds: Mapping[TopicPartition, LogBounds]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    ended_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class LoadPolicies:
    """What a run does where it cannot simply go on. By default it fails, and loads new partitions from their start."""

    on_out_of_range: OutOfRangePolicy = "fail"
    on_recreated_topic: RecreatedPolicy = "fail"
    new_partitions: NewPartitionPolicy = "earliest"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A run's ranges, none empty, in partition order, and the topics as its manifest will describe them.

    ``topics`` is where the next run goes on. ``adopted_ids`` are topics that were loaded before and whose id was not
    known until now. ``skipped`` are partitions that this run leaves as they are. ``tasks`` are the ranges again, cut
    and grouped into tasks. If ``tasks`` is empty, each range is a task. ``ended_at_ms`` is the time of the logs' ends,
    and ``at_end`` are the partitions that are read up to them. With ``times`` only records in that time range are
    written. ``last_times_ms`` are by topic: records with a later timestamp go into quarantine.
    """

    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, LoadedTopic] = field(default_factory=dict)
    lost: tuple[LostRange, ...] = ()
    recreated: tuple[RecreatedTopic, ...] = ()
    adopted_ids: tuple[str, ...] = ()
    skipped: tuple[TopicPartition, ...] = ()
    tasks: Tasks = ()
    ended_at_ms: int = 0
    at_end: frozenset[TopicPartition] = frozenset()
    times: TimeRange | None = None
    last_times_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def planned_tasks(self) -> Tasks:
        """The ranges of each task."""
        return self.tasks or tuple((each,) for each in self.ranges)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.ranges)

    @property
    def lost_offsets(self) -> int:
        return sum(item.offsets for item in self.lost)

    def changes(self, loaded: Mapping[str, LoadedTopic]) -> bool:
        """Return whether there is anything to publish, records or not, for a destination that holds ``loaded``."""
        return any(loaded.get(topic) != state for topic, state in self.topics.items())

    def to_json(self) -> str:
        """Return the plan's text, which the run writes before it reads."""
        document: dict[str, object] = {
            "ranges": [_range_document(each) for each in self.ranges],
            "tasks": [[_range_document(each) for each in ranges] for ranges in self.planned_tasks],
            "topic_ids": {topic: state.topic_id for topic, state in self.topics.items()},
            "lost": [each.document() for each in self.lost],
            "recreated": [each.document() for each in self.recreated],
            "skipped": [str(each) for each in self.skipped],
        }
        if self.times is not None:
            document["times"] = {"start_ms": self.times.start_ms, "end_ms": self.times.end_ms}
        return json.dumps(document, indent=1) + "\n"

    def bounded(self, ends: Mapping[TopicPartition, int]) -> LoadPlan:
        """Return the plan with ranges that end at ``ends`` at the latest, without those that become empty."""
        ranges = [replace(each, end_offset=min(each.end_offset, ends[each.topic_partition])) for each in self.ranges]
        until = {each.topic_partition: each.end_offset for each in ranges}
        cut_short = {each.topic_partition for each in self.ranges if until[each.topic_partition] < each.end_offset}
        topics = {
            topic: replace(
                loaded,
                next_offsets={
                    partition: until.get(TopicPartition(topic, partition), offset)
                    for partition, offset in loaded.next_offsets.items()
                },
            )
            for topic, loaded in self.topics.items()
        }
        kept = tuple(each for each in ranges if each.size > 0)
        return replace(self, ranges=kept, topics=topics, tasks=(), at_end=self.at_end - cut_short)

    def of_topics(self, topics: Container[str]) -> LoadPlan:
        """Return the part of the plan that is about some topics."""
        return replace(
            self,
            ranges=tuple(each for each in self.ranges if each.topic_partition.topic in topics),
            topics={topic: loaded for topic, loaded in self.topics.items() if topic in topics},
            lost=tuple(each for each in self.lost if each.topic in topics),
            # A task reads ranges of one topic.
            tasks=tuple(task for task in self.tasks if task[0].topic_partition.topic in topics),
        )

    def assign_option(self) -> str:
        """Return the source option that names the plan's partitions."""
        assign: dict[str, list[int]] = {}
        for each in self.ranges:
            assign.setdefault(each.topic_partition.topic, []).append(each.topic_partition.partition)
        return json.dumps(assign)


def _range_document(each: OffsetRange) -> dict[str, object]:
    topic, partition = each.topic_partition
    return {"topic": topic, "partition": partition, "start": each.start_offset, "until": each.end_offset}


def plan_load(
    loaded: Mapping[str, LoadedTopic],
    logs: TopicLogs,
    policies: LoadPolicies | Mapping[str, LoadPolicies] = LoadPolicies(),
) -> LoadPlan:
    """Return the ranges that are in the log and not yet loaded; ``policies`` are those of all topics, or of each.

    Raises DataLossError

    - if the next offset of a partition lies beyond the end of its log;
    - if it lies before the start of its log, unless ``on_out_of_range`` allows that;
    - if a topic was deleted and created again, unless ``on_recreated_topic`` is ``earliest``. Then the run loads what
      the new logs hold. Offsets from 0 on that they no longer hold are among the lost ranges.
    """
    ranges: list[OffsetRange] = []
    lost: list[LostRange] = []
    recreated: list[RecreatedTopic] = []
    adopted: list[str] = []
    skipped: list[TopicPartition] = []
    topics: dict[str, LoadedTopic] = {}
    for topic, logs_of_topic in _by_topic(logs.bounds).items():
        found_id = logs.topic_ids.get(topic)
        own = policies if isinstance(policies, LoadPolicies) else policies[topic]
        before = loaded.get(topic, LoadedTopic(found_id, {}, layout={}))
        reason = _recreation(topic, before, found_id, logs_of_topic)
        if reason is not None:
            if own.on_recreated_topic == "fail":
                raise DataLossError(
                    f"{reason}; run with --on-recreated-topic earliest to load what the topic holds now, in addition "
                    "to what was loaded of the earlier one, or load it into another destination"
                )
            recreated.append(RecreatedTopic(topic, before.topic_id, found_id, before.next_offsets))
            before = LoadedTopic(
                found_id,
                dict.fromkeys(logs_of_topic, 0),
                (*before.earlier_ids, before.topic_id),
                layout=before.layout,
            )
        elif before.topic_id is None and found_id is not None:
            adopted.append(topic)
        next_offsets = {**before.next_offsets}
        for partition, log in logs_of_topic.items():
            topic_partition = TopicPartition(topic, partition)
            first = log.start_offset if own.new_partitions == "earliest" else log.end_offset
            start = before.next_offsets.get(partition, first)
            if start > log.end_offset:
                raise DataLossError(
                    f"{topic_partition}: the last run ended at offset {start}, but the log of the same topic now ends "
                    f"at {log.end_offset}. Either a new leader does not know its end yet (run again), or the log was "
                    "truncated (load the topic into another destination)"
                )
            if start < log.start_offset:
                policy = "earliest" if reason is not None else own.on_out_of_range
                if policy == "skip":
                    skipped.append(topic_partition)
                    continue
                resume = _resumed(topic_partition, start, log, policy)
                lost.append(LostRange(topic, partition, start, resume))
                start = resume
            if start < log.end_offset:
                ranges.append(OffsetRange(topic_partition, start, log.end_offset))
            next_offsets[partition] = log.end_offset
        topics[topic] = LoadedTopic(
            before.topic_id if found_id is None else found_id,
            next_offsets,
            before.earlier_ids,
            before.passed_ms,
            before.open_directories,
            before.layout,
        )
    at_end = frozenset(logs.bounds) - set(skipped)
    return LoadPlan(
        tuple(ranges),
        topics,
        tuple(lost),
        tuple(recreated),
        tuple(adopted),
        tuple(skipped),
        ended_at_ms=logs.ended_at_ms,
        at_end=at_end,
    )


def _resumed(topic_partition: TopicPartition, start: int, log: LogBounds, policy: OutOfRangePolicy) -> int:
    """Return the offset to go on at, after offsets that are gone. Raises DataLossError if the policy is ``fail``."""
    if policy == "fail":
        raise DataLossError(
            f"{topic_partition}: the last run ended at offset {start}, but the log now starts at {log.start_offset}: "
            f"{log.start_offset - start} offsets were deleted before they were loaded; run with --on-out-of-range "
            "earliest to go on without them"
        )
    return log.end_offset if policy == "latest" else log.start_offset


def _by_topic(bounds: Mapping[TopicPartition, LogBounds]) -> dict[str, dict[int, LogBounds]]:
    topics: dict[str, dict[int, LogBounds]] = {}
    for (topic, partition), log in sorted(bounds.items()):
        topics.setdefault(topic, {})[partition] = log
    return topics


def _recreation(
    topic: str, before: LoadedTopic, found_id: str | None, logs_of_topic: Mapping[int, LogBounds]
) -> str | None:
    """Return why the topic is not the one that was loaded before; None if it may be the same.

    Raises DataLossError if it is one that was loaded before the last one: the runs have read two clusters.
    """
    if before.topic_id is not None and found_id is not None:
        if found_id == before.topic_id:
            return None
        changed = (
            f"topic {topic}: the last run loaded the topic with id {before.topic_id}, but its id now is {found_id}"
        )
        if found_id in before.earlier_ids:
            raise DataLossError(
                f"{changed}, which was loaded before that one: two clusters have a topic of this name; check "
                "--bootstrap-server, and load each cluster into a destination of its own"
            )
        return f"{changed}: it was deleted and created again, or this is another cluster"
    for partition, start in sorted(before.next_offsets.items()):
        log = logs_of_topic.get(partition)
        if log is None:
            return f"{topic}-{partition} was loaded up to offset {start}, and is gone: the topic was created again"
        if start > log.end_offset:
            return (
                f"{topic}-{partition}: the last run ended at offset {start}, but the log now ends at {log.end_offset}: "
                "the topic was deleted and created again, or truncated"
            )
    return None
