"""Finds the files of a destination with as little of Spark as that takes.

A session of Spark starts for seconds. A destination that is certainly local needs none, and any other needs only a JVM
with Hadoop's client in it. A local path is one with the scheme ``file``, or one without a scheme where the default file
system is the local one. That is certain without a JVM where nothing can set ``fs.defaultFS``: see :func:`is_local`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs.program.hadoop_client import (
    configuration_directory,
    hadoop_client,
    needs_spark_submit,
    spark_defaults,
)
from spark_kafkalite.jobs.program.session import answering, is_submitted, reachable_files, session_runs
from spark_kafkalite.manifests.files import Files, files_in, local_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What brings Hadoop's configuration to the JVM that a job starts.
_CONFIGURING: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
# In Spark's own directory of configuration, Hadoop reads it, too.
_CORE_SITE: Final = "core-site.xml"
_DEFAULT_FILE_SYSTEM: Final = ("spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name")


def is_local(path: str, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether a path is certainly local: by its scheme, or because nothing configures another file system.

    ``environment`` has the variables of the process, by default those of this one. False is no statement: a session
    or :func:`files_without_session` knows.
    """
    scheme = urlsplit(path).scheme
    if scheme:
        return scheme == "file"
    variables = os.environ if environment is None else environment
    if is_submitted(variables) or any(variables.get(name) for name in _CONFIGURING) or needs_spark_submit(variables):
        return False
    directory = configuration_directory(variables)
    if directory is not None and (directory / _CORE_SITE).exists():
        return False
    try:
        defaults = spark_defaults(variables)
    except ConfigError:
        return False
    return not any(name in defaults for name in _DEFAULT_FILE_SYSTEM)


def files_of(session: Callable[[], SparkSession], option: str, path: str) -> Files:
    """Return the files of a directory. Start the session only if the directory may not be local.

    Raises JobFailed, which names the ``option``, if the file system does not answer.
    """
    return local_files(path) if _needs_no_jvm(path) else reachable_files(session(), option, path)


@contextmanager
def files_without_session(option: str, path: str) -> Iterator[Files]:
    """Reach the files of a directory, with Hadoop's client in a JVM where it may not be local, while the block runs.

    Raises JobFailed, which names the ``option``, if the file system does not answer.
    """
    if _needs_no_jvm(path):
        yield local_files(path)
        return
    with hadoop_client() as client:
        yield answering(lambda: files_in(client.jvm, client.configuration, path), option, path)


def _needs_no_jvm(path: str) -> bool:
    # A session may have a default file system of its own.
    return is_local(path) and (bool(urlsplit(path).scheme) or not session_runs())
