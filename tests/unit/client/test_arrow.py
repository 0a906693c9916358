"""Columns to Arrow and back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafkalite.client.arrow import RecordBatchMaker, columns_of
from spark_kafkalite.client.read_schema import READ_SCHEMA, READ_SCHEMA_WITH_HEADERS
from spark_kafkalite.errors import SerializationError
from spark_kafkalite.records.kernel import ColumnBuilder, Columns, OpenBatch, read_header

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def decoded(with_headers: bool = True) -> Columns:
    builder = OpenBatch(10_000)
    builder.append(1_700_000_000_123, b"k", b"v0", [("a", b"1"), ("a", None)])
    builder.append(-1, None, None, None)
    builder.append(5, b"", b"", [])
    encoded = builder.build(0, None)
    columns = ColumnBuilder(with_headers)
    columns.add_batch(encoded, 0, read_header(encoded), None)
    return columns.finish()


def test_rows_have_the_schema_of_sparks_source() -> None:
    batch = RecordBatchMaker(READ_SCHEMA_WITH_HEADERS, "t", 4).batch(decoded())
    batch.validate(full=True)
    # Names inside of lists do not count for ==, and Spark asks for its own.
    assert batch.schema.equals(READ_SCHEMA_WITH_HEADERS, check_metadata=True)
    assert batch.schema.field("headers").type.value_field.name == "element"
    rows = batch.to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"v0"), (None, None), (b"", b"")]
    assert [(row["topic"], row["partition"], row["offset"], row["timestampType"]) for row in rows] == [
        ("t", 4, 0, 0), ("t", 4, 1, 0), ("t", 4, 2, 0)
    ]  # fmt: skip
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, -1_000, 5_000]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert rows[1]["headers"] is None and rows[2]["headers"] is None


def test_headers_are_left_out_when_not_wanted() -> None:
    batch = RecordBatchMaker(READ_SCHEMA, "t", 0).batch(decoded(False))
    assert batch.schema == READ_SCHEMA
    without = RecordBatchMaker(READ_SCHEMA_WITH_HEADERS, "t", 0).batch(decoded(False))
    assert without.column("headers").null_count == 3


def table() -> pa.Table:
    return pa.table(
        {
            "key": pa.array([b"k0", None, b"k2", b""], pa.binary()),
            "value": pa.array(["v0", None, "v2", "é"], pa.string()),
            "timestamp": pa.array([1_500, None, 2_500, 3_500], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("a", b"1")], None, [], [("b", None), ("c", b"")]], HEADERS),
        }
    )


@pytest.mark.parametrize("first", range(4))
def test_slices_are_taken_where_they_begin(first: int) -> None:
    columns = columns_of(table().slice(first).to_batches()[0])
    keys = [b"k0", None, b"k2", b""]
    values = [b"v0", None, b"v2", "é".encode()]
    timestamps = [1, -1, 2, 3]
    headers = [[("a", b"1")], [], [], [("b", None), ("c", b"")]]
    for row in range(columns.count):
        assert columns.key_at(row) == keys[first + row]
        assert columns.value_at(row) == values[first + row]
        assert columns.timestamp_at(row) == timestamps[first + row]
        assert columns.headers_at(row) == headers[first + row]


@pytest.mark.parametrize(
    "kind", [pa.large_binary(), pa.large_string(), pa.binary(2), pa.binary_view(), pa.string_view()]
)
def test_other_binary_types_are_converted(kind: pa.DataType) -> None:
    batch = pa.record_batch({"value": pa.array([b"ab", b"cd"], pa.binary()).cast(kind)})
    columns = columns_of(batch)
    assert [columns.value_at(row) for row in range(2)] == [b"ab", b"cd"]


def test_dictionaries_are_decoded() -> None:
    batch = pa.record_batch({"value": pa.array(["x", "y", "x"]).dictionary_encode()})
    columns = columns_of(batch)
    assert [columns.value_at(row) for row in range(3)] == [b"x", b"y", b"x"]


def test_missing_and_null_columns_are_null() -> None:
    columns = columns_of(pa.record_batch({"value": pa.array([b"x"], pa.binary()), "key": pa.nulls(1)}))
    assert columns.key_at(0) is None and columns.timestamp_at(0) == -1 and columns.headers_at(0) == []


def test_integers_are_milliseconds() -> None:
    columns = columns_of(pa.record_batch({"value": [b"x", b"y"], "timestamp": pa.array([7, None], pa.int64())}))
    assert [columns.timestamp_at(row) for row in range(2)] == [7, -1]


def test_a_null_is_the_time_of_sending_and_minus_one_is_none() -> None:
    batch = pa.record_batch({"value": [b"x", b"y", b"z"], "timestamp": pa.array([7, None, -1], pa.int64())})
    assert [columns_of(batch, 99).timestamp_at(row) for row in range(3)] == [7, 99, -1]
    assert columns_of(batch.select(["value"]), 99).timestamps is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"value": pa.array([1])}, "column 'value' has type int64"),
        ({"value": [b"x"], "key": pa.array([1.5])}, "column 'key' has type double"),
        ({"value": [b"x"], "timestamp": ["now"]}, "column 'timestamp' has type string"),
        (
            {"value": [b"x"], "timestamp": pa.array([2**63], pa.uint64())},
            "column 'timestamp' of type uint64 holds what",
        ),
        (
            {"value": [b"x"], "timestamp": pa.array([2**62], pa.timestamp("s"))},
            "column 'timestamp' of type timestamp[s]",
        ),
        ({"value": [b"x"], "headers": [["a"]]}, "column 'headers' has type list<item: string>"),
    ],
)
def test_types_that_do_not_fit_are_named(fields: dict[str, object], text: str) -> None:
    with pytest.raises(SerializationError) as raised:
        columns_of(pa.record_batch(fields))
    assert text in str(raised.value)


def test_a_header_needs_a_key() -> None:
    batch = pa.record_batch({"value": [b"x"], "headers": pa.array([[(None, b"1")]], HEADERS)})
    with pytest.raises(SerializationError, match="header whose key is null"):
        columns_of(batch)
