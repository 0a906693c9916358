import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_kafkalite.errors import DeliveryTimeout, InvalidTimestamp
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import writer_options
from spark_kafkalite.spark.sink.writer import (
    KafkaliteBatchWriter,
    TimestampRules,
    WrittenMessage,
    _by_topic,
    _Expiry,
    check_schema,
)

HEADERS = "array<struct<key:string,value:binary>>"


def schema(**types: str) -> StructType:
    made = StructType()
    for name, type_ in types.items():
        made = made.add(name, type_)
    return made


def test_columns_are_picked_by_name_and_others_ignored():
    given = schema(
        extra="double", value="string", key="binary", topic="string", partition="integer", timestamp="timestamp"
    )
    assert set(check_schema(given, None)) == {"topic", "key", "value", "partition", "timestamp"}


def test_the_option_wins_over_the_column_whatever_its_type():
    assert check_schema(schema(value="binary", topic="integer"), "t") == ("value",)


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ({"key": "binary", "topic": "string"}, "column value=(missing): the data has key, topic; add "),
        ({"value": "binary"}, "column topic=(missing): the target is not set; set the option topic, "),
        ({"Value": "binary", "topic": "string"}, "column value=(missing): the data has Value, topic; add "),
        ({"value": "double", "topic": "string"}, "column value=double: must be binary or string; cast it "),
        ({"value": "binary", "topic": "binary"}, "column topic=binary: must be string; cast it to string"),
        ({"value": "binary", "topic": "string", "partition": "long"}, "column partition=bigint: must be int; "),
        ({"value": "binary", "topic": "string", "timestamp": "date"}, "column timestamp=date: must be timestamp or bigint; "),  # noqa: E501
    ],
)  # fmt: skip
def test_wrong_columns_are_refused(types, text):
    with pytest.raises(SparkConditionError) as caught:
        check_schema(schema(**types), None)
    assert str(caught.value).splitlines()[-1].startswith(f"[KAFKALITE_INVALID_SCHEMA] {text}")


def test_rows_are_grouped_by_topic_in_order():
    batch = pa.record_batch({"topic": ["a", "b", "a"], "value": ["1", "2", "3"]})
    groups = [(topic, rows.to_pydict()) for topic, rows in _by_topic(batch)]
    assert groups == [("a", {"value": ["1", "3"]}), ("b", {"value": ["2"]})]


def test_one_topic_is_not_copied():
    batch = pa.record_batch({"topic": ["a", "a"], "value": ["1", "2"]})
    [(_, rows)] = _by_topic(batch)
    assert rows.column("value").buffers()[2].address == batch.column("value").buffers()[2].address


def test_a_null_topic_is_found_before_anything_is_sent():
    batch = pa.record_batch({"topic": ["a", None], "value": ["1", "2"]})
    with pytest.raises(SparkConditionError, match=r"KAFKA_NULL_TOPIC_IN_DATA.*1 of 2 rows"):
        next(_by_topic(batch))


def test_no_row_expires_by_a_timestamp_that_the_broker_replaces(monkeypatch, caplog):
    rules = TimestampRules(1000, is_replaced=True)
    monkeypatch.setattr("spark_kafkalite.spark.sink.writer.timestamp_rules", lambda client, topic: rules)
    expiry = _Expiry({})
    expiry.count("stamped", pa.array([0], pa.int64()))
    assert (expiry.counts, expiry.replaced) == ({}, {"stamped"})
    writer = KafkaliteBatchWriter(
        writer_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "stamped"}),
        schema(value="binary", timestamp="long"),
    )
    for _ in range(2):
        writer.commit([WrittenMessage(1, expiry.counts, expiry.replaced)])
    [line] = caplog.messages
    assert "timestamp has no effect on topic stamped: it has message.timestamp.type=LogAppendTime" in line


@pytest.mark.parametrize(("error", "repeats"), [(InvalidTimestamp("x"), False), (DeliveryTimeout("x"), True)])
def test_only_what_may_pass_is_advice_to_run_again(error, repeats):
    writer = KafkaliteBatchWriter(
        writer_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}), schema(value="binary")
    )
    assert ("run it again" in str(writer._explained(error))) is repeats


@pytest.mark.parametrize("retention", [-1, 1000])
def test_expired_rows_are_counted_for_both_kinds_of_timestamps(monkeypatch, retention):
    monkeypatch.setattr(
        "spark_kafkalite.spark.sink.writer.timestamp_rules", lambda client, topic: TimestampRules(retention)
    )
    expiry = _Expiry({})
    expiry.count("t", pa.array([0, None, 2**45], pa.int64()))
    expiry.count("t", pa.array([0, None, 2**55], pa.timestamp("us", tz="UTC")))
    assert expiry.counts == ({} if retention < 0 else {"t": 2})
