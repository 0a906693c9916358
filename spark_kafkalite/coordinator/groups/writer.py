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
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.records import OffsetKey, RecordKey, RecordValue, encode_records
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
from spark_kafkalite.records.kernel import OpenBatch
from spark_kafkalite.records.layout import MAX_BATCH_BYTES

logger = logging.getLogger(__name__)

# Partition, batch, the leader epoch that it is written under, seconds; gives the base offset once it is committed.
AppendCommitted = Callable[[int, bytearray, int, float], asyncio.Future[int]]
# A record to write; None is a tombstone.
Entry = tuple[RecordKey, RecordValue | None]
# Gets None when the records are committed, or what clients are to be told.
OnDone = Callable[[KafkaError | None], None]

# Nothing is added to a batch of this size. The topic's own limit is 1 MiB by default, the largest commit much smaller.
_BATCH_BYTES: Final = 256 * 1024

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


class _Append(NamedTuple):
    """One caller's records on their way."""

    entries: Sequence[Entry]
    on_done: OnDone


class _Batch:
    """A record batch that fills until the pass of the loop is over."""

    __slots__ = ("appends", "records")

    def __init__(self) -> None:
        self.records = OpenBatch(MAX_BATCH_BYTES)
        self.appends: list[_Append] = []

    def add(self, one: _Append, now_ms: int) -> None:
        # All of them are encoded before the first is added, so that a caller's records are in it whole or not at all.
        encoded = encode_records(one.entries)
        append = self.records.append
        for key, value in encoded:
            append(now_ms, key, value)
        self.appends.append(one)


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
        self._filling: list[_Batch] = []
        # Batches that nobody has been told the end of, in the log's order; those that fill come last.
        self._open: dict[_Batch, None] = {}
        self._is_closed = False

    def append(self, entries: Sequence[Entry], on_done: OnDone) -> None:
        """Write records; ``on_done`` gets None when they are committed, or an error as :func:`coordinator_error` says.

        Raises ValueError for what the records cannot hold; nothing is written then.
        """
        filling = self._filling
        if not filling or filling[-1].records.size_bytes >= _BATCH_BYTES:
            batch = _Batch()
            batch.add(_Append(entries, on_done), self._clock.wall_ms())
            if not filling:
                asyncio.get_running_loop().call_soon(self._write)
            filling.append(batch)
            self._open[batch] = None
        else:
            filling[-1].add(_Append(entries, on_done), self._clock.wall_ms())

    def open_offset_keys(self) -> Iterator[OffsetKey]:
        """Give the keys of committed offsets of which records are being written."""
        for batch in self._open:
            for one in batch.appends:
                for key, _ in one.entries:
                    if isinstance(key, OffsetKey):
                        yield key

    def _write(self) -> None:
        filled, self._filling = self._filling, []
        for batch in filled:
            self._write_batch(batch)

    def _write_batch(self, batch: _Batch) -> None:
        if self._is_closed:
            return
        data = batch.records.build()
        written = self._append_committed(self._partition, data, self._leader_epoch, self._timeout_s())
        if written.done():
            # Alone, this broker commits what it appends; then nobody waits for another pass of the loop.
            self._written(batch, written)
        else:
            written.add_done_callback(lambda future: self._written(batch, future))

    def _written(self, batch: _Batch, written: asyncio.Future[int]) -> None:
        error = CoordinatorNotAvailable("the broker stops") if written.cancelled() else written.exception()
        if self._is_closed:
            return
        del self._open[batch]
        if isinstance(error, _TOO_LARGE) and len(batch.appends) > 1:
            # One large request, or a topic whose limit has been lowered: each for itself.
            for one in batch.appends:
                alone = _Batch()
                alone.add(one, self._clock.wall_ms())
                self._open[alone] = None
                self._write_batch(alone)
            return
        told: KafkaError | None = None
        if isinstance(error, KafkaError):
            told = coordinator_error(error)
        elif error is not None:
            logger.error("writing to __consumer_offsets-%d failed", self._partition, exc_info=error)
            told = CoordinatorNotAvailable(f"__consumer_offsets-{self._partition} cannot be written: {error}")
        for one in batch.appends:
            if told is None:
                self._on_committed(one.entries)
            _tell(one, told)

    def close(self, error: KafkaError) -> None:
        """Write nothing any more; whoever waits is told ``error``."""
        self._is_closed = True
        self._filling.clear()
        still_open, self._open = self._open, {}
        for batch in still_open:
            for one in batch.appends:
                _tell(one, error)


def _tell(one: _Append, error: KafkaError | None) -> None:
    try:
        one.on_done(error)
    except Exception:
        # The others in the batch want to know as well.
        logger.exception("telling the outcome of a write to __consumer_offsets failed")
