"""Trap 5: a broker that is killed and comes back must not end a query, neither one that reads nor one that writes."""

import threading
import time

import pytest

from spark_kafkalite.testing.cluster import BrokerProcess

from .topics import Topics, last_line

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DOWN_S = 12


@pytest.fixture
def own_broker(tmp_path):
    with BrokerProcess(tmp_path / "own-broker") as running:
        yield running


def test_queries_survive_a_killed_broker(own_broker, spark, tmp_path):
    with Topics(own_broker.bootstrap, spark, "restart") as topics:
        source, copy = topics.new(2), topics.new(2)
        topics.fill(source, range(100))
        copying = (
            topics.stream(source).select("value").writeStream.format("kafkalite").options(**topics.options({"topic": copy}))  # noqa: E501
            .option("checkpointLocation", str(tmp_path / "copy")).trigger(processingTime="0 seconds").start()
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
            while not stop.is_set():
                deliveries.append(topics.producer.send(source, str(number).encode(), partition=number % 2))
                number += 1
                time.sleep(0.01)

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            time.sleep(1.5)
            own_broker.kill()
            time.sleep(DOWN_S)
            own_broker.start()
            time.sleep(1.5)
        finally:
            stop.set()
            producing.join()
        topics.producer.flush(60)
        for delivery in deliveries:
            delivery.result(1)
        copying.processAllAvailable()
        collecting.processAllAvailable()
        assert copying.exception() is None
        assert collecting.exception() is None
        # The copy is at least once; the read adds nothing to it.
        sent = {str(number) for number in range(100 + len(deliveries))}
        assert set(values) == sent
        assert sorted(values) == sorted(topics.values(copy))
        assert sorted(topics.values(source)) == sorted(sent)


def test_a_query_ends_when_no_broker_answers_for_as_long_as_its_option_says(own_broker, spark, tmp_path):
    with Topics(own_broker.bootstrap, spark, "gone") as topics:
        topic = topics.new()
        topics.fill(topic, range(3))
        stream = topics.stream(topic, brokersUnreachableTimeout="2s")
        query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        own_broker.kill()
        with pytest.raises(Exception) as ended:
            query.awaitTermination(240)
    line = last_line(ended.value)
    servers = f"kafka.bootstrap.servers={own_broker.bootstrap}"
    assert line.startswith(f"[KAFKALITE_CONNECTION_FAILED] {servers}: ")
    assert " s (brokersUnreachableTimeout=2000ms); start the broker, or correct the address" in line
