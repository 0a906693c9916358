"""Everything that depends on the version of PySpark. Every other module is written for PySpark 4.2 and newer.

PySpark 4.0 has no Unix sockets between its JVM and Python (:data:`HAS_UNIX_SOCKETS`).

PySpark 4.0 and 4.1 differ in three ways. They ask a streaming source for the end of a batch without its start and its
limit (``latestOffset()``). They never announce that a run is to end at the current ends of the logs. A query's progress
shows no ends of the logs. So:

- :func:`engine_reader` wraps the source's reader in an :class:`OwnStartReader`, which keeps the start and the limit.
- An AvailableNow run is one batch there. :func:`start_available_now` starts a query that reads up to the current ends
  in several batches, and then ends. Its source needs :data:`AVAILABLE_NOW_OPTIONS`.
- Code that needs the ends of the logs asks the brokers (:data:`PROGRESS_HAS_LOG_ENDS`).

This module tests for names, not for version numbers, because vendors of Spark backport single changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.util import local_connect_and_auth

from spark_kafkalite.spark.conditions import INVALID_OPTION, option_error
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.tracebacks import without_frames
from spark_kafkalite.spark.workers.worker_log import say

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType, StructType

    _ENGINE_LIMITS: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        _ENGINE_LIMITS = True
    except ModuleNotFoundError:
        # PySpark 4.0 and 4.1.
        from dataclasses import dataclass

        class ReadLimit:
            """How much a batch may have."""

        @dataclass(frozen=True)
        class ReadAllAvailable(ReadLimit):
            """All available records."""

        @dataclass(frozen=True)
        class ReadMaxRows(ReadLimit):
            """About so many offsets."""

            max_rows: int

        @dataclass(frozen=True)
        class ReadMaxBytes(ReadLimit):
            """About so many bytes of the log."""

            max_bytes: int

        class SupportsTriggerAvailableNow:
            """A class that this engine lacks."""

        _ENGINE_LIMITS = False
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        # PySpark 4.0 gives record batches to what is an Arrow writer, of a stream too, and has no name for both.
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A writer of a stream that takes record batches."""


__all__ = [
    "AVAILABLE_NOW_OPTIONS",
    "HAS_UNIX_SOCKETS",
    "PROGRESS_HAS_LOG_ENDS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_column",
    "arrow_schema",
    "engine_reader",
    "register_source",
    "start_available_now",
]

# Whether the JVM and its Python workers can talk over Unix sockets: what connects takes a port or a socket's path.
HAS_UNIX_SOCKETS: Final = "conn_info" in signature(local_connect_and_auth).parameters
# Whether ``latestOffset`` in the progress is the end of the log. Elsewhere it is the end of the batch.
PROGRESS_HAS_LOG_ENDS: Final = _ENGINE_LIMITS
# Options of a source whose query start_available_now() is to start.
AVAILABLE_NOW_OPTIONS: Final[Mapping[str, str]] = {} if _ENGINE_LIMITS else {"availableNow": "true"}

_AVAILABLE_NOW_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


# Streams ------------------------------------------------------------------------------------------------------------


def engine_reader(reader: DataSourceStreamReader, options: ReaderOptions | None = None) -> DataSourceStreamReader:
    """Return the reader for this PySpark's engine: ``reader``, or a wrapper. ``options`` None: it refuses to read."""
    if _ENGINE_LIMITS:
        return reader
    return OwnStartReader(reader, () if options is None else one_batch_notes(options))


