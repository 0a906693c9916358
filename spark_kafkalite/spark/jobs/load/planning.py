"""Which offsets a run loads: pure arithmetic over what was loaded before and what the log holds now.

A range starts at the next offset of the newest manifest, or at the log start offset for a partition not loaded before,
and ends at the log end (the last stable offset) as it was when the plan was made, or before it where the run is
bounded. The plan is written down before anything is read, with the task that reads each range (``task_planning``), so a
task that is run again reads the same ranges and writes the same files.

Nothing is jumped over in silence, and the caller's policies say whether it fails the run (the default) or is reported
and written into the manifest:

- A start that has left the log: records between it and the log start offset are gone.
- A topic that was deleted and created again: its offsets begin anew, and those of the last run say nothing about it.
  What the new one no longer holds from offset 0 on is lost. Its id tells. Where an id is not known (manifests of format
  1, clusters older than Kafka 2.8) only a log that ends before the last run's end, or a partition that is gone, shows
  it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.jobs.destination.manifest import LoadedTopic, LostRange, RecreatedTopic
from spark_kafkalite.spark.offset_ranges import OffsetRange

OutOfRangePolicy = Literal["fail", "earliest", "latest", "nearest", "skip"]
RecreatedPolicy = Literal["fail", "earliest"]
NewPartitionPolicy = Literal["earliest", "latest"]
Tasks = tuple[tuple[OffsetRange, ...], ...]


class PlanError(KafkaliteError):
    """What is to be read is not in the log."""


class DataLossError(PlanError):
    """Going on would leave out records, or mix those of two logs, without anybody having said so."""


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """What the cluster holds of some topics. ``topic_ids`` in Kafka's text; a topic without one is not in it.

    ``ended_at_ms`` is the time, in ms since the epoch, at which the ends were asked for, or a little earlier.
    """

    bounds: Mapping[TopicPartition, LogBounds]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    ended_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class LoadPolicies:
    """What a run does where it cannot simply go on. The default fails, and takes new partitions from their start."""

    on_out_of_range: OutOfRangePolicy = "fail"
    on_recreated_topic: RecreatedPolicy = "fail"
    new_partitions: NewPartitionPolicy = "earliest"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A run's ranges, none empty, in partition order, and what its manifest is going to say of its topics.

    ``topics`` is where the run after this one goes on. ``adopted_ids`` are topics loaded before, whose id was not known
    until now. ``skipped`` are partitions that this run leaves as they are. ``tasks`` are the ranges again, cut and put
    together as tasks read them; none: a task for each. ``ended_at_ms`` and ``at_end`` say when the logs' ends were
    taken, and which partitions are read up to them.
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
        """Say whether there is anything to publish, records or not, for a destination that holds ``loaded``."""
        return any(loaded.get(topic) != state for topic, state in self.topics.items())

    def to_json(self) -> str:
        """Return the plan's text, as it is written down before anything is read."""
        document = {
            "ranges": [_range_document(each) for each in self.ranges],
            "tasks": [[_range_document(each) for each in ranges] for ranges in self.planned_tasks],
            "topic_ids": {topic: state.topic_id for topic, state in self.topics.items()},
            "lost": [each.document() for each in self.lost],
            "recreated": [each.document() for each in self.recreated],
            "skipped": [str(each) for each in self.skipped],
        }
        return json.dumps(document, indent=1) + "\n"

    def bounded(self, ends: Mapping[TopicPartition, int]) -> LoadPlan:
        """Return the plan with ranges that end no later than ``ends``, and without those that are empty then."""
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
    """Return what is in the log and not yet loaded; ``policies`` are those of all topics, or of each.

    Raises DataLossError when the next offset of a partition lies beyond the end of its log, when it lies before its
    start unless ``on_out_of_range`` says how to go on, and for a topic that was deleted and created again unless
    ``on_recreated_topic`` is ``earliest``: what its logs hold is loaded then, and what they no longer hold from offset
    0 on is among the lost ranges.
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
        before = loaded.get(topic, LoadedTopic(found_id, {}))
        reason = _recreation(topic, before, found_id, logs_of_topic)
        if reason is not None:
            if own.on_recreated_topic == "fail":
                raise DataLossError(
                    f"{reason}; run with --on-recreated-topic earliest to load what the topic holds now, beside what "
                    "was loaded of the earlier one, or load it into another destination"
                )
            recreated.append(RecreatedTopic(topic, before.topic_id, found_id, before.next_offsets))
            before = LoadedTopic(found_id, dict.fromkeys(logs_of_topic, 0), (*before.earlier_ids, before.topic_id))
        elif before.topic_id is None and found_id is not None:
            adopted.append(topic)
        next_offsets = {**before.next_offsets}
        for partition, log in logs_of_topic.items():
            topic_partition = TopicPartition(topic, partition)
            first = log.start_offset if own.new_partitions == "earliest" else log.end_offset
            start = before.next_offsets.get(partition, first)
            if start > log.end_offset:
                raise DataLossError(
                    f"{topic_partition}: the last run ended at offset {start}, but the log now ends at "
                    f"{log.end_offset}, and the topic is the same: a new leader does not know its end yet (run again), "
                    "or the log was truncated (load the topic into another destination)"
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
    """Return where to go on behind offsets that are gone. Raises DataLossError where the run is to fail."""
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
    """Say why the topic is not the one that was loaded before; None when nothing speaks against it.

    Raises DataLossError for one that was loaded before the last: another cluster is being asked, or was.
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
