"""The source with which the jobs read: it reads the tasks of a plan, and yields an account of each task's ranges.

``format("kafkalite")`` chooses the tasks of a read itself. A load plans before it reads which ranges each task reads,
because tasks make the files. A load must also account for every offset. This format therefore differs in two points:

- It takes its tasks as an option: :data:`TASKS`, JSON, a list of tasks, each a list of
  ``[topic, partition, start, until]``.
- It yields one more row after the rows of each range. The offset of this row is :data:`ACCOUNT_OFFSET`, and its key is
  the account of the range as JSON. The account takes the same way as the rows. So it arrives exactly once, as they do,
  even if Spark repeats a task.

With the option :data:`LAYOUT` (JSON) the tasks yield pieces of the layout's files instead of rows
(``formats/parquet_pieces.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.jobs.destination.names import DATA, GROUP
from spark_kafkalite.spark.jobs.formats.file_layout import FileLayout
from spark_kafkalite.spark.jobs.load.planning import LoadPlan, Tasks
from spark_kafkalite.spark.offset_ranges import OffsetRange
from spark_kafkalite.spark.options import ReaderOptions, reader_options
from spark_kafkalite.spark.partition_reader import read_ranges
from spark_kafkalite.spark.read_plan import ReadPlan, tasks_of
from spark_kafkalite.spark.read_schema import projected_schema, spark_schema
from spark_kafkalite.spark.worker_log import SOURCE, speak_of

FORMAT_NAME: Final = "kafkalite_load"
TASKS: Final = "tasks"
LAYOUT: Final = "layout"
ACCOUNT_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class RangeAccount:
    """A task's account of one range; ``start`` is inclusive, ``until`` exclusive.

    The task counts ``present``, ``control``, ``aborted`` and ``removed`` from the batches' headers
    (:class:`~spark_kafkalite.client.consume.passed_offsets.PassedOffsets`). ``size_bytes`` is the size of keys and
    values. ``min_timestamp`` and ``max_timestamp`` are in ms since the epoch, None if no record has a timestamp.
    """

    topic: str
    partition: int
    start: int
    until: int
    present: int
    control: int
    aborted: int
    removed: int
    size_bytes: int
    min_timestamp: int | None
    max_timestamp: int | None

    def to_json(self) -> str:
        """Return the account as text for a row's key."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> RangeAccount:
        """Return the account in a row's key."""
        return cls(**json.loads(text))


def tasks_json(tasks: Iterable[Iterable[OffsetRange]]) -> str:
    """Return the text of the option :data:`TASKS`."""
    return json.dumps(
        [[[*each.topic_partition, each.start_offset, each.end_offset] for each in ranges] for ranges in tasks]
    )


def tasks_from_json(text: str) -> Tasks:
    """Return the tasks in the text of the option :data:`TASKS`."""
    return tuple(
        tuple(OffsetRange(TopicPartition(topic, partition), start, until) for topic, partition, start, until in ranges)
        for ranges in json.loads(text)
    )


def options_of(plan: LoadPlan, source_options: Mapping[str, str], pieces: FileLayout | None = None) -> dict[str, str]:
    """Return the options for reading the plan's tasks. With ``pieces`` tasks yield pieces of that layout's files."""
    options = {**source_options, "assign": plan.assign_option(), TASKS: tasks_json(plan.planned_tasks)}
    return options if pieces is None else {**options, LAYOUT: json.dumps(asdict(pieces))}


class LoadReader(DataSourceReader):
    """Reads the planned tasks."""

    def __init__(
        self, options: ReaderOptions, schema: pa.Schema, tasks: Tasks, layout: FileLayout | None = None
    ) -> None:
        """With a ``layout`` the tasks yield pieces of its files instead of rows."""
        self._options = options
        self.plan = ReadPlan.of(options, schema)
        self._tasks = tasks
        self._layout = layout

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [*tasks_of(self._options, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows and the account of each range, or pieces of files. Runs in a Python worker."""
        rows = self._rows(partition)
        if self._layout is None:
            return rows
        # This import loads Arrow's Parquet module, which other reads do not need.
        from spark_kafkalite.spark.jobs.formats.parquet_pieces import PieceMaker

        return PieceMaker(self.plan.schema, self._layout)(rows)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        passed = PassedOffsets()
        for each, batches in read_ranges(self.plan, partition, passed):
            yield from accounted(each, batches, passed, self.plan.schema)


class LoadSource(DataSource):
    """Reads planned ranges. The jobs register it for their own reads."""

    reader_type: type[LoadReader] = LoadReader

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the source's columns with headers, or the columns of pieces of files."""
        if LAYOUT in self.options:
            return StructType([StructField(GROUP, StringType()), StructField(DATA, BinaryType())])
        return spark_schema(include_headers=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the tasks in the options. Raises SparkConditionError for an invalid option."""
        given = {name: value for name, value in self.options.items() if name not in (TASKS, LAYOUT)}
        options = reader_options(given)
        speak_of(SOURCE, options.subject)
        layout = None
        if LAYOUT in self.options:
            layout, schema = FileLayout(**json.loads(self.options[LAYOUT])), spark_schema(include_headers=True)
        return self.reader_type(options, projected_schema(schema), tasks_from_json(self.options[TASKS]), layout)


def accounted(
    each: OffsetRange, batches: Iterator[pa.RecordBatch], passed: PassedOffsets, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, then its account as one more row. ``passed`` counts the decoded offsets."""
    before = replace(passed)
    size_bytes = 0
    bounds: list[tuple[int, int]] = []
    for batch in batches:
        size_bytes += _data_bytes(batch.column("key")) + _data_bytes(batch.column("value"))
        bounds += _timestamp_bounds(batch.column("timestamp").view(pa.int64()))
        yield batch
    account = RangeAccount(
        topic=each.topic_partition.topic,
        partition=each.topic_partition.partition,
        start=each.start_offset,
        until=each.end_offset,
        present=passed.present - before.present,
        control=passed.control - before.control,
        aborted=passed.aborted - before.aborted,
        removed=passed.removed - before.removed,
        size_bytes=size_bytes,
        min_timestamp=min((smallest for smallest, _ in bounds), default=None),
        max_timestamp=max((largest for _, largest in bounds), default=None),
    )
    yield _account_row(account, schema)


def _data_bytes(cells: pa.BinaryArray) -> int:
    return int(pc.sum(pc.binary_length(cells)).as_py() or 0)


def _timestamp_bounds(microseconds: pa.Int64Array) -> list[tuple[int, int]]:
    """Return the smallest and the largest timestamp in ms, without records that have none (-1 ms)."""
    found = pc.min_max(microseconds).as_py()
    if found["min"] is not None and found["min"] < 0:
        found = pc.min_max(microseconds.filter(pc.greater_equal(microseconds, 0))).as_py()
    return [] if found["min"] is None else [(found["min"] // 1000, found["max"] // 1000)]


def _account_row(account: RangeAccount, schema: pa.Schema) -> pa.RecordBatch:
    row: Mapping[str, object] = {
        "key": account.to_json().encode(),
        "topic": account.topic,
        "partition": account.partition,
        "offset": ACCOUNT_OFFSET,
        "timestamp": 0,
        "timestampType": ACCOUNT_OFFSET,
    }
    arrays = [pa.array([row.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
