"""A group in the registry: its offsets, and what administrators read, move and delete there; over the embedded tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.client.offset_stores.registry import CheckedRegistryOffsets, RegistryOffsets, groups_in
from spark_kafkalite.client.offset_stores.store import refuse_if_members
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.errors import ConfigError, GroupIdNotFound, NonEmptyGroup
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import BadVersion, ConnectionLoss, NodeExists, NoNode, SessionExpired
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.patience import PATIENCE_S
from tests.unit.client.registry_consumer.recording_store import RecordingStore

P0, P1, Q0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RecordingStore]:
    with EmbeddedRegistry(tmp_path) as registry:
        session = RecordingStore(EmbeddedStore(registry))
        yield session
        session.close()


@pytest.fixture
def link(nodes: RecordingStore) -> RegistryLink:
    link = RegistryLink(answer_within_s=5)
    link.replace(nodes)  # type: ignore[arg-type]
    return link


@pytest.fixture
def group(link: RegistryLink) -> RegistryOffsets:
    return RegistryOffsets(link, "g")


@pytest.fixture
def checked(link: RegistryLink) -> CheckedRegistryOffsets:
    return CheckedRegistryOffsets(link, "g")


def register(nodes: RecordingStore, group: str, consumer_id: str, *owned: TopicPartition) -> None:
    """Have a consumer live in the group, owning partitions with its thread 0."""
    registration = ConsumerRegistration({"t": 2}).encode()
    ids = consumer_nodes.consumer_id_path(group, consumer_id)
    nodes.create(ids, registration, ephemeral=True, make_parents=True).result()
    for each in owned:
        owner = consumer_nodes.encode_owner(consumer_nodes.thread_id(consumer_id, 0))
        nodes.create(consumer_nodes.owner_path(group, *each), owner, ephemeral=True, make_parents=True).result()


# Offsets ------------------------------------------------------------------------------------------------------------


def test_offsets_are_text_in_persistent_nodes_as_consumers_of_old_read_them(
    group: RegistryOffsets, nodes: RecordingStore
) -> None:
    assert group.read([P0, P1]) == {}
    group.write({P0: CommittedOffset(5, "a text that has no place here")})
    group.write({P0: CommittedOffset(7), P1: CommittedOffset(0)})
    assert group.read([P0, P1]) == {P0: CommittedOffset(7), P1: CommittedOffset(0)}
    data, stat = nodes.get("/consumers/g/offsets/t/0").result(PATIENCE_S)
    assert (data, stat.ephemeral_owner, stat.version) == (b"7", 0, 1)
    group.write({P0: CommittedOffset(2)})  # what a rewind does
    assert group.read([P0]) == {P0: CommittedOffset(2)}


def test_all_offsets_of_a_group_come_in_order(group: RegistryOffsets) -> None:
    group.write({P1: CommittedOffset(7), P0: CommittedOffset(3), Q0: CommittedOffset(2**40)})
    assert list(group.read().items()) == [
        (P0, CommittedOffset(3)),
        (P1, CommittedOffset(7)),
        (Q0, CommittedOffset(2**40)),
    ]


def test_an_offset_that_is_no_number_is_not_guessed_at(group: RegistryOffsets, nodes: RecordingStore) -> None:
    nodes.create("/consumers/g/offsets/t/1", b"many", make_parents=True).result(PATIENCE_S)
    nodes.create("/consumers/g/offsets/t/lock", b"").result(PATIENCE_S)
    with pytest.raises(MalformedNode, match="/consumers/g/offsets/t/1"):
        group.read([P0, P1])
    with pytest.raises(MalformedNode, match="/consumers/g/offsets/t/1"):
        group.read()


def test_a_lost_answer_is_an_error_and_not_a_success(group: RegistryOffsets, nodes: RecordingStore) -> None:
    group.write({P0: CommittedOffset(1)})
    nodes.lost = lambda method, path: method == "set"
    with pytest.raises(ConnectionLoss):
        group.write({P0: CommittedOffset(2)})


def test_without_a_session_nothing_is_written() -> None:
    with pytest.raises(SessionExpired):
        RegistryOffsets(RegistryLink(), "g").write({P0: CommittedOffset(1)})


def test_what_cannot_be_a_group_is_never_taken_for_a_path(link: RegistryLink) -> None:
    for name in ("a/offsets", "..", ""):
        with pytest.raises(ConfigError, match="must be text without '/'"):
            RegistryOffsets(link, name)


# Offsets that others may write too ----------------------------------------------------------------------------------


def test_a_checked_write_goes_over_what_was_read(checked: CheckedRegistryOffsets, group: RegistryOffsets) -> None:
    group.write({P0: CommittedOffset(3)})
    for number in (5, 4):
        assert checked.read([P0, P1]).keys() >= {P0}
        checked.write({P0: CommittedOffset(number), P1: CommittedOffset(number)})
    assert group.read() == {P0: CommittedOffset(4), P1: CommittedOffset(4)}


def test_a_checked_write_is_refused_over_what_somebody_else_wrote_since(
    checked: CheckedRegistryOffsets, group: RegistryOffsets
) -> None:
    group.write({P0: CommittedOffset(3)})
    checked.read([P0, P1])
    group.write({P0: CommittedOffset(9), P1: CommittedOffset(9)})
    with pytest.raises(BadVersion):
        checked.write({P0: CommittedOffset(4)})
    with pytest.raises(NodeExists):
        checked.write({P1: CommittedOffset(4)})
    assert group.read() == {P0: CommittedOffset(9), P1: CommittedOffset(9)}


def test_a_checked_write_does_not_bring_back_what_was_deleted_since(
    checked: CheckedRegistryOffsets, group: RegistryOffsets
) -> None:
    group.write({P0: CommittedOffset(3), P1: CommittedOffset(3)})
    assert checked.read() == group.read()
    group.delete_offsets([P0])
    with pytest.raises(NoNode):
        checked.write({P0: CommittedOffset(4)})
    checked.write({P1: CommittedOffset(4)})
    assert group.read() == {P1: CommittedOffset(4)}


# The group ----------------------------------------------------------------------------------------------------------


def test_an_empty_registry_has_no_groups(group: RegistryOffsets, link: RegistryLink) -> None:
    assert groups_in(link) == []
    assert not group.exists()
    assert group.members() == []
    assert group.read() == {}
    with pytest.raises(GroupIdNotFound, match="group 'g' cannot be deleted: there is no such group"):
        group.delete_group()
    with pytest.raises(GroupIdNotFound, match="there is no such group"):
        group.delete_offsets([P0])


def test_offsets_are_moved_and_deleted_and_at_last_the_group(
    group: RegistryOffsets, link: RegistryLink, nodes: RecordingStore
) -> None:
    group.alter({P1: CommittedOffset(7), P0: CommittedOffset(3), Q0: CommittedOffset(4)})
    group.alter({P1: CommittedOffset(0)})
    assert group.read([P1]) == {P1: CommittedOffset(0)}
    assert groups_in(link) == ["g"]
    group.delete_offsets([P0, Q0, TopicPartition("t", 9)])
    assert list(group.read()) == [P1]
    assert nodes.exists("/consumers/g/offsets/u").result() is None
    group.delete_group()
    assert groups_in(link) == []


def test_members_and_what_they_own(group: RegistryOffsets, nodes: RecordingStore) -> None:
    register(nodes, "g", "g_host-1-a", P0, Q0)
    register(nodes, "g", "g_host-2-b")
    assert group.members() == ["g_host-1-a", "g_host-2-b"]
    assert group.owners() == {P0: "g_host-1-a-0", Q0: "g_host-1-a-0"}
    assert group.registrations()["g_host-2-b"].subscription == {"t": 2}


def test_nothing_of_a_group_with_members_is_moved_or_deleted(group: RegistryOffsets, nodes: RecordingStore) -> None:
    group.alter({P0: CommittedOffset(3), Q0: CommittedOffset(4)})
    register(nodes, "g", "g_host-1-a", P0)
    with pytest.raises(NonEmptyGroup, match=r"has 1 live member in zookeeper \(g_host-1-a\).*stop its consumers first"):
        group.alter({P0: CommittedOffset(5)})
    with pytest.raises(NonEmptyGroup, match="so it cannot be deleted"):
        group.delete_group()
    with pytest.raises(NonEmptyGroup, match="its consumers read t; stop them first"):
        group.delete_offsets([P0])
    group.delete_offsets([Q0])
    assert group.read() == {P0: CommittedOffset(3)}


def test_a_consumer_that_comes_while_offsets_are_moved_is_reported(
    group: RegistryOffsets, nodes: RecordingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = group.write

    def write_and_meet_a_consumer(offsets: dict[TopicPartition, CommittedOffset]) -> None:
        write(offsets)
        register(nodes, "g", "g_host-1-a")

    monkeypatch.setattr(group, "write", write_and_meet_a_consumer)
    with pytest.raises(NonEmptyGroup, match="have been written, but it may have begun at the old ones"):
        group.alter({P0: CommittedOffset(5)})


def test_a_refusal_names_a_few_members_and_counts_the_others(group: RegistryOffsets, nodes: RecordingStore) -> None:
    for number in range(5):
        register(nodes, "g", f"member-{number}")
    with pytest.raises(NonEmptyGroup, match=r"5 live members in zookeeper \(member-0, member-1, member-2 and 2 more\)"):
        refuse_if_members(group, "nothing happens")
