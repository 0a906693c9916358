"""The source's schema, as Spark and as Arrow see it.

The Arrow form is the consumer's (:mod:`spark_kafkalite.client.read_schema`). Owns the form that Spark sees, and the
projection that a user's own ``.schema(...)`` asks for. Spark checks a batch's schema for equality with its own, names,
order, types and nullability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafkalite.spark.conditions import INVALID_SCHEMA, SparkConditionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


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


def copied_schema(*names: str) -> StructType:
    """Return the columns of these names, with timestamps in milliseconds: what a copy writes as it has read it.

    Spark's timestamps do not hold all that a log may have.
    """
    from pyspark.sql.types import LongType, StructField, StructType

    fields = [field for field in spark_schema(include_headers=True) if field.name in names]
    return StructType(
        [StructField("timestamp", LongType()) if field.name == "timestamp" else field for field in fields]
    )


def projected_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the columns that Spark asks for: all our columns, or those of ``.schema(...)``.

    Of these, ``timestamp`` may also be a bigint: the milliseconds as they are in the log.

    Raises SparkConditionError for a column that the source does not have, or that has another type there.
    """
    # ``.load()`` needs the form that Spark sees only, in a process that need not import Arrow.
    import pyarrow as pa

    from spark_kafkalite.client.read_schema import READ_SCHEMA_WITH_HEADERS

    ours = {field.name: field for field in spark_schema(include_headers=True)}
    fields = []
    for field in schema:
        mine = ours.get(field.name)
        if mine is None:
            raise SparkConditionError(
                INVALID_SCHEMA,
                f"schema={field.name}: no such column; take some of {', '.join(ours)}, or leave out .schema()",
            )
        if field.name == "timestamp" and field.dataType.simpleString() == "bigint":
            fields.append(pa.field(field.name, pa.int64(), field.nullable))
            continue
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
    from spark_kafkalite.spark.pyspark_versions import arrow_schema

    return arrow_schema(schema).field(name)
