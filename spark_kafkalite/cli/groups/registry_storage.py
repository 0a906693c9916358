"""Groups of registry consumers, below ``/consumers``, as an :class:`~.group_storages.OffsetStorage`.

A coordinator refuses to move the offsets of a group with members. The registry cannot, so
:meth:`ZooKeeperStorage.alter` looks right before it writes and right after, and says so when a consumer has come
between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from spark_kafkalite.cli.groups.group_storages import ZOOKEEPER, refuse_if_members
from spark_kafkalite.errors import GroupIdNotFound, NonEmptyGroup, RegistryError
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.store import NodeExists, NoNode, NotEmpty, Stat, Store
from spark_kafkalite.registry.znodes import BROKER_IDS, BrokerRegistration, broker_id_of, broker_path, partition_of

T = TypeVar("T")

_ANSWER_WITHIN_S: Final = 15.0


class ZooKeeperStorage:
    """Groups of registry consumers, below ``/consumers``."""

    name = ZOOKEEPER

    def __init__(self, store: Store) -> None:
        self._store = store

    def groups(self) -> list[str]:
        return self._children(consumer_nodes.CONSUMERS)

    def exists(self, group: str) -> bool:
        consumer_nodes.check_name("group", group)
        return bool(self._children(consumer_nodes.group_path(group)))

    def members(self, group: str) -> list[str]:
        consumer_nodes.check_name("group", group)
        return self._children(consumer_nodes.consumer_ids_path(group))

    def registrations(self, group: str) -> dict[str, consumer_nodes.ConsumerRegistration]:
        """Return the live consumers and what each of them reads."""
        asked = {each: self._store.get(consumer_nodes.consumer_id_path(group, each)) for each in self.members(group)}
        return {
            each: consumer_nodes.ConsumerRegistration.decode(group, each, data)
            for each, future in asked.items()
            if (data := self._data(future)) is not None
        }

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """Return the consumer thread that reads each partition."""
        paths = self._partitions(consumer_nodes.owners_path(group))
        asked = {each: self._store.get(consumer_nodes.owner_path(group, *each)) for each in paths}
        return {
            each: consumer_nodes.decode_owner(group, *each, data)
            for each, future in asked.items()
            if (data := self._data(future)) is not None
        }

    def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        consumer_nodes.check_name("group", group)
        paths = self._partitions(consumer_nodes.offsets_path(group))
        asked = {each: self._store.get(consumer_nodes.offset_path(group, *each)) for each in paths}
        return {
            each: CommittedOffset(consumer_nodes.decode_offset(group, *each, data))
            for each, future in asked.items()
            if (data := self._data(future)) is not None
        }

    def alter(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        refuse_if_members(self, group, "its offsets cannot be moved")
        writes = {
            each: (
                consumer_nodes.offset_path(group, *each),
                consumer_nodes.encode_offset(committed.offset),
            )
            for each, committed in offsets.items()
        }
        asked = [(path, data, self._store.set(path, data)) for path, data in writes.values()]
        for path, data, future in asked:
            try:
                _answer(future)
            except NoNode:
                try:
                    _answer(self._store.create(path, data, make_parents=True))
                except NodeExists:
                    _answer(self._store.set(path, data))
        refuse_if_members(
            self,
            group,
            "although it had none a moment ago: its offsets have been written, but it may have begun at the old ones",
        )

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if not self.exists(group):
            raise GroupIdNotFound(f"offsets of group {group!r} cannot be deleted: there is no such group in zookeeper")
        read = {each.topic for each in self.owners(group)} & {each.topic for each in wanted}
        if read:
            raise NonEmptyGroup(
                f"offsets of group {group!r} cannot be deleted: its consumers read {', '.join(sorted(read))}; stop "
                "them first"
            )
        for future in [self._store.delete(consumer_nodes.offset_path(group, *each)) for each in wanted]:
            self._gone(future)
        for topic in {each.topic for each in wanted}:
            self._gone(self._store.delete(consumer_nodes.topic_offsets_path(group, topic)))

    def delete(self, group: str) -> None:
        if not self.exists(group):
            raise GroupIdNotFound(f"group {group!r} cannot be deleted: there is no such group in zookeeper")
        refuse_if_members(self, group, "it cannot be deleted")
        # A consumer that starts now finds its ids node gone before anything that it could have read.
        self._delete_tree(consumer_nodes.consumer_ids_path(group))
        self._delete_tree(consumer_nodes.group_path(group))

    def broker_addresses(self) -> list[str]:
        """Return the addresses of the live brokers that the registry names."""
        ids = [found for each in self._children(BROKER_IDS) if (found := broker_id_of(each)) is not None]
        asked = {each: self._store.get(broker_path(each)) for each in ids}
        return [
            f"{broker.host}:{broker.port}"
            for each, future in asked.items()
            if (data := self._data(future)) is not None
            for broker in (BrokerRegistration.decode(each, data),)
        ]

    def close(self) -> None:
        """End the session."""
        self._store.close()

    def _partitions(self, path: str) -> list[TopicPartition]:
        """Return the partitions that have a node below ``path``; other names there are nobody's."""
        asked = {topic: self._store.children(f"{path}/{topic}") for topic in self._children(path)}
        return sorted(
            TopicPartition(topic, number)
            for topic, future in asked.items()
            for name in self._names(future)
            if (number := partition_of(name)) is not None
        )

    def _children(self, path: str) -> list[str]:
        return self._names(self._store.children(path))

    def _names(self, future: Future[list[str]]) -> list[str]:
        try:
            return _answer(future)
        except NoNode:
            return []

    def _data(self, future: Future[tuple[bytes, Stat]]) -> bytes | None:
        try:
            return _answer(future)[0]
        except NoNode:  # it went between listing and reading
            return None

    def _gone(self, future: Future[None]) -> None:
        try:
            _answer(future)
        except (NoNode, NotEmpty):
            pass

    def _delete_tree(self, path: str) -> None:
        for name in self._children(path):
            self._delete_tree(f"{path}/{name}")
        self._gone(self._store.delete(path))


def _answer(future: Future[T]) -> T:
    try:
        return future.result(_ANSWER_WITHIN_S)
    except TimeoutError:
        raise RegistryError(
            f"the registry has not answered within {_ANSWER_WITHIN_S:g} s; is it running, and has it a majority?"
        ) from None
