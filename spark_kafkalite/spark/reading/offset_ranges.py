"""Offsets and ranges: the split into tasks, and what counts as data loss. Pure arithmetic.

Offsets map a topic-partition to the *next* offset to read. Ranges include ``start_offset`` and exclude ``end_offset``.

Sizes count offsets, not records: on compacted and transactional topics a range holds fewer records than its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafkalite.printable import first_of
from spark_kafkalite.spark.conditions import (
    LOSS_ADDED_NOT_FROM_ZERO,
    LOSS_INITIAL_NOT_FOUND,
    LOSS_OFFSET_CHANGED,
    LOSS_PARTITIONS_DELETED,
)
from spark_kafkalite.spark.reading.data_loss import DataLoss, LossCause, gone_by_cause

Offsets = dict[TopicPartition, int]

# For how long a topic that was there must be unknown to the brokers before it counts as deleted: one that has just
# started knows nothing at first.
UNKNOWN_GRACE_S: Final = 10.0

# A task of a Python source costs 60-70 ms before its first record, so ranges below this size share a task ...
PACK_TARGET_OFFSETS: Final = 32_768
# ... but not so that fewer tasks than this are left to run in parallel: few small ranges stay a task each.
PACK_MIN_TASKS: Final = 8


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A piece of one partition's log to read: from ``start_offset`` until before ``end_offset``.

    ``start_epoch`` is the leader epoch in which the log was seen to reach to ``start_offset``, -1 where it was not: a
    log that has less of the epochs up to it was cut since.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    start_epoch: int = NO_LEADER_EPOCH

    @property
    def size(self) -> int:
        """Offsets in the range; not above 0 when there is nothing to read."""
        return self.end_offset - self.start_offset

    def __str__(self) -> str:
        return f"{self.topic_partition}[{self.start_offset}, {self.end_offset})"


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Return how many offsets lie between the two; a partition without a start counts from 0."""
    return sum(until - start.get(tp, 0) for tp, until in end.items())


# Ranges and tasks ---------------------------------------------------------------------------------------------------


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Return the ranges that hold anything, in the order of their partitions. ``start`` covers every key of ``end``."""
    ranges = [OffsetRange(tp, start[tp], until) for tp, until in sorted(end.items())]
    return [each for each in ranges if each.size > 0]


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records_per_partition: int | None
) -> list[OffsetRange]:
    """Divide ranges as ``maxRecordsPerPartition``, then ``minPartitions`` ask. Source: KafkaOffsetRangeCalculator."""
    pieces = [each for each in ranges if each.size > 0]
    if max_records_per_partition is not None:
        pieces = [part for each in pieces for part in _divided(each, -(-each.size // max_records_per_partition))]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(each.size for each in pieces)
    whole = {each for each in pieces if _rounded(each.size * min_partitions, total) <= 1}
    split_total = sum(each.size for each in pieces if each not in whole)
    split_count = max(min_partitions - len(whole), 1)
    return [
        part
        for each in pieces
        for part in (
            [each] if each in whole else _divided(each, max(_rounded(each.size * split_count, split_total), 1))
        )
    ]


def _rounded(dividend: int, divisor: int) -> int:
    """Return the quotient rounded half up, as Java's Math.round does."""
    return (2 * dividend + divisor) // (2 * divisor)


def _divided(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Return the range in ``parts`` pieces; each takes its share of what is left, so that the remainder is spread."""
    parts = max(1, min(parts, whole.size))
    places, start = [], whole.start_offset
    for index in range(parts):
        start += (whole.end_offset - start) // (parts - index)
        places.append(start)
    return cut(whole, places)


def cut(whole: OffsetRange, places: Iterable[int]) -> list[OffsetRange]:
    """Return the range in pieces that end at these offsets, and at its own end; empty ones are left out."""
    pieces, start = [], whole.start_offset
    for end in (*sorted(places), whole.end_offset):
        if start < end <= whole.end_offset:
            start_epoch = whole.start_epoch if start == whole.start_offset else NO_LEADER_EPOCH
            pieces.append(OffsetRange(whole.topic_partition, start, end, start_epoch))
            start = end
    return pieces


def packed(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Put small ranges together into tasks. Ranges of a task are in order; the result depends on nothing else.

    Up to PACK_MIN_TASKS ranges are a task each. Above that, ranges below PACK_TARGET_OFFSETS share tasks of about that
    size, of which PACK_MIN_TASKS at least remain.
    """
    if len(ranges) <= PACK_MIN_TASKS:
        return [[each] for each in ranges]
    large = [[each] for each in ranges if each.size >= PACK_TARGET_OFFSETS]
    small = sorted((each for each in ranges if each.size < PACK_TARGET_OFFSETS), key=lambda each: -each.size)
    if not small:
        return large
    wanted = max(PACK_MIN_TASKS - len(large), -(-sum(each.size for each in small) // PACK_TARGET_OFFSETS), 1)
    tasks: list[list[OffsetRange]] = [[] for _ in range(min(wanted, len(small)))]
    loads = [0] * len(tasks)
    for each in small:  # largest first, each to the least loaded task
        lightest = loads.index(min(loads))
        tasks[lightest].append(each)
        loads[lightest] += each.size
    return large + [sorted(task, key=lambda each: (each.topic_partition, each.start_offset)) for task in tasks]


# Data loss ----------------------------------------------------------------------------------------------------------


def losses(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest_of_new: Mapping[TopicPartition, int],
) -> list[DataLoss]:
    """Return what is lost between two offsets of a query: partitions gone, grown into the past, or going backwards.

    ``earliest_of_new`` holds the first offset of those partitions of ``end`` that ``start`` does not have.
    """
    found: list[DataLoss] = []
    missing = sorted(tp for tp in end if tp not in start and tp not in earliest_of_new)
    if missing:
        found.append(
            DataLoss(
                LOSS_INITIAL_NOT_FOUND,
                LossCause.PARTITION_GONE,
                f"no first offset was found for the new partitions {_named(missing)}",
            )
        )
    late = sorted(tp for tp, offset in earliest_of_new.items() if tp in end and offset != 0)
    if late:
        shown = ", ".join(f"{tp} starts at {earliest_of_new[tp]}" for tp in late[:20])
        skipped = sum(earliest_of_new[tp] for tp in late)
        text = f"new partitions do not start at offset 0: {shown}; {skipped} offsets are skipped"
        found.append(DataLoss(LOSS_ADDED_NOT_FROM_ZERO, LossCause.AGED_OUT, text))
    for cause, gone in gone_by_cause(start, end):
        found.append(DataLoss(LOSS_PARTITIONS_DELETED, cause, f"{_named(gone)} are gone; were they deleted?"))
    backwards = sorted(tp for tp, offset in end.items() if tp in start and offset < start[tp])
    if backwards:
        shown = ", ".join(f"{tp} went from {start[tp]} to {end[tp]}" for tp in backwards[:20])
        found.append(
            DataLoss(
                LOSS_OFFSET_CHANGED,
                LossCause.END_WENT_BACK,
                f"offsets went backwards: {shown}; was the topic deleted and created again?",
            )
        )
    return found


def _named(partitions: Iterable[TopicPartition]) -> str:
    return first_of(list(partitions), 20)
