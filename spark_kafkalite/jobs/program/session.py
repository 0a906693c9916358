"""The first steps of every job: a Spark session, files and the bounds of the log; and how it reports a failure."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.errors import (
    BrokerUnreachable,
    ConfigError,
    KafkaError,
    KafkaliteError,
    NoBrokerThere,
    OffsetOutOfRange,
    SslHandshakeFailed,
    UnknownTopicOrPartition,
)
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.jobs.load.planning import DataLossError, PlanError, TopicLogs
from spark_kafkalite.jobs.program.outcome import (
    ExitCode,
    Told,
    first_line,
    java_causes,
    of_causes,
    of_condition,
    of_os_error,
    of_text,
    own_line,
)
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.manifests.files import FileExists, Files, FilesError, files_for
from spark_kafkalite.manifests.manifest import HOME, ManifestError
from spark_kafkalite.manifests.names import place_problem
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, LogBounds, TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.reading.topic_id import topic_id_text
from spark_kafkalite.spark.workers.unix_sockets import UNIX_SOCKETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kafkalite.client.admin.admin import Admin


# What logs a failed task, write or query of Spark, each with the stack traces of all its causes.
_TELL_STACK_TRACES: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    # From Spark 4.1 on, and before.
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.util.Utils",
)
_SETTINGS: Final = {
    # Directories by day are UTC's.
    "spark.sql.session.timeZone": "UTC",
    # Times in Parquet are INT64 in every file, whichever writer makes it. Spark's default is INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Listing staged files, one directory each, takes a task a directory otherwise.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
# What a session has besides if this process starts its JVM, whose temporary directory has a short path. Containers of
# YARN have long ones, and Linux takes 107 bytes for a socket's path.
_OWN_SETTINGS: Final = {UNIX_SOCKETS: "true"}
# Where click's context of a job keeps whether --debug was given.
DEBUG: Final = "spark_kafkalite.jobs.debug"


class JobFailed(click.ClickException):
    """An error for its user: one line on stderr. Jobs exit with ``code``, other commands with 1."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code


class TopicMissing(PlanError):
    """The cluster has no such topic."""


# The first class that an error is of counts.
_CODES: Final[tuple[tuple[type[KafkaliteError], ExitCode], ...]] = (
    (DestinationHeld, ExitCode.HELD),
    (DataLossError, ExitCode.DATA_LOSS),
    (AuditError, ExitCode.DATA_LOSS),
    (OffsetOutOfRange, ExitCode.DATA_LOSS),
    (TopicMissing, ExitCode.SOURCE),
    (ManifestError, ExitCode.DESTINATION),
    (TableError, ExitCode.DESTINATION),
    (FilesError, ExitCode.DESTINATION),
    (FileExists, ExitCode.DESTINATION),
    (ConfigError, ExitCode.USAGE),
    (KafkaError, ExitCode.SOURCE),
    (BrokerUnreachable, ExitCode.SOURCE),
    (NoBrokerThere, ExitCode.SOURCE),
    (SslHandshakeFailed, ExitCode.SOURCE),
)


@contextmanager
def failures_in_one_line() -> Iterator[None]:
    """Turn what a job's user can do something about into JobFailed: our errors, Spark's and those of file systems."""
    try:
        yield
    except SparkConditionError as error:
        raise JobFailed(own_line(str(error)) or str(error), of_condition(error.condition)) from error
    except KafkaliteError as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
        raise JobFailed(str(error) or type(error).__name__, code) from error
    except OSError as error:
        told = of_os_error(error)
        raise JobFailed(told.line, told.code) from error
    except Exception as error:
        found = _of_spark(error)
        if found is None:
            raise
        raise JobFailed(found.line, found.code) from error


def _of_spark(error: Exception) -> Told | None:
    """Return how to report an error of Spark or of its JVM, None for any other."""
    # An error of theirs needs them; a job that ends before it needs Spark does not spend the time to import them.
    if "pyspark.errors" not in sys.modules:
        return None
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        told = of_text(str(error))
        origin = getattr(error, "_origin", None)
        if told.code == ExitCode.FAILED and origin is not None:
            chain = of_causes(java_causes(origin))
            # What nothing is known of is told best in Spark's own words.
            told = told if chain.code == ExitCode.FAILED else chain
        return told
    if isinstance(error, Py4JJavaError):
        return of_causes(java_causes(error.java_exception))
    if isinstance(error, Py4JError):
        return Told(ExitCode.FAILED, f"the driver's JVM does not answer any more: {first_line(str(error))}")
    return None


def say(text: str) -> None:
    """Print a line on stderr, apart from a job's result."""
    click.echo(text, err=True)


