"""What a table lacks of its manifests, and the commits that add it. Pure.

A manifest becomes one commit of its topic's table. Manifests that are older than the table (its mark's ``history``)
become commits together, up to some thousand files each, without the files that a compaction has replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.jobs.tables.delta_actions import partition_values
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_schema import PARTITION_TYPES, Schema, merged, table_schema
from spark_kafkalite.manifests.manifest import COMPACT, Manifest, PublishedFile
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.manifests.names import directory_name, file_format_of

# Some 400 bytes each in the commit.
_FILES_OF_A_COMMIT: Final = 5_000

# Returns the JSON of the Spark type of a load's columns, from `value` and `value_schema` of its layout.
ColumnsOf = Callable[[str, str | None], Schema]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit adds: manifests in the order of their numbers, and those of their files that it adds."""

    manifests: tuple[Manifest, ...]
    files: tuple[tuple[Manifest, PublishedFile], ...]

    @property
    def number(self) -> int:
        """The number that the table has afterwards."""
        return self.manifests[-1].number

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns of its first file."""
        return partition_columns_of_files([self.files[0][1]])


def table_directory(root: str, topic: str, name_max_bytes: int) -> str:
    """Return the directory of a topic's table. Raises TableError if readers cannot open a table there."""
    if "%" in root:
        raise TableError(
            f"{root} contains '%', and readers do not open a Delta table there: load into another directory"
        )
    name = directory_name(topic, name_max_bytes)
    if "%" in name:
        raise TableError(
            f"topic {topic} cannot be a Delta table: its directory is {name}, and readers do not open a table below a "
            "name with '%'; load it without --table delta (table = \"none\" in --topic-config)"
        )
    return name


def batches(topic: str, manifests: Iterable[Manifest], after: int, history: int) -> Iterator[Batch]:
    """Yield the commits of the topic's files in manifests with numbers above ``after``.

    ``manifests`` are those above ``after``, or more, in order; all of them where ``after`` is below ``history``. Raises
    TableError for a compaction after ``history``: its files would be in the table twice.
    """
    listed = [each for each in manifests if each.number > after or after < history]
    old = [each for each in listed if each.number <= history]
    waiting: list[tuple[Manifest, list[PublishedFile]]] = []
    for manifest, files in _by_manifest(topic, published_files(old)):
        if manifest.number <= after:
            continue
        if waiting and sum(len(each) for _, each in waiting) + len(files) > _FILES_OF_A_COMMIT:
            yield _batch(waiting)
            waiting = []
        waiting.append((manifest, files))
    if waiting:
        yield _batch(waiting)
    for manifest in listed:
        files = [file for file in manifest.files if file.topic == topic]
        if manifest.number <= max(after, history) or not files:
            continue
        if manifest.kind == COMPACT:
            raise TableError(
                f"{manifest.path} is a compaction of topic {topic}, which is a Delta table: a version without "
                "tables made it; make the table again with --table-resync"
            )
        yield _batch([(manifest, files)])


def _by_manifest(
    topic: str, published: Iterable[tuple[Manifest, PublishedFile]]
) -> list[tuple[Manifest, list[PublishedFile]]]:
    found: dict[int, tuple[Manifest, list[PublishedFile]]] = {}
    for manifest, file in published:
        if file.topic == topic:
            found.setdefault(manifest.number, (manifest, []))[1].append(file)
    return [found[number] for number in sorted(found)]


def _batch(parts: Sequence[tuple[Manifest, list[PublishedFile]]]) -> Batch:
    return Batch(
        tuple(manifest for manifest, _ in parts),
        tuple((manifest, file) for manifest, files in parts for file in files),
    )


def partition_columns_of(layout: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that a layout's directories make."""
    return {"none": (), "hour": tuple(PARTITION_TYPES)}.get(layout.get("partition_by", "day"), ("day",))


def schema_for(
    columns_of: ColumnsOf, topic: str, layout: Mapping[str, str], partition_columns: Sequence[str]
) -> Schema:
    """Return the schema of files of a layout. Raises TableError, naming the topic."""
    try:
        return table_schema(columns_of(layout.get("value", "bytes"), layout.get("value_schema")), partition_columns)
    except TableError as error:
        raise TableError(f"topic {topic}: {error}") from None


def grown_schema(topic: str, table: Schema | None, wanted: Schema) -> Schema:
    """Return the table's schema with the new columns of ``wanted``. Raises TableError, naming the topic."""
    if table is None:
        return wanted
    try:
        return merged(table, wanted)
    except TableError as error:
        raise TableError(f"topic {topic}: {error}") from None


def check_layout(
    topic: str, layout: Mapping[str, str], table_columns: Sequence[str] | None, by: str = "this run"
) -> None:
    """Raise TableError for files of a layout that the topic's table cannot have.

    ``table_columns`` are the partition columns of the table, None if it is still to be made.
    """
    file_format = layout.get("format", "parquet")
    if file_format != "parquet":
        raise TableError(
            f"topic {topic}: {by} has files of --format {file_format}, and a Delta table has Parquet only: load into "
            "another destination"
        )
    columns = partition_columns_of(layout)
    if table_columns is not None and tuple(table_columns) != columns:
        raise TableError(
            f"topic {topic}: its Delta table has the partition columns {_listed(table_columns)}, and {by} has "
            f"{_listed(columns)}: load with the --partition-by of the table, or into another destination"
        )


def check_batch(topic: str, batch: Batch, table_columns: Sequence[str]) -> None:
    """Raise TableError, naming the manifest, as :func:`check_files` does."""
    for manifest, file in batch.files:
        try:
            check_files(topic, [file], table_columns)
        except TableError as error:
            raise TableError(f"{manifest.path}: {error}") from None


def partition_columns_of_files(files: Sequence[PublishedFile]) -> tuple[str, ...]:
    """Return the partition columns that the directories of the first file make."""
    return tuple(partition_values(files[0]))


def check_files(topic: str, files: Iterable[PublishedFile], table_columns: Sequence[str]) -> None:
    """Raise TableError if a file is not Parquet, or not in directories of the table's columns."""
    for file in files:
        if file_format_of(file.final) != "parquet":
            raise TableError(
                f"topic {topic}: {file.final} is not Parquet, and a Delta table has nothing else: load into another "
                "destination"
            )
        columns = tuple(partition_values(file))
        if columns != tuple(table_columns):
            raise TableError(
                f"topic {topic}: {file.final} is in directories of {_listed(columns)}, and the table has the partition "
                f"columns {_listed(table_columns)}: load into another destination"
            )


def _listed(columns: Sequence[str]) -> str:
    return " and ".join(columns) or "none"
