"""A group's offsets in the registry, below ``/consumers``, and the group of registry consumers around them.

A coordinator refuses to move the offsets of a group with members. The registry cannot, so :meth:`RegistryOffsets.alter`
checks for members right before it writes and right after, and raises an error when a consumer has joined in between.

Nothing here opens a session: that is the link's, and with it the registry's address and how long an answer may take.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.store import ZOOKEEPER, refuse_if_members
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.errors import GroupIdNotFound, NonEmptyGroup
from spark_kafkalite.model import CommittedOffset, CommittedOffsets, TopicPartition
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.store import NodeExists, NoNode, NotEmpty, Stat, Store
from spark_kafkalite.registry.znodes import partition_of


def groups_in(link: RegistryLink, deadline: Deadline | None = None) -> list[str]:
    """Return the ids of all groups in the registry, in order."""
    return link.names(link.session(deadline).children(consumer_nodes.CONSUMERS), deadline)


class RegistryOffsets:
    """A :class:`~.store.GroupStore` over ``/consumers/G``."""

    place = ZOOKEEPER

    def __init__(self, link: RegistryLink, group_id: str) -> None:
        """Raises ConfigError for what cannot be a group: it would be taken for a path."""
        consumer_nodes.check_name("group", group_id)
        self._link = link
        self.group_id = group_id

    def __repr__(self) -> str:
        return f"the registry's offsets of group {self.group_id!r}"

    def __str__(self) -> str:
        return f"group {self.group_id!r} in {self._link}"

    # Offsets --------------------------------------------------------------------------------------------------------

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Raises MalformedNode for what is not an offset."""
        return {each: self._decoded(each, data) for each, (data, _) in self._nodes(partitions, deadline).items()}

    def _nodes(
        self, partitions: Iterable[TopicPartition] | None, deadline: Deadline | None
    ) -> dict[TopicPartition, tuple[bytes, Stat]]:
        session = self._link.session(deadline)
        if partitions is None:
            partitions = self._partitions_below(consumer_nodes.offsets_path(self.group_id), deadline)
        wanted = sorted(partitions)
        nodes = self._link.wait_found([session.get(self._path(each)) for each in wanted], deadline)
        return {each: node for each, node in zip(wanted, nodes, strict=True) if node is not None}

    def _decoded(self, topic_partition: TopicPartition, data: bytes) -> CommittedOffset:
        return CommittedOffset(consumer_nodes.decode_offset(self.group_id, *topic_partition, data))

    def write(self, offsets: CommittedOffsets, deadline: Deadline | None = None) -> None:
        session = self._link.session(deadline)
        data = {self._path(each): consumer_nodes.encode_offset(offset.offset) for each, offset in offsets.items()}
        # One session's requests are done in order: two writes cannot overtake each other.
        answers = self._link.wait_found([session.set(*each) for each in data.items()], deadline)
        for path, answer in zip(data, answers, strict=True):
            if answer is None:
                self._create(session, path, data[path], deadline)

    def _create(self, session: Store, path: str, data: bytes, deadline: Deadline | None) -> None:
        try:
            self._link.wait(session.create(path, data, make_parents=True), deadline)
        except NodeExists:
            self._link.wait(session.set(path, data), deadline)

    def close(self) -> None:
        """Nothing: the session is the link's."""

    def _path(self, topic_partition: TopicPartition) -> str:
        return consumer_nodes.offset_path(self.group_id, *topic_partition)

    # The group ------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return bool(self._children(consumer_nodes.group_path(self.group_id)))

    def members(self) -> list[str]:
        return self._children(consumer_nodes.consumer_ids_path(self.group_id))

    def registrations(self) -> dict[str, consumer_nodes.ConsumerRegistration]:
        """Return the live consumers and what each of them reads."""
        session, members = self._link.session(None), self.members()
        nodes = self._link.wait_found(
            [session.get(consumer_nodes.consumer_id_path(self.group_id, each)) for each in members]
        )
        return {
            each: consumer_nodes.ConsumerRegistration.decode(self.group_id, each, node[0])
            for each, node in zip(members, nodes, strict=True)
            if node is not None
        }

    def owners(self) -> dict[TopicPartition, str]:
        """Return the consumer thread that reads each partition."""
        session = self._link.session(None)
        partitions = self._partitions_below(consumer_nodes.owners_path(self.group_id), None)
        nodes = self._link.wait_found(
            [session.get(consumer_nodes.owner_path(self.group_id, *each)) for each in partitions]
        )
        return {
            each: consumer_nodes.decode_owner(self.group_id, *each, node[0])
            for each, node in zip(partitions, nodes, strict=True)
            if node is not None
        }

    def alter(self, offsets: CommittedOffsets) -> None:
        refuse_if_members(self, "its offsets cannot be moved")
        self.write(offsets)
        refuse_if_members(
            self,
            "although it had none a moment ago: its offsets have been written, but it may have begun at the old ones",
        )

    def delete_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if not self.exists():
            raise GroupIdNotFound(
                f"offsets of group {self.group_id!r} cannot be deleted: there is no such group in zookeeper"
            )
        topics = {each.topic for each in wanted}
        read = {each.topic for each in self.owners()} & topics
        if read:
            raise NonEmptyGroup(
                f"offsets of group {self.group_id!r} cannot be deleted: its consumers read {', '.join(sorted(read))}; "
                "stop them first"
            )
        session = self._link.session(None)
        for future in [session.delete(self._path(each)) for each in wanted]:
            self._gone(future)
        for topic in topics:
            self._gone(session.delete(consumer_nodes.topic_offsets_path(self.group_id, topic)))

    def delete_group(self) -> None:
        if not self.exists():
            raise GroupIdNotFound(f"group {self.group_id!r} cannot be deleted: there is no such group in zookeeper")
        refuse_if_members(self, "it cannot be deleted")
        # A consumer that starts now finds its ids node gone before anything that it could have read.
        self._delete_tree(consumer_nodes.consumer_ids_path(self.group_id))
        self._delete_tree(consumer_nodes.group_path(self.group_id))

    def _partitions_below(self, path: str, deadline: Deadline | None) -> list[TopicPartition]:
        """Return the partitions that have a node below ``path``; other names there are ignored."""
        session = self._link.session(deadline)
        asked = {
            topic: session.children(f"{path}/{topic}") for topic in self._link.names(session.children(path), deadline)
        }
        return sorted(
            TopicPartition(topic, number)
            for topic, future in asked.items()
            for name in self._link.names(future, deadline)
            if (number := partition_of(name)) is not None
        )

    def _children(self, path: str) -> list[str]:
        return self._link.names(self._link.session(None).children(path))

    def _gone(self, future: Future[None]) -> None:
        try:
            self._link.wait(future)
        except (NoNode, NotEmpty):
            pass

    def _delete_tree(self, path: str) -> None:
        for name in self._children(path):
            self._delete_tree(f"{path}/{name}")
        self._gone(self._link.session(None).delete(path))


