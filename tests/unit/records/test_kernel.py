"""What the kernel's functions promise, on both twins; tests/twins compares them on everything else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from array import array
from types import ModuleType
from typing import Any

import aiokafka.partitioner
import pytest

from spark_kafkalite.errors import CorruptMessage, InvalidRecord, SerializationError
from spark_kafkalite.model import Record
from spark_kafkalite.records import kernel as chosen
from spark_kafkalite.records import layout
from tests.patience import wait_until


def make(kernel: ModuleType, count: int = 4, **build: Any) -> bytearray:
    batch = kernel.OpenBatch(2**20)
    for i in range(count):
        batch.append(1000 + i, b"key-%d" % i, b"value-%d" % i, [("h", b"%d" % i)])
    data: bytearray = batch.build(**build)
    return data


# Headers ------------------------------------------------------------------------------------------------------------


def test_header_properties(kernel: ModuleType) -> None:
    data = make(kernel, producer_id=5, producer_epoch=1, base_sequence=2**31 - 2, transactional=True)
    kernel.stamp(data, 0, 100, 7)
    header = kernel.read_header(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 103, 104)
    assert (header.partition_leader_epoch, header.size_bytes) == (7, len(data))
    assert (header.is_transactional, header.is_control, header.producer_id >= 0) == (True, False, True)
    assert header.last_sequence == 1
    assert header._replace(base_sequence=-1).last_sequence == -1


def test_scan_stops_quietly_at_a_cut_tail(kernel: ModuleType) -> None:
    data = make(kernel)
    for cut in range(1, len(data)):
        assert len(kernel.scan_headers(data + data[:cut])) == 1
    assert len(kernel.scan_headers(data + data)) == 2
    assert kernel.scan_headers(data, 0, len(data) - 1) == []
    assert kernel.scan_headers(b"xx" + data, 2)[0] == kernel.read_header(data)


def test_scan_raises_at_a_header_that_cannot_be(kernel: ModuleType) -> None:
    data = make(kernel)
    with pytest.raises(CorruptMessage, match=f"position {len(data)}: magic 1 "):
        kernel.scan_headers(data + data[:16] + b"\x01" + data[17:])
    with pytest.raises(CorruptMessage, match="batch length 48 "):
        kernel.scan_headers(data[:8] + b"\0\0\0\x30")
    with pytest.raises(CorruptMessage, match="batch length -1 "):
        kernel.read_header(data[:8] + b"\xff\xff\xff\xff" + data[12:])


def test_stamp_keeps_the_crc_but_for_log_append_time(kernel: ModuleType) -> None:
    data = make(kernel)
    crc = kernel.read_header(data).crc
    kernel.stamp(data, 0, 2**40, 3)
    assert kernel.read_header(data).crc == crc
    kernel.stamp(data, 0, 2**40, 3, 5_000)
    header = kernel.read_header(data)
    assert header.crc != crc
    assert (header.timestamp_type, header.max_timestamp) == (1, 5_000)
    kernel.check_crc(data, 0, len(data))
    builder = kernel.ColumnBuilder()
    builder.add_batch(data, 0, header)
    assert memoryview(builder.finish().timestamps).cast("B").cast("q").tolist() == [5_000] * 4


# Walking ------------------------------------------------------------------------------------------------------------


def test_walk_returns_the_largest_timestamp(kernel: ModuleType) -> None:
    batch = kernel.OpenBatch(1000)
    for timestamp in (50, 90, -1, 70):
        batch.append(timestamp, None, None)
    data = batch.build()
    assert kernel.walk_records(data[61:], kernel.read_header(data)) == 90


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "record 0: 1 bytes are left in the record after its last header"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes are left in the batch after its last record (1 records)"),
        (b"\x10\x00\x00\x00\x01\x01\x00", "record 0: record length 8 does not fit in the 6 bytes that are left"),
        (b"\x0c\x00\x00\x00\x08\x01\x00", "record 0: key length 4 does not fit in the 2 bytes that are left"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", "record 0: key length -2 does not fit in the 2 bytes that are left"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "record 0: header count 1 does not fit in the 0 bytes that are left"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", "record 0: offset delta 1 is above the batch's last offset delta 0"),
        (b"\x80\x80\x80\x80\x10\x00\x00", "record 0: record length is a varint of more than 32 bits"),
        (b"\x0c\x00\x00\x00\x01\x01\x80", "record 0: header count is cut off: the data ends before it does"),
        (b"\x01\x00\x00\x00\x01\x01\x00", "record 0: record length -1 does not fit in the 6 bytes that are left"),
    ],
)
def test_walk_names_what_is_wrong(kernel: ModuleType, section: bytes, text: str) -> None:
    header = layout.BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    with pytest.raises(InvalidRecord) as caught:
        kernel.walk_records(section, header)
    assert str(caught.value) == text


def test_a_count_that_lies_is_refused_before_anything_is_made(kernel: ModuleType) -> None:
    data = make(kernel)
    header = kernel.read_header(data)._replace(record_count=2**31 - 1)
    with pytest.raises(InvalidRecord, match="record count 2147483647 does not fit"):
        kernel.ColumnBuilder().add_batch(data, 0, header)


# Decoding -----------------------------------------------------------------------------------------------------------


def test_records_of_several_batches(kernel: ModuleType) -> None:
    builder = kernel.ColumnBuilder()
    for base in (10, 20):
        data = make(kernel)
        kernel.stamp(data, 0, base, 0)
        assert builder.add_batch(data, 0, kernel.read_header(data), None, 11, 23) == 3
    columns = builder.finish()
    records = columns.records("t", 2, 0, columns.count)
    assert [record.offset for record in records] == [11, 12, 13, 20, 21, 22]
    assert (columns.next_offset, builder.next_offset) == (23, 23)
    assert isinstance(records[0], Record)
    assert (records[0].topic, records[0].partition, records[0].timestamp_type) == ("t", 2, 0)
    assert (records[3].key, records[3].value, records[3].headers) == (b"key-0", b"value-0", [("h", b"0")])
    with pytest.raises(IndexError, match="rows 3 to 7"):
        columns.records("t", 2, 3, 7)


def test_a_full_builder_takes_nothing_more_so_that_there_is_no_gap(kernel: ModuleType) -> None:
    data = make(kernel)
    header = kernel.read_header(data)
    builder = kernel.ColumnBuilder(True, 10, 100)
    assert builder.add_batch(data, 0, header) == 2
    assert builder.is_full
    assert builder.next_offset == 2
    assert builder.add_batch(data, 0, header._replace(base_offset=4)) == 0
    assert builder.next_offset == 2
    builder.finish()
    assert not builder.is_full
    assert builder.add_batch(data, 0, header, None, builder.next_offset) == 2
    assert builder.next_offset == 4


def test_the_first_row_always_fits(kernel: ModuleType) -> None:
    data = make(kernel)
    builder = kernel.ColumnBuilder(True, 10, 1)
    assert builder.add_batch(data, 0, kernel.read_header(data)) == 1
    assert builder.is_full


def test_a_bad_record_adds_nothing_of_its_batch(kernel: ModuleType) -> None:
    good, bad = make(kernel), make(kernel)
    bad[-1] ^= 0xFF
    bad.append(0)
    bad[8:12] = (len(bad) - 12).to_bytes(4, "big")
    builder = kernel.ColumnBuilder()
    builder.add_batch(good, 0, kernel.read_header(good))
    before = (builder.count, builder.size_bytes, builder.next_offset)
    with pytest.raises(InvalidRecord):
        builder.add_batch(bad, 0, kernel.read_header(bad)._replace(base_offset=4))
    assert (builder.count, builder.size_bytes, builder.next_offset) == before
    columns = builder.finish()
    assert [columns.value_at(row) for row in range(columns.count)] == [b"value-%d" % i for i in range(4)]


def test_compressed_batches_need_their_payload(kernel: ModuleType) -> None:
    data = make(kernel, codec=1)
    with pytest.raises(ValueError, match="decompressed records section"):
        kernel.ColumnBuilder().add_batch(data, 0, kernel.read_header(data))


def test_compacted_batches_keep_their_offsets(kernel: ModuleType) -> None:
    """Compaction removes records and leaves last_offset_delta: here 0, 2 and 3 of a batch of 6 are left."""
    batch = kernel.OpenBatch(1000)
    for value in (b"a", b"b", b"c"):
        batch.append(5, b"k", value)
    data = batch.build()
    header = kernel.read_header(data)._replace(base_offset=50, last_offset_delta=5)
    section = bytearray(data[61:])
    for row, delta in enumerate((0, 2, 3)):
        section[row * (len(section) // 3) + 3] = 2 * delta
    builder = kernel.ColumnBuilder()
    builder.add_batch(b"", 0, header, section)
    columns = builder.finish()
    assert [columns.offset_at(row) for row in range(3)] == [50, 52, 53]
    assert columns.next_offset == 56


# Encoding -----------------------------------------------------------------------------------------------------------


def test_sizes_are_exact_and_the_limit_holds(kernel: ModuleType) -> None:
    source = random.Random(5)
    for _ in range(50):
        batch = kernel.OpenBatch(source.randint(70, 3000))
        index = 0
        while index >= 0:
            count, size = batch.count, batch.size_bytes
            index = batch.append(source.randint(0, 2**42), None, bytes(source.choice([0, 5, 70, 200])), None)
        assert (batch.count, batch.size_bytes) == (count, size)
        assert len(batch.build()) == size


def test_first_record_always_fits_and_timestamps_may_go_down(kernel: ModuleType) -> None:
    batch = kernel.OpenBatch(70)
    assert batch.append(100, None, bytes(500)) == 0
    assert batch.append(50, None, b"") == -1
    batch = kernel.OpenBatch(200)
    for timestamp in (100, 50, 2**41, -1):
        batch.append(timestamp, None, None)
    data = batch.build()
    header = kernel.read_header(data)
    assert (batch.base_timestamp, batch.max_timestamp) == (100, 2**41) == (header.base_timestamp, header.max_timestamp)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, "text", b""), "key is str, must be bytes-like and contiguous, or None"),
        ((0, b"", 5), "value is int, must be bytes-like and contiguous, or None"),
        ((0.5, b"", b""), "timestamp is float, must be int (milliseconds since the epoch)"),
        ((-2, b"", b""), f"timestamp -2 is not between -1 (none) and {2**63 - 2} ms"),
        ((0, b"", b"", [(b"k", b"v")]), "key of header 0 is bytes, must be str"),
        (
            (0, b"", b"", [("k", b"v"), ("k", "v")]),
            "value of header 1 is str, must be bytes-like and contiguous, or None",
        ),
        ((0, b"", b"", {"k": b"v"}), "headers is dict, must be a list or tuple of (str, bytes or None) pairs, or None"),
        ((0, b"", b"", ["kv"]), "header 0 is not a (str, bytes or None) pair"),
        ((0, b"", b"", [("\ud800", b"")]), "key of header 0 cannot be encoded as UTF-8"),
    ],
)
def test_append_names_what_is_wrong_and_appends_nothing(kernel: ModuleType, arguments: Any, text: str) -> None:
    batch = kernel.OpenBatch(1000)
    with pytest.raises(SerializationError) as caught:
        batch.append(*arguments)
    assert str(caught.value) == text
    assert (batch.count, batch.size_bytes) == (0, 61)


def test_encode_columns_stops_before_the_limit(kernel: ModuleType) -> None:
    columns = kernel.Columns(3, value_offsets=array("i", [0, 100, 200, 300]), value_data=bytes(300))
    buffer, facts, following = kernel.encode_columns(columns, None, 0, 3, 300, now_ms=9)
    assert (facts.record_count, following, facts.base_timestamp, facts.max_timestamp) == (2, 2, 9, 9)
    assert len(buffer) <= 300
    buffer, facts, following = kernel.encode_columns(columns, None, 2, 3, 0, now_ms=9)
    assert (facts.record_count, following) == (1, 3)


def test_offsets_that_lead_out_of_the_data_are_an_error(kernel: ModuleType) -> None:
    columns = kernel.Columns(2, value_offsets=array("i", [0, 5, 2**31 - 1]), value_data=b"12345")
    assert columns.value_at(0) == b"12345"
    with pytest.raises(ValueError, match="value offsets 5 to 2147483647 of row 1"):
        columns.value_at(1)
    with pytest.raises(ValueError, match="value offsets 5 to 2147483647 of row 1"):
        kernel.encode_columns(columns, None, 0, 2, 1000, now_ms=0)
    with pytest.raises(ValueError, match="value_offsets has 4 bytes, the rows need 12"):
        kernel.Columns(2, value_offsets=b"1234")


# Partitions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    # From Kafka's own UtilsTest.testMurmur2, signed there.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_kafkas_values(kernel: ModuleType, key: bytes, expected: int) -> None:
    assert kernel.murmur2(key) == expected % 2**32


@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
def test_murmur2_equals_that_of_other_clients(kernel: ModuleType) -> None:
    import kafka.partitioner.default  # it warns as it is imported

    source = random.Random(11)
    for length in range(80):
        key = source.randbytes(length)
        ours = kernel.murmur2(key) & 0x7FFFFFFF
        assert ours == kafka.partitioner.default.murmur2(key) & 0x7FFFFFFF
        assert ours == aiokafka.partitioner.murmur2(key) & 0x7FFFFFFF


def test_partition_by_key_and_group_rows(kernel: ModuleType) -> None:
    columns = kernel.Columns(4, key_offsets=array("i", [0, 2, 2, 2, 5]), key_data=b"21abc", key_validity=b"\x0d")
    partitions = kernel.partition_by_key(columns, 6)
    empty = (kernel.murmur2(b"") & 0x7FFFFFFF) % 6
    assert partitions.tolist() == [(-973932308 & 0x7FFFFFFF) % 6, -1, empty, 479470107 % 6]
    assert [rows.tolist() for rows in kernel.group_rows(array("i", [1, 0, 1, 3]), 4)] == [[1], [0, 2], [], [3]]
    with pytest.raises(ValueError, match="partition -1 of row 1 is not between 0 and 5"):
        kernel.group_rows(partitions, 6)


# The choice between the twins ---------------------------------------------------------------------------------------


def test_the_python_twin_warns_once_with_the_slow_down() -> None:
    code = (
        "import spark_kafkalite.records.kernel as kernel, spark_kafkalite.records.columns\n"
        "assert not kernel.IS_NATIVE and kernel.fallback_warning()\n"
    )
    environment = {**os.environ, "KAFKALITE_PURE_PYTHON": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stderr.count("RuntimeWarning") == 1
    assert "times slower" in result.stderr


def test_the_native_twin_does_not_warn() -> None:
    if not chosen.IS_NATIVE:
        pytest.skip("the native kernel is not built: python setup.py build_ext --inplace")
    assert chosen.fallback_warning() is None


def test_large_decodes_let_other_threads_run() -> None:
    """With a switch interval of 10 s no thread is made to give up the GIL: who runs beside the decoder was let."""
    if not chosen.IS_NATIVE:
        pytest.skip("the native kernel is not built: python setup.py build_ext --inplace")
    batch = chosen.OpenBatch(2**30)
    for _ in range(400_000):
        batch.append(0, None, b"")
    data = batch.build()
    header = chosen.read_header(data)
    started, stopped = threading.Event(), threading.Event()
    ticks = beside = 0

    def count() -> None:
        nonlocal ticks
        started.set()
        while not stopped.is_set():
            ticks += 1
            time.sleep(0)  # offers the GIL, as a thread that reads a socket does

    def ran_beside_a_decode() -> bool:
        nonlocal beside
        before = ticks
        builder = chosen.ColumnBuilder(False)
        builder.add_batch(data, 0, header)
        beside += ticks - before
        assert builder.count == 400_000
        return beside > 10

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    sys.setswitchinterval(10)
    try:
        thread.start()
        started.wait()
        # As often as it takes: on busy processors a whole decode may pass before that thread gets one. With the GIL
        # held throughout, it could not count anything during a decode, however often.
        wait_until(ran_beside_a_decode, "a thread that runs during a decode", poll_s=0)
    finally:
        stopped.set()
        sys.setswitchinterval(interval)
        thread.join()
