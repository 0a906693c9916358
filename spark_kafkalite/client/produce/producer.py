"""The producer: records in, batches out, acknowledgements back.

``send()`` puts one record into its partition's open batch and returns a light handle; ``send_batch()`` encodes many
records at once, from Python lists or Arrow columns, and touches no record in Python. A background thread
(:mod:`.sender`) takes the batches to the partitions' leaders.

Guarantees: records that one thread sends to one partition are appended in that order; with idempotence (the default)
each at most once, whatever is retried, for as long as the producer lives. Memory is bounded by ``buffer.memory``:
beyond it ``send()`` waits up to ``max.block.ms``, then raises BufferExhausted.

What fails is never silent: each failed batch is a line of the log with the broker's reason, and at the end of the
``with`` block an UndeliveredRecords counts the failures that neither ``result()`` nor a callback reported.

Thread-safe: any number of threads may send; ``close()`` may come from any of them. Callbacks (``on_delivery``) run on
the producer's thread and must not block; what they raise is logged. They may call ``send()`` as long as memory is free.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from spark_kafkalite.client.config import producer_config
from spark_kafkalite.client.metrics import ClientMetrics
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import ClusterSnapshot, TopicInfo
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.produce.accumulator import Accumulator, PartitionQueue
from spark_kafkalite.client.produce.delivery import (
    BatchDelivery,
    Delivery,
    OnBatchDelivery,
    OnDelivery,
    ProducerBatch,
    wait_for_all,
)
from spark_kafkalite.client.produce.partitioner import TopicPartitioner
from spark_kafkalite.client.produce.producer_phase import ProducerPhase, producer_lifecycle
from spark_kafkalite.client.produce.sender import Sender
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    BufferExhausted,
    ClosedError,
    MessageTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import Headers, topic_name_problem
from spark_kafkalite.records.kernel import OpenBatch

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafkalite.client.produce.send_columns import Sendable

_LOG = logging.getLogger("spark_kafkalite.client")

_NS_PER_MS = 1_000_000


class _TopicState:
    """What ``send()`` needs of one topic, found with one look-up."""

    __slots__ = ("partitioner", "queues")

    def __init__(self, partitioner: TopicPartitioner) -> None:
        self.partitioner = partitioner
        self.queues: list[PartitionQueue] = []


class Producer:
    """Sends records to topics. Use it as a context manager, or call :meth:`close`.

    The ``with`` block ends with UndeliveredRecords when records failed that neither ``result()`` nor a callback
    reported. When another error ends the block, and after a bare :meth:`close`, this is logged instead.
    """

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, clock: Clock = SYSTEM_CLOCK, **keywords: object
    ) -> None:
        """``settings`` have Kafka's names; ``keywords`` are the same in snake case (``bootstrap_servers=...``)."""
        self.config = producer_config(settings, keywords)
        self._clock = clock
        self._cluster = ClusterClient(self.config.client, clock)
        self._accumulator = Accumulator(self.config, self.config.max_in_flight)
        self._lock = self._accumulator.lock
        self._topics: dict[str, _TopicState] = {}
        self._loading = threading.Lock()
        self._life = producer_lifecycle()
        # Room for a batch as the accumulator counts it.
        self._batch_size = max(1, self.config.batch_size)
        self._linger_s = self.config.linger_ms / 1000
        self._eager = self.config.linger_ms == 0
        self._plain_partitioner = self.config.partitioner == "default" and not self.config.ignore_keys
        self._cluster.add_listener(self._take_metadata)
        self._sender = Sender(self.config, self._cluster, self._accumulator, self._life, clock)
        self._sender.start()

    def __repr__(self) -> str:
        is_open = self._life.state is ProducerPhase.OPEN
        state = f"{self._accumulator.reserved_bytes} bytes on their way" if is_open else "closed"
        return f"Producer({','.join(self.config.client.bootstrap_servers)}, {state})"

    # Sending --------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: None = None,
    ) -> Delivery:
        """Send one record and return its handle; ``handle.result()`` waits for the broker's acknowledgement.

        ``value`` None is a tombstone. ``timestamp_ms`` None is now; ``timestamp``, the name in some other clients,
        raises a TypeError with a hint. With ``producer.type=sync`` the record is acknowledged or its error raised, when
        this returns.
        Raises BufferExhausted, MessageTooLarge (10) for a record above ``max.request.size``, SerializationError,
        UnknownTopicOrPartition (3), BrokerUnreachable, ClosedError.
        """
        if timestamp is not None:
            # Three names in three clients; Python would only say that it is unexpected.
            raise TypeError(f"send() got timestamp={timestamp!r}: give timestamp_ms=, milliseconds since the epoch")
        state = self._topics.get(topic)
        if state is None:
            state = self._load_topic(topic)
        if partition is not None and partition >= len(state.queues):
            state = self._load_topic(topic, anew=True)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // _NS_PER_MS
        with self._lock:
            if partition is None:
                partitioner = state.partitioner
                if key is None and self._plain_partitioner:
                    number = partitioner.sticky
                else:
                    number = partitioner.choose(key, value)
                queue = state.queues[number]
            else:
                queue = self._explicit(topic, state, partition)
            batch = queue.open
            index = -1
            # Once the producer is being closed no batch is open.
            if batch is not None:
                index = batch.records.append(timestamp_ms, key, value, headers)  # type: ignore[union-attr]
            if index < 0:
                batch, index, timestamp_ms = self._append_slowly(
                    state, queue, timestamp_ms, key, value, headers, moves=partition is None and key is None
                )
            if on_delivery is not None:
                assert batch is not None
                if batch.callbacks is None:
                    batch.callbacks = []
                batch.callbacks.append((index, timestamp_ms, on_delivery))
        assert batch is not None
        if index == 0 and self._eager:
            self._sender.send_now()
        delivery = Delivery(batch, index, timestamp_ms)
        if self.config.sync:
            delivery.result()
        return delivery

    def _append_slowly(
        self,
        state: _TopicState,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        *,
        moves: bool,
    ) -> tuple[ProducerBatch, int, int]:
        """Append to a new batch, waiting for memory; the lock is held, and released while waiting."""
        accumulator = self._accumulator
        if moves and queue.open is not None and self._plain_partitioner:
            # The sticky partition's batch is full.
            accumulator.close_batch(queue)
            self._sender.wake()
            state.partitioner.move_on()
            queue = state.queues[state.partitioner.sticky]
            if queue.open is not None and queue.open.records is not None:
                index = queue.open.records.append(timestamp_ms, key, value, headers)
                if index >= 0:
                    return queue.open, index, timestamp_ms
        # The record goes into a batch of its own first, so that its size is known before memory is asked for.
        records = OpenBatch(self._batch_size)
        records.append(timestamp_ms, key, value, headers)
        if records.size_bytes > self.config.max_request_size:
            raise MessageTooLarge(
                f"the record for topic {queue.topic} takes {records.size_bytes} bytes as a batch, which is above "
                f"max.request.size={self.config.max_request_size}: raise it, and the topic's max.message.bytes with it"
            )
        reserve = max(self._batch_size, records.size_bytes)
        self._reserve(reserve)
        now_s = self._clock.monotonic_s()
        batch = ProducerBatch(queue.topic, queue.partition, now_s, reserve, records=records)
        # While this thread waited for memory another may have opened a batch here; it is closed, and order is kept.
        accumulator.open_batch(queue, batch)
        if not self._eager:
            self._sender.wake_by(now_s + self._linger_s if not queue.waiting else now_s)
        return batch, 0, timestamp_ms

    def _reserve(self, size_bytes: int) -> None:
        """Take memory, waiting for it up to ``max.block.ms``; the lock is held, and released while waiting."""
        accumulator = self._accumulator
        self._check_open()
        if accumulator.try_reserve(size_bytes):
            return
        deadline = Deadline.after_ms(self.config.max_block_ms, self._clock)
        accumulator.memory_waiters += 1
        # Whoever waits makes every open batch due at once.
        self._sender.wake()
        try:
            while not accumulator.try_reserve(size_bytes):
                self._check_open()
                left_s = deadline.left_s()
                if left_s <= 0:
                    raise BufferExhausted(
                        f"buffer.memory={self.config.buffer_memory} stayed full for max.block.ms="
                        f"{self.config.max_block_ms}: records are sent faster than the brokers acknowledge them"
                    )
                accumulator.memory_freed.wait(left_s)
        finally:
            accumulator.memory_waiters -= 1

    def send_batch(
        self,
        topic: str | None,
        records: Sendable | pa.Table | pa.RecordBatch,
        *,
        on_delivery: OnBatchDelivery | None = None,
        isolate_refused: bool = False,
    ) -> BatchDelivery:
        """Send many records with one call and return one handle for all of them.

        ``records`` is an Arrow table or record batch, or an iterable of values (bytes) or mappings, with the columns
        ``value`` (required), ``key``, ``headers``, ``partition``, ``timestamp`` and ``topic``, as the Spark sink's.
        ``topic`` wins over the column; with None the column decides. All are encoded before this returns; while memory
        is full it waits, up to ``max.block.ms`` at a time. ``on_delivery`` is called once, with the handle, when all
        have their outcome. With ``producer.type=sync`` that is before this returns.
        With ``isolate_refused`` a record that the broker rejects (too large, its timestamp, a missing key)
        fails alone, the others are written in their order without it, and ``refused()`` of the handle names its row.
        Rows are counted within one Arrow record batch for one ``topic``: other ``records`` raise ConfigError then.
        """
        from spark_kafkalite.client.produce.send_columns import check_rows_are_counted, encode_records

        if isolate_refused:
            check_rows_are_counted(topic, records)
        delivery = BatchDelivery(on_delivery)
        untold_bytes = 0
        try:
            for queue, batch in encode_records(self, topic, records):
                if not isolate_refused:
                    batch.rows = None
                delivery.add(batch)
                untold_bytes += batch.reserved_bytes
                with self._lock:
                    self._reserve(batch.reserved_bytes)
                    batch.created_s = self._clock.monotonic_s()
                    self._accumulator.add_closed(queue, batch)
                    # Told of each partition's batch as it comes, the sender would send them one by one.
                    if untold_bytes >= self.config.max_request_size:
                        untold_bytes = 0
                        self._sender.wake_by(batch.created_s)
        finally:
            if untold_bytes:
                self._sender.wake_by(self._clock.monotonic_s())
        delivery.complete()
        if self.config.sync:
            delivery.result()
        return delivery

    # Topics ---------------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> TopicInfo:
        """Return the topic's partitions and leaders, waiting for it up to ``max.block.ms``."""
        self._check_open()
        deadline = Deadline.after_ms(self.config.max_block_ms, self._clock)
        return self._cluster.topic(topic, deadline, allow_auto_create=True)

    def topic_state(self, topic: str, partition: int = 0) -> tuple[TopicPartitioner, list[PartitionQueue]]:
        """Return the partitioner and the queues of a topic; ask the cluster again when this partition is not known.

        For the encoder of columns.
        """
        state = self._topics.get(topic) or self._load_topic(topic)
        if partition >= len(state.queues):
            state = self._load_topic(topic, anew=True)
        return state.partitioner, state.queues

    def next_sticky(self, partitioner: TopicPartitioner) -> int:
        """Return the partition that the next batch of records without key goes to, and move on from it."""
        with self._lock:
            number = partitioner.sticky
            partitioner.move_on()
            return number

    def now_ms(self) -> int:
        """The timestamp of records that bring none."""
        return self._clock.wall_ms()

    def _load_topic(self, topic: str, *, anew: bool = False) -> _TopicState:
        self._check_open()
        problem = topic_name_problem(topic)
        if problem:
            raise SerializationError(problem)
        # One thread asks; the others find the answer.
        with self._loading:
            state = self._topics.get(topic)
            if state is None or anew:
                if anew:
                    self._cluster.refresh([topic], Deadline.after_ms(self.config.max_block_ms, self._clock))
                info = self.partitions_for(topic)
                self._cluster.watch_topics([topic], auto_create=True)
                with self._lock:
                    state = self._update_topic(topic, info)
            return state

    def _update_topic(self, topic: str, info: TopicInfo) -> _TopicState:
        state = self._topics.get(topic)
        if state is None:
            state = _TopicState(TopicPartitioner(topic, self.config.partitioner, ignore_keys=self.config.ignore_keys))
        # Partitions are only ever added; a topic that was created anew with fewer keeps the queues it had.
        for number in range(len(state.queues), len(info.partitions)):
            state.queues.append(self._accumulator.queue(topic, number, info.partitions[number].leader))
        available = [each.partition for each in info.partitions if each.leader >= 0]
        state.partitioner.update(len(info.partitions), available)
        self._topics[topic] = state
        return state

    def _take_metadata(self, snapshot: ClusterSnapshot) -> None:
        with self._lock:
            for topic in self._topics:
                info = snapshot.topics.get(topic)
                if info is not None and not info.error_code and info.partitions:
                    self._update_topic(topic, info)

    def _explicit(self, topic: str, state: _TopicState, partition: int) -> PartitionQueue:
        if not 0 <= partition < len(state.queues):
            raise UnknownTopicOrPartition(
                f"{topic}-{partition}: topic {topic} has partitions 0 to {len(state.queues) - 1}"
            )
        return state.queues[partition]

    # The end --------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and wait until every record sent before has its outcome (success or error), and its
        callback has been called.

        Raises TimeoutError when ``timeout_s`` pass first, and nothing for records that failed, as in Kafka's clients:
        ask their handles, or give callbacks. The end of the ``with`` block counts failures that were not read.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        accumulator = self._accumulator
        with self._lock:
            batches = accumulator.unfinished()
            callbacks = self._sender.has_to_tell or any(batch.callbacks for batch in batches)
            accumulator.flushing += 1
        self._sender.wake()
        try:
            for batch in batches:
                wait_for_all(batch, deadline)
            if callbacks:
                self._sender.wait_for_callbacks(deadline)
        finally:
            with self._lock:
                accumulator.flushing -= 1

    def metrics(self) -> ClientMetrics:
        """Return what this producer has done, under the names of Kafka's producer; no request is made.

        By group, and by name within it: ``metrics()["producer-metrics"]["record-send-total"]``. Groups of a topic or a
        broker have it behind a point: ``producer-topic-metrics.orders``, ``producer-node-metrics.node-1``. Times are in
        ms, rates a second. Averages, maxima and rates are those of the last minute; without any, a name is left out.
        """
        return self._sender.metrics.read(self._sender.state_metrics(), list(self._cluster.snapshot.nodes))

    def close(self, timeout_s: float | None = None) -> None:
        """Send what is left, wait for its outcome up to ``timeout_s``, and end; what has none then fails with
        ClosedError.

        May be called more than once, and from a callback: then it does not wait. Raises nothing for records that
        failed; the number of failures that were not read is logged.
        """
        self._end(timeout_s)
        if error := self._sender.undelivered.error():
            _LOG.error("producer closed: %s", error)

    def _end(self, timeout_s: float | None) -> None:
        self._sender.refuse_records(ProducerPhase.CLOSING)
        if threading.current_thread() is not self._sender:
            self._sender.join(timeout_s)
            if self._sender.is_alive():
                self._sender.refuse_records(ProducerPhase.ABORTING)
                self._sender.join()
        self._cluster.close()

    def _check_open(self) -> None:
        if self._life.state is not ProducerPhase.OPEN:
            raise ClosedError("the producer has been closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            # What is on its way is given a moment, not the delivery timeout.
            self.close(5.0)
            return
        self._end(None)
        if undelivered := self._sender.undelivered.error():
            raise undelivered
