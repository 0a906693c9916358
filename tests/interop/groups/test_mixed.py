"""One group of our consumer, confluent-kafka, kafka-python and Java's: each may lead, and every record has one reader.

Whoever comes first leads, so its assignor deals out the partitions of all. The weather is calm here: members come and
go in order. Storms are in storms/.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from tests.conftest import fetch_or_skip
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab import jars
from tests.lab.apache_kafka import ApacheKafka, logging_options
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PARTITIONS = 6
_numbers = itertools.count()
HEARTBEAT_MS = 200
SESSION_MS = 30_000


class Member(Protocol):
    """A consumer of any library, polled by the test."""

    def poll(self) -> None:
        """Take what is there; the values come to ``values``."""

    @property
    def values(self) -> list[bytes]: ...

    def assigned(self) -> set[int]: ...

    def close(self) -> None: ...


class Ours:
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, directory: Path) -> None:
        self.values: list[bytes] = []
        self._consumer = Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=strategy,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            auto_offset_reset="earliest",
        )
        self._consumer.subscribe([topic])

    def poll(self) -> None:
        self.values += [each.value or b"" for each in self._consumer.poll(20)]

    def assigned(self) -> set[int]:
        return {partition for _, partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, directory: Path) -> None:
        self.values: list[bytes] = []
        self._closed = False
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "session.timeout.ms": SESSION_MS,
                "auto.offset.reset": "earliest",
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> None:
        for message in self._consumer.consume(500, 0.02):
            assert message.error() is None, message.error()
            self.values.append(message.value() or b"")

    def assigned(self) -> set[int]:
        return set() if self._closed else {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        if not self._closed:
            self._consumer.close()
        self._closed = True


class KafkaPython:
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import kafka
            from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
            from kafka.coordinator.assignors.range import RangePartitionAssignor
            from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
            from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        self.values: list[bytes] = []
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=(assignors[strategy],),
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            auto_offset_reset="earliest",
            # As a leader it may deal out partitions of topics that it has not heard of yet, and looks again only then.
            metadata_max_age_ms=500,
        )
        # Else it joins again when it knows the partitions, and may wait for ever; see interop/group_clients.
        self._consumer.topics()
        # It drops an assignment that comes after the end of a short poll, so that it polls at length, in a thread.
        self._stopping = False
        self._thread = threading.Thread(target=self._poll_forever, daemon=True)
        self._thread.start()

    def _poll_forever(self) -> None:
        while not self._stopping:
            for records in self._consumer.poll(timeout_ms=500).values():
                self.values += [each.value for each in records]

    def poll(self) -> None:
        assert self._thread.is_alive()
        time.sleep(0.005)

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        self._stopping = True
        self._thread.join(PATIENCE_S)
        self._consumer.close()


class Java:
    """Apache Kafka's verifiable consumer, which says on stdout what it is assigned and what it reads."""

    CLASSES = {
        "range": "RangeAssignor",
        "roundrobin": "RoundRobinAssignor",
        "sticky": "StickyAssignor",
        "cooperative-sticky": "CooperativeStickyAssignor",
    }

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, directory: Path) -> None:
        config = directory / "java.properties"
        config.write_text(f"heartbeat.interval.ms={HEARTBEAT_MS}\n", encoding="ascii")
        command = java_arguments(
            jars.class_path(jars.fetch(jars.APACHE_KAFKA)), "org.apache.kafka.tools.VerifiableConsumer",
            "--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic, "--verbose",
            "--assignment-strategy", f"org.apache.kafka.clients.consumer.{self.CLASSES[strategy]}",
            "--session-timeout", str(SESSION_MS), "--reset-policy", "earliest", "--command-config", str(config),
            jvm_options=("-Xmx128m", *SHORT_LIVED_OPTIONS, *logging_options()),
        )  # fmt: skip
        self._process = ChildProcess(command, directory, "java-member")

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._process.stdout_path.read_text(encoding="utf-8").split("\n")[:-1]:
            yield json.loads(line)

    def poll(self) -> None:
        assert self._process.returncode is None, self._process.stderr_path.read_text(encoding="utf-8")

    @property
    def values(self) -> list[bytes]:
        return [each["value"].encode() for each in self._events() if each["name"] == "record_data"]

    def assigned(self) -> set[int]:
        assigned: set[int] = set()
        for event in self._events():
            numbers = {each["partition"] for each in event.get("partitions", ()) if isinstance(each, dict)}
            if event["name"] == "partitions_assigned":
                assigned |= numbers
            elif event["name"] == "partitions_revoked":
                assigned -= numbers
        return assigned

    def close(self) -> None:
        self._process.signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)


