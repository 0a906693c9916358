"""Reads a plan's ranges with Spark, writes them as staged files, and accounts for every offset of the plan.

One task reads what the plan gives it and writes one file for every topic and directory of time that its ranges fall
into; rows of a partition keep offset order. Nothing here is visible outside ``_kafkalite/staging/RUN``. The facts about
the files (which offsets of which partitions, rows) are read back from the files themselves, so that what is published
is what was written, and held against the accounts of the reading tasks (:mod:`.load_source`, :mod:`.accounting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.jobs.formats import decoding, lines, parquet_pieces
from spark_kafkalite.jobs.formats.file_layout import FileLayout, PartitionBy
from spark_kafkalite.jobs.load import driver_staging, load_source, quarantine
from spark_kafkalite.jobs.load.accounting import AuditError, check_accounts
from spark_kafkalite.jobs.load.load_source import RangeAccount
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.jobs.load.quarantine import NONE_QUARANTINED, MaxQuarantined, Quarantined
from spark_kafkalite.jobs.program.faults import fault_point
from spark_kafkalite.jobs.program.stopping import cancelled_with
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import FilePart, PublishedFile, Staged, staging_path
from spark_kafkalite.manifests.names import (
    ACCOUNT_OFFSET,
    ACCOUNTS,
    DATA,
    GROUP,
    HELD_BACK_OFFSET,
    MAX_STAGED_TOPIC,
    NO_DATA,
    QUARANTINED,
    directory_name,
    file_name,
    shared_file_name,
    staged_topic,
)
from spark_kafkalite.spark.reading.read_schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TIMES: Final[Mapping[PartitionBy, tuple[str, ...]]] = {
    "none": (),
    "day": ("yyyy-MM-dd",),
    "hour": ("yyyy-MM-dd", "HH"),
}
# As seconds, a time of the year 2286.
_EARLY_MS: Final = 10_000_000_000
_PARQUET_CODEC: Final = "spark.sql.parquet.compression.codec"
_OPEN_FILES: Final = "spark.sql.maxConcurrentOutputFileWriters"
# Of one task; of more directories Spark sorts what comes.
_MOST_OPEN_FILES: Final = 400
_FACTS: Final = "partition int, offset long, timestamp timestamp"


def stage(
    spark: SparkSession,
    files: Files,
    run: str,
    plan: LoadPlan,
    source_options: Mapping[str, str],
    layout: FileLayout,
    max_quarantined: MaxQuarantined = NONE_QUARANTINED,
    number: int = 0,
    in_driver: bool = False,
) -> Staged:
    """Write the plan's records under the run's staging directory and return the facts of every file and range.

    ``number`` identifies a part of a run; each part has a layout of its own. ``in_driver``: write without Spark's tasks
    if the layout allows that. Raises AuditError if files and accounts do not add up to the plan, offset by offset, and
    if more records than ``max_quarantined`` cannot be decoded.
    """
    if not plan.ranges:
        return Staged(ranges=check_accounts(plan, (), ()))
    data = f"{staging_path(run)}/data-{number}"
    pieces = _of_pieces(spark, layout)
    if in_driver and pieces is not None:
        made = driver_staging.write(files, data, plan, source_options, pieces)
        if made is not None:
            accounts, written = made
            fault_point("staging")
            rows = [row for file in written for row in driver_staging.facts(files, data, file)]
            staged = _published_files(rows, data, f"{run}-{number}", plan, files.name_max_bytes, layout)
            return Staged(staged, check_accounts(plan, accounts, staged), sum(row["untimed"] for row in rows))
        # Spark makes the files of the quarantine, so it reads everything.
        files.delete(data)
    with cancelled_with(spark):
        return _staged_by_tasks(spark, files, run, plan, source_options, layout, max_quarantined, number, data, pieces)


def _staged_by_tasks(
    spark: SparkSession,
    files: Files,
    run: str,
    plan: LoadPlan,
    source_options: Mapping[str, str],
    layout: FileLayout,
    max_quarantined: MaxQuarantined,
    number: int,
    data: str,
    pieces: FileLayout | None,
) -> Staged:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    # Directories are made, and read back, in the zone of the layout.
    spark.conf.set("spark.sql.session.timeZone", layout.time_zone)
    times = None if layout.by_record_time else Observation()
    by_text = layout.file_format == "text" or pieces is not None
    separator = "\n" if pieces is None else parquet_pieces.SEPARATOR
    if pieces is not None:
        frame = read_ranges(spark, plan, source_options, pieces)
        frame = frame.select(F.col(DATA).cast("string").alias("value"), GROUP)
    else:
        frame = _grouped(decoding.decoded(read_ranges(spark, plan, source_options), layout), plan, layout)
        if times is not None:
            missing = F.col(decoding.TIME).isNull() & ~F.col(GROUP).startswith(NO_DATA)
            early = (F.col(decoding.TIME) < F.timestamp_millis(F.lit(_EARLY_MS))) & ~F.col(GROUP).startswith(NO_DATA)
            frame = frame.observe(times, F.count_if(missing).alias("fallbacks"), F.count_if(early).alias("early"))
        frame = _as_in_files(frame)
        frame = lines.as_lines(frame) if by_text else frame.sortWithinPartitions(GROUP, "partition", "offset")
    writer = (
        frame.write.partitionBy(GROUP)
        # Files go straight to the staging directory at the task's commit: nothing sees it before the manifest does, and
        # version 1 would rename every file a second time on the driver.
        .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
        # One file of a task in each group, whatever the session says: facts are matched by task.
        .option("maxRecordsPerFile", 0)
    )
    if by_text:
        writer = writer.option("lineSep", separator)
    if layout.codec is not None and pieces is None:
        writer = writer.option("compression", layout.codec)
    # Pieces come in the order of their files; Spark would sort them for the sake of one open file at a time.
    spark.conf.set(_OPEN_FILES, str(_MOST_OPEN_FILES if pieces is not None else 0))
    writer.format("text" if by_text else layout.file_format).save(f"{files.root}/{data}")
    fault_point("staging")
    groups = [name.removeprefix(f"{GROUP}=") for name in files.names(data) if name.startswith(f"{GROUP}=")]
    accounts = [
        RangeAccount.from_json(row.document)
        for row in _documents(spark, files, data, ACCOUNTS, layout, separator, by_text).collect()
    ]
    held_back = Quarantined()
    if QUARANTINED in groups:
        documents = _documents(spark, files, data, QUARANTINED, layout, separator, by_text)
        explained = quarantine.Explained(decoding.explainer(layout))
        held_back = quarantine.counted(documents, explained)
        quarantine.check_quarantined(held_back, sum(each.present for each in accounts), max_quarantined)
    rows: list[dict[str, Any]] = []
    if any(not group.startswith(NO_DATA) for group in groups):
        rows = (
            lines.made_files(spark, files, data) if layout.file_format == "text" else _facts(spark, files, data, layout)
        )
    staged = _published_files(rows, data, f"{run}-{number}", plan, files.name_max_bytes, layout)
    return Staged(
        staged,
        check_accounts(plan, accounts, staged, held_back.by_partition),
        sum(row["untimed"] for row in rows),
        quarantine.write(spark, files, run, number, documents, held_back, explained) if held_back.records else (),
        0 if times is None else times.get["fallbacks"],
        0 if times is None else times.get["early"],
    )


def _of_pieces(spark: SparkSession, layout: FileLayout) -> FileLayout | None:
    """Return the layout with its codec where the reading tasks make the files, None where Spark's writer does.

    Settings of Parquet's, such as encryption, are known to that one only.
    """
    if not layout.is_made_of_pieces:
        return None
    if not spark.sparkContext._jsc.hadoopConfiguration().getPropsWithPrefix("parquet.").isEmpty():
        return None
    codec = parquet_pieces.codec_of(layout.codec or str(spark.conf.get(_PARQUET_CODEC)))
    return None if codec is None else replace(layout, codec=codec)


def read_ranges(
    spark: SparkSession, plan: LoadPlan, source_options: Mapping[str, str], pieces: FileLayout | None = None
) -> DataFrame:
    """Return the plan's records with headers, read by the plan's tasks, and an account of each range among them.

    With ``pieces`` return the pieces of files of that layout instead.
    """
    spark.dataSource.register(load_source.LoadSource)
    options = load_source.options_of(plan, source_options, pieces)
    return spark.read.format(load_source.FORMAT_NAME).options(**options).load()


def _grouped(frame: DataFrame, plan: LoadPlan, layout: FileLayout) -> DataFrame:
    """Return the rows with the directory that each belongs into."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    topic: Column = F.col("topic")
    if any(len(name) > MAX_STAGED_TOPIC for name in plan.topics):
        hashed = F.concat(F.lit("~"), F.sha2(topic.cast("binary"), 256))
        topic = F.when(F.length(topic) > MAX_STAGED_TOPIC, hashed).otherwise(topic)
    time = F.col("timestamp")
    if decoding.TIME in frame.columns:
        time = F.coalesce(decoding.TIME, time)
    times = F.concat_ws("@", *(F.date_format(time, pattern) for pattern in _TIMES[layout.partition_by]))
    group = F.when(F.col("offset") == ACCOUNT_OFFSET, F.lit(ACCOUNTS))
    group = group.when(F.col("offset") == HELD_BACK_OFFSET, F.lit(QUARANTINED))
    if decoding.REASON in frame.columns:
        group = group.when(F.col(decoding.REASON).isNotNull(), F.lit(QUARANTINED))
    # Not null, as Spark sees: it would replace empty names otherwise.
    return frame.withColumn(GROUP, F.coalesce(group.otherwise(F.concat(topic, F.lit("@"), times)), F.lit("")))


