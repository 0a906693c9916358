import datetime

import pyspark
import pytest
from pyspark.sql import functions as F

from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark


@pytest.mark.versions
def test_columns_and_values(topics_anywhere):
    topics = topics_anywhere
    topic = topics.new(2)
    topics.producer.send(topic, b"v", b"k", partition=1, timestamp_ms=1_357_034_400_123)
    topics.producer.send(topic, None, b"", partition=1, timestamp_ms=0, headers=[("h", b"1"), ("h", None)])
    topics.producer.send(topic, b"", None, partition=0, timestamp_ms=5)
    topics.producer.flush(PATIENCE_S)

    frame = topics.read(topic, includeHeaders="true")

    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in frame.schema)
    rows = frame.orderBy("partition", "offset").collect()
    assert [(row.key, row.value, row.topic, row.partition, row.offset, row.timestampType) for row in rows] == [
        (None, b"", topic, 0, 0, 0),
        (b"k", b"v", topic, 1, 0, 0),
        (b"", None, topic, 1, 1, 0),
    ]
    micros = [row[0] for row in frame.orderBy("partition", "offset").select(F.unix_micros("timestamp")).collect()]
    assert micros == [5_000, 1_357_034_400_123_000, 0]
    assert rows[0].headers is None
    assert rows[1].headers is None
    assert [(header.key, header.value) for header in rows[2].headers] == [("h", b"1"), ("h", None)]


@pytest.mark.any_spark
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_topics(topics, codec):
    from spark_kafkalite import Producer

    topic = topics.new()
    with Producer({"bootstrap.servers": topics.bootstrap, "compression.type": codec}) as producer:
        producer.send_batch(topic, [b"%d" % number * 20 for number in range(3000)]).result(PATIENCE_S)
    assert topics.values(topic) == [f"{number}" * 20 for number in range(3000)]


def test_pattern_and_assign(topics):
    one, other = topics.new(2, "abc"), topics.new(1, "xbcx")
    for partition in (0, 1):
        topics.fill(one, [f"one{partition}"], partition)
    topics.fill(other, ["other"])
    prefix = one.split("-")[0]
    # Found anywhere in the name, as Spark's own source does.
    assert sorted(topics.values(subscribePattern=f"^{prefix}-.*bc")) == ["one0", "one1", "other"]
    # A partition that does not exist is left out.
    assert topics.values(assign=f'{{"{one}":[1,7]}}') == ["one1"]


@pytest.mark.any_spark
def test_several_topics(topics):
    one, other = topics.new(), topics.new()
    topics.fill(one, ["a"])
    topics.fill(other, ["b"])
    assert topics.values(f"{one}, {other}") == ["a", "b"]


@pytest.mark.any_spark
def test_offsets_and_sentinels(topics):
    topic = topics.new(2)
    topics.fill(topic, range(10), 0)
    topics.fill(topic, range(10, 20), 1)
    start = f'{{"{topic}":{{"0":8,"1":-2}}}}'
    end = f'{{"{topic}":{{"0":-1,"1":2}}}}'
    assert topics.values(topic, startingOffsets=start, endingOffsets=end) == ["8", "9", "10", "11"]


@pytest.mark.any_spark
def test_an_end_beyond_the_log_is_the_logs_where_loss_is_allowed(topics):
    topic = topics.new()
    topics.fill(topic, ["a", "b"])
    beyond = f'{{"{topic}":{{"0":1000}}}}'
    assert topics.values(topic, startingOffsets="earliest", endingOffsets=beyond, failOnDataLoss="false") == ["a", "b"]


@pytest.mark.any_spark
def test_times(topics):
    topic = topics.new(2)
    for number in range(10):
        topics.fill(topic, [number], 0, timestamp_ms=1_700_000_000_000 + number)
    topics.fill(topic, ["late"], 1, timestamp_ms=1_700_000_000_100)
    first = 1_700_000_000_000
    assert topics.values(topic, startingTimestamp=first + 7, endingTimestamp=first + 9) == ["7", "8"]
    assert topics.values(topic, startingTimestamp=first + 9) == ["9", "late"]
    per_partition = f'{{"{topic}":{{"0":{first + 3},"1":{first + 100}}}}}'
    ends = f'{{"{topic}":{{"0":{first + 4},"1":{first + 101}}}}}'
    assert topics.values(topic, startingOffsetsByTimestamp=per_partition, endingOffsetsByTimestamp=ends) == [
        "3",
        "late",
    ]
    assert topics.values(topic, startingTimestamp=first + 50, startingOffsetsByTimestampStrategy="latest") == ["late"]


def test_empty_topics_and_empty_ranges(topics):
    topic = topics.new(3)
    assert topics.read(topic).count() == 0
    topics.fill(topic, ["x"])
    where = f'{{"{topic}":{{"0":1,"1":0,"2":0}}}}'
    assert topics.values(topic, startingOffsets=where, endingOffsets=where) == []


@pytest.mark.any_spark
def test_splitting_applies_to_a_read_from_earliest_to_latest(topics):
    topic = topics.new(2)
    topics.fill(topic, range(100), 0)
    topics.fill(topic, range(100, 110), 1)
    split = topics.read(topic, maxRecordsPerPartition=30)
    assert split.rdd.getNumPartitions() == 5
    assert split.count() == 110
    assert topics.read(topic, minPartitions=6).rdd.getNumPartitions() == 6
    assert sorted(map(int, topics.values(topic, minPartitions=6))) == list(range(110))
    # Without such an option a topic partition is a Spark partition.
    assert topics.read(topic).rdd.getNumPartitions() == 2


