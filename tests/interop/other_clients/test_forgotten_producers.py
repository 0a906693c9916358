"""A producer falls silent, so many others write to its partition that the broker forgets it, and it goes on: nothing is
lost, nothing comes twice, and the order stays, with every client that is told UNKNOWN_PRODUCER_ID."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.consume.consumer import Consumer
from spark_kafkalite.client.produce.producer import Producer
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.java_clients import JavaClients
from tests.lab import apache_kafka as apache_kafka_part
from tests.patience import PATIENCE_S

KEPT = 4
OTHERS = 6
COUNT = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, overrides={"max.producer.ids.per.partition": KEPT}) as broker:
        yield broker


def values(broker: BrokerProcess, topic: str, count: int) -> list[str]:
    found: list[str] = []
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(found) < count:
            records = consumer.poll(int(PATIENCE_S * 1000))
            assert records, f"{len(found)} of {count} records came"
            found += [(record.value or b"").decode() for record in records]
        found += [(record.value or b"").decode() for record in consumer.poll(200)]
    return found


def names(kind: str) -> list[bytes]:
    return [b"%s-%d" % (kind.encode(), number) for number in range(COUNT)]


def with_our_producer(broker: BrokerProcess, topic: str) -> None:
    def send(producer: Producer, texts: list[bytes]) -> None:
        for delivery in [producer.send(topic, text, partition=0) for text in texts]:
            delivery.result(PATIENCE_S)

    # Small batches, so that some are in flight when the first is refused.
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0, batch_size=100) as idle:
        send(idle, names("first"))
        for _ in range(OTHERS):
            with Producer(bootstrap_servers=broker.bootstrap) as other:
                send(other, [b"other-0"])
        send(idle, names("second"))


def with_confluent(broker: BrokerProcess, topic: str) -> None:
    def producer() -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.size": 100}
        )

    def send(producer: confluent_kafka.Producer, texts: list[bytes]) -> None:
        errors: list[object] = []
        for text in texts:
            producer.produce(topic, text, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert errors == [None] * len(texts)

    idle = producer()
    send(idle, names("first"))
    for _ in range(OTHERS):
        send(producer(), [b"other-0"])
    send(idle, names("second"))


@pytest.fixture(scope="module")
def with_java(tmp_path_factory: pytest.TempPathFactory) -> Callable[[BrokerProcess, str], None]:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    clients = JavaClients(tmp_path_factory.mktemp("java"))

    def run(broker: BrokerProcess, topic: str) -> None:
        clients.run(broker.bootstrap, [f"crowd {topic} {COUNT} {OTHERS}"])

    return run


@pytest.mark.parametrize("client", ["our", "confluent", pytest.param("java", marks=pytest.mark.kafka)])
def test_forgotten_producer_goes_on(
    broker: BrokerProcess, client: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(client, 1)
    if client == "java":
        request.getfixturevalue("with_java")(broker, client)
    else:
        {"our": with_our_producer, "confluent": with_confluent}[client](broker, client)
    found = values(broker, client, 2 * COUNT + OTHERS)
    assert found == [
        *(f"first-{n}" for n in range(COUNT)),
        *["other-0"] * OTHERS,
        *(f"second-{n}" for n in range(COUNT)),
    ]
    assert f"{client}-0: 1 idle producer ids were forgotten" in broker.stderr_path.read_text()
