"""Which offsets a run loads: pure arithmetic over what was loaded before and what the log holds now.

A range starts at the next offset of the newest manifest, or at the log start offset for a partition not loaded before,
and ends at the log end (the last stable offset) as it was when the plan was made. The plan is written down before
anything is read, so a task that is run again reads the same range.

A start that has left the log is never jumped over in silence: records between it and the log start offset are gone,
and the caller's policy says whether that fails the run (the default) or is reported and loaded from what is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

OutOfRangePolicy = Literal["fail", "earliest"]


class PlanError(KafkaliteError):
    """What is to be read is not in the log."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What a partition holds: ``start`` inclusive, ``end`` exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets to read from one partition: ``start`` inclusive, ``until`` exclusive."""

    topic_partition: TopicPartition
    start: int
    until: int

    @property
    def size(self) -> int:
        return self.until - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's ranges, none empty, in partition order; ``lost`` counts offsets deleted before they were loaded."""

    ranges: tuple[OffsetRange, ...]
    lost: int = 0

    @property
    def size(self) -> int:
        return sum(item.size for item in self.ranges)

    def to_json(self) -> str:
        ranges = [
            {
                "topic": r.topic_partition.topic,
                "partition": r.topic_partition.partition,
                "start": r.start,
                "until": r.until,
            }
            for r in self.ranges
        ]
        return json.dumps({"ranges": ranges, "lost": self.lost}, indent=1) + "\n"

    def spark_options(self) -> dict[str, str]:
        """Return the source options that read exactly these ranges."""
        assign: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for r in self.ranges:
            topic, partition = r.topic_partition
            assign.setdefault(topic, []).append(partition)
            starts.setdefault(topic, {})[str(partition)] = r.start
            ends.setdefault(topic, {})[str(partition)] = r.until
        return {
            "assign": json.dumps(assign),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }


def plan_load(
    loaded: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, LogBounds],
    on_out_of_range: OutOfRangePolicy = "fail",
) -> Plan:
    """Return what is in the log and not yet loaded.

    Raises PlanError when the next offset of a partition lies outside its log: always beyond the end (the topic was
    made anew or truncated), and before the start unless ``on_out_of_range`` is ``earliest``.
    """
    ranges: list[OffsetRange] = []
    lost = 0
    for topic_partition, log in sorted(bounds.items()):
        start = loaded.get(topic_partition, log.start)
        if start > log.end:
            raise PlanError(
                f"{topic_partition}: the last run ended at offset {start}, but the log now ends at {log.end}: the "
                "topic was deleted and made again, or truncated; load it into another destination"
            )
        if start < log.start:
            if on_out_of_range == "fail":
                raise PlanError(
                    f"{topic_partition}: the last run ended at offset {start}, but the log now starts at {log.start}: "
                    f"{log.start - start} offsets were deleted before they were loaded; run with "
                    "--on-out-of-range earliest to go on without them"
                )
            lost += log.start - start
            start = log.start
        if start < log.end:
            ranges.append(OffsetRange(topic_partition, start, log.end))
    return Plan(tuple(ranges), lost)


def plan_replay(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, LogBounds],
) -> Plan:
    """Return the ranges between two asked-for positions; partitions without an end go to the log's end.

    Raises PlanError when a start or end lies outside the log, or a start beyond its end.
    """
    unknown = sorted(str(item) for item in {*starts, *ends} - set(bounds))
    if unknown:
        raise PlanError(f"no such partition: {', '.join(unknown)}")
    ranges: list[OffsetRange] = []
    for topic_partition, log in sorted(bounds.items()):
        start = starts.get(topic_partition, log.start)
        until = ends.get(topic_partition, log.end)
        for name, offset in (("start", start), ("end", until)):
            if not log.start <= offset <= log.end:
                raise PlanError(
                    f"{topic_partition}: the {name} {offset} is not in the log, which holds offsets "
                    f"{log.start} to {log.end} (exclusive)"
                )
        if start > until:
            raise PlanError(f"{topic_partition}: the start {start} lies beyond the end {until}")
        if start < until:
            ranges.append(OffsetRange(topic_partition, start, until))
    return Plan(tuple(ranges))
