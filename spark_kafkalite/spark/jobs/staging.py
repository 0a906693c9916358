"""Reads a plan's ranges with Spark, writes them as staged files, and accounts for every offset of the plan.

One task reads what the plan gives it and writes one file for every topic and directory of time that its ranges fall
into; rows of a partition keep offset order. Nothing here is visible outside ``_kafkalite/staging/RUN``. The facts about
the files (which offsets of which partitions, rows) are read back from the files themselves, so that what is published
is what was written, and held against the accounts of the reading tasks (:mod:`.load_source`, :mod:`.accounting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from spark_kafkalite.spark.jobs import load_source
from spark_kafkalite.spark.jobs.accounting import AuditError, check_accounts
from spark_kafkalite.spark.jobs.faults import fault_point
from spark_kafkalite.spark.jobs.files import Files
from spark_kafkalite.spark.jobs.layout import (
    MAX_STAGED_TOPIC,
    directory_name,
    file_name,
    shared_file_name,
    staged_topic,
)
from spark_kafkalite.spark.jobs.load_source import RangeAccount
from spark_kafkalite.spark.jobs.manifest import FilePart, LoadedRange, PublishedFile, staging_path
from spark_kafkalite.spark.jobs.planning import LoadPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

PartitionBy = Literal["day", "hour", "none"]
FileFormat = Literal["parquet", "orc", "json"]

# The directory column of staged files: topic@[day[@hour]], the topic as `staged_topic` has it. Neither '@' nor the '~'
# before a hash can stand in a topic's name.
_GROUP: Final = "kafkalite_group"
_ACCOUNTS: Final = "@accounts"
_TIMES: Final[Mapping[str, tuple[str, ...]]] = {"none": (), "day": ("yyyy-MM-dd",), "hour": ("yyyy-MM-dd", "HH")}
# Of what `read_ranges` returns: not an account.
IS_RECORD: Final = f"offset <> {load_source.ACCOUNT_OFFSET}"
_FACTS: Final = "partition int, offset long, timestamp timestamp"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How a destination's files are made: their format, its codec (None: Spark's choice), and their directories.

    Directories of time are those of ``time_zone``, an IANA name. ``file_bytes`` is the size that a file is aimed at.
    """

    partition_by: PartitionBy = "day"
    file_format: FileFormat = "parquet"
    codec: str | None = None
    time_zone: str = "UTC"
    file_bytes: int = 256 * 1024 * 1024

    def document(self) -> dict[str, str]:
        """Return what a manifest says of it."""
        found = {"partition_by": self.partition_by, "format": self.file_format, "time_zone": self.time_zone}
        return found if self.codec is None else {**found, "codec": self.codec}


@dataclass(frozen=True, slots=True)
class Staged:
    """What a run wrote to its staging directory, and what became of every offset of its plan."""

    files: tuple[PublishedFile, ...] = ()
    ranges: tuple[LoadedRange, ...] = ()
    records_without_timestamp: int = 0

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)


