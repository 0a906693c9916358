"""Where a batch ends that may not read all that is waiting: ``maxOffsetsPerTrigger`` and ``maxBytesPerTrigger``.

A limit is shared out in proportion to what is waiting, and no partition is starved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import Offsets
from spark_kafkalite.spark.reading.range_bytes import PLACES, RangeBytes, Sampler, measured

_LONG_MAX: Final = 2**63 - 1


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Return the end offsets of a batch of about ``limit`` offsets, shared out in proportion to what is waiting.

    ``start`` covers every partition of ``end``. No partition that has anything is starved, so that the batch may pass
    the limit by one offset for each tiny partition. Source: KafkaMicroBatchStream.rateLimit.
    """
    sizes = {tp: until - start[tp] for tp, until in end.items() if until > start[tp]}
    total = sum(sizes.values())
    if total < 1:
        return dict(end)
    limited_end: Offsets = {}
    for tp, until in end.items():
        if tp not in sizes:
            limited_end[tp] = until
            continue
        # Whole numbers, where the JVM's doubles lose precision above 2^53.
        share = max(1, limit * sizes[tp] // total)
        limited_end[tp] = min(until, start[tp] + share, _LONG_MAX)
    return limited_end


def limited_by_bytes(sampler: Sampler, start: Offsets, end: Offsets, limit_bytes: int) -> Offsets:
    """Return the end offsets of a batch of about ``limit_bytes``, shared out in proportion to the bytes that wait.

    ``start`` covers every partition of ``end``. No partition that has anything is starved, so that the batch may pass
    the limit by one record of each.
    """
    whole = {tp: (start[tp], until) for tp, until in end.items() if until > start[tp]}
    if not whole:
        return end
    begins = sampler({tp: first for tp, (first, _) in whole.items()})
    # What lies far behind the batch to come says nothing of it: where it would end by its first records, it is looked
    # at more closely.
    near = _within(whole, measured(sampler, whole, 1, begins), limit_bytes)
    batch = _within(near, measured(sampler, near, PLACES, begins), limit_bytes)
    return {**end, **{tp: until for tp, (_, until) in batch.items()}}


def _within(
    ranges: Mapping[TopicPartition, tuple[int, int]], sizes: Mapping[TopicPartition, RangeBytes], limit_bytes: int
) -> dict[TopicPartition, tuple[int, int]]:
    total = sum(size.size_bytes for size in sizes.values())
    if total <= limit_bytes:
        return dict(ranges)
    return {
        tp: (first, min(until, max(first + 1, sizes[tp].offset_at(sizes[tp].size_bytes * limit_bytes / total))))
        for tp, (first, until) in ranges.items()
    }