def wants_stack_traces() -> bool:
    """Whether the job that runs was given --debug."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(DEBUG))


def is_submitted(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is the driver of a spark-submit: its JVM runs, and it may have shipped files."""
    return "PYSPARK_GATEWAY_PORT" in (os.environ if environment is None else environment)


def session_runs() -> bool:
    """Whether this process has a Spark context, without importing PySpark for the answer."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def start_session(name: str) -> SparkSession:
    """Return the session of ``spark-submit``, or a local one; its time zone is UTC, as directories by day are."""
    from pyspark.sql import SparkSession

    # Spark starts `python3` from the PATH otherwise, which in a virtual environment lacks this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    # Here and not in the session's conf: that takes a second, and a small run does without it.
    for setting, value in {**_SETTINGS, **({} if is_submitted() else _OWN_SETTINGS)}.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if not hasattr(spark, "_jsc"):
        raise JobFailed("jobs need classic Spark: a Spark Connect session has no JVM that reaches Hadoop file systems")
    # A JVM that spark-submit has started has an environment of its own.
    from spark_kafkalite.spark.registration import register_if_hidden

    register_if_hidden(spark)
    if not wants_stack_traces():
        _quieten(spark)
    return spark


def _quieten(spark: SparkSession) -> None:
    """Keep Spark's stack traces of a failed task or query off stderr: the job reports the error behind them."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in _TELL_STACK_TRACES:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def reachable_files(spark: SparkSession, option: str, path: str) -> Files:
    """Return the files of a directory whose file system has answered. Raises JobFailed naming the option otherwise."""
    return answering(lambda: files_for(spark, path), option, path)


def answering(make: Callable[[], Files], option: str, path: str) -> Files:
    """Return the files that ``make`` returns, after their file system has answered.

    Raises JobFailed, which names the ``option`` and the path, if it does not.
    """
    from py4j.protocol import Py4JJavaError

    try:
        files = make()
        files.exists(HOME)
    except Py4JJavaError as error:
        told = of_causes(java_causes(error.java_exception))
        raise JobFailed(f"{option} {path}: {told.line}", ExitCode.DESTINATION) from error
    # Also of a path that is relative to this process's directory.
    if option == "--destination" and (problem := place_problem(files.root)) is not None:
        raise JobFailed(f"{option} {problem}", ExitCode.USAGE)
    return files


def topic_logs(admin: Admin, topics: Iterable[str], isolation: IsolationLevel) -> TopicLogs:
    """Return the topics' ids, and the start and end of all their partitions. Raises TopicMissing."""
    try:
        described = admin.describe_topics(topics)
    except UnknownTopicOrPartition as error:
        raise TopicMissing(f"{error}; `kafkalite topics list` shows what there is") from error
    partitions = [TopicPartition(name, each.partition) for name, info in described.items() for each in info.partitions]
    ended_at_ms = int(time.time() * 1000)
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation=isolation)
    bounds: dict[TopicPartition, LogBounds] = {}
    for item in partitions:
        start, end = starts[item], ends[item]
        if start is None or end is None:
            raise PlanError(f"{item}: the broker does not report where the partition starts and ends; try again")
        bounds[item] = LogBounds(start.offset, end.offset)
    ids = {name: text for name, info in described.items() if (text := topic_id_text(info.topic_id)) is not None}
    return TopicLogs(bounds, ids, ended_at_ms)


def compacted_topics(admin: Admin, topics: Iterable[str]) -> set[str]:
    """Return those topics whose ``cleanup.policy`` has compaction in it."""
    policies = {topic: admin.describe_configs(topic=topic).get("cleanup.policy") for topic in topics}
    return {topic for topic, policy in policies.items() if policy is not None and "compact" in (policy.value or "")}


def matching_topics(admin: Admin, pattern: str) -> list[str]:
    """Return the topics whose whole name a pattern matches, sorted, without the cluster's own."""
    return sorted(name for name in admin.list_topics() if re.fullmatch(pattern, name))


def check_same_topics(admin: Admin, topic_ids: Mapping[str, str], consequence: str) -> None:
    """Raise DataLossError, ending in ``consequence``, when a topic has another id than it had when the plan was made.

    Called when all is read: what was read in between is of the planned topics then. One that is gone is no error, as
    every range was read in full before.
    """
    for topic, topic_id in topic_ids.items():
        try:
            info = admin.describe_topics([topic])[topic]
        except UnknownTopicOrPartition:
            continue
        now = topic_id_text(info.topic_id)
        if now is not None and now != topic_id:
            raise DataLossError(
                f"topic {topic} had id {topic_id} when its offsets were planned, and has id {now} now that they are "
                f"read: it was deleted and created again meanwhile; {consequence}"
            )
