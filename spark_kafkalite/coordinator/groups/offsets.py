"""The committed offsets of one coordinator's groups, in memory as they are in the log.

:meth:`GroupOffsets.apply` is the only way in, for records that a load reads and for those just written alike. It is
called in the log's order for committed records (below the high watermark). So the state here is the state that a
restart would find. The writer holds commits on their way into the log: they are not shown. Expiry leaves their keys
alone, because its tombstone would come behind them and delete what was just committed.

When an offset has expired (:func:`expired_offsets`), as Apache Kafka's GroupMetadata.removeExpiredOffsets has it:

====================================  ==============================================================================
the group                             its offset goes ``offsets.retention.minutes`` after
====================================  ==============================================================================
was never more than offsets           the commit
is empty                              it became empty, or the commit if that came later (an administrator's)
has consumers                         the commit, and only in topics that none of them reads
has members of another kind           never
====================================  ==============================================================================

A commit that named a retention time of its own (clients of old) goes when that has passed, under the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.records import NO_TIME, OffsetKey, OffsetValue
from spark_kafkalite.model import TopicPartition

_new_tuple = tuple.__new__
_NOTHING: Mapping[TopicPartition, OffsetValue] = {}


class GroupOffsets:
    """See the module's text."""

    def __init__(self, pending_keys: Callable[[], Iterable[OffsetKey]] = tuple) -> None:
        """``pending_keys`` gives the keys of records that are being written."""
        self._groups: dict[str, dict[TopicPartition, OffsetValue]] = {}
        self._pending_keys = pending_keys

    def apply(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """Take over a record of the log; None is a tombstone."""
        group, topic, partition = key
        offsets = self._groups.get(group)
        # As TopicPartition(...), in a third of the time.
        topic_partition = _new_tuple(TopicPartition, (topic, partition))
        if value is not None:
            if offsets is None:
                offsets = self._groups[group] = {}
            offsets[topic_partition] = value
        elif offsets is not None:
            offsets.pop(topic_partition, None)
            if not offsets:
                del self._groups[group]

    def of(self, group: str) -> Mapping[TopicPartition, OffsetValue]:
        """Return a group's committed offsets, for reading at once: it changes with the next commit."""
        return self._groups.get(group, _NOTHING)

    def groups(self) -> Iterator[str]:
        """Iterate over the groups that have offsets."""
        return iter(self._groups)

    def keys(self, group: str) -> list[OffsetKey]:
        """Return the keys of a group's offsets, those that are being written among them."""
        keys = {OffsetKey(group, *topic_partition) for topic_partition in self.of(group)}
        return sorted(keys | self.pending(group))

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._groups.values())

    def pending(self, group: str) -> set[OffsetKey]:
        """Return the keys of a group of which records are being written."""
        return {key for key in self._pending_keys() if key.group == group}

    def has_any(self, group: str) -> bool:
        """Return whether the group has offsets, or has commits on their way into the log."""
        return group in self._groups or any(key.group == group for key in self._pending_keys())


def expired_offsets(group: Group, offsets: GroupOffsets, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Return the partitions whose committed offsets of the group have expired by the wall clock."""
    committed = offsets.of(group.group_id)
    if not committed:
        return []
    since_ms = NO_TIME
    in_use: frozenset[str] = frozenset()
    if group.is_empty:
        if group.protocol_type is not None:
            since_ms = group.current_state_timestamp_ms
    else:
        topics = group.subscribed_topics()
        if topics is None:
            return []
        in_use = topics
    pending = offsets.pending(group.group_id)
    return [
        topic_partition
        for topic_partition, stored in committed.items()
        if topic_partition.topic not in in_use
        and _has_expired(stored, since_ms, now_ms, retention_ms)
        and OffsetKey(group.group_id, *topic_partition) not in pending
    ]


def _has_expired(stored: OffsetValue, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    if stored.expire_timestamp_ms != NO_TIME:
        return now_ms >= stored.expire_timestamp_ms
    return now_ms - max(since_ms, stored.commit_timestamp_ms) >= retention_ms
