"""Message streams: endless iterators over the records of the partitions that a consumer thread owns at the moment.

A stream takes fetched pieces out of the connector's shared, bounded read-ahead, one at a time, and decodes them in
small chunks. Which partitions are its own changes while it is read: :meth:`MessageStream.add` and
:meth:`MessageStream.remove` are called by the connector, and after ``remove`` has returned no further record of that
partition is handed out.

Processed and handed out are two things. A record counts as processed when the next one is asked for, so that what is
committed meanwhile never covers a record that is still being worked on (at-least-once). The thread that reads a stream
may count it earlier: a commit by that thread itself covers the record in its hand.

Locks: ``_lock`` is held for a few instructions, never while waiting; where both are held, it is taken before the
read-ahead's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final

from spark_kafkalite.client.consume.fetched import FetchedBatches
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import ConsumerTimeout, KafkaliteError
from spark_kafkalite.model import Record, TopicPartition
from spark_kafkalite.records.columns import ColumnBuilder

# Rows and bytes that are decoded at once.
_CHUNK_ROWS: Final = 2_000
_CHUNK_BYTES: Final = 4 << 20
_WAIT_S: Final = 1.0


class Lease:
    """Until when (monotonic seconds) the registry surely keeps the owner nodes: afterwards nothing is handed out."""

    __slots__ = ("until_s",)

    def __init__(self) -> None:
        self.until_s = 0.0


class OwnedPartition:
    """A partition that a thread owns, and how far that thread has got in it.

    ``processed`` is what may be committed, ``next_offset`` the next one to hand out; both None until the start is
    known. ``committed`` is what the stores hold as far as this consumer knows. ``generation`` is that of the
    read-ahead's state which these offsets go with.
    """

    __slots__ = ("committed", "generation", "next_offset", "processed", "thread", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, thread: str, committed: int | None) -> None:
        self.topic_partition = topic_partition
        self.thread = thread
        self.committed = committed
        self.processed = committed
        self.next_offset = committed
        self.generation = -1

    def __repr__(self) -> str:
        return f"OwnedPartition({self.topic_partition}, {self.thread}, processed={self.processed})"

    def follow(self, state: TopicPartitionState) -> None:
        """Take over a position that the read-ahead has looked up; its lock is held."""
        if state.generation != self.generation and state.position is not None:
            self.generation = state.generation
            self.processed = self.next_offset = state.position


class MessageStream:
    """One stream. Iterate it from one thread; it ends when the connector is shut down."""

    def __init__(
        self, thread: str, ahead: ReadAhead, lease: Lease, timeout_ms: int, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """``timeout_ms`` below 0 waits for ever."""
        self.thread = thread
        self._ahead = ahead
        self._lease = lease
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._now_s = clock.monotonic_s
        self._lock = threading.Lock()
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._turn = 0
        # What is being handed out: rows of `_from`, and the piece that they came from.
        self._from: OwnedPartition | None = None
        self._piece: FetchedBatches | None = None
        self._rows: list[Record] = []
        self._row = 0
        self._rows_end = 0
        self._in_hand: OwnedPartition | None = None
        self._reader = 0
        self._ended = False

    def __repr__(self) -> str:
        return f"MessageStream({self.thread}, {len(self._owned)} partitions)"

    # For its reader -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """Return the next record, waiting for it. Raises ConsumerTimeout after ``consumer.timeout.ms``, and what a
        partition's records cannot be read for; the stream can be read on after either.
        """
        deadline: Deadline | None = None
        while True:
            with self._lock:
                row = self._row
                # The lease is asked for each record: a process that was frozen must not go on as if no time had passed.
                paused = self._now_s() >= self._lease.until_s
                if row < len(self._rows) and not paused and not self._ended:
                    self._row = row + 1
                    if self._in_hand is not self._from:
                        self._done_with_hand()
                        self._in_hand = self._from
                    return self._rows[row]
                self._done_with_hand()
                self._settle()
                if self._ended:
                    raise StopIteration
            if deadline is None and self._timeout_ms >= 0:
                deadline = Deadline.after_ms(self._timeout_ms, self._clock)
            if paused:
                self._wait_for_change(deadline)
            elif not self._decode_more():
                self._take_piece(deadline)

    def _done_with_hand(self) -> None:
        """Count the record in hand as processed; its partition may have another owner by now."""
        owned, self._in_hand = self._in_hand, None
        if owned is not None and owned is not self._from:
            owned.processed = owned.next_offset

    def _settle(self) -> None:
        """Write down how far the partition has got whose rows are being handed out; the lock is held.

        Handing out only counts rows; this is computed on demand.
        """
        owned = self._from
        if owned is None or not self._row:
            return
        # Behind the last row lies what holds no visible record.
        last = self._row == len(self._rows)
        owned.next_offset = self._rows_end if last else self._rows[self._row].offset
        owned.processed = self._rows[self._row - 1].offset if self._in_hand is owned else owned.next_offset
        if last and self._in_hand is not owned:
            # Its offsets may change otherwise from now on.
            self._rows, self._row = [], 0

    def _decode_more(self) -> bool:
        """Decode the next rows of the piece at hand; returns whether there was one."""
        with self._lock:
            owned, piece = self._from, self._piece
            if owned is None or piece is None:
                return False
            generation = owned.generation
            self._reader = threading.get_ident()
        builder = ColumnBuilder(True, _CHUNK_ROWS, _CHUNK_BYTES)
        failure: KafkaliteError | None = None
        try:
            piece.decode_into(builder)
        except KafkaliteError as error:
            failure = error
        topic, partition = owned.topic_partition
        rows: list[Record] = []
        if builder.count:
            columns = builder.finish()
            rows = columns.records(topic, partition, 0, columns.count)
        with self._lock:
            if self._piece is not piece or owned.generation != generation:
                return True  # taken away, or moved by a rewind, meanwhile
            self._settle()
            self._rows, self._row, self._rows_end = rows, 0, piece.next_offset
            if not rows:
                owned.processed = owned.next_offset = piece.next_offset
            if failure is not None or piece.is_exhausted:
                self._piece = None
        if failure is not None:
            # After the good rows before it. It is fetched again; then the state keeps the error until a rewind.
            with self._ahead.lock:
                state = self._ahead.states.get(owned.topic_partition)
                if state is not None and state.generation == generation:
                    self._ahead.unreadable(state, piece.next_offset, failure)
        return True

    def _take_piece(self, deadline: Deadline | None) -> None:
        """Take the next fetched piece of one of the partitions, or wait a while for one."""
        ahead = self._ahead
        with ahead.lock:
            found = self._next_piece()
            if found is None:
                self._wait(deadline)
                return
            owned, state, piece = found
            generation = owned.generation
            state.buffered_bytes -= piece.size_bytes
            ahead.changed.notify_all()
        with self._lock, ahead.lock:
            # Otherwise it was taken away, or moved by a rewind, meanwhile.
            still = self._owned.get(owned.topic_partition) is owned and ahead.states.get(owned.topic_partition) is state
            if still and owned.generation == generation:
                self._settle()
                self._from, self._piece, self._rows, self._row = owned, piece, [], 0

    def _next_piece(self) -> tuple[OwnedPartition, TopicPartitionState, FetchedBatches] | None:
        """Pop the oldest piece of the partition whose turn it is; the read-ahead's lock is held."""
        partitions = list(self._owned.values())
        failure: KafkaliteError | None = None
        for number in range(len(partitions)):
            index = (self._turn + number) % len(partitions)
            owned = partitions[index]
            state = self._ahead.states.get(owned.topic_partition)
            if state is None:
                continue
            owned.follow(state)
            if state.buffered and state.generation == owned.generation:
                self._turn = index + 1
                return owned, state, state.buffered.popleft()
            failure = failure or state.take_error()
        if failure is not None:
            self._ahead.notify_moved()
            raise failure
        return None

    def _wait_for_change(self, deadline: Deadline | None) -> None:
        with self._ahead.lock:
            self._wait(deadline)

    def _wait(self, deadline: Deadline | None) -> None:
        """Wait a while for something to happen; the read-ahead's lock is held."""
        left_s = _WAIT_S if deadline is None else min(_WAIT_S, deadline.left_s())
        if left_s <= 0:
            raise ConsumerTimeout(f"nothing came on stream {self.thread} for consumer.timeout.ms={self._timeout_ms}")
        if not self._ended:
            self._ahead.changed.wait(left_s)

    # For the connector ----------------------------------------------------------------------------------------------

    def add(self, owned: OwnedPartition) -> None:
        """Hand out records of this partition from now on."""
        with self._lock:
            self._owned = {**self._owned, owned.topic_partition: owned}
        with self._ahead.lock:
            self._ahead.changed.notify_all()

    def remove(self, partitions: set[TopicPartition]) -> list[OwnedPartition]:
        """Hand out no more of these partitions and return what was owned of them; waits for nothing."""
        with self._lock:
            self._settle()
            removed = [owned for each, owned in self._owned.items() if each in partitions]
            with self._ahead.lock:
                self._follow(removed)
            self._owned = {each: owned for each, owned in self._owned.items() if each not in partitions}
            if self._from in removed:
                self._forget_rows()
            return removed

    def owned(self) -> list[OwnedPartition]:
        """Return the partitions that are this stream's now."""
        return list(self._owned.values())

    def rewind(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Go on from another offset, if the partition is this stream's; what was fetched of it is dropped."""
        with self._lock:
            owned = self._owned.get(topic_partition)
            if owned is None:
                return False
            with self._ahead.lock:
                state = self._ahead.states.get(topic_partition)
                if state is not None:
                    state.move_to(offset)
                    owned.generation = state.generation
                self._ahead.changed.notify_all()
            owned.processed = owned.next_offset = offset
            if self._in_hand is owned:
                self._in_hand = None
            if self._from is owned:
                self._forget_rows()
            return True

    def _forget_rows(self) -> None:
        self._from = self._piece = None
        self._rows, self._row = [], 0

    def _follow(self, partitions: Iterable[OwnedPartition]) -> None:
        """Take over positions that were looked up, of partitions that nothing is handed out of now."""
        for owned in partitions:
            state = self._ahead.states.get(owned.topic_partition)
            if state is not None and owned is not self._from and owned is not self._in_hand:
                owned.follow(state)

    def processed(self, reader: int = 0) -> list[tuple[OwnedPartition, int]]:
        """Return what may be committed; the record in the hand of the thread ``reader`` counts as processed."""
        with self._lock, self._ahead.lock:
            self._settle()
            self._follow(self._owned.values())
            found = []
            for owned in self._owned.values():
                in_hand = owned is self._in_hand and reader == self._reader
                offset = owned.next_offset if in_hand else owned.processed
                if offset is not None:
                    found.append((owned, offset))
            return found

    def end(self) -> None:
        """End the iteration, also of a reader that waits."""
        with self._lock:
            self._ended = True
        with self._ahead.lock:
            self._ahead.changed.notify_all()


def start(ahead: ReadAhead, owned: OwnedPartition) -> None:
    """Have the read-ahead fetch a partition that was just assigned to it from where its owner is to go on.

    Without an offset the read-ahead looks up the start by auto.offset.reset, and the owner follows.
    """
    with ahead.lock:
        state = ahead.states[owned.topic_partition]
        if owned.next_offset is not None:
            state.move_to(owned.next_offset)
            owned.generation = state.generation
        ahead.changed.notify_all()
