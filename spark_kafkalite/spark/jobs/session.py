"""What every job does first: options of the command line into a Spark session, clients and the bounds of the log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from spark_kafkalite.client.cluster import EARLIEST, LATEST
from spark_kafkalite.errors import UnknownTopicOrPartition
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
    # Listing staged files, one directory each, takes a task a directory otherwise.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
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
    try:
        described = admin.describe_topics(topics)
    except UnknownTopicOrPartition as error:
        raise PlanError(f"{error}; `kafkalite topics list` shows what there is") from error
    partitions = [TopicPartition(name, each.partition) for name, info in described.items() for each in info.partitions]
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation=isolation)
    bounds: dict[TopicPartition, LogBounds] = {}
    for item in partitions:
        start, end = starts[item], ends[item]
        if start is None or end is None:
            raise PlanError(f"{item}: the broker does not say where the partition starts and ends; try again")
        bounds[item] = LogBounds(start.offset, end.offset)
    return bounds
