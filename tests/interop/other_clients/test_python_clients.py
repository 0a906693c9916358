"""confluent-kafka, kafka-python and aiokafka, unmodified, against the broker; partitions are assigned by hand."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.collect import collected
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SOAK

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

Values = list[bytes]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


def confluent_produce(bootstrap: str, topic: str, values: Values, **settings: object) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def confluent_consume(bootstrap: str, topic: str, count: int) -> Values:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        messages = collected(lambda: consumer.consume(500, 0.5), count)
        assert [message.error() for message in messages if message.error() is not None] == []
        return [message.value() for message in messages]
    finally:
        consumer.close()


def kafka_python_produce(bootstrap: str, topic: str, values: Values, **settings: object) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        pending = [producer.send(topic, value) for value in values]
        producer.flush(PATIENCE_S)
        for future in pending:
            future.get(PATIENCE_S)
    finally:
        producer.close(5)


def kafka_python_consume(bootstrap: str, topic: str, count: int) -> Values:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return collected(
            lambda: [record.value for records in consumer.poll(timeout_ms=500).values() for record in records], count
        )
    finally:
        consumer.close()


def aiokafka_produce(bootstrap: str, topic: str, values: Values, **settings: object) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
        await producer.start()
        try:
            futures = [await producer.send(topic, value) for value in values]
            await asyncio.gather(*futures)
        finally:
            await producer.stop()

    asyncio.run(run())


def aiokafka_consume(bootstrap: str, topic: str, count: int) -> Values:
    async def run() -> Values:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            values: Values = []
            async with asyncio.timeout(PATIENCE_S):
                while len(values) < count:
                    found = await consumer.getmany(partition, timeout_ms=500)
                    values += [record.value for record in found.get(partition, [])]
            return values
        finally:
            await consumer.stop()

    return asyncio.run(run())


PRODUCERS: dict[str, tuple[Callable[..., None], dict[str, object]]] = {
    "confluent-default": (confluent_produce, {}),
    "confluent-idempotent-zstd": (confluent_produce, {"enable.idempotence": True, "compression.type": "zstd"}),
    "confluent-lz4-acks-1": (confluent_produce, {"compression.type": "lz4", "acks": 1}),
    "kafka-python-default": (kafka_python_produce, {}),
    "kafka-python-gzip-acks-1": (
        kafka_python_produce,
        {"acks": 1, "compression_type": "gzip", "enable_idempotence": False},
    ),
    "aiokafka-default": (aiokafka_produce, {}),
    "aiokafka-idempotent-gzip": (aiokafka_produce, {"enable_idempotence": True, "compression_type": "gzip"}),
}
CONSUMERS = {
    "confluent": confluent_consume,
    "kafka-python": kafka_python_consume,
    "aiokafka": aiokafka_consume,
}


# With other settings than their own: test_matrix.py has most of what these show.
@pytest.mark.parametrize(
    "producer",
    [pytest.param(name, marks=[] if name.endswith("-default") else [pytest.mark.soak]) for name in PRODUCERS],
)
def test_what_one_client_sends_every_client_reads(broker: BrokerProcess, producer: str) -> None:
    produce, settings = PRODUCERS[producer]
    topic = f"from-{producer}"
    values = [b"", b"x", *(b"%06d" % number * 20 for number in range(3000))]
    # The topic is created by the metadata request of the producer.
    produce(broker.bootstrap, topic, values, **settings)
    for name, consume in CONSUMERS.items():
        if name == "kafka-python" and settings.get("compression.type") in ("zstd", "lz4"):
            continue  # It needs packages of its own for these; the codec matrix is another test's.
        assert consume(broker.bootstrap, topic, len(values)) == values, name


def test_confluent_admin_and_offsets(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("administered", 3, 1, config={"retention.ms": "60000"})]).values():
        future.result(PATIENCE_S)
    described = admin.list_topics("administered", timeout=PATIENCE_S).topics["administered"]
    assert sorted(described.partitions) == [0, 1, 2]
    assert all(part.leader == 1 for part in described.partitions.values())
    confluent_produce(broker.bootstrap, "administered", [b"a"])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    ends = [
        consumer.get_watermark_offsets(confluent_kafka.TopicPartition("administered", number), 10)
        for number in range(3)
    ]
    assert sum(high for _, high in ends) == 1
    by_time = consumer.offsets_for_times([confluent_kafka.TopicPartition("administered", 0, 1)], 10)
    assert by_time[0].error is None
    consumer.close()
    for future in admin.delete_topics(["administered"]).values():
        future.result(PATIENCE_S)
    assert "administered" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_kafka_python_and_aiokafka_admin(broker: BrokerProcess) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic("by-kafka-python", 1, 1)])
        assert "by-kafka-python" in admin.list_topics()
    finally:
        admin.close()

    async def run() -> list[str]:
        client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await client.start()
        try:
            return list(await client.list_topics())
        finally:
            await client.close()

    assert "by-kafka-python" in asyncio.run(run())


def test_an_idempotent_producer_rides_out_kill_9(tmp_path: Path) -> None:
    """Every record once and in order, though the broker is killed in the middle; in the soak three times."""
    with BrokerProcess(tmp_path / "data") as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
            }
        )
        failures: list[object] = []
        sent = 0
        for _ in range(4 if SOAK else 2):
            if sent:
                broker.kill()
                broker.start()
            for _ in range(3000):
                producer.produce("t", b"%d" % sent, on_delivery=lambda error, _: error and failures.append(error))
                sent += 1
                producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        assert failures == []
        assert confluent_consume(broker.bootstrap, "t", sent) == [b"%d" % number for number in range(sent)]


def test_a_consumer_goes_on_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        confluent_produce(broker.bootstrap, "t", [b"before"])
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        seen: Values = []
        poll_until(consumer, seen, 1)
        broker.restart()
        confluent_produce(broker.bootstrap, "t", [b"after"])
        poll_until(consumer, seen, 2)
        assert seen == [b"before", b"after"]
        consumer.close()


def poll_until(consumer: confluent_kafka.Consumer, seen: Values, count: int) -> None:
    def have_come() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen.append(message.value())
        return len(seen) >= count

    wait_until(have_come, lambda: f"{count} records, of which {len(seen)} came", poll_s=0)
