"""Batches that wait for the sender, per partition: when one is due, and in which order they are sent.

Sans-IO: no sockets, no threads, no clock of its own. The producer appends, the sender drains, both holding
:attr:`Accumulator.lock`; every method here expects it to be held.

Invariants
- A partition's batches leave in the order in which they were opened. Its batches are in flight to one broker at a time.
  After a failure nothing more of it is sent until all that was in flight has come back (``muted``), so that a retry
  never overtakes or is overtaken. At most ``max_in_flight`` batches of a partition are unanswered.
- An idempotent producer's batch gets its sequence when it first leaves and keeps it on every retry, so that the broker
  recognises a repetition. Sequences start over, under the next epoch, only in two cases. One is that the broker reports
  that a sequence does not follow its log (OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID) while no earlier batch is
  outstanding: that batch is then surely not in the log under its old sequence. The other is that records of a batch are
  given up, so that their sequences will never be filled. Epochs are counted per partition; the broker keeps them so
  too. Source: KIP-360.
- A broker that has only just created a partition may refuse its first batches and take the next. Without sequences
  those change places then. Sequences do not help: a broker without state for a producer takes any sequence as its
  first. So a partition has one batch in flight until one was acknowledged (``proven``). The same holds when one has to
  be sent again, until all up to that one have their outcome. This also keeps a repeated batch among the last five of an
  idempotent producer, which are all that a broker recognises.
- A producer that is not idempotent keeps the order as long as no batch fails with others behind it in flight.
- ``reserved_bytes`` of all batches together stay within ``buffer_memory``, but for one batch that alone is larger.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.client.waiting_lock import waiting_lock
from spark_kafkalite.errors import DeliveryTimeout, KafkaliteError

_MAX_SEQUENCE: Final = 2**31
_MAX_EPOCH: Final = 2**15 - 1
# More than a batch has records: parts of a batch share its span by their records.
_ORDER_SPAN: Final = 2**32
NO_LEADER: Final = -1


class AccumulatorLimits(Protocol):
    """The settings used here (see ``config.ProducerConfig``)."""

    @property
    def batch_size(self) -> int: ...
    @property
    def linger_ms(self) -> int: ...
    @property
    def buffer_memory(self) -> int: ...
    @property
    def delivery_timeout_ms(self) -> int: ...
    @property
    def idempotent(self) -> bool: ...


class PartitionQueue:
    """One partition's open batch, closed batches and batches in flight."""

    __slots__ = (
        "in_flight",
        "in_flight_node",
        "leader",
        "muted",
        "next_order",
        "next_sequence",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "proven",
        "restart_pending",
        "retry_at_s",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, leader: int = NO_LEADER) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.in_flight_node = NO_LEADER
        self.muted = False
        self.retry_at_s = 0.0
        self.next_order = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.restart_pending = False
        # Whether the broker takes the partition's records, and holds the sequence that the next batch follows.
        self.proven = False

    def __repr__(self) -> str:
        return (
            f"PartitionQueue({self.topic}-{self.partition}, leader={self.leader}, waiting={len(self.waiting)}, "
            f"in_flight={len(self.in_flight)}, muted={self.muted})"
        )

    def batches(self) -> Iterator[ProducerBatch]:
        """Every unfinished batch, oldest first."""
        yield from self.in_flight
        yield from self.waiting
        if self.open is not None:
            yield self.open

    def has_earlier(self, batch: ProducerBatch) -> bool:
        """Whether a batch that left before ``batch`` is still without an outcome."""
        return any(other.order < batch.order and not other.done for other in (*self.in_flight, *self.waiting))


