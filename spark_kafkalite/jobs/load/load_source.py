"""The source with which the jobs read: it reads the tasks of a plan, and yields an account of each task's ranges.

``format("kafkalite")`` chooses the tasks of a read itself. A load plans before it reads which ranges each task reads,
because tasks make the files. A load must also account for every offset. This format therefore differs in two points:

- It takes its tasks as an option: :data:`TASKS`, JSON, a list of tasks, each a list of
  ``[topic, partition, start, until]``. With :data:`TIMES`, JSON, ``[start_ms, end_ms]``, it leaves out records whose
  timestamps are outside of that range, and the account counts them.
- It yields one more row after the rows of each range. The offset of this row is ``ACCOUNT_OFFSET``, and its key is
  the account of the range as JSON. The account takes the same way as the rows. So it arrives exactly once, as they do,
  even if Spark repeats a task.
- A record whose timestamp no column of microseconds can hold does not fail the task. It becomes a document for the
  quarantine, in the key of a row with the offset ``HELD_BACK_OFFSET``. So does a record whose timestamp is above that
  of its topic in :data:`LAST_TIMES` (JSON, ms by topic).

With the option :data:`LAYOUT` (JSON) the tasks yield pieces of the layout's files instead of rows
(``formats/parquet_pieces.py``).
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_kafkalite.client.arrow import TIMESTAMP_LIMIT_MS
from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.jobs.formats.file_layout import FileLayout
from spark_kafkalite.jobs.load.planning import LoadPlan, Tasks
from spark_kafkalite.jobs.load.time_range import TimeRange
from spark_kafkalite.manifests.names import ACCOUNT_OFFSET, DATA, GROUP, HELD_BACK_OFFSET, TIMESTAMP_REASON
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.options import ReaderOptions, reader_options
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.partition_reader import read_ranges
from spark_kafkalite.spark.reading.read_plan import ReadPlan, tasks_of
from spark_kafkalite.spark.reading.read_schema import projected_schema, spark_schema
from spark_kafkalite.spark.workers.worker_log import SOURCE, speak_of

FORMAT_NAME: Final = "kafkalite_load"
TASKS: Final = "tasks"
LAYOUT: Final = "layout"
TIMES: Final = "times"
LAST_TIMES: Final = "lasttimes"


@dataclass(frozen=True, slots=True)
class RangeAccount:
    """A task's account of one range; ``start`` is inclusive, ``until`` exclusive.

    The task counts ``present``, ``control``, ``aborted`` and ``removed`` from the batches' headers
    (:class:`~spark_kafkalite.client.consume.passed_offsets.PassedOffsets`). Of those ``present``, ``outside`` are
    outside of the time range and have no row. ``size_bytes`` is the size of keys and values of the rows.
    ``min_timestamp`` and ``max_timestamp`` are in ms since the epoch, None if no row has a timestamp.
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
    outside: int = 0

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
    if plan.times is not None:
        options[TIMES] = json.dumps([plan.times.start_ms, plan.times.end_ms])
    if plan.last_times_ms:
        options[LAST_TIMES] = json.dumps(dict(plan.last_times_ms))
    return options if pieces is None else {**options, LAYOUT: json.dumps(asdict(pieces))}


