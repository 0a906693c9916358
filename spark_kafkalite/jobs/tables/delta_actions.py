"""The actions of a commit to a table: what the manifests of one or several runs become in ``_delta_log``. Pure.

A commit is a text of JSON objects, one a line. The loader's commits have, in this order:

- ``commitInfo``: the program that wrote it, and the figures of the run under ``kafkalite``;
- ``protocol``, in the first commit: version 1 for readers and 2 for writers, the lowest that has append-only tables;
- ``metaData``, in the first commit and where the schema grew;
- ``txn``: the table's application id and the number of the newest manifest in the commit. It makes the commit
  repeatable: a manifest whose number is not above the table's is in the table;
- ``add``, for each file.

Paths are relative to the table's directory and percent-encoded. Source: the protocol of Delta Lake, PROTOCOL.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote

from spark_kafkalite.jobs.load.completeness import LATE_DIRECTORY
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_schema import Schema
from spark_kafkalite.manifests.manifest import Manifest, PublishedFile
from spark_kafkalite.version import VERSION

ENGINE: Final = "spark-kafkalite"
READER_VERSION: Final = 1
WRITER_VERSION: Final = 2
CHECKPOINT_INTERVAL: Final = 10
# Readers open a table slowly when many commits lie behind its last checkpoint.
CONFIGURATION: Final[Mapping[str, str]] = {
    "delta.appendOnly": "true",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
}
# Allowed in the path of a URI, besides letters and digits.
_UNQUOTED: Final = "/=:@!$&'()*+,;~-._"

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file as a commit adds it. Timestamps are the smallest and largest of its records in us, None if unknown."""

    file: PublishedFile
    size_bytes: int
    written_ms: int
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None


def partition_values(file: PublishedFile) -> dict[str, str]:
    """Return a file's day and hour as a table has them, by column, from the directories of its path.

    Raises TableError for a directory that is neither. Jobs make such ones for times after the year 9999 only, which a
    ``date`` of Python cannot be: Spark writes the day as ``+10000-01-01``.
    """
    found: dict[str, str] = {}
    for directory in file.final.split("/")[1:-1]:
        if directory == LATE_DIRECTORY:
            continue
        name, _, value = directory.partition("=")
        try:
            if name == "day" and not found:
                found[name] = date.fromisoformat(value).isoformat()
                continue
            if name == "hour" and list(found) == ["day"] and 0 <= int(value) <= 23:
                found[name] = str(int(value))
                continue
        except ValueError:
            pass
        raise TableError(
            f"{file.final}: {directory} is not the directory of a day or an hour, which tables need, and their last "
            "day is 9999-12-31; load the topic without --table delta, into another destination if it is a table here"
        )
    return found


def protocol() -> Action:
    """Return the action that states what the table asks of its readers and writers."""
    return {"protocol": {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}}


def metadata(
    table_id: str,
    schema: Schema,
    partition_columns: Sequence[str],
    at_ms: int,
    configuration: Mapping[str, str] = CONFIGURATION,
    others: Mapping[str, Any] | None = None,
) -> Action:
    """Return the action with a table's schema. ``others`` are fields of the earlier one, such as its name."""
    return {
        "metaData": {
            "createdTime": at_ms,
            **(others or {}),
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema, separators=(",", ":")),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration),
        }
    }


def transaction(app_id: str, number: int, at_ms: int) -> Action:
    """Return the action that records up to which manifest the table is."""
    # Without lastUpdated a checkpoint of Spark would drop it where transactions expire.
    return {"txn": {"appId": app_id, "version": number, "lastUpdated": at_ms}}


def add(each: TableFile) -> Action:
    """Return the action that adds a file, with its statistics."""
    return {
        "add": {
            "path": quote(each.file.final.partition("/")[2], safe=_UNQUOTED),
            "partitionValues": partition_values(each.file),
            "size": each.size_bytes,
            "modificationTime": each.written_ms,
            "dataChange": True,
            "stats": json.dumps(_statistics(each), separators=(",", ":")),
        }
    }


def _statistics(each: TableFile) -> dict[str, Any]:
    parts = each.file.parts
    least: dict[str, Any] = {
        "partition": min(part.partition for part in parts),
        "offset": min(part.first_offset for part in parts),
    }
    most: dict[str, Any] = {
        "partition": max(part.partition for part in parts),
        "offset": max(part.last_offset for part in parts),
    }
    times = [_time_text(us) for us in (each.min_timestamp_us, each.max_timestamp_us)]
    if None not in times:
        least["timestamp"], most["timestamp"] = times
    return {
        "numRecords": each.file.records,
        "minValues": least,
        "maxValues": most,
        "nullCount": dict.fromkeys(least, 0),
    }


def _time_text(us: int | None) -> str | None:
    """Return a time in ISO 8601, None for one that is unknown or outside of the calendar."""
    if us is None:
        return None
    try:
        found = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    except (OverflowError, ValueError, OSError):
        return None
    return found.isoformat(timespec="microseconds").replace("+00:00", "Z")


def commit_info(
    topic: str, manifests: Sequence[Manifest], files: Sequence[TableFile], partition_columns: Sequence[str], at_ms: int
) -> Action:
    """Return the action that describes a commit: its runs, and their figures of this topic."""
    last = manifests[-1]
    records = sum(each.file.records for each in files)
    numbers = str(last.number) if len(manifests) == 1 else f"{manifests[0].number} to {last.number}"
    return {
        "commitInfo": {
            "timestamp": at_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(list(partition_columns))},
            "isBlindAppend": True,
            "engineInfo": f"{ENGINE}/{VERSION}",
            "operationMetrics": {
                "numFiles": str(len(files)),
                "numOutputRows": str(records),
                "numOutputBytes": str(sum(each.size_bytes for each in files)),
            },
            # Spark's DESCRIBE HISTORY shows this one only.
            "userMetadata": f"kafkalite manifest {numbers}, run {last.run}: {records} records",
            "kafkalite": {
                "topic": topic,
                "records": records,
                "manifests": [_figures(topic, each) for each in manifests],
            },
        }
    }


def _figures(topic: str, manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest has of the topic. Of one that only a checkpoint of manifests has, offsets are not left."""
    loaded = manifest.topics.get(topic)
    return {
        "number": manifest.number,
        "run": manifest.run,
        "kind": manifest.kind,
        "created": manifest.created,
        "topic_id": None if loaded is None else loaded.topic_id,
        "records": sum(file.records for file in manifest.files if file.topic == topic),
        "next_offsets": {} if loaded is None else {str(each): at for each, at in sorted(loaded.next_offsets.items())},
        "ranges": [each.document() for each in manifest.ranges if each.topic == topic],
        "lost": [each.document() for each in manifest.lost if each.topic == topic],
        "recreated": [each.document() for each in manifest.recreated if each.topic == topic],
    }


def commit_text(actions: Iterable[Action]) -> str:
    """Return the text of a commit."""
    return "".join(f"{json.dumps(each, separators=(',', ':'))}\n" for each in actions)
