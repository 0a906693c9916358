"""Batches that were sent, with their outcome, and the light handles on their records that users get.

A :class:`Delivery` is a batch and a number in it, because a future per record costs more than sending the record. All
records of a batch share one outcome. A batch that the broker finds too large is split; its handles then follow
``parts``. An outcome is set once, by the sender's thread, and never changes; reading it takes no lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from spark_kafkalite.client.produce.undelivered import FailedRecords
from spark_kafkalite.errors import KafkaError, KafkaliteError
from spark_kafkalite.model import Headers, TopicPartition
from spark_kafkalite.records.assemble import restamp_producer
from spark_kafkalite.wire.error_codes import name_of


class RecordMetadata(NamedTuple):
    """Where a record is. ``offset`` is -1 when the broker did not return it: with ``acks=0``, or for a late
    duplicate."""

    topic: str
    partition: int
    offset: int
    timestamp: int


OnDelivery = Callable[["RecordMetadata | None", "Exception | None"], None]
"""Called from the producer's thread with (metadata, None) or (None, error)."""


class RecordBuilder(Protocol):
    """The kernel's open batch."""

    @property
    def count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers | None) -> int: ...
    def build(
        self,
        codec: int,
        level: int | None,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray: ...


class ProducerBatch:
    """Records of one partition that travel and are acknowledged together.

    Has ``records`` (still open, or closed but not yet encoded) or ``encoded`` (a whole record batch), never both.
    ``rows`` has the row of each record in the input of ``send_batch()``. Where it is known, a record that the broker
    rejects fails alone, and the producer sends the others of the batch again without it.
    """

    __slots__ = (
        "_count",
        "_event",
        "attempts",
        "base_offset",
        "base_sequence",
        "callbacks",
        "created_s",
        "done",
        "encoded",
        "error",
        "failed",
        "is_refused",
        "last_error",
        "log_append_time_ms",
        "order",
        "order_span",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "records",
        "reserved_bytes",
        "rows",
        "topic",
        "watcher",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        created_s: float,
        reserved_bytes: int,
        *,
        records: RecordBuilder | None = None,
        encoded: bytearray | None = None,
        record_count: int = 0,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.created_s = created_s
        self.reserved_bytes = reserved_bytes
        self.records = records
        self.encoded = encoded
        self._count = record_count
        self.rows = rows
        # Its place among the batches of its partition.
        self.order = 0
        self.order_span = 1
        self.attempts = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.callbacks: list[tuple[int, int, OnDelivery]] | None = None
        self.done = False
        self.error: Exception | None = None
        # Counts who looks at the error; None unless the batch failed.
        self.failed: FailedRecords | None = None
        # Whether the error is of its records, and not of anything around them.
        self.is_refused = False
        self.last_error: KafkaliteError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        # After a split: (first index, part), in order.
        self.parts: list[tuple[int, ProducerBatch]] | None = None
        # Told how many records got their outcome; for BatchDelivery.
        self.watcher: Callable[[int], None] | None = None
        self._event: threading.Event | None = None

    def __repr__(self) -> str:
        outcome = "waiting" if not self.done else "failed" if self.error else f"at offset {self.base_offset}"
        return f"ProducerBatch({self.topic}-{self.partition}, {self.record_count} records, {outcome})"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def record_count(self) -> int:
        return self.records.count if self.records is not None else self._count

    @property
    def size_bytes(self) -> int:
        """Bytes as encoded, or an upper estimate before that."""
        if self.encoded is not None:
            return len(self.encoded)
        return self.records.size_bytes if self.records is not None else 0

    def set_producer(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch its identity for an idempotent producer, in its bytes too when they exist."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        if self.encoded is not None:
            restamp_producer(self.encoded, producer_id, producer_epoch, base_sequence)

    def encode(self, codec: int, level: int | None) -> bytearray:
        """Return the batch's bytes, made on the first call."""
        if self.encoded is None:
            assert self.records is not None
            self._count = self.records.count
            self.encoded = self.records.build(
                codec,
                level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
            )
            self.records = None
        return self.encoded

    # Outcome --------------------------------------------------------------------------------------------------------

    def settle(self, base_offset: int, log_append_time_ms: int, error: Exception | None) -> None:
        """Set the outcome and wake the callers that wait. Callbacks are run separately, outside all locks."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self._count = self.record_count
        self.records = None
        # The bytes are not needed any more; a user may hold the handle for long.
        self.encoded = None
        self.done = True
        event = self._event
        if event is not None:
            event.set()

    def settle_as_parts(self, parts: list[tuple[int, ProducerBatch]]) -> None:
        """Hand over to the parts of a split batch; callbacks move to them."""
        for first, until, part in _ranges(parts, self.record_count):
            moved = [(i - first, ts, call) for i, ts, call in self.callbacks or () if first <= i < until]
            part.callbacks = moved or None
            part.watcher = self.watcher
            part.rows = None if self.rows is None else self.rows[first:until]
        self.callbacks = None
        self.watcher = None
        self.parts = parts
        self.settle(-1, -1, None)

    def part_of(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch whose outcome is that of the record at ``index``, and the record's index in it."""
        batch = self
        while batch.parts is not None:
            first, batch = next(item for item in reversed(batch.parts) if item[0] <= index)
            index -= first
        return batch, index

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the outcome; False when the time is over first."""
        if self.done:
            return True
        event = self._event or self._keep_event(threading.Event())
        # settle() sets the outcome first and looks for the event then: one of the two sees the other.
        return self._is_done() or event.wait(timeout_s)

    def _is_done(self) -> bool:
        return self.done

    def _keep_event(self, event: threading.Event) -> threading.Event:
        # Of two waiters that get here at once, both use the event that stays: only that one is set.
        with _EVENT_LOCK:
            if self._event is None:
                self._event = event
            return self._event

    def run_callbacks(self, report: Callable[[Exception], None]) -> None:
        """Call the users' functions; what they raise goes to ``report``."""
        for index, timestamp_ms, call in self.callbacks or ():
            try:
                if self.error is not None:
                    if self.failed is not None:
                        self.failed.look_at(index)
                    call(None, self.error)
                else:
                    call(self.metadata(index, timestamp_ms), None)
            except Exception as error:
                report(error)
        self.callbacks = None
        if self.watcher is not None:
            try:
                self.watcher(self.record_count)
            except Exception as error:
                report(error)
            self.watcher = None

    def leaves(self) -> list[ProducerBatch]:
        """Return the batch, or what it was split into at last."""
        if self.parts is None:
            return [self]
        return [leaf for _, part in self.parts for leaf in part.leaves()]

    def metadata(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """Return where the record at ``index`` is; ``timestamp_ms`` is the one it was sent with."""
        return RecordMetadata(
            self.topic,
            self.partition,
            self.base_offset + index if self.base_offset >= 0 else -1,
            self.log_append_time_ms if self.log_append_time_ms >= 0 else timestamp_ms,
        )


_EVENT_LOCK = threading.Lock()


def _ranges(parts: list[tuple[int, ProducerBatch]], count: int) -> list[tuple[int, int, ProducerBatch]]:
    firsts = [first for first, _ in parts]
    return [(first, until, part) for (first, part), until in zip(parts, [*firsts[1:], count], strict=True)]


class Delivery:
    """Handle of one record that was sent."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.part_of(self._index)[0].done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the outcome and return where the record is.

        Raises what went wrong with it, or TimeoutError when ``timeout_s`` pass first (the record is then still on its
        way).
        """
        part, index = wait_for_outcome(self._batch, self._index, timeout_s)
        if part.error is not None:
            if part.failed is not None:
                part.failed.look_at(index)
            raise part.error
        return part.metadata(index, self._timestamp_ms)

    def __repr__(self) -> str:
        part, index = self._batch.part_of(self._index)
        return f"Delivery(record {index} of {part!r})"


class BatchDelivery:
    """Handle of a set of records sent with one call."""

    __slots__ = ("_batches", "_left", "_lock", "_on_delivery", "record_count")

    def __init__(self, on_delivery: OnBatchDelivery | None = None) -> None:
        self._batches: list[ProducerBatch] = []
        self._on_delivery = on_delivery
        self._lock = threading.Lock()
        # Records without an outcome, and one more until complete(): the first ones may settle while others are encoded.
        self._left = 1
        self.record_count = 0

    def add(self, batch: ProducerBatch) -> None:
        """Include a batch that has not been handed to the sender yet."""
        self._batches.append(batch)
        self.record_count += batch.record_count
        if self._on_delivery is not None:
            batch.watcher = self._count_down
            with self._lock:
                self._left += batch.record_count

    def complete(self) -> None:
        """Note that all batches have been added."""
        self._count_down(1)

    def _count_down(self, count: int) -> None:
        with self._lock:
            self._left -= count
            finished = self._left == 0
        if finished and self._on_delivery is not None:
            self.errors()
            self._on_delivery(self)

    def done(self) -> bool:
        """Whether the outcome of every record is known."""
        return all(leaf.done for leaf in self._leaves())

    def result(self, timeout_s: float | None = None) -> list[BatchRange]:
        """Wait for all outcomes and return where the records are, as ranges of offsets.

        Raises the first error, or TimeoutError when ``timeout_s`` pass first.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for batch in self._batches:
            wait_for_all(batch, deadline)
        leaves = self._leaves()
        if errors := self.errors():
            raise errors[0]
        return [BatchRange(leaf.topic, leaf.partition, leaf.base_offset, leaf.record_count) for leaf in leaves]

    def errors(self) -> list[Exception]:
        """Return the errors known so far, one for each batch that failed."""
        found = []
        for leaf in self._leaves():
            if leaf.error is not None:
                found.append(leaf.error)
                if leaf.failed is not None:
                    leaf.failed.look_at_all()
        return found

    def refused(self) -> Iterator[RefusedRecord]:
        """Wait for all outcomes and yield the records that the broker refused for themselves.

        In the order of each partition, as soon as each is known. Only what was sent with ``isolate_refused`` has such
        rows. Raises the error of a batch that failed for another reason.
        """
        for batch in self._batches:
            yield from _refused_in(batch)

    def _leaves(self) -> list[ProducerBatch]:
        return [leaf for batch in self._batches for leaf in batch.leaves()]

    def __repr__(self) -> str:
        return f"BatchDelivery({self.record_count} records in {len(self._batches)} batches, done={self.done()})"


OnBatchDelivery = Callable[[BatchDelivery], None]
"""Called once with the handle, when every record of it has its outcome."""


class BatchRange(NamedTuple):
    """Records of one send_batch() call that lie at ``base_offset`` and on; -1 when the offset is not known."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class RefusedRecord(NamedTuple):
    """A record that the broker rejected: its row in what was sent, and Kafka's name of the error."""

    row: int
    error_name: str
    error: Exception


def _refused_in(batch: ProducerBatch) -> Iterator[RefusedRecord]:
    batch.wait(None)
    for _, part in batch.parts or ():
        yield from _refused_in(part)
    if batch.error is None:
        return
    if batch.failed is not None:
        batch.failed.look_at_all()
    if batch.rows is None or not batch.is_refused:
        raise batch.error
    name = name_of(batch.error.code) if isinstance(batch.error, KafkaError) else type(batch.error).__name__
    for row in batch.rows:
        yield RefusedRecord(row, name, batch.error)


def wait_for_all(batch: ProducerBatch, deadline: float | None) -> None:
    """Wait for the outcome of a batch and of all parts it may be split into, until ``deadline`` (time.monotonic()).

    Raises TimeoutError.
    """
    if not batch.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"{batch!r} has no outcome in time; it is still on its way")
    for _, part in batch.parts or ():
        wait_for_all(part, deadline)


def wait_for_outcome(batch: ProducerBatch, index: int, timeout_s: float | None) -> tuple[ProducerBatch, int]:
    """Wait until the batch that holds the record at ``index`` has an outcome; return it and the index in it.

    Raises TimeoutError.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        part, part_index = batch.part_of(index)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not part.wait(left):
            raise TimeoutError(
                f"no outcome for a record of {part.topic}-{part.partition} within {timeout_s} s; it is still on its way"
            )
        if part.parts is None:
            return part, part_index
