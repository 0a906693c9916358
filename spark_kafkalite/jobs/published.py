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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Literal

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs import published_scope
from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.formats.data_files import SCHEME_AND_HOST, path_below, path_of_uri, read_files
from spark_kafkalite.jobs.formats.decoding import file_schema, value_column_type
from spark_kafkalite.jobs.formats.schema_merge import SchemaConflict, is_equal
from spark_kafkalite.jobs.load.layout_changes import merged_type, shown_form, value_form, written_layouts
from spark_kafkalite.jobs.published_scope import Days, Published, PublishedScope, labels_of
from spark_kafkalite.manifests.files import Files, FilesError, files_for
from spark_kafkalite.manifests.manifest import COMPACT, STAGING, Manifest, ManifestError, PublishedFile
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.manifests.names import file_format_of, place_problem
from spark_kafkalite.spark.conditions import listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

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

# The format of files, the names of their directories of time, and the day and hour themselves if no path has them.
_Kind = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The files to read, each with the path where it lies now.

    ``moving`` has the day and hour, by this path, of files that a compaction has not moved yet.
    """

    published: Published
    moving: Mapping[str, tuple[tuple[str, str], ...]]


def read_published(
    spark: SparkSession,
    path: str,
    *,
    topic: str | None = None,
    days: Days | None = None,
    since_run: str | int | None = None,
    on_missing: Literal["fail", "warn"] = "fail",
    check_counts: bool = False,
) -> DataFrame:
    """Return the records of every complete load run under ``path``, with the columns of the source, ``day``, ``hour``.

    ``topic`` takes the records of one topic. ``days`` takes those in the directories of a day or of several, each a
    date or a text such as 2026-01-31. ``since_run`` takes those of later runs than the one with this name or manifest
    number. If nothing is left, the DataFrame is empty.

    ``day`` (date) and ``hour`` (int) are those of a record's directory, null where it has none. A filter by them does
    not open the files of other directories.

    Values have the type that the runs gave them. A field that a later run has added is null in the files of earlier
    runs. Text files have only the value. Avro needs spark-avro on the class path.

    A run that has committed but not yet moved all its files is left out, until that or the next run has moved them.
    From the commit of a compaction on, its files are read, and those that it replaced are not. With
    ``on_missing="warn"`` files that were deleted from the destination are skipped with a warning. With
    ``check_counts=True`` a Spark job also counts the records of every file before this returns, and compares them with
    the manifests.

    A (topic, partition, offset) may occur twice if its topic was deleted and created again between runs, and loaded
    with ``--on-recreated-topic earliest``. This renames files that an earlier version left under names that Spark does
    not read, as the next run of the job would.

    Raises FileNotFoundError when nothing has been published there. Raises ManifestError, naming run and file, when the
    manifests and the files contradict each other, when runs gave values of a topic different types, and when there is
    no run ``since_run`` or a compaction has merged over it. Raises ValueError for another ``on_missing``, for a
    ``path`` that Spark takes for a pattern, for ``days`` of files without a day, and, naming the topics, if their
    values have different types and ``topic`` is not given. Raises ConfigError for Spark Connect.
    """
    if on_missing not in ("fail", "warn"):
        raise ValueError(f"on_missing={on_missing!r}: must be fail or warn")
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "read_published needs classic Spark: it lists files through the session's JVM, which a client of Spark "
            "Connect does not have. Run it on the server's host"
        )
    scope = PublishedScope.of(topic, days, since_run)
    files = files_for(spark, path)
    if (problem := place_problem(files.root)) is not None:
        raise ValueError(problem)
    runs, published, unfinished = _published(files)
    if not published:
        raise FileNotFoundError(f"{files.root}: no load run has published records here; see _kafkalite/manifests")
    _show_hidden_files(files, published)
    value_type = _value_type(files, published_scope.of_topic(files.root, published, topic))
    _check_sums(files, runs, on_missing)
    chosen = _located(files, _in_scope(files, runs, published, scope), unfinished)
    if not chosen.published:
        return _as_source(spark.createDataFrame([], file_schema(value_type)), ((), ()))
    frames = _read_unless_it_fails(spark, files, chosen, value_type)
    # The listings behind the frames have the sum of all lengths; asking for each would take a call for every file.
    while frames is None or sum(map(_listed_bytes, frames.values())) != _published_bytes(files, chosen.published):
        before, (runs, published, unfinished) = chosen, _published(files)
        chosen = _located(files, _in_scope(files, runs, published, scope), unfinished)
        if chosen == before:
            chosen = replace(chosen, published=_present(files, chosen.published, on_missing))
            if not chosen.published:
                raise FileNotFoundError(f"{files.root}: none of the files that the manifests name is left")
            frames = _read(spark, files, chosen, value_type)
            break
        # Files were replaced since the manifests were read.
        frames = _read_unless_it_fails(spark, files, chosen, value_type)
    if check_counts:
        _check_counts(files, frames.values(), chosen.published)
    from pyspark.sql import DataFrame

    return reduce(
        partial(DataFrame.unionByName, allowMissingColumns=True),
        (_as_source(frame, labels) for (_, *labels), frame in frames.items()),
    )


def _in_scope(files: Files, runs: list[Manifest], published: Published, scope: PublishedScope) -> Published:
    chosen = published_scope.of_topic(files.root, published, scope.topic)
    chosen = published_scope.of_days(files.root, chosen, scope.days)
    if scope.since_run is None:
        return chosen
    number = published_scope.number_of_run(files.root, scope.since_run, runs)
    folded: frozenset[int] = frozenset()
    if any(manifest.kind == COMPACT and manifest.number > number for manifest in runs):
        # What a compaction has replaced is in its own manifest only.
        runs, folded = publish.whole_manifests(files)
    return published_scope.since(files.root, chosen, number, runs, folded)


def _value_type(files: Files, published: Published) -> DataType:
    """Return the type of all values.

    Raises ManifestError if those of one topic have no common type, and ValueError if topics have different types.
    """
    types: dict[str, DataType] = {}
    shown: dict[str, str] = {}
    for topic, written in written_layouts(published).items():
        try:
            types[topic] = merged_type(written.forms, lambda form: value_column_type(*form))
        except SchemaConflict as error:
            raise _contradiction(files, published, topic, error) from error
        shown[topic] = f"{topic} ({shown_form(written.forms[-1])})"
    first = next(iter(types.values()))
    if not all(is_equal(first, each) for each in types.values()):
        raise ValueError(
            f"{files.root}: topics have values of different types, which are no one frame: "
            f"{listed(sorted(shown.values()))}; give topic= and read each apart"
        )
    return first


def _contradiction(files: Files, published: Published, topic: str, error: SchemaConflict) -> ManifestError:
    forms: dict[tuple[str, str | None], Manifest] = {}
    for manifest, file in published:
        if file.topic == topic:
            forms.setdefault(value_form(manifest.layout_of(topic)), manifest)
    named = "; ".join(f"{manifest.path}: {shown_form(form)}" for form, manifest in forms.items())
    return ManifestError(
        f"{files.root}: runs put values of different types into files of topic {topic}, which are no one frame "
        f"({error}): {named}; read their files apart, and load each into a destination of its own"
    )


def _published(files: Files) -> tuple[list[Manifest], Published, frozenset[str]]:
    """Return the runs that are complete, their files, and the names of runs with files still to be moved.

    A load with files still to be moved is left out. A committed compaction counts, because files that it replaces may
    be gone already.
    """
    manifests = publish.manifests(files)
    # After the manifests: of a run that ends in between nothing is staged any more.
    unfinished = frozenset(files.names(STAGING))
    runs = [each for each in manifests if each.run not in unfinished or each.kind == COMPACT]
    return runs, published_files(runs), unfinished


def _located(files: Files, published: Published, unfinished: frozenset[str]) -> _Chosen:
    """Return the files with the paths where they lie now: those of an unfinished compaction may be staged still."""
    found: Published = []
    moving = {}
    for manifest, file in published:
        if manifest.run in unfinished and files.exists(file.staged):
            moving[file.staged] = labels_of(file)
            found.append((manifest, replace(file, final=file.staged)))
        else:
            found.append((manifest, file))
    return _Chosen(found, moving)


def _show_hidden_files(files: Files, published: Published) -> None:
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


def _read(spark: SparkSession, files: Files, chosen: _Chosen, value_type: DataType) -> dict[_Kind, DataFrame]:
    """Return the files' records, a frame for each kind of files."""
    by_kind: dict[_Kind, list[PublishedFile]] = {}
    for _, file in chosen.published:
        labels = chosen.moving.get(file.final)
        names = tuple(name for name, _ in (labels_of(file) if labels is None else labels))
        known = () if labels is None else tuple(value for _, value in labels)
        by_kind.setdefault((file_format_of(file.final), names, known), []).append(file)
    with _few_listing_tasks(spark):
        return {kind: _read_kind(spark, files, kind[0], those, value_type) for kind, those in sorted(by_kind.items())}


