"""Keeps this package's stack frames out of the errors that a Spark user sees.

Spark calls the source and the sink in Python processes of its own. It sends an exception that leaves them to the
application, with the stack frames. For a :class:`~spark_kafkalite.spark.conditions.SparkConditionError` the frames are
of no use: its text has what is wrong, and what to do. Spark leaves frames out if ``SPARK_HIDE_TRACEBACK`` is set in the
environment of the process when the exception leaves it. A process of Spark ends after such an exception. So the
variable counts for this exception alone. If it is already set, it stays; an empty value shows the frames.

Every other exception is a fault of the program, and keeps its frames.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

HIDE: Final = "SPARK_HIDE_TRACEBACK"
# What Spark calls. Source: pyspark.sql.datasource.
_CALLED: Final = (
    "schema", "reader", "streamReader", "writer", "streamWriter",
    "partitions", "read", "initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow",
    "write", "commit", "abort", "stop",
)  # fmt: skip


def without_frames(kind: type[_T]) -> type[_T]:
    """Hide the frames of each SparkConditionError that leaves a method which Spark calls. A decorator of classes."""
    for name in _CALLED:
        method = getattr(kind, name, None)
        # Not what only PySpark defines: it compares some methods with its own.
        if callable(method) and getattr(method, "__module__", "").startswith("spark_kafkalite."):
            setattr(kind, name, _guarded(method))
    return kind


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*args: Any, **keywords: Any) -> Any:
        try:
            result = method(*args, **keywords)
        except Exception as error:
            _hide(error)
            raise
        return _iterated(result) if isinstance(result, Iterator) else result

    return guarded


def _iterated(rows: Iterator[_T]) -> Iterator[_T]:
    try:
        yield from rows
    except Exception as error:
        _hide(error)
        raise


def _hide(error: Exception) -> None:
    # Imported only for an error: the process that looks for the format's name is to load nothing else.
    from spark_kafkalite.spark.conditions import SparkConditionError
    from spark_kafkalite.spark.workers.worker_log import is_sparks_own

    if isinstance(error, SparkConditionError) and is_sparks_own():
        os.environ.setdefault(HIDE, "1")
