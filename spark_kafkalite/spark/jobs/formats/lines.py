"""Files whose bytes the job's tasks make and Spark's text writer writes: lines of text, and Avro containers.

Spark stages, names and commits these files like all others, and Python needs no Hadoop client. A row of text is a line.
A row of Avro is the container's header, or one block without its sync marker. The writer's line separator *is* the sync
marker: 16 characters, random for each run.

The job cannot read all facts about the files back from them. So the tasks that make the rows also report what they
made, in a row of the group ``FACTS`` for each partition in a file. Then :func:`made_files` counts the records in the
written files (lines, or the blocks' own counts) and compares them with these reports.

fastavro makes the blocks. Functions import it where they use it.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.spark.jobs.destination.files import Files
from spark_kafkalite.spark.jobs.destination.names import DATA, FACTS, GROUP, NO_DATA
from spark_kafkalite.spark.jobs.formats.avro_schema import avro_schema
from spark_kafkalite.spark.jobs.formats.file_layout import FileLayout
from spark_kafkalite.spark.jobs.load.accounting import AuditError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEQUENCE: Final = "kafkalite_sequence"
_ROWS: Final = pa.schema([(GROUP, pa.string()), (_SEQUENCE, pa.int64()), (DATA, pa.binary())])
_MARKER_BYTES: Final = 16
_MAGIC: Final = b"Obj\x01"
# The size of the records in an Avro block, before compression.
_BLOCK_BYTES: Final = 256 * 1024
# fastavro never ends a block by itself.
_NEVER: Final = 1 << 62
# A nullable field costs fastavro several times as much to write.
_NEVER_NULL: Final = frozenset(("topic", "partition", "offset", "timestamp", "timestampType"))
_TASK: Final = re.compile(r"part-(\d+)-", re.ASCII)
_VARINT_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class MadeFile:
    """The rows of one partition that a task put into the file of a group.

    ``first`` and ``last`` are the offsets of the first and the last row. ``untimed`` counts rows without a timestamp.
    """

    task: int
    group: str
    partition: int
    first: int
    last: int
    records: int
    untimed: int


def new_separator(layout: FileLayout) -> str:
    """Return the line separator of a run."""
    return "\n" if layout.file_format == "text" else secrets.token_hex(_MARKER_BYTES // 2)


def as_lines(frame: DataFrame, layout: FileLayout, separator: str) -> DataFrame:
    """Return the lines of the files, with their groups, in the order for the writer."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    make = LineMaker(layout.file_format == "avro", layout.codec, separator)
    return (
        _mapped(frame, make, f"{GROUP} string not null, {_SEQUENCE} long, {DATA} binary")
        .sortWithinPartitions(GROUP, _SEQUENCE)
        .select(F.col(DATA).cast("string").alias("value"), GROUP)
    )


