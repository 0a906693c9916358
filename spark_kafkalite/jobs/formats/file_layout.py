"""The layout of a load's files: format, codec, directories, and the form of the records in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from spark_kafkalite.spark.schema_registry import Registry

PartitionBy = Literal["day", "hour", "none"]
FileFormat = Literal["parquet", "orc", "text"]
ValueForm = Literal["bytes", "json", "registry"]

# The codecs that Spark's writers have without additional libraries, each tested by writing and reading.
# Spark also names brotli and lzo for Parquet.
CODECS: Final[Mapping[FileFormat, tuple[str, ...]]] = {
    "parquet": ("none", "snappy", "gzip", "lz4_raw", "zstd"),
    "orc": ("none", "snappy", "zlib", "lz4", "zstd"),
    "text": ("none", "bzip2", "deflate", "gzip", "lz4", "snappy"),
}
RECORD_TIME: Final = "record"
_EVENT_TIME: Final = re.compile(r"record|header:[^\x00-\x1f]+|json:[^\x00-\x1f.'\[\]*]+(\.[^\x00-\x1f.'\[\]*]+)*")


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a destination's files: their format, the format's codec, and their directories.

    ``codec``: None leaves the choice to the writer. ``time_zone``: the zone of day and hour directories, an IANA name.
    ``file_bytes``: the target size of a file. ``value``: the form of a record's value in the files. It is the bytes,
    columns of the JSON in the value, or the parts of a registry's frame. ``value_schema``: Spark's DDL of that JSON, or
    the JSON of a Spark schema. With a ``schema_registry`` the values are Avro, and ``value_schema`` is the JSON of an
    Avro schema. ``event_time``: the source of a directory's time, ``record``, ``header:NAME`` or ``json:FIELD``.
    """

    partition_by: PartitionBy = "day"
    file_format: FileFormat = "parquet"
    codec: str | None = None
    time_zone: str = "UTC"
    file_bytes: int = 256 * 1024 * 1024
    value: ValueForm = "bytes"
    value_schema: str | None = None
    event_time: str = RECORD_TIME
    schema_registry: Registry | None = None

    @property
    def by_record_time(self) -> bool:
        """Whether the records' own timestamps select their directories."""
        return self.event_time == RECORD_TIME

    @property
    def is_decoded(self) -> bool:
        """Whether some records may not go into the files, because they cannot be decoded."""
        return self.value != "bytes" or self.file_format == "text"

    @property
    def is_made_of_pieces(self) -> bool:
        """Whether the reading tasks may make the files, because no value needs decoding (``parquet_pieces``)."""
        return self.file_format == "parquet" and self.value == "bytes" and self.by_record_time

    def ending(self, staged_name: str) -> str:
        """Return the ending of a published name, see :func:`published_ending`."""
        return published_ending(staged_name, self.file_format)

    def problem(self) -> str | None:
        """Return a text about contradicting options, or None if there is no problem."""
        codecs = CODECS[self.file_format]
        if self.codec is not None and self.codec not in codecs:
            return f"--codec {self.codec}: --format {self.file_format} has {', '.join(codecs)}"
        if self.file_format == "text" and self.value != "bytes":
            return f"--value {self.value}: a line of text is the value's bytes; leave it out, or take --format parquet"
        if self.value == "json" and self.value_schema is None:
            return "--value json needs --value-schema, Spark's DDL of the values such as 'id BIGINT, name STRING'"
        if self.value == "bytes" and self.value_schema is not None:
            return "--value-schema needs --value json or --value registry: values are taken as bytes otherwise"
        if self.schema_registry is not None and (self.value != "registry" or self.value_schema is None):
            return "--schema-registry needs --value registry, and --value-schema with the Avro schema of the columns"
        if self.value_schema is not None and not self.value_schema.isprintable():
            return "--value-schema holds characters that cannot be printed, which no manifest takes"
        if not _EVENT_TIME.fullmatch(self.event_time) or not self.event_time.isprintable():
            return f"--event-time {self.event_time}: not record, header:NAME or json:FIELD (json:a.b for a field of a)"
        return None

    @property
    def last_time_ms(self) -> int | None:
        """The last ms whose directory of time has a year of four digits, None without such directories."""
        if self.partition_by == "none":
            return None
        end = datetime(9999, 12, 31, 23, 59, 59, 999_000, ZoneInfo(self.time_zone))
        return int((end - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))

    def document(self) -> dict[str, str]:
        """Return the layout's fields for a manifest."""
        found = {
            "partition_by": self.partition_by,
            "format": self.file_format,
            "codec": self.codec,
            "time_zone": self.time_zone,
            "value": self.value,
            "value_schema": self.value_schema,
            "event_time": self.event_time,
        }
        return {name: text for name, text in found.items() if text is not None}


def published_ending(staged_name: str, file_format: str) -> str:
    """Return the ending of a published name. It includes the codec if readers expect it there, as in ``txt.gz``."""
    base = "txt" if file_format == "text" else file_format
    # Spark's names end in .c000.snappy.parquet or .c000.txt.gz.
    ending = staged_name.partition(".c000.")[2]
    return ending if ending.startswith(base) else base