def one_batch_notes(options: ReaderOptions) -> tuple[str, ...]:
    """Return the warnings for a PySpark on which an AvailableNow run is one batch."""
    limits = [name for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger") if name in options.given]
    if options.available_now or not limits:
        return ()
    from pyspark import __version__

    return (
        f"option {' and '.join(limits)}: on PySpark {__version__} a run with Trigger.AvailableNow or Trigger.Once is "
        "one batch, so it ends at this limit and leaves the rest to the next run. To read all in batches, set "
        "availableNow=true, start the query without these triggers, and end it with processAllAvailable() and stop()",
    )


@without_frames
class OwnStartReader(DataSourceStreamReader):
    """Gives a reader its start and its limit, for an engine that calls ``latestOffset()`` without them.

    The start is the end of the last batch that was planned, else the last end that was returned, else the initial
    offset. PySpark 4.0 and 4.1 call, in this order::

        a new query           latestOffset(); initialOffset(); partitions(I, E)
        the next batch        latestOffset(); commit(E); partitions(E, F)
        restart, X finished   partitions(X, X); latestOffset(); commit(X); partitions(X, E)
        restart, X planned    partitions(X, X); initialOffset() of batch 0 alone; partitions(S, X); latestOffset()

    So ``partitions(X, X)`` gives the position of the checkpoint, and plans nothing. ``latestOffset()`` right after it
    means that X is done, as the start does that newer engines pass.
    """

    def __init__(self, reader: DataSourceStreamReader, notes: tuple[str, ...] = ()) -> None:
        """``notes``: what to warn of when the query begins."""
        self._reader = reader
        self._notes = notes
        self._start: dict[str, Any] | None = None
        self._has_asked = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the end of the next batch, or its start when there is nothing to do."""
        if not self._has_asked:
            say(self._notes)
        self._has_asked = True
        if self._start is None:
            self._start = self._reader.initialOffset()
        self._start = self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit())
        return self._start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, none if the engine only gives the position of the checkpoint.

        Raises SparkConditionError if the engine gives it too late, after it has asked for an end as for a new query.
        """
        if start == end:
            if self._has_asked:
                raise option_error(
                    INVALID_OPTION,
                    _AVAILABLE_NOW_WRAPPER,
                    "true",
                    "this PySpark then asks for the end of a batch before it gives the position of the checkpoint, and "
                    "records would be read again; leave it at false",
                )
            self._start = end
            return []
        self._start = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's ranges; runs in a Python worker, on a copy of this object."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit in the reader."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Stop the reader."""
        self._reader.stop()


def start_available_now(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that reads up to the current ends of the logs, in batches, and then ends.

    Its sources need the options :data:`AVAILABLE_NOW_OPTIONS`.
    """
    if _ENGINE_LIMITS:
        return writer.trigger(availableNow=True).start()
    from threading import Thread

    query = writer.start()
    Thread(target=_end_when_drained, args=(query,), name="kafkalite-available-now", daemon=True).start()
    return query


def _end_when_drained(query: StreamingQuery) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        # Returns once the source had nothing new, after which it has committed its last batch to its group, too.
        query.processAllAvailable()
        query.stop()
    except (PySparkException, Py4JError, OSError):
        # The query has failed, and its awaitTermination() raises the error; or the application has ended.
        return


# All others ---------------------------------------------------------------------------------------------------------


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source. PySpark 4.0 refuses one that it has discovered by itself; then nothing is left to do."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as Spark writes it in Arrow, with times in UTC."""
    from pyspark.sql.pandas import types

    # PySpark 4.0 and 4.1 have no argument for the zone: it is UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in types.to_arrow_schema.__annotations__ else {}
    return types.to_arrow_schema(schema, **zone)


def arrow_column(function: Callable[[pa.Array], pa.Array], result: DataType, column: Column) -> Column:
    """Return a column that ``function`` makes of arrays of another, in Python workers.

    PySpark 4.0 has no such function without pandas: it calls one with a value at a time, which is slower.
    """
    from pyspark.sql import functions

    made: Column
    if hasattr(functions, "arrow_udf"):
        made = functions.arrow_udf(lambda values: function(values), result)(column)
    else:
        made = functions.udf(_OneValue(function), result, useArrow=False)(column)
    return made


class _OneValue:
    """A function of arrays, called with one value."""

    def __init__(self, function: Callable[[pa.Array], pa.Array]) -> None:
        self._function = function

    def __call__(self, value: Any) -> Any:
        import pyarrow as pa

        from spark_kafkalite.spark.avro_columns import python_values

        given = [value.asDict(recursive=True) if hasattr(value, "asDict") else value]
        return python_values(self._function(pa.array(given)))[0]