def _mapped(
    frame: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Do what ``DataFrame.mapInArrow`` does, without pandas, which that method requires and does not use."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import _create_udf
    from pyspark.util import PythonEvalType

    map_udf = _create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = frame._jdf.mapInArrow(map_udf(*(frame[name] for name in frame.columns))._jc, False, None)
    return DataFrame(mapped, frame.sparkSession)


class LineMaker:
    """Turns a task's rows into lines, in a Python worker. Rows keep their order within a group."""

    def __init__(self, is_avro: bool, codec: str | None, separator: str) -> None:
        self._is_avro = is_avro
        self._codec = codec
        self._separator = separator

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        made: dict[tuple[str, int], MadeFile] = {}
        containers: dict[str, _Container] = {}
        sequence = 0
        for batch in batches:
            for group, rows in _by_group(batch):
                data: pa.Array = rows.column("key")
                if not group.startswith(NO_DATA):
                    _note(made, task, group, rows)
                    data = rows.column("value")
                    if self._is_avro:
                        if group not in containers:
                            containers[group] = _Container(rows.schema, self._codec, self._separator)
                        data = pa.array(containers[group].lines(rows), pa.binary())
                yield _rows(group, sequence, data)
                sequence += len(data)
        for group, container in containers.items():
            rest = pa.array(container.rest(), pa.binary())
            yield _rows(group, sequence, rest)
            sequence += len(rest)
        facts = [json.dumps(asdict(each)).encode() for each in made.values()]
        yield _rows(FACTS, sequence, pa.array(facts, pa.binary()))


def _by_group(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    groups = batch.column(GROUP).dictionary_encode()
    names = groups.dictionary.to_pylist()
    for code, name in enumerate(names):
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(groups.indices, code))


def _note(made: dict[tuple[str, int], MadeFile], task: int, group: str, rows: pa.RecordBatch) -> None:
    columns = pa.table(
        {
            "partition": rows.column("partition"),
            "offset": rows.column("offset"),
            "untimed": pc.less(rows.column("timestamp").cast(pa.int64()), 0).cast(pa.int64()),
        }
    )
    found = columns.group_by("partition").aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count"), ("untimed", "sum")]
    )
    for row in found.to_pylist():
        before = made.get((group, row["partition"]))
        here = MadeFile(
            task, group, row["partition"], row["offset_min"], row["offset_max"], row["offset_count"], row["untimed_sum"]
        )
        if before is not None:
            here = MadeFile(
                task,
                group,
                here.partition,
                min(before.first, here.first),
                max(before.last, here.last),
                before.records + here.records,
                before.untimed + here.untimed,
            )
        made[group, here.partition] = here


def _rows(group: str, first: int, data: pa.Array) -> pa.RecordBatch:
    count = len(data)
    sequence = pa.array(range(first, first + count), pa.int64())
    return pa.RecordBatch.from_arrays([pa.repeat(group, count), sequence, data.cast(pa.binary())], schema=_ROWS)


