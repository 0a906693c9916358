from types import MappingProxyType

import pytest

from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState, TopicState
from spark_kafkalite.registry.controller.preferred_leaders import out_of_balance
from spark_kafkalite.slices import run_whole
from tests.lab.partition_states import live_broker, partition_state


def cluster(*partitions: PartitionState, live: tuple[int, ...] = (1, 2, 3)) -> ClusterState:
    topic = TopicState(b"0" * 16, MappingProxyType(dict(enumerate(partitions))), {})
    return ClusterState(brokers={each: live_broker(each) for each in live}, topics={"t": topic})


def found(state: ClusterState, percentage: int = 10) -> dict[int, list[int]]:
    asked = run_whole(out_of_balance(state, percentage))
    return {broker: [number for _, number in partitions] for broker, partitions in asked.items()}


@pytest.mark.parametrize("percentage, expected", [(0, [4]), (19, [4]), (20, []), (100, [])])
def test_a_broker_may_leave_a_share_of_its_partitions_to_others(percentage: int, expected: list[int]) -> None:
    led = [partition_state(1, 2, 3)] * 4
    state = cluster(*led, partition_state(1, 2, 3, leader=2))
    assert found(state, percentage) == ({1: expected} if expected else {})


def test_the_share_is_that_of_each_broker_alone() -> None:
    of_another = partition_state(1, 2, 3, replicas=(2, 1, 3), leader=2)
    state = cluster(*[of_another] * 50, partition_state(1, 2, 3, leader=3))
    assert found(state) == {1: [50]}


def test_only_a_live_replica_in_sync_with_its_log_leads_again() -> None:
    behind = partition_state(2, 3, leader=2)
    other_log = partition_state(1, 2, 3, leader=2, incarnations={1: 11, 2: 20, 3: 30})  # type: ignore[dict-item]
    assert found(cluster(behind, other_log)) == {}
    assert found(cluster(partition_state(1, 2, leader=2), live=(2, 3))) == {}


def test_partitions_without_a_leader_are_left_to_the_other_elections() -> None:
    dead_leader = partition_state(1, 2, 3, leader=3)
    assert found(cluster(dead_leader, partition_state(1, 2, leader=2), live=(1, 2))) == {1: [1]}
