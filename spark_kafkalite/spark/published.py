"""``read_published``: reads a load's destination by its manifests, not by listing directories.

A plain listing shows a run's files one by one while they move to their places. This reads exactly the files of complete
runs: all files of a run, or none. It compares the files with the manifests. A file that is gone, or does not have the
length that was published, is an error that names the run, never a smaller result.

If there are very many files, Spark lists the directories, which takes a tenth of the time. This is done only if the
directories hold exactly the files that the manifests name.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Literal

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.spark.jobs.destination import publish
from spark_kafkalite.spark.jobs.destination.files import Files, FilesError, files_for
from spark_kafkalite.spark.jobs.destination.manifest import COMPACT, STAGING, Manifest, ManifestError, PublishedFile
from spark_kafkalite.spark.jobs.destination.manifest_checkpoint import published_files
from spark_kafkalite.spark.jobs.destination.names import file_format_of
from spark_kafkalite.spark.jobs.formats.data_files import SCHEME_AND_HOST, path_below, path_of_uri, read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger("spark_kafkalite.spark")
# Problems that an error names; it counts the others.
_NAMED_AT_MOST: Final = 5
# Files of one format that are given to Spark one by one: it asks for each by itself.
_NAMED_FILES: Final = 1_000
# For as many paths Spark would start 10,000 tasks.
_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_TASKS_PER_CORE: Final = 4
# Of org.apache.hadoop.fs.FileStatus.toString.
_LISTED_FILE: Final = re.compile(r"\{path=(.*?); isDirectory=false; length=(\d+);")

_Published = list[tuple[Manifest, PublishedFile]]
# The format of files, and what was made of values.
_Form = tuple[str, str, str | None]


def read_published(
    spark: SparkSession,
    path: str,
    *,
    on_missing: Literal["fail", "warn"] = "fail",
    check_counts: bool = False,
) -> DataFrame:
    """Return the records of every complete load run under ``path``, with the columns of the source.

    Values have the type that the runs gave them. Text files have only the value. Avro needs spark-avro on the class
    path.

    A run that has committed but not yet moved all its files is left out, until that or the next run has moved them.
    From the commit of a compaction on, its files are read, and those that it replaced are not. With
    ``on_missing="warn"`` files that were deleted from the destination are skipped with a warning. With
    ``check_counts=True`` a Spark job also counts the records of every file before this returns, and compares them with
    the manifests.

    A (topic, partition, offset) may occur twice if its topic was deleted and created again between runs, and loaded
    with ``--on-recreated-topic earliest``. This renames files that an earlier version left under names that Spark does
    not read, as the next run of the job would.

    Raises FileNotFoundError when nothing has been published there, ManifestError, naming run and file, when the
    manifests and the files contradict each other or runs gave values different types, and ValueError for another
    ``on_missing``, ConfigError for Spark Connect.
    """
    if on_missing not in ("fail", "warn"):
        raise ValueError(f"on_missing={on_missing!r}: must be fail or warn")
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "read_published needs classic Spark: it lists files through the session's JVM, which a client of Spark "
            "Connect does not have. Run it on the server's host"
        )
    files = files_for(spark, path)
    runs, published = _published(files)
    if not published:
        raise FileNotFoundError(f"{files.root}: no load run has published records here; see _kafkalite/manifests")
    _show_hidden_files(files, published)
    _check_one_form(files, published)
    _check_sums(files, runs, on_missing)
    frames = _read_unless_it_fails(spark, files, published)
    # The listings behind the frames have the sum of all lengths; asking for each would take a call for every file.
    while frames is None or sum(map(_listed_bytes, frames)) != _published_bytes(files, published):
        before, (runs, published) = published, _published(files)
        if published == before:
            published = _present(files, published, on_missing)
            if not published:
                raise FileNotFoundError(f"{files.root}: none of the files that the manifests name is left")
            frames = _read(spark, files, published)
            break
        # Files were replaced since the manifests were read.
        frames = _read_unless_it_fails(spark, files, published)
    if check_counts:
        _check_counts(files, frames, published)
    from pyspark.sql import DataFrame

    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), map(_as_source, frames))


def _published(files: Files) -> tuple[list[Manifest], _Published]:
    """Return the runs that are complete, and their files with the current paths.

    A load with files still to be moved is left out. A committed compaction counts, because files that it replaces may
    be gone already. Each of its files is read from its current path.
    """
    manifests = publish.manifests(files)
    # After the manifests: of a run that ends in between nothing is staged any more.
    unfinished = frozenset(files.names(STAGING))
    runs = [each for each in manifests if each.run not in unfinished or each.kind == COMPACT]
    return runs, [
        (manifest, replace(file, final=file.staged))
        if manifest.run in unfinished and files.exists(file.staged)
        else (manifest, file)
        for manifest, file in published_files(runs)
    ]


def _show_hidden_files(files: Files, published: _Published) -> None:
    from py4j.protocol import Py4JJavaError

    hidden = [file for _, file in published if file.hidden_final is not None]
    try:
        publish.show_hidden_files(files, hidden)
    except (OSError, FilesError, Py4JJavaError) as error:
        raise ManifestError(
            f"{files.root}: an older version gave files of topics such as {hidden[0].topic} names that Spark does not "
            "read, and they cannot be renamed from here. Run 'kafkalite jobs run hadoop_load --recover --topic "
            f"{hidden[0].topic} --destination {files.root}' once, as a user with the right to write to it"
        ) from error


def _check_sums(files: Files, runs: Iterable[Manifest], on_missing: Literal["fail", "warn"]) -> None:
    """Raise ManifestError, or warn, where a manifest's count of records is not that of the files it names."""
    wrong = [
        f"{manifest.path} (run {manifest.run}) counts {manifest.records} records, but its files {records}"
        for manifest in runs
        if (records := sum(file.records for file in manifest.files)) != manifest.records
    ]
    if wrong:
        _complain(files, wrong, "restore the manifest, or what was taken from it", on_missing)


