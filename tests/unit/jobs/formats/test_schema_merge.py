from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_kafkalite.jobs.formats.schema_merge import SchemaConflict, is_equal, merged, missing_fields
from spark_kafkalite.spark.reading.read_schema import spark_schema


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


LONG, TEXT = LongType(), StringType()
HEADERS = ArrayType(struct(key=TEXT, value=BinaryType()))


@pytest.mark.parametrize(
    ("before", "after", "both", "added"),
    [
        (struct(a=LONG), struct(a=LONG, b=TEXT), struct(a=LONG, b=TEXT), ["b"]),
        (struct(a=LONG, b=TEXT), struct(b=TEXT, a=LONG), struct(a=LONG, b=TEXT), []),
        (
            struct(a=struct(x=LONG)),
            struct(c=TEXT, a=struct(y=TEXT, x=LONG)),
            struct(a=struct(x=LONG, y=TEXT), c=TEXT),
            ["c", "a.y"],
        ),
        (
            struct(a=ArrayType(struct(x=LONG))),
            struct(a=ArrayType(struct(x=LONG, y=TEXT))),
            struct(a=ArrayType(struct(x=LONG, y=TEXT))),
            ["a[].y"],
        ),
        (
            struct(a=MapType(TEXT, struct(x=LONG))),
            struct(a=MapType(TEXT, struct(x=LONG, y=struct(z=LONG)))),
            struct(a=MapType(TEXT, struct(x=LONG, y=struct(z=LONG)))),
            ["a{}.y"],
        ),
        (struct(value=LONG), struct(value=LONG, headers=HEADERS), struct(value=LONG, headers=HEADERS), ["headers"]),
    ],
)
def test_added_fields_merge(before: StructType, after: StructType, both: StructType, added: list[str]) -> None:
    assert merged(before, after) == both
    assert list(missing_fields(after, before)) == added
    assert list(missing_fields(before, after)) == []
    # What one has and the other lacks is in both orders.
    assert is_equal(merged(after, before), both)
    assert is_equal(before, after) is (added == [])


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (struct(a=LONG), struct(a=TEXT), "field a is bigint in one and string in the other"),
        # Not even a wider type: JSON, ORC and other readers of Parquet do not agree about it.
        (struct(a=IntegerType()), struct(a=LONG), "field a is int in one and bigint in the other"),
        (struct(a=struct(x=LONG)), struct(a=struct(x=TEXT)), "field a.x is bigint in one and string in the other"),
        (struct(a=ArrayType(LONG)), struct(a=ArrayType(TEXT)), "field a[] is bigint in one and string in"),
        (struct(a=MapType(TEXT, LONG)), struct(a=MapType(LONG, LONG)), "field a{key} is string in one and bigint in"),
        (struct(a=struct(x=LONG)), struct(a=ArrayType(LONG)), "field a is struct<x:bigint> in one and array<bigint>"),
        (struct(value=BinaryType()), struct(value=struct(id=LONG)), "field value is binary in one and struct<id:"),
        (struct(a=struct(id=LONG)), struct(a=struct(Id=LONG)), "field a.Id is spelled id in one and spelled Id in"),
    ],
)
def test_other_changes_name_the_field_and_both_types(before: StructType, after: StructType, told: str) -> None:
    with pytest.raises(SchemaConflict) as caught:
        merged(before, after)
    assert str(caught.value).startswith(told)
    assert not is_equal(before, after)


def test_files_of_older_versions_without_headers_merge() -> None:
    assert list(missing_fields(spark_schema(True), spark_schema(False))) == ["headers"]
    assert is_equal(merged(spark_schema(False), spark_schema(True)), spark_schema(True))


def test_nullability_does_not_count() -> None:
    required = StructType([StructField("a", ArrayType(LONG, containsNull=False), nullable=False)])
    assert is_equal(required, struct(a=ArrayType(LONG)))
