"""format("kafkalite") for Apache Spark: source, sink, and what an application may call beside them.

``register`` is for installations that Spark's own discovery cannot see (``--py-files``); after ``pip install`` it is
not needed, because Spark finds the package ``pyspark_kafkalite``. Importing this package does not import PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register ``format("kafkalite")`` with a session; see :func:`spark_kafkalite.spark.registration.register`."""
    from spark_kafkalite.spark import registration

    registration.register(spark)
