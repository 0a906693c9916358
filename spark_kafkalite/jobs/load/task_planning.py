"""Which task reads which ranges, by the bytes that they hold in the log: files are made of tasks.

A range larger than the target is cut into tasks of about the same bytes; ranges of one topic that are smaller share a
task until it has the target's bytes, so that many small partitions end in few files. Bytes are those of the log
(:mod:`~spark_kafkalite.spark.reading.range_bytes`), so a file is smaller or larger than the target by as much as its
format packs better or worse than the log. Pure but for the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_kafkalite.jobs.load.planning import LoadPlan, Tasks
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.range_bytes import Sampler, cut_by_bytes


def planned_in_tasks(sampler: Sampler, plan: LoadPlan, target_bytes: Mapping[str, int]) -> tuple[LoadPlan, float]:
    """Return the plan with its tasks, and about how many bytes it reads; ``target_bytes`` are those of each topic."""
    tasks: list[tuple[OffsetRange, ...]] = []
    size_bytes = 0.0
    for target in sorted(set(target_bytes.values())):
        ranges = [each for each in plan.ranges if target_bytes[each.topic_partition.topic] == target]
        found, of_ranges = tasks_by_bytes(sampler, ranges, target)
        tasks += found
        size_bytes += of_ranges
    return replace(plan, tasks=tuple(tasks)), size_bytes


def tasks_by_bytes(sampler: Sampler, ranges: Iterable[OffsetRange], target_bytes: int) -> tuple[Tasks, float]:
    """Return the tasks of ranges of different partitions, in the order of the ranges, and about their bytes."""
    tasks: list[tuple[OffsetRange, ...]] = []
    total = 0.0
    sharing: list[OffsetRange] = []
    sharing_bytes = 0.0
    for pieces, size_bytes in cut_by_bytes(sampler, ranges, target_bytes):
        total += size_bytes
        small = len(pieces) == 1
        other_topic = sharing and sharing[-1].topic_partition.topic != pieces[0].topic_partition.topic
        if sharing and (not small or other_topic or sharing_bytes + size_bytes > target_bytes):
            tasks.append(tuple(sharing))
            sharing, sharing_bytes = [], 0.0
        if small:
            sharing += pieces
            sharing_bytes += size_bytes
        else:
            tasks += ((piece,) for piece in pieces)
    if sharing:
        tasks.append(tuple(sharing))
    return tuple(tasks), total
