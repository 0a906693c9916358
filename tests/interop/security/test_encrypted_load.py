"""What strains an encrypted connection: large records, many partitions, compression, a broker that dies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from tests.interop.security.numbered_load import NumberedLoad
from tests.interop.security.round_trip import new_name
from tests.interop.support.collect import collected
from tests.lab.secure_kafka import SCRAM_512, SecuredListener, SecureKafka
from tests.lab.token_endpoint import TokenEndpoint
from tests.seeds import SOAK

pytestmark = [pytest.mark.kafka]

MANY = 100


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"] if SOAK else ["TLSv1.3"])
@pytest.mark.parametrize("codec", ["none", "zstd"] if SOAK else ["none"])
def test_large_records(secure_kafka: SecureKafka, version: str, codec: str) -> None:
    """Each is many records of TLS; what cannot be compressed stays as large as it is."""
    settings = {**secure_kafka.client_settings(SecuredListener.SSL), "ssl.enabled.protocols": version}
    topic = new_name()
    sizes = [10_000_000, 1, 0, 5_000_001, 16_384, 16_385, 10_000_000]
    values = [random.randbytes(size) for size in sizes]
    with Admin(settings) as admin:
        admin.create_topic(topic, 1, 1, {"max.message.bytes": "12000000"})
    with Producer(settings, max_request_size=12_000_000, compression_type=codec) as producer:
        for value in values:
            producer.send(topic, value)
    with Consumer(settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = collected(lambda: consumer.poll(1000), len(values))
    assert [record.value for record in found] == values


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"] if SOAK else ["lz4"])
def test_many_partitions(secure_kafka: SecureKafka, codec: str) -> None:
    settings = secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512)
    topic = new_name()
    with Admin(settings) as admin:
        admin.create_topic(topic, MANY, 1)
    with Producer(settings, compression_type=codec) as producer:
        for number in range(20 * MANY):
            producer.send(topic, b"%d" % number, b"key", partition=number % MANY)
    found: dict[int, list[int]] = {number: [] for number in range(MANY)}
    with Consumer(settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(MANY)])
        for record in collected(lambda: consumer.poll(1000), 20 * MANY):
            assert record.value is not None
            found[record.partition].append(int(record.value))
    assert found == {partition: list(range(partition, 20 * MANY, MANY)) for partition in range(MANY)}


@pytest.mark.soak
def test_a_broker_that_is_killed(tmp_path: Path, identity_provider: TokenEndpoint) -> None:
    """Nothing that was acknowledged is lost; what was in flight is sent again, once; clients come back."""
    with SecureKafka(tmp_path, identity_provider) as node:
        load = NumberedLoad(node.client_settings(SecuredListener.SASL_SSL, SCRAM_512), new_name())
        load.start()
        try:
            node.kill()
            node.start()
            sent, answers = load.sent, load.answers
            load.wait_until(lambda: load.sent > sent + 10_000 and load.answers > answers)
        finally:
            load.finish()
