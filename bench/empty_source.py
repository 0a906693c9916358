"""A Spark source that reads nothing and a sink that writes nothing: ready Arrow batches, as fast as Spark takes or
gives them.

What they reach, in a batch and in a stream, is the ceiling of any Python source and sink in the same run on the same
machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.spark.reading.read_schema import spark_schema

ROWS_PER_BATCH = 65_536


class EmptySource(DataSource):
    """``format("empty_arrow")`` with the options ``rows``, ``partitions`` and ``bytes`` (of a value) for reading."""

    @classmethod
    def name(cls) -> str:
        return "empty_arrow"

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(Shape.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader(Shape.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _Writer()


@dataclass(frozen=True)
class Shape:
    """How many rows there are, in how many partitions, and the size of each value."""

    rows: int
    partitions: int
    value_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Shape:
        """Return what the options of a source say."""
        return cls(int(options["rows"]), int(options["partitions"]), int(options["bytes"]))

    def tasks(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.partitions)]

    def rows_per_batch(self) -> int:
        return max(1, min(ROWS_PER_BATCH, (16 << 20) // self.value_bytes))

    def columns(self, partition: InputPartition, rows: int) -> list[pa.Array]:
        """Return ready columns of so many rows of a partition."""
        return [
            pa.nulls(rows, pa.binary()),
            pa.repeat(pa.scalar(b"x" * self.value_bytes, pa.binary()), rows),
            pa.repeat("topic", rows),
            pa.repeat(pa.scalar(partition.value, pa.int32()), rows),
            pa.array(range(rows), pa.int64()),
            pa.array(range(rows), pa.int64()).view(READ_SCHEMA.field("timestamp").type),
            pa.repeat(pa.scalar(0, pa.int32()), rows),
        ]

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = self.rows_per_batch()
        whole = pa.RecordBatch.from_arrays(self.columns(partition, rows), schema=READ_SCHEMA)
        left = self.rows // self.partitions
        while left > 0:
            yield whole.slice(0, min(left, rows))
            left -= rows


class _Reader(DataSourceReader):
    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def partitions(self) -> list[InputPartition]:
        return self._shape.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._shape.batches(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Everything in one batch."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"rows": self._shape.rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._shape.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._shape.batches(partition)


class _Writer(DataSourceArrowWriter):
    """Takes the rows and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