def _read_kind(
    spark: SparkSession, files: Files, name: str, those: list[PublishedFile], value_type: DataType
) -> DataFrame:
    """Return the records of files of one format, which Spark finds by their directories if it finds just these."""
    directories = {file.final.rpartition("/")[0] for file in those}
    if len(those) > _NAMED_FILES and 2 * len(directories) < len(those):
        frame = _read_directories(spark, files, name, directories, value_type)
        if frame is not None and _listed_files(frame) == {
            path_below(files, file.final): file.size_bytes for file in those
        }:
            return frame
    return read_files(spark, name, [f"{files.root}/{file.final}" for file in those], value_type)


def _read_directories(
    spark: SparkSession, files: Files, name: str, directories: Iterable[str], value_type: DataType
) -> DataFrame | None:
    """Return the records of all files in directories; None if Spark cannot read them together.

    It refuses a directory that holds files and directories of hours, which two layouts of a topic leave.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return read_files(spark, name, [f"{files.root}/{each}" for each in sorted(directories)], value_type)
    except (PySparkException, Py4JJavaError):
        return None


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


def _as_source(frame: DataFrame, labels: Sequence[tuple[str, ...]]) -> DataFrame:
    """Return the frame with the source's columns, the day and the hour; a line of text is a value.

    ``labels`` are the names of the directories of time, and their values if these are known.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    columns = [F.col(name) for name in frame.columns]
    if frame.columns == ["value"]:
        columns = [F.col("value").cast("binary").alias("value")]
    return frame.select(*columns, _label("day", "date", *labels), _label("hour", "int", *labels))


