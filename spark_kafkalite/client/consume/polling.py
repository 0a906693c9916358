"""What ``poll()`` does: waits for fetched batches, decodes them, and keeps the rows that it has not returned.

Owns the rows that were decoded and not returned yet, the partitions' turns, and the wait for something to decode. It
also knows which records the user has in hand: those of the last poll that are not known to be processed. Decoding is
done outside of the read-ahead's lock; a partition that was moved, revoked or paused meanwhile loses its rows (its
``generation`` shows it). One thread polls at a time; each method states which threads may wake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_kafkalite.client.consume.fetched import FetchedBatches
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ClosedError, KafkaliteError
from spark_kafkalite.model import NO_LEADER_EPOCH, CommittedOffset, Record, TopicPartition
from spark_kafkalite.records.columns import ColumnBuilder, Columns

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafkalite.client.arrow import RecordBatchMaker

# Bytes of keys, values and headers that one decoding takes at most.
_MAX_DECODED_BYTES = 16 << 20
# Who waits in a group looks after it at least this often.
_GROUP_WAIT_S = 1.0
# Who yields rows one by one, and takes long over each, looks after the group as often.
_ONE_BY_ONE_S = 0.1


class DecodedRows:
    """Rows that were decoded and not all returned yet; ``settled_row`` is the one that the position was moved to."""

    __slots__ = ("buffers", "columns", "generation", "next_offset", "row", "settled_row", "state")

    def __init__(
        self, state: TopicPartitionState, columns: Columns, next_offset: int, buffers: Sequence[FetchedBatches]
    ) -> None:
        """``buffers`` are what the rows were decoded from."""
        self.state = state
        self.generation = state.generation
        self.columns = columns
        self.next_offset = next_offset
        self.buffers = buffers
        self.row = self.settled_row = 0

    @property
    def size_bytes(self) -> int:
        """What keys, values and headers take in memory, those of rows that were returned, too."""
        columns = self.columns
        size = len(columns.key_data) + len(columns.value_data)
        if columns.headers is not None:
            size += len(columns.headers.key_data) + len(columns.headers.value_data)
        return size


class RowSource:
    """The rows that a consumer's next polls return."""

    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead
        self._decoded: DecodedRows | None = None
        # Where partitions stood, and their generations, before the rows that the user has in hand.
        self._in_hand: dict[TopicPartition, tuple[int, int]] = {}
        # Rows that are yielded one by one: moving the position each time would cost more than the record.
        self._iterated: DecodedRows | None = None
        self._maker: RecordBatchMaker | None = None
        # The partitions' turns.
        self._turn = 0
        # The partition in the middle of whose batch the last rows end.
        self._unfinished: TopicPartitionState | None = None
        self._woken = False
        self._closed = False

    def next_rows(
        self, deadline: Deadline | None, max_rows: int, with_headers: bool, is_due: Callable[[], bool] | None = None
    ) -> DecodedRows | None:
        """Return rows that may be returned now, decoding more when there are none; None at the deadline.

        Without a deadline nothing is waited for, and errors are left for the next poll. With ``is_due`` None also
        comes before the deadline: when that is true, after a change, and after a second, because there may be more to
        do then than to wait.
        """
        ahead = self._ahead
        while True:
            with ahead.lock:
                self.check_open()
                decoded = self._decoded
                if decoded is not None:
                    state = decoded.state
                    valid = state.generation == decoded.generation and ahead.states.get(state.topic_partition) is state
                    if valid and not state.paused:
                        return decoded
                    if valid:
                        # Paused with rows at hand: they are fetched again once it is resumed, and others go on.
                        state.move_to(state.position, leader_epoch=state.leader_epoch)
                    self._decoded = None
                pieces = self._take_pieces(deadline, is_due)
                if pieces is None:
                    return None
                state, buffers = pieces
                generation = state.generation
            self._decode(state, generation, buffers, max_rows, with_headers)

    def _take_pieces(
        self, deadline: Deadline | None, is_due: Callable[[], bool] | None
    ) -> tuple[TopicPartitionState, list[FetchedBatches]] | None:
        """Wait for a partition with something fetched; the lock is held. Returns None at the deadline."""
        ahead = self._ahead
        has_waited = False
        while True:
            self.check_open()
            states = list(ahead.states.values())
            if (state_pieces := self._take_unfinished()) is not None:
                return state_pieces
            for number in range(len(states)):
                state = states[(self._turn + number) % len(states)]
                if state.paused:
                    continue
                if state.buffered:
                    self._turn = (self._turn + number + 1) % len(states)
                    return state, list(state.buffered)
                if deadline is not None and (error := state.take_error()) is not None:
                    ahead.notify_moved()
                    raise error
            if deadline is None or self._woken:
                return None
            left_s = deadline.left_s()
            if left_s <= 0:
                return None
            if is_due is not None:
                if has_waited or is_due():
                    return None
                left_s = min(left_s, _GROUP_WAIT_S)
                has_waited = True
            ahead.changed.wait(left_s)

    def _take_unfinished(self) -> tuple[TopicPartitionState, list[FetchedBatches]] | None:
        """Return the partition whose batch has been decompressed and not decoded to its end.

        It goes on before others have their turn: the batches of many partitions may decompress to a lot of memory.
        """
        state, self._unfinished = self._unfinished, None
        if state is None or self._ahead.states.get(state.topic_partition) is not state:
            return None
        if state.paused or not state.buffered or not state.buffered[0].is_inside_batch:
            return None
        return state, list(state.buffered)

    def _decode(
        self,
        state: TopicPartitionState,
        generation: int,
        buffers: list[FetchedBatches],
        max_rows: int,
        with_headers: bool,
    ) -> None:
        """Decode pieces of one partition into rows at hand; an error becomes the partition's."""
        builder = ColumnBuilder(with_headers, max_rows, _MAX_DECODED_BYTES)
        error: KafkaliteError | None = None
        for buffer in buffers:
            try:
                buffer.decode_into(builder)
            except KafkaliteError as failure:
                error = failure
                break
            if builder.is_full:
                break
        # Behind all that was decoded, and behind what holds no visible record.
        next_offset = max((buffer.next_offset for buffer in buffers), default=0)
        if error is not None or builder.is_full:
            next_offset = next((each.next_offset for each in buffers if not each.is_exhausted), next_offset)
        ahead = self._ahead
        with ahead.lock:
            if state.generation != generation:
                return
            while state.buffered and state.buffered[0].is_exhausted:
                state.buffered_bytes -= state.buffered.popleft().size_bytes
            self._unfinished = state
            if builder.count:
                if ahead.metrics is not None:
                    ahead.metrics.decoded(state.topic_partition.topic, builder.count)
                self._decoded = DecodedRows(state, builder.finish(), next_offset, buffers)
            else:
                state.position = next_offset
                state.leader_epoch = _leader_epoch_before(next_offset, buffers, state)
                # An error comes after the good records before it.
                if error is not None:
                    state.batch_end = next((each.batch_end for each in buffers if not each.is_exhausted), -1)
                    ahead.unreadable(state, next_offset, error)
            ahead.changed.notify_all()

    def take_records(self, wanted: int, next_rows: Callable[[bool], DecodedRows | None]) -> list[Record]:
        """Return up to so many records, fewer where they take more than _MAX_DECODED_BYTES together.

        ``next_rows`` gives the next rows; its argument is whether it may wait.
        """
        records: list[Record] = []
        held_bytes = 0
        while len(records) < wanted and held_bytes < _MAX_DECODED_BYTES:
            decoded = next_rows(not records)
            if decoded is None:
                break
            row = decoded.row
            until = min(decoded.columns.count, row + wanted - len(records))
            found = decoded.columns.records(*decoded.state.topic_partition, row, until)
            records = records + found if records else found
            held_bytes += decoded.size_bytes
            self.return_until(decoded, until)
        return records

    def return_until(self, decoded: DecodedRows, until: int) -> None:
        """Move the position behind the rows that are being returned."""
        state = decoded.state
        if state.position is not None:
            self._in_hand.setdefault(state.topic_partition, (decoded.generation, state.position))
        decoded.row = until
        self._settle(decoded)

    def as_record_batch(self, decoded: DecodedRows, most: int) -> pa.RecordBatch:
        """Return up to ``most`` of these rows as Arrow, and move the position behind them."""
        # Here, because pyarrow takes longer to import than the rest of the consumer.
        from spark_kafkalite.client.arrow import RecordBatchMaker
        from spark_kafkalite.client.read_schema import READ_SCHEMA_WITH_HEADERS

        maker, partition = self._maker, decoded.state.topic_partition
        if maker is None or maker.topic_partition != partition:
            # Only the last one is kept, with the columns that its batches share: they take memory for each partition.
            maker = self._maker = RecordBatchMaker(READ_SCHEMA_WITH_HEADERS, *partition)
        batch = maker.batch(decoded.columns)
        row, until = decoded.row, min(decoded.columns.count, decoded.row + most)
        self.return_until(decoded, until)
        return batch if until - row == decoded.columns.count else batch.slice(row, until - row)

    def one_by_one(self, decoded: DecodedRows, most: int, clock: Clock) -> Iterator[Record]:
        """Yield up to ``most`` of these rows; fewer when they are not the next ones any more, or time passes."""
        self._iterated = decoded
        state, generation, row = decoded.state, decoded.generation, decoded.row
        until_s = clock.monotonic_s() + _ONE_BY_ONE_S
        for record in decoded.columns.records(*state.topic_partition, row, min(decoded.columns.count, row + most)):
            # In between the user may have moved or paused the partition, polled, or closed the consumer.
            if decoded.row != row or state.generation != generation or state.paused or self._closed:
                return
            decoded.row = row = row + 1
            yield record
            if clock.monotonic_s() >= until_s:
                return

    def settle(self) -> None:
        """Move the position behind what an iteration has yielded."""
        decoded = self._iterated
        if decoded is not None and decoded.row != decoded.settled_row:
            in_hand = (decoded.generation, decoded.columns.offset_at(decoded.row - 1))
            self._in_hand = {decoded.state.topic_partition: in_hand}
            self._settle(decoded)

    def _settle(self, decoded: DecodedRows) -> None:
        state, columns, row = decoded.state, decoded.columns, decoded.row
        decoded.settled_row = row
        position = decoded.next_offset if row == columns.count else columns.offset_at(row)
        with self._ahead.lock:
            if state.generation == decoded.generation:
                state.position = position
                state.leader_epoch = _leader_epoch_before(position, decoded.buffers, state)
        if row == columns.count and self._decoded is decoded:
            self._decoded = None

    def begin_poll(self) -> None:
        """Take what the user has in hand for processed, because it asks for more."""
        if self._ahead.metrics is not None:
            self._ahead.metrics.polled()
        self.settle()
        self._iterated = None
        self._in_hand.clear()

    def processed(self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None) -> None:
        """Take what the user has in hand for processed, because it was committed: all of it, or up to these offsets."""
        self.settle()
        if offsets is None:
            self._in_hand.clear()
            return
        for each, committed in offsets.items():
            if each in self._in_hand:
                self._in_hand[each] = (self._in_hand[each][0], committed.offset)

    def take_back(self) -> None:
        """Move the positions before what the user has in hand; nothing more may be returned afterwards."""
        self.settle()
        with self._ahead.lock:
            for each, (generation, position) in self._in_hand.items():
                state = self._ahead.states.get(each)
                if state is not None and state.generation == generation:
                    state.position = position
                    state.leader_epoch = NO_LEADER_EPOCH
        self._in_hand.clear()

    def wakeup(self) -> None:
        """Have the wait that goes on, or else the next one, end at once. From any thread."""
        with self._ahead.lock:
            self._woken = True
            self._ahead.changed.notify_all()

    def take_woken(self) -> bool:
        """Whether another thread woke the poll; asked once, when it ends."""
        woken, self._woken = self._woken, False
        return woken

    def close(self) -> None:
        """Have the polling thread get ClosedError. From any thread."""
        self._closed = True
        self._ahead.notify()

    def check_open(self) -> None:
        """Raise ClosedError once closed."""
        if self._closed:
            raise ClosedError("the consumer has been closed")


def _leader_epoch_before(position: int, buffers: Sequence[FetchedBatches], state: TopicPartitionState) -> int:
    """Return the leader epoch of the record before a position, or the last one known when no buffer has that record."""
    for buffer in reversed(buffers):
        leader_epoch = buffer.leader_epoch_before(position)
        if leader_epoch is not None:
            return leader_epoch
    return state.leader_epoch
