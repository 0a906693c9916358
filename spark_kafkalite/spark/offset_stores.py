"""The two places where a group's offsets are kept: its coordinator (Kafka's ``__consumer_offsets``), and ZooKeeper.

Both are read and written in bulk and know nothing of queries; :mod:`.offset_registry` decides what is written.

The coordinator keeps a text with each offset. Ours is JSON, ``{"topic_id":"...","writer":"..."}``: the id that the
topic had (as Kafka writes ids: base64 for addresses, without padding), so that a topic which was deleted and made again
is recognised even across a restart, and which process committed, so that two queries on one group can be told apart.
ZooKeeper keeps the decimal number that registry consumers keep there and nothing else.

The registry's modules are imported where they are used: every Python worker of Spark imports this one, and most need
none of them.

An offset is the next one to read, as everywhere in Spark and Kafka.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from spark_kafkalite.client.group.coordinator import GroupCoordinator
from spark_kafkalite.client.group.group_offsets import commit_offsets, fetch_offsets
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import RequestTimedOut
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.spark.connections import cluster_for, reading_config
from spark_kafkalite.spark.options import ReaderOptions

if TYPE_CHECKING:
    from spark_kafkalite.registry.store import Stat, Store

_T = TypeVar("_T")


class StoredOffset(NamedTuple):
    """An offset as a store keeps it. ``topic_id`` None and ``writer`` empty: not known, as always in ZooKeeper."""

    offset: int
    topic_id: bytes | None = None
    writer: str = ""

    def is_of_another_topic(self, topic_id: bytes | None) -> bool:
        """Whether the topic has been deleted and made again between this offset and that id, as far as is known."""
        return self.topic_id is not None and topic_id is not None and self.topic_id != topic_id


class OffsetStore(Protocol):
    """A place for one group's offsets. Errors are KafkaliteError; ``str()`` names the place."""

    def read(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, StoredOffset]:
        """Return what is stored for these partitions; those without anything are left out."""
        ...

    def write(self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline) -> None:
        """Store offsets, all or, after an error, some. Partitions have been read before."""
        ...

    def close(self) -> None:
        """Release what the store alone uses."""
        ...


# At the coordinator -------------------------------------------------------------------------------------------------


class GroupOffsetStore:
    """A group's offsets at its coordinator. Commits are those of a simple consumer, outside of any generation."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def __str__(self) -> str:
        return f"group {self._coordinator.group_id!r}"

    def read(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, StoredOffset]:
        found = fetch_offsets(self._coordinator, partitions, deadline)
        return {tp: StoredOffset(each.offset, *_from_metadata(each.metadata)) for tp, each in found.items()}

    def write(self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline) -> None:
        commit_offsets(
            self._coordinator,
            {tp: CommittedOffset(each.offset, _to_metadata(each)) for tp, each in offsets.items()},
            deadline=deadline,
        )

    def close(self) -> None:
        """Nothing: the connections are the process's."""


def _to_metadata(stored: StoredOffset) -> str:
    fields = {"writer": stored.writer}
    if stored.topic_id is not None:
        fields["topic_id"] = base64.urlsafe_b64encode(stored.topic_id).decode("ascii").rstrip("=")
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _from_metadata(text: str) -> tuple[bytes | None, str]:
    """Return (topic id, writer) of a commit's text; other programs write whatever they like there."""
    try:
        fields = json.loads(text)
        writer, encoded = fields.get("writer", ""), fields.get("topic_id")
        topic_id = None if encoded is None else base64.urlsafe_b64decode(encoded + "==")
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error):
        return None, ""
    return topic_id if topic_id is not None and len(topic_id) == 16 else None, str(writer)


# In ZooKeeper -------------------------------------------------------------------------------------------------------


class ZooKeeperOffsetStore:
    """A group's offsets under ``/consumers/G/offsets/T/P``. The session is opened when it is first needed.

    A write is refused when the node has changed since it was read (BadVersion, NodeExists).
    """

    def __init__(self, connect: str, group_id: str) -> None:
        self._connect = connect
        self._group_id = group_id
        self._session: Store | None = None
        # None: there was no node.
        self._versions: dict[TopicPartition, int | None] = {}

    def __str__(self) -> str:
        return f"group {self._group_id!r} in ZooKeeper at {self._connect}"

    def read(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, StoredOffset]:
        from spark_kafkalite.registry.consumer_nodes import decode_offset, offset_path
        from spark_kafkalite.registry.store import NoNode

        session = self._opened(deadline)
        asked = {tp: session.get(offset_path(self._group_id, *tp)) for tp in partitions}
        found = {}
        for tp, answer in asked.items():
            self._versions[tp] = None
            try:
                data, stat = self._answered(answer, deadline)
            except NoNode:
                continue
            self._versions[tp] = stat.version
            found[tp] = StoredOffset(decode_offset(self._group_id, *tp, data))
        return found

    def write(self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline) -> None:
        from spark_kafkalite.registry.consumer_nodes import encode_offset, offset_path

        session = self._opened(deadline)
        created: list[Future[str]] = []
        changed: list[Future[Stat]] = []
        for tp, each in offsets.items():
            path, data = offset_path(self._group_id, *tp), encode_offset(each.offset)
            version = self._versions.pop(tp)
            if version is None:
                created.append(session.create(path, data, make_parents=True))
            else:
                changed.append(session.set(path, data, version))
        for new in created:
            self._answered(new, deadline)
        for change in changed:
            self._answered(change, deadline)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _opened(self, deadline: Deadline) -> Store:
        from spark_kafkalite.registry.store import SessionState
        from spark_kafkalite.registry.zookeeper import open_zookeeper

        if self._session is not None and self._session.state is SessionState.LOST:
            self.close()
        if self._session is None:
            self._session = open_zookeeper(
                self._connect, connect_timeout_s=max(0.1, deadline.left_s()), make_chroot=False
            )
        return self._session

    def _answered(self, answer: Future[_T], deadline: Deadline) -> _T:
        try:
            return answer.result(max(0.1, deadline.left_s()))
        except TimeoutError:
            raise RequestTimedOut(f"{self}: no answer in time") from None


def stores_of(options: ReaderOptions) -> list[OffsetStore]:
    """Return the stores that the options name: where to commit, or where ``startingOffsets=committed`` looks."""
    commit = options.commit
    if commit.group_id is None:
        return []
    stores: list[OffsetStore] = []
    if commit.to_group or not commit.to_zookeeper:
        cluster = cluster_for(reading_config(options.client).client, options.client)
        stores.append(GroupOffsetStore(GroupCoordinator(cluster, commit.group_id)))
    if commit.zookeeper_connect is not None:
        stores.append(ZooKeeperOffsetStore(commit.zookeeper_connect, commit.group_id))
    return stores
