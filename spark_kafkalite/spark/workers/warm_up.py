"""Starts what the first ``.load()`` of a session needs in the background, while the program does other things.

At its first ``.load()`` Spark starts a Python daemon that looks for data sources, and then another one that makes the
source. Each imports PySpark from ``pyspark.zip``, which has no compiled files: some 0.5 CPU seconds. The JVM loads the
classes of the analyzer. All of that stays for later loads.

The load here has one option, with which the source asks no broker.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from spark_kafkalite.spark.source import FORMAT_NAME, WARM_UP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("spark_kafkalite.spark")
_WARMED: WeakSet[SparkSession] = WeakSet()


def warm_up(spark: SparkSession) -> threading.Thread | None:
    """Start a thread that makes a source once in a session, and return it; None for one of Connect, or a second time.

    It must run after the format was registered, if it is registered at all: Spark starts other processes then.
    """
    # The server of a Connect session makes sources when they are used.
    if getattr(spark, "_sc", None) is None or spark in _WARMED:
        return None
    _WARMED.add(spark)
    thread = threading.Thread(target=_make_source, args=(spark,), name="kafkalite-warm-up", daemon=True)
    thread.start()
    return thread


def _make_source(spark: SparkSession) -> None:
    try:
        spark.read.format(FORMAT_NAME).option(WARM_UP, "true").load()
    # The session may end meanwhile. The program's own first load reports what is wrong otherwise.
    except Exception as error:
        _LOG.debug("the first source was not made in the background: %s", error)
