"""Reads a plan's ranges with Spark, writes them as staged Parquet files, and counts what each file holds.

One task reads one planned range and writes one file for every directory that the range falls into; rows keep offset
order inside a file. Nothing here is visible outside ``_kafkalite/staging/RUN``. The facts about the files (first and
last offset, records) are read back from the files themselves, so that what is published is what was written; a range
that came out with more records than offsets, or outside its bounds, is never published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.jobs.files import Files
from spark_kafkalite.spark.jobs.layout import MAX_STAGED_TOPIC, directory_name, file_name, staged_topic
from spark_kafkalite.spark.jobs.manifest import PublishedFile, staging_path
from spark_kafkalite.spark.jobs.planning import LoadPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

PartitionBy = Literal["day", "hour", "none"]

# The directory column of staged files: topic@partition[@day[@hour]], the topic as `staged_topic` has it. Neither '@'
# nor the '~' before a hash can stand in a topic's name.
_GROUP = "kafkalite_group"
_FORMATS: dict[str, tuple[str, ...]] = {"none": (), "day": ("yyyy-MM-dd",), "hour": ("yyyy-MM-dd", "HH")}


class AuditError(KafkaliteError):
    """The files do not hold what the plan asked for."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a run wrote to its staging directory."""

    files: tuple[PublishedFile, ...]
    records: int
    records_without_timestamp: int


def stage(
    spark: SparkSession,
    files: Files,
    run: str,
    plan: LoadPlan,
    source_options: Mapping[str, str],
    partition_by: PartitionBy,
) -> Staged:
    """Write the plan's records under the run's staging directory and return the facts of every file.

    Raises AuditError when a file holds an offset outside its range, or a range more records than offsets.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    frame = read_ranges(spark, plan, source_options)
    topics = {staged_topic(topic): topic for topic in plan.topics}
    topic: Column = F.col("topic")
    if any(len(name) > MAX_STAGED_TOPIC for name in plan.topics):
        hashed = F.concat(F.lit("~"), F.sha2(topic.cast("binary"), 256))
        topic = F.when(F.length(topic) > MAX_STAGED_TOPIC, hashed).otherwise(topic)
    parts = [topic, F.col("partition").cast("string")]
    parts += [F.date_format("timestamp", pattern) for pattern in _FORMATS[partition_by]]
    data = f"{staging_path(run)}/data"
    (
        frame.withColumn(_GROUP, F.concat_ws("@", *parts))
        .sortWithinPartitions(_GROUP, "offset")
        .write.partitionBy(_GROUP)
        # Files go straight to the staging directory at the task's commit: nothing sees it before the manifest does, and
        # version 1 would rename every file a second time on the driver.
        .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
        .parquet(f"{files.root}/{data}")
    )
    if not any(name.startswith(_GROUP) for name in files.names(data)):
        # Nothing visible in the planned offsets: aborted transactions, control records, or compacted away.
        return Staged((), 0, 0)
    rows = (
        spark.read.parquet(f"{files.root}/{data}")
        .groupBy(_GROUP, F.col("_metadata.file_name").alias("file"))
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count("offset").alias("records"),
            F.max("_metadata.file_size").alias("size"),
            F.count_if(F.col("timestamp") < F.timestamp_seconds(F.lit(0))).alias("untimed"),
        )
        .collect()
    )
    published = tuple(
        _published_file(f"{data}/{_GROUP}={row[_GROUP]}", row, plan, topics, files.name_max_bytes)
        for row in sorted(rows, key=lambda row: (row[_GROUP], row["first"]))
    )
    audit(plan, published)
    return Staged(published, sum(file.records for file in published), sum(row["untimed"] for row in rows))


def read_ranges(spark: SparkSession, plan: LoadPlan, source_options: Mapping[str, str]) -> DataFrame:
    """Return the plan's records with headers, one task for each range. The session must be in UTC (see ``session``)."""
    # Any split option keeps the source from packing several ranges into one task; this one never splits a range.
    options = {"maxRecordsPerPartition": str(2**62), **source_options, **plan.spark_options()}
    return spark.read.format("kafkalite").options(**options).option("includeHeaders", "true").load()


def _published_file(
    directory: str, row: Row, plan: LoadPlan, topics: Mapping[str, str], name_max_bytes: int
) -> PublishedFile:
    staged, partition, *times = row[_GROUP].split("@")
    topic = topics.get(staged, staged)  # One that was not planned is `audit`'s to refuse.
    recreations = len(plan.topics[topic].earlier_ids) if topic in plan.topics else 0
    labelled = (f"{label}={time}" for label, time in zip(("day", "hour"), times, strict=False))
    name = file_name(topic, int(partition), row["first"], row["last"], recreations, name_max_bytes)
    return PublishedFile(
        staged=f"{directory}/{row['file']}",
        final="/".join([directory_name(topic, name_max_bytes), *labelled, name]),
        topic=topic,
        partition=int(partition),
        first_offset=row["first"],
        last_offset=row["last"],
        records=row["records"],
        size_bytes=row["size"],
    )


def audit(plan: LoadPlan, files: tuple[PublishedFile, ...]) -> None:
    """Hold the files against the plan.

    Fewer records than offsets are legal (compaction and transaction markers leave gaps); more, or offsets that were
    not planned, are not.
    """
    planned = {r.topic_partition: r for r in plan.ranges}
    counted = dict.fromkeys(planned, 0)
    for file in files:
        asked = planned.get(TopicPartition(file.topic, file.partition))
        if asked is None or not asked.start_offset <= file.first_offset <= file.last_offset < asked.end_offset:
            bounds = (
                "the plan does not name it"
                if asked is None
                else f"planned were {asked.start_offset} to {asked.end_offset - 1}"
            )
            raise AuditError(
                f"{file.staged} holds offsets {file.first_offset} to {file.last_offset} of "
                f"{file.topic}-{file.partition}: {bounds}; nothing was published"
            )
        counted[asked.topic_partition] += file.records
    for topic_partition, records in counted.items():
        if records > planned[topic_partition].size:
            raise AuditError(
                f"{topic_partition}: {records} records were written for {planned[topic_partition].size} offsets; "
                "nothing was published"
            )
