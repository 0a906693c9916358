"""The interface of a coordinator's state: the format of its records, and the state that they make.

A state machine has no input but committed records, so it is the same wherever the same log is read. It decides nothing
and starts nothing: the coordinator handles requests and deadlines. It reads the state and writes records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    KafkaError,
    KafkaliteError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)

# A record: its key and its value, None for a tombstone. What they are is the coordinator's.
Entry = tuple[Any, Any]
# Gives the keys of records that are on their way into the log: not committed, and perhaps never.
OpenKeys = Callable[[], Iterator[Any]]

# What clients are told of an append that failed, so that they ask again in the right place. Source: Kafka's
# GroupMetadataManager and TransactionStateManager.
_NOT_AVAILABLE: Final = (UnknownTopicOrPartition, NotEnoughReplicas, NotEnoughReplicasAfterAppend)
_NOT_HERE: Final = (NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch, KafkaStorageError)


class UnreadableRecord(KafkaliteError):
    """A record of an internal topic has a version that is not known here, or is damaged."""


class StateMachine(ABC):
    """The state that the records of one partition describe."""

    @abstractmethod
    def encode(self, entries: Iterable[Entry]) -> list[tuple[bytes, bytes | None]]:
        """Return keys and values of records as the log has them. Raises ValueError for what they cannot hold."""

    @abstractmethod
    def decode(self, key: bytes, value: bytes | None) -> Entry:
        """Return the record that the log has. Raises UnreadableRecord, and it is skipped."""

    def canonical_key(self, key: bytes) -> bytes:
        """Return the bytes that the newest version has for this key, so that one key is not taken for two."""
        return key

    @abstractmethod
    def apply(
        self, entries: Sequence[Entry], offsets: Sequence[int], producer: ProducerIdAndEpoch | None = None
    ) -> None:
        """Take over records that stay in the log, with their offsets. With :meth:`ended` the only way in, for loads and
        for writes alike.

        Those of a ``producer`` belong to its transaction, and count only once that has been committed. What a write has
        brought comes in the order of the log. A load gives the last committed record of each key, no tombstones, and
        then what transactions have written that are still open, as far as no committed record lies behind it.
        """

    @abstractmethod
    def ended(self, producer: ProducerIdAndEpoch, *, commits: bool) -> None:
        """Take note of the end of a producer's transaction, which may have written nothing here."""

    @abstractmethod
    def summary(self) -> str:
        """Return what there is, for the line about a load: ``3 groups with 7 offsets``."""

    def told(self, error: KafkaError) -> KafkaError:
        """Return the error for a caller when the append of its records failed, or is not known to have succeeded."""
        return coordinator_error(error)


def coordinator_error(error: KafkaError) -> KafkaError:
    """Return an append's error as clients of any coordinator know it."""
    if isinstance(error, _NOT_AVAILABLE):
        return CoordinatorNotAvailable(str(error))
    if isinstance(error, _NOT_HERE):
        return NotCoordinator(str(error))
    return error
