"""Groups in the registry: what administrators read, write and delete there, over the embedded tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.cli.groups.group_storages import refuse_if_members
from spark_kafkalite.cli.groups.registry_storage import ZooKeeperStorage
from spark_kafkalite.errors import ConfigError, GroupIdNotFound, NonEmptyGroup
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, MalformedNode, broker_path

P0, P1, Q0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with EmbeddedRegistry(tmp_path) as registry:
        session = EmbeddedStore(registry)
        yield session
        session.close()


@pytest.fixture
def storage(store: Store) -> ZooKeeperStorage:
    return ZooKeeperStorage(store)


def register(store: Store, group: str, consumer_id: str, *owned: TopicPartition) -> None:
    """Have a consumer live in the group, owning partitions with its thread 0."""
    registration = ConsumerRegistration({"t": 2}).encode()
    ids = consumer_nodes.consumer_id_path(group, consumer_id)
    store.create(ids, registration, ephemeral=True, make_parents=True).result()
    for each in owned:
        owner = consumer_nodes.encode_owner(consumer_nodes.thread_id(consumer_id, 0))
        store.create(consumer_nodes.owner_path(group, *each), owner, ephemeral=True, make_parents=True).result()


def test_an_empty_registry_has_no_groups(storage: ZooKeeperStorage) -> None:
    assert storage.groups() == []
    assert not storage.exists("g")
    assert storage.members("g") == []
    assert storage.offsets("g") == {}
    assert storage.broker_addresses() == []
    with pytest.raises(GroupIdNotFound, match="group 'g' cannot be deleted: there is no such group"):
        storage.delete("g")
    with pytest.raises(GroupIdNotFound, match="there is no such group"):
        storage.delete_offsets("g", [P0])


def test_offsets_are_written_as_consumers_of_old_read_them(storage: ZooKeeperStorage, store: Store) -> None:
    storage.alter("g", {P1: CommittedOffset(7), P0: CommittedOffset(3), Q0: CommittedOffset(2**40)})
    assert store.get("/consumers/g/offsets/t/1").result()[0] == b"7"
    assert list(storage.offsets("g").items()) == [
        (P0, CommittedOffset(3)),
        (P1, CommittedOffset(7)),
        (Q0, CommittedOffset(2**40)),
    ]
    storage.alter("g", {P1: CommittedOffset(0)})
    assert storage.offsets("g")[P1] == CommittedOffset(0)
    assert storage.groups() == ["g"]
    storage.delete_offsets("g", [P0, Q0, TopicPartition("t", 9)])
    assert list(storage.offsets("g")) == [P1]
    assert store.exists("/consumers/g/offsets/u").result() is None
    storage.delete("g")
    assert storage.groups() == []


def test_members_and_what_they_own(storage: ZooKeeperStorage, store: Store) -> None:
    register(store, "g", "g_host-1-a", P0, Q0)
    register(store, "g", "g_host-2-b")
    assert storage.members("g") == ["g_host-1-a", "g_host-2-b"]
    assert storage.owners("g") == {P0: "g_host-1-a-0", Q0: "g_host-1-a-0"}
    assert storage.registrations("g")["g_host-2-b"].subscription == {"t": 2}


def test_nothing_of_a_group_with_members_is_moved_or_deleted(storage: ZooKeeperStorage, store: Store) -> None:
    storage.alter("g", {P0: CommittedOffset(3), Q0: CommittedOffset(4)})
    register(store, "g", "g_host-1-a", P0)
    with pytest.raises(NonEmptyGroup, match=r"has 1 live member in zookeeper \(g_host-1-a\).*stop its consumers first"):
        storage.alter("g", {P0: CommittedOffset(5)})
    with pytest.raises(NonEmptyGroup, match="so it cannot be deleted"):
        storage.delete("g")
    with pytest.raises(NonEmptyGroup, match="its consumers read t; stop them first"):
        storage.delete_offsets("g", [P0])
    storage.delete_offsets("g", [Q0])
    assert storage.offsets("g") == {P0: CommittedOffset(3)}


def test_a_refusal_names_a_few_members_and_counts_the_others(storage: ZooKeeperStorage, store: Store) -> None:
    for number in range(5):
        register(store, "g", f"member-{number}")
    with pytest.raises(NonEmptyGroup, match=r"5 live members in zookeeper \(member-0, member-1, member-2 and 2 more\)"):
        refuse_if_members(storage, "g", "nothing happens")


def test_what_is_not_an_offset_names_its_node(storage: ZooKeeperStorage, store: Store) -> None:
    store.create("/consumers/g/offsets/t/0", b"soon", make_parents=True).result()
    store.create("/consumers/g/offsets/t/lock", b"").result()
    with pytest.raises(MalformedNode, match="/consumers/g/offsets/t/0"):
        storage.offsets("g")


def test_what_cannot_be_a_group_is_never_taken_for_a_path(storage: ZooKeeperStorage) -> None:
    storage.alter("a", {P0: CommittedOffset(1)})
    for call in (storage.exists, storage.members, storage.offsets, storage.delete):
        with pytest.raises(ConfigError, match=r"group='a/offsets': must be text without '/'"):
            call("a/offsets")
    with pytest.raises(ConfigError, match=r"group='\.\.'"):
        storage.alter("..", {P0: CommittedOffset(1)})


def test_brokers_are_found_by_what_they_registered(storage: ZooKeeperStorage, store: Store) -> None:
    for number in (2, 7):
        data = BrokerRegistration(number, "10.0.0.5", 9090 + number).encode()  # type: ignore[arg-type]
        store.create(broker_path(number), data, ephemeral=True, make_parents=True).result()
    assert storage.broker_addresses() == ["10.0.0.5:9092", "10.0.0.5:9097"]
