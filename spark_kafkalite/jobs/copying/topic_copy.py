"""The tasks of a replay into a topic: read ranges, skip records that the target has, stamp, wait, write.

A task reads and writes in one Python worker, with the source's reader and the sink's writer; the JVM only starts it.
One task reads each range in the order of its offsets, and the producer keeps that order in each partition of the
target. The worker's memory holds the reader's read-ahead and the producer's ``buffer.memory``, however slow the pace.

With a run id, a task that Spark repeats searches the target before it writes, because the attempt before may have
written any of its records. That attempt's producer ended with it. So only requests that are on their way to a broker
can arrive after that search.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext

from spark_kafkalite.jobs.copying.offset_set import OffsetSet
from spark_kafkalite.jobs.copying.replay_stamps import present_in, stamped, united
from spark_kafkalite.jobs.load.planning import LoadPlan, PlanError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.options import WriterOptions, reader_options, writer_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.partition_reader import read_task
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask, tasks_of
from spark_kafkalite.spark.reading.read_schema import copied_schema, projected_schema
from spark_kafkalite.spark.sink.writer import KafkaliteBatchWriter, WrittenMessage
from spark_kafkalite.spark.workers.connections import drop_producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition, WriterCommitMessage

_WRITTEN: Final = ("key", "value", "headers", "timestamp", "partition")
_READ: Final = (*_WRITTEN, "offset")
# A worker that has lost its JVM ends at once, but on a busy host that takes a moment.
QUIET_S: Final = 2
_STILL_WRITTEN_S: Final = 60


@dataclass(frozen=True, slots=True)
class Look:
    """A search of the target, from some offsets to its ends, for the records that a run has written of a topic."""

    source_options: Mapping[str, str]
    run_id: str
    topic: str
    begins: Mapping[TopicPartition, int]

    def within(self, partitions: Iterable[int]) -> Look:
        """Return the search of only these partitions of the target."""
        wanted = set(partitions)
        return replace(self, begins={tp: offset for tp, offset in self.begins.items() if tp.partition in wanted})

    def _reader(self) -> KafkaliteBatchReader:
        assign: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        for tp, offset in sorted(self.begins.items()):
            assign.setdefault(tp.topic, []).append(tp.partition)
            starts.setdefault(tp.topic, {})[str(tp.partition)] = offset
        options = {
            **self.source_options,
            # The run writes without transactions: an open transaction of another producer must not hide its records.
            "kafka.isolation.level": "read_uncommitted",
            "assign": json.dumps(assign),
            "startingOffsets": json.dumps(starts),
            "includeHeaders": "true",
        }
        return KafkaliteBatchReader(reader_options(options), projected_schema(copied_schema("headers")))

    def once(self, spark: SparkSession | None = None) -> tuple[dict[int, OffsetSet], Look]:
        """Return the offsets found, by partition of the topic, and the search of what is written next.

        Spark's tasks search, or this process if it has no session.
        """
        if not self.begins:
            return {}, self
        reader = self._reader()
        tasks = reader.partitions()
        ends = {each.topic_partition: each.end_offset for task in tasks for each in getattr(task, "ranges", ())}
        after = replace(self, begins={**self.begins, **ends})
        if not ends:
            return {}, after
        if spark is None:
            return united(self._found(reader, task) for task in tasks), after
        found = spark.sparkContext.parallelize(tasks, len(tasks)).map(lambda task: self._found(reader, task))
        return united(found.collect()), after

    def when_quiet(self, spark: SparkSession | None = None) -> dict[int, OffsetSet]:
        """Return the offsets found, once no record of the run has arrived for QUIET_S.

        Workers outlive a driver or an executor that was killed, for a moment or longer. The search must find what they
        write meanwhile. Raises PlanError while a process goes on to write the run.
        """
        give_up_s = time.monotonic() + _STILL_WRITTEN_S
        found, look = self.once(spark)
        while True:
            time.sleep(QUIET_S)
            more, look = look.once(spark)
            if not more:
                return found
            found = united([found, more])
            if time.monotonic() > give_up_s:
                raise PlanError(
                    f"--run-id {self.run_id}: another process goes on to write this run, for {_STILL_WRITTEN_S} s now; "
                    "end it, or wait for it, and run again"
                )

    def _found(self, reader: KafkaliteBatchReader, task: InputPartition) -> dict[int, OffsetSet]:
        return present_in(reader.read(task), self.run_id, self.topic)


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One task: ranges to read one after the other, and what the target holds of their partitions."""

    task: ReadTask
    present: Mapping[int, OffsetSet]


