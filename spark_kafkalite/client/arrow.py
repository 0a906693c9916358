"""Columns of records to and from Arrow, without copying keys and values: for ``poll_columns``, the Spark source, and
``send_batch``.

To Arrow, keys, values, headers and offsets are the kernel's buffers, wrapped. The columns that are the same in every
row (topic and partition) are made once per size and partition and sliced. Timestamps are converted once for a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.client.read_schema import TIMESTAMP_TYPE
from spark_kafkalite.errors import SerializationError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.buffers import HeaderColumns, shift_bitmap
from spark_kafkalite.records.kernel import Columns

_MS_TYPE: Final = pa.timestamp("ms", tz="UTC")
# With its type, which Arrow would else guess at each use, looking for a module on the disk.
_NO_TIMESTAMP: Final = pa.scalar(-1, pa.int64())
# What milliseconds may be without leaving int64 as microseconds; a hostile producer may send any int64.
TIMESTAMP_LIMIT_MS: Final = (2**63 - 1) // 1000


class RecordBatchMaker:
    """Makes the record batches of one partition with one schema: the read schema, or some of its columns.

    The column ``timestamp`` may also be an int64: then it has the milliseconds as they are in the log.
    """

    def __init__(
        self,
        schema: pa.Schema,
        topic: str,
        partition: int,
        beyond: Callable[[list[tuple[int, int]]], None] | None = None,
    ) -> None:
        """``beyond`` gets offset and timestamp, in ms, of each record whose timestamp microseconds cannot hold.

        If it returns, the timestamp is null in the batch. Without it, it is the furthest millisecond that fits.
        """
        self._beyond = beyond
        self.topic_partition = TopicPartition(topic, partition)
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._constants: dict[str, pa.Array] = {}
        self._makers = {
            "key": self._keys,
            "value": self._values,
            "topic": lambda columns: self._repeated("topic", pa.scalar(self._topic, pa.string()), columns.count),
            "partition": lambda columns: self._repeated(
                "partition", pa.scalar(self._partition, pa.int32()), columns.count
            ),
            "offset": self._offsets,
            "timestamp": self._timestamps,
            "timestampType": self._timestamp_types,
            "headers": self._headers,
        }

    def batch(self, columns: Columns) -> pa.RecordBatch:
        """Return the rows as Arrow; the batch keeps the columns' buffers alive."""
        arrays = [self._makers[name](columns) for name in self._schema.names]
        if not arrays:
            # count() over a projection to nothing still needs the number of rows.
            return pa.RecordBatch.from_struct_array(pa.array([{}] * columns.count, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _repeated(self, name: str, scalar: pa.Scalar, count: int) -> pa.Array:
        """Return a column of one repeated value: a slice of the longest made so far."""
        made = self._constants.get(name)
        if made is None or len(made) < count:
            made = self._constants[name] = pa.repeat(scalar, count)
        return made.slice(0, count)

    @staticmethod
    def _keys(columns: Columns) -> pa.Array:
        return _binary(pa.binary(), columns.count, columns.key_validity, columns.key_offsets, columns.key_data)

    @staticmethod
    def _values(columns: Columns) -> pa.Array:
        return _binary(pa.binary(), columns.count, columns.value_validity, columns.value_offsets, columns.value_data)

    @staticmethod
    def _offsets(columns: Columns) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), columns.count, [None, _wrap(columns.offsets)])

    def _timestamps(self, columns: Columns) -> pa.Array:
        """Return ms as µs; no timestamp (-1) becomes the instant 1 ms before the epoch, as in the JVM connector."""
        in_ms = pa.types.is_int64(self._schema.field("timestamp").type)
        if columns.timestamps is None:
            none = _NO_TIMESTAMP if in_ms else pa.scalar(-1000, TIMESTAMP_TYPE)
            return pa.repeat(none, columns.count)
        ms = pa.Array.from_buffers(_MS_TYPE, columns.count, [None, _wrap(columns.timestamps)])
        if in_ms:
            return ms.view(pa.int64())
        try:
            return ms.cast(TIMESTAMP_TYPE)
        except pa.ArrowInvalid:
            return self._fitting(ms.view(pa.int64()), self._offsets(columns)).view(_MS_TYPE).cast(TIMESTAMP_TYPE)

    def _fitting(self, ms: pa.Int64Array, offsets: pa.Int64Array) -> pa.Int64Array:
        """Return timestamps of which some are beyond what microseconds can hold; brokers admit those."""
        if self._beyond is None:
            return pc.max_element_wise(pc.min_element_wise(ms, TIMESTAMP_LIMIT_MS), -TIMESTAMP_LIMIT_MS)
        is_beyond = pc.or_(pc.greater(ms, TIMESTAMP_LIMIT_MS), pc.less(ms, -TIMESTAMP_LIMIT_MS))
        found = zip(offsets.filter(is_beyond).to_pylist(), ms.filter(is_beyond).to_pylist(), strict=True)
        self._beyond(list(found))
        return pc.if_else(is_beyond, pa.scalar(None, pa.int64()), ms)

    @staticmethod
    def _timestamp_types(columns: Columns) -> pa.Array:
        if columns.timestamp_types is None:
            return pa.repeat(pa.scalar(-1, pa.int32()), columns.count)
        return pa.Array.from_buffers(pa.int32(), columns.count, [None, _wrap(columns.timestamp_types)])

    def _headers(self, columns: Columns) -> pa.Array:
        headers = columns.headers
        type_ = self._schema.field("headers").type
        if headers is None:
            return pa.nulls(columns.count, type_)
        total = memoryview(headers.key_offsets).nbytes // 4 - 1
        keys = _binary(pa.string(), total, None, headers.key_offsets, headers.key_data)
        values = _binary(pa.binary(), total, headers.value_validity, headers.value_offsets, headers.value_data)
        # The schema's own names and nullability, so that the type is equal to what Spark expects.
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(type_.value_type))
        buffers = [_wrap(headers.list_validity), _wrap(headers.list_offsets)]
        return pa.Array.from_buffers(type_, columns.count, buffers, children=[pairs])


