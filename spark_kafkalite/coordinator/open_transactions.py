"""What transactions have written and not yet committed or aborted: the last record of each key, by producer.

A record of an open transaction changes nothing before its marker. At a commit it counts from its own place in the log,
not from the marker's: a record of the same key that lies behind it, and has been committed since, stays. Such a record
therefore overtakes those of open transactions that lie before it. Pure.
Source: org.apache.kafka.coordinator.group.OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ProducerIdAndEpoch(NamedTuple):
    """Which producer's transaction a record belongs to."""

    producer_id: int
    producer_epoch: int


class OpenTransactions(Generic[Key, Value]):
    """See the module's text. Records are (key, value, offset); a value of None is a tombstone."""

    __slots__ = ("_epochs", "_pending", "producers_of")

    def __init__(self) -> None:
        self._pending: dict[int, dict[Key, tuple[Key, Value | None, int]]] = {}
        self._epochs: dict[int, int] = {}
        # The producers that have records of a key. Callers look for themselves whether there are any, because that is
        # asked for each record outside transactions.
        self.producers_of: dict[Key, set[int]] = {}

    def add(self, producer: ProducerIdAndEpoch, key: Key, value: Value | None, offset: int) -> None:
        """Note a record, in place of the transaction's earlier one of this key."""
        producer_id, epoch = producer
        self._epochs[producer_id] = epoch
        self._pending.setdefault(producer_id, {})[key] = key, value, offset
        self.producers_of.setdefault(key, set()).add(producer_id)

    def overtake(self, key: Key, offset: int) -> None:
        """Drop what lies before a committed record of this key."""
        for producer_id in list(self.producers_of.get(key, ())):
            if self._pending[producer_id][key][-1] < offset:
                del self._pending[producer_id][key]
                self._forget(key, producer_id)

    def end(self, producer_id: int, *, commits: bool) -> list[tuple[Key, Value | None, int]]:
        """End a producer's transaction, and return what its commit brings, in the order of the log."""
        self._epochs.pop(producer_id, None)
        ended = self._pending.pop(producer_id, {})
        for key in ended:
            self._forget(key, producer_id)
        if not commits:
            return []
        for key, _, offset in ended.values():
            self.overtake(key, offset)
        return sorted(ended.values(), key=_offset)

    def __iter__(self) -> Iterator[tuple[ProducerIdAndEpoch, list[tuple[Key, Value | None, int]]]]:
        """Iterate over the transactions, each with its records in the order of the log."""
        for producer_id, pending in self._pending.items():
            producer = ProducerIdAndEpoch(producer_id, self._epochs[producer_id])
            yield producer, sorted(pending.values(), key=_offset)

    def _forget(self, key: Key, producer_id: int) -> None:
        producers = self.producers_of[key]
        producers.discard(producer_id)
        if not producers:
            del self.producers_of[key]


def _offset(record: tuple[object, object, int]) -> int:
    return record[2]