class _Container:
    """An incomplete Avro container. Its lines are the header, then the blocks."""

    def __init__(self, schema: pa.Schema, codec: str | None, marker: str) -> None:
        from fastavro import parse_schema
        from fastavro.write import Writer

        self._columns = [name for name in schema.names if name != GROUP]
        self._buffer = io.BytesIO()
        fields = [schema.field(name).with_nullable(name not in _NEVER_NULL) for name in self._columns]
        self._writer = Writer(
            self._buffer,
            parse_schema(avro_schema(pa.schema(fields))),
            "null" if codec in (None, "none") else codec,
            _NEVER,
            sync_marker=marker.encode(),
        )
        self._pending_bytes = 0
        self._lines: list[bytes] = [self._taken()]

    def _taken(self) -> bytes:
        line = self._buffer.getvalue()[:-_MARKER_BYTES]
        self._buffer.seek(0)
        self._buffer.truncate()
        return line

    def lines(self, rows: pa.RecordBatch) -> list[bytes]:
        """Add rows and return the lines that are complete."""
        rows = rows.select(self._columns)
        of_one = max(1, rows.nbytes // max(1, rows.num_rows))
        step = max(1, _BLOCK_BYTES // of_one)
        for begin in range(0, rows.num_rows, step):
            piece = rows.slice(begin, step)
            for row in _documents(piece):
                self._writer.write(row)
            self._pending_bytes += of_one * piece.num_rows
            if self._pending_bytes >= _BLOCK_BYTES:
                self._end_block()
        ready, self._lines = self._lines, []
        return ready

    def rest(self) -> list[bytes]:
        """Return the last lines."""
        if self._pending_bytes:
            self._end_block()
        return self._lines

    def _end_block(self) -> None:
        self._writer.flush()
        self._lines.append(self._taken())
        self._pending_bytes = 0


def _documents(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows for fastavro, with times as microseconds: they cost less than Python's datetime objects."""
    at = rows.schema.get_field_index("timestamp")
    timed = rows.set_column(at, "timestamp", rows.column(at).cast(pa.int64()))
    names = timed.schema.names
    columns = [_cells(timed.column(name)) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _cells(column: pa.Array) -> list[Any]:
    """Return a column's cells. Bytes carry the name of their union branch; otherwise fastavro tries every branch."""
    cells: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if each is None else ("bytes", each) for each in cells]
    return cells


# What is read back ------------------------------------------------------------------------------------------------


def made_files(
    spark: SparkSession, files: Files, data: str, layout: FileLayout, separator: str
) -> list[dict[str, Any]]:
    """Return the facts of the files, a row for each partition in a file, as ``staging`` does for other formats.

    Raises AuditError if the number of records in a file differs from the report of the task that made it.
    """
    told: dict[tuple[str, int], list[MadeFile]] = {}
    lines = spark.read.option("lineSep", separator)
    for row in lines.text(f"{files.root}/{data}/{GROUP}={FACTS}").collect():
        made = MadeFile(**json.loads(row.value))
        told.setdefault((made.group, made.task), []).append(made)
    found = []
    for row in _counted(spark, files, data, layout, separator):
        where = f"{data}/{GROUP}={row[GROUP]}/{row['file']}"
        number = _TASK.match(row["file"])
        parts = told.pop((row[GROUP], int(number[1])), []) if number is not None else []
        records = sum(part.records for part in parts)
        if row["records"] != records or row["damaged"]:
            damage = f", and {row['damaged']} blocks that are none" if row["damaged"] else ""
            raise AuditError(
                f"{where} holds {row['records']} records{damage}; {records} were put into it; nothing was published"
            )
        found += [
            {GROUP: row[GROUP], "file": row["file"], "size": row["size"], **asdict(part)}
            for part in sorted(parts, key=lambda part: part.partition)
        ]
    if told:
        group, task = min(told)
        raise AuditError(f"{data}: task {task} made a file of {group}, which is not there; nothing was published")
    return found


def _counted(spark: SparkSession, files: Files, data: str, layout: FileLayout, separator: str) -> list[Any]:
    """Return the number of records in each file, counted in the file itself."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    lines = (
        spark.read.option("lineSep", separator)
        .schema(f"value string, {GROUP} string")
        .text(f"{files.root}/{data}")
        .where(~F.col(GROUP).startswith(NO_DATA))
        .select(
            GROUP,
            F.col("_metadata.file_name").alias("file"),
            F.col("_metadata.file_size").alias("size"),
            F.col("value").cast("binary").alias("line"),
        )
    )
    if layout.file_format == "text":
        counts = lines.select(GROUP, "file", "size", F.lit(1).alias("records"), F.lit(0).alias("damaged"))
        header = 0
    else:
        begins = F.substring("line", F.lit(1), F.lit(2 * _VARINT_BYTES)).alias("begins")
        blocks = lines.select(GROUP, "file", "size", begins, F.length("line").alias("length"))
        schema = f"{GROUP} string, file string, size long, records long, damaged long, headers long"
        counts = _mapped(blocks, count_blocks, schema)
        header = 1
    grouped = counts.groupBy(GROUP, "file").agg(
        F.max("size").alias("size"),
        F.sum("records").alias("records"),
        (F.sum("damaged") + (F.abs(F.sum("headers") - 1) if header else 0)).alias("damaged"),
    )
    return grouped.collect()


def count_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the kind of each line of an Avro file: a header, a block with its number of records, or damaged."""
    for batch in batches:
        begins, lengths = batch.column("begins").to_pylist(), batch.column("length").to_pylist()
        kinds = [_kind_of(begin, length) for begin, length in zip(begins, lengths, strict=True)]
        columns = [pa.array([kind[each] for kind in kinds], pa.int64()) for each in range(3)]
        known = [batch.column(name) for name in (GROUP, "file", "size")]
        names = [GROUP, "file", "size", "records", "damaged", "headers"]
        yield pa.RecordBatch.from_arrays([*known, *columns], names=names)


def _kind_of(begins: bytes, length: int) -> tuple[int, int, int]:
    """Return (records, damaged blocks, headers) of a line.

    A header is not taken for a block: as a count of records, the magic bytes would be negative.
    """
    if begins.startswith(_MAGIC):
        return 0, 0, 1
    try:
        records, at = _varint(begins, 0)
        data_bytes, at = _varint(begins, at)
    except IndexError:
        return 0, 1, 0
    return (records, 0, 0) if records > 0 and data_bytes == length - at else (0, 1, 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it. Raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