def test_many_rows_in_many_record_batches(topics):
    topic = topics.new()
    topics.producer.send_batch(topic, [b"%06d" % number for number in range(150_000)]).result(PATIENCE_S)
    row = topics.read(topic).agg(F.count("*"), F.countDistinct("value"), F.max("offset")).first()
    assert tuple(row) == (150_000, 150_000, 149_999)


def test_large_values(topics):
    topic = topics.new()
    value = bytes(range(256)) * 3000
    for _ in range(30):
        topics.producer.send(topic, value)
    topics.producer.flush(PATIENCE_S)
    assert topics.read(topic).groupBy(F.sha2("value", 256)).count().first()[1] == 30


def test_a_limit_stops_early(topics):
    topic = topics.new()
    topics.fill(topic, range(1000))
    assert topics.read(topic).limit(5).count() == 5


@pytest.mark.versions
def test_a_new_load_sees_newer_records(topics):
    topic = topics.new()
    topics.fill(topic, ["1"])
    first = topics.read(topic)
    assert first.count() == 1
    topics.fill(topic, ["2"])
    assert topics.read(topic).count() == 2
    # Spark keeps what it planned for the first action; 4.0 plans each action for itself.
    assert first.count() == (2 if pyspark.__version__.startswith("4.0.") else 1)


def test_a_record_without_a_timestamp_is_the_instant_before_the_epoch(topics):
    topic = topics.new()
    topics.producer.send(topic, b"x", timestamp_ms=-1)
    topics.producer.flush(PATIENCE_S)
    row = topics.read(topic).first()
    assert row.timestamp.astimezone(datetime.UTC) == datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, datetime.UTC)


@pytest.mark.versions
def test_sql_views_and_why_no_tables(topics, spark):
    topic = topics.new()
    options = f"OPTIONS (`kafka.bootstrap.servers` '{topics.bootstrap}', subscribe '{topic}', topic '{topic}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW a_view USING kafkalite {options}")
    spark.sql(f"INSERT INTO a_view SELECT null, X'01', '{topic}', 0, 0L, current_timestamp(), 0")
    assert spark.sql("SELECT count(*) FROM a_view").first()[0] == 1
    row = spark.sql(f"SELECT null AS key, X'02' AS value, '{topic}' AS topic, 0 AS partition, 0L AS offset, "
                    "current_timestamp() AS timestamp, 0 AS timestampType")  # fmt: skip
    row.writeTo("a_view").append()
    assert topics.values(topic) == ["\x01", "\x02"]
    # The catalog would forget the options, and every use of the table would fail.
    with pytest.raises(Exception, match=r"\[KAFKALITE_UNSUPPORTED_OPTION\] provider=kafkalite: .*TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE a_table USING kafkalite {options}")


@pytest.mark.any_spark
def test_records_that_retention_took_are_data_loss(topics):
    """A range whose start is gone by the time the task runs, which only the task can see."""
    from spark_kafkalite.client.read_schema import READ_SCHEMA
    from spark_kafkalite.model import TopicPartition
    from spark_kafkalite.spark.conditions import SparkConditionError
    from spark_kafkalite.spark.options.options import reader_options
    from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
    from spark_kafkalite.spark.reading.partition_reader import read_task
    from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask

    topic = topics.new()
    topics.fill(topic, range(5))
    task = ReadTask((OffsetRange(TopicPartition(topic, 0), 7, 9),))

    def rows(fail: str) -> int:
        plan = ReadPlan.of(reader_options(topics.options({"subscribe": topic, "failOnDataLoss": fail})), READ_SCHEMA)
        return sum(batch.num_rows for batch in read_task(plan, task))

    with pytest.raises(SparkConditionError) as caught:
        rows("true")
    assert caught.value.condition == "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
    assert f"{topic}-0[7, 9)" in str(caught.value)
    assert rows("false") == 0


@pytest.mark.kafka
def test_aborted_transactions_are_hidden_when_asked(apache_kafka, spark):
    from confluent_kafka import Producer as Confluent

    from .topics import Topics

    with Topics(apache_kafka.bootstrap, spark, "transactions") as topics:
        topic = topics.new()
        confluent = Confluent({"bootstrap.servers": topics.bootstrap, "transactional.id": "spark-tests"})
        confluent.init_transactions(30)
        for value, ends in (
            ("a", confluent.commit_transaction),
            ("b", confluent.abort_transaction),
            ("c", confluent.commit_transaction),
        ):
            confluent.begin_transaction()
            confluent.produce(topic, value, partition=0)
            confluent.flush(PATIENCE_S)
            ends(30)
        assert topics.values(topic) == ["a", "b", "c"]
        # The end of the last transaction is acknowledged before its marker is in the log.
        wait_until(
            lambda: topics.values(topic, **{"kafka.isolation.level": "read_committed"}) == ["a", "c"],
            "the last transaction to be seen",
        )
        # Markers have offsets of their own, and the last one ends the range.
        committed = topics.read(topic, **{"kafka.isolation.level": "read_committed"})
        assert [row.offset for row in committed.orderBy("offset").collect()] == [0, 4]
        # "latest" is the last stable offset: an open transaction holds it back.
        confluent.begin_transaction()
        confluent.produce(topic, "open", partition=0)
        confluent.flush(PATIENCE_S)
        topics.fill(topic, ["behind"])
        assert topics.values(topic)[-2:] == ["open", "behind"]
        assert topics.values(topic, **{"kafka.isolation.level": "read_committed"}) == ["a", "c"]
        confluent.abort_transaction(30)
