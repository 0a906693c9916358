"""Unmodified clients, with the codecs, acks and idempotence that they have: what one sends, every other one reads.

Compared are offsets, keys, values, headers, timestamps and their type, byte for byte. The clients are confluent-kafka,
kafka-python, aiokafka, Apache Kafka's Java clients, and ours.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records.compression import CODECS as CODEC_NUMBERS
from tests.interop.log.test_record_sizes import EXACT
from tests.interop.support.java_clients import JavaClients, read_records
from tests.interop.support.pairwise import pairwise
from tests.interop.support.python_clients import CODECS, GUARANTEES, PRODUCERS, READERS, knows
from tests.interop.support.records import Read, Sent, expected, sample_records
from tests.interop.support.stored_codecs import stored_codecs
from tests.lab import apache_kafka as apache_kafka_part

pytestmark = [
    pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning"),
]

_numbers = itertools.count()
# All of them in the soak.
MATRIX = [
    pytest.param(client, codec, acks, idempotent, id=f"{client}-{codec}-{acks}{'-idempotent' if idempotent else ''}")
    for client, codec, (acks, idempotent) in pairwise(
        [each for each in itertools.product(PRODUCERS, CODECS, GUARANTEES) if knows(*each[:2])]
    )
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaClients:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    return JavaClients(tmp_path_factory.mktemp("java"))


def new_topic(broker: BrokerProcess, **configs: str) -> str:
    name = f"t{next(_numbers)}"
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, settings)])
    return name


def check_codec(broker: BrokerProcess, topic: str, codec: str) -> None:
    """Check that the batches lie in the log as the client was told to compress them."""
    told = CODEC_NUMBERS[codec]
    assert stored_codecs(broker.data_dir / f"{topic}-0", told) == {told}


def check_read_by_all(broker: BrokerProcess, topic: str, codec: str, records: list[Sent]) -> None:
    wanted = expected(records)
    for reader, read in READERS.items():
        if knows(reader, codec):
            assert read(broker.bootstrap, topic, len(records)) == wanted, f"read by {reader}"


@pytest.mark.parametrize(("client", "codec", "acks", "idempotent"), MATRIX)
def test_what_one_client_sends_every_client_reads(
    broker: BrokerProcess, client: str, codec: str, acks: str, idempotent: bool
) -> None:
    topic = new_topic(broker)
    records = sample_records(client)
    PRODUCERS[client](broker.bootstrap, topic, records, codec, acks, idempotent)
    check_read_by_all(broker, topic, codec, records)
    check_codec(broker, topic, codec)


@pytest.mark.kafka
def test_what_the_java_producer_sends_every_client_reads(
    broker: BrokerProcess, java: JavaClients, tmp_path: Path
) -> None:
    records = sample_records()
    file = java.write_records("to-send", records)
    topics = {(codec, *each): new_topic(broker) for codec in CODECS for each in GUARANTEES}
    commands = [
        f"produce {topic} {codec} {acks} {str(idempotent).lower()} {file}"
        for (codec, acks, idempotent), topic in topics.items()
    ]
    outputs = java.run(broker.bootstrap, commands)
    for ((codec, acks, _), topic), command in zip(topics.items(), commands, strict=True):
        offsets = [-1] * len(records) if acks == "0" else list(range(len(records)))
        assert [int(line) for line in outputs[command]] == offsets
        check_read_by_all(broker, topic, codec, records)
        check_codec(broker, topic, codec)


@pytest.mark.kafka
def test_what_any_client_sends_the_java_consumer_reads(broker: BrokerProcess, java: JavaClients) -> None:
    records = sample_records("kafka-python")
    topics = {}
    for client, codec in itertools.product(PRODUCERS, CODECS):
        if knows(client, codec):
            topics[client, codec] = new_topic(broker)
            PRODUCERS[client](broker.bootstrap, topics[client, codec], records, codec, "all", client != "kafka-python")
    file = java.write_records("own", records)
    own = new_topic(broker)
    # Such frames have checksums of their blocks.
    topics["the broker", "lz4"] = leveled = new_topic(broker, compression_type="lz4", compression_lz4_level="12")
    PRODUCERS["confluent"](broker.bootstrap, leveled, records, "none", "all", True)
    reads = {each: f"consume {topic} {len(records)}" for each, topic in topics.items()}
    own_read = f"consume {own} {len(records)}"
    outputs = java.run(broker.bootstrap, [f"produce {own} zstd all true {file}", own_read, *reads.values()])
    wanted = expected(records)
    assert read_records(outputs[own_read]) == wanted
    for (client, codec), command in reads.items():
        assert read_records(outputs[command]) == wanted, f"sent by {client} with {codec}"


@pytest.mark.kafka
def test_the_java_producer_at_the_limit_of_a_batch(broker: BrokerProcess, java: JavaClients) -> None:
    topic = new_topic(broker)
    sizes = [0, 1, len(EXACT), len(EXACT) + 1, 2_000_000]
    commands = [f"oversize {topic} {size}" for size in sizes]
    outputs = java.run(broker.bootstrap, commands)
    refused = ["RecordTooLargeException"]
    assert [outputs[each] for each in commands] == [["offset 0"], ["offset 1"], ["offset 2"], refused, refused]


@pytest.mark.parametrize("client", PRODUCERS)
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_log_append_time_is_the_brokers(broker: BrokerProcess, client: str, codec: str) -> None:
    topic = new_topic(broker, message_timestamp_type="LogAppendTime")
    records = sample_records(client)
    began_ms = time.time_ns() // 1_000_000
    PRODUCERS[client](broker.bootstrap, topic, records, codec, "all", False)
    ended_ms = time.time_ns() // 1_000_000
    found: dict[str, list[Read]] = {
        reader: read(broker.bootstrap, topic, len(records)) for reader, read in READERS.items()
    }
    for reader, read_back in found.items():
        assert read_back == found["ours"], f"read by {reader}"
        assert all(record.is_append_time for record in read_back)
        assert all(began_ms <= record.timestamp_ms <= ended_ms for record in read_back), f"read by {reader}"
        assert [record[3:] for record in read_back] == [(each.key, each.value, each.headers) for each in records]


@pytest.mark.parametrize(
    ("topic_codec", "levels"),
    [
        ("gzip", {}),
        ("snappy", {}),
        ("lz4", {}),
        ("lz4", {"compression_lz4_level": "12"}),
        ("zstd", {}),
        ("uncompressed", {}),
    ],
)
def test_a_topic_keeps_its_own_codec_whatever_arrives(
    broker: BrokerProcess, topic_codec: str, levels: dict[str, str]
) -> None:
    topic = new_topic(broker, compression_type=topic_codec, **levels)
    records = sample_records("kafka-python")
    for client in PRODUCERS:
        PRODUCERS[client](broker.bootstrap, topic, records, "gzip", "all", client in ("confluent", "ours"))
    count = len(PRODUCERS) * len(records)
    wanted = expected(records * len(PRODUCERS))
    for reader, read in READERS.items():
        if knows(reader, "none" if topic_codec == "uncompressed" else topic_codec):
            assert read(broker.bootstrap, topic, count) == wanted, f"read by {reader}"
