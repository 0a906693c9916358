"""Counts failed records whose outcome was not read: for the error at the end of a producer's ``with`` block.

An outcome counts as read when ``result()`` raised it, or an ``on_delivery`` function was called with it; with
``send_batch()`` also when ``errors()`` returned it. Only failures are counted, per partition: a record that arrives
costs nothing here, and a long-lived producer with failing records keeps numbers, not batches.
"""

from __future__ import annotations

import threading

from spark_kafkalite.errors import UndeliveredRecords
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.printable import first_of

_NAMED_PARTITIONS = 5


class Undelivered:
    """All failures of one producer that were not read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # How many records, and the first error of them.
        self._of_partition: dict[TopicPartition, tuple[int, Exception]] = {}

    def add(self, topic_partition: TopicPartition, record_count: int, error: Exception) -> FailedRecords:
        """Count the records of a batch that fails; call it before its outcome can be read."""
        with self._lock:
            count, first_error = self._of_partition.get(topic_partition, (0, error))
            self._of_partition[topic_partition] = count + record_count, first_error
        return FailedRecords(self, topic_partition, record_count)

    def take_off(self, topic_partition: TopicPartition, record_count: int) -> None:
        """Count records no more, because their failure was read."""
        with self._lock:
            count, error = self._of_partition.pop(topic_partition)
            if count > record_count:
                self._of_partition[topic_partition] = count - record_count, error

    def error(self) -> UndeliveredRecords | None:
        """Return the error that counts what is left, caused by the first failure of it; None when nothing is left."""
        with self._lock:
            found = sorted(self._of_partition.items())
        if not found:
            return None
        total = sum(count for _, (count, _) in found)
        named = first_of([f"{count} of {tp}" for tp, (count, _) in found], _NAMED_PARTITIONS, "partitions")
        first_error = found[0][1][1]
        error = UndeliveredRecords(
            f"{total} records were not delivered, and neither result() nor on_delivery reported it ({named}); the "
            f"first reason: {first_error}; the log has one line for each batch: send them again, or check each outcome"
        )
        error.record_count = total
        error.__cause__ = first_error
        return error


class FailedRecords:
    """The records of one failed batch, and which of their outcomes were read. Thread-safe."""

    __slots__ = ("_lock", "_record_count", "_seen", "_topic_partition", "_undelivered")

    def __init__(self, undelivered: Undelivered, topic_partition: TopicPartition, record_count: int) -> None:
        self._undelivered = undelivered
        self._topic_partition = topic_partition
        self._record_count = record_count
        self._lock = threading.Lock()
        # None once that is all of them.
        self._seen: set[int] | None = set()

    def look_at(self, index: int) -> None:
        """Note that the failure of the record at ``index`` of the batch was read."""
        with self._lock:
            if self._seen is None or index in self._seen:
                return
            self._seen.add(index)
        self._undelivered.take_off(self._topic_partition, 1)

    def look_at_all(self) -> None:
        """Note that the failure of the whole batch was read."""
        with self._lock:
            left = 0 if self._seen is None else self._record_count - len(self._seen)
            self._seen = None
        if left:
            self._undelivered.take_off(self._topic_partition, left)
