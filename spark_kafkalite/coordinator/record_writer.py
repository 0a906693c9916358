"""Writes a coordinator's records: many requests in one batch, each answered when its records are committed.

Records that are handed in during one pass of the event loop become one record batch (or as few as hold them), written
at the end of the pass: fifty commits that arrive together are one append. One caller's records are in one batch, so all
of them are committed or none. When a batch is committed its records are applied to the state, and then their callers
are notified: always in the order of the log, which is the order of the appends. Records of a transaction are a batch of
their own, and so is the marker that ends it; both keep their places among the others.

A batch that is not committed in time may still be committed later, while the leader epoch lasts. Its callers receive a
timeout, and may ask again. The writer goes on waiting and applies the batch when it is committed, so that the state is
never behind the log. The bytes that wait are bounded: above the bound, new records are refused.

A writer belongs to one leader epoch, which every append names. It is closed when that epoch ends: callers that still
wait receive an error. The next load finds what the log commits after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.internal_topic import TopicHost
from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.coordinator.state_machine import Entry, StateMachine
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    MessageTooLarge,
    RecordListTooLarge,
    RequestTimedOut,
)
from spark_kafkalite.net.event_loop import end_of_pass
from spark_kafkalite.records.control import Marker, build_marker
from spark_kafkalite.records.kernel import OpenBatch
from spark_kafkalite.records.layout import MAX_BATCH_BYTES

logger = logging.getLogger(__name__)

# Gets None when the records are committed, or what the caller's client is to be told.
OnDone = Callable[[KafkaError | None], None]

TOO_LARGE: Final = (MessageTooLarge, RecordListTooLarge)
# Nothing is added to a batch of this size. The topic's own limit is 1 MiB by default, the largest commit much smaller.
_BATCH_BYTES: Final = 256 * 1024
# With as much in the log that is not committed, nothing is added; what waits takes several times this in memory.
_MOST_OPEN_BYTES: Final = 16 * 1024 * 1024


class _Append(NamedTuple):
    """One caller's records on their way."""

    entries: Sequence[Entry]
    on_done: OnDone


class _Batch:
    """A record batch: it fills until the pass of the loop is over, is in the log then, and over in the end.

    One of a ``producer`` is of one caller: records of its transaction, or the ``marker`` that ends it.
    """

    __slots__ = ("appends", "base_offset", "is_over", "marker", "producer", "records", "size_bytes", "timer")

    def __init__(self, producer: ProducerIdAndEpoch | None = None, marker: Marker | None = None) -> None:
        self.records = OpenBatch(MAX_BATCH_BYTES)
        self.appends: list[_Append] = []
        self.producer = producer
        self.marker = marker
        self.size_bytes = 0
        self.is_over = False
        # Where it lies in the log, once it is committed.
        self.base_offset = -1
        self.timer: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        """Whether another caller's records may join it."""
        return self.producer is None and self.records.size_bytes < _BATCH_BYTES

    def build_for(self, producer: ProducerIdAndEpoch, now_ms: int) -> bytearray:
        """Return the batch of a producer for the log."""
        producer_id, producer_epoch = producer
        if self.marker is not None:
            return build_marker(producer_id, producer_epoch, self.marker, now_ms)
        # A coordinator has no sequences of its producers. Apache Kafka's writes 0 into each batch.
        return self.records.build(
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=0, transactional=True
        )