def _read(spark: SparkSession, files: Files, published: _Published) -> list[DataFrame]:
    """Return the files' records, a frame for each format."""
    by_form: dict[_Form, list[PublishedFile]] = {}
    for manifest, file in published:
        form = (file_format_of(file.final), *_value_form(manifest, file))
        by_form.setdefault(form, []).append(file)
    with _few_listing_tasks(spark):
        return [_read_form(spark, files, form, those) for form, those in sorted(by_form.items(), key=_first)]


def _first(item: tuple[_Form, object]) -> str:
    return str(item[0])


def _read_form(spark: SparkSession, files: Files, form: _Form, those: list[PublishedFile]) -> DataFrame:
    """Return the records of files of one format, which Spark finds by their directories if it finds just these."""
    name, value, schema = form
    directories = {file.final.rpartition("/")[0] for file in those}
    if len(those) > _NAMED_FILES and 2 * len(directories) < len(those):
        paths = [f"{files.root}/{each}" for each in sorted(directories)]
        frame = read_files(spark, name, paths, value, schema)
        if _listed_files(frame) == {path_below(files, file.final): file.size_bytes for file in those}:
            return frame
    return read_files(spark, name, [f"{files.root}/{file.final}" for file in those], value, schema)


@contextlib.contextmanager
def _few_listing_tasks(spark: SparkSession) -> Iterator[None]:
    """Have Spark list files in as many tasks as are worth their start."""
    before = spark.conf.get(_LISTING_TASKS)
    assert before is not None
    spark.conf.set(_LISTING_TASKS, _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    try:
        yield
    finally:
        spark.conf.set(_LISTING_TASKS, before)


def _value_form(manifest: Manifest, file: PublishedFile) -> tuple[str, str | None]:
    layout = manifest.layout_of(file.topic)
    return layout.get("value", "bytes"), layout.get("value_schema")


def _check_one_form(files: Files, published: _Published) -> None:
    """Raise ManifestError where the values of one run have other types than those of another."""
    forms: dict[tuple[str, str | None], Manifest] = {}
    for manifest, file in published:
        forms.setdefault(_value_form(manifest, file), manifest)
    if len(forms) > 1:
        named = "; ".join(
            f"{manifest.path}: --value {value}{'' if schema is None else f' --value-schema {schema!r}'}"
            for (value, schema), manifest in list(forms.items())[:_NAMED_AT_MOST]
        )
        raise ManifestError(
            f"{files.root}: runs put values of different types there, which are no one frame: {named}; read their "
            "files apart, and load each into a destination of its own"
        )


def _as_source(frame: DataFrame) -> DataFrame:
    """Return the frame with the source's columns; a line of text is a value."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    return frame.select(F.col("value").cast("binary")) if frame.columns == ["value"] else frame


def _read_unless_it_fails(spark: SparkSession, files: Files, published: _Published) -> list[DataFrame] | None:
    """Return the files' records; None if Spark fails, as for a file that is gone or damaged."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return _read(spark, files, published)
    except (PySparkException, Py4JJavaError):
        return None


def _listed_files(frame: DataFrame) -> dict[str, int]:
    """Return the length of every file that Spark has found for a frame, by its path without scheme and host."""
    # One text: a call for each would take seconds.
    listed = frame._jdf.queryExecution().analyzed().relation().location().allFiles().mkString("\n")
    return {re.sub(SCHEME_AND_HOST, "", path): int(size) for path, size in _LISTED_FILE.findall(listed)}


def _listed_bytes(frame: DataFrame) -> int:
    return int(str(frame._jdf.queryExecution().analyzed().relation().location().sizeInBytes()))


def _published_bytes(files: Files, published: _Published) -> int:
    """Return the sum of the files' lengths by their manifests. Format 1 has no lengths: then ask the file system."""
    return sum(
        (files.size_bytes(file.final) or -1) if file.size_bytes is None else file.size_bytes for _, file in published
    )


def _present(files: Files, published: _Published, on_missing: Literal["fail", "warn"]) -> _Published:
    """Return the files that exist as they were published. Raises ManifestError for the others, or warns."""
    present: _Published = []
    missing: list[str] = []
    damaged: list[str] = []
    for manifest, file in published:
        size = files.size_bytes(file.final)
        named = f"{file.final} with {file.records} records, published by {manifest.path} (run {manifest.run})"
        if size is None:
            missing.append(named)
        elif size == 0 or file.size_bytes not in (None, size):
            was = "" if file.size_bytes is None else f" instead of {file.size_bytes}"
            damaged.append(f"{named}, has {size} bytes{was}")
        else:
            present.append((manifest, file))
    if damaged:
        _complain(files, damaged, "they are not what was published: restore them", "fail")
    if missing:
        advice = 'is not there: restore it, or read with on_missing="warn" what is left'
        _complain(files, missing, advice, on_missing)
    return present


def _check_counts(files: Files, frames: Iterable[DataFrame], published: _Published) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    by_path = (frame.groupBy(F.col("_metadata.file_path").alias("path")).count() for frame in frames)
    rows = [row for frame in by_path for row in frame.collect()]
    counted = {path_of_uri(row["path"]): row["count"] for row in rows}
    wrong = [
        f"{file.final} has {found} records, and {file.records} were published by {manifest.path} (run {manifest.run})"
        for manifest, file in published
        if (found := counted.get(path_below(files, file.final), 0)) != file.records
    ]
    if wrong:
        _complain(files, wrong, "they are not what was published: restore them", "fail")


def _complain(files: Files, wrong: list[str], advice: str, policy: Literal["fail", "warn"]) -> None:
    more = f", and {len(wrong) - _NAMED_AT_MOST} more" if len(wrong) > _NAMED_AT_MOST else ""
    text = f"{files.root}: {'; '.join(wrong[:_NAMED_AT_MOST])}{more}: {advice}"
    if policy == "fail":
        raise ManifestError(text)
    _LOG.warning("%s; going on without", text)