def stage(
    spark: SparkSession,
    files: Files,
    run: str,
    plan: LoadPlan,
    source_options: Mapping[str, str],
    layout: FileLayout,
    number: int = 0,
) -> Staged:
    """Write the plan's records under the run's staging directory and return the facts of every file and range.

    ``number`` tells one part of a run, which has a layout of its own, from the others.

    Raises AuditError when files and accounts do not make up the plan, offset for offset.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    if not plan.ranges:
        return Staged(ranges=check_accounts(plan, (), ()))
    # Directories are made, and read back, in the zone of the layout.
    spark.conf.set("spark.sql.session.timeZone", layout.time_zone)
    data = f"{staging_path(run)}/data-{number}"
    writer = (
        _grouped(read_ranges(spark, plan, source_options), plan, layout)
        .sortWithinPartitions(_GROUP, "partition", "offset")
        .write.partitionBy(_GROUP)
        # Files go straight to the staging directory at the task's commit: nothing sees it before the manifest does, and
        # version 1 would rename every file a second time on the driver.
        .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
    )
    if layout.codec is not None:
        writer = writer.option("compression", layout.codec)
    writer.format(layout.file_format).save(f"{files.root}/{data}")
    fault_point("staging")
    accounts = _accounts(spark, files, data, layout)
    rows: list[Row] = []
    if any(name.startswith(f"{_GROUP}=") and _ACCOUNTS not in name for name in files.names(data)):
        rows = (
            spark.read.format(layout.file_format)
            .schema(f"{_FACTS}, {_GROUP} string")
            .load(f"{files.root}/{data}")
            .where(F.col(_GROUP) != _ACCOUNTS)
            .groupBy(_GROUP, F.col("_metadata.file_name").alias("file"), "partition")
            .agg(
                F.min("offset").alias("first"),
                F.max("offset").alias("last"),
                F.count("offset").alias("records"),
                F.max("_metadata.file_size").alias("size"),
                F.count_if(F.col("timestamp") < F.timestamp_seconds(F.lit(0))).alias("untimed"),
            )
            .collect()
        )
    staged = _published_files(rows, data, f"{run}-{number}", plan, files.name_max_bytes, layout)
    ranges = check_accounts(plan, accounts, staged)
    return Staged(staged, ranges, sum(row["untimed"] for row in rows))


def read_ranges(spark: SparkSession, plan: LoadPlan, source_options: Mapping[str, str]) -> DataFrame:
    """Return the plan's records with headers, read by the plan's tasks, and an account of each range among them."""
    spark.dataSource.register(load_source.LoadSource)
    return (
        spark.read.format(load_source.FORMAT_NAME)
        .options(**source_options)
        .option("assign", plan.assign_option())
        .option(load_source.TASKS, load_source.tasks_json(plan.planned_tasks))
        .load()
    )


def _grouped(frame: DataFrame, plan: LoadPlan, layout: FileLayout) -> DataFrame:
    """Return the rows with the directory that each belongs into."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    topic: Column = F.col("topic")
    if any(len(name) > MAX_STAGED_TOPIC for name in plan.topics):
        hashed = F.concat(F.lit("~"), F.sha2(topic.cast("binary"), 256))
        topic = F.when(F.length(topic) > MAX_STAGED_TOPIC, hashed).otherwise(topic)
    times = F.concat_ws("@", *(F.date_format("timestamp", pattern) for pattern in _TIMES[layout.partition_by]))
    of_account = F.col("offset") == load_source.ACCOUNT_OFFSET
    group = F.when(of_account, F.lit(_ACCOUNTS)).otherwise(F.concat(topic, F.lit("@"), times))
    return frame.withColumn(_GROUP, group)


def _accounts(spark: SparkSession, files: Files, data: str, layout: FileLayout) -> list[RangeAccount]:
    rows = spark.read.format(layout.file_format).schema("key binary").load(f"{files.root}/{data}/{_GROUP}={_ACCOUNTS}")
    return [RangeAccount.from_json(bytes(row.key)) for row in rows.collect()]


def _published_files(
    rows: Iterable[Row], data: str, run: str, plan: LoadPlan, name_max_bytes: int, layout: FileLayout
) -> tuple[PublishedFile, ...]:
    """Return the files as they are to be published, in the order of topics, directories, partitions and offsets."""
    topics = {staged_topic(topic): topic for topic in plan.topics}
    by_file: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row[_GROUP], row["partition"], row["first"])):
        by_file.setdefault((row[_GROUP], row["file"]), []).append(row)
    found = []
    for number, ((group, name), parts) in enumerate(by_file.items(), 1):
        staged, *times = group.split("@")
        topic = topics.get(staged)
        if topic is None:
            raise AuditError(f"{data}/{_GROUP}={group} holds a topic that was not planned; nothing was published")
        ending = _ending(name, layout.file_format)
        if len(parts) == 1:
            (only,) = parts
            recreations = len(plan.topics[topic].earlier_ids)
            final = file_name(
                topic, only["partition"], only["first"], only["last"], recreations, name_max_bytes, ending
            )
        else:
            final = shared_file_name(topic, "load", run, number, name_max_bytes, ending)
        labelled = (f"{label}={time}" for label, time in zip(("day", "hour"), filter(None, times), strict=False))
        found.append(
            PublishedFile(
                staged=f"{data}/{_GROUP}={group}/{name}",
                final="/".join([directory_name(topic, name_max_bytes), *labelled, final]),
                topic=topic,
                parts=tuple(FilePart(row["partition"], row["first"], row["last"], row["records"]) for row in parts),
                size_bytes=parts[0]["size"],
            )
        )
    return tuple(found)


def _ending(name: str, file_format: str) -> str:
    """Return the ending of a published name: with the codec where readers look for it there, as in ``json.gz``."""
    # Spark's names end in .c000.snappy.parquet or .c000.json.gz.
    ending = name.partition(".c000.")[2]
    return ending if ending.startswith(file_format) else file_format
