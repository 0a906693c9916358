"""Writes a coordinator's records: many requests into one batch, each told when its own are committed.

What is handed in during one pass of the event loop becomes one record batch (or as few as hold it), begun after the
pass: fifty commits that arrive together are one append. One caller's records are in one batch, so all of them are
committed or none. Callers are told in the order of the log, each after ``on_committed`` has seen its records.

A writer belongs to one leader epoch, which every append names. It is closed when that epoch ends: whoever still waits
is told so, and what comes back from the log later is nobody's any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    InvalidCommitOffsetSize,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from spark_kafkalite.groups.records import OffsetKey, RecordKey, RecordValue, encode_key, encode_value
from spark_kafkalite.records.kernel import OpenBatch
from spark_kafkalite.records.layout import MAX_BATCH_BYTES

logger = logging.getLogger(__name__)

# Partition, batch, the leader epoch that it is written under, seconds; gives the base offset once it is committed.
AppendCommitted = Callable[[int, bytearray, int, float], Awaitable[int]]
# A record to write; None is a tombstone.
Entry = tuple[RecordKey, RecordValue | None]

# What one batch holds at most, unless a single request needs more. The topic's own limit is 1 MiB by default.
_BATCH_BYTES: Final = 512 * 1024
# What a record takes beside its key and value, at most: lengths, deltas and the rest of its fields.
_RECORD_BYTES: Final = 32

# What clients are told of an append that failed, so that they ask again in the right place. Source: Kafka's
# GroupMetadataManager.
_NOT_AVAILABLE: Final = (UnknownTopicOrPartition, NotEnoughReplicas, NotEnoughReplicasAfterAppend)
_NOT_HERE: Final = (NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch, KafkaStorageError)
_TOO_LARGE: Final = (MessageTooLarge, RecordListTooLarge)


def coordinator_error(error: KafkaError) -> KafkaError:
    """Return what members and committers are told when the append of their records failed."""
    if isinstance(error, _NOT_AVAILABLE):
        return CoordinatorNotAvailable(str(error))
    if isinstance(error, _NOT_HERE):
        return NotCoordinator(str(error))
    if isinstance(error, _TOO_LARGE):
        return InvalidCommitOffsetSize(str(error))
    return error


class _Append:
    """One caller's records on their way."""

    __slots__ = ("done", "entries", "records", "size_bytes")

    def __init__(self, entries: Sequence[Entry], done: asyncio.Future[None]) -> None:
        self.entries = entries
        self.records = [(encode_key(key), None if value is None else encode_value(value)) for key, value in entries]
        self.size_bytes = sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in self.records)
        self.done = done

    def tell(self, error: KafkaError | None) -> None:
        """Let the caller go on, unless it has gone."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class RecordWriter:
    """See the module's text."""

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        append_committed: AppendCommitted,
        clock: Clock,
        timeout_s: Callable[[], float],
        on_committed: Callable[[Sequence[Entry]], None],
    ) -> None:
        """``on_committed`` gets each caller's records when they are committed, just before the caller is told."""
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._append_committed = append_committed
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_committed = on_committed
        # Not begun yet, and all that nobody has been told the end of.
        self._waiting: list[_Append] = []
        self._open: dict[_Append, None] = {}
        self._is_closed = False

    def append(self, entries: Sequence[Entry]) -> asyncio.Future[None]:
        """Write records; the future is done when they are committed, or raises as :func:`coordinator_error` says."""
        loop = asyncio.get_running_loop()
        one = _Append(entries, loop.create_future())
        if not self._waiting:
            loop.call_soon(self._write)
        self._waiting.append(one)
        self._open[one] = None
        return one.done

    def open_offset_keys(self) -> Iterator[OffsetKey]:
        """Give the keys of committed offsets of which records are being written."""
        for one in self._open:
            for key, _ in one.entries:
                if isinstance(key, OffsetKey):
                    yield key

    def _write(self) -> None:
        """Put what waits into as few batches as hold it, and write them."""
        waiting, self._waiting = self._waiting, []
        batch: list[_Append] = []
        size_bytes = 0
        for one in waiting:
            if batch and size_bytes + one.size_bytes > _BATCH_BYTES:
                self._write_batch(batch)
                batch, size_bytes = [], 0
            batch.append(one)
            size_bytes += one.size_bytes
        if batch:
            self._write_batch(batch)

    def _write_batch(self, appends: list[_Append]) -> None:
        if self._is_closed:
            return
        now_ms = self._clock.wall_ms()
        batch = OpenBatch(MAX_BATCH_BYTES)
        for one in appends:
            for key, value in one.records:
                batch.append(now_ms, key, value)
        written = asyncio.ensure_future(
            self._append_committed(self._partition, batch.build(), self._leader_epoch, self._timeout_s())
        )
        if written.done():
            # Alone, this broker commits what it appends; then nobody waits for another pass of the loop.
            self._written(appends, written)
        else:
            written.add_done_callback(lambda future: self._written(appends, future))

    def _written(self, appends: list[_Append], written: asyncio.Future[int]) -> None:
        error = CoordinatorNotAvailable("the broker stops") if written.cancelled() else written.exception()
        if self._is_closed:
            return
        if isinstance(error, _TOO_LARGE) and len(appends) > 1:
            # The topic's limit has been lowered: each for itself.
            for one in appends:
                self._write_batch([one])
            return
        told: KafkaError | None = None
        if isinstance(error, KafkaError):
            told = coordinator_error(error)
        elif error is not None:
            logger.error("writing to __consumer_offsets-%d failed", self._partition, exc_info=error)
            told = CoordinatorNotAvailable(f"__consumer_offsets-{self._partition} cannot be written: {error}")
        for one in appends:
            del self._open[one]
            if told is None:
                self._on_committed(one.entries)
            one.tell(told)

    def close(self, error: KafkaError) -> None:
        """Write nothing any more; whoever waits is told ``error``."""
        self._is_closed = True
        self._waiting.clear()
        still_open, self._open = self._open, {}
        for one in still_open:
            one.tell(error)
