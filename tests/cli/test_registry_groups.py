"""Groups of real registry consumers, with one broker that serves its registry: looked at, moved, migrated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import TracebackType
from typing import Any, Self

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.cli.main import run
from spark_kafkalite.client.registry_consumer.streams import ConsumerConnector
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until

_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("registry-groups") / "data", registry_port=0) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"streaming-{next(_numbers)}"


@pytest.fixture
def topic(broker: BrokerProcess, group: str) -> str:
    """Three partitions with ten records each."""
    name = f"topic-of-{group}"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(name, 3, 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(30):
            producer.send(name, b"%d" % number, partition=number % 3)
    return name


class Streaming:
    """A registry consumer with two streams that counts what it reads."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, storage: str) -> None:
        settings = {
            "group.id": group,
            "zookeeper.connect": broker.registry_connect,
            # Longer than a host stands still.
            "zookeeper.session.timeout.ms": "20000",
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": "100",
            "offsets.storage": storage,
            "dual.commit.enabled": "false",
        }
        self.read: list[bytes] = []
        self._connector = ConsumerConnector(settings)
        streams = self._connector.create_message_streams({topic: 2})[topic]
        self._threads = [threading.Thread(target=self._count, args=(stream,)) for stream in streams]
        for thread in self._threads:
            thread.start()

    def _count(self, stream: Any) -> None:
        for record in stream:
            self.read.append(record.value)

    def wait_for(self, records: int) -> None:
        wait_until(lambda: len(self.read) >= records, lambda: f"{records} records, of which {len(self.read)} came")
        self._connector.commit_offsets()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connector.shutdown()
        for thread in self._threads:
            thread.join(PATIENCE_S)


@pytest.fixture
def kafkalite(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def kafkalite(*arguments: str, code: int = 0) -> tuple[str, str]:
        ended = run([*arguments, "--zookeeper", broker.registry_connect])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out, err

    return kafkalite


def offsets(out: str) -> list[tuple[int, int | None]]:
    return [(each["current_offset"], each["lag"]) for each in json.loads(out)[0]["offsets"]]


def test_a_group_is_stopped_moved_and_started_again(
    broker: BrokerProcess, group: str, topic: str, kafkalite: Callable[..., tuple[str, str]]
) -> None:
    reset = ("groups", "reset-offsets", "--group", group, "--all-topics", "--shift-by", "-2", "--execute")
    with Streaming(broker, group, topic, "zookeeper") as consumer:
        consumer.wait_for(30)
        (described,) = json.loads(kafkalite("groups", "describe", "--group", group, "--json")[0])
        assert [(each["current_offset"], each["lag"]) for each in described["offsets"]] == [(10, 0)] * 3
        (member,) = described["members"]
        assert len(member["assignment"]) == 3 and member["subscription"] == f"static: {topic} x 2"
        assert {each["member_id"].rpartition("-")[0] for each in described["offsets"]} == {member["member_id"]}
        assert "1 live member in zookeeper" in kafkalite(*reset, code=1)[1]
        assert f"{group}\n" in kafkalite("groups", "list")[0]
    kafkalite(*reset)
    assert offsets(kafkalite("groups", "describe", "--group", group, "--json")[0]) == [(8, 2)] * 3
    with Streaming(broker, group, topic, "zookeeper") as consumer:
        consumer.wait_for(6)
    assert sorted(map(int, consumer.read)) == list(range(24, 30))
    kafkalite("groups", "delete", "--group", group)
    assert group not in kafkalite("groups", "list")[0].split()


def test_a_chroot_that_is_not_there_is_told_from_a_registry_that_is_not(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", "list", "--zookeeper", f"{broker.registry_connect}/mistyped"]) == 1
    assert "has no node /mistyped" in capsys.readouterr().err


def test_a_group_is_migrated_and_goes_on_where_it_was(
    broker: BrokerProcess, group: str, topic: str, kafkalite: Callable[..., tuple[str, str]]
) -> None:
    with Streaming(broker, group, topic, "zookeeper") as consumer:
        consumer.wait_for(30)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(30, 36):
            producer.send(topic, b"%d" % number, partition=number % 3)
    kafkalite("offsets", "migrate", "--group", group, "--to", "kafka", "--execute")
    with Streaming(broker, group, topic, "kafka") as consumer:
        consumer.wait_for(6)
        # Members in the registry, offsets at the coordinator.
        assert (
            "1 live member in zookeeper"
            in kafkalite("offsets", "rewind", "--group", group, "--all-topics", "--to-earliest", "--execute", code=1)[1]
        )
    assert sorted(map(int, consumer.read)) == list(range(30, 36))
    shown = json.loads(kafkalite("offsets", "show", "--group", group, "--json")[0])
    assert [(each["kafka_offset"], each["zookeeper_offset"]) for each in shown] == [(12, 10)] * 3
    kafkalite("offsets", "migrate", "--group", group, "--to", "zookeeper", "--execute")
    kafkalite("offsets", "rewind", "--group", group, "--topic", f"{topic}:0", "--to-offset", "11", "--execute")
    with Streaming(broker, group, topic, "zookeeper") as consumer:
        consumer.wait_for(1)
    assert consumer.read == [b"33"]
