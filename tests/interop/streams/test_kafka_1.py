"""ConsumerConnector beside the consumers that it is modelled on, on their own ground.

Apache Kafka 1.1.1 is the last line with registry consumers: its broker registers in a real ZooKeeper, its console
consumer with ``--zookeeper`` is one of them, and its group tool reads their nodes. Nothing here is stood in for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from spark_kafkalite import ConsumerConnector, Producer
from spark_kafkalite.errors import ConsumerTimeout, SaslAuthenticationFailed
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.conftest import fetch_or_skip
from tests.interop.streams.reading import Reader
from tests.interop.support.raw_client import RawClient
from tests.lab import jars
from tests.lab.certificates import LOOPBACK, STORE_PASSWORD, Authority
from tests.lab.java import run_java
from tests.lab.secure_kafka import PLAIN, jaas
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

PARTITIONS = 6
# Longer than a host stands still: no consumer of these is to be thrown out.
SESSION_MS = 20_000


class Kafka1:
    """A running broker, with topics of six partitions made on first use, and its tools."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        self.class_path = jars.class_path(jars.fetch(jars.APACHE_KAFKA_1))
        self._directory = directory
        self._consumers = 0
        port, secured_port = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self.authority = Authority(directory, "authority")
        properties = {
            "broker.id": 0,
            "listeners": f"PLAINTEXT://{self.bootstrap},SASL_SSL://127.0.0.1:{secured_port}",
            "sasl.enabled.mechanisms": PLAIN,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas(PLAIN, user_alice="password"),
            "ssl.keystore.location": self.authority.issue("broker", *LOOPBACK, rsa_key=True).jks_file(),
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
            "log.dirs": directory / "logs",
            "zookeeper.connect": zookeeper,
            "num.partitions": PARTITIONS,
            # Its buffer alone would be 128 MB.
            "log.cleaner.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
        }
        config = directory / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="ascii")
        command = java_arguments(
            self.class_path, "kafka.Kafka", str(config), jvm_options=("-Xmx192m", *SHORT_LIVED_OPTIONS)
        )
        self.process = ChildProcess(command, directory, "broker")
        self.process.wait_until(lambda: _serves(self.bootstrap), PATIENCE_S, "serving")

    def send(self, topic: str, numbers: range) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for number in numbers:
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)

    @contextlib.contextmanager
    def console_consumer(self, topic: str, group: str, *options: str) -> Iterator[ChildProcess]:
        """Kafka's own registry consumer; what it reads is its standard output."""
        self._consumers += 1
        command = java_arguments(
            self.class_path,
            "kafka.tools.ConsoleConsumer",
            *("--zookeeper", self.zookeeper, "--topic", topic),
            *("--consumer-property", f"group.id={group}", "--consumer-property", "auto.commit.interval.ms=200"),
            *("--consumer-property", f"zookeeper.session.timeout.ms={SESSION_MS}"),
            *options,
            jvm_options=SHORT_LIVED_OPTIONS,
        )
        process = ChildProcess(command, self._directory, f"consumer-{self._consumers}")
        try:
            yield process
        finally:
            process.kill()

    def settings(self, group: str, **more: object) -> dict[str, object]:
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "group.id": group,
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": SESSION_MS,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 100,
            "consumer.timeout.ms": int(PATIENCE_S * 1000),
            **named,
        }


def _serves(bootstrap: str) -> bool:
    """Whether it answers: it accepts connections before that."""
    with contextlib.suppress(OSError), RawClient(bootstrap, PATIENCE_S) as client:
        return bool(client.call(ApiVersionsRequest(), 0).error_code == 0)
    return False


def numbers_in(process: ChildProcess) -> list[int]:
    # The last line may be half written.
    whole = process.stdout_text().rpartition("\n")[0]
    return [int(line) for line in whole.splitlines() if line.isdigit()]


