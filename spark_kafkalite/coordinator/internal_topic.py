"""An internal topic: the compacted topic that holds a coordinator's state, and what the broker does for it.

The first broker that needs the topic creates it. Its partitions divide the keys (group ids, transactional ids) among
the brokers: the leader of a key's partition coordinates the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from spark_kafkalite.records.layout import BatchHeader

LoggedBatches = AsyncIterator[tuple[BatchHeader, memoryview]]

# What a key names, as FindCoordinator has it. Source: FindCoordinatorRequest.CoordinatorType.
GROUPS: Final = 0
TRANSACTIONS: Final = 1

_REMEMBERED_CHARS: Final = 255


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """One internal topic. ``kind`` is what its keys name, as texts have it: "group".

    The three sizes count when the topic is created; ``replication_setting`` is the setting of the second.
    ``commit_timeout_ms``: a caller whose record is not committed after this time receives RequestTimedOut;
    ``commit_timeout_setting`` is the setting of it.
    """

    name: str
    kind: str
    partition_count: int
    replication_factor: int
    segment_bytes: int
    replication_setting: str
    commit_timeout_ms: int
    commit_timeout_setting: str

    @property
    def config(self) -> dict[str, str]:
        """The topic's own settings when it is made."""
        return {
            "cleanup.policy": "compact",
            # As they are written, which is uncompressed.
            "compression.type": "producer",
            "segment.bytes": str(self.segment_bytes),
        }


class TopicHost(Protocol):
    """What a broker does for the coordinator of one internal topic."""

    @property
    def topic(self) -> InternalTopic:
        """The topic."""
        raise NotImplementedError

    def partition_count(self) -> int:
        """Return how many partitions the topic has, 0 while there is none."""
        raise NotImplementedError

    def append_committed(self, partition: int, batch: bytearray, leader_epoch: int) -> int | asyncio.Future[int]:
        """Append a batch under a leader epoch; return its base offset if it is committed then, or a future, which has
        it when the batch is committed, however late.

        Raises a KafkaError when the batch is not in the log; the future when the epoch ends before it is committed.
        """
        raise NotImplementedError

    def read_replicated(self, partition: int) -> LoggedBatches:
        """Give the batches that the log holds now from its start on, each once it is certain that it stays.

        Raises KafkaliteError when the log cannot be read, or is not led here any more.
        """
        raise NotImplementedError


def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of an internal topic that a key belongs to: Java's hash of the key, without its sign.

    Source: GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor, java.lang.String.hashCode and
    Utils.abs of Apache Kafka.
    """
    # Keys may have 32767 bytes, and nobody's should fill a cache with them.
    remember = len(key) <= _REMEMBERED_CHARS
    return (_partition_for if remember else _partition_for.__wrapped__)(key, partition_count)


@lru_cache(maxsize=10_000)
def _partition_for(key: str, partition_count: int) -> int:
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    # The smallest int32 has no positive counterpart.
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
