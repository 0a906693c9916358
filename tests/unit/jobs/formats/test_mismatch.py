from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_kafkalite.jobs.formats.mismatch import Explainer, json_mismatch

TIME = "TIMESTAMP (ms since the epoch, or a day or time of ISO 8601)"
INNER = StructType().add("x", LongType())


def schema_of(kind: DataType) -> StructType:
    return StructType().add("first", StringType()).add("f", kind)


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (LongType(), '"a"', 'field f is "a", and BIGINT is expected'),
        (LongType(), "1.0", "field f is 1.0, and BIGINT is expected"),
        (LongType(), "true", "field f is true, and BIGINT is expected"),
        (LongType(), "9223372036854775808", "field f is 9223372036854775808, and BIGINT is expected"),
        (IntegerType(), "-2147483649", "field f is -2147483649, and INT is expected"),
        (ByteType(), "128", "field f is 128, and TINYINT is expected"),
        (BooleanType(), "1", "field f is 1, and BOOLEAN is expected"),
        (DoubleType(), '"1.5"', 'field f is "1.5", and DOUBLE is expected'),
        (DecimalType(10, 2), '"a"', 'field f is "a", and DECIMAL(10,2) is expected'),
        (DateType(), '"2026-13-01"', 'field f is "2026-13-01", and DATE is expected'),
        (DateType(), "1", "field f is 1, and DATE is expected"),
        (TimestampType(), '"12:30"', f'field f is "12:30", and {TIME} is expected'),
        (TimestampType(), "1767225600.5", f"field f is 1767225600.5, and {TIME} is expected"),
        (TimestampType(), "1767225600000000000", f"field f is 1767225600000000000, and {TIME} is expected"),
        (TimestampNTZType(), "5", "field f is 5, and TIMESTAMP_NTZ is expected"),
        (BinaryType(), '"%"', 'field f is "%", and BINARY is expected'),
        (INNER, '{"x": "\\n"}', 'field f.x is "\\n", and BIGINT is expected'),
        (INNER, "[1]", "field f is [1], and an object (struct<x:bigint>) is expected"),
        (ArrayType(INNER), '[{"x": 1}, null, {"x": []}]', "field f[2].x is [], and BIGINT is expected"),
        (ArrayType(INNER), "{}", "field f is {}, and an array (array<struct<x:bigint>>) is expected"),
        (MapType(StringType(), LongType()), '{"a": 1, "b": "c"}', 'field f.b is "c", and BIGINT is expected'),
        (MapType(StringType(), LongType()), "0", "field f is 0, and an object (map<string,bigint>) is expected"),
    ],
)
def test_the_field_its_value_and_the_expected_type_are_named(kind: DataType, value: str, told: str) -> None:
    assert json_mismatch(b'{"first": 1, "f": ' + value.encode() + b"}", schema_of(kind)) == told


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), "-9223372036854775808"),
        (DoubleType(), "1e400"),
        (DoubleType(), '"NaN"'),
        (DecimalType(10, 2), '"1,000.5"'),
        (DateType(), '"2026-01-31"'),
        (TimestampType(), "-1"),
        (TimestampType(), '"2026-01-31T10:00:00+02:00"'),
        (BinaryType(), '"AAE="'),
        (StringType(), '{"a": 1}'),
        (INNER, '{"y": 1}'),
        (LongType(), "null"),
    ],
)
def test_what_spark_takes_is_no_difference(kind: DataType, value: str) -> None:
    assert json_mismatch(b'{"f": ' + value.encode() + b"}", schema_of(kind)) is None


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", "the value is not one JSON object: Expecting value at character 0: "),
        (b"[" * 100_000, "the value is not one JSON object"),
        (b"1" * 5000, "the value is no"),
        (b"\xff", "the value is not UTF-8 at byte 0"),
        (b'"a"', 'the value is "a", not a JSON object'),
        (json.dumps("a" * 1000).encode(), 'the value is "' + "a" * 99 + "..., not a JSON object"),
    ],
)
def test_what_is_no_object_is_told(payload: bytes, told: str) -> None:
    assert (json_mismatch(payload, INNER) or "").startswith(told)


def test_the_frame_of_a_registry_is_taken_off() -> None:
    explain = pickle.loads(pickle.dumps(Explainer("registry", INNER)))
    assert explain(b'\0\0\0\0\1{"x": "a"}') == 'field x is "a", and BIGINT is expected'
    assert explain(b'{"x": 1}').endswith("schema id are expected, and it begins with 7b 22 78 22 3a")
    assert explain(b"").endswith("and it begins with nothing")
    assert explain(None) is None
    assert Explainer("registry", None)(b"\0\0\0\0\1") is None
    assert Explainer("bytes", None)(b"\xff") is None
