"""Parquet files that the reading tasks make themselves, in pieces, for Spark's text writer.

A reading task has its rows in Arrow. If no value needs decoding, Arrow can write them as Parquet, many times as fast as
rows pass through the JVM. So a task yields pieces of files instead of rows. Spark's text writer concatenates the pieces
like lines, and Spark stages, names and commits the files like all others.

The writer's line separator is the four characters :data:`SEPARATOR`, in which a Parquet file ends. After the footer
they end the file. After a row group readers skip them, because readers find row groups by the positions in the footer.

A piece is a row group, or the last row group and the footer. The size of a task's rows that are not in a piece yet has
a limit, which does not depend on the number of directories.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_kafkalite.jobs.formats.file_layout import FileLayout
from spark_kafkalite.manifests.names import DATA, DOCUMENT_GROUPS, GROUP, staged_topic

SEPARATOR: Final = "PAR1"
PIECES: Final = pa.schema([(GROUP, pa.string()), (DATA, pa.binary())])
# Keys: Spark's names of Parquet codecs.
_CODECS: Final = {"none": "NONE", "snappy": "SNAPPY", "gzip": "GZIP", "lz4_raw": "LZ4", "zstd": "ZSTD"}
# The columns with repeated values. A dictionary of the values costs much and saves nothing.
_WITH_DICTIONARY: Final = ("key", "topic", "partition", "timestampType")
_ROW_GROUP_BYTES: Final = 16 << 20
_WAITING_BYTES: Final = 64 << 20
# Since 1972, days and hours begin at a quarter of an hour of UTC in every time zone.
_QUARTER_US: Final = 900_000_000
_QUARTERS_OF_A_DAY: Final = 96
_LEAST_US: Final = -(2**63) + _QUARTER_US


def codec_of(name: str) -> str | None:
    """Return a codec's name in layouts for Spark's name of it, None for a codec that pieces cannot have."""
    known = {"uncompressed": "none", "lz4raw": "lz4_raw"}.get(name.lower(), name.lower())
    return known if known in _CODECS else None


def document_line(document: bytes) -> bytes:
    """Return an equal JSON document that does not contain the separator."""
    return document.replace(SEPARATOR.encode(), b"PAR\\u0031")


class PieceMaker:
    """Turns the rows of one task into pieces of files. Rows keep their order within a group."""

    def __init__(self, schema: pa.Schema, layout: FileLayout) -> None:
        """``layout`` must name its codec; None means no compression."""
        self._schema = schema
        self._directories = RowDirectories(layout)
        self._codec = _CODECS[layout.codec or "none"]
        self._files: dict[str, _ParquetFile] = {}

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of the rows' files, and what is no row as a document in a group of its own."""
        for batch in batches:
            group = _group_of_document(batch)
            if group is not None:
                yield _piece(group, document_line(batch.column("key")[0].as_py()))
                continue
            if not batch.num_rows:
                continue
            for group, rows in self._directories.of(batch):
                if group not in self._files:
                    self._files[group] = _ParquetFile(self._schema, self._codec)
                self._files[group].add(rows)
            yield from self._ready()
        for group, file in self._files.items():
            yield _piece(group, file.finish())

    def _ready(self) -> Iterator[pa.RecordBatch]:
        waiting = sum(file.waiting_bytes for file in self._files.values())
        for group, file in sorted(self._files.items(), key=lambda each: -each[1].waiting_bytes):
            if file.waiting_bytes < _ROW_GROUP_BYTES and waiting <= _WAITING_BYTES:
                return
            waiting -= file.waiting_bytes
            yield _piece(group, file.row_group())


def _group_of_document(batch: pa.RecordBatch) -> str | None:
    """Return the group of a document: an account, or a record for the quarantine. None for rows."""
    return DOCUMENT_GROUPS.get(batch.column("offset")[0].as_py()) if batch.num_rows == 1 else None


def _piece(group: str, data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([group]), pa.array([data], pa.binary())], schema=PIECES)


