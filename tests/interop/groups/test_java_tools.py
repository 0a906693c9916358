"""Apache Kafka's tools for groups, unmodified, against the broker: what they see is what ours see."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer as OtherConsumer

from spark_kafkalite import Admin, Producer
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.assigned_member import assigned_after_poll
from tests.interop.support.java_tools import JavaTools
from tests.lab import apache_kafka
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.kafka]

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 30
_numbers = count()
Groups = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    with BrokerProcess(tmp_path_factory.mktemp("groups-broker") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def group() -> str:
    return f"java-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, broker: BrokerProcess, group: str) -> str:
    """Three partitions with ten records each."""
    name = f"for-{group}"
    admin.create_topic(name, 3, 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(name, b"value %d" % number, partition=number % 3)
    return name


@pytest.fixture
def groups(broker: BrokerProcess, java_tools: JavaTools) -> Groups:
    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return java_tools.run(GROUPS, "--bootstrap-server", broker.bootstrap, *arguments, check=check)

    return run


def rows(output: str, group: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.startswith(group + " ")]


def offsets_of(admin: Admin, group: str) -> list[int]:
    return [each.offset for each in admin.group_offsets(group).values()]


def test_a_group_without_members(broker: BrokerProcess, groups: Groups, admin: Admin, group: str, topic: str) -> None:
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    planned = groups(*reset, "--to-offset", "4", "--dry-run").stdout
    assert sorted(rows(planned, group)) == [[group, topic, str(number), "4"] for number in range(3)]
    assert admin.group_offsets(group) == {}
    groups(*reset, "--to-offset", "4", "--execute")
    assert offsets_of(admin, group) == [4, 4, 4]
    described = groups("--describe", "--group", group)
    assert "has no active members" in described.stdout + described.stderr
    assert sorted(row[1:6] for row in rows(described.stdout, group)) == [
        [topic, str(number), "4", "10", "6"] for number in range(3)
    ]
    listed = groups("--list", "--state").stdout
    assert [group, "Empty"] in [row[:1] + row[-1:] for row in rows(listed, group)]
    deleted = groups("--delete-offsets", "--group", group, "--topic", f"{topic}:0,1").stdout
    assert deleted.count("Successful") == 2
    assert list(admin.group_offsets(group)) == [TopicPartition(topic, 2)]
    groups("--delete", "--group", group)
    assert not admin.describe_groups([group])[group].exists


def test_a_group_with_a_member(broker: BrokerProcess, groups: Groups, admin: Admin, group: str, topic: str) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": "reader"}
    consumer = OtherConsumer({**settings, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        wait_until(lambda: assigned_after_poll(consumer), "the consumer to have its partitions", poll_s=0)
        state = rows(groups("--describe", "--group", group, "--state").stdout, group)
        assert state[0][-3:] == ["range", "Stable", "1"]
        members = rows(groups("--describe", "--group", group, "--members", "--verbose").stdout, group)
        assert "reader" in members[0] and "3" in members[0]
        assert f"{topic}(0,1,2)" in " ".join(members[0]) or f"{topic}:0,1,2" in " ".join(members[0])
        reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
        refused = groups(*reset, check=False)
        assert "the current state is Stable" in refused.stdout + refused.stderr
        deleted = groups("--delete", "--group", group, check=False)
        assert "not empty" in deleted.stdout + deleted.stderr
    finally:
        consumer.close()
    groups(*reset)
    assert offsets_of(admin, group) == [0, 0, 0]


def test_the_console_consumer_in_a_group(
    broker: BrokerProcess, java_tools: JavaTools, admin: Admin, group: str, topic: str
) -> None:
    console = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    read = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group, "--from-beginning")
    first = java_tools.run(console, *read, "--max-messages", str(RECORDS), "--timeout-ms", f"{PATIENCE_S * 1000:.0f}")
    assert sorted(first.stdout.splitlines()) == sorted(f"value {number}" for number in range(RECORDS))
    assert offsets_of(admin, group) == [10, 10, 10]
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"new", partition=1)
    again = java_tools.run(console, *read, "--max-messages", "1", "--timeout-ms", f"{PATIENCE_S * 1000:.0f}")
    assert again.stdout.splitlines() == ["new"]
    assert {each.records for each in admin.group_lag(group).values()} == {0}


def test_the_verifiable_consumer_takes_over_what_a_member_leaves(
    broker: BrokerProcess, java_tools: JavaTools, admin: Admin, group: str, topic: str
) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    other = OtherConsumer({**settings, "enable.auto.commit": False})
    other.subscribe([topic])
    seen: list[tuple[int, int]] = []

    def five_committed() -> bool:
        record = other.poll(0.2)
        if record is not None and not record.error():
            seen.append((record.partition(), record.offset()))
            other.commit(record, asynchronous=False)
        return len(seen) == 5

    wait_until(five_committed, "five records to be read and committed", poll_s=0)
    other.close()
    committed = offsets_of(admin, group)
    done = java_tools.run(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", group),
        *("--max-messages", str(RECORDS - 5), "--reset-policy", "earliest", "--session-timeout", "30000"),
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    by_name: dict[str, list[dict[str, object]]] = {}
    for event in events:
        by_name.setdefault(event["name"], []).append(event)
    assert {
        "startup_complete",
        "partitions_assigned",
        "records_consumed",
        "offsets_committed",
        "shutdown_complete",
    } <= (by_name.keys())
    assert all(event["success"] for event in by_name["offsets_committed"])
    assert sum(int(str(event["count"])) for event in by_name["records_consumed"]) == RECORDS - 5
    assert sum(committed) == 5
    assert offsets_of(admin, group) == [10, 10, 10]
