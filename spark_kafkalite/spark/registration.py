"""Explicit registration where Spark does not discover the source, and repairs that such installations need.

After ``pip install`` Spark finds ``pyspark_kafkalite`` by itself. A package that came with ``--py-files`` or
``spark.submit.pyFiles`` is not found, so an application calls :func:`register`. PySpark 4.0 to 4.3 then have a fault:
the process of a streaming source looks for those files in ``<files>/streaming_job``, which does not exist, and cannot
import us. A symbolic link of that name to the directory itself gives it what it looks for.

In a virtual environment that is not on the PATH, Spark starts another Python and finds nothing. The registration then
names this process's Python, see ``workers.worker_python``.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING
from weakref import WeakSet

from spark_kafkalite.spark.pyspark_versions import register_source
from spark_kafkalite.spark.source import KafkaliteDataSource
from spark_kafkalite.spark.workers.unix_sockets import recommend_unix_sockets
from spark_kafkalite.spark.workers.warm_up import warm_up
from spark_kafkalite.spark.workers.worker_python import provide_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("spark_kafkalite.spark")
_STREAMING_JOB = "streaming_job"
# Sessions that have the format, whatever Spark itself finds.
_REGISTERED: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make ``format("kafkalite")`` known to a session, also for streams when the package came with ``--py-files``.

    If ``PYSPARK_PYTHON`` is not set, and Spark's ``python3`` lacks this package, the application's Python workers use
    the virtual environment of this process. Recommends Unix sockets for Python workers, once, where Spark has them and
    the session does not use them. Starts the processes of the first ``.load()`` in the background
    (``workers.warm_up``).
    """
    _register(spark)
    warm_up(spark)


def _register(spark: SparkSession) -> None:
    provide_python(spark, will_register=True)
    register_source(spark, KafkaliteDataSource)
    _REGISTERED.add(spark)
    recommend_unix_sockets(spark)
    _link_files_of_streams()


def register_if_hidden(spark: SparkSession) -> None:
    """Register the format if Spark's Python cannot find it and another one can be chosen; else warn of that Python."""
    if spark not in _REGISTERED and provide_python(spark, will_register=False):
        _register(spark)


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
