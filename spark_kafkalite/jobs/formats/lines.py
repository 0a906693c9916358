"""Files of text: a line for each value. The job's tasks report what is in them, and Spark's text writer writes them.

The job cannot read back from a line which record it is. So the tasks that make the lines also report what they made, in
a row of the group ``FACTS`` for each partition in a file. Then :func:`made_files` counts the lines in the written files
and compares them with these reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.names import DATA, FACTS, GROUP, NO_DATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEQUENCE: Final = "kafkalite_sequence"
_ROWS: Final = pa.schema([(GROUP, pa.string()), (_SEQUENCE, pa.int64()), (DATA, pa.binary())])
_TASK: Final = re.compile(r"part-(\d+)-", re.ASCII)


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


def as_lines(frame: DataFrame) -> DataFrame:
    """Return the lines of the files, with their groups, in the order for the writer."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses
    from pyspark.sql.udf import _create_udf
    from pyspark.util import PythonEvalType

    # What DataFrame.mapInArrow does, without pandas, which that method requires and does not use.
    schema = f"{GROUP} string not null, {_SEQUENCE} long, {DATA} binary"
    map_udf = _create_udf(make_lines, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = frame._jdf.mapInArrow(map_udf(*(frame[name] for name in frame.columns))._jc, False, None)
    return (
        DataFrame(mapped, frame.sparkSession)
        .sortWithinPartitions(GROUP, _SEQUENCE)
        .select(F.col(DATA).cast("string").alias("value"), GROUP)
    )


def make_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn a task's rows into lines, in a Python worker. Rows keep their order within a group."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    made: dict[tuple[str, int], MadeFile] = {}
    sequence = 0
    for batch in batches:
        for group, rows in _by_group(batch):
            is_data = not group.startswith(NO_DATA)
            if is_data:
                _note(made, task, group, rows)
            yield _rows(group, sequence, rows.column("value" if is_data else "key"))
            sequence += rows.num_rows
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


# What is read back ------------------------------------------------------------------------------------------------


def made_files(spark: SparkSession, files: Files, data: str) -> list[dict[str, Any]]:
    """Return the facts of the files, a row for each partition in a file, as ``staging`` does for other formats.

    Raises AuditError if the number of lines in a file differs from the report of the task that made it.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    told: dict[tuple[str, int], list[MadeFile]] = {}
    for row in spark.read.text(f"{files.root}/{data}/{GROUP}={FACTS}").collect():
        made = MadeFile(**json.loads(row.value))
        told.setdefault((made.group, made.task), []).append(made)
    counted = (
        spark.read.option("lineSep", "\n")
        .schema(f"value string, {GROUP} string")
        .text(f"{files.root}/{data}")
        .where(~F.col(GROUP).startswith(NO_DATA))
        .groupBy(GROUP, F.col("_metadata.file_name").alias("file"))
        .agg(F.max("_metadata.file_size").alias("size"), F.count(F.lit(1)).alias("records"))
    )
    found = []
    for row in counted.collect():
        where = f"{data}/{GROUP}={row[GROUP]}/{row['file']}"
        number = _TASK.match(row["file"])
        parts = told.pop((row[GROUP], int(number[1])), []) if number is not None else []
        records = sum(part.records for part in parts)
        if row["records"] != records:
            raise AuditError(
                f"{where} holds {row['records']} records; {records} were put into it; nothing was published"
            )
        found += [
            {GROUP: row[GROUP], "file": row["file"], "size": row["size"], **asdict(part)}
            for part in sorted(parts, key=lambda part: part.partition)
        ]
    if told:
        group, task = min(told)
        raise AuditError(f"{data}: task {task} made a file of {group}, which is not there; nothing was published")
    return found
