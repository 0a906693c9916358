"""Record columns as the source's Arrow record batches.

Keys, values, headers and offsets are the kernel's buffers, wrapped and not copied. The columns that are the same in
every row (topic, partition, mostly timestampType) are made once per size and partition and sliced. Timestamps are
multiplied once for a batch.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.client.read_schema import TIMESTAMP_TYPE
from spark_kafkalite.records.columns import Columns

# What milliseconds may be without leaving int64 as microseconds; a hostile producer may send any int64.
_TIMESTAMP_LIMIT_MS: Final = (2**63 - 1) // 1000


class RecordBatchMaker:
    """Makes the record batches of one partition with one schema."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
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

    def _keys(self, columns: Columns) -> pa.Array:
        if columns.key_offsets is None:
            return pa.nulls(columns.count, pa.binary())
        return _binary(columns.count, columns.key_validity, columns.key_offsets, columns.key_data)

    def _values(self, columns: Columns) -> pa.Array:
        if columns.value_offsets is None:
            return pa.nulls(columns.count, pa.binary())
        return _binary(columns.count, columns.value_validity, columns.value_offsets, columns.value_data)

    @staticmethod
    def _offsets(columns: Columns) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), columns.count, [None, _wrapped(columns.offsets)])

    @staticmethod
    def _timestamps(columns: Columns) -> pa.Array:
        """Return ms as µs; no timestamp (-1) becomes the instant 1 ms before the epoch, as in the JVM connector."""
        if columns.timestamps is None:
            ms = pa.repeat(pa.scalar(-1, pa.int64()), columns.count)
        else:
            ms = pa.Array.from_buffers(pa.int64(), columns.count, [None, _wrapped(columns.timestamps)])
        try:
            us = pc.multiply_checked(ms, 1000)
        except pa.ArrowInvalid:
            clamped = pc.max_element_wise(pc.min_element_wise(ms, _TIMESTAMP_LIMIT_MS), -_TIMESTAMP_LIMIT_MS)
            us = pc.multiply(clamped, 1000)
        return us.view(TIMESTAMP_TYPE)

    @staticmethod
    def _timestamp_types(columns: Columns) -> pa.Array:
        if columns.timestamp_types is None:
            return pa.repeat(pa.scalar(-1, pa.int32()), columns.count)
        return pa.Array.from_buffers(pa.int32(), columns.count, [None, _wrapped(columns.timestamp_types)])

    def _headers(self, columns: Columns) -> pa.Array:
        headers = columns.headers
        type_ = self._schema.field("headers").type
        if headers is None:
            return pa.nulls(columns.count, type_)
        list_offsets = _wrapped(headers.list_offsets)
        total = len(memoryview(headers.key_offsets).cast("B")) // 4 - 1
        keys = pa.Array.from_buffers(
            pa.string(), total, [None, _wrapped(headers.key_offsets), _wrapped(headers.key_data)]
        )
        values = _binary(total, headers.value_validity, headers.value_offsets, headers.value_data)
        # Spark's own names and nullability, so that the type is equal to what Spark expects.
        structs = pa.StructArray.from_arrays([keys, values], fields=list(type_.value_type))
        validity = None if headers.list_validity is None else _wrapped(headers.list_validity)
        return pa.Array.from_buffers(type_, columns.count, [validity, list_offsets], children=[structs])


def _binary(count: int, validity: Any, offsets: Any, data: Any) -> pa.Array:
    bitmap = None if validity is None else _wrapped(validity)
    return pa.Array.from_buffers(pa.binary(), count, [bitmap, _wrapped(offsets), _wrapped(data)])


def _wrapped(buffer: Any) -> pa.Buffer:
    return pa.py_buffer(buffer)