@pytest.fixture(scope="module")
def kafka_1(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[Kafka1]:
    fetch_or_skip(jars.APACHE_KAFKA_1)
    running = Kafka1(tmp_path_factory.mktemp("kafka-1"), f"{zookeeper.connect}/kafka-1")
    try:
        yield running
    finally:
        running.process.kill()


def test_kafka_s_consumers_and_ours_share_a_group(kafka_1: Kafka1) -> None:
    kafka_1.send("shared", range(600))
    ours = ConsumerConnector(kafka_1.settings("shared", consumer_timeout_ms=-1))
    with ours:
        reader = Reader(ours.create_message_streams({"shared": 1})["shared"][0])
        wait_until(lambda: len(reader.seen) == 600, "600 records read")
        ours.commit_offsets()
        with kafka_1.console_consumer("shared", "shared") as theirs:
            wait_until(lambda: len(ours.owned_partitions) == PARTITIONS // 2, "half of the partitions owned")
            kafka_1.send("shared", range(600, 1200))
            wait_until(lambda: len(reader.seen) + len(numbers_in(theirs)) >= 1200, "1,200 records read")
            mine = {value for _, value in reader.seen}
            assert mine | set(numbers_in(theirs)) == set(range(1200))
            assert len(numbers_in(theirs)) == 300
            described = run_java(
                kafka_1.class_path,
                "kafka.admin.ConsumerGroupCommand",
                *("--zookeeper", kafka_1.zookeeper, "--describe", "--group", "shared"),
            ).stdout
            rows = re.findall(r"^shared +(\d) +(\d+) +(\d+) +(\d+) +(\S+)", described, re.MULTILINE)
            assert [(partition, end) for partition, _, end, _, _ in rows] == [
                (str(n), "200") for n in range(PARTITIONS)
            ]
            owners = [owner for *_, owner in rows]
            assert owners.count(ours.consumer_id) == 3
            assert len({owner for owner in owners if owner.startswith("shared_")}) == 1
            reader_count = len(reader.seen)
            ours.shutdown()
            kafka_1.send("shared", range(1200, 1500))
            wait_until(lambda: set(range(1200, 1500)) <= set(numbers_in(theirs)), "the last records read")
            # It went on where ours had stopped.
            assert len(numbers_in(theirs)) == 600 and len(reader.seen) == reader_count


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_ours_go_on_where_kafka_s_stopped(kafka_1: Kafka1, storage: str) -> None:
    topic = f"handed-over-{storage}"
    kafka_1.send(topic, range(600))
    options = ("--from-beginning", "--max-messages", "250")
    properties = (f"offsets.storage={storage}", "dual.commit.enabled=false")
    with_properties = [part for each in properties for part in ("--consumer-property", each)]
    with kafka_1.console_consumer(topic, topic, *options, *with_properties) as theirs:
        assert theirs.wait(PATIENCE_S) == 0, theirs.tail()
        read = numbers_in(theirs)
    assert len(read) == 250
    settings = kafka_1.settings(topic, offsets_storage=storage, dual_commit_enabled=False, consumer_timeout_ms=8000)
    with ConsumerConnector(settings) as ours:
        (stream,) = ours.create_message_streams({topic: 1})[topic]
        rest = [int(record.value or b"") for record in islice(stream, 350)]
        with pytest.raises(ConsumerTimeout):
            next(stream)
    assert sorted(read + rest) == list(range(600))


def test_a_broker_is_reached_by_the_listener_that_is_secured(kafka_1: Kafka1) -> None:
    kafka_1.send("secured", range(60))
    security = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.certificates": kafka_1.authority.pem,
        "sasl.mechanism": PLAIN,
        "sasl.jaas.config": jaas(PLAIN, username="alice", password="password"),
    }
    with ConsumerConnector(kafka_1.settings("secured") | security) as ours:
        (stream,) = ours.create_message_streams({"secured": 1})["secured"]
        assert sorted(int(record.value or b"") for record in islice(stream, 60)) == list(range(60))
    wrong = security | {"sasl.jaas.config": jaas(PLAIN, username="alice", password="wrong")}
    with ConsumerConnector(kafka_1.settings("refused") | wrong) as ours, pytest.raises(SaslAuthenticationFailed):
        next(ours.create_message_streams({"secured": 1})["secured"][0])