class RowDirectories:
    """Finds the group of each row: its topic, and the day or hour of its timestamp in the layout's time zone."""

    def __init__(self, layout: FileLayout) -> None:
        self._partition_by = layout.partition_by
        self._zone = ZoneInfo(layout.time_zone)
        self._labels: dict[int, str] = {}

    def of(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the groups of one partition's rows, each with its rows in the same order."""
        topic = staged_topic(batch.column("topic")[0].as_py())
        if self._partition_by == "none":
            yield f"{topic}@", batch
            return
        quarters = _quarters(batch.column("timestamp").view(pa.int64()))
        codes = quarters.dictionary_encode()
        by_label: dict[str, list[int]] = {}
        for code, quarter in enumerate(codes.dictionary.to_pylist()):
            by_label.setdefault(self._label(quarter), []).append(code)
        for label, own in by_label.items():
            wanted = pa.array(own, codes.indices.type)
            rows = batch if len(by_label) == 1 else batch.filter(pc.is_in(codes.indices, value_set=wanted))
            yield f"{topic}@{label}", rows

    def _label(self, quarter: int) -> str:
        label = self._labels.get(quarter)
        if label is None:
            label = self._labels[quarter] = label_of(quarter, self._zone, by_hour=self._partition_by == "hour")
        return label


def _quarters(micros: pa.Int64Array) -> pa.Int64Array:
    """Return the number of quarters of an hour since the epoch, rounded down."""
    if (pc.min(micros).as_py() or 0) < 0:
        # Division rounds towards zero.
        lowered = pc.subtract(pc.max_element_wise(micros, _LEAST_US), _QUARTER_US - 1)
        micros = pc.if_else(pc.less(micros, 0), lowered, micros)
    return pc.divide(micros, _QUARTER_US)


def label_of(quarter: int, zone: ZoneInfo, *, by_hour: bool) -> str:
    """Return the day of a quarter, with ``by_hour`` also its hour, as Spark's ``date_format`` yyyy-MM-dd@HH does."""
    try:
        moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=15 * quarter)).astimezone(zone)
        day, hour = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}", moment.hour
    except OverflowError:
        # Outside of Python's calendar, and of the years for which time zones have rules.
        day, hour = _day_of(quarter // _QUARTERS_OF_A_DAY), quarter % _QUARTERS_OF_A_DAY // 4
    return f"{day}@{hour:02d}" if by_hour else day


def _day_of(days: int) -> str:
    """Return the date ``days`` after the epoch. A year may have more than four digits. Source: civil_from_days of
    Howard Hinnant's date algorithms."""
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    # As in Java: a sign precedes more than four digits, and years before year 1 count backwards.
    shown = f"+{year}" if year > 9999 else f"{year if year > 0 else 1 - year:04d}"
    return f"{shown}-{month:02d}-{day:02d}"


class _ParquetFile:
    """One incomplete file."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        self._buffer = io.BytesIO()
        self._sink = pa.PythonFile(self._buffer, mode="w")
        self._schema = schema
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=compression,
            use_dictionary=[name for name in _WITH_DICTIONARY if name in schema.names],
            store_schema=False,
        )
        self._rows: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, which wait for a row group."""
        self._rows.append(rows)
        self.waiting_bytes += rows.nbytes

    def row_group(self) -> bytes:
        """Return the waiting rows as a row group, without the separator, which the text writer appends."""
        self._write()
        # So that the Parquet writer counts the separator in the positions of later row groups.
        self._sink.write(SEPARATOR.encode())
        return self._taken()

    def finish(self) -> bytes:
        """Return the last row group and the footer, without the four bytes that end the file."""
        if self._rows:
            self._write()
        self._writer.close()
        return self._taken()

    def _write(self) -> None:
        table = pa.Table.from_batches(self._rows, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows, self.waiting_bytes = [], 0

    def _taken(self) -> bytes:
        data = self._buffer.getvalue()
        assert data.endswith(SEPARATOR.encode())
        self._buffer.seek(0)
        self._buffer.truncate()
        return data[: -len(SEPARATOR)]
