"""An AvailableNow run whose topic changes under it, on our broker and Apache Kafka: it ends, and says what is lost."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.errors import TopicAlreadyExists
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.partition_reader import read_task
from spark_kafkalite.spark.reading.read_plan import ReadPlan
from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader
from tests.patience import PATIENCE_S, wait_until

A_BATCH = ReadMaxRows(4)


def send(bootstrap: str, topic: str, *values: bytes) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_batch(topic, [{"value": value, "partition": 0} for value in values]).result(PATIENCE_S)


def make_again(admin: Admin, topic: str) -> None:
    admin.delete_topics([topic])
    wait_until(lambda: is_created(admin, topic), "the deleted topic to be gone")


def is_created(admin: Admin, topic: str) -> bool:
    try:
        admin.create_topic(topic, 1, 1)
    except TopicAlreadyExists:
        return False
    return True


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_created_again_during_the_run(
    fails: bool, bootstrap: str, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    send(bootstrap, topic, *[b"old"] * 10)
    options = reader_options(
        {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": str(fails).lower(),
            "fetchOffset.retryIntervalMs": "50",
            # Shorter than a test may take: a task that waits for what never comes fails.
            "kafkaConsumer.pollTimeoutMs": "20000",
        }
    )
    reader, plan = KafkaliteStreamReader(options, READ_SCHEMA), ReadPlan.of(options, READ_SCHEMA)
    values: list[bytes] = []

    def run_batch() -> bool:
        nonlocal offset
        end = reader.latestOffset(offset, A_BATCH)
        if end is offset:
            return False
        for task in reader.partitions(offset, end):
            for batch in read_task(plan, task):
                values.extend(batch.column("value").to_pylist())
        offset = end
        return True

    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    assert run_batch()
    make_again(admin, topic)
    # More than the run has read, and fewer than it was to read.
    send(bootstrap, topic, *[b"new"] * 7)
    if fails:
        with pytest.raises(SparkConditionError, match=rf"KAFKA_DATA_LOSS.* topic {topic} was deleted and created"):
            while run_batch():
                pass
    else:
        while run_batch():
            pass
        assert values == [b"old"] * 4 + [b"new"] * 7
        assert f"the topic {topic} was deleted and created again" in caplog.text
