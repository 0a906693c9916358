"""The groups and offsets of one partition of ``__consumer_offsets``, as its records make them. Pure.

The committed state of a group (members, generation, assignments, offsets) is here because a record was applied, and for
no other reason. A :class:`Group` has more than that while it is at work: see ``group.py`` for what is its own until it
is written. A group that has only offsets is known by their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.groups.offsets import GroupOffsets
from spark_kafkalite.coordinator.groups.records import (
    GroupMetadata,
    OffsetKey,
    RecordEntry,
    RecordKey,
    RecordValue,
    canonical_key,
    decode_key,
    decode_value,
    encode_records,
)
from spark_kafkalite.coordinator.open_transactions import OpenTransactions, ProducerIdAndEpoch
from spark_kafkalite.coordinator.record_writer import TOO_LARGE
from spark_kafkalite.coordinator.shard import Shard
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.coordinator.state_machine import OpenKeys, StateMachine, coordinator_error
from spark_kafkalite.errors import InvalidCommitOffsetSize, KafkaError


class GroupsState(StateMachine):
    """See the module's text."""

    def __init__(self, limits: GroupLimits, open_keys: OpenKeys = lambda: iter(())) -> None:
        """``open_keys`` gives the keys of records that are being written."""
        self.groups: dict[str, Group] = {}
        # What open transactions have committed, if they commit: like what is being written, nobody sees it, and neither
        # expiry nor the deletion of a group passes it by.
        self._transactions: OpenTransactions[RecordKey, RecordValue] = OpenTransactions()
        self.offsets = GroupOffsets(lambda: _offset_keys(chain(open_keys(), self._transactions.producers_of)))
        self._limits = limits

    def encode(self, entries: Iterable[RecordEntry]) -> list[tuple[bytes, bytes | None]]:
        return encode_records(entries)

    def canonical_key(self, key: bytes) -> bytes:
        return canonical_key(key)

    def decode(self, key: bytes, value: bytes | None) -> RecordEntry:
        decoded = decode_key(key)
        return decoded, decode_value(decoded, value)

    def apply(
        self, entries: Sequence[RecordEntry], offsets: Sequence[int], producer: ProducerIdAndEpoch | None = None
    ) -> None:
        transactions = self._transactions
        if producer is not None:
            for (key, value), offset in zip(entries, offsets, strict=True):
                transactions.add(producer, key, value, offset)
            return
        if transactions.producers_of:
            for (key, _), offset in zip(entries, offsets, strict=True):
                transactions.overtake(key, offset)
        self._take_over(entries)

    def ended(self, producer: ProducerIdAndEpoch, *, commits: bool) -> None:
        ended = self._transactions.end(producer.producer_id, commits=commits)
        self._take_over([(key, value) for key, value, _ in ended])

    def _take_over(self, entries: Iterable[RecordEntry]) -> None:
        apply_offset, groups = self.offsets.apply, self.groups
        for key, value in entries:
            if isinstance(key, OffsetKey):
                # A key of this kind comes with a value of this kind; checking it costs as much as applying it.
                apply_offset(key, value)  # type: ignore[arg-type]
                if key[0] not in groups and value is not None:
                    self.group_or_new(key.group)
            elif isinstance(value, GroupMetadata):
                self.group_or_new(key.group).apply(value)
            else:
                self._apply_tombstone(key.group)

    def _apply_tombstone(self, group_id: str) -> None:
        """Forget a group, unless a member has joined it since the tombstone was written."""
        group = self.groups.get(group_id)
        if group is not None and group.is_vacant:
            del self.groups[group_id]
            if self.offsets.of(group_id):
                self.group_or_new(group_id)

    def group_or_new(self, group_id: str) -> Group:
        """Return a group; a new one, of which nothing is written, if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._limits)
        return group

    def holds(self, group: Group) -> bool:
        """Return whether this is the current group of its name, and not one that was forgotten."""
        return self.groups.get(group.group_id) is group

    def summary(self) -> str:
        return f"{len(self.groups)} groups with {len(self.offsets)} offsets"

    def told(self, error: KafkaError) -> KafkaError:
        # Source: GroupMetadataManager.
        return InvalidCommitOffsetSize(str(error)) if isinstance(error, TOO_LARGE) else coordinator_error(error)


GroupShard: TypeAlias = Shard[GroupsState]
GroupShards: TypeAlias = Shards[GroupsState]


def _offset_keys(keys: Iterator[object]) -> Iterator[OffsetKey]:
    return (key for key in keys if isinstance(key, OffsetKey))
