import logging
import time

import pytest
from pyspark.sql import functions as F

from tests.patience import PATIENCE_S

from .topics import last_line

pytestmark = pytest.mark.spark


def save(topics, frame, **given):
    frame.write.format("kafkalite").options(**topics.options(given)).mode("append").save()


@pytest.mark.versions
def test_round_trip_of_every_column(topics_anywhere, spark):
    topics = topics_anywhere
    topic = topics.new(2)
    frame = spark.sql(
        "SELECT 'k' AS key, 'v' AS value, 1 AS partition, array(named_struct('key', 'h', 'value', X'01')) AS headers, "
        "timestamp_millis(1357034400123) AS timestamp, 'ignored' AS extra "
        "UNION ALL SELECT null, null, 1, null, timestamp_millis(7), 'ignored'"
    ).coalesce(1)
    save(topics, frame, topic=topic)
    rows = (
        topics.read(topic, includeHeaders="true")
        .orderBy("offset")
        .withColumn("ms", F.unix_millis("timestamp"))
        .collect()
    )
    assert [(row.key, row.value, row.partition, row.ms, row.timestampType) for row in rows] == [
        (b"k", b"v", 1, 1357034400123, 0),
        (None, None, 1, 7, 0),
    ]
    assert [tuple(header) for header in rows[0].headers] == [("h", b"\x01")]
    assert rows[1].headers is None


def test_the_topic_column_routes_and_the_option_wins(topics, spark):
    one, other = topics.new(), topics.new()
    frame = spark.range(10).select(
        F.col("id").cast("string").alias("value"), F.when(F.col("id") < 4, one).otherwise(other).alias("topic")
    )
    save(topics, frame)
    assert len(topics.values(one)) == 4
    assert len(topics.values(other)) == 6
    save(topics, frame, topic=one)
    assert len(topics.values(one)) == 14


def test_timestamps_may_be_long_milliseconds(topics, spark):
    topic = topics.new()
    save(topics, spark.sql("SELECT 'v' AS value, 1357034400123L AS timestamp"), topic=topic)
    assert topics.read(topic).select(F.unix_millis("timestamp")).first()[0] == 1357034400123


