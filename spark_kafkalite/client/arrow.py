"""Columns of records to and from Arrow, without copying keys and values.

The buffers of :class:`Columns` are wrapped, not copied; topic and partition are made by repetition.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.client.read_schema import HEADERS_TYPE, READ_SCHEMA, READ_SCHEMA_WITH_HEADERS, TIMESTAMP_TYPE
from spark_kafkalite.errors import SerializationError
from spark_kafkalite.records.buffers import HeaderColumns, shift_bitmap
from spark_kafkalite.records.kernel import Columns


def record_batch(columns: Columns, topic: str, partition: int, *, with_headers: bool) -> pa.RecordBatch:
    """Return the rows of one partition as a record batch of the read schema."""
    count = columns.count
    timestamps = pa.Array.from_buffers(pa.timestamp("ms", tz="UTC"), count, [None, _wrap(columns.timestamps)])
    arrays = [
        _binary(pa.binary(), count, columns.key_validity, columns.key_offsets, columns.key_data),
        _binary(pa.binary(), count, columns.value_validity, columns.value_offsets, columns.value_data),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.Array.from_buffers(pa.int64(), count, [None, _wrap(columns.offsets)]),
        timestamps.cast(TIMESTAMP_TYPE),
        pa.Array.from_buffers(pa.int32(), count, [None, _wrap(columns.timestamp_types)]),
    ]
    if with_headers:
        arrays.append(_headers(columns.headers, count))
        return pa.RecordBatch.from_arrays(arrays, schema=READ_SCHEMA_WITH_HEADERS)
    return pa.RecordBatch.from_arrays(arrays, schema=READ_SCHEMA)


def _wrap(buffer: Any) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(buffer)


def _binary(kind: pa.DataType, count: int, validity: Any, offsets: Any, data: Any) -> pa.Array:
    if offsets is None:
        return pa.nulls(count, kind)
    return pa.Array.from_buffers(kind, count, [_wrap(validity), _wrap(offsets), _wrap(data)])


def _headers(headers: HeaderColumns | None, count: int) -> pa.Array:
    if headers is None:
        return pa.nulls(count, HEADERS_TYPE)
    header_count = memoryview(headers.key_offsets).nbytes // 4 - 1
    keys = _binary(pa.string(), header_count, None, headers.key_offsets, headers.key_data)
    values = _binary(pa.binary(), header_count, headers.value_validity, headers.value_offsets, headers.value_data)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    buffers = [_wrap(headers.list_validity), _wrap(headers.list_offsets)]
    return pa.Array.from_buffers(HEADERS_TYPE, count, buffers, children=[pairs])


# The other way
# ----------------------------------------------------------------------------------------------------------


def columns_of(batch: pa.RecordBatch) -> Columns:
    """Return the ``key``, ``value``, ``timestamp`` and ``headers`` columns of a record batch, ready for encoding.

    Raises SerializationError naming the column whose type does not fit.
    """
    key_buffers = _binary_buffers(batch, "key")
    value_buffers = _binary_buffers(batch, "value")
    return Columns(
        batch.num_rows,
        timestamps=_timestamps(batch),
        key_offsets=key_buffers[1],
        key_data=key_buffers[2],
        key_validity=key_buffers[0],
        value_offsets=value_buffers[1],
        value_data=value_buffers[2],
        value_validity=value_buffers[0],
        headers=_header_columns(batch),
    )


def column_or_none(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column by its exact name, None when there is none or all of it is of the null type."""
    index = batch.schema.get_field_index(name)
    if index < 0 or pa.types.is_null(batch.schema.field(index).type):
        return None
    return batch.column(index)


def _binary_buffers(batch: pa.RecordBatch, name: str) -> tuple[Any, Any, Any]:
    array = column_or_none(batch, name)
    if array is None:
        return None, None, b""
    return _binary_array_buffers(array, name)


def _binary_array_buffers(array: pa.Array, name: str) -> tuple[Any, Any, Any]:
    kind = array.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        convertible = (
            pa.types.is_large_binary(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_fixed_size_binary(kind)
            or pa.types.is_dictionary(kind)
            or kind in (pa.binary_view(), pa.string_view())
        )
        if not convertible:
            raise SerializationError(f"column {name!r} has type {kind}: it must be binary or string")
        try:
            array = array.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary())
        except pa.ArrowInvalid as error:
            raise SerializationError(f"column {name!r}: {error}") from error
    validity, offsets, data = array.buffers()
    return (
        _shifted(array, validity),
        _slice(offsets, array.offset * 4, (len(array) + 1) * 4),
        b"" if data is None else memoryview(data),
    )


def _shifted(array: pa.Array, validity: pa.Buffer | None) -> bytes | memoryview | None:
    if validity is None or not array.null_count:
        return None
    if array.offset == 0:
        return memoryview(validity)
    return shift_bitmap(memoryview(validity), array.offset, len(array))


def _slice(buffer: pa.Buffer | None, start: int, length: int) -> bytes | memoryview:
    # An empty array may come without offsets.
    return bytes(length) if buffer is None else memoryview(buffer)[start : start + length]


def _timestamps(batch: pa.RecordBatch) -> memoryview | bytes | None:
    array = column_or_none(batch, "timestamp")
    if array is None:
        return None
    kind = array.type
    if pa.types.is_timestamp(kind):
        # A zone only says how to show the instant; the number is UTC either way.
        array = array.cast(pa.timestamp("ms", tz=kind.tz), safe=False)
    elif not pa.types.is_integer(kind):
        raise SerializationError(f"column 'timestamp' has type {kind}: it must be timestamp, or an integer of ms")
    array = pc.fill_null(array.cast(pa.int64()), -1)
    return _slice(array.buffers()[1], array.offset * 8, len(array) * 8)


def _header_columns(batch: pa.RecordBatch) -> HeaderColumns | None:
    array = column_or_none(batch, "headers")
    if array is None or array.null_count == len(array):
        return None
    kind = array.type
    fields = list(kind.value_type) if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) else []
    if [field.name for field in fields] != ["key", "value"]:
        raise SerializationError(
            f"column 'headers' has type {kind}: it must be array<struct<key: string, value: binary>>"
        )
    pairs = array.values
    # flatten() applies the struct's own offset to its fields, which field() does not.
    keys, values = pairs.flatten()
    if keys.null_count:
        raise SerializationError("column 'headers' holds a header whose key is null")
    _, key_offsets, key_data = _binary_array_buffers(keys, "headers.key")
    value_validity, value_offsets, value_data = _binary_array_buffers(values, "headers.value")
    validity, list_offsets = array.buffers()[:2]
    return HeaderColumns(
        _slice(list_offsets, array.offset * 4, (len(array) + 1) * 4),
        _shifted(array, validity),
        key_offsets,
        key_data,
        value_offsets,
        value_data,
        value_validity,
    )
