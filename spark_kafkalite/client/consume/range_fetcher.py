"""Reads one bounded range of one partition and fetches ahead of its user: Spark's readers use it.

A thread fetches the next pieces while the user decodes the last one; at most ``read_ahead`` pieces wait, so memory is
bounded by about ``(read_ahead + 2) * max_bytes``. Pieces come undecoded (:class:`.fetched.FetchedBatches`);
:func:`columns_from` turns them into columns.

Every offset of the range is either delivered or known not to exist. A position that is no longer in the log raises
:class:`RangeNotInLog` with the log's ends, so that the caller can decide what losing data means. A log that was cut
below what was read raises ``errors.LogTruncated``. Errors that pass (a leader moves, a broker restarts) are retried
inside; without any progress for ``timeout_ms`` the last of them is raised.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Final, Self

from spark_kafkalite.client.consume.broker_fetcher import AfterError, BrokerFetcher, after_error
from spark_kafkalite.client.consume.fetch_requests import FetchFrom, FetchLimits
from spark_kafkalite.client.consume.fetched import BufferPool, FetchedBatches, columns_from
from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import PartitionInfo
from spark_kafkalite.client.network.retry import Backoff, Deadline
from spark_kafkalite.errors import (
    KafkaliteError,
    LogTruncated,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_LEADER_EPOCH, IsolationLevel, TopicPartition

__all__ = ["FetchedBatches", "RangeFetcher", "RangeNotInLog", "columns_from"]

_MAX_WAIT_MS: Final = 500
_GRACE_MS: Final = 1_000
DEFAULT_MAX_BYTES: Final = 8 << 20


class RangeNotInLog(OffsetOutOfRange):
    """Offsets of the range are not in the log: deleted by retention, or beyond the end of a recreated log."""

    def __init__(
        self, topic_partition: TopicPartition, offset: int, log_start_offset: int, log_end_offset: int
    ) -> None:
        super().__init__(
            f"{topic_partition}: offset {offset} is not in the log, which goes from {log_start_offset} to "
            f"{log_end_offset} (exclusive)"
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    def __reduce__(self) -> tuple[type[RangeNotInLog], tuple[TopicPartition, int, int, int]]:
        return type(self), (self.topic_partition, self.offset, self.log_start_offset, self.log_end_offset)


class RangeFetcher:
    """Iterates over the fetched pieces of [start_offset, end_offset). Close it, or use it as a context manager."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic_partition: TopicPartition,
        start_offset: int,
        end_offset: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = DEFAULT_MAX_BYTES,
        read_ahead: int = 2,
        timeout_ms: int = 120_000,
        check_crcs: bool = True,
        unknown_timeout_ms: int | None = None,
        start_epoch: int = NO_LEADER_EPOCH,
        passed: PassedOffsets | None = None,
    ) -> None:
        """``end_offset`` is exclusive. ``timeout_ms`` bounds the time without progress, retries included.

        ``start_epoch`` is that of the record before ``start_offset``, or a later one in which the log was seen to reach
        so far; -1: it is not known.

        ``unknown_timeout_ms`` is for how long the brokers may not know the partition, before that is raised as
        UnknownTopicOrPartition; None is ``timeout_ms``.

        ``passed`` gets the counts of what is decoded, in the thread that decodes: when the range has been decoded, they
        add up to its size.
        """
        self._cluster = cluster
        self._topic_partition = topic_partition
        self._position = start_offset
        self._end_offset = end_offset
        self._last_epoch = start_epoch
        self._isolation = isolation
        self._passed = passed
        self._max_bytes = max_bytes
        self._timeout_ms = timeout_ms
        self._unknown_timeout_ms = timeout_ms if unknown_timeout_ms is None else unknown_timeout_ms
        # Room for the batches and for what stands around them.
        self._fetcher = BrokerFetcher(cluster, BufferPool(), check_crcs=check_crcs, new_buffer_bytes=max_bytes + 65_536)
        self._pieces: queue.Queue[FetchedBatches | BaseException | None] = queue.Queue(max(1, read_ahead))
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        # What was fetched so far: bytes of record batches, and the time that all fetches took, refused ones included.
        self.fetched_bytes = 0
        self.fetch_s = 0.0
        # For how long the iterator has waited for a piece.
        self.wait_s = 0.0

    def __repr__(self) -> str:
        return f"RangeFetcher({self._topic_partition}, at {self._position} of {self._end_offset})"

    def __iter__(self) -> Iterator[FetchedBatches]:
        """Yield the pieces in order; each is to be decoded before the next is asked for, or released."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"kafkalite-fetch-{self._topic_partition}", daemon=True
            )
            self._thread.start()
        while True:
            began_s = time.monotonic()
            piece = self._pieces.get()
            self.wait_s += time.monotonic() - began_s
            if piece is None:
                return
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    @property
    def topic_partition(self) -> TopicPartition:
        """What is read."""
        return self._topic_partition

    @property
    def position(self) -> int:
        """The next offset to be fetched; all before it have been yielded, or are about to be."""
        return self._position

    def close(self) -> None:
        """Stop fetching and end the thread. May be called more than once."""
        self._closed.set()
        self._fetcher.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            while self._thread.is_alive():
                # The thread may be waiting for room.
                while not self._pieces.empty():
                    self._pieces.get_nowait()
                self._thread.join(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._fetch_all()
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            self._fetcher.close()

    def _put(self, piece: FetchedBatches | BaseException | None) -> None:
        while not self._closed.is_set():
            try:
                self._pieces.put(piece, timeout=0.2)
                return
            except queue.Full:
                continue

    def _fetch_all(self) -> None:
        config = self._cluster.config
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        deadline = Deadline.after_ms(self._timeout_ms)
        unknown_deadline: Deadline | None = None
        while self._position < self._end_offset and not self._closed.is_set():
            asked_epoch = self._known_epoch()
            began_s = time.monotonic()
            try:
                piece = self._fetch_once(deadline)
            except KafkaliteError as error:
                if self._closed.is_set():
                    return
                after = after_error(error)
                if after in (AfterError.GIVE_UP, AfterError.MOVE):
                    raise
                if after is AfterError.FIND_LEADER and self._known_epoch() > asked_epoch:
                    # The refusal itself said who leads now.
                    continue
                pause_s = backoff.next_s()
                if not isinstance(error, UnknownTopicOrPartition):
                    unknown_deadline = None
                elif unknown_deadline is None:
                    unknown_deadline = Deadline.after_ms(self._unknown_timeout_ms)
                elif unknown_deadline.passed():
                    raise
                if deadline.left_s() <= pause_s:
                    raise
                self._closed.wait(pause_s)
                if after is AfterError.FIND_LEADER:
                    self._fetcher.disconnect()
                    self._refresh(deadline)
                continue
            finally:
                self.fetch_s += time.monotonic() - began_s
            unknown_deadline = None
            if piece is None:
                if deadline.passed():
                    raise self._no_progress()
                continue
            backoff.reset()
            deadline = Deadline.after_ms(self._timeout_ms)
            self.fetched_bytes += piece.size_bytes
            self._put(piece)

    def _fetch_once(self, deadline: Deadline) -> FetchedBatches | None:
        leader = self._leader(deadline)
        self._fetcher.connect(leader.leader, deadline)
        position = FetchFrom(
            self._topic_partition, self._position, leader.leader_epoch, self._max_bytes, self._last_epoch
        )
        # The last fetch before the deadline parks no longer than that, and its answer has a moment to arrive.
        left_ms = int(deadline.left_s() * 1000)
        wait_ms = min(_MAX_WAIT_MS, max(1, left_ms))
        answer_by = Deadline.after_ms(min(self._cluster.config.request_timeout_ms, left_ms) + wait_ms + _GRACE_MS)
        limits = FetchLimits(1, self._max_bytes, wait_ms, self._isolation)
        with self._fetcher.fetch([position], limits, answer_by) as answer:
            if answer.is_throttled(position):
                return None
            try:
                fetched = answer.of(position)
            except LogTruncated:
                raise
            except OffsetOutOfRange:
                raise self._out_of_range(position.offset, deadline) from None
            if fetched.diverging_epoch is not None:
                self._last_epoch = fetched.diverging_epoch[0]
            piece = answer.piece(position, fetched, self._end_offset, self._passed)
        if fetched.log_start_offset > position.offset and (
            piece.is_exhausted or piece.first_base_offset > position.offset
        ):
            # Deleted between this fetch and the one before, and the broker answers from the new start on.
            raise self._out_of_range(position.offset, deadline)
        if piece.end_offset == position.offset:
            return None
        self._position = piece.end_offset
        self._last_epoch = piece.last_leader_epoch(self._last_epoch)
        return piece

    def _leader(self, deadline: Deadline) -> PartitionInfo:
        if self._cluster.snapshot.partition(self._topic_partition) is None:
            self._refresh(deadline)
        return self._cluster.leading(self._topic_partition)

    def _known_epoch(self) -> int:
        info = self._cluster.snapshot.partition(self._topic_partition)
        return NO_LEADER_EPOCH if info is None else info.leader_epoch

    def _refresh(self, deadline: Deadline) -> None:
        # A failure shows again, and is counted, when the leader is looked up.
        self._cluster.refresh([self._topic_partition.topic], deadline)

    def _out_of_range(self, position: int, deadline: Deadline) -> RangeNotInLog:
        earliest, latest = (
            offsets_for(self._cluster, {self._topic_partition: which}, deadline)[self._topic_partition]
            for which in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        return RangeNotInLog(
            self._topic_partition,
            position,
            -1 if earliest is None else earliest.offset,
            -1 if latest is None else latest.offset,
        )

    def _no_progress(self) -> KafkaliteError:
        return RequestTimedOut(
            f"{self._topic_partition}: nothing came from offset {self._position} on for {self._timeout_ms} ms, though "
            f"the range ends at {self._end_offset}: the log may have been recreated, or an open transaction may hold "
            "back its end"
        )
