"""What a task of the Spark source makes of the logs that it reads, on our broker and Apache Kafka.

Compaction is seen on our broker alone, which can be told to do it at once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.read_schema import READ_SCHEMA_WITH_HEADERS
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.partition_reader import MAX_ROWS, read_task
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask
from spark_kafkalite.spark.workers import connections
from tests.interop.support.said import said_by
from tests.patience import PATIENCE_S, wait_until

COUNT = 9


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    return caplog


def send(bootstrap: str, topic: str, rows: list[dict[str, Any]]) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_batch(topic, [{"partition": 0, **row} for row in rows]).result(PATIENCE_S)


def plan(bootstrap: str, topic: str, **given: str) -> ReadPlan:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true", **given}
    return ReadPlan.of(reader_options(options), READ_SCHEMA_WITH_HEADERS)


def task(topic: str, start: int, end: int) -> ReadTask:
    return ReadTask((OffsetRange(TopicPartition(topic, 0), start, end),))


def read(bootstrap: str, topic: str, start: int, end: int, **given: str) -> list[dict[str, Any]]:
    batches = read_task(plan(bootstrap, topic, **given), task(topic, start, end))
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def test_times_of_a_topic_whose_broker_stamps_records(bootstrap: str, topic: str, admin: Admin) -> None:
    stamped = f"{topic}-stamped"
    admin.create_topic(stamped, 1, 1, {"message.timestamp.type": "LogAppendTime"})
    began_ms = time.time_ns() // 1_000_000
    for name in (topic, stamped):
        send(bootstrap, name, [{"value": b"x", "timestamp": 1_700_000_000_000}])
    (sent,), (appended,) = (read(bootstrap, name, 0, 1) for name in (topic, stamped))
    assert (sent["timestampType"], sent["timestamp"].timestamp()) == (0, 1_700_000_000)
    assert appended["timestampType"] == 1
    assert began_ms <= appended["timestamp"].timestamp() * 1000 <= time.time_ns() / 1e6


def test_records_that_were_deleted_before_the_task_ran(
    bootstrap: str, topic: str, admin: Admin, warnings: pytest.LogCaptureFixture
) -> None:
    send(bootstrap, topic, [{"value": b"%d" % number} for number in range(COUNT)])
    admin.delete_records({TopicPartition(topic, 0): 3})
    said = f"{topic}-0[1, {COUNT}): offset 1 is not in the log, which holds [3, {COUNT}); 2 offsets are skipped"
    with pytest.raises(SparkConditionError) as caught:
        read(bootstrap, topic, 1, COUNT)
    assert caught.value.condition == "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
    assert said in str(caught.value)
    assert offsets(read(bootstrap, topic, 1, COUNT, failOnDataLoss="false")) == list(range(3, COUNT))
    assert said in warnings.text
    # Nothing of the range is left.
    assert read(bootstrap, topic, 0, 2, failOnDataLoss="false") == []


def test_a_task_gives_up_where_nothing_comes(bootstrap: str, topic: str) -> None:
    send(bootstrap, topic, [{"value": b"x"}] * COUNT)
    with pytest.raises(SparkConditionError, match=rf"READ_FAILED\] {topic}-0\[0, 14\): .*from offset 9 on for 3000 ms"):
        read(bootstrap, topic, 0, COUNT + 5, **{"kafkaConsumer.pollTimeoutMs": "3000"})


def test_a_task_that_spark_ends_early_reads_no_further(bootstrap: str, topic: str) -> None:
    """As LIMIT does. The range has no end that the fetching thread could come to by itself."""
    send(bootstrap, topic, [{"value": b"x"}] * (MAX_ROWS + 1))
    batches = read_task(plan(bootstrap, topic), task(topic, 0, 2**40))
    assert next(batches).num_rows == MAX_ROWS

    def fetching() -> bool:
        return any(thread.name == f"kafkalite-fetch-{topic}-0" for thread in threading.enumerate())

    assert fetching()
    batches.close()  # type: ignore[attr-defined]
    assert not fetching()


def test_the_tasks_of_a_worker_share_connections(bootstrap: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": "shared"}
    shared = connections.cluster_for(connections.reading_config(settings).client, settings)
    again = dict(settings)
    assert connections.cluster_for(connections.reading_config(again).client, again) is shared
    other = {**settings, "client.id": "other"}
    assert connections.cluster_for(connections.reading_config(other).client, other) is not shared


def test_a_start_that_is_resolved_behind_its_end(bootstrap: str, topic: str) -> None:
    send(bootstrap, topic, [{"value": b"x", "timestamp": 1_700_000_000_000 + number} for number in range(COUNT)])
    given = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: {"0": 5, "*": 0}}),
        "endingTimestamp": "1700000000004",
    }
    with pytest.raises(SparkConditionError) as caught:
        KafkaliteBatchReader(reader_options(given), READ_SCHEMA_WITH_HEADERS).partitions()
    assert caught.value.condition == "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
    assert caught.value.detail.startswith(f"{topic}-0: the start offset 5 is greater than the end offset 4;")


def test_offsets_that_compaction_took_are_no_loss(
    tmp_path_factory: pytest.TempPathFactory, warnings: pytest.LogCaptureFixture
) -> None:
    overrides = {"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": 86_400_000}
    compact = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    with BrokerProcess(tmp_path_factory.mktemp("compacted") / "data", overrides=overrides) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("compacted", 1, 1, compact)
        rows = [{"key": b"%d" % (number % 7), "value": b"%d" % number + b"x" * 100} for number in range(2_000)]
        for first in range(0, len(rows), 100):
            send(broker.bootstrap, "compacted", rows[first : first + 100])
        wait_until(
            lambda: len(read(broker.bootstrap, "compacted", 0, len(rows))) < len(rows) // 2, "half to be compacted"
        )
        found = read(broker.bootstrap, "compacted", 0, len(rows))
        # Each record that is left is the one that was sent with its offset, and of each key the last one is.
        assert all(row["value"] == rows[row["offset"]]["value"] for row in found)
        assert offsets(found) == sorted(set(offsets(found)))
        assert set(range(len(rows) - 7, len(rows))) <= set(offsets(found))
        # A range may begin and end within a gap.
        gap = next(number for number in range(len(rows)) if number not in offsets(found))
        assert read(broker.bootstrap, "compacted", gap, gap + 1) == []
    assert said_by("spark_kafkalite.spark", warnings) == []
