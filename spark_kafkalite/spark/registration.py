"""Explicit registration where Spark does not discover the source, and a repair that such installations need.

After ``pip install`` Spark finds ``pyspark_kafkalite`` by itself. A package that came with ``--py-files`` or
``spark.submit.pyFiles`` is not found, so an application calls :func:`register`. PySpark 4.0 to 4.3 then have a fault:
the process of a streaming source looks for those files in ``<files>/streaming_job``, which does not exist, and cannot
import us. A symbolic link of that name to the directory itself gives it what it looks for.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from spark_kafkalite.spark.pyspark_versions import register_source
from spark_kafkalite.spark.source import KafkaliteDataSource
from spark_kafkalite.spark.unix_sockets import recommend_unix_sockets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("spark_kafkalite.spark")
_STREAMING_JOB = "streaming_job"


def register(spark: SparkSession) -> None:
    """Make ``format("kafkalite")`` known to a session, also for streams when the package came with ``--py-files``.

    Recommends Unix sockets for Python workers, once, where Spark has them and the session does not use them.
    """
    register_source(spark, KafkaliteDataSource)
    recommend_unix_sockets(spark)
    _link_files_of_streams()


def _link_files_of_streams() -> None:
    from pyspark import SparkFiles
    from pyspark.core.context import SparkContext

    if SparkContext._active_spark_context is None:
        # A Spark Connect client: the server has the files, and this host nothing to repair.
        return
    directory = SparkFiles.getRootDirectory()
    link = os.path.join(directory, _STREAMING_JOB)
    if not os.path.isdir(directory) or os.path.lexists(link):
        return
    try:
        os.symlink(".", link)
    except OSError as error:
        _LOG.warning(
            "cannot create the link %s (%s): streaming reads may fail to import packages that came with --py-files; "
            "install the wheel of spark-kafkalite on the driver's host instead",
            link,
            error,
        )
