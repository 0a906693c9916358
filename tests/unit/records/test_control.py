"""Transaction markers: the bytes that Apache Kafka writes, and what is read of others."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records import kernel
from spark_kafkalite.records.assemble import RetainedRecords, reassemble
from spark_kafkalite.records.control import (
    ABORT,
    COMMIT,
    MARKER_BYTES,
    Marker,
    build_marker,
    control_type,
    read_marker,
)
from spark_kafkalite.records.layout import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT
from tests.unit.records.test_golden import GOLDEN_FILES

# By the format's description: header with attributes 0x30, then the record.
BY_HAND = (
    "0000000000000000 00000042 ffffffff 02 {crc} 0030 00000000 000000000000007b 000000000000007b"
    "0000000000000007 0005 ffffffff 00000001"
    "20 00 00 00 08 0000 {type} 0c 0000 00000009 00"
)


def control_batch(kind: int, *, key: bytes = b"", value: bytes = struct.pack(">hi", 0, 1)) -> bytearray:
    builder = kernel.OpenBatch(10_000)
    builder.append(0, key or struct.pack(">hh", 0, kind), value, None)
    built = bytearray(builder.build(0, None, producer_id=7, producer_epoch=0, transactional=True))
    kernel.stamp(built, 0, 5, 0)
    built[22] |= CONTROL_BIT
    return built


def read(batch: bytes | bytearray) -> Marker | None:
    return read_marker(batch, 0, kernel.read_header(batch))


@pytest.mark.parametrize(("commits", "kind"), [(False, "0000"), (True, "0001")])
def test_a_marker_has_the_bytes_of_the_format(commits: bool, kind: str) -> None:
    batch = build_marker(7, 5, Marker(commits, 9), 123)
    expected = bytes.fromhex(BY_HAND.format(crc=batch[17:21].hex(), type=kind))
    assert batch.hex() == expected.hex()
    assert len(batch) == MARKER_BYTES
    kernel.check_crc(batch, 0, len(batch))


def test_markers_are_those_that_apache_kafka_has_written() -> None:
    data = (GOLDEN_FILES / "transactions.log").read_bytes()
    found, position = [], 0
    for header in kernel.scan_headers(data):
        stored = data[position : position + header.size_bytes]
        if header.is_control:
            marker = read_marker(data, position, header)
            assert marker is not None
            found.append(marker)
            ours = build_marker(header.producer_id, header.producer_epoch, marker, header.max_timestamp)
            kernel.stamp(ours, 0, header.base_offset, header.partition_leader_epoch)
            assert ours.hex() == stored.hex()
        position += header.size_bytes
    assert found == [Marker(commits=True, coordinator_epoch=0), Marker(commits=False, coordinator_epoch=0)]


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.booleans(),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**62),
)
def test_what_is_built_is_read(
    producer_id: int, producer_epoch: int, commits: bool, coordinator_epoch: int, now_ms: int
) -> None:
    marker = Marker(commits, coordinator_epoch)
    batch = build_marker(producer_id, producer_epoch, marker, now_ms)
    header = kernel.read_header(batch)
    assert read(batch) == marker
    assert control_type(batch, 0, header) == (COMMIT if commits else ABORT)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, producer_epoch, -1)
    assert header.is_transactional and header.is_control
    kernel.check_crc(batch, 0, len(batch))


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, -1])
def test_other_control_records_are_no_markers(kind: int) -> None:
    batch = control_batch(kind)
    assert control_type(batch, 0, kernel.read_header(batch)) == kind
    assert read(batch) is None


def test_an_emptied_control_batch_has_no_marker() -> None:
    header = kernel.read_header(control_batch(COMMIT))
    emptied = reassemble(header, RetainedRecords(0, 0, -1, False, bytearray(HEADER_BYTES)))
    kept = kernel.read_header(emptied)
    assert (kept.record_count, kept.attributes) == (0, CONTROL_BIT | TRANSACTIONAL_BIT)
    assert read(emptied) is None


def test_fields_of_newer_versions_are_passed_by() -> None:
    batch = control_batch(COMMIT, key=struct.pack(">hhi", 1, COMMIT, 77), value=struct.pack(">hib", 1, 12, 2))
    assert read(batch) == Marker(commits=True, coordinator_epoch=12)


@pytest.mark.parametrize("length", range(HEADER_BYTES, HEADER_BYTES + 9))
def test_a_cut_key_is_an_error(length: int) -> None:
    batch = control_batch(ABORT)
    header = kernel.read_header(batch)
    with pytest.raises(CorruptMessage, match="control batch at offset 5 ends inside its record's key"):
        control_type(batch[: min(length, HEADER_BYTES + 7)], 0, header)
    with pytest.raises(CorruptMessage, match="at offset 5 ends inside"):
        read_marker(batch[:length], 0, header)


@pytest.mark.parametrize("value", [b"", b"\0\0", b"\0\0\0\0\0"])
def test_a_short_value_is_an_error(value: bytes) -> None:
    """A header count of 0 follows, which must not be taken for a part of the epoch."""
    batch = control_batch(COMMIT, value=value)
    with pytest.raises(CorruptMessage, match="transaction marker at offset 5 ends inside its record's value"):
        read(batch)


@given(st.binary(max_size=40))
def test_any_record_gives_a_marker_or_our_error(record: bytes) -> None:
    batch = bytes(control_batch(COMMIT)[:HEADER_BYTES]) + record
    header = kernel.read_header(control_batch(COMMIT))._replace(batch_length=len(batch) - 12)
    try:
        marker = read_marker(batch, 0, header)
    except CorruptMessage:
        return
    assert marker is None or isinstance(marker.coordinator_epoch, int)
