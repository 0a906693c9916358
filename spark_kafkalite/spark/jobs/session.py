"""What every job does first: options of the command line into a Spark session, clients and the bounds of the log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.spark.jobs.planning import LogBounds, PlanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kafkalite.client.admin import Admin


class JobFailed(click.ClickException):
    """A job's error for its user: one line on stderr, exit code 1."""


client_option = click.option(
    "--option", "client_options", multiple=True, metavar="NAME=VALUE", help="Client setting, by Kafka's name."
)


def start_session(name: str) -> SparkSession:
    """Return the session of ``spark-submit``, or a local one; its time zone is UTC, as directories by day are."""
    from pyspark.sql import SparkSession

    # Spark starts `python3` from the PATH otherwise, which in a virtual environment lacks this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName(name).getOrCreate()
    if not hasattr(spark, "_jsc"):
        raise JobFailed("jobs need classic Spark: a Spark Connect session has no JVM that reaches Hadoop file systems")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


def parse_client_options(pairs: Iterable[str]) -> dict[str, str]:
    """Turn ``--option NAME=VALUE`` pairs into client settings. Raises click.BadParameter."""
    options: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE", param_hint="--option")
        options[name.strip()] = value.strip()
    return options


def open_admin(bootstrap_server: str, options: dict[str, str]) -> Admin:
    """Return an admin client of the cluster."""
    from spark_kafkalite.client.admin import Admin

    return Admin({"bootstrap.servers": bootstrap_server, **options})


def log_bounds(admin: Admin, topics: Iterable[str], isolation: IsolationLevel) -> dict[TopicPartition, LogBounds]:
    """Return the start and end of every partition of the topics. Raises PlanError for a topic that is not there."""
    partitions: list[TopicPartition] = []
    described = admin.describe_topics(list(topics))
    for topic in topics:
        if topic not in described:
            raise PlanError(f"topic {topic!r} does not exist; see `kafkalite topics list`")
        partitions += [TopicPartition(topic, partition.partition) for partition in described[topic].partitions]
    starts: Any = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends: Any = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation=isolation)
    return {item: LogBounds(starts[item].offset, ends[item].offset) for item in partitions}