class TopicCopy:
    """A copy of ranges of one topic into another; pickled to the tasks."""

    def __init__(
        self,
        source_options: Mapping[str, str],
        sink_options: Mapping[str, str],
        plan: LoadPlan,
        *,
        same_partitions: bool,
        look: Look | None = None,
    ) -> None:
        """``look`` searches for records that the run has written, if it has an id."""
        options = {**source_options, "assign": plan.assign_option(), "includeHeaders": "true"}
        self._options = reader_options(options)
        self._read = ReadPlan.of(self._options, projected_schema(copied_schema(*_READ)))
        self._sink: WriterOptions = writer_options(sink_options)
        written = [name for name in _WRITTEN if same_partitions or name != "partition"]
        self._writer = KafkaliteBatchWriter(self._sink, copied_schema(*written))
        self._ranges = plan.ranges
        self._times = plan.times
        self._same_partitions = same_partitions
        self._look = look
        self._bytes_per_second: float | None = None

    def run(
        self, spark: SparkSession, present: Mapping[int, OffsetSet], max_bytes_per_second: int | None = None
    ) -> int:
        """Write what ``present`` lacks and return the number of records.

        The tasks share ``max_bytes_per_second`` evenly. Then there are only as many tasks as run at once, and a task
        may have several ranges. Raises PlanError if Spark may run a task twice at a time and the run has an id.
        """
        context = spark.sparkContext
        if self._look is not None and context.getConf().get("spark.speculation", "false") == "true":
            raise PlanError(
                "spark.speculation=true: Spark may run a task twice at the same time, and both would write; set it to "
                "false for a replay with --run-id"
            )
        ranges = left_of(self._ranges, present)
        if not ranges:
            return 0
        shares = [[each] for each in ranges]
        if max_bytes_per_second is not None:
            shares = dealt(ranges, context.defaultParallelism)
            self._bytes_per_second = max_bytes_per_second / len(shares)
        tasks = []
        for task in tasks_of(self._options, shares):
            assert isinstance(task, ReadTask)
            own = {each.topic_partition.partition for each in task.ranges}
            tasks.append(CopyTask(task, {number: present[number] for number in own if number in present}))
        messages: list[WriterCommitMessage | None] = list(
            context.parallelize(tasks, len(tasks)).map(self._run_task).collect()
        )
        self._writer.commit(messages)
        return sum(message.records for message in messages if isinstance(message, WrittenMessage))

    def _run_task(self, task: CopyTask) -> WriterCommitMessage:
        present = task.present
        context = TaskContext.get()
        if self._look is not None and context is not None and context.attemptNumber():
            own = [each.topic_partition.partition for each in task.task.ranges]
            present = (self._look.within(own) if self._same_partitions else self._look).when_quiet()
        try:
            return self._writer.write(self._rows(task.task, present))
        except BaseException:
            drop_producer(self._sink.client)
            raise

    def _rows(self, task: ReadTask, present: Mapping[int, OffsetSet]) -> Iterator[pa.RecordBatch]:
        pace = None if self._bytes_per_second is None else Pace(self._bytes_per_second)
        for each in left_of(task.ranges, present):
            topic, partition = each.topic_partition
            known = present.get(partition)
            for batch in read_task(self._read, ReadTask((each,), task.token)):
                mask = None if known is None else known.missing_rows(batch.column("offset"))
                rows = batch if mask is None else batch.filter(mask)
                if self._times is not None:
                    rows = self._times.within(rows)
                if self._look is not None:
                    rows = stamped(rows, self._look.run_id, topic, partition)
                if pace is None:
                    yield rows
                else:
                    yield from pace.pieces(rows)


def left_of(ranges: Iterable[OffsetRange], present: Mapping[int, OffsetSet]) -> list[OffsetRange]:
    """Return the ranges from the first record on that the target lacks; leave out ranges that it has in full."""
    left = []
    for each in ranges:
        known = present.get(each.topic_partition.partition)
        start = each.start_offset if known is None else known.first_missing(each.start_offset)
        if start < each.end_offset:
            left.append(replace(each, start_offset=start))
    return left


def dealt(ranges: Iterable[OffsetRange], most: int) -> list[list[OffsetRange]]:
    """Return the ranges as at most so many lists of about the same number of offsets."""
    given = sorted(ranges, key=lambda each: -each.size)
    lists: list[list[OffsetRange]] = [[] for _ in range(min(most, len(given)))]
    sizes = [0] * len(lists)
    for each in given:  # the largest first, each to the shortest list
        shortest = sizes.index(min(sizes))
        lists[shortest].append(each)
        sizes[shortest] += each.size
    return lists


# The pace of a task that must not write more than so many bytes a second: it waits before each piece of its rows.
# Bytes are those of keys, values and headers as the task holds them, before compression. Nothing is held back to be
# sent later: while the task waits, its fetcher has at most its read-ahead in memory.


# A piece is what may go out in this time, so that brokers see an even stream and not a burst for each fetch.
_PIECE_S: Final = 0.1
_COUNTED: Final = ("key", "value", "headers")


class Pace:
    """Of one task, from its first row on."""

    def __init__(
        self,
        bytes_per_second: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``bytes_per_second`` is above 0."""
        self._bytes_per_second = bytes_per_second
        self._now_s = now_s
        self._sleep = sleep
        self._due_s = now_s()

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows in pieces of about 0.1 s, at least one row, each when it is due."""
        if not batch.num_rows:
            return
        size_bytes = counted_bytes(batch)
        rows = max(1, int(batch.num_rows * self._bytes_per_second * _PIECE_S / max(1, size_bytes)))
        for first in range(0, batch.num_rows, rows):
            piece = batch.slice(first, rows)
            now_s = self._now_s()
            if self._due_s > now_s:
                self._sleep(self._due_s - now_s)
            # What was not used while there was nothing to send is not made up for.
            self._due_s = max(self._due_s, now_s) + counted_bytes(piece) / self._bytes_per_second
            yield piece


def counted_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch that count: its keys, values and headers, with Arrow's own of a few bytes a row."""
    return sum(batch.column(name).nbytes for name in _COUNTED if batch.schema.get_field_index(name) >= 0)
