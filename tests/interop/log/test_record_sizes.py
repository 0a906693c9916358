"""Records and batches at the edges of what the broker takes: 0 and 1 byte, exactly max.message.bytes, one byte more."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import MessageTooLarge
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import header_of, make_batch
from tests.patience import PATIENCE_S, wait_until

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

pytestmark = [pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
MEBIBYTE = 1024 * 1024
RAISED = 4 * MEBIBYTE


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics([NewTopic("raised", 1, 1, configs={"max.message.bytes": str(RAISED)})])
        yield running


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition and the broker's own limits."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(name, 1, 1)
    return name


def value_that_makes(batch_bytes: int) -> bytes:
    """Return the value of the single record with which an uncompressed batch has exactly this size."""
    size = batch_bytes - 61
    for _ in range(10):
        actual = header_of(make_batch([bytes(size)])).size_bytes
        if actual == batch_bytes:
            return b"\xab" * size
        size += batch_bytes - actual
    raise AssertionError(f"no single record makes a batch of {batch_bytes} bytes")


EXACT = value_that_makes(DEFAULT_MAX_MESSAGE_BYTES)
TOO_LARGE = value_that_makes(DEFAULT_MAX_MESSAGE_BYTES + 1)


def values_in(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        (end,) = consumer.end_offsets([(topic, 0)]).values()

        def all_read() -> bool:
            values.extend(record.value for record in consumer.poll(500))
            return len(values) >= end

        wait_until(all_read, lambda: f"{end} values, there are {len(values)}", poll_s=0)
    return values


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_batch_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(broker: BrokerProcess, topic: str) -> None:
    assert len(TOO_LARGE) == len(EXACT) + 1
    with RawClient(broker.bootstrap) as client:
        for version in range(3, 10):
            assert client.produce(topic, make_batch([EXACT], timestamp_ms=now_ms()), version=version).error_code == 0
            refused = client.produce(topic, make_batch([TOO_LARGE], timestamp_ms=now_ms()), version=version)
            assert (refused.error_code, refused.base_offset) == (10, -1)
        # The connection goes on, and so does the partition.
        assert client.produce(topic, make_batch([b"x"], timestamp_ms=now_ms())).base_offset == 7
    assert values_in(broker, topic) == [EXACT] * 7 + [b"x"]


def test_the_limit_counts_what_travels_not_what_it_unpacks_to(broker: BrokerProcess, topic: str) -> None:
    batch = make_batch([bytes(3 * MEBIBYTE)], timestamp_ms=now_ms(), codec="lz4")
    with RawClient(broker.bootstrap) as client:
        assert client.produce(topic, batch).error_code == 0
    assert values_in(broker, topic) == [bytes(3 * MEBIBYTE)]


def test_our_producer(broker: BrokerProcess, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, max_request_size=2 * MEBIBYTE) as producer:
        sent = [producer.send(topic, value, partition=0) for value in (b"", b"x", EXACT)]
        assert [each.result(PATIENCE_S).offset for each in sent] == [0, 1, 2]
        with pytest.raises(MessageTooLarge):
            producer.send(topic, TOO_LARGE, partition=0).result(PATIENCE_S)
        assert producer.send(topic, b"after", partition=0).result(PATIENCE_S).offset == 3
    assert values_in(broker, topic) == [b"", b"x", EXACT, b"after"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_confluent_kafka(broker: BrokerProcess, topic: str, idempotent: bool) -> None:
    outcomes: list[tuple[object, int]] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "message.max.bytes": 3 * MEBIBYTE,
            "enable.idempotence": idempotent,
            "linger.ms": 0,
        }
    )
    for value in (b"", b"x", EXACT, TOO_LARGE):
        producer.produce(
            topic, value, on_delivery=lambda error, message: outcomes.append((error and error.code(), message.offset()))
        )
        assert producer.flush(PATIENCE_S) == 0
    assert [error for error, _ in outcomes] == [None, None, None, confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]
    assert values_in(broker, topic) == [b"", b"x", EXACT]


def test_kafka_python(broker: BrokerProcess, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap, max_request_size=3 * MEBIBYTE, enable_idempotence=False
    )
    try:
        for offset, value in enumerate((b"", b"x", EXACT)):
            assert producer.send(topic, value, partition=0).get(30).offset == offset
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            producer.send(topic, TOO_LARGE, partition=0).get(30)
    finally:
        producer.close(5)
    assert values_in(broker, topic) == [b"", b"x", EXACT]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_values_of_a_mebibyte_where_the_topic_allows_them(broker: BrokerProcess, codec: str) -> None:
    value = bytes(range(256)) * (MEBIBYTE // 256)
    with Producer(
        bootstrap_servers=broker.bootstrap, max_request_size=RAISED, compression_type=codec, linger_ms=0
    ) as producer:
        first = producer.send("raised", value, partition=0).result(PATIENCE_S).offset
        assert producer.send("raised", value, partition=0).result(PATIENCE_S).offset == first + 1
    failures: list[object] = []
    confluent = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": RAISED, "compression.type": codec}
    )
    confluent.produce("raised", value, partition=0, on_delivery=lambda error, _: error and failures.append(error))
    assert confluent.flush(PATIENCE_S) == 0
    assert failures == []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.max.bytes": RAISED,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("raised", 0, first)])
        read: list[object] = []

        def all_read() -> bool:
            message = consumer.poll(0.5)
            if message is not None:
                read.append(message.error() or message.value())
            return len(read) >= 3

        wait_until(all_read, lambda: f"three values, there are {len(read)}", poll_s=0)
    finally:
        consumer.close()
    assert read == [value] * 3
    assert values_in(broker, "raised")[first:] == [value] * 3
