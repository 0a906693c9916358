"""confluent-kafka, kafka-python, aiokafka and ours behind two functions each: send records, read a partition.

All send to partition 0 and assign it by hand. ``produce`` returns when everything is acknowledged, or sent when
``acks`` is 0, and raises when anything fails.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

import aiokafka
import confluent_kafka

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.model import TimestampType
from tests.interop.support.collect import collected
from tests.interop.support.records import Read, Sent
from tests.patience import PATIENCE_S

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

_APPEND_TIME = 1


def ours_produce(bootstrap: str, topic: str, records: list[Sent], codec: str, acks: str, idempotent: bool) -> None:
    with Producer(
        bootstrap_servers=bootstrap,
        compression_type=codec,
        acks=acks,
        enable_idempotence=idempotent,
        linger_ms=20,
        batch_size=20_000,
    ) as producer:
        sent = [
            producer.send(
                topic, each.value, each.key, partition=0, headers=list(each.headers), timestamp_ms=each.timestamp_ms
            )
            for each in records
        ]
        producer.flush(PATIENCE_S)
        for delivery in sent:
            delivery.result(PATIENCE_S)


def ours_read(bootstrap: str, topic: str, count: int) -> list[Read]:
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        return [
            Read(
                record.offset,
                record.timestamp_type == TimestampType.LOG_APPEND_TIME,
                record.timestamp,
                record.key,
                record.value,
                tuple(record.headers or ()),
            )
            for record in collected(lambda: consumer.poll(500, 10_000), count)
        ]


def confluent_produce(bootstrap: str, topic: str, records: list[Sent], codec: str, acks: str, idempotent: bool) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            # Batches are cut by size alone: librdkafka sends one that compression does not make smaller as it is.
            "linger.ms": 1000,
            "batch.size": 20_000,
        }
    )
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=0,
            timestamp=record.timestamp_ms,
            headers=list(record.headers) or None,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def confluent_read(bootstrap: str, topic: str, count: int) -> list[Read]:
    # What is read here is nobody's progress.
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        messages = collected(lambda: consumer.consume(count, 0.05), count)
    finally:
        consumer.close()
    assert [message.error() for message in messages if message.error() is not None] == []
    return [
        Read(
            message.offset(),
            message.timestamp()[0] == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME,
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )
        for message in messages
    ]


def kafka_python_produce(
    bootstrap: str, topic: str, records: list[Sent], codec: str, acks: str, idempotent: bool
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all" if acks == "all" else int(acks),
        enable_idempotence=idempotent,
        linger_ms=20,
        batch_size=20_000,
    )
    try:
        pending = [
            producer.send(
                topic, each.value, each.key, partition=0, timestamp_ms=each.timestamp_ms, headers=list(each.headers)
            )
            for each in records
        ]
        producer.flush(PATIENCE_S)
        for future in pending:
            future.get(PATIENCE_S)
    finally:
        producer.close(5)


def kafka_python_read(bootstrap: str, topic: str, count: int) -> list[Read]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, check_crcs=True
    )
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return collected(
            lambda: [
                Read(
                    record.offset,
                    record.timestamp_type == _APPEND_TIME,
                    record.timestamp,
                    record.key,
                    record.value,
                    tuple((name, value) for name, value in record.headers),
                )
                for records in consumer.poll(timeout_ms=500).values()
                for record in records
            ],
            count,
        )
    finally:
        consumer.close()


def aiokafka_produce(bootstrap: str, topic: str, records: list[Sent], codec: str, acks: str, idempotent: bool) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=20,
            max_batch_size=20_000,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic, each.value, each.key, partition=0, timestamp_ms=each.timestamp_ms, headers=list(each.headers)
                )
                for each in records
            ]
            await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def aiokafka_read(bootstrap: str, topic: str, count: int) -> list[Read]:
    async def run() -> list[Read]:
        found: list[Read] = []
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            check_crcs=True,
        )
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    for records in (await consumer.getmany(partition, timeout_ms=500)).values():
                        found += [
                            Read(
                                record.offset,
                                record.timestamp_type == _APPEND_TIME,
                                record.timestamp,
                                record.key,
                                record.value,
                                tuple((name, value) for name, value in record.headers),
                            )
                            for record in records
                        ]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(run())


Produce = Callable[[str, str, "list[Sent]", str, str, bool], None]
ReadPartition = Callable[[str, str, int], "list[Read]"]

PRODUCERS: dict[str, Produce] = {
    "confluent": confluent_produce,
    "kafka-python": kafka_python_produce,
    "aiokafka": aiokafka_produce,
    "ours": ours_produce,
}
READERS: dict[str, ReadPartition] = {
    "confluent": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
    "ours": ours_read,
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# (acks, idempotent): what clients allow together.
GUARANTEES = (("0", False), ("1", False), ("all", False), ("all", True))


def knows(client: str, codec: str) -> bool:
    """Whether the client, as it is installed here, can use the codec: kafka-python wants packages for most of them."""
    if client != "kafka-python" or codec == "none":
        return True
    return bool(getattr(kafka.codec, f"has_{codec}")())
