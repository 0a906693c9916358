"""What every job does first: a Spark session, files and the bounds of the log; and how it says that it failed."""

from __future__ import annotations

import os
import re
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.errors import KafkaliteError, UnknownTopicOrPartition
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, LogBounds, TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.jobs.files import Files, files_for
from spark_kafkalite.spark.jobs.manifest import HOME
from spark_kafkalite.spark.jobs.planning import PlanError, TopicLogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kafkalite.client.admin.admin import Admin


_MAX_CAUSES: Final = 10


class JobFailed(click.ClickException):
    """A job's error for its user: one line on stderr, exit code 1."""


@contextmanager
def failures_in_one_line() -> Iterator[None]:
    """Turn what a job's user can do something about into JobFailed: our errors, Spark's and those of file systems.

    Spark's workers and the JVM have logged their stack traces by then.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except SparkConditionError as error:
        raise JobFailed(own_line(str(error))) from error
    except (KafkaliteError, OSError) as error:
        raise JobFailed(str(error)) from error
    except PySparkException as error:
        raise JobFailed(own_line(str(error))) from error
    except Py4JJavaError as error:
        raise JobFailed(own_line(_with_causes(error.java_exception))) from error


def _with_causes(exception: Any) -> str:
    """Return the messages of a Java exception and of what caused it; Spark's own often says only that a job failed."""
    messages: list[str] = []
    while exception is not None and len(messages) < _MAX_CAUSES:
        messages.append(str(exception.toString()).strip())
        exception = exception.getCause()
    return "\n".join(messages)


def own_line(text: str) -> str:
    """Return the source's or sink's own ``[CONDITION] ...`` line, else the first line.

    The engine wraps ours in a traceback and a SQLSTATE.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line[line.index("[KAFKA") :] for line in lines if "[KAFKA" in line]
    return own[-1] if own else lines[0]


def is_submitted() -> bool:
    """Whether this process is the driver of a spark-submit: its JVM runs, and it may have shipped files."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start_session(name: str) -> SparkSession:
    """Return the session of ``spark-submit``, or a local one; its time zone is UTC, as directories by day are."""
    from pyspark.sql import SparkSession

    # Spark starts `python3` from the PATH otherwise, which in a virtual environment lacks this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName(name).getOrCreate()
    if not hasattr(spark, "_jsc"):
        raise JobFailed("jobs need classic Spark: a Spark Connect session has no JVM that reaches Hadoop file systems")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Listing staged files, one directory each, takes a task a directory otherwise.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
    return spark


def reachable_files(spark: SparkSession, option: str, path: str) -> Files:
    """Return the files of a directory whose file system has answered. Raises JobFailed naming the option otherwise."""
    from py4j.protocol import Py4JJavaError

    try:
        files = files_for(spark, path)
        files.exists(HOME)
    except Py4JJavaError as error:
        raise JobFailed(
            f"{option} {path}: {_root_cause(error.java_exception)}; check its scheme, host and port, and that its file "
            "system is up"
        ) from error
    return files


def _root_cause(exception: Any) -> str:
    """Return the class and message of what a Java exception came from, without the advice that Hadoop adds."""
    for _ in range(_MAX_CAUSES):
        cause = exception.getCause()
        if cause is None:
            break
        exception = cause
    return f"{exception.getClass().getSimpleName()}: {exception.getMessage()}"


def topic_logs(admin: Admin, topics: Iterable[str], isolation: IsolationLevel) -> TopicLogs:
    """Return the topics' ids, and the start and end of all their partitions. Raises PlanError for a missing topic."""
    try:
        described = admin.describe_topics(topics)
    except UnknownTopicOrPartition as error:
        raise PlanError(f"{error}; `kafkalite topics list` shows what there is") from error
    partitions = [TopicPartition(name, each.partition) for name, info in described.items() for each in info.partitions]
    ended_at_ms = int(time.time() * 1000)
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation=isolation)
    bounds: dict[TopicPartition, LogBounds] = {}
    for item in partitions:
        start, end = starts[item], ends[item]
        if start is None or end is None:
            raise PlanError(f"{item}: the broker does not say where the partition starts and ends; try again")
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
    """Raise PlanError, ending in ``consequence``, when a topic has another id than it had when the plan was made.

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
            raise PlanError(
                f"topic {topic} had id {topic_id} when its offsets were planned, and has id {now} now that they are "
                f"read: it was deleted and created again meanwhile; {consequence}"
            )


def topic_id_text(topic_id: bytes) -> str | None:
    """Return a topic id as Kafka's tools write it, None for the id of a topic without one."""
    # Source: org.apache.kafka.common.Uuid.toString.
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii") if any(topic_id) else None
