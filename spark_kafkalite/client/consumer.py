"""The consumer: assign partitions by hand, seek, and poll records or columns.

Fetching runs ahead in the background (:mod:`.read_ahead`); ``poll()`` decodes and returns what is there, or waits. A
partition's position is the offset of the next record that the user gets; it moves when a poll returns, by the ends of
batches, so that gaps left by compaction and transaction markers are passed. Records of one partition come in order of
their offsets; partitions take turns.

Errors of a partition (a bad CRC, no position with ``auto.offset.reset=none``, missing permission) are raised by the
next poll that would return its records, and by every later one until a ``seek()``; other partitions go on when it is
paused.

Thread-safe: calls from several threads are done one after the other. ``close()`` and ``wakeup()`` may come from any
thread at any time, also while another one polls: that one gets ClosedError, or returns early with nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from spark_kafkalite.client.cluster import EARLIEST, LATEST, ClusterClient, OffsetAndTimestamp
from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.fetched import FetchedBatches
from spark_kafkalite.client.metadata import TopicInfo
from spark_kafkalite.client.read_ahead import PartitionState, ReadAhead
from spark_kafkalite.client.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import ClosedError, ConfigError, KafkaliteError
from spark_kafkalite.model import Record, TopicPartition
from spark_kafkalite.records.columns import ColumnBuilder, Columns

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes of keys, values and headers that one decoding takes at most.
_MAX_DECODED_BYTES = 16 << 20
_MAX_COLUMN_ROWS = 65_536
# poll() decodes more rows than it returns and keeps the rest as columns.
_DECODED_ROWS = 16_384


class _Decoded:
    """Rows that were decoded and not all returned yet."""

    __slots__ = ("columns", "generation", "next_offset", "row", "state")

    def __init__(self, state: PartitionState, columns: Columns, next_offset: int) -> None:
        self.state = state
        self.generation = state.generation
        self.columns = columns
        self.next_offset = next_offset
        self.row = 0


class Consumer:
    """Reads assigned partitions. Use it as a context manager, or call :meth:`close`."""

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, clock: Clock = SYSTEM_CLOCK, **keywords: object
    ) -> None:
        """``settings`` have Kafka's names; ``keywords`` are the same in snake case (``bootstrap_servers=...``)."""
        self.config = consumer_config(settings, keywords)
        self._clock = clock
        self._cluster = ClusterClient(self.config.client, clock)
        self._ahead = ReadAhead(self.config, self._cluster, clock)
        self._using = threading.RLock()
        self._decoded: _Decoded | None = None
        # The partitions' turns.
        self._turn = 0
        self._woken = False
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._ahead.states)} partitions assigned"
        return f"Consumer({','.join(self.config.client.bootstrap_servers)}, {state})"

    # Assignment and positions ---------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on, instead of those before; partitions that stay keep their position."""
        self._check_open()
        wanted = [TopicPartition(*each) for each in partitions]
        with self._using:
            self._ahead.assign(wanted)

    def subscribe(self, *args: object, **kwargs: object) -> None:
        """Not available yet: raises ConfigError."""
        raise ConfigError(
            "subscribe() comes with consumer groups in a later version: assign() partitions by hand; "
            "partitions_for(topic) lists them"
        )

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        with self._ahead.lock:
            return set(self._ahead.states)

    def partitions_for(self, topic: str, timeout_ms: int | None = None) -> list[TopicPartition]:
        """Return the topic's partitions. Raises UnknownTopicOrPartition (3)."""
        return [TopicPartition(topic, info.partition) for info in self.topic_info(topic, timeout_ms).partitions]

    def topic_info(self, topic: str, timeout_ms: int | None = None) -> TopicInfo:
        """Return what the cluster says of a topic."""
        self._check_open()
        return self._cluster.topic(topic, self._deadline(timeout_ms))

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Go on from an offset; the next poll returns the record there, or the first one after it."""
        if offset < 0:
            raise ConfigError(f"seek to offset {offset}: it must be at least 0; for the ends use seek_to_beginning/end")
        self._move([partition], offset, None)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Go to the first offset of the given partitions, or of all assigned ones; it is looked up when polling."""
        self._move(partitions, None, EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Go to the end of the given partitions, or of all assigned ones; it is looked up when polling."""
        self._move(partitions, None, LATEST)

    def seek_to_time(
        self, timestamp_ms: int, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> None:
        """Go to the first record at or after a time; to the end where there is none."""
        if timestamp_ms < 0:
            raise ConfigError(f"seek to time {timestamp_ms}: it must be milliseconds since the epoch, at least 0")
        self._move(partitions, None, timestamp_ms)

    def _move(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None, position: int | None, reset_to: int | None
    ) -> None:
        self._check_open()
        with self._using, self._ahead.lock:
            for state in self._states(partitions):
                state.move_to(position, reset_to)
            self._ahead.changed.notify_all()

    def _states(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None) -> list[PartitionState]:
        if partitions is None:
            return list(self._ahead.states.values())
        states = []
        for each in partitions:
            state = self._ahead.states.get(TopicPartition(*each))
            if state is None:
                raise ConfigError(f"{TopicPartition(*each)} is not assigned to this consumer: call assign() first")
            states.append(state)
        return states

    def position(self, partition: TopicPartition | tuple[str, int], timeout_ms: int | None = None) -> int:
        """Return the offset of the next record that poll() will return, waiting until it is known."""
        deadline = self._deadline(timeout_ms)
        with self._ahead.lock:
            while True:
                self._check_open()
                (state,) = self._states([partition])
                if state.position is not None:
                    return state.position
                if state.error is not None:
                    raise state.error
                left_s = deadline.left_s()
                if left_s <= 0:
                    raise TimeoutError(f"the position of {state.topic_partition} could not be found in time")
                self._ahead.changed.wait(left_s)

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Return no records of these partitions until resume(); positions stay, and so does what was fetched."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Undo pause()."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition | tuple[str, int]], paused: bool) -> None:
        with self._ahead.lock:
            for state in self._states(partitions):
                state.paused = paused
            self._ahead.changed.notify_all()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        with self._ahead.lock:
            return {each for each, state in self._ahead.states.items() if state.paused}

    # Offsets --------------------------------------------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return self._ends(partitions, EARLIEST, timeout_ms)

    def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record that this consumer may see, as its isolation.level says."""
        return self._ends(partitions, LATEST, timeout_ms)

    def _ends(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], which: int, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        found = self.offsets_for_times({TopicPartition(*each): which for each in partitions}, timeout_ms)
        return {each: answer.offset for each, answer in found.items() if answer is not None}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return for each partition the first record at or after a time (ms), None where there is none."""
        self._check_open()
        wanted = {TopicPartition(*each): timestamp for each, timestamp in timestamps.items()}
        return self._cluster.offsets_for(wanted, self._deadline(timeout_ms), isolation=self.config.isolation)

    def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Return the end of the partition as the last fetch saw it, None before the first; no request is made."""
        with self._ahead.lock:
            (state,) = self._states([partition])
            return state.high_watermark if state.high_watermark >= 0 else None

    # Polling --------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[Record]:
        """Return up to ``max_records`` records (default ``max.poll.records``), waiting up to ``timeout_ms`` for the
        first.

        Empty at timeout. A record's key and value are made when they are asked for.
        """
        wanted = self.config.max_poll_records if max_records is None else max_records
        if wanted < 1:
            raise ConfigError(f"max_records={wanted}: must be at least 1")
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        with self._using:
            records: list[Record] = []
            while len(records) < wanted:
                decoded = self._next_decoded(deadline if not records else None, max(wanted, _DECODED_ROWS), True)
                if decoded is None:
                    break
                row = decoded.row
                until = min(decoded.columns.count, row + wanted - len(records))
                topic, partition = decoded.state.topic_partition
                found = decoded.columns.records(topic, partition, row, until)
                records = records + found if records else found
                self._return_until(decoded, until)
            return records

    def poll_columns(self, timeout_ms: float = 0, max_rows: int = _MAX_COLUMN_ROWS) -> pa.RecordBatch | None:
        """Return rows of one partition as an Arrow record batch, waiting up to ``timeout_ms``; None at timeout.

        The columns are those of the Spark source: key, value, topic, partition, offset, timestamp, timestampType,
        headers.
        """
        if max_rows < 1:
            raise ConfigError(f"max_rows={max_rows}: must be at least 1")
        from spark_kafkalite.client.arrow import record_batch

        with self._using:
            decoded = self._next_decoded(Deadline.after_ms(timeout_ms, self._clock), max_rows, True)
            if decoded is None:
                return None
            topic, partition = decoded.state.topic_partition
            batch = record_batch(decoded.columns, topic, partition, with_headers=True)
            until = min(decoded.columns.count, decoded.row + max_rows)
            if decoded.row or until < decoded.columns.count:
                batch = batch.slice(decoded.row, until - decoded.row)
            self._return_until(decoded, until)
            return batch

    def __iter__(self) -> Iterator[Record]:
        """Yield records for ever, until the consumer is closed."""
        while not self._closed:
            try:
                yield from self.poll(timeout_ms=1_000)
            except ClosedError:
                return

    def _return_until(self, decoded: _Decoded, until: int) -> None:
        """Move the position behind the rows that are being returned."""
        state, columns = decoded.state, decoded.columns
        decoded.row = until
        position = decoded.next_offset if until == columns.count else columns.offset_at(until)
        with self._ahead.lock:
            if state.generation == decoded.generation:
                state.position = position
        if until == columns.count:
            self._decoded = None

    def _next_decoded(self, deadline: Deadline | None, max_rows: int, with_headers: bool) -> _Decoded | None:
        """Return rows that may be returned now, decoding more when there are none; None at the deadline.

        Without a deadline nothing is waited for, and errors are left for the next poll.
        """
        ahead = self._ahead
        while True:
            with ahead.lock:
                self._check_open()
                decoded = self._decoded
                if decoded is not None:
                    state = decoded.state
                    valid = state.generation == decoded.generation and ahead.states.get(state.topic_partition) is state
                    if valid and not state.paused:
                        return decoded
                    if valid:
                        # Paused with rows at hand: they wait for resume(), and other partitions go on.
                        self._put_back(decoded)
                    self._decoded = None
                pieces = self._take_pieces(deadline)
                if pieces is None:
                    return None
                state, buffers = pieces
                generation = state.generation
            self._decode(state, generation, buffers, max_rows, with_headers)

    def _put_back(self, decoded: _Decoded) -> None:
        """Have the rows that were not returned fetched again, once their partition is resumed."""
        state = decoded.state
        state.move_to(state.position)

    def _take_pieces(self, deadline: Deadline | None) -> tuple[PartitionState, list[FetchedBatches]] | None:
        """Wait for a partition with something fetched; the lock is held. Returns None at the deadline."""
        ahead = self._ahead
        while True:
            self._check_open()
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
                self._woken = False
                return None
            left_s = deadline.left_s()
            if left_s <= 0:
                return None
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
                self._decoded = _Decoded(state, builder.finish(), next_offset)
            else:
                state.position = next_offset
                # An error comes after the good records before it.
                if error is not None:
                    state.error = error
                    state.drop_buffered()
            ahead.changed.notify_all()

    def wakeup(self) -> None:
        """Have a poll that waits, or the next one that would, return at once with nothing. From any thread."""
        with self._ahead.lock:
            self._woken = True
            self._ahead.changed.notify_all()

    # The end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop fetching and close all connections. May be called more than once, and from any thread."""
        self._closed = True
        self._ahead.close()
        self._cluster.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer has been closed")

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline.after_ms(
            self.config.client.default_api_timeout_ms if timeout_ms is None else timeout_ms, self._clock
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
