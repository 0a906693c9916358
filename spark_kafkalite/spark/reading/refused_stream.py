"""A stream reader that raises why there is none, when the engine first asks it something.

PySpark 4.0 to 4.3 stop the reader even when making it has failed, and that second error (``UnboundLocalError``) would
stand behind ours, at the end of what the user sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.pyspark_versions import ReadAllAvailable, ReadLimit
from spark_kafkalite.spark.tracebacks import without_frames


@without_frames
class RefusedStreamReader(DataSourceStreamReader):
    """Replaces the reader of a query that cannot begin."""

    def __init__(self, error: SparkConditionError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Take all: asked before anything that may fail."""
        return ReadAllAvailable()

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Raise the error, for a query without a checkpoint."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: N802
        """Raise the error, for a query that goes on from its checkpoint."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        """Raise the error, for a query that repeats its last batch."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error; no task gets here."""
        raise self._error
