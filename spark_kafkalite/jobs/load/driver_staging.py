"""Stages a small plan in the driver: reads it, writes its files and reads their facts back, without a job of Spark's.

Until the first record is read by a task and written by Spark's writer, a new application spends seconds on Python
processes and on the session's first steps. A plan of a few megabytes is done in the driver before that. What reads,
accounts and makes the files is what tasks run (:class:`.load_source.LoadReader`, with the pieces of
``formats/parquet_pieces.py``), so the files have the same names, rows and row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_kafkalite.jobs.formats.file_layout import FileLayout
from spark_kafkalite.jobs.formats.parquet_pieces import SEPARATOR
from spark_kafkalite.jobs.load import load_source
from spark_kafkalite.jobs.load.load_source import RangeAccount
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.manifests.files import Files, NewFile
from spark_kafkalite.manifests.names import ACCOUNTS, DATA, GROUP, QUARANTINED

_FACTS: Final = ("partition", "offset", "timestamp")
_ROWS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a group, under the staged data."""

    group: str
    name: str

    def path(self, data: str) -> str:
        return f"{data}/{GROUP}={self.group}/{self.name}"


def write(
    files: Files, data: str, plan: LoadPlan, source_options: Mapping[str, str], layout: FileLayout
) -> tuple[list[RangeAccount], list[WrittenFile]] | None:
    """Write the plan's records below ``data``, a file for each task and group, and return the accounts of its ranges.

    Return None, with files below ``data``, if a record has to be quarantined. ``layout`` names its codec. Raises
    SparkConditionError as a task does, and what the file system raises.
    """
    source = load_source.LoadSource(load_source.options_of(plan, source_options, layout))
    reader = source.reader(source.schema())
    accounts: list[RangeAccount] = []
    written: list[WrittenFile] = []
    for number, task in enumerate(reader.partitions()):
        with ExitStack() as stack:
            by_group: dict[str, NewFile] = {}
            for piece in cast(Iterator[pa.RecordBatch], reader.read(task)):
                group, content = piece.column(GROUP)[0].as_py(), piece.column(DATA)[0].as_py()
                if group == QUARANTINED:
                    return None
                if group == ACCOUNTS:
                    accounts.append(RangeAccount.from_json(content))
                    continue
                if group not in by_group:
                    file = WrittenFile(group, f"part-{number:05d}.parquet")
                    by_group[group] = stack.enter_context(closing(files.create(file.path(data))))
                    written.append(file)
                by_group[group].write(content + SEPARATOR.encode())
    return accounts, written


def facts(files: Files, data: str, file: WrittenFile) -> list[dict[str, Any]]:
    """Return what the file holds, a row for each partition in it, as :mod:`.staging` reads them from other files."""
    path = file.path(data)
    size_bytes = files.size_bytes(path)
    with files.open(path) as opened:
        # A row group at a time: the log's bytes do not tell how many records are in them.
        parquet = pq.ParquetFile(opened)
        found = [_facts_of(batch) for batch in parquet.iter_batches(_ROWS, columns=list(_FACTS))]
    rows = (
        pa.concat_tables(found)
        .group_by("partition")
        .aggregate([("first", "min"), ("last", "max"), ("records", "sum"), ("untimed", "sum")])
    )
    return [
        {
            GROUP: file.group,
            "file": file.name,
            "partition": row["partition"],
            "first": row["first_min"],
            "last": row["last_max"],
            "records": row["records_sum"],
            "size": size_bytes,
            "untimed": row["untimed_sum"],
        }
        for row in rows.to_pylist()
    ]


def _facts_of(batch: pa.RecordBatch) -> pa.Table:
    untimed = pc.less(batch.column("timestamp").cast(pa.int64()), 0).cast(pa.int64())
    counted = (
        pa.table({"partition": batch.column("partition"), "offset": batch.column("offset"), "untimed": untimed})
        .group_by("partition")
        .aggregate([("offset", "min"), ("offset", "max"), ("offset", "count"), ("untimed", "sum")])
    )
    names = {"first": "offset_min", "last": "offset_max", "records": "offset_count", "untimed": "untimed_sum"}
    return pa.table({"partition": counted["partition"], **{own: counted[name] for own, name in names.items()}})
