"""What a task of the Spark sink writes, on our broker and Apache Kafka; what plans a write is in tests/spark."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_kafkalite import Consumer, Producer, Record
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import writer_options
from spark_kafkalite.spark.sink.writer import KafkaliteBatchWriter
from spark_kafkalite.spark.source import KafkaliteDataSource
from spark_kafkalite.spark.workers import connections
from tests.interop.support.collect import collected
from tests.interop.support.said import said_by
from tests.patience import PATIENCE_S

SCHEMA = StructType().add("key", "string").add("value", "binary").add("partition", "integer").add("not ours", "double")
PARTITIONS = 4


def rows(*given: tuple[str | None, bytes | None, int | None]) -> pa.RecordBatch:
    keys, values, partitions = zip(*given, strict=True)
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.string()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array(partitions, pa.int32()),
            "not ours": pa.array([1.5] * len(given)),
        }
    )


def writer(bootstrap: str, topic: str, **given: str) -> KafkaliteBatchWriter:
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **given}
    return KafkaliteBatchWriter(writer_options(options), SCHEMA)


def written(bootstrap: str, topic: str, count: int) -> list[Record]:
    """Return what is in the topic now, which must be ``count`` records."""
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        assert sum(consumer.end_offsets(partitions).values()) == count
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        return collected(lambda: consumer.poll(500), count)


def test_a_partition_is_taken_and_where_it_is_null_the_key_decides(bootstrap: str, topic: str) -> None:
    keys = [f"key-{number}" for number in range(40)]
    with Producer(bootstrap_servers=bootstrap) as producer:
        by_key = {key: producer.send(topic, b"", key.encode()).result(PATIENCE_S).partition for key in keys}
    assert set(by_key.values()) == set(range(PARTITIONS))
    chosen = [3 if number % 2 else None for number in range(len(keys))]
    sent = rows(*[(key, b"v", partition) for key, partition in zip(keys, chosen, strict=True)])
    writer(bootstrap, topic).write(iter([sent]))
    found = [each for each in written(bootstrap, topic, 2 * len(keys)) if each.value == b"v"]
    assert {each.key.decode(): each.partition for each in found if each.key is not None} == {
        key: by_key[key] if partition is None else partition for key, partition in zip(keys, chosen, strict=True)
    }


def test_null_values_are_tombstones_and_keys_may_be_null(bootstrap: str, topic: str) -> None:
    writer(bootstrap, topic).write(iter([rows(("k", None, 0), (None, b"", 0), (None, None, 0))]))
    found = written(bootstrap, topic, 3)
    assert [(each.key, each.value) for each in found] == [(b"k", None), (None, b""), (None, None)]


def test_everything_is_acknowledged_when_a_task_ends(bootstrap: str, topic: str) -> None:
    # It would lie in the producer for a minute otherwise.
    lazy = writer(bootstrap, topic, **{"kafka.linger.ms": "60000", "kafka.delivery.timeout.ms": "120000"})
    message = lazy.write(iter([rows(*[("k", b"v", 0)] * 100)] * 3))
    assert message.records == len(written(bootstrap, topic, 300))  # type: ignore[attr-defined]


def test_a_task_fails_when_a_record_is_refused(bootstrap: str, topic: str) -> None:
    with pytest.raises(SparkConditionError) as caught:
        writer(bootstrap, topic).write(iter([rows(("k", b"v", PARTITIONS))]))
    assert caught.value.condition == "KAFKALITE_TOPIC_NOT_FOUND"
    assert "correct the column partition, or leave it out to have keys decide" in caught.value.detail
    # The worker goes on with another producer.
    writer(bootstrap, topic).write(iter([rows(("k", b"v", 0))]))
    written(bootstrap, topic, 1)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_stream_appends_in_complete_mode_too(overwrite: bool, bootstrap: str, topic: str) -> None:
    source = KafkaliteDataSource({"kafka.bootstrap.servers": bootstrap, "topic": topic})
    for batch_id in range(2):
        stream = source.streamWriter(SCHEMA, overwrite)
        message = stream.write(iter([rows(("k", b"%d" % batch_id, 0))]))
        stream.commit([message], batch_id)
    assert [each.value for each in written(bootstrap, topic, 2)] == [b"0", b"1"]


def test_what_failed_says_how_much_is_in_the_topic(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    failing = writer(bootstrap, topic)
    message = failing.write(iter([rows(("k", b"v", 0), ("k", b"v", 1))]))
    failing.abort([message, None])
    told = said_by("spark_kafkalite.spark", caplog)
    assert told == ["the write failed; at least 2 of its records are in the topic and stay there"]
    written(bootstrap, topic, 2)


def test_the_tasks_of_a_worker_share_a_producer_until_it_fails(bootstrap: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": "shared"}
    producer = connections.producer_for(settings)
    assert connections.producer_for(dict(settings)) is producer
    assert connections.producer_for({**settings, "acks": "1"}) is not producer
    connections.drop_producer(settings)
    assert connections.producer_for(settings) is not producer
    for each in (settings, {**settings, "acks": "1"}):
        connections.drop_producer(each)
