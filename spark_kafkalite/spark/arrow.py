"""The source's Arrow schema, and record columns as Arrow record batches.

Owns the schema of Spark's Kafka source (``key value topic partition offset timestamp timestampType [headers]``, all
nullable, timestamps as microseconds in UTC) in both of its forms, and the projection that a user's own ``.schema(...)``
asks for. Spark checks a batch's schema for equality with its own, names, order, types and nullability.

Keys, values, headers and offsets are the kernel's buffers, wrapped and not copied. The columns that are the same in
every row (topic, partition, mostly timestampType) are made once per size and partition and sliced. Timestamps are
multiplied once for a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.client.arrow import READ_SCHEMA, TIMESTAMP_TYPE
from spark_kafkalite.records.columns import Columns
from spark_kafkalite.spark.conditions import INVALID_SCHEMA, SparkConditionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# With the name that Spark gives a list's items.
HEADERS_TYPE: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
READ_SCHEMA_WITH_HEADERS: Final = READ_SCHEMA.append(pa.field("headers", HEADERS_TYPE))

# What milliseconds may be without leaving int64 as microseconds; a hostile producer may send any int64.
_TIMESTAMP_LIMIT_MS: Final = (2**63 - 1) // 1000


def spark_schema(include_headers: bool) -> StructType:
    """Return the schema that Spark sees."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    return StructType(fields)


def projected_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the columns that Spark asks for: all of ours, or those of a user's ``.schema(...)``.

    Raises SparkConditionError for a column that the source does not have, or that has another type there.
    """
    ours = {field.name: field for field in spark_schema(include_headers=True)}
    fields = []
    for field in schema:
        mine = ours.get(field.name)
        if mine is None:
            raise SparkConditionError(
                INVALID_SCHEMA,
                f"schema={field.name}: no such column; take some of {', '.join(ours)}, or leave out .schema()",
            )
        # Compared without nullability, which a user may state either way.
        if field.dataType.simpleString() != mine.dataType.simpleString():
            raise SparkConditionError(
                INVALID_SCHEMA,
                f"schema={field.name} {field.dataType.simpleString()}: the column is {mine.dataType.simpleString()} "
                "in the source; read it as that and cast it, or leave out .schema()",
            )
        arrow_field = READ_SCHEMA_WITH_HEADERS.field(field.name)
        if field.name == "headers":
            arrow_field = _arrow_of(schema, field.name)
        fields.append(arrow_field.with_nullable(field.nullable))
    return pa.schema(fields)


def _arrow_of(schema: StructType, name: str) -> pa.Field:
    """Return Spark's own Arrow field: nullability inside a nested type follows what the user wrote."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC").field(name)


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
