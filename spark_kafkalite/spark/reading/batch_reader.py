"""Batch reads on the driver: which ranges each task reads.

``reader()`` runs when Spark plans the first action over a ``.load()``. From PySpark 4.1 on Spark keeps its answer for
that DataFrame: later actions read the same ranges, and only a new ``.load()`` sees records that came since. A task
warns of that (:mod:`.repeated_plan`). Ends are resolved here, so that ``maxRecordsPerPartition`` also applies to a read
from earliest to latest. Holds only what can be pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import (
    LOSS_PARTITIONS_DELETED,
    RESOLVED_START_AFTER_END,
    START_AND_END_MISMATCH,
    UNRESOLVED_START_AFTER_END,
    SparkConditionError,
    listed,
)
from spark_kafkalite.spark.options.offset_options import OffsetSpec
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.options.positions import PositionKind
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.reading.data_loss import DataLoss, gone_by_cause
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange, Offsets, packed, ranges_between, split
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask, tasks_of
from spark_kafkalite.spark.reading.repeated_plan import FirstTask, PlanEnds, warn_if_repeated
from spark_kafkalite.spark.tracebacks import without_frames
from spark_kafkalite.spark.workers.worker_log import say

_LOG = logging.getLogger("spark_kafkalite.spark")


@without_frames
class KafkaliteBatchReader(DataSourceReader):
    """What Spark asks for one batch read."""

    def __init__(self, options: ReaderOptions, schema: pa.Schema) -> None:
        """Raises SparkConditionError for starts and ends that contradict each other."""
        self._options = options
        self._plan = ReadPlan.of(options, schema)
        self._starting = options.starting_for(streaming=False)
        self._ending = options.ending_for_batch()
        _check_unresolved(self._starting, self._ending)

    def partitions(self) -> list[InputPartition]:
        """Resolve the ranges and return the tasks."""
        say(self._options.batch_notes())
        lookup = ClusterOffsets(self._options)
        assigned = lookup.assigned()
        if self._starting.committed:
            from spark_kafkalite.spark.checkpoints.checkpoint_commits import committed_start

            start = committed_start(self._options, lookup, assigned)
        else:
            start = lookup.resolved(self._starting, assigned.partitions, starting=True)
        end = lookup.resolved(self._ending, assigned.partitions, starting=False)
        end = lookup.within_log(self._ending, end)
        end = {tp: offset for tp, offset in end.items() if tp in start}
        report_gone(self._options, assigned.partitions, end)
        check_resolved(start, end)
        tasks = planned_tasks(self._options, lookup, ranges_between(start, end))
        # With no task at all Spark would call read() with a partition of its own making.
        first, *others = tasks_of(self._options, tasks) or [ReadTask(())]
        return [FirstTask(first, PlanEnds.of(self._ending.positions, end)), *others]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges; runs in a Python worker."""
        from spark_kafkalite.spark.reading.partition_reader import read_task

        if isinstance(partition, FirstTask):
            warn_if_repeated(self._plan, partition)
        return read_task(self._plan, partition)


def report_gone(options: ReaderOptions, listed_before: Iterable[TopicPartition], found: Offsets) -> None:
    """Raise, or warn, if partitions disappeared between the look-up of the topics and that of their offsets."""
    for cause, gone in gone_by_cause(listed_before, found):
        text = f"{listed(gone)} disappeared just now; was a topic deleted?"
        options.losses.meet(DataLoss(LOSS_PARTITIONS_DELETED, cause, text))


def planned_tasks(options: ReaderOptions, lookup: ClusterOffsets, ranges: list[OffsetRange]) -> list[list[OffsetRange]]:
    """Return the ranges of each task: split as the options ask, else small ranges together."""
    max_records, max_bytes = options.max_records_per_partition, options.max_bytes_per_partition
    if max_records is None and max_bytes is None and options.min_partitions is None:
        return packed(ranges)
    if max_bytes is not None:
        from spark_kafkalite.spark.reading.range_bytes import split_by_bytes

        ranges = split_by_bytes(lookup.samples, ranges, max_bytes)
    return [[piece] for piece in split(ranges, options.min_partitions, max_records)]


def _check_unresolved(starting: OffsetSpec, ending: OffsetSpec) -> None:
    """Raise where JSON for the start and JSON for the end do not fit, which needs no broker to see."""
    starts, ends = starting.positions, ending.positions
    if starts is None or ends is None or starting.is_by_time or ending.is_by_time:
        return
    differing = sorted(set(starts.partitions) ^ set(ends.partitions))
    # Where one of them names topics, or all others, it may well name fewer partitions.
    if differing and starts.is_by_partition and ends.is_by_partition:
        raise SparkConditionError(
            START_AND_END_MISMATCH,
            f"{ending.option}={ending.text}: {starting.option} and {ending.option} name different partitions "
            f"({listed(differing)}); name the same ones in both",
        )
    for tp in sorted(set(starts.partitions) & set(ends.partitions)):
        start, end = starts.partitions[tp], ends.partitions[tp]
        if start.kind is end.kind is PositionKind.OFFSET and start.number > end.number:
            raise _after_end(UNRESOLVED_START_AFTER_END, tp, start.number, end.number)


def check_resolved(start: Offsets, end: Offsets) -> None:
    """Raise where a resolved start lies after its end."""
    for tp, offset in sorted(start.items()):
        if tp in end and offset > end[tp]:
            raise _after_end(RESOLVED_START_AFTER_END, tp, offset, end[tp])


def _after_end(condition: str, tp: TopicPartition, start: int, end: int) -> SparkConditionError:
    return SparkConditionError(
        condition,
        f"{tp}: the start offset {start} is greater than the end offset {end}; lower the start or raise the end",
    )