def _label(name: str, kind: str, names: tuple[str, ...], known: tuple[str, ...]) -> Column:
    """Return the day or hour of a file. Spark computes filters by it once for each file, and does not open others."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    if name not in names:
        label = F.lit(None)
    elif known:
        label = F.lit(known[names.index(name)])
    else:
        # The last one in the path: the destination itself may lie in a directory of a day.
        after = F.substring_index("_metadata.file_path", f"/{name}=", -1)
        label = F.substring_index(after, "/", 1)
    return label.try_cast(kind).alias(name)


def _read_unless_it_fails(
    spark: SparkSession, files: Files, chosen: _Chosen, value_type: DataType
) -> dict[_Kind, DataFrame] | None:
    """Return the files' records; None if Spark fails, as for a file that is gone or damaged."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return _read(spark, files, chosen, value_type)
    except (PySparkException, Py4JJavaError):
        return None


def _listed_files(frame: DataFrame) -> dict[str, int]:
    """Return the length of every file that Spark has found for a frame, by its path without scheme and host."""
    # One text: a call for each would take seconds.
    listed = frame._jdf.queryExecution().analyzed().relation().location().allFiles().mkString("\n")
    return {re.sub(SCHEME_AND_HOST, "", path): int(size) for path, size in _LISTED_FILE.findall(listed)}


def _listed_bytes(frame: DataFrame) -> int:
    return int(str(frame._jdf.queryExecution().analyzed().relation().location().sizeInBytes()))


def _published_bytes(files: Files, published: Published) -> int:
    """Return the sum of the files' lengths by their manifests. Format 1 has no lengths: then ask the file system."""
    return sum(
        (files.size_bytes(file.final) or -1) if file.size_bytes is None else file.size_bytes for _, file in published
    )


def _present(files: Files, published: Published, on_missing: Literal["fail", "warn"]) -> Published:
    """Return the files that exist as they were published. Raises ManifestError for the others, or warns."""
    present: Published = []
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


def _check_counts(files: Files, frames: Iterable[DataFrame], published: Published) -> None:
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
