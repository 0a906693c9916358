"""A cluster whose leaders move, and one that loses records: what queries, reads and writes make of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.spark.pyspark_versions import AVAILABLE_NOW_OPTIONS
from tests.patience import PATIENCE_S, wait_until

from .topics import QUERY_PATIENCE_S, Topics, last_line

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    with KafkaliteCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def topics_of_cluster(cluster: KafkaliteCluster, spark: SparkSession, tmp_path: Path) -> Iterator[Topics]:
    with Topics(cluster.bootstrap, spark, tmp_path.name) as made:
        yield made


class Numbers:
    """The numbers from 0 on, sent to both partitions of a topic in turn until ``stop``."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._topics, self._topic = topics, topic
        self._stopping = threading.Event()
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.01):
            told = partial(self._told, self.sent)
            self._topics.producer.send(self._topic, b"%d" % self.sent, partition=self.sent % 2, on_delivery=told)
            self.sent += 1

    def _told(self, number: int, _: object, error: BaseException | None) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.errors.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._topics.producer.flush(PATIENCE_S)


def numbers(values: list[str]) -> list[int]:
    return sorted(int(value) for value in values)


def test_leaders_move_and_neither_query_nor_read_nor_write_notices(
    cluster: KafkaliteCluster, topics_of_cluster: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topics = topics_of_cluster
    source, copy, written = topics.new(2), topics.new(2), topics.new(2)
    cluster.wait_in_sync(source, copy, written)
    rows = spark.range(1_000).selectExpr("cast(id as string) as value")
    copying = (
        topics.stream(source).select("value").writeStream.format("kafkalite")
        .options(**topics.options({"topic": copy, "checkpointLocation": tmp_path / "copying"}))
        .trigger(processingTime="200 milliseconds").start()
    )  # fmt: skip
    # Records keep arriving: on PySpark 4.0 and 4.1 the source itself has to end there.
    until_now = topics.stream(source, **AVAILABLE_NOW_OPTIONS)
    sending = Numbers(topics, source)
    try:
        wait_until(lambda: bool(copying.recentProgress), "the first batch of the copy", patience_s=QUERY_PATIENCE_S)
        for end, read in (
            (cluster.kill, lambda: topics.values(source)),
            (cluster.stop, lambda: topics.run(until_now, str(tmp_path / "available-now"))),
        ):
            former = cluster.wait_for_leader(source)
            acknowledged = set(sending.acknowledged)
            end(former)
            with ThreadPoolExecutor(1) as beside:
                reading = beside.submit(read)
                # Here, because Spark finds a sink in Python only in a thread with an active session.
                rows.write.format("kafkalite").options(**topics.options({"topic": written})).mode("append").save()
            values = numbers(reading.result())
            assert acknowledged <= set(values)
            assert len(values) == len(set(values))
            cluster.restart(former)
            cluster.wait_in_sync()
    finally:
        sending.stop()
    copying.processAllAvailable()
    assert copying.exception() is None
    copying.stop()
    assert sending.errors == []
    # No task was repeated (a master local[N] tries each one once), so nothing is doubled either.
    for topic in (source, copy):
        assert numbers(topics.values(topic)) == list(range(sending.sent))
    assert numbers(topics.values(written)) == sorted([*range(1_000)] * 2)


def test_records_that_were_read_and_are_lost_are_data_loss(
    cluster: KafkaliteCluster, topics_of_cluster: Topics, tmp_path: Path
) -> None:
    topics = topics_of_cluster
    topic = topics.new(min_insync_replicas="1")
    cluster.wait_in_sync(topic)
    topics.fill(topic, range(100))
    ahead = {True: threading.Event(), False: threading.Event()}
    cut = threading.Event()

    def hold(which: bool, _: int, rows: list[Row]) -> None:
        # A batch is planned once the one before is done: none while the log is shorter than what was read.
        if any(row.value == b"149" for row in rows):
            ahead[which].set()
            assert cut.wait(QUERY_PATIENCE_S)

    def following(fail_on_data_loss: bool) -> tuple[StreamingQuery, list[str]]:
        stream = topics.stream(topic, failOnDataLoss=fail_on_data_loss)
        checkpoint = str(tmp_path / str(fail_on_data_loss))
        return topics.collect(stream, checkpoint, {"processingTime": "0 seconds"}, partial(hold, fail_on_data_loss))

    (strict, read_strictly), (lenient, read_on) = following(True), following(False)
    leader = cluster.wait_for_leader(topic)
    others = [number for number in cluster.brokers if number != leader]
    for number in others:
        cluster.stop(number)
    topics.fill(topic, range(100, 150))
    for each in ahead.values():
        assert each.wait(QUERY_PATIENCE_S)
    cluster.kill(leader)
    for number in others:
        cluster.restart(number)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        partition = TopicPartition(topic, 0)
        assert admin.elect_leaders([partition], unclean=True) == {partition: None}
    topics.fill(topic, range(1_000, 1_100))
    cut.set()
    wait_until(lambda: not strict.isActive, "the end of the query that fails on data loss")
    told = last_line(strict.exception())
    assert told.startswith("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] failOnDataLoss=true:")
    assert "truncated to offset 100 while it was read up to offset 150" in told
    assert numbers(read_strictly) == list(range(150))
    # It goes on where it was, in the records that took the place of the lost ones.
    wait_until(lambda: len(read_on) >= 200, lambda: f"200 records of the lenient query, which has {len(read_on)}")
    assert numbers(read_on) == [*range(150), *range(1_050, 1_100)]
    cluster.restart(leader)
    cluster.wait_in_sync()
    assert lenient.isActive
    lenient.stop()
