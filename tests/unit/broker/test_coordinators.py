"""Two kinds of coordinator side by side: each hears of its own topic's partitions, and FindCoordinator knows both."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.coordinators import Coordinators
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.handlers import find_coordinator
from spark_kafkalite.coordinator.internal_topic import GROUPS, TRANSACTIONS, partition_for
from spark_kafkalite.coordinator.shard import ShardPhase
from spark_kafkalite.errors import CoordinatorNotAvailable
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.unit.coordinator.counters import Counters
from tests.unit.coordinator.host_double import HostDouble, until, with_loop

OFFSETS = "__consumer_offsets"
STATES = "__transaction_state"


class Host(HostDouble):
    """Its topic exists from the first question on."""

    def __init__(self, name: str, kind: str, partitions: int) -> None:
        super().__init__(name, kind, partitions=partitions)
        self.ensured = 0

    async def ensure(self) -> None:
        self.ensured += 1


def two_kinds() -> tuple[Coordinators, Any, Any]:
    coordinators = Coordinators(RegistryLease(unlimited=True), ManualClock())
    groups: Any = Host(OFFSETS, "group", 4)
    transactions: Any = Host(STATES, "transactional id", 7)
    coordinators.add(GROUPS, groups, Counters)
    coordinators.add(TRANSACTIONS, transactions, Counters)
    return coordinators, groups, transactions


def partition(topic: str, number: int, leader_epoch: int = 1, *, is_leader: bool = True) -> Any:
    return SimpleNamespace(
        topic_partition=TopicPartition(topic, number), is_leader=is_leader, leader_epoch=leader_epoch
    )


@with_loop
async def test_each_kind_loads_what_it_leads_of_its_own_topic() -> None:
    coordinators, _, _ = two_kinds()
    groups, transactions = coordinators[GROUPS].shards, coordinators[TRANSACTIONS].shards
    coordinators.role_changed(partition(OFFSETS, 1))
    coordinators.role_changed(partition(STATES, 5))
    coordinators.role_changed(partition("t", 0))
    await until(lambda: not groups.is_loading and not transactions.is_loading)
    assert [shard.label for shard in groups] == [f"{OFFSETS}-1"]
    assert [shard.label for shard in transactions] == [f"{STATES}-5"]
    (shard,) = transactions
    coordinators.role_changed(partition(OFFSETS, 5, is_leader=False))
    assert shard.phase is ShardPhase.ACTIVE
    coordinators.role_changed(partition(STATES, 5, is_leader=False))
    assert shard.phase is ShardPhase.RESIGNED
    assert len(list(groups)) == 1
    coordinators.close()
    assert [*groups, *transactions] == []


def test_a_kind_and_a_topic_have_one_coordinator() -> None:
    coordinators, groups, _ = two_kinds()
    with pytest.raises(ValueError, match="key type 0 and topic"):
        coordinators.add(GROUPS, Host("other", "group", 1), Counters)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"key type 2 and topic {OFFSETS} have one coordinator each"):
        coordinators.add(2, groups, Counters)
    assert coordinators.get(2) is None


def found(key_type: int, key: str, *, with_transactions: bool = True) -> tuple[FindCoordinatorResponse, Any, Any]:
    """Ask a broker of a cluster in which broker N leads partition N of each topic."""
    coordinators, groups, transactions = two_kinds()
    if not with_transactions:
        del coordinators._by_type[TRANSACTIONS]
    topics = {
        host.topic.name: SimpleNamespace(
            topic_id=host.topic.name.encode(),
            partitions={number: SimpleNamespace(leader=number) for number in range(host.partitions)},
        )
        for host in (groups, transactions)
    }
    brokers = {number: SimpleNamespace(broker_id=number) for number in range(7)}

    async def work(_: object, work: Work[Any]) -> Any:
        return run_whole(work)

    context: Any = SimpleNamespace(
        coordinators=coordinators,
        cluster=SimpleNamespace(topics=topics, brokers=brokers),
        replicas=SimpleNamespace(serves=lambda key, topic_id: topics[key.topic].topic_id == topic_id),
        address_of=lambda broker, _: (f"host-{broker.broker_id}", 9092),
        work=work,
    )
    exchange: Any = SimpleNamespace(
        api_version=3, has_limits=False, session=SimpleNamespace(listener=SimpleNamespace(name="PLAINTEXT"))
    )
    request = FindCoordinatorRequest(key=key, key_type=key_type)
    return asyncio.run(find_coordinator.handle(context, exchange, request)), groups, transactions


@pytest.mark.parametrize("key", [f"key-{number}" for number in range(10)])
def test_a_key_is_looked_up_in_the_topic_of_its_kind(key: str) -> None:
    answer, groups, transactions = found(GROUPS, key)
    assert (answer.error_code, answer.node_id) == (0, partition_for(key, 4))
    assert (groups.ensured, transactions.ensured) == (1, 0)
    answer, groups, transactions = found(TRANSACTIONS, key)
    assert (answer.error_code, answer.node_id) == (0, partition_for(key, 7))
    assert (groups.ensured, transactions.ensured) == (0, 1)


def test_a_kind_without_a_coordinator_is_refused() -> None:
    answer, *hosts = found(TRANSACTIONS, "t", with_transactions=False)
    assert (answer.error_code, answer.error_message) == (53, "transactions are not served by this broker")
    answer, *hosts = found(2, "s")
    assert answer.error_code == 42
    assert answer.error_message is not None and "key type 2" in answer.error_message
    assert [host.ensured for host in hosts] == [0, 0]


def test_what_has_no_coordinator_is_named_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_coordinator, "partition_for", lambda key, count: count)
    answer, *_ = found(TRANSACTIONS, "pay")
    assert answer.error_code == CoordinatorNotAvailable.code
    assert answer.error_message == "transactional id 'pay' has no coordinator at present"
