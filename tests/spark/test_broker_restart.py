"""Trap 5: a broker that is killed and comes back must not end a query, neither one that reads nor one that writes."""

import threading
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until

from .topics import Topics, await_end, last_line

pytestmark = [pytest.mark.spark]

# What the source logs after an attempt of ten seconds.
# Said by a source that looks offsets up, or by a task that is in the middle of a batch.
UNREACHABLE = ("(attempt 1, ", "no broker answers, trying again")


def new_text(path: Path, begin: int) -> str:
    """Return what a file holds from a position on."""
    with path.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


@pytest.fixture
def own_broker(tmp_path):
    with BrokerProcess(tmp_path / "own-broker") as running:
        yield running


def test_queries_survive_a_killed_broker(own_broker, spark, driver_stderr, tmp_path):
    with Topics(own_broker.bootstrap, spark, "restart") as topics:
        source, copy = topics.new(2), topics.new(2)
        topics.fill(source, range(100))
        copying = (
            topics.stream(source).select("value").writeStream.format("kafkalite").options(**topics.options({"topic": copy}))  # noqa: E501
            .option("checkpointLocation", str(tmp_path / "copy")).trigger(processingTime="200 milliseconds").start()
        )  # fmt: skip
        collecting, values = topics.collect(
            topics.stream(copy), str(tmp_path / "collect"), {"processingTime": "200 milliseconds"}
        )
        copying.processAllAvailable()
        collecting.processAllAvailable()
        assert len(set(values)) == 100

        stop = threading.Event()
        deliveries = []

        def produce() -> None:
            number = 100
            while not stop.wait(0.01):
                deliveries.append(topics.producer.send(source, str(number).encode(), partition=number % 2))
                number += 1

        def wait_for_deliveries(count: int) -> None:
            end = len(deliveries) + count
            wait_until(lambda: len(deliveries) > end and deliveries[end].done(), f"{count} more records in the log")

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            wait_for_deliveries(100)
            said = driver_stderr.stat().st_size
            own_broker.kill()
            # An attempt ends in vain, and another begins.
            wait_until(
                lambda: any(each in new_text(driver_stderr, said) for each in UNREACHABLE),
                "an attempt of a query that finds no broker",
                poll_s=0.1,
            )
            own_broker.start()
            wait_for_deliveries(100)
        finally:
            stop.set()
            producing.join()
        topics.producer.flush(PATIENCE_S)
        for delivery in deliveries:
            delivery.result(PATIENCE_S)
        copying.processAllAvailable()
        collecting.processAllAvailable()
        assert copying.exception() is None
        assert collecting.exception() is None
        # The copy is at least once; the read adds nothing to it.
        sent = {str(number) for number in range(100 + len(deliveries))}
        assert set(values) == sent
        assert sorted(values) == sorted(topics.values(copy))
        assert sorted(topics.values(source)) == sorted(sent)


@pytest.mark.versions
def test_a_query_ends_when_no_broker_answers_for_as_long_as_its_option_says(own_broker, spark, tmp_path):
    with Topics(own_broker.bootstrap, spark, "gone") as topics:
        topic = topics.new()
        topics.fill(topic, range(3))
        stream = topics.stream(topic, brokersUnreachableTimeout="2s")
        query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        own_broker.kill()
        with pytest.raises(Exception) as ended:
            await_end(query)
    line = last_line(ended.value)
    servers = f"kafka.bootstrap.servers={own_broker.bootstrap}"
    assert line.startswith(f"[KAFKALITE_CONNECTION_FAILED] {servers}: ")
    assert " s (brokersUnreachableTimeout=2000ms); start the broker, or correct the address" in line
