"""format("kafkalite") for Apache Spark: the source, the sink, and functions for applications.

``register`` is for installations that Spark's own discovery cannot see (``--py-files``). After ``pip install`` it is
not needed, because Spark finds the package ``pyspark_kafkalite``. Importing this package does not import PySpark.

The import raises ImportError if modules are missing that source and sink need. A package that was shipped with
``--py-files`` comes without its dependencies, and each host's Python has to have them. This package makes the check,
because every process of Spark that uses the format imports it first. Spark shows the last line of the error.
"""

from __future__ import annotations

import platform
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from spark_kafkalite.spark.workers.needed_modules import NEEDED_MODULES
from spark_kafkalite.version import install_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_kafkalite.jobs.published_scope import Days
    from spark_kafkalite.spark.watching.listener import KafkaliteListener

_missing = [name for name in NEEDED_MODULES if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"[KAFKALITE_MODULES_MISSING] {sys.executable} (Python {platform.python_version()}) on host "
        f"{socket.gethostname()} has no {', no '.join(_missing)}: run {install_command()} there, or ship "
        "an environment that has them; see docs/spark.md"
    )

__all__ = ["fetch_token", "install_listener", "read_published", "register"]


def register(spark: SparkSession) -> None:
    """Register ``format("kafkalite")`` with a session; see :func:`spark_kafkalite.spark.registration.register`."""
    from spark_kafkalite.spark import registration

    registration.register(spark)


def install_listener(spark: SparkSession) -> KafkaliteListener:
    """Watch a session's streams, for their lag and last commits, and return the listener that does.

    See :mod:`spark_kafkalite.spark.watching.listener`.
    """
    from spark_kafkalite.spark.watching import listener

    return listener.install_listener(spark)


def fetch_token(spark: SparkSession, cluster_id: str) -> str:
    """Return Spark's delegation token of a cluster; see :mod:`spark_kafkalite.spark.workers.delegation_token`."""
    from spark_kafkalite.spark.workers import delegation_token

    return delegation_token.fetch_token(spark, cluster_id)


def read_published(
    spark: SparkSession,
    path: str,
    *,
    topic: str | None = None,
    days: Days | None = None,
    since_run: str | int | None = None,
    on_missing: Literal["fail", "warn"] = "fail",
    check_counts: bool = False,
) -> DataFrame:
    """Return what load jobs have published under a path; see :func:`spark_kafkalite.jobs.published.read_published`."""
    from spark_kafkalite.jobs import published

    return published.read_published(
        spark, path, topic=topic, days=days, since_run=since_run, on_missing=on_missing, check_counts=check_counts
    )
