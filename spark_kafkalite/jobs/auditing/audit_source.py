"""Counts ranges of the log again, for the audit: rows stay in the tasks, what leaves them is a count of each range.

The second read uses the load's own source (``load/load_source.py``), so it reads what a load would read today. It also
counts the records of a range by quarter of an hour, because directories begin at a quarter in every time zone of today.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.jobs.load import load_source
from spark_kafkalite.jobs.load.load_source import LoadReader, LoadSource, RangeAccount
from spark_kafkalite.jobs.load.planning import Tasks
from spark_kafkalite.manifests.names import HELD_BACK_OFFSET
from spark_kafkalite.spark.reading.partition_reader import read_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT_NAME: Final = "kafkalite_audit"
QUARTER_MS: Final = 900_000


@dataclass(frozen=True, slots=True)
class RangeCount:
    """A range's account, and its records by quarter: the number of quarters of an hour since the epoch."""

    account: RangeAccount
    quarters: Mapping[int, int]


def count_ranges(spark: SparkSession, tasks: Tasks, source_options: Mapping[str, str]) -> list[RangeCount]:
    """Read the tasks' ranges from the log, in one Spark job, and return what is in each."""
    spark.dataSource.register(CountSource)
    assign: dict[str, set[int]] = {}
    for each in (each for ranges in tasks for each in ranges):
        assign.setdefault(each.topic_partition.topic, set()).add(each.topic_partition.partition)
    rows = (
        spark.read.format(FORMAT_NAME)
        .options(**source_options)
        .option("assign", json.dumps({topic: sorted(partitions) for topic, partitions in assign.items()}))
        .option(load_source.TASKS, load_source.tasks_json(tasks))
        .load()
        .select("key")
        .collect()
    )
    return [_from_json(row.key) for row in rows]


def _from_json(text: bytes) -> RangeCount:
    found = json.loads(text)
    quarters = {int(quarter): count for quarter, count in found["quarters"].items()}
    return RangeCount(RangeAccount.from_json(found["account"]), quarters)


class CountReader(LoadReader):
    """The tasks of a count."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one row for each range; runs in a Python worker."""
        passed = PassedOffsets()
        beyond: dict[int, int] = {}
        for each, batches in read_ranges(self.plan, partition, passed, beyond):
            yield _counted(load_source.accounted(each, batches, passed, self.plan.schema, beyond))


class CountSource(LoadSource):
    """Counts planned ranges; registered by the audit, for itself."""

    reader_type = CountReader

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT_NAME


def _counted(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the account at the end of ``batches``, with the quarters of the rows before it."""
    quarters: Counter[int] = Counter()
    before: pa.RecordBatch | None = None
    for batch in batches:
        # A record that a load holds back is in no directory.
        if before is not None and (before.num_rows != 1 or before.column("offset")[0].as_py() != HELD_BACK_OFFSET):
            quarters.update(_quarters(before.column("timestamp").view(pa.int64())))
        before = batch
    assert before is not None, "an account ends every range"
    place = before.schema.get_field_index("key")
    text = json.dumps({"account": before.column(place)[0].as_py().decode(), "quarters": quarters})
    return before.set_column(
        place, before.schema.field(place), pa.array([text.encode()], before.schema.field(place).type)
    )


def _quarters(microseconds: pa.Int64Array) -> dict[int, int]:
    # Down also below zero, where records without a timestamp are. As floats they are exact beyond the year 2200.
    quarters = pc.floor(pc.divide(pc.cast(microseconds, pa.float64(), safe=False), 1000.0 * QUARTER_MS))
    return {int(each["values"].as_py()): each["counts"].as_py() for each in pc.value_counts(quarters)}
