"""What ``cluster reassign --wait`` does when brokers and topics go away while partitions move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import pytest

from spark_kafkalite.cli.cluster import reassign
from spark_kafkalite.cli.cluster.reassign import Plan
from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.admin.cluster import ClusterDescription
from spark_kafkalite.client.admin.logs import LogDirInfo, ReplicaInfo
from spark_kafkalite.client.admin.reassignments import Reassignment
from spark_kafkalite.client.network.metadata import Node
from spark_kafkalite.errors import BrokerUnreachable, ClusterAuthorizationFailed, ConfigError
from spark_kafkalite.model import BrokerId, TopicPartition

T0, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)
PLAN: Plan = {T0: (2,), OTHER: (2,)}
CURRENT: Plan = {T0: (1,), OTHER: (1,)}
MOVE = Reassignment((BrokerId(2), BrokerId(1)), (BrokerId(2),), (BrokerId(1),))


class Scripted:
    """An administrator whose answers are given: what moves, at each question."""

    def __init__(self, *answers: Collection[TopicPartition] | Exception) -> None:
        self._answers = list(answers)
        self.asked_topics: list[list[str]] = []
        self.logs: Callable[[], Mapping[int, int]] = lambda: {1: 100, 2: 50}

    def list_partition_reassignments(self, plan: Plan) -> dict[TopicPartition, Reassignment]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(answer, MOVE)

    def describe_cluster(self) -> ClusterDescription:
        nodes = tuple(Node(number, "h", 1) for number in (1, 2))
        return ClusterDescription("c", 1, nodes)

    def describe_log_dirs(self, brokers: Collection[int], *, topics: list[str]) -> dict[int, list[LogDirInfo]]:
        self.asked_topics.append(topics)
        keys = [TopicPartition(topic, 0) for topic in topics]
        return {
            broker: [LogDirInfo("/d", replicas={key: ReplicaInfo(size, 0, False) for key in keys})]
            for broker, size in self.logs().items()
        }


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassign, "_ASKED_EVERY_S", 0.0)
    monkeypatch.setattr(reassign, "_SHOWN_EVERY_S", 0.0)


def waited(admin: Scripted, wait_s: float = 1_000.0) -> bool:
    return reassign._wait(cast(Admin, admin), PLAN, CURRENT, wait_s)


def test_it_goes_on_while_a_broker_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    gone = BrokerUnreachable("broker 2 cannot be reached")
    admin = Scripted([T0], gone, gone, [T0], [T0], ())
    calls: list[int] = []

    def logs() -> Mapping[int, int]:
        calls.append(1)
        if len(calls) == 2:
            raise ConfigError("there is no live broker 2; the brokers are [1]")
        return {1: 100, 2: 60}

    admin.logs = logs
    assert waited(admin)
    said = capsys.readouterr().err
    assert said.count("kafkalite: waiting: broker 2 cannot be reached\n") == 1
    assert said.count("kafkalite: waiting: there is no live broker 2; the brokers are [1]\n") == 1
    assert said.endswith("kafkalite: all 2 partitions have moved\n")


def test_only_topics_that_still_move_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    # The other topic has moved, or was deleted.
    admin = Scripted([T0, OTHER], [T0], ())
    assert waited(admin)
    assert admin.asked_topics == [["other", "t"], ["t"]]
    said = capsys.readouterr().err
    assert "2 of 2 partitions move; 100 B of 200 B copied" in said
    assert "1 of 2 partitions move; 100 B of 200 B copied" in said


def test_a_target_that_is_not_live_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    plan = {T0: (3,)}
    assert reassign._wait(cast(Admin, Scripted([T0], ())), plan, {T0: (1,)}, 1_000.0)
    assert "0 B/s; broker 3 is to get replicas, and is not live\n" in capsys.readouterr().err


def test_it_ends_when_the_time_is_over_or_asking_is_of_no_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert not waited(Scripted([T0]), 0.0)
    assert capsys.readouterr().err == "kafkalite: 1 of 2 partitions have not moved after 0 s; they go on\n"
    assert not waited(Scripted(BrokerUnreachable("no broker answers")), 0.0)
    assert capsys.readouterr().err == "kafkalite: not ended after 0 s: no broker answers\n"
    refused: Any = ClusterAuthorizationFailed("no right")
    with pytest.raises(ClusterAuthorizationFailed):
        waited(Scripted(refused))
