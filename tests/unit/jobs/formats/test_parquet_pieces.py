"""Pieces with the separator behind each are Parquet files, in the directories of Spark's own dates."""

from __future__ import annotations

import io
import json
import random
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_kafkalite.client.read_schema import READ_SCHEMA_WITH_HEADERS
from spark_kafkalite.jobs.formats import parquet_pieces
from spark_kafkalite.jobs.formats.file_layout import CODECS, FileLayout
from spark_kafkalite.jobs.formats.parquet_pieces import SEPARATOR, PieceMaker, RowDirectories, codec_of, label_of
from spark_kafkalite.manifests.names import ACCOUNTS, DATA, GROUP
from tests.seeds import SEED

SCHEMA = READ_SCHEMA_WITH_HEADERS
HOUR_US = 3_600_000_000
QUARTERS_OF_AN_HOUR = 4


def rows(timestamps_us: list[int], first: int = 0, partition: int = 0, value_bytes: int = 5) -> pa.RecordBatch:
    count = len(timestamps_us)
    columns = {
        "key": [b"k" if number % 2 else None for number in range(count)],
        "value": [bytes([number % 256]) * value_bytes for number in range(count)],
        "topic": ["t"] * count,
        "partition": [partition] * count,
        "offset": list(range(first, first + count)),
        "timestamp": pa.array(timestamps_us, pa.int64()).cast(SCHEMA.field("timestamp").type),
        "timestampType": [0] * count,
        "headers": [[{"key": "h", "value": b"\x00"}] if number % 3 else None for number in range(count)],
    }
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def account(document: bytes) -> pa.RecordBatch:
    found = rows([0], first=-1).to_pylist()
    return pa.RecordBatch.from_pylist([found[0] | {"key": document}], schema=SCHEMA)


def written(layout: FileLayout, *batches: pa.RecordBatch) -> dict[str, bytes]:
    """What Spark's text writer makes of the pieces, by group."""
    files: dict[str, bytes] = {}
    for piece in PieceMaker(SCHEMA, layout)(iter(batches)):
        for row in piece.to_pylist():
            files[row[GROUP]] = files.get(row[GROUP], b"") + row[DATA] + SEPARATOR.encode()
    return files


def tables(files: dict[str, bytes]) -> dict[str, pa.Table]:
    return {group: pq.read_table(io.BytesIO(data)) for group, data in files.items() if group != ACCOUNTS}


@pytest.mark.parametrize("codec", CODECS["parquet"])
def test_pieces_are_parquet_files_with_the_rows_of_their_directories(codec: str) -> None:
    layout = FileLayout("hour", codec=codec)
    first = rows([0, HOUR_US, 1, HOUR_US + 1])
    second = rows([HOUR_US, HOUR_US], first=0, partition=1)
    found = tables(written(layout, first, second))
    assert set(found) == {"t@1970-01-01@00", "t@1970-01-01@01"}
    whole = pa.Table.from_batches([first, second])
    assert found["t@1970-01-01@00"].cast(SCHEMA).to_pylist() == whole.take([0, 2]).to_pylist()
    assert found["t@1970-01-01@01"].cast(SCHEMA).to_pylist() == whole.take([1, 3, 4, 5]).to_pylist()


def test_large_files_have_several_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pieces, "_ROW_GROUP_BYTES", 10_000)
    layout = FileLayout("none", codec="snappy")
    batches = [rows([0] * 100, first=100 * number, value_bytes=1000) for number in range(5)]
    (data,) = written(layout, *batches).values()
    assert pq.ParquetFile(io.BytesIO(data)).num_row_groups == 5
    assert pq.read_table(io.BytesIO(data)).cast(SCHEMA) == pa.Table.from_batches(batches)


def test_what_waits_is_bounded_however_many_directories_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pieces, "_WAITING_BYTES", 20_000)
    maker = PieceMaker(SCHEMA, FileLayout("hour", codec="none"))
    chance = random.Random(SEED)
    batches = [
        rows([chance.randrange(50) * HOUR_US for _ in range(30)], first=30 * number, value_bytes=100)
        for number in range(40)
    ]
    files: dict[str, bytes] = {}
    for piece in maker(iter(batches)):
        assert sum(file.waiting_bytes for file in maker._files.values()) <= 20_000 + max(
            each.nbytes for each in batches
        )
        for row in piece.to_pylist():
            files[row[GROUP]] = files.get(row[GROUP], b"") + row[DATA] + SEPARATOR.encode()
    offsets = sorted(offset for table in tables(files).values() for offset in table.column("offset").to_pylist())
    assert offsets == list(range(1200))


def test_accounts_are_lines_even_where_a_topic_is_called_like_the_separator() -> None:
    document = b'{"topic": "PAR1-PAR1"}'
    lines = written(FileLayout(codec="none"), account(document))[ACCOUNTS].decode().split(SEPARATOR)
    assert len(lines) == 2
    assert json.loads(lines[0]) == {"topic": "PAR1-PAR1"}


@pytest.mark.parametrize(
    ("micros", "zone", "label"),
    [
        (0, "UTC", "1970-01-01@00"),
        # No timestamp.
        (-1_000, "UTC", "1969-12-31@23"),
        (-1_000, "Asia/Kolkata", "1970-01-01@05"),
        (1_792_890_000_000_000, "Europe/Berlin", "2026-10-25@02"),
        (1_792_886_400_000_000, "Europe/Berlin", "2026-10-25@02"),
        (253_402_300_799_999_000, "UTC", "9999-12-31@23"),
        (253_402_300_800_000_000, "UTC", "+10000-01-01@00"),
        (9_223_372_036_854_774_000, "UTC", "+294247-01-10@04"),
    ],
)
def test_directories_are_those_of_sparks_dates(micros: int, zone: str, label: str) -> None:
    directories = RowDirectories(FileLayout("hour", time_zone=zone))
    assert [group for group, _ in directories.of(rows([micros]))] == [f"t@{label}"]


def test_days_beyond_the_calendar_follow_each_other() -> None:
    zone = ZoneInfo("UTC")
    days = [label_of(96 * day, zone, by_hour=False) for day in range(2_932_890, 2_932_900)]
    assert days[:6] == [f"9999-12-{day}" for day in range(25, 31)]
    assert days[6:] == ["9999-12-31", "+10000-01-01", "+10000-01-02", "+10000-01-03"]


def test_codecs_are_sparks() -> None:
    assert [codec_of(name) for name in ("snappy", "uncompressed", "LZ4RAW", "lz4_raw", "brotli", "lzo")] == [
        "snappy",
        "none",
        "lz4_raw",
        "lz4_raw",
        None,
        None,
    ]
