"""The interface of the two stores that a group's offsets may be in, and both stores at once.

``kafka`` is the group's coordinator (:mod:`.coordinator`), ``zookeeper`` the nodes below ``/consumers`` in the registry
(:mod:`.registry`), as ``offsets.storage`` calls them. Registry consumers, the command line and Spark's streams read and
write offsets through :class:`OffsetStore`; :class:`GroupStore` adds what administrators do to a group.

An offset is the next one to read. A write replaces any earlier offset, also a larger one: the writer has to ensure that
offsets do not go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import KafkaliteError, NonEmptyGroup
from spark_kafkalite.model import CommittedOffset, CommittedOffsets, TopicPartition
from spark_kafkalite.printable import first_of

KAFKA: Final = "kafka"
ZOOKEEPER: Final = "zookeeper"


class OffsetStore(Protocol):
    """The committed offsets of one group in one place. ``str()`` names them for people; errors are KafkaliteError.

    Without a deadline the place's own patience counts: ``default.api.timeout.ms`` at a coordinator, that of the link
    (for each answer) in the registry.
    """

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return what is stored for these partitions, or all that is (None), in order; what is not there is left out.

        The registry keeps the offset alone: no metadata, no leader epoch.
        """

    def write(self, offsets: CommittedOffsets, deadline: Deadline | None = None) -> None:
        """Store offsets and return once they will survive; after an error, some of them may be stored."""

    def close(self) -> None:
        """Release what the store alone uses."""


class GroupStore(OffsetStore, Protocol):
    """A group in one place, as administrators see it. ``place`` is the value of ``offsets.storage``."""

    place: str
    group_id: str

    def exists(self) -> bool:
        """Whether there is such a group: it has members or offsets."""

    def members(self) -> list[str]:
        """Return the live members, as texts for people."""

    def alter(self, offsets: CommittedOffsets) -> None:
        """Write offsets in the name of a group without members. Raises when it has some."""

    def delete_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets; those that are not there are passed over. Raises for topics that members read."""

    def delete_group(self) -> None:
        """Delete a group without members. Raises GroupIdNotFound, NonEmptyGroup."""


def refuse_if_members(store: GroupStore, doing: str) -> None:
    """Raise NonEmptyGroup, naming the members, when the group has any."""
    members = store.members()
    if members:
        raise NonEmptyGroup(
            f"group {store.group_id!r} has {len(members)} live {'member' if len(members) == 1 else 'members'} in "
            f"{store.place} ({first_of(members, 3)}), so {doing}; stop its consumers first"
        )


class DualOffsets:
    """Two stores that are both written (``dual.commit.enabled``); of what they hold, the larger offset counts.

    So a store left behind by consumers that wrote only the other one does no harm. A rewind has to write both, too; one
    that was written to one store only is undone by the other.
    """

    def __init__(self, primary: OffsetStore, secondary: OffsetStore) -> None:
        self._stores = (primary, secondary)

    def __repr__(self) -> str:
        return " and ".join(map(repr, self._stores))

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = None if partitions is None else list(partitions)
        larger: dict[TopicPartition, CommittedOffset] = {}
        for store, own in self._each_with(deadline):
            for each, found in store.read(wanted, own).items():
                if each not in larger or found.offset > larger[each].offset:
                    larger[each] = found
        return dict(sorted(larger.items()))

    def write(self, offsets: CommittedOffsets, deadline: Deadline | None = None) -> None:
        """Write both, the second also when the first fails; raises the first error."""
        failure: KafkaliteError | None = None
        for store, own in self._each_with(deadline):
            try:
                store.write(offsets, own)
            except KafkaliteError as error:
                error.add_note(f"while committing to {store!r}")
                failure = failure or error
        if failure is not None:
            raise failure

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _each_with(self, deadline: Deadline | None) -> Iterator[tuple[OffsetStore, Deadline | None]]:
        """Yield each store with as much time as both are given: an unavailable store must not use up the other's."""
        given_s = 0.0 if deadline is None else deadline.left_s()
        for store in self._stores:
            yield store, None if deadline is None else Deadline.after_ms(given_s * 1000, deadline.clock)
