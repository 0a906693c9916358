"""Columns from lists, fetched batches into columns, and repairs of buffers."""

from __future__ import annotations

from array import array

import pyarrow as pa
import pytest

from spark_kafkalite.errors import CorruptMessage, InvalidRecord, SerializationError
from spark_kafkalite.records.buffers import HeaderColumns, bit_at, shift_bitmap, with_valid_keys
from spark_kafkalite.records.columns import ColumnBuilder, add_batch, batch_payload, columns_from_rows
from spark_kafkalite.records.kernel import OpenBatch, read_header


def test_columns_from_rows() -> None:
    columns = columns_from_rows(
        [b"a", None, bytearray(b"")],
        [None, b"k", memoryview(b"kk")],
        [5, None, 7],
        [[("h", b"1"), ("h", None)], None, []],
    )
    assert [columns.value_at(i) for i in range(3)] == [b"a", None, b""]
    assert [columns.key_at(i) for i in range(3)] == [None, b"k", b"kk"]
    assert [columns.timestamp_at(i) for i in range(3)] == [5, -1, 7]
    assert [columns.headers_at(i) for i in range(3)] == [[("h", b"1"), ("h", None)], [], []]


def test_columns_from_rows_names_what_is_wrong() -> None:
    with pytest.raises(SerializationError, match="value of row 1 is str"):
        columns_from_rows([b"a", "b"])  # type: ignore[list-item]
    with pytest.raises(SerializationError, match="key of row 0 is int"):
        columns_from_rows([b"a"], [1])  # type: ignore[list-item]
    with pytest.raises(SerializationError, match="header key of row 0 is bytes"):
        columns_from_rows([b"a"], headers=[[(b"h", b"")]])  # type: ignore[list-item]
    with pytest.raises(SerializationError, match="header value of row 0 is str"):
        columns_from_rows([b"a"], headers=[[("h", "x")]])  # type: ignore[list-item]
    for more in ({"keys": [b"k"]}, {"timestamps_ms": [1]}, {"headers": [None]}):
        with pytest.raises(ValueError, match="for 2 values"):
            columns_from_rows([b"a", b"b"], **more)  # type: ignore[arg-type]


def test_arrow_wraps_the_buffers() -> None:
    batch = OpenBatch(10_000)
    values = [b"one", None, b"", b"four"]
    for i, value in enumerate(values):
        batch.append(i, None, value, [("h", b"v")] if i == 2 else None)
    data = batch.build()
    builder = ColumnBuilder(True)
    builder.add_batch(data, 0, read_header(data))
    columns = builder.finish()

    def buffers(*parts: object) -> list[pa.Buffer | None]:
        return [None if part is None else pa.py_buffer(part) for part in parts]

    array_of_values = pa.Array.from_buffers(
        pa.binary(), 4, buffers(columns.value_validity, columns.value_offsets, columns.value_data)
    )
    array_of_values.validate(full=True)
    assert array_of_values.to_pylist() == values
    offsets = pa.Array.from_buffers(pa.int64(), 4, buffers(None, columns.offsets))
    assert offsets.to_pylist() == [0, 1, 2, 3]
    headers = columns.headers
    assert headers is not None
    pair = pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(pa.utf8(), 1, buffers(None, headers.key_offsets, headers.key_data)),
            pa.Array.from_buffers(
                pa.binary(), 1, buffers(headers.value_validity, headers.value_offsets, headers.value_data)
            ),
        ],
        ["key", "value"],
    )
    lists = pa.Array.from_buffers(
        pa.list_(pair.type), 4, buffers(headers.list_validity, headers.list_offsets), children=[pair]
    )
    lists.validate(full=True)
    assert lists.to_pylist() == [None, None, [{"key": "h", "value": b"v"}], None]


def test_columns_outlive_their_builder_and_keep_their_memory() -> None:
    batch = OpenBatch(10_000)
    batch.append(1, b"key", b"value")
    data = batch.build()
    builder = ColumnBuilder(True)
    builder.add_batch(data, 0, read_header(data))
    view = memoryview(builder.finish().value_data)
    builder.add_batch(data, 0, read_header(data))
    del builder
    assert bytes(view) == b"value"


@pytest.mark.parametrize("codec", range(5))
def test_add_batch_checks_decompresses_and_goes_on_where_it_stopped(codec: int) -> None:
    batch = OpenBatch(2**20)
    for i in range(10):
        batch.append(i, None, b"value-%d" % i)
    data = batch.build(codec)
    header = read_header(data)
    values: list[bytes | None] = []
    first = 0
    while first < header.next_offset:
        builder = ColumnBuilder(False, max_rows=4)
        add_batch(builder, data, 0, header, first_offset=first)
        columns = builder.finish()
        values += [columns.value_at(i) for i in range(columns.count)]
        assert columns.next_offset == builder.next_offset > first
        first = builder.next_offset
    assert values == [b"value-%d" % i for i in range(10)]
    data[-1] ^= 1
    with pytest.raises(CorruptMessage, match="CRC"):
        add_batch(ColumnBuilder(False), data, 0, header)


def test_batch_payload_is_capped() -> None:
    batch = OpenBatch(2**20)
    batch.append(1, None, bytes(5000))
    data = batch.build(1)
    with pytest.raises(InvalidRecord, match="4000 bytes"):
        batch_payload(data, 0, read_header(data), 4000)
    assert len(batch_payload(data, 0, read_header(data))) == batch.size_bytes - 61


def test_shift_bitmap() -> None:
    rows = [bool(i * i % 3) for i in range(50)]
    bitmap = bytes(sum(rows[8 * b + i] << i for i in range(8) if 8 * b + i < 50) for b in range(7))
    for first, count in ((0, 50), (3, 20), (8, 8), (49, 1), (13, 0)):
        moved = shift_bitmap(bitmap, first, count)
        assert moved is not None
        assert [bit_at(moved, i) for i in range(count)] == rows[first : first + count]
    assert shift_bitmap(None, 3, 5) is None


def test_header_keys_that_are_not_utf8_are_repaired() -> None:
    data = b"ok\xff\xfecaf\xc3\xa9"
    headers = HeaderColumns(b"", None, memoryview(array("i", [0, 2, 4, 9])), data, b"", b"", None)
    repaired = with_valid_keys(headers)
    assert bytes(repaired.key_data).decode() == "ok\ufffd\ufffdcaf\u00e9"
    assert memoryview(repaired.key_offsets).tolist() == [0, 2, 8, 13]
    good = headers._replace(key_offsets=memoryview(array("i", [0, 2])), key_data=b"ok")
    assert with_valid_keys(good) is good
