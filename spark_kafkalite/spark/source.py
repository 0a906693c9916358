"""``format("kafkalite")``: the data source that ties readers and writers together.

Spark makes one of these per ``.load()`` and per write, in short-lived Python processes of its own, and pickles it
between them. So it holds only the options. ``schema()`` runs at ``.load()`` and finds a user's mistakes: it checks the
options and looks up the topics at the brokers. It does not know whether the query is a batch or a stream. ``reader()``
and ``streamReader()`` check what depends on that; ``writer()`` and ``streamWriter()`` check a write.

A query starts several Python processes, and each imports this module: the first one only to find the format's name,
before ``.load()`` asks for the schema. So each method imports what it needs, and this module nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_kafkalite.spark.tracebacks import without_frames

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from spark_kafkalite.spark.options.options import ReaderOptions, WriterOptions

FORMAT_NAME = "kafkalite"
# The option of a load that only starts Spark's processes (``workers.warm_up``).
WARM_UP = "kafkalite.warmup"


class _GivenOptions(dict[str, str]):
    """Options as they were given, right or wrong: which of them are secrets is not known yet, so none is shown."""

    def __repr__(self) -> str:
        return f"({len(self)} options)"

    __str__ = __repr__


@without_frames
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
        from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
        from spark_kafkalite.spark.reading.read_schema import spark_schema

        if WARM_UP in self.options:
            # What other loads need is imported now.
            return spark_schema(include_headers=False)
        options = self._reading()
        ClusterOffsets(options).check()
        return spark_schema(options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Raises SparkConditionError for what a batch must not ask."""
        from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
        from spark_kafkalite.spark.reading.read_schema import projected_schema

        return KafkaliteBatchReader(self._reading(), projected_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the stream reader; for what a stream must not ask, one that raises SparkConditionError when used."""
        from spark_kafkalite.spark.conditions import SparkConditionError
        from spark_kafkalite.spark.pyspark_versions import engine_reader
        from spark_kafkalite.spark.reading.read_schema import projected_schema
        from spark_kafkalite.spark.reading.refused_stream import RefusedStreamReader
        from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader

        try:
            options = self._reading()
            options.check_streaming()
            return engine_reader(KafkaliteStreamReader(options, projected_schema(schema)), options)
        except SparkConditionError as error:
            return engine_reader(RefusedStreamReader(error))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer. Raises SparkConditionError for wrong options and columns, and for overwriting."""
        from spark_kafkalite.spark.conditions import INVALID_OPTION, SparkConditionError

        if overwrite:
            raise SparkConditionError(
                INVALID_OPTION, 'mode=overwrite: a topic is a log and cannot be overwritten; use .mode("append")'
            )
        from spark_kafkalite.spark.sink.sink_check import check_sink
        from spark_kafkalite.spark.sink.writer import KafkaliteBatchWriter
        from spark_kafkalite.spark.workers.worker_log import say

        options = self._writing()
        say(options.notes)
        writer = KafkaliteBatchWriter(options, schema)
        check_sink(options, patient=False)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the streaming writer. ``overwrite`` is set for outputMode("complete"); rows are appended anyway."""
        from spark_kafkalite.spark.sink.sink_check import check_sink
        from spark_kafkalite.spark.sink.writer import KafkaliteStreamWriter
        from spark_kafkalite.spark.workers.worker_log import say

        options = self._writing()
        say(options.notes, once=True)
        writer = KafkaliteStreamWriter(options, schema)
        # Made anew for every batch, and once more to commit it, so a broker that restarts must not end the query here.
        check_sink(options, patient=True)
        return writer

    def _reading(self) -> ReaderOptions:
        from spark_kafkalite.spark.options.options import reader_options
        from spark_kafkalite.spark.workers.worker_log import SOURCE, speak_of

        options = reader_options(self.options)
        speak_of(SOURCE, options.subject)
        return options

    def _writing(self) -> WriterOptions:
        from spark_kafkalite.spark.options.options import writer_options
        from spark_kafkalite.spark.workers.worker_log import SINK, speak_of

        options = writer_options(self.options)
        speak_of(SINK, options.target)
        return options
