"""Merges published files: reads them with Spark, stages larger ones, compares both, and publishes the exchange.

A compaction is a run like a load, with a manifest of its own (kind ``compact``) that names its files and those that
they replace. The appearance of the manifest is the commit. Every later run can repeat the next steps
(``publish.finish``): first the replaced files move to ``_kafkalite/replaced/RUN``, then the new ones get their names.
So a program that lists directories may miss rows during the swap, but never sees a row twice. ``read_published`` reads
the new files from their current paths as soon as the manifest exists. :func:`drop_replaced` deletes the replaced files
some time later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from spark_kafkalite.jobs.compaction.merge_planning import Merge, PartFacts, Published, check_merged, merges_text
from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.formats.data_files import SCHEME_AND_HOST, path_below, path_of_uri, read_files
from spark_kafkalite.jobs.formats.file_layout import published_ending
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.jobs.program.faults import fault_point
from spark_kafkalite.jobs.program.stopping import cancelled_with
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import (
    COMPACT,
    HOME,
    REPLACED,
    FilePart,
    Manifest,
    PublishedFile,
    staging_path,
)
from spark_kafkalite.manifests.names import shared_file_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Columns beside those of the records; the first makes directories.
_MERGE: Final = "kafkalite_merge"
_URI: Final = "kafkalite_uri"
_FACTS: Final = ("first", "last", "records", "offsets", "content")


def compact(spark: SparkSession, files: Files, merges: Sequence[Merge], previous: Manifest) -> Manifest:
    """Merge files of one format and layout, publish, and return the manifest.

    Raises AuditError when the merged files do not hold what the others do, and ManifestError as ``publish.commit``.
    """
    run = publish.new_run()
    with publish.dropped_on_failure(files, run), cancelled_with(spark):
        files.write_new(f"{staging_path(run)}/plan.json", merges_text(merges))
        made = stage(spark, files, run, merges)
    return commit(files, run, merges, made, previous)


def commit(
    files: Files, run: str, merges: Iterable[Merge], made: tuple[PublishedFile, ...], previous: Manifest
) -> Manifest:
    """Publish merged files in place of those that they were made of."""
    merges = tuple(merges)
    manifest = Manifest(
        number=previous.number + 1,
        run=run,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files=made,
        topics=previous.topics,
        records=sum(file.records for file in made),
        records_without_timestamp=0,
        replaced=tuple(file.final for merge in merges for file in merge.files),
        layout=dict(merges[0].layout),
        kind=COMPACT,
    )
    publish.publish_manifest(files, manifest)
    return manifest


def stage(spark: SparkSession, files: Files, run: str, merges: Sequence[Merge]) -> tuple[PublishedFile, ...]:
    """Write the merged files under the run's staging directory, and return them with the places they are to have.

    Rows are sorted by partition and offset. Raises AuditError as :func:`compact` does.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses
    from pyspark.sql.types import StringType, StructField, StructType

    data, file_format = f"{staging_path(run)}/data", merges[0].file_format
    merge_of = {path_below(files, file.final): number for number, merge in enumerate(merges) for file in merge.files}
    frame = read_files(spark, file_format, (f"{files.root}/{file.final}" for merge in merges for file in merge.files))
    columns = frame.columns
    known = [(re.sub(SCHEME_AND_HOST, "", uri), merge_of[path_of_uri(uri)]) for uri in frame.inputFiles()]
    source = (
        frame.withColumn(_URI, F.regexp_replace("_metadata.file_path", SCHEME_AND_HOST, ""))
        .join(F.broadcast(spark.createDataFrame(known, f"{_URI} string, {_MERGE} int")), _URI)
        .drop(_URI)
    )
    before = _facts(source, columns, ())
    writer = (
        source.repartition(len(merges), _MERGE)
        .sortWithinPartitions(_MERGE, "partition", "offset")
        .write.partitionBy(_MERGE)
        .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
        # One file for each merge, whatever the session says.
        .option("maxRecordsPerFile", 0)
    )
    codec = dict(merges[0].layout).get("codec")
    if codec is not None:
        writer = writer.option("compression", codec)
    writer.format(file_format).save(f"{files.root}/{data}")
    fault_point("compaction")
    # As strings: what Spark makes of a directory's name is a matter of its settings.
    written = spark.read.schema(StructType([*frame.schema.fields, StructField(_MERGE, StringType())]))
    after = _facts(written.format(file_format).load(f"{files.root}/{data}"), columns, ("file", "size"))
    return _checked(files, run, merges, before, after)


