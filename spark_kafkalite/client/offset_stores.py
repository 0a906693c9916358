"""Where a registry consumer's group keeps its offsets: in the registry, at its coordinator, or in both.

An offset is the next one to read. Commits replace what was there, whatever it was: that offsets do not go back is the
matter of those who commit, each only for partitions that it owns. Owning ends with a session of the registry, so a
commit names the session that it belongs to, and is never made in a later one.

Dual commit writes both stores, whichever is primary, and succeeds only if both did; reading takes the larger of the
two, so that a store left behind by consumers that wrote only the other one does no harm. A rewind therefore has to
write both, too; one that was written to one store only is undone by the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from spark_kafkalite.client import group_offsets
from spark_kafkalite.client.coordinator import GroupCoordinator
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.client.retry import Deadline
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.registry.consumer_nodes import decode_offset, encode_offset, offset_path
from spark_kafkalite.registry.store import NodeExists, Store


class OffsetStore(Protocol):
    """The committed offsets of one group."""

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets; partitions without one are left out."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int], session: Store) -> None:
        """Store offsets and return once they will survive. ``session`` is the one that their partitions are owned in:
        the registry refuses them with SessionExpired when it is over; a coordinator cannot know.
        """
        ...


class RegistryOffsets:
    """/consumers/G/offsets/T/P."""

    def __init__(self, link: RegistryLink, group_id: str, timeout_ms: int) -> None:
        self._link = link
        self._group_id = group_id
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"the registry's offsets of group {self._group_id!r}"

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        store = self._link.store
        nodes = self._link.wait_found(
            [store.get(offset_path(self._group_id, *each)) for each in wanted], Deadline.after_ms(self._timeout_ms)
        )
        return {
            each: decode_offset(self._group_id, *each, node[0])
            for each, node in zip(wanted, nodes, strict=True)
            if node is not None
        }

    def commit(self, offsets: Mapping[TopicPartition, int], session: Store) -> None:
        deadline = Deadline.after_ms(self._timeout_ms)
        # One session's requests are done in order: two commits cannot overtake each other.
        answers = self._link.wait_found(
            [
                session.set(offset_path(self._group_id, *each), encode_offset(offset))
                for each, offset in offsets.items()
            ],
            deadline,
        )
        for (each, offset), answer in zip(offsets.items(), answers, strict=True):
            if answer is None:
                self._create(session, each, offset, deadline)

    def _create(self, session: Store, topic_partition: TopicPartition, offset: int, deadline: Deadline) -> None:
        path, data = offset_path(self._group_id, *topic_partition), encode_offset(offset)
        try:
            self._link.wait(session.create(path, data, make_parents=True), deadline)
        except NodeExists:
            self._link.wait(session.set(path, data), deadline)


class GroupOffsets:
    """What the group's coordinator keeps in __consumer_offsets."""

    def __init__(self, coordinator: GroupCoordinator, timeout_ms: int) -> None:
        self._coordinator = coordinator
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"the coordinator's offsets of group {self._coordinator.group_id!r}"

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        deadline = Deadline.after_ms(self._timeout_ms)
        self._know_brokers(deadline)
        found = group_offsets.fetch_offsets(self._coordinator, partitions, deadline)
        return {each: committed.offset for each, committed in found.items()}

    def commit(self, offsets: Mapping[TopicPartition, int], session: Store) -> None:
        deadline = Deadline.after_ms(self._timeout_ms)
        self._know_brokers(deadline)
        committed = {each: CommittedOffset(offset) for each, offset in offsets.items()}
        group_offsets.commit_offsets(self._coordinator, committed, deadline=deadline)

    def _know_brokers(self, deadline: Deadline) -> None:
        """A client of the registry has no address to begin with."""
        if not self._coordinator.cluster.snapshot.nodes:
            self._coordinator.cluster.refresh([], deadline)


class DualOffsets:
    """Two stores that are written both."""

    def __init__(self, primary: OffsetStore, secondary: OffsetStore) -> None:
        self._stores = (primary, secondary)

    def __repr__(self) -> str:
        return " and ".join(map(repr, self._stores))

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        larger: dict[TopicPartition, int] = {}
        for store in self._stores:
            for each, offset in store.fetch(wanted).items():
                larger[each] = max(offset, larger.get(each, 0))
        return larger

    def commit(self, offsets: Mapping[TopicPartition, int], session: Store) -> None:
        """Write both, the second also when the first fails; raises the first error."""
        failure: KafkaliteError | None = None
        for store in self._stores:
            try:
                store.commit(offsets, session)
            except KafkaliteError as error:
                error.add_note(f"while committing to {store!r}")
                failure = failure or error
        if failure is not None:
            raise failure