def _as_in_files(frame: DataFrame) -> DataFrame:
    """Return the source's columns as files have them; a record in quarantine as a document in the place of its key."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    columns: dict[str, Column] = {name: F.col(name) for name in spark_schema(include_headers=True).names}
    if decoding.REASON in frame.columns:
        # What the reading task has held back is a document already.
        held_back = (F.col(GROUP) == QUARANTINED) & (F.col("offset") != HELD_BACK_OFFSET)
        at_ms = F.unix_millis("timestamp").alias("timestamp")
        reason = F.col(decoding.REASON).alias("reason")
        parts: list[Column | str] = ["topic", "partition", "offset", at_ms, reason, "key", "value", "headers"]
        document = F.to_json(F.struct(*parts)).cast("binary")
        columns["key"] = F.when(held_back, document).otherwise(F.col("key"))
        columns["value"] = F.when(~held_back, decoding.decoded_value(frame))
        columns["headers"] = F.when(~held_back, F.col("headers"))
    return frame.select(*(column.alias(name) for name, column in columns.items()), GROUP)


def _documents(
    spark: SparkSession, files: Files, data: str, group: str, layout: FileLayout, separator: str, by_text: bool
) -> DataFrame:
    """Return the documents of a group that is no data, in the column ``document``."""
    path = f"{files.root}/{data}/{GROUP}={group}"
    if by_text:
        return spark.read.option("lineSep", separator).schema("document string").text(path)
    return spark.read.format(layout.file_format).schema("key binary").load(path).selectExpr("string(key) AS document")


def _facts(spark: SparkSession, files: Files, data: str, layout: FileLayout) -> list[dict[str, Any]]:
    """Return what the files hold, a row for each partition in one."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    found = (
        spark.read.format(layout.file_format)
        .schema(f"{_FACTS}, {GROUP} string")
        .load(f"{files.root}/{data}")
        .where(~F.col(GROUP).startswith(NO_DATA))
        .groupBy(GROUP, F.col("_metadata.file_name").alias("file"), "partition")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count("offset").alias("records"),
            F.max("_metadata.file_size").alias("size"),
            F.count_if(F.col("timestamp") < F.timestamp_seconds(F.lit(0))).alias("untimed"),
        )
    )
    return [row.asDict() for row in found.collect()]


def _published_files(
    rows: Iterable[Mapping[str, Any]], data: str, run: str, plan: LoadPlan, name_max_bytes: int, layout: FileLayout
) -> tuple[PublishedFile, ...]:
    """Return the files as they are to be published, in the order of topics, directories, partitions and offsets."""
    topics = {staged_topic(topic): topic for topic in plan.topics}
    by_file: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row[GROUP], row["partition"], row["first"])):
        by_file.setdefault((row[GROUP], row["file"]), []).append(row)
    found = []
    for number, ((group, name), parts) in enumerate(by_file.items(), 1):
        staged, *times = group.split("@")
        topic = topics.get(staged)
        if topic is None:
            raise AuditError(f"{data}/{GROUP}={group} holds a topic that was not planned; nothing was published")
        ending = layout.ending(name)
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
                staged=f"{data}/{GROUP}={group}/{name}",
                final="/".join([directory_name(topic, name_max_bytes), *labelled, final]),
                topic=topic,
                parts=tuple(FilePart(row["partition"], row["first"], row["last"], row["records"]) for row in parts),
                size_bytes=parts[0]["size"],
            )
        )
    return tuple(found)
