"""``format("kafkalite")``: the data source that ties readers and writers together.

Spark makes one of these per ``.load()`` and per write, in short-lived Python processes of its own, and pickles it
between them: it holds nothing but the options. ``schema()`` runs at ``.load()`` and is where a user's mistakes are
found: options are checked, the brokers are asked, topics looked up. What depends on batch or stream cannot be known
there and is checked in ``reader()`` and ``streamReader()``; a write's mistakes are found in ``writer()`` and
``streamWriter()``.

A query starts several Python processes, and each imports this module: so nobody imports what writes before writing,
nor what fetches and decodes before a task reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_kafkalite.spark.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.conditions import INVALID_OPTION, SparkConditionError
from spark_kafkalite.spark.options import reader_options, writer_options
from spark_kafkalite.spark.read_schema import projected_schema, spark_schema
from spark_kafkalite.spark.stream_reader import KafkaliteStreamReader

FORMAT_NAME = "kafkalite"


class _GivenOptions(dict[str, str]):
    """Options as they were given, right or wrong: which of them are secrets is not known yet, so none is shown."""

    def __repr__(self) -> str:
        return f"({len(self)} options)"

    __str__ = __repr__


class KafkaliteDataSource(DataSource):
    """Reads and writes topics of any broker that speaks Kafka's protocol."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(_GivenOptions(options))

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Check everything that can be checked at ``.load()``, and return the columns.

        Raises SparkConditionError for options, connection and topics.
        """
        options = reader_options(self.options)
        ClusterOffsets(options).check()
        return spark_schema(options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Raises SparkConditionError for what a batch must not ask."""
        return KafkaliteBatchReader(reader_options(self.options), projected_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the stream reader. Raises SparkConditionError for what a stream must not ask."""
        options = reader_options(self.options)
        options.check_streaming()
        return KafkaliteStreamReader(options, projected_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer. Raises SparkConditionError for wrong options and columns, and for overwriting."""
        if overwrite:
            raise SparkConditionError(
                INVALID_OPTION, 'mode=overwrite: a topic is a log and cannot be overwritten; use .mode("append")'
            )
        from spark_kafkalite.spark.sink_check import check_sink
        from spark_kafkalite.spark.writer import KafkaliteBatchWriter

        options = writer_options(self.options)
        writer = KafkaliteBatchWriter(options, schema)
        check_sink(options, patient=False)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the streaming writer. ``overwrite`` is how Spark says outputMode("complete"): appended anyway."""
        from spark_kafkalite.spark.sink_check import check_sink
        from spark_kafkalite.spark.writer import KafkaliteStreamWriter

        options = writer_options(self.options)
        writer = KafkaliteStreamWriter(options, schema)
        # Made anew for every batch, and once more to commit it, so a broker that restarts must not end the query here.
        check_sink(options, patient=True)
        return writer
