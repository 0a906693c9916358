"""A broker takes those compressed sections that Java reads (tests/golden/frames), and our consumers read them, too."""

from __future__ import annotations

import base64
import json
from typing import Any

import cramjam
import pytest

from spark_kafkalite.errors import CorruptMessage, InvalidRecord, KafkaError
from spark_kafkalite.records import kernel
from spark_kafkalite.records.admission import AdmissionRules, admit, walk
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.compression import CODECS, LZ4, ZSTD, compress, decompress
from spark_kafkalite.records.foreign_frames import lz4_as_java_reads, zstd_as_java_reads
from tests.golden.frames.frames import VALUES, batch_with, frames
from tests.paths import GOLDEN

TABLE: dict[str, dict[str, Any]] = json.loads((GOLDEN / "frames" / "verdicts.json").read_text())["codecs"]
RULES = AdmissionRules(now_ms=1_700_000_000_000, max_decompressed_bytes=256 * 1024 * 1024)
CASES = [pytest.param(codec, row, id=f"{codec}: {name}") for codec, rows in TABLE.items() for name, row in rows.items()]


def takes(batch: bytearray) -> bool:
    """Return whether a broker takes a batch, on its loop or in a thread."""
    try:
        admission = admit(batch, 0, len(batch), RULES, produce_version=9)
        if admission.needs_thread:
            walk(batch, 0, admission.header, RULES)
    except KafkaError as error:
        assert isinstance(error, (CorruptMessage, InvalidRecord))
        return False
    return True


@pytest.mark.parametrize(("codec", "row"), CASES)
def test_a_broker_takes_what_java_reads(codec: str, row: dict[str, Any]) -> None:
    batch = bytearray(batch_with(codec, base64.b64decode(row["frame"])))
    assert takes(batch) == (row["java"] == "read")


@pytest.mark.parametrize(("codec", "row"), [case for case in CASES if case.values[1]["java"] == "read"])
def test_what_a_broker_takes_our_consumers_read(codec: str, row: dict[str, Any]) -> None:
    batch = batch_with(codec, base64.b64decode(row["frame"]))
    builder = kernel.ColumnBuilder(False)
    (header,) = kernel.scan_headers(batch)
    add_batch(builder, batch, 0, header)
    columns = builder.finish()
    assert [columns.value_at(number) for number in range(columns.count)] == VALUES


@pytest.mark.parametrize("codec", TABLE)
def test_the_table_is_of_the_frames_that_the_script_makes(codec: str) -> None:
    assert len(TABLE[codec]) >= 40
    assert list(TABLE[codec]) == list(frames()[codec])


def test_apache_kafka_and_java_differ_in_empty_lz4_blocks_only() -> None:
    differing = {
        name for rows in TABLE.values() for name, row in rows.items() if (row["kafka"] == 0) != (row["java"] == "read")
    }
    assert {"an empty block between"} <= differing
    assert all("empty" in name for name in differing)


@pytest.mark.parametrize("size", [0, 1, 1_000, 200_000, 3_000_000])
@pytest.mark.parametrize("codec", CODECS)
def test_what_we_write_needs_no_other_form(codec: str, size: int) -> None:
    """The hot path: what is checked is what the library gets."""
    number, plain = CODECS[codec], bytes(range(256)) * (size // 256 + 1)
    packed = memoryview(compress(number, plain[:size]))
    if number == LZ4:
        assert lz4_as_java_reads(packed) is packed
    if number == ZSTD:
        assert zstd_as_java_reads(packed) is packed
    assert bytes(decompress(number, packed, size, as_java=True)) == plain[:size]


def test_content_sizes_and_checksums_of_lz4_do_not_count() -> None:
    frame = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    frame.compress(b"abc" * 100_000)
    packed = bytearray(frame.finish())
    packed[-1] ^= 1
    assert bytes(decompress(LZ4, bytes(packed), 400_000, as_java=True)) == b"abc" * 100_000


def test_older_logs_are_read_where_the_library_can() -> None:
    linked = base64.b64decode(TABLE["lz4"]["linked blocks"]["frame"])
    assert len(decompress(LZ4, linked, 10_000)) > 300
    with pytest.raises(CorruptMessage, match="blocks must be independent"):
        decompress(LZ4, linked, 10_000, as_java=True)


def test_gzip_with_text_behind_has_its_limit() -> None:
    packed = bytes(cramjam.gzip.compress(bytes(100_000))) + b"what is no member of the stream"
    assert len(decompress(CODECS["gzip"], packed, 100_000, as_java=True)) == 100_000
    with pytest.raises(InvalidRecord, match="decompresses to more than 99999 bytes"):
        decompress(CODECS["gzip"], packed, 99_999, as_java=True)
