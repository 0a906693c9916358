"""What all stores of a group's offsets promise: at a coordinator, ours or Apache Kafka's, and in the registry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.coordinator import CoordinatorOffsets
from spark_kafkalite.client.offset_stores.registry import CheckedRegistryOffsets, RegistryOffsets
from spark_kafkalite.client.offset_stores.store import GroupStore, refuse_if_members
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.errors import GroupIdNotFound
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore

_numbers = itertools.count()


class OffsetStoreContract:
    """What every :class:`GroupStore` promises. Needs the fixtures ``store`` (of a new group) and ``topic``."""

    def test_a_new_group_has_nothing(self, store: GroupStore, topic: str) -> None:
        assert not store.exists()
        assert store.members() == []
        assert store.read() == store.read([TopicPartition(topic, 0)]) == store.read([]) == {}
        refuse_if_members(store, "nothing happens")
        with pytest.raises(GroupIdNotFound, match=f"{store.group_id}.* cannot be deleted"):
            store.delete_group()

    def test_a_write_replaces_what_was_there(self, store: GroupStore, topic: str) -> None:
        first, second, third = (TopicPartition(topic, number) for number in range(3))
        self._write(store, {second: 7, first: 2**40})
        self._write(store, {second: 3, third: 0})
        assert [(each, found.offset) for each, found in store.read().items()] == [
            (first, 2**40),
            (second, 3),
            (third, 0),
        ]
        assert list(store.read([third, TopicPartition(topic, 3), first])) == [first, third]
        assert store.exists()

    def test_deadlines_are_taken(self, store: GroupStore, topic: str) -> None:
        one, soon = TopicPartition(topic, 1), Deadline.after_ms(30_000)
        assert store.read([one], soon) == {}
        store.write({one: CommittedOffset(5)}, soon)
        assert store.read(None, soon)[one].offset == 5

    def test_offsets_are_moved_and_deleted_and_at_last_the_group(self, store: GroupStore, topic: str) -> None:
        first, second = (TopicPartition(topic, number) for number in range(2))
        store.read([first, second])
        store.alter({first: CommittedOffset(1), second: CommittedOffset(2)})
        store.delete_offsets([first, TopicPartition(topic, 3)])
        assert list(store.read()) == [second]
        store.delete_group()
        assert not store.exists()
        assert store.read() == {}

    @staticmethod
    def _write(store: GroupStore, offsets: dict[TopicPartition, int]) -> None:
        store.read(offsets)
        store.write({each: CommittedOffset(offset) for each, offset in offsets.items()})


class TestAtACoordinator(OffsetStoreContract):
    @pytest.fixture
    def store(self, admin: Admin) -> CoordinatorOffsets:
        return CoordinatorOffsets(CoordinatorLink(admin.cluster, f"stores-{next(_numbers)}"))


class TestInTheRegistry(OffsetStoreContract):
    @pytest.fixture
    def topic(self) -> str:
        return "a-topic"

    @pytest.fixture(params=[RegistryOffsets, CheckedRegistryOffsets])
    def store(
        self, tmp_path: Path, request: pytest.FixtureRequest
    ) -> Iterator[RegistryOffsets | CheckedRegistryOffsets]:
        made: Callable[[RegistryLink, str], RegistryOffsets] = request.param
        with EmbeddedRegistry(tmp_path) as registry:
            link = RegistryLink(answer_within_s=15)
            link.replace(EmbeddedStore(registry))
            yield made(link, "g")
            if (session := link.close()) is not None:
                session.close()
