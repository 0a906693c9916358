"""Topics and partitions that come late: where a stream begins them, and what it makes of topics that are not there yet.

Driven as Spark's engine does it, on our broker and Apache Kafka.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader
from spark_kafkalite.spark.source import KafkaliteDataSource
from tests.patience import PATIENCE_S, wait_until

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    return caplog


def given(bootstrap: str, topics: str, **options: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topics,
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "50",
        **options,
    }


def send(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_batch(topic, [{"value": b"x", "partition": partition} for _ in range(count)]).result(PATIENCE_S)


class Stream:
    """A query that plans batches and reads nothing."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self.reader = KafkaliteStreamReader(reader_options(options), READ_SCHEMA)
        self.offset: dict[str, Any] = self.reader.initialOffset()

    def batch(self) -> list[str]:
        """Return the ranges of the next batch, and have it planned once more, by another process."""
        end = self.reader.latestOffset(self.offset, ALL)
        planned = spans(self.reader.partitions(self.offset, end))
        again = KafkaliteStreamReader(reader_options(self._options), READ_SCHEMA)
        start, stored = (json.loads(json.dumps(each)) for each in (self.offset, end))
        assert spans(again.partitions(start, stored)) == planned
        self.offset = end
        return planned

    def until(self, expected: list[str]) -> None:
        """Go on until batches have had exactly these ranges, one after the other."""
        found: list[str] = []
        while found != expected:
            found += self.batch()
            assert found == expected[: len(found)]


def spans(tasks: Any) -> list[str]:
    return [str(each) for task in tasks for each in task.ranges]


@pytest.mark.parametrize(
    ("place", "first"), [("earliest", 0), ("latest", 3), ("2200-01-01", 3), ("-1h", 0), ("2001-09-09T01:46:40Z", 0)]
)
def test_new_partitions_begin_where_the_option_says(
    place: str, first: int, bootstrap: str, topic: str, admin: Admin
) -> None:
    send(bootstrap, topic, 2)
    stream = Stream(given(bootstrap, topic, newPartitionStart=place))
    stream.until([f"{topic}-0[0, 2)"])
    admin.create_partitions({topic: 5})
    send(bootstrap, topic, 3, partition=4)
    # What had been there when the partition was seen first is read, or is not; what comes later is.
    seen = [f"{topic}-4[{first}, 3)"] if first < 3 else []
    while "4" not in stream.offset[topic]:
        assert stream.batch() in ([], seen)
    send(bootstrap, topic, 2, partition=4)
    until_offset = stream.offset[topic]["4"]
    stream.until([f"{topic}-4[{until_offset}, 5)"])
    assert until_offset >= first


def test_a_missing_topic_is_ignored_and_read_once_it_is_there(
    bootstrap: str, topic: str, admin: Admin, warnings: pytest.LogCaptureFixture
) -> None:
    late = f"{topic}-late"
    options = given(bootstrap, f"{topic},{late}", missingTopic="ignore")
    KafkaliteDataSource(options).schema()
    send(bootstrap, topic, 1)
    tasks = KafkaliteBatchReader(reader_options(options), READ_SCHEMA).partitions()
    assert spans(tasks) == [f"{topic}-0[0, 1)"]
    stream = Stream(options)
    stream.until([f"{topic}-0[0, 1)"])
    stream.batch()
    said = f"topic {late} does not exist yet; the query reads it once it is created"
    # Each of the readers says it once: the batch's, the stream's, and those that plan its batches once more.
    assert said in warnings.messages
    admin.create_topic(late, 1, 1)
    send(bootstrap, late, 2)
    stream.until([f"{late}-0[0, 2)"])


def test_a_missing_topic_is_waited_for(
    bootstrap: str, topic: str, admin: Admin, warnings: pytest.LogCaptureFixture
) -> None:
    late = f"{topic}-late"
    options = given(bootstrap, f"{topic},{late}", missingTopic="wait")
    KafkaliteDataSource(options).schema()
    planned: list[list[str]] = []
    waiting = threading.Thread(
        target=lambda: planned.append(
            spans(KafkaliteBatchReader(reader_options(options), READ_SCHEMA).partitions()),
        )
    )
    waiting.start()
    said = f"topic {late} does not exist yet; the query reads it once it is created"
    wait_until(lambda: said in warnings.messages, "the warning")
    assert waiting.is_alive()
    admin.create_topic(late, 1, 1)
    waiting.join(PATIENCE_S)
    assert planned == [[]]


def test_a_missing_topic_fails_by_default(bootstrap: str, topic: str) -> None:
    options = given(bootstrap, f"{topic},{topic}-late")
    with pytest.raises(SparkConditionError, match="KAFKALITE_TOPIC_NOT_FOUND"):
        KafkaliteDataSource(options).schema()
    with pytest.raises(SparkConditionError, match="KAFKALITE_TOPIC_NOT_FOUND"):
        Stream(options)
