import datetime
from array import array

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_kafkalite.client.arrow import RecordBatchMaker
from spark_kafkalite.client.read_schema import READ_SCHEMA, READ_SCHEMA_WITH_HEADERS
from spark_kafkalite.records.columns import Columns, columns_from_rows
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.reading.read_schema import copied_schema, projected_schema, spark_schema

HEADERS = [[("h", b"1"), ("h", None)], None, []]


def columns(timestamps=(5, 6, 7), headers=None, values=(b"a", None, b""), keys=(None, b"k", b"kk")) -> Columns:
    made = columns_from_rows(values, keys, timestamps, headers)
    return Columns(
        made.count,
        offsets=array("q", range(10, 10 + made.count)),
        timestamp_types=array("i", [1] * made.count),
        **{
            name: getattr(made, name)
            for name in (
                "timestamps", "key_offsets", "key_data", "key_validity", "value_offsets", "value_data",
                "value_validity", "headers",
            )
        },
    )  # fmt: skip


@pytest.mark.parametrize("with_headers", [False, True])
def test_the_schema_equals_what_spark_makes_of_ours(with_headers):
    schema = spark_schema(with_headers)
    ours = READ_SCHEMA_WITH_HEADERS if with_headers else READ_SCHEMA
    assert to_arrow_schema(schema, timezone="UTC").equals(ours, check_metadata=True)
    assert projected_schema(schema).equals(ours)


def test_a_batch_holds_every_column():
    batch = RecordBatchMaker(READ_SCHEMA_WITH_HEADERS, "t", 3).batch(columns(headers=HEADERS))
    batch.validate(full=True)
    assert batch.schema.equals(READ_SCHEMA_WITH_HEADERS)
    assert batch.to_pydict() == {
        "key": [None, b"k", b"kk"],
        "value": [b"a", None, b""],
        "topic": ["t"] * 3,
        "partition": [3] * 3,
        "offset": [10, 11, 12],
        "timestamp": [datetime.datetime(1970, 1, 1, 0, 0, 0, 1000 * ms, datetime.UTC) for ms in (5, 6, 7)],
        "timestampType": [1] * 3,
        "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, None],
    }


def test_values_are_not_copied():
    data = columns(values=(b"x" * 1000,) * 3)
    value = RecordBatchMaker(READ_SCHEMA, "t", 0).batch(data).column("value")
    assert value.buffers()[2].address == pa.py_buffer(data.value_data).address


def test_headers_are_null_when_no_row_has_any():
    batch = RecordBatchMaker(READ_SCHEMA_WITH_HEADERS, "t", 0).batch(columns())
    assert batch.column("headers").to_pylist() == [None] * 3


def test_no_timestamp_is_the_instant_before_the_epoch_and_extremes_do_not_fail():
    batch = RecordBatchMaker(READ_SCHEMA, "t", 0).batch(columns(timestamps=(None, 2**63 - 1, -(2**63))))
    micros = batch.column("timestamp").view(pa.int64()).to_pylist()
    assert micros[0] == -1000
    assert micros[1] == (2**63 - 1) // 1000 * 1000
    assert micros[2] == -micros[1]


def test_times_beyond_microseconds_are_told_one_by_one():
    told = []
    maker = RecordBatchMaker(READ_SCHEMA, "t", 0, told.extend)
    batch = maker.batch(columns(timestamps=(5, 2**63 - 1, -(2**63))))
    assert told == [(11, 2**63 - 1), (12, -(2**63))]
    assert batch.column("timestamp").view(pa.int64()).to_pylist() == [5000, None, None]


@pytest.mark.parametrize("timestamps", [(None, 2**63 - 1, -(2**63)), None])
def test_a_projection_may_have_milliseconds_as_they_are(timestamps):
    projected = projected_schema(copied_schema("offset", "timestamp"))
    batch = RecordBatchMaker(projected, "t", 0).batch(columns(timestamps=timestamps))
    assert batch.schema == pa.schema([("offset", pa.int64()), ("timestamp", pa.int64())])
    assert batch.column("timestamp").to_pylist() == [-1, *(timestamps or (0, -1, -1))[1:]]


def test_columns_without_keys():
    batch = RecordBatchMaker(READ_SCHEMA, "t", 0).batch(columns(keys=(None, None, None)))
    assert batch.column("key").null_count == 3


def test_constant_columns_are_made_once_and_sliced():
    maker = RecordBatchMaker(READ_SCHEMA, "t", 7)
    long = maker.batch(columns())
    short = maker.batch(columns((1,), None, (b"v",), (None,)))
    assert short.column("partition").to_pylist() == [7]
    assert short.column("partition").buffers()[1].address == long.column("partition").buffers()[1].address


def test_a_projection_keeps_order_and_nullability():
    schema = StructType().add("offset", "long", False).add("value", "binary")
    projected = projected_schema(schema)
    batch = RecordBatchMaker(projected, "t", 0).batch(columns())
    assert batch.schema.names == ["offset", "value"]
    assert not batch.schema.field("offset").nullable
    assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)


def test_a_projection_to_nothing_keeps_the_number_of_rows():
    assert RecordBatchMaker(pa.schema([]), "t", 0).batch(columns()).num_rows == 3


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (StructType().add("values", "binary"), "schema=values: no such column; take some of key, value, "),
        (StructType().add("value", "string"), "schema=value string: the column is binary in the source"),
    ],
)
def test_a_wrong_projection_is_refused(schema, text):
    with pytest.raises(SparkConditionError, match="KAFKALITE_INVALID_SCHEMA") as caught:
        projected_schema(schema)
    assert text in str(caught.value)