KINDS: dict[str, type[Ours | Confluent | KafkaPython | Java]] = {
    "ours": Ours,
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "java": Java,
}


class Party:
    """A topic, a group, and members that come and go."""

    def __init__(self, bootstrap: str, directory: Path, strategy: str) -> None:
        self._bootstrap, self._directory, self._strategy = bootstrap, directory, strategy
        self.group = self.topic = f"mixed-{next(_numbers)}"
        self.members: list[Member] = []
        self._sent = 0
        self._gone: list[bytes] = []
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(self.topic, PARTITIONS, 1)

    def join(self, kind: str) -> Member:
        member: Member = KINDS[kind](self._bootstrap, self.group, self.topic, self._strategy, self._directory)
        self.members.append(member)
        self.settle()
        return member

    def leave(self, member: Member) -> None:
        member.close()
        self._gone += member.values
        self.members.remove(member)
        self.settle()

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the members poll in turn until the condition holds."""

        def holds() -> bool:
            if condition():
                return True
            for member in self.members:
                member.poll()
            return False

        wait_until(holds, lambda: f"the group to get there, which is {self._assigned()}", poll_s=0)

    def _assigned(self) -> list[tuple[str, set[int]]]:
        return [(type(each).__name__, each.assigned()) for each in self.members]

    def settle(self) -> None:
        """Wait until everybody has a fair share, and every partition one owner."""
        share = PARTITIONS // len(self.members)
        self.until(lambda: self._is_shared([each.assigned() for each in self.members], share))

    @staticmethod
    def _is_shared(assigned: Sequence[set[int]], share: int) -> bool:
        return all(share <= len(each) <= share + 1 for each in assigned) and sorted(
            number for each in assigned for number in each
        ) == list(range(PARTITIONS))

    def send(self) -> None:
        """Send ten records to each partition; wait until each has been read, by one member."""
        with Producer(bootstrap_servers=self._bootstrap) as producer:
            for partition, _ in itertools.product(range(PARTITIONS), range(10)):
                producer.send(self.topic, b"%d" % self._sent, partition=partition)
                self._sent += 1
        self.until(lambda: len(self._read()) >= self._sent)
        assert sorted(self._read(), key=int) == [b"%d" % number for number in range(self._sent)]

    def _read(self) -> list[bytes]:
        return self._gone + [value for member in self.members for value in member.values]

    def close(self) -> None:
        # One after the other: kafka-python's closes only when the rebalance that it is in has ended, and ours take part
        # in one only when they are polled.
        while self.members:
            self.members.pop().close()
            if self.members:
                with contextlib.suppress(AssertionError):
                    self.settle()


@pytest.fixture
def party(our_broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Party]]:
    made: list[Party] = []

    def make(strategy: str, bootstrap: str = our_broker.bootstrap) -> Party:
        made.append(Party(bootstrap, tmp_path, strategy))
        return made[-1]

    yield make
    for each in made:
        each.close()


PYTHON_KINDS = ("ours", "confluent", "kafka-python")


@pytest.mark.parametrize(
    ("leader", "strategy"),
    [
        ("ours", "cooperative-sticky"),
        ("ours", "range"),
        ("confluent", "cooperative-sticky"),
        ("kafka-python", "roundrobin"),
    ],
)
def test_python_clients_share_a_group(party: Callable[..., Party], leader: str, strategy: str) -> None:
    mixed = party(strategy)
    for kind in (leader, *(each for each in PYTHON_KINDS if each != leader)):
        mixed.join(kind)
    mixed.send()
    # The leader goes, and another library's deals out the partitions.
    mixed.leave(mixed.members[0])
    mixed.send()
    mixed.join(leader)
    mixed.send()


@pytest.mark.kafka
def test_they_share_one_of_apache_kafka_too(party: Callable[..., Party], apache_kafka: ApacheKafka) -> None:
    mixed = party("cooperative-sticky", apache_kafka.bootstrap)
    for kind in PYTHON_KINDS:
        mixed.join(kind)
    mixed.send()
    mixed.leave(mixed.members[0])
    mixed.send()


@pytest.mark.kafka
@pytest.mark.parametrize("strategy", ["sticky", "cooperative-sticky"])
def test_our_consumer_and_javas_share_a_group(party: Callable[..., Party], strategy: str) -> None:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    mixed = party(strategy)
    ours = mixed.join("ours")
    mixed.join("java")
    mixed.send()
    # Java leads from here on.
    mixed.leave(ours)
    mixed.join("ours")
    mixed.send()
    mixed.join("ours")
    mixed.send()