def _wrap(buffer: Any) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(buffer)


def _binary(kind: pa.DataType, count: int, validity: Any, offsets: Any, data: Any) -> pa.Array:
    if offsets is None:
        return pa.nulls(count, kind)
    return pa.Array.from_buffers(kind, count, [_wrap(validity), _wrap(offsets), _wrap(data)])


# The other way
# ----------------------------------------------------------------------------------------------------------


def columns_of(batch: pa.RecordBatch, now_ms: int = -1) -> Columns:
    """Return the ``key``, ``value``, ``timestamp`` and ``headers`` columns of a record batch, ready for encoding.

    A timestamp of null becomes ``now_ms``; one of -1 stays, as that of a record without a timestamp.

    Raises SerializationError naming the column whose type does not fit.
    """
    key_buffers = _binary_buffers(batch, "key")
    value_buffers = _binary_buffers(batch, "value")
    return Columns(
        batch.num_rows,
        timestamps=_timestamps(batch, now_ms),
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


def _timestamps(batch: pa.RecordBatch, now_ms: int) -> memoryview | bytes | None:
    array = column_or_none(batch, "timestamp")
    if array is None:
        return None
    kind = array.type
    if not pa.types.is_timestamp(kind) and not pa.types.is_integer(kind):
        raise SerializationError(f"column 'timestamp' has type {kind}: it must be timestamp, or an integer of ms")
    try:
        if pa.types.is_timestamp(kind):
            # A zone only says how to show the instant; the number is UTC either way. Finer units are cut.
            array = array.cast(pa.timestamp("ms", tz=kind.tz), safe=kind.unit == "s")
        array = pc.fill_null(array.cast(pa.int64()), pa.scalar(now_ms, pa.int64()))
    except pa.ArrowInvalid as error:
        raise SerializationError(
            f"column 'timestamp' of type {kind} holds what 64 bits of ms cannot: {error}"
        ) from error
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
