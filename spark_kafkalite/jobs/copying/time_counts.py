"""How many records of a replay's offsets are in its time range: counted in a small log, estimated in a large one.

Kafka's ListOffsets answers with the first offset at or after a time. It does not report records that are out of time
order, so their number is only in the records themselves. A range of up to COUNTED_BYTES in the log is read whole. Of a
larger one, about as many bytes are read in PIECES places at equal distances. This runs on the driver, without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from spark_kafkalite.jobs.copying.time_order import TimeCounts, TimeOrder
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.jobs.load.time_range import TimeRange
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.options.options import ReaderOptions, reader_options
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.partition_reader import read_ranges
from spark_kafkalite.spark.reading.range_bytes import RangeBytes, measured
from spark_kafkalite.spark.reading.read_plan import ReadPlan, tasks_of
from spark_kafkalite.spark.reading.read_schema import copied_schema, projected_schema

# A second or less to read and decode.
COUNTED_BYTES: Final = 64 * 1024 * 1024
PIECES: Final = 256


def time_order(
    source_options: Mapping[str, str],
    plan: LoadPlan,
    logs: Mapping[TopicPartition, LogBounds],
    times: TimeRange,
) -> TimeOrder:
    """Return how the offsets of a plan differ from the time range that was asked for.

    ``logs`` are the logs in which records of the time range may lie behind the plan; empty if that does not matter.
    Raises SparkConditionError as a task does.
    """
    # A run that goes on does not know partitions that were added since.
    ends = {tp: plan.topics[tp.topic].next_offsets.get(tp.partition, log.end_offset) for tp, log in logs.items()}
    behind = [OffsetRange(tp, end, logs[tp].end_offset) for tp, end in ends.items() if end < logs[tp].end_offset]
    exact = plan.times is not None
    assign: dict[str, list[int]] = {}
    for each in {*(each.topic_partition for each in plan.ranges), *ends}:
        assign.setdefault(each.topic, []).append(each.partition)
    if not assign:
        return TimeOrder(TimeCounts(), None, exact)
    options = reader_options({**source_options, "assign": json.dumps(assign)})
    lookup = ClusterOffsets(options)
    return TimeOrder(
        count_times(lookup, options, plan.ranges, times),
        count_times(lookup, options, behind, times) if logs else None,
        exact,
    )


def count_times(
    lookup: ClusterOffsets, options: ReaderOptions, ranges: Iterable[OffsetRange], times: TimeRange
) -> TimeCounts:
    """Return how many records of the ranges, which are not empty and of different partitions, are in ``times``.

    ``options`` are those of a source that may read the ranges' topics. Raises SparkConditionError as a task does.
    """
    wholes = {each.topic_partition: each for each in ranges}
    if not wholes:
        return TimeCounts()
    sizes = measured(lookup.samples, {tp: (each.start_offset, each.end_offset) for tp, each in wholes.items()})
    counted = sum(each.size_bytes for each in sizes.values()) <= COUNTED_BYTES
    pieces = list(wholes.values()) if counted else list(pieces_of(wholes.values(), sizes))
    rows: dict[TopicPartition, list[int]] = {tp: [0, 0, 0] for tp in wholes}
    plan = ReadPlan.of(options, projected_schema(copied_schema("timestamp")))
    for task in tasks_of(options, [pieces]):
        for each, batches in read_ranges(plan, task):
            of_partition = rows[each.topic_partition]
            of_partition[2] += each.size
            for batch in batches:
                inside = times.within(batch).num_rows
                of_partition[0] += inside
                of_partition[1] += batch.num_rows - inside
    return scaled(wholes, rows, counted=counted)


def pieces_of(ranges: Iterable[OffsetRange], sizes: Mapping[TopicPartition, RangeBytes]) -> Iterator[OffsetRange]:
    """Yield about PIECES pieces of the ranges, at least one of each, which together have about COUNTED_BYTES."""
    total = sum(each.size_bytes for each in sizes.values())
    for each in ranges:
        size_bytes = sizes[each.topic_partition].size_bytes
        number = min(each.size, max(1, round(PIECES * size_bytes / total)))
        offsets = max(1, int(each.size * COUNTED_BYTES / total / number))
        for place in range(number):
            start = each.start_offset + each.size * place // number
            yield OffsetRange(each.topic_partition, start, min(start + offsets, each.end_offset))


def scaled(
    wholes: Mapping[TopicPartition, OffsetRange], rows: Mapping[TopicPartition, list[int]], *, counted: bool
) -> TimeCounts:
    """Return the counts of whole ranges from those of their pieces: (inside, outside, offsets read) by partition."""
    inside = outside = 0.0
    for tp, (within, others, offsets) in rows.items():
        factor = wholes[tp].size / offsets
        inside += within * factor
        outside += others * factor
    return TimeCounts(round(inside), round(outside), counted)