class RecordWriter:
    """See the module's text."""

    def __init__(self, host: TopicHost, partition: int, leader_epoch: int, state: StateMachine, clock: Clock) -> None:
        self._host = host
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._state = state
        self._clock = clock
        self._label = f"{host.topic.name}-{partition}"
        self._at_end_of_pass = end_of_pass(asyncio.get_running_loop())
        self._filling: deque[_Batch] = deque()
        self._is_scheduled = False
        # Batches in the log, in its order; the first is not over.
        self._in_log: deque[_Batch] = deque()
        self._open_bytes = 0
        self._closed: KafkaError | None = None

    def append(self, entries: Sequence[Entry], on_done: OnDone, producer: ProducerIdAndEpoch | None = None) -> None:
        """Write records; ``on_done`` gets None when they are committed and applied, or an error.

        Those of a ``producer`` belong to its transaction, and are a batch of their own.

        The error is what :meth:`StateMachine.told` makes of the append's, which is RequestTimedOut (7) when the records
        may or may not be committed later; or CoordinatorNotAvailable (15) with too much on its way. Raises ValueError
        for what the records cannot hold; nothing is written then.
        """
        if self._open_bytes >= _MOST_OPEN_BYTES:
            self._refuse(on_done)
            return
        filling = self._filling
        if producer is None and filling and filling[-1].has_room:
            self._fill(filling[-1], _Append(entries, on_done))
            return
        batch = _Batch(producer)
        self._fill(batch, _Append(entries, on_done))
        self._queue(batch)

    def end_transaction(self, producer: ProducerIdAndEpoch, marker: Marker, on_done: OnDone) -> None:
        """Write a marker, behind all that was handed in before it; ``on_done`` as in :meth:`append`."""
        if self._open_bytes >= _MOST_OPEN_BYTES:
            self._refuse(on_done)
            return
        batch = _Batch(producer, marker)
        batch.appends.append(_Append((), on_done))
        self._queue(batch)

    def _refuse(self, on_done: OnDone) -> None:
        waits = f"{self._open_bytes} bytes of records wait to be committed, at most {_MOST_OPEN_BYTES}"
        on_done(CoordinatorNotAvailable(f"{self._label}: {waits}"))

    def _queue(self, batch: _Batch) -> None:
        self._filling.append(batch)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._at_end_of_pass(self._write)

    def open_keys(self) -> Iterator[Any]:
        """Give the keys of records that are on their way into the log, also of those whose callers wait no more."""
        for batch in chain(self._in_log, self._filling):
            for one in batch.appends:
                for key, _ in one.entries:
                    yield key

    def close(self, error: KafkaError) -> None:
        """Write nothing any more; waiting callers receive ``error``."""
        self._closed = error
        still_open = [*self._in_log, *self._filling]
        self._in_log.clear()
        self._filling.clear()
        for batch in still_open:
            _stop_timer(batch)
            for one in batch.appends:
                _tell(one, error)

    # Into the log ---------------------------------------------------------------------------------------------------

    def _fill(self, batch: _Batch, one: _Append) -> None:
        # All of them are encoded before the first is added, so that a caller's records are in it whole or not at all.
        encoded = self._state.encode(one.entries)
        now_ms = self._clock.wall_ms()
        append = batch.records.append
        for key, value in encoded:
            append(now_ms, key, value)
        batch.appends.append(one)

    def _write(self) -> None:
        self._is_scheduled = False
        # Who is told may hand in more, which waits for the next pass, or give the partition up.
        for _ in range(len(self._filling)):
            if self._filling:
                self._append_batch(self._filling.popleft())

    def _append_batch(self, batch: _Batch) -> None:
        producer = batch.producer
        data = batch.records.build() if producer is None else batch.build_for(producer, self._clock.wall_ms())
        batch.size_bytes = len(data)
        self._open_bytes += batch.size_bytes
        self._in_log.append(batch)
        try:
            committed = self._host.append_committed(self._partition, data, self._leader_epoch)
        except Exception as error:
            # Also a bug: those behind it must not wait for ever.
            self._end(batch, error)
            return
        if isinstance(committed, int):
            # Alone, this broker commits what it appends; then nobody waits for another pass of the loop.
            self._end(batch, None, committed)
        else:
            committed.add_done_callback(lambda future: self._over(batch, future))
            timeout_s = self._host.topic.commit_timeout_ms / 1000
            batch.timer = asyncio.get_running_loop().call_later(timeout_s, self._late, batch)

    def _late(self, batch: _Batch) -> None:
        """Answer the callers with a timeout; the records stay, and are applied when they are committed."""
        setting = self._host.topic.commit_timeout_setting
        late = RequestTimedOut(f"{self._label}: not committed within {setting}; it may be later")
        error = self._state.told(late)
        told, batch.appends = batch.appends, [one._replace(on_done=_told_already) for one in batch.appends]
        for one in told:
            _tell(one, error)

    # Out of the log -------------------------------------------------------------------------------------------------

    def _over(self, batch: _Batch, committed: asyncio.Future[int]) -> None:
        error = CoordinatorNotAvailable("the broker stops") if committed.cancelled() else committed.exception()
        self._end(batch, error, committed.result() if error is None else -1)

    def _end(self, batch: _Batch, error: BaseException | None, base_offset: int = -1) -> None:
        if self._closed is not None:
            return
        batch.is_over = True
        batch.base_offset = base_offset
        self._open_bytes -= batch.size_bytes
        _stop_timer(batch)
        refused: list[_Append] = []
        if error is not None:
            refused, batch.appends = batch.appends, []
        # Waiters of one partition may be woken in any order. What is committed is applied in the log's.
        while self._in_log and self._in_log[0].is_over:
            self._committed(self._in_log.popleft())
        if error is not None:
            self._refused(refused, error)

    def _committed(self, batch: _Batch) -> None:
        offset, producer, marker = batch.base_offset, batch.producer, batch.marker
        for one in batch.appends:
            told: KafkaError | None = None
            end_offset = offset + len(one.entries)
            try:
                if marker is None or producer is None:
                    self._state.apply(one.entries, range(offset, end_offset), producer)
                else:
                    self._state.ended(producer, commits=marker.commits)
            except Exception:
                logger.exception("%s: committed records cannot be applied", self._label)
                told = CoordinatorNotAvailable(f"{self._label}: committed records cannot be applied")
            offset = end_offset
            _tell(one, told)

    def _refused(self, appends: list[_Append], error: BaseException) -> None:
        if isinstance(error, TOO_LARGE) and len(appends) > 1:
            # One large request, or a topic whose limit has been lowered: each for itself.
            for one in appends:
                if self._closed is not None:
                    _tell(one, self._closed)
                    continue
                alone = _Batch()
                self._fill(alone, one)
                self._append_batch(alone)
            return
        if isinstance(error, KafkaError):
            told = self._state.told(error)
        else:
            logger.error("writing to %s failed", self._label, exc_info=error)
            told = CoordinatorNotAvailable(f"{self._label} cannot be written: {error}")
        for one in appends:
            _tell(one, told)


def _stop_timer(batch: _Batch) -> None:
    if batch.timer is not None:
        batch.timer.cancel()
        batch.timer = None


def _told_already(error: KafkaError | None) -> None:
    """Do nothing: the caller was answered before."""


def _tell(one: _Append, error: KafkaError | None) -> None:
    try:
        one.on_done(error)
    except Exception:
        # The others in the batch want to know as well.
        logger.exception("telling the outcome of a write to an internal topic failed")
