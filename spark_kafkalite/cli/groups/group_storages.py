"""The two places that groups and their offsets may lie in, behind one interface: the coordinator, and the registry.

``kafka`` is a group at its coordinator (``__consumer_offsets``), ``zookeeper`` one below ``/consumers`` in a registry,
as ``offsets.storage`` calls them. Resets, copies and migrations are written once, against :class:`OffsetStorage`.

Only a group without live members may have its offsets moved. The storage in the registry is :mod:`.registry_storage`,
apart because it costs every start of a command to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafkalite.errors import NonEmptyGroup
from spark_kafkalite.model import CommittedOffset, TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin

KAFKA: Final = "kafka"
ZOOKEEPER: Final = "zookeeper"


class OffsetStorage(Protocol):
    """Where groups keep their offsets. ``name`` is the value of ``offsets.storage``."""

    name: str

    def groups(self) -> list[str]:
        """Return the ids of all groups, in order."""
        ...

    def exists(self, group: str) -> bool:
        """Whether there is such a group: it has members or offsets."""
        ...

    def members(self, group: str) -> list[str]:
        """Return the live members, as texts for people."""
        ...

    def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return all committed offsets, in order of their partitions."""
        ...

    def alter(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets in the name of a group without members. Raises when it has some."""
        ...

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets of a group; those that are not there are passed over."""
        ...

    def delete(self, group: str) -> None:
        """Delete a group without members. Raises GroupIdNotFound, NonEmptyGroup."""
        ...


def refuse_if_members(storage: OffsetStorage, group: str, doing: str) -> None:
    """Raise NonEmptyGroup, naming the members, when the group has any."""
    members = storage.members(group)
    if members:
        shown = ", ".join(members[:3]) + (f" and {len(members) - 3} more" if len(members) > 3 else "")
        raise NonEmptyGroup(
            f"group {group!r} has {len(members)} live {'member' if len(members) == 1 else 'members'} in {storage.name} "
            f"({shown}), so {doing}; stop its consumers first"
        )


class KafkaStorage:
    """Groups at their coordinators."""

    name = KAFKA

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def groups(self) -> list[str]:
        return [each.group_id for each in self._admin.list_groups()]

    def exists(self, group: str) -> bool:
        return self._admin.describe_groups([group])[group].exists

    def members(self, group: str) -> list[str]:
        described = self._admin.describe_groups([group])[group]
        return [f"{each.client_id} at {each.host.lstrip('/')}" for each in described.members]

    def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        return self._admin.group_offsets(group)

    def alter(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._admin.alter_group_offsets(group, offsets)

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        self._admin.delete_group_offsets(group, partitions)

    def delete(self, group: str) -> None:
        self._admin.delete_groups([group])