@pytest.mark.any_spark
def test_keys_decide_the_partition_as_kafkas_own_clients_do(topics, spark):
    from confluent_kafka import Producer as Confluent

    ours, theirs = topics.new(5), topics.new(5)
    save(topics, spark.range(200).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value"), topic=ours)
    confluent = Confluent({"bootstrap.servers": topics.bootstrap, "partitioner": "murmur2_random"})
    for number in range(200):
        confluent.produce(theirs, str(number), str(number))
    assert confluent.flush(PATIENCE_S) == 0
    placed = [dict(topics.read(topic).select("key", "partition").collect()) for topic in (ours, theirs)]
    assert placed[0] == placed[1]
    assert len(set(placed[0].values())) == 5


@pytest.mark.versions
def test_every_row_arrives_once_from_many_tasks(topics, spark):
    topic = topics.new(3)
    save(topics, spark.range(0, 100_000, 1, 4).selectExpr("cast(id AS string) AS value"), topic=topic)
    row = topics.read(topic).agg(F.count("*"), F.countDistinct("value")).first()
    assert tuple(row) == (100_000, 100_000)


def test_empty_input_writes_nothing(topics, spark):
    topic = topics.new()
    save(topics, spark.range(0).selectExpr("cast(id AS string) AS value"), topic=topic)
    assert topics.values(topic) == []


@pytest.mark.any_spark
def test_compression_is_a_client_option(topics, spark):
    topic = topics.new()
    save(topics, spark.range(1000).selectExpr("'x' AS value"), topic=topic, **{"kafka.compression.type": "zstd"})
    assert topics.values(topic) == ["x"] * 1000


def test_sql_insert(topics, spark):
    topic = topics.new()
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW source USING kafkalite OPTIONS (`kafka.bootstrap.servers` '{topics.bootstrap}', "  # noqa: E501
        f"subscribe '{topic}')"
    )
    spark.sql("SELECT 'a' AS value").write.format("kafkalite").options(**topics.options({"topic": topic})).mode(
        "append"
    ).save()
    assert spark.sql("SELECT cast(value AS string) FROM source").first()[0] == "a"


@pytest.mark.parametrize(
    ("query", "given", "expected"),
    [
        (
            "SELECT 'v' AS v",
            {"topic": "t"},
            "[KAFKALITE_INVALID_SCHEMA] column value=(missing): the data has v; add a column named value of type binary or string",  # noqa: E501
        ),
        pytest.param(
            "SELECT 'v' AS value", {}, "[KAFKALITE_INVALID_SCHEMA] column topic=(missing): ", marks=pytest.mark.versions
        ),
        ("SELECT 1 AS value", {"topic": "t"}, "[KAFKALITE_INVALID_SCHEMA] column value=int: must be binary or string; "),  # noqa: E501
        ("SELECT 'v' AS value, 1L AS partition", {"topic": "t"}, "[KAFKALITE_INVALID_SCHEMA] column partition=bigint: must be int; "),  # noqa: E501
        ("SELECT 'v' AS value, 1 AS timestamp", {"topic": "t"}, "[KAFKALITE_INVALID_SCHEMA] column timestamp=int: must be timestamp or bigint"),  # noqa: E501
        ("SELECT 'v' AS value, array('a') AS headers", {"topic": "t"}, "[KAFKALITE_INVALID_SCHEMA] column headers=array<string>: "),  # noqa: E501
        ("SELECT 'v' AS value", {"topic": "a b"}, "[KAFKALITE_INVALID_OPTION] topic=a b: "),
        ("SELECT 'v' AS value", {"topic": "t", "topik": "x"}, "[KAFKALITE_UNKNOWN_OPTION] topik=x: there is no such option; did you mean topic?"),  # noqa: E501
        ("SELECT 'v' AS value", {"topic": "t", "kafka.acks": "7"}, "[KAFKALITE_INVALID_OPTION] kafka.acks=7: "),
        ("SELECT 'v' AS value", {"topic": "t", "kafka.key.serializer": "x"}, "[KAFKALITE_INVALID_OPTION] kafka.key.serializer=x: not allowed"),  # noqa: E501
        ("SELECT 'v' AS value", {"topic": "t", "kafka.sasl.jass.config": "pw"}, "[KAFKALITE_UNKNOWN_OPTION] kafka.sasl.jass.config=*********(redacted): "),  # noqa: E501
    ],
)  # fmt: skip
def test_mistakes_are_errors_of_the_plan(topics, spark, query, given, expected):
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        save(topics, spark.sql(query), **given)
    assert last_line(caught.value).startswith(expected)


@pytest.mark.any_spark
def test_no_broker_is_an_error_of_the_plan(spark, unused_address):
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        frame.write.format("kafkalite").option("kafka.bootstrap.servers", unused_address).option("topic", "t").option(
            "kafka.max.block.ms", "1000"
        ).mode("append").save()
    assert last_line(caught.value).startswith(
        f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={unused_address}: "
    )


def test_a_null_topic_is_named(topics, spark):
    frame = spark.sql("SELECT 'v' AS value, CAST(null AS string) AS topic")
    with pytest.raises(Exception, match="KAFKA_NULL_TOPIC_IN_DATA") as caught:
        save(topics, frame)
    assert last_line(caught.value).startswith(
        "[KAFKA_NULL_TOPIC_IN_DATA] column topic=null: 1 of 1 rows have no topic; "
    )


def test_overwriting_is_refused(topics, spark):
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        frame.write.format("kafkalite").options(**topics.options({"topic": "t"})).mode("overwrite").save()
    assert last_line(caught.value).startswith("[KAFKALITE_INVALID_OPTION] mode=overwrite: a topic is a log")


@pytest.mark.any_spark
def test_old_timestamps_are_counted_per_topic(topics, caplog):
    """The warning is made in Spark's own processes; its parts are looked at here."""
    import pyarrow as pa
    from pyspark.sql.types import LongType, StringType, StructType

    from spark_kafkalite.spark.options.options import writer_options
    from spark_kafkalite.spark.sink.writer import KafkaliteBatchWriter

    topic, kept = topics.new(retention_ms="604800000"), topics.new(retention_ms="-1")
    schema = StructType().add("value", StringType()).add("timestamp", LongType())
    rows = pa.record_batch(
        {"value": ["a", "b", "c"], "timestamp": pa.array([1000, None, time.time_ns() // 1_000_000], pa.int64())}
    )
    for name in (topic, kept):
        writer = KafkaliteBatchWriter(writer_options(topics.options({"topic": name})), schema)
        message = writer.write(iter([rows]))
        with caplog.at_level(logging.WARNING):
            writer.commit([message, None])
    assert f"1 records written to topic {topic} have timestamps already past its retention.ms=604800000" in caplog.text
    assert kept not in caplog.text
