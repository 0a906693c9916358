"""Turns an encoded records section into a finished batch: compresses it, writes the header, sets the CRC.

Both twins of the kernel and the builder end here, so that there is one place that writes a header. A buffer handed in
has ``HEADER_BYTES`` free bytes before its records. A finished batch has base offset 0 and leader epoch -1: the broker
gives both, and neither is covered by the CRC.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from spark_kafkalite.records import layout
from spark_kafkalite.records.compression import NONE, compress
from spark_kafkalite.records.layout import BatchHeader


class SectionFacts(NamedTuple):
    """The facts about the records that are in the batch's header."""

    record_count: int
    base_timestamp: int
    max_timestamp: int


class RetainedRecords(NamedTuple):
    """What compaction leaves of a batch's records: their number, the number of tombstones, their largest timestamp (-1
    without records), and whether they are written for a new delete horizon. ``records`` has HEADER_BYTES free bytes
    with the records behind them, and is None when not a byte has changed."""

    record_count: int
    tombstone_count: int
    max_timestamp: int
    has_new_horizon: bool
    buffer: bytearray | None


def assemble(
    buffer: bytearray,
    facts: SectionFacts,
    codec: int = NONE,
    level: int | None = None,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    with_crc: bool = True,
) -> bytearray:
    """Return the finished batch; without a codec it is ``buffer`` itself, else a new one.

    ``buffer``: HEADER_BYTES free bytes, then the uncompressed records. Without its CRC, which is 0, a batch is finished
    by :func:`restamp_producer`.
    """
    if codec != NONE:
        with memoryview(buffer) as view:
            section = compress(codec, view[layout.HEADER_BYTES :], level)
        buffer = bytearray(layout.HEADER_BYTES)
        buffer += section
    layout.HEADER_STRUCT.pack_into(
        buffer,
        0,
        0,
        len(buffer) - layout.LOG_OVERHEAD,
        -1,
        layout.MAGIC,
        0,
        codec | (layout.TRANSACTIONAL_BIT if transactional else 0),
        facts.record_count - 1,
        facts.base_timestamp,
        facts.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        facts.record_count,
    )
    if with_crc:
        _set_crc(buffer)
    return buffer


def reassemble(header: BatchHeader, retained: RetainedRecords, delete_horizon_ms: int = -1) -> bytearray:
    """Return the batch of ``header`` with only the records that compaction retains, which must be fewer or rewritten.

    Everything that readers, followers and producers rely on stays: base offset, last offset delta, leader epoch, codec,
    timestamp type, producer id, epoch and sequence. With a new horizon ``delete_horizon_ms`` is the base timestamp.
    Source: MemoryRecords.buildRetainedRecordsInto and DefaultRecordBatch.writeEmptyHeader.
    """
    buffer = retained.buffer
    if buffer is None:
        raise ValueError("a batch that stays as it is must be copied")
    attributes, base_timestamp, max_timestamp = header.attributes, header.base_timestamp, header.max_timestamp
    if retained.has_new_horizon:
        attributes |= layout.DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    if not retained.record_count:
        # There is nothing to compress, and no tombstone that a horizon could be for. Kafka keeps the largest timestamp;
        # but look-ups by time, and retention, would then find a time that no record has.
        attributes &= ~(layout.CODEC_MASK | layout.DELETE_HORIZON_BIT)
        base_timestamp = max_timestamp = -1
    elif not attributes & layout.LOG_APPEND_TIME_BIT:
        max_timestamp = retained.max_timestamp
    codec = attributes & layout.CODEC_MASK
    if codec != NONE:
        with memoryview(buffer) as view:
            section = compress(codec, view[layout.HEADER_BYTES :])
        buffer = bytearray(layout.HEADER_BYTES)
        buffer += section
    layout.HEADER_STRUCT.pack_into(
        buffer,
        0,
        *header._replace(
            batch_length=len(buffer) - layout.LOG_OVERHEAD,
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=retained.record_count,
        ),
    )
    _set_crc(buffer)
    return buffer


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
    """Return a batch without records, producer and times that stands for the offsets from one to another, inclusive.

    Readers pass it as they pass what compaction has emptied. Source: DefaultRecordBatch.writeEmptyHeader.
    """
    batch = bytearray(layout.HEADER_BYTES)
    layout.HEADER_STRUCT.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - layout.LOG_OVERHEAD,
        leader_epoch,
        layout.MAGIC,
        0,
        NONE,
        last_offset - base_offset,
        -1,
        -1,
        -1,
        -1,
        -1,
        0,
    )
    _set_crc(batch)
    return batch


def restamp_producer(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give a finished batch another producer id, epoch and sequence, as a retry after an epoch bump must."""
    layout.PRODUCER_STRUCT.pack_into(batch, layout.PRODUCER_ID_POSITION, producer_id, producer_epoch, base_sequence)
    _set_crc(batch)


def _set_crc(batch: bytearray) -> None:
    with memoryview(batch) as view:
        crc = crc32c(view[layout.CRC_START :])
    batch[layout.CRC_POSITION : layout.ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