class CheckedRegistryOffsets(RegistryOffsets):
    """Offsets that others may write, too: a write is refused (BadVersion, NodeExists) when a node has changed since it
    was read, so partitions are read before they are written. The link is the store's own, and closed with it.
    """

    def __init__(self, link: RegistryLink, group_id: str) -> None:
        super().__init__(link, group_id)
        # None: there was no node.
        self._versions: dict[TopicPartition, int | None] = {}

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = None if partitions is None else list(partitions)
        nodes = self._nodes(wanted, deadline)
        self._versions.update(dict.fromkeys(wanted or ()))
        self._versions.update({each: stat.version for each, (_, stat) in nodes.items()})
        return {each: self._decoded(each, data) for each, (data, _) in nodes.items()}

    def write(self, offsets: CommittedOffsets, deadline: Deadline | None = None) -> None:
        session = self._link.session(deadline)
        answers: list[Future[Any]] = []
        for each, offset in offsets.items():
            path, data = self._path(each), consumer_nodes.encode_offset(offset.offset)
            version = self._versions.pop(each)
            answers.append(
                session.create(path, data, make_parents=True) if version is None else session.set(path, data, version)
            )
        for answer in answers:
            self._link.wait(answer, deadline)

    def close(self) -> None:
        session = self._link.close()
        if session is not None:
            session.close()
