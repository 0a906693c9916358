"""Which offsets a run loads: pure arithmetic over what was loaded before and what the log holds now.

A range starts at the next offset of the newest manifest, or at the log start offset for a partition not loaded before,
and ends at the log end (the last stable offset) as it was when the plan was made. The plan is written down before
anything is read, so a task that is run again reads the same range.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.jobs.manifest import LoadedTopic, LostRange, RecreatedTopic
from spark_kafkalite.spark.offset_ranges import OffsetRange

OutOfRangePolicy = Literal["fail", "earliest"]
RecreatedPolicy = Literal["fail", "earliest"]


class PlanError(KafkaliteError):
    """What is to be read is not in the log."""


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """What the cluster holds of some topics. ``topic_ids`` in Kafka's text; a topic without one is not in it."""

    bounds: Mapping[TopicPartition, LogBounds]
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A run's ranges, none empty, in partition order, and what its manifest is going to say of its topics.

    ``topics`` is where the run after this one goes on. ``adopted_ids`` are topics loaded before, whose id was not known
    until now.
    """

    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, LoadedTopic] = field(default_factory=dict)
    lost: tuple[LostRange, ...] = ()
    recreated: tuple[RecreatedTopic, ...] = ()
    adopted_ids: tuple[str, ...] = ()

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
            "ranges": [
                {
                    "topic": r.topic_partition.topic,
                    "partition": r.topic_partition.partition,
                    "start": r.start_offset,
                    "until": r.end_offset,
                }
                for r in self.ranges
            ],
            "topic_ids": {topic: state.topic_id for topic, state in self.topics.items()},
            "lost": [each.document() for each in self.lost],
            "recreated": [each.document() for each in self.recreated],
        }
        return json.dumps(document, indent=1) + "\n"

    def spark_options(self) -> dict[str, str]:
        """Return the source options that read exactly these ranges."""
        assign: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for r in self.ranges:
            topic, partition = r.topic_partition
            assign.setdefault(topic, []).append(partition)
            starts.setdefault(topic, {})[str(partition)] = r.start_offset
            ends.setdefault(topic, {})[str(partition)] = r.end_offset
        return {
            "assign": json.dumps(assign),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }


def plan_load(
    loaded: Mapping[str, LoadedTopic],
    logs: TopicLogs,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_recreated_topic: RecreatedPolicy = "fail",
) -> LoadPlan:
    """Return what is in the log and not yet loaded.

    Raises PlanError when the next offset of a partition lies beyond the end of its log, when it lies before the start
    unless ``on_out_of_range`` is ``earliest``, and for a topic that was deleted and created again unless
    ``on_recreated_topic`` is ``earliest``: what its logs hold is loaded then, and what they no longer hold from offset
    0 on is among the lost ranges.
    """
    ranges: list[OffsetRange] = []
    lost: list[LostRange] = []
    recreated: list[RecreatedTopic] = []
    adopted: list[str] = []
    topics: dict[str, LoadedTopic] = {}
    for topic, logs_of_topic in _by_topic(logs.bounds).items():
        found_id = logs.topic_ids.get(topic)
        before = loaded.get(topic, LoadedTopic(found_id, {}))
        reason = _recreation(topic, before, found_id, logs_of_topic)
        if reason is not None:
            if on_recreated_topic == "fail":
                raise PlanError(
                    f"{reason}; run with --on-recreated-topic earliest to load what the topic holds now, beside what "
                    "was loaded of the earlier one, or load it into another destination"
                )
            recreated.append(RecreatedTopic(topic, before.topic_id, found_id, before.next_offsets))
            before = LoadedTopic(found_id, dict.fromkeys(logs_of_topic, 0), (*before.earlier_ids, before.topic_id))
        elif before.topic_id is None and found_id is not None:
            adopted.append(topic)
        for partition, log in logs_of_topic.items():
            topic_partition = TopicPartition(topic, partition)
            start = before.next_offsets.get(partition, log.start_offset)
            if start > log.end_offset:
                raise PlanError(
                    f"{topic_partition}: the last run ended at offset {start}, but the log now ends at "
                    f"{log.end_offset}, and the topic is the same: a new leader does not know its end yet (run again), "
                    "or the log was truncated (load the topic into another destination)"
                )
            if start < log.start_offset:
                if on_out_of_range == "fail" and reason is None:
                    raise PlanError(
                        f"{topic_partition}: the last run ended at offset {start}, but the log now starts at "
                        f"{log.start_offset}: {log.start_offset - start} offsets were deleted before they were loaded; "
                        "run with --on-out-of-range earliest to go on without them"
                    )
                lost.append(LostRange(topic, partition, start, log.start_offset))
                start = log.start_offset
            if start < log.end_offset:
                ranges.append(OffsetRange(topic_partition, start, log.end_offset))
        topics[topic] = LoadedTopic(
            before.topic_id if found_id is None else found_id,
            {**before.next_offsets, **{partition: log.end_offset for partition, log in logs_of_topic.items()}},
            before.earlier_ids,
        )
    return LoadPlan(tuple(ranges), topics, tuple(lost), tuple(recreated), tuple(adopted))


def _by_topic(bounds: Mapping[TopicPartition, LogBounds]) -> dict[str, dict[int, LogBounds]]:
    topics: dict[str, dict[int, LogBounds]] = {}
    for (topic, partition), log in sorted(bounds.items()):
        topics.setdefault(topic, {})[partition] = log
    return topics


def _recreation(
    topic: str, before: LoadedTopic, found_id: str | None, logs_of_topic: Mapping[int, LogBounds]
) -> str | None:
    """Say why the topic is not the one that was loaded before; None when nothing speaks against it.

    Raises PlanError for one that was loaded before the last: another cluster is being asked, or was.
    """
    if before.topic_id is not None and found_id is not None:
        if found_id == before.topic_id:
            return None
        changed = (
            f"topic {topic}: the last run loaded the topic with id {before.topic_id}, but its id now is {found_id}"
        )
        if found_id in before.earlier_ids:
            raise PlanError(
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


def plan_replay(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    logs: TopicLogs,
) -> LoadPlan:
    """Return the ranges between two asked-for positions; partitions without an end go to the log's end.

    Raises PlanError when a start or end lies outside the log, or a start beyond its end.
    """
    unknown = sorted(str(item) for item in {*starts, *ends} - set(logs.bounds))
    if unknown:
        raise PlanError(f"no such partition: {', '.join(unknown)}")
    ranges: list[OffsetRange] = []
    for topic_partition, log in sorted(logs.bounds.items()):
        start = starts.get(topic_partition, log.start_offset)
        until = ends.get(topic_partition, log.end_offset)
        for name, offset in (("start", start), ("end", until)):
            if not log.start_offset <= offset <= log.end_offset:
                raise PlanError(
                    f"{topic_partition}: the {name} {offset} is not in the log, which holds offsets "
                    f"{log.start_offset} to {log.end_offset} (exclusive)"
                )
        if start > until:
            raise PlanError(f"{topic_partition}: the start {start} lies beyond the end {until}")
        if start < until:
            ranges.append(OffsetRange(topic_partition, start, until))
    topics = {
        topic: LoadedTopic(
            logs.topic_ids.get(topic),
            {
                partition: ends.get(TopicPartition(topic, partition), log.end_offset)
                for partition, log in partitions.items()
            },
        )
        for topic, partitions in _by_topic(logs.bounds).items()
    }
    return LoadPlan(tuple(ranges), topics)