class LoadReader(DataSourceReader):
    """Reads the planned tasks."""

    def __init__(
        self,
        options: ReaderOptions,
        schema: pa.Schema,
        tasks: Tasks,
        layout: FileLayout | None = None,
        times: TimeRange | None = None,
        last_times_ms: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """With a ``layout`` the tasks yield pieces of its files instead of rows."""
        self._options = options
        self.plan = ReadPlan.of(options, schema)
        self._tasks = tasks
        self._layout = layout
        self._times = times
        self._last_times_ms = dict(last_times_ms)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [*tasks_of(self._options, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows and the account of each range, or pieces of files. Runs in a Python worker."""
        rows = self._rows(partition)
        if self._layout is None:
            return rows
        # This import loads Arrow's Parquet module, which other reads do not need.
        from spark_kafkalite.jobs.formats.parquet_pieces import PieceMaker

        return PieceMaker(self.plan.schema, self._layout)(rows)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        passed = PassedOffsets()
        beyond: dict[int, int] = {}
        for each, batches in read_ranges(self.plan, partition, passed, beyond):
            last_ms = self._last_times_ms.get(each.topic_partition.topic)
            yield from accounted(each, batches, passed, self.plan.schema, beyond, self._times, last_ms)


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
        own = (TASKS, LAYOUT, TIMES, LAST_TIMES)
        given = {name: value for name, value in self.options.items() if name not in own}
        options = reader_options(given)
        speak_of(SOURCE, options.subject)
        layout = None
        if LAYOUT in self.options:
            layout, schema = FileLayout(**json.loads(self.options[LAYOUT])), spark_schema(include_headers=True)
        times = TimeRange(*json.loads(self.options[TIMES])) if TIMES in self.options else None
        tasks = tasks_from_json(self.options[TASKS])
        last_times_ms = json.loads(self.options.get(LAST_TIMES, "{}"))
        return self.reader_type(options, projected_schema(schema), tasks, layout, times, last_times_ms)


def accounted(
    each: OffsetRange,
    batches: Iterator[pa.RecordBatch],
    passed: PassedOffsets,
    schema: pa.Schema,
    beyond: MutableMapping[int, int],
    times: TimeRange | None = None,
    last_ms: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range that are in ``times``, then its account as one more row.

    ``passed`` counts the decoded offsets. ``beyond`` has the timestamps in ms, by offset, of the rows in which they are
    null: no range of times has these. They become documents, and so do rows with timestamps above ``last_ms``.
    """
    before = replace(passed)
    size_bytes = outside = 0
    bounds: list[tuple[int, int]] = []
    for read in batches:
        batch = read if times is None else times.within(read)
        outside += read.num_rows - batch.num_rows
        if not batch.num_rows:
            beyond.clear()
            continue
        size_bytes += _data_bytes(batch.column("key")) + _data_bytes(batch.column("value"))
        found = _timestamp_bounds(batch)
        if beyond or (last_ms is not None and found and found[0][1] > last_ms):
            held_back = _held_back(batch, last_ms)
            yield from _held_back_rows(batch.filter(held_back), beyond, schema)
            batch = batch.filter(pc.invert(held_back))
            beyond.clear()
            found = _timestamp_bounds(batch)
        bounds += found
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
        outside=outside,
    )
    yield _document_row(ACCOUNT_OFFSET, account.to_json(), schema)


def _held_back(batch: pa.RecordBatch, last_ms: int | None) -> pa.BooleanArray:
    """Return a mask of the rows whose timestamp is null, or above ``last_ms``."""
    timestamps = batch.column("timestamp")
    if last_ms is None:
        return timestamps.is_null()
    microseconds = timestamps.view(pa.int64())
    return pc.fill_null(pc.greater(microseconds, min(last_ms, TIMESTAMP_LIMIT_MS) * 1000), True)


def _held_back_rows(batch: pa.RecordBatch, beyond: Mapping[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    milliseconds = pc.divide(batch.column("timestamp").view(pa.int64()), 1000).to_pylist()
    for row, timestamp_ms in zip(batch.drop_columns("timestamp").to_pylist(), milliseconds, strict=True):
        found_ms = beyond[row["offset"]] if timestamp_ms is None else timestamp_ms
        yield _document_row(HELD_BACK_OFFSET, held_back_document(row, found_ms), schema)


def held_back_document(row: Mapping[str, Any], timestamp_ms: int) -> str:
    """Return the quarantine's document of a row whose timestamp does not fit; ``staging`` makes those of other rows."""
    if timestamp_ms > TIMESTAMP_LIMIT_MS:
        problem = f"is beyond what a column of microseconds can hold (at most {TIMESTAMP_LIMIT_MS} ms)"
    else:
        problem = "is after the year 9999, and the last day of a Delta table is 9999-12-31"
    reason = (
        f"{TIMESTAMP_REASON}{timestamp_ms} ms, {problem}; its producer may have given another unit, such as "
        f"{'nanoseconds' if timestamp_ms > TIMESTAMP_LIMIT_MS else 'microseconds'}"
    )
    headers = row["headers"]
    document = {
        **{name: row[name] for name in ("topic", "partition", "offset")},
        "timestamp": timestamp_ms,
        "reason": reason,
        "key": _base64(row["key"]),
        "value": _base64(row["value"]),
        "headers": None
        if headers is None
        else [_without_nulls({"key": each["key"], "value": _base64(each["value"])}) for each in headers],
    }
    return json.dumps(_without_nulls(document))


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _without_nulls(document: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if value is not None}


def _data_bytes(cells: pa.BinaryArray) -> int:
    return int(pc.sum(pc.binary_length(cells)).as_py() or 0)


def _timestamp_bounds(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Return the smallest and the largest timestamp in ms, without records that have none (-1 ms)."""
    microseconds = batch.column("timestamp").view(pa.int64())
    found = pc.min_max(microseconds).as_py()
    if found["min"] is not None and found["min"] < 0:
        found = pc.min_max(microseconds.filter(pc.greater_equal(microseconds, 0))).as_py()
    return [] if found["min"] is None else [(found["min"] // 1000, found["max"] // 1000)]


def _document_row(offset: int, document: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return a row that is no record but a document; ``offset`` names its kind."""
    row: Mapping[str, object] = {
        "key": document.encode(),
        "topic": "",
        "partition": 0,
        "offset": offset,
        "timestamp": 0,
        "timestampType": -1,
    }
    arrays = [pa.array([row.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