class Accumulator:
    """All partitions' batches of one producer."""

    def __init__(self, limits: AccumulatorLimits, max_in_flight: int) -> None:
        self.lock = waiting_lock()
        self.memory_freed = threading.Condition(self.lock)
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        # Queues with anything in them, in the order in which they got it: draining goes round among them.
        self._active: dict[PartitionQueue, None] = {}
        self._batch_size = limits.batch_size
        self._linger_s = limits.linger_ms / 1000
        self._delivery_timeout_s = limits.delivery_timeout_ms / 1000
        self._buffer_memory = limits.buffer_memory
        self._idempotent = limits.idempotent
        self._max_in_flight = max_in_flight
        self.reserved_bytes = 0
        self.memory_waiters = 0
        self.flushing = 0
        self.producer_id = -1
        self.producer_epoch = -1

    # The producer's side ------------------------------------------------------------------------------------------

    def queue(self, topic: str, partition: int, leader: int) -> PartitionQueue:
        """Return the partition's queue, made on first use."""
        queue = self.queues.get((topic, partition))
        if queue is None:
            queue = self.queues[topic, partition] = PartitionQueue(topic, partition, leader)
        return queue

    def try_reserve(self, size_bytes: int) -> bool:
        """Take memory for a batch, or return False. One larger than all memory gets it when nothing else is held."""
        if self.reserved_bytes and self.reserved_bytes + size_bytes > self._buffer_memory:
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Release memory and wake the callers that wait for it."""
        self.reserved_bytes -= size_bytes
        if self.memory_waiters:
            self.memory_freed.notify_all()

    def open_batch(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Close the partition's open batch and make ``batch``, whose memory is reserved, the open one."""
        self.close_batch(queue)
        self._enter(queue, batch)
        queue.open = batch

    def close_batch(self, queue: PartitionQueue) -> None:
        """Move the open batch, if there is one, to those that may leave at once."""
        if queue.open is not None:
            queue.waiting.append(queue.open)
            queue.open = None

    def close_batches(self) -> None:
        """Have every open batch leave at once."""
        for queue in self._active:
            self.close_batch(queue)

    def add_closed(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Add an encoded batch, whose memory is reserved, behind all earlier records of its partition."""
        self.close_batch(queue)
        self._enter(queue, batch)
        queue.waiting.append(batch)

    def _enter(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        # Each batch has a range of numbers, which its parts share out when it has to be split, and theirs again.
        batch.order = queue.next_order
        batch.order_span = _ORDER_SPAN
        queue.next_order += _ORDER_SPAN
        self._active[queue] = None

    # The sender's side --------------------------------------------------------------------------------------------

    def set_leaders(self, leader_of: Callable[[str, int], int]) -> None:
        """Take over leaders from new metadata. Another one is asked at once: the pause was for the one before."""
        for queue in self.queues.values():
            leader = leader_of(queue.topic, queue.partition)
            if leader not in (queue.leader, NO_LEADER):
                queue.retry_at_s = 0.0
            queue.leader = leader

    def active_queues(self) -> list[PartitionQueue]:
        """Return the queues that hold unfinished batches."""
        return list(self._active)

    def has_unfinished(self) -> bool:
        """Whether any batch is without an outcome."""
        return bool(self._active)

    def unfinished(self) -> list[ProducerBatch]:
        """Return every batch without an outcome."""
        return [batch for queue in self._active for batch in queue.batches()]

    def _due_at(self, queue: PartitionQueue) -> float | None:
        """When the partition's first batch may leave, or None while it has to wait for an event."""
        if queue.muted or len(queue.in_flight) >= self._max_in_flight:
            return None
        if queue.in_flight and not queue.proven:
            return None
        if queue.in_flight and queue.in_flight_node != queue.leader:
            return None
        if queue.waiting:
            return queue.retry_at_s
        if queue.open is None or not queue.open.record_count:
            return None
        if self.flushing or self.memory_waiters:
            return queue.retry_at_s
        return max(queue.retry_at_s, queue.open.created_s + self._linger_s)

    def due(self, now_s: float) -> tuple[dict[int, list[PartitionQueue]], float | None]:
        """Return the queues with a batch to send now, by leader (NO_LEADER too), and when the next will be due."""
        by_leader: dict[int, list[PartitionQueue]] = {}
        next_s: float | None = None
        for queue in self._active:
            due_s = self._due_at(queue)
            if due_s is None:
                continue
            if due_s <= now_s:
                by_leader.setdefault(queue.leader, []).append(queue)
            elif next_s is None or due_s < next_s:
                next_s = due_s
        return by_leader, next_s

    def still_due(self, queues: Iterable[PartitionQueue], now_s: float) -> list[PartitionQueue]:
        """Return those of ``queues`` that have another batch to send now."""
        found = []
        for queue in queues:
            due_s = self._due_at(queue)
            if due_s is not None and due_s <= now_s:
                found.append(queue)
        return found

    def drain(self, queues: Iterable[PartitionQueue], node: int, max_bytes: int) -> list[ProducerBatch]:
        """Take at most one batch of each queue for a request to ``node``, about ``max_bytes`` together, at least one.

        The batches are in flight afterwards; those of an idempotent producer have their sequences. A queue that was
        served goes to the end of the round.
        """
        taken: list[ProducerBatch] = []
        size_bytes = 0
        for queue in queues:
            first = queue.waiting[0] if queue.waiting else queue.open
            if first is None:
                continue
            if taken and size_bytes + first.size_bytes > max_bytes:
                continue
            if first is queue.open:
                queue.open = None
            else:
                queue.waiting.popleft()
            if self._idempotent:
                self._give_sequence(queue, first)
            queue.in_flight.append(first)
            queue.in_flight_node = node
            first.attempts += 1
            size_bytes += first.size_bytes
            taken.append(first)
            del self._active[queue]
            self._active[queue] = None
        return taken

    def _give_sequence(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch.base_sequence >= 0:
            return
        if queue.producer_id < 0:
            queue.producer_id, queue.producer_epoch = self.producer_id, self.producer_epoch
            queue.next_sequence = 0
        batch.set_producer(queue.producer_id, queue.producer_epoch, queue.next_sequence)
        queue.next_sequence = (queue.next_sequence + batch.record_count) % _MAX_SEQUENCE

    def finish(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Forget a batch that got its outcome (``batch.done``), and release its memory."""
        if batch.error is None and not queue.proven:
            # Not while an earlier one is to be sent again: by then more could follow it than the broker remembers.
            queue.proven = not queue.has_earlier(batch)
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        elif batch is queue.open:
            queue.open = None
        elif batch in queue.waiting:
            queue.waiting.remove(batch)
        self._after_removal(queue)
        self._release_memory(batch)

    def _release_memory(self, batch: ProducerBatch) -> None:
        if batch.reserved_bytes:
            self.release(batch.reserved_bytes)
            batch.reserved_bytes = 0

    def requeue(self, queue: PartitionQueue, batch: ProducerBatch, retry_at_s: float) -> None:
        """Put a batch that failed for now back to its place; a batch that expired in flight is only forgotten."""
        queue.proven = False
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        if batch.done:
            self._release_memory(batch)
        else:
            self._insert(queue, batch)
            queue.muted = bool(queue.in_flight)
            queue.retry_at_s = max(queue.retry_at_s, retry_at_s)
        self._after_removal(queue)

    def replace(self, queue: PartitionQueue, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Put the parts of a batch in its place; they share out its sequences and its memory.

        Where they have fewer records than the batch had, the others are given up: sequences start over then, for what
        was in flight behind the batch does not follow it any more.
        """
        queue.in_flight.remove(batch)
        sequence = batch.base_sequence
        total = sum(part.record_count for part in parts)
        before = 0
        for part in parts:
            # By records, so that however often parts are made of parts each record keeps a place of its own.
            part.order = batch.order + batch.order_span * before // total
            part.order_span = batch.order_span * part.record_count // total
            before += part.record_count
            part.created_s = batch.created_s
            if sequence >= 0:
                part.set_producer(batch.producer_id, batch.producer_epoch, sequence)
                sequence = (sequence + part.record_count) % _MAX_SEQUENCE
            self._insert(queue, part)
        if parts:
            parts[0].reserved_bytes = batch.reserved_bytes
            batch.reserved_bytes = 0
        self._release_memory(batch)
        # While an earlier batch is outstanding, the broker reports the gap for the next one.
        if sequence >= 0 and total < batch.record_count and not queue.has_earlier(batch):
            queue.restart_pending = True
        queue.muted = bool(queue.in_flight)
        self._after_removal(queue)

    def _insert(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        later = (place for place, other in enumerate(queue.waiting) if other.order > batch.order)
        queue.waiting.insert(next(later, len(queue.waiting)), batch)

    def _after_removal(self, queue: PartitionQueue) -> None:
        if not queue.in_flight:
            queue.muted = False
            if queue.restart_pending:
                self._restart_sequences(queue)
            if not queue.waiting and queue.open is None:
                self._active.pop(queue, None)

    def lose_sequence(self, queue: PartitionQueue, batch: ProducerBatch, retry_at_s: float) -> None:
        """Put back a batch whose sequence does not follow the broker's log.

        With an earlier batch outstanding that is only the consequence of that one's failure, and the sequence stays.
        Else sequences start over, once everything in flight has come back.
        """
        if not queue.has_earlier(batch):
            queue.restart_pending = True
        self.requeue(queue, batch, retry_at_s)

    def _restart_sequences(self, queue: PartitionQueue) -> None:
        """Begin a new epoch for one partition. Not for a producer of transactions: its epoch is the coordinator's, and
        sequences that are lost have to make its transaction fail."""
        queue.restart_pending = False
        if queue.producer_epoch >= _MAX_EPOCH:
            # The sender asks for another producer id as soon as the producer has none.
            if queue.producer_id == self.producer_id:
                self.producer_id = self.producer_epoch = -1
            queue.producer_id = queue.producer_epoch = -1
        else:
            queue.producer_epoch += 1
        queue.next_sequence = 0
        for batch in queue.waiting:
            batch.base_sequence = -1

    def expire(self, now_s: float) -> tuple[list[tuple[PartitionQueue, ProducerBatch]], float | None]:
        """Return the batches whose delivery timeout has passed, without an outcome yet, and when the next one passes.

        Batches in flight are returned too; the caller gives them their outcome, and their later answer is ignored.
        Their sequence stays used: if they are not in the log, the broker reports it for the next batch.
        """
        expired: list[tuple[PartitionQueue, ProducerBatch]] = []
        next_s: float | None = None
        for queue in self._active:
            for batch in queue.batches():
                expires_s = batch.created_s + self._delivery_timeout_s
                if batch.done:
                    continue
                if expires_s <= now_s:
                    expired.append((queue, batch))
                elif next_s is None or expires_s < next_s:
                    next_s = expires_s
        return expired, next_s


def expiry_error(batch: ProducerBatch, delivery_timeout_ms: int, last_error: KafkaliteError | None) -> DeliveryTimeout:
    """Return the error of a batch that expired; its text states whether the records may be in the log."""
    outcome = "they may or may not be in the log" if batch.attempts else "they were never sent"
    reason = f"; last error: {last_error}" if last_error is not None else ""
    return DeliveryTimeout(
        f"{batch.record_count} records for {batch.topic}-{batch.partition} were not acknowledged within "
        f"delivery.timeout.ms={delivery_timeout_ms} ({batch.attempts} attempts); {outcome}{reason}"
    )
