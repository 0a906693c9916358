"""Columns to finished batches, and back."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import SerializationError
from spark_kafkalite.records.admission import AdmissionRules, admit
from spark_kafkalite.records.assemble import restamp_producer
from spark_kafkalite.records.builder import build_batches
from spark_kafkalite.records.columns import ColumnBuilder, add_batch, columns_from_rows
from spark_kafkalite.records.kernel import check_crc, group_rows, partition_by_key, read_header

CELLS = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=4), CELLS), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, st.none() | st.integers(0, 2**41), HEADERS), min_size=1, max_size=30),
    max_bytes=st.integers(61, 600),
    codec=st.integers(0, 4),
)
def test_round_trip_in_batches_of_any_size(rows: list, max_bytes: int, codec: int) -> None:  # type: ignore[type-arg]
    values, keys, times, headers = zip(*rows, strict=True)
    columns = columns_from_rows(values, keys, times, headers)
    builder = ColumnBuilder(True)
    base = 0
    for built in build_batches(columns, max_bytes=max_bytes, now_ms=77, codec=codec):
        header = read_header(built.batch)
        assert (header.record_count, header.codec, header.max_timestamp) == (
            built.record_count,
            codec,
            built.max_timestamp,
        )
        if codec == 0 and built.record_count > 1:
            assert len(built.batch) <= max_bytes
        admit(built.batch, 0, len(built.batch), AdmissionRules(now_ms=2**42), produce_version=9)
        add_batch(builder, built.batch, 0, header._replace(base_offset=base), verify_crc=True)
        base += built.record_count
    read = builder.finish()
    assert [read.value_at(i) for i in range(len(rows))] == list(values)
    assert [read.key_at(i) for i in range(len(rows))] == list(keys)
    assert [read.timestamp_at(i) for i in range(len(rows))] == [77 if time is None else time for time in times]
    assert [read.headers_at(i) for i in range(len(rows))] == [each or [] for each in headers]
    assert [read.offset_at(i) for i in range(len(rows))] == list(range(len(rows)))


def test_rows_of_each_partition_keep_their_order() -> None:
    values = [b"%d" % i for i in range(100)]
    columns = columns_from_rows(values, [b"k%d" % (i % 7) for i in range(100)])
    partitions = partition_by_key(columns, 4)
    seen = []
    for partition, rows in enumerate(group_rows(partitions, 4)):
        builder = ColumnBuilder(False)
        for built in build_batches(columns, max_bytes=300, now_ms=1, rows=rows):
            add_batch(builder, built.batch, 0, read_header(built.batch))
        read = builder.finish()
        written = [read.value_at(i) for i in range(read.count)]
        assert written == [value for value, number in zip(values, partitions, strict=True) if number == partition]
        seen += written
    assert sorted(seen) == sorted(values)


def test_a_batch_without_crc_is_finished_with_its_producer_fields() -> None:
    columns = columns_from_rows([b"12345"] * 6)
    (bare,) = build_batches(columns, max_bytes=1_000, now_ms=1, with_crc=False)
    assert read_header(bare.batch).crc == 0
    restamp_producer(bare.batch, 9, 2, 7)
    (whole,) = build_batches(columns, max_bytes=1_000, now_ms=1, producer_id=9, producer_epoch=2, base_sequence=7)
    assert bare.batch == whole.batch


def test_sequences_go_on_from_batch_to_batch_and_wrap() -> None:
    columns = columns_from_rows([b"12345"] * 6)
    numbers = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 2**31 - 2}
    batches = [each.batch for each in build_batches(columns, max_bytes=90, now_ms=1, **numbers)]
    headers = [read_header(batch) for batch in batches]
    assert len(headers) > 2
    assert [header.record_count for header in headers] == [2, 2, 2]
    assert [header.base_sequence for header in headers] == [2**31 - 2, 0, 2]
    assert [header.last_sequence for header in headers] == [2**31 - 1, 1, 3]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(9, 2)}


def test_part_of_the_rows() -> None:
    columns = columns_from_rows([b"0", b"1", b"2", b"3"])
    (built,) = build_batches(columns, max_bytes=10_000, now_ms=1, rows=array("i", [3, 0, 2]), first=1, until=3)
    assert (built.first, built.until, built.record_count) == (1, 3, 2)
    assert not list(build_batches(columns, max_bytes=10_000, now_ms=1, first=4))


def test_a_row_larger_than_the_limit_is_a_batch_by_itself() -> None:
    columns = columns_from_rows([b"a", bytes(1000), b"b"])
    assert [each.record_count for each in build_batches(columns, max_bytes=100, now_ms=1)] == [1, 1, 1]


def test_negative_timestamp() -> None:
    columns = columns_from_rows([b"a", b"b"], timestamps_ms=[1, -5])
    with pytest.raises(SerializationError, match="row 1: timestamp -5"):
        list(build_batches(columns, max_bytes=100, now_ms=1))


def test_restamp_producer() -> None:
    (built,) = build_batches(columns_from_rows([b"a"]), max_bytes=100, now_ms=1)
    restamp_producer(built.batch, 5, 6, 7)
    header = read_header(built.batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
    check_crc(built.batch, 0, len(built.batch))
