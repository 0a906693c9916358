"""From fetched pieces to rows: what poll() waits for, decodes and has at hand.

Owns the rows that were decoded and not returned yet, the partitions' turns, and the wait for something to decode.
Decoding is done outside of the read-ahead's lock; a partition that was moved, revoked or paused meanwhile loses its
rows (its ``generation`` tells). One thread polls at a time; who may wake it is written at each method.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kafkalite.client.fetched import FetchedBatches
from spark_kafkalite.client.partition_state import PartitionState
from spark_kafkalite.client.read_ahead import ReadAhead
from spark_kafkalite.client.retry import Deadline
from spark_kafkalite.errors import ClosedError, KafkaliteError
from spark_kafkalite.records.columns import ColumnBuilder, Columns

# Bytes of keys, values and headers that one decoding takes at most.
_MAX_DECODED_BYTES = 16 << 20
# Who waits in a group looks after it at least this often.
_GROUP_WAIT_S = 1.0


class DecodedRows:
    """Rows that were decoded and not all returned yet."""

    __slots__ = ("columns", "generation", "next_offset", "row", "state")

    def __init__(self, state: PartitionState, columns: Columns, next_offset: int) -> None:
        self.state = state
        self.generation = state.generation
        self.columns = columns
        self.next_offset = next_offset
        self.row = 0


class RowSource:
    """The rows that a consumer's next polls return."""

    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead
        self._decoded: DecodedRows | None = None
        # The partitions' turns.
        self._turn = 0
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
                        state.move_to(state.position)
                    self._decoded = None
                pieces = self._take_pieces(deadline, is_due)
                if pieces is None:
                    return None
                state, buffers = pieces
                generation = state.generation
            self._decode(state, generation, buffers, max_rows, with_headers)

    def _take_pieces(
        self, deadline: Deadline | None, is_due: Callable[[], bool] | None
    ) -> tuple[PartitionState, list[FetchedBatches]] | None:
        """Wait for a partition with something fetched; the lock is held. Returns None at the deadline."""
        ahead = self._ahead
        has_waited = False
        while True:
            self.check_open()
            states = list(ahead.states.values())
            for number in range(len(states)):
                state = states[(self._turn + number) % len(states)]
                if state.paused:
                    continue
                if state.buffered:
                    self._turn = (self._turn + number + 1) % len(states)
                    return state, list(state.buffered)
                if state.error is not None and deadline is not None:
                    raise state.error
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

    def _decode(
        self,
        state: PartitionState,
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
            if builder.count:
                self._decoded = DecodedRows(state, builder.finish(), next_offset)
            else:
                state.position = next_offset
                # An error comes after the good records before it.
                if error is not None:
                    state.error = error
                    state.drop_buffered()
            ahead.changed.notify_all()

    def return_until(self, decoded: DecodedRows, until: int) -> None:
        """Move the position behind the rows that are being returned."""
        state, columns = decoded.state, decoded.columns
        decoded.row = until
        position = decoded.next_offset if until == columns.count else columns.offset_at(until)
        with self._ahead.lock:
            if state.generation == decoded.generation:
                state.position = position
        if until == columns.count:
            self._decoded = None

    def wakeup(self) -> None:
        """Have the wait that goes on, or else the next one, end at once. From any thread."""
        with self._ahead.lock:
            self._woken = True
            self._ahead.changed.notify_all()

    def take_woken(self) -> bool:
        """Whether somebody woke the poll; asked once, when it ends."""
        woken, self._woken = self._woken, False
        return woken

    def close(self) -> None:
        """Have whoever polls get ClosedError. From any thread."""
        self._closed = True
        self._ahead.notify()

    def check_open(self) -> None:
        """Raise ClosedError once closed."""
        if self._closed:
            raise ClosedError("the consumer has been closed")
