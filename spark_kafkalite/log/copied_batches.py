"""What a leader's answer holds for a follower's log: whole batches back to back, checked before they are appended.

They are cut into runs, each of which is checked and then appended in a turn of its own: thousands of small batches, or
one of many megabytes, take longer than others may have to wait. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import LOG_OVERHEAD, BatchHeader

# What is checked and appended within some milliseconds.
_RUN_BATCHES: Final = 500
_RUN_BYTES: Final = 1 << 20


class BatchRun(NamedTuple):
    """Consecutive batches. One above ``INLINE_BATCH_BYTES`` is alone, and a thread is to check and write it."""

    position: int
    size_bytes: int
    headers: Sequence[BatchHeader]


def read_headers(batches: memoryview, topic_partition: TopicPartition) -> Sequence[BatchHeader]:
    """Return the headers of batches. Raises CorruptMessage where they are not whole, and when there are none."""
    headers = kernel.scan_headers(batches)
    size = len(headers) * LOG_OVERHEAD + sum([header.batch_length for header in headers])
    if not headers or size != len(batches):
        raise CorruptMessage(f"{topic_partition}: {len(batches)} bytes are not whole record batches")
    return headers


def runs_of(headers: Sequence[BatchHeader]) -> Iterator[BatchRun]:
    """Cut batches into runs."""
    position, size, first = 0, 0, 0
    for number, header in enumerate(headers):
        added = LOG_OVERHEAD + header.batch_length
        if number > first and (number - first >= _RUN_BATCHES or size + added > _RUN_BYTES):
            yield BatchRun(position, size, headers[first:number])
            position, size, first = position + size, 0, number
        size += added
    yield BatchRun(position, size, headers[first:])


def check_order(
    run: BatchRun, topic_partition: TopicPartition, next_offset: int, epoch: int, leader_epoch: int
) -> None:
    """Raise CorruptMessage unless the batches follow ``next_offset`` and ``epoch``, one after the other, and are of no
    later epoch than the leader's own."""
    for header in run.headers:
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise CorruptMessage(
                f"{topic_partition}: a batch with base offset {header.base_offset}, {next_offset} was expected"
            )
        found = header.partition_leader_epoch
        if found < epoch:
            raise CorruptMessage(f"{topic_partition}: a batch of leader epoch {found} after one of {epoch}")
        # The CRC does not cover it (KAFKA-18723).
        if found > leader_epoch:
            raise CorruptMessage(
                f"{topic_partition}: a batch of leader epoch {found}, the leader's own is {leader_epoch}"
            )
        next_offset, epoch = header.next_offset, found


def check_sums(run: BatchRun, batches: memoryview) -> None:
    """Raise CorruptMessage where the bytes of a batch are not what its CRC is of. In any thread."""
    position = run.position
    for header in run.headers:
        size = LOG_OVERHEAD + header.batch_length
        kernel.check_crc(batches, position, size)
        position += size
