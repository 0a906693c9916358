"""A Spark source that reads nothing: ready Arrow batches, as fast as Spark takes them.

What it reaches is the ceiling of any Python source in the same run on the same machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_kafkalite.spark.arrow import READ_SCHEMA, spark_schema

ROWS_PER_BATCH = 65_536


class EmptySource(DataSource):
    """``format("empty_arrow")`` with the options ``rows``, ``partitions`` and ``bytes`` (of a value)."""

    @classmethod
    def name(cls) -> str:
        return "empty_arrow"

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["partitions"]), int(self.options["bytes"]))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, partitions: int, value_bytes: int) -> None:
        self._rows_each = rows // partitions
        self._partitions = partitions
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        per_batch = max(1, min(ROWS_PER_BATCH, (16 << 20) // self._value_bytes))
        whole = pa.RecordBatch.from_arrays(
            [
                pa.nulls(per_batch, pa.binary()),
                pa.repeat(pa.scalar(b"x" * self._value_bytes, pa.binary()), per_batch),
                pa.repeat("topic", per_batch),
                pa.repeat(pa.scalar(partition.value, pa.int32()), per_batch),
                pa.array(range(per_batch), pa.int64()),
                pa.array(range(per_batch), pa.int64()).view(READ_SCHEMA.field("timestamp").type),
                pa.repeat(pa.scalar(0, pa.int32()), per_batch),
            ],
            schema=READ_SCHEMA,
        )
        left = self._rows_each
        while left > 0:
            yield whole.slice(0, min(left, per_batch))
            left -= per_batch