def _facts(frame: DataFrame, columns: Sequence[str], more: Sequence[str]) -> list[dict[str, Any]]:
    """Return what each merge has of each partition, from one file or from many."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    found = {
        "first": F.min("offset"),
        "last": F.max("offset"),
        "records": F.count("offset"),
        "offsets": F.count_distinct("offset"),
        "content": F.bit_xor(F.xxhash64(*sorted(columns))),
    }
    if more:
        found |= {"file": F.min("_metadata.file_name"), "size": F.max("_metadata.file_size")}
    rows = frame.groupBy(F.col(_MERGE).cast("int").alias(_MERGE), "partition")
    return [row.asDict() for row in rows.agg(*(column.alias(name) for name, column in found.items())).collect()]


def _checked(
    files: Files, run: str, merges: Sequence[Merge], before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> tuple[PublishedFile, ...]:
    found = []
    for number, merge in enumerate(merges):
        rows = sorted((row for row in after if row[_MERGE] == number), key=lambda row: row["partition"])
        read = _by_partition(row for row in before if row[_MERGE] == number)
        made = _by_partition(rows)
        check_merged(merge, read, made)
        names = {row["file"] for row in rows}
        if len(names) != 1:
            raise AuditError(f"{merge.directory}: {len(names)} files were made instead of one; nothing was published")
        name = rows[0]["file"]
        ending = published_ending(name, merge.file_format)
        final = shared_file_name(
            merge.topic, "compact", run, number + 1, files.name_max_bytes, ending, merge.recreations
        )
        found.append(
            PublishedFile(
                staged=f"{staging_path(run)}/data/{_MERGE}={number}/{name}",
                final=f"{merge.directory}/{final}",
                topic=merge.topic,
                parts=tuple(
                    FilePart(partition, each.first, each.last, each.records) for partition, each in made.items()
                ),
                size_bytes=rows[0]["size"],
            )
        )
    return tuple(found)


def _by_partition(rows: Iterable[Mapping[str, Any]]) -> dict[int, PartFacts]:
    return {row["partition"]: PartFacts(*(row[name] for name in _FACTS)) for row in rows}


def with_sizes(files: Files, published: Published) -> Published:
    """Return the files with the sizes that manifests of format 1 do not have."""
    return [
        (manifest, file if file.size_bytes is not None else replace(file, size_bytes=files.size_bytes(file.final)))
        for manifest, file in published
    ]


def drop_replaced(files: Files, keep_ms: int) -> tuple[str, ...]:
    """Delete what runs have replaced more than ``keep_ms`` ago, by the file system's clock; return those runs."""
    runs = files.names(REPLACED)
    if not runs:
        return ()
    now_ms = _clock_ms(files)
    dropped = []
    for run in runs:
        # A directory changes when the first file of a topic comes into it. Nobody writes there later.
        replaced_ms = files.modified_ms(f"{REPLACED}/{run}")
        if replaced_ms is not None and now_ms - replaced_ms >= keep_ms:
            files.delete(f"{REPLACED}/{run}")
            dropped.append(run)
    return tuple(dropped)


def _clock_ms(files: Files) -> int:
    path = f"{HOME}/clock-{uuid4().hex}"
    files.write_new(path, "")
    try:
        return files.modified_ms(path) or 0
    finally:
        files.delete(path)
