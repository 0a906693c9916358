"""What a broker refuses in a produced batch: the checks before it may enter a log.

:func:`admit` checks one partition's part of a Produce request: exactly one whole batch of magic 2, its size, codec, CRC
and header, and then, record by record, everything inside. Header checks alone would let in batches whose records no
consumer can read. Some batches are too much for the broker's loop: a compressed one above 64 KiB, one whose records
take more than 256 KiB, and any above 4 MiB. ``admit`` then leaves all but size and codec to :func:`walk`, which the
caller runs in a thread.

Nothing here assigns offsets or checks sequences; the log does. Errors are those that Kafka's clients know for each
case; their text goes into the response. One header field may be corrected in place: a ``max_timestamp`` that is not the
largest of the records' timestamps. Kafka's LogValidator does the same, because the time index relies on it.

Source: org.apache.kafka.storage.internals.log.LogValidator and kafka.log.UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_kafkalite.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from spark_kafkalite.model import TimestampType
from spark_kafkalite.records import layout
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.compression import CODEC_NAMES, NONE, ZSTD, decompress
from spark_kafkalite.records.kernel import check_crc, read_header, walk_records
from spark_kafkalite.records.layout import MAX_INT64, MIN_INT64, BatchHeader

# What the loop may decompress and walk itself, about a millisecond's work.
INLINE_COMPRESSED_BYTES: Final = 64 * 1024
INLINE_DECOMPRESSED_BYTES: Final = 256 * 1024
# What the loop may check, and write to a log, itself: some milliseconds' work, the writing nearly all of it.
INLINE_BATCH_BYTES: Final = 4 * 1024 * 1024
# An enumeration's member takes several steps to find.
_CREATE_TIME: Final = TimestampType.CREATE_TIME
# KIP-110: older versions of Produce know no zstd.
FIRST_PRODUCE_VERSION_WITH_ZSTD: Final = 7


@dataclass(slots=True)
class AdmissionRules:
    """A topic's rules for what is produced to it, and the time. Not frozen: ``now_ms`` may be set for each request.

    ``timestamp_before_max_ms`` and ``timestamp_after_max_ms``: how far a record's timestamp may lie before and after
    now.
    """

    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = MAX_INT64
    timestamp_after_max_ms: int = 3_600_000
    keys_required: bool = False
    max_decompressed_bytes: int = 64 * 1024 * 1024
    now_ms: int = 0


class Admission(NamedTuple):
    """An admitted batch; while ``needs_thread`` holds it is still to be walked."""

    header: BatchHeader
    needs_thread: bool


def admit(buffer: Buffer, position: int, end: int, rules: AdmissionRules, *, produce_version: int) -> Admission:
    """Check the batch that fills ``buffer`` from ``position`` to ``end``; ``buffer`` may be read-only.

    Raises InvalidRecord (87), CorruptMessage (2), MessageTooLarge (10), UnsupportedCompressionType (76),
    InvalidTimestamp (32), TransactionalIdAuthorizationFailed (53).
    """
    header = _read_whole(buffer, position, end, rules, produce_version)
    if needs_thread(header):
        return Admission(header, True)
    _check_header(buffer, position, header)
    codec = header.attributes & layout.CODEC_MASK
    section: bytes | bytearray | memoryview = memoryview(buffer)[position + layout.HEADER_BYTES : end]
    if codec != NONE or len(section) > rules.max_decompressed_bytes:
        limit = min(INLINE_DECOMPRESSED_BYTES, rules.max_decompressed_bytes)
        try:
            section = decompress(codec, section, limit, as_java=True)
        except InvalidRecord:
            if limit == rules.max_decompressed_bytes:
                raise
            return Admission(header, True)
    return Admission(_walk_payload(buffer, position, header, section, rules), False)


def needs_thread(header: BatchHeader) -> bool:
    """Return whether the header alone shows that the batch is too much for the loop."""
    limit = INLINE_COMPRESSED_BYTES if header.attributes & layout.CODEC_MASK else INLINE_BATCH_BYTES
    return layout.LOG_OVERHEAD + header.batch_length > limit


def walk(buffer: Buffer, position: int, header: BatchHeader, rules: AdmissionRules) -> BatchHeader:
    """Check the batch's CRC and header, decompress its records and check each; returns the header, with
    ``max_timestamp`` set right.

    Raises InvalidRecord (87), CorruptMessage (2), InvalidTimestamp (32), TransactionalIdAuthorizationFailed (53).
    """
    _check_header(buffer, position, header)
    section = memoryview(buffer)[position + layout.HEADER_BYTES : position + header.size_bytes]
    payload = decompress(header.codec, section, rules.max_decompressed_bytes, as_java=True)
    return _walk_payload(buffer, position, header, payload, rules)


def _read_whole(buffer: Buffer, position: int, end: int, rules: AdmissionRules, produce_version: int) -> BatchHeader:
    available = end - position
    if available <= 0:
        raise InvalidRecord(
            "a partition's part of a produce request must hold exactly one record batch, this one is empty"
        )
    view = memoryview(buffer)[:end]
    if available > layout.MAGIC_POSITION and view[position + layout.MAGIC_POSITION] != layout.MAGIC:
        magic = view[position + layout.MAGIC_POSITION]
        raise InvalidRecord(f"magic {magic} is not supported, only record batches of magic {layout.MAGIC} are")
    header = read_header(view, position)
    size_bytes = layout.LOG_OVERHEAD + header.batch_length
    if size_bytes > available:
        raise layout.cut_batch(position, size_bytes, available)
    if size_bytes < available:
        raise InvalidRecord(
            f"a partition's part of a produce request must hold exactly one batch: the first takes {size_bytes} "
            f"of {available} bytes"
        )
    check_size(size_bytes, rules)
    codec = header.attributes & layout.CODEC_MASK
    if codec not in CODEC_NAMES:
        raise UnsupportedCompressionType(f"codec {codec} in the batch's attributes is not known")
    if codec == ZSTD and produce_version < FIRST_PRODUCE_VERSION_WITH_ZSTD:
        raise UnsupportedCompressionType(
            f"zstd needs Produce version {FIRST_PRODUCE_VERSION_WITH_ZSTD} or newer, this is version {produce_version}"
        )
    return header


def check_size(size_bytes: int, rules: AdmissionRules) -> None:
    """Raise MessageTooLarge (10) for a batch that the topic does not take; also for one that was recompressed."""
    if size_bytes > rules.max_message_bytes:
        raise MessageTooLarge(
            f"the record batch has {size_bytes} bytes, max.message.bytes of the topic is {rules.max_message_bytes}"
        )


def _check_header(buffer: Buffer, position: int, header: BatchHeader) -> None:
    check_crc(buffer, position, layout.LOG_OVERHEAD + header.batch_length)
    if header.base_offset != 0:
        raise InvalidRecord(f"base offset {header.base_offset}: a produced batch begins at 0, the broker gives offsets")
    if header.record_count <= 0:
        raise InvalidRecord(f"record count {header.record_count}: a produced batch must hold at least one record")
    if header.last_offset_delta != header.record_count - 1:
        raise InvalidRecord(
            f"last offset delta {header.last_offset_delta} is not one less than record count {header.record_count}"
        )
    if header.attributes & ~layout.CODEC_MASK:
        _check_flags(header)
    # aiokafka sends base sequence 0 without a producer id: sequences mean nothing then.
    if header.producer_id != -1:
        _check_producer(header)


def _check_flags(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecord("control batches are written by brokers only")
    if header.attributes & layout.LOG_APPEND_TIME_BIT:
        raise InvalidTimestamp("a producer must not set the timestamp type to log append time")
    if header.attributes & layout.DELETE_HORIZON_BIT:
        # Its base timestamp would be taken for the time from which on the cleaner may drop tombstones.
        raise InvalidRecord("only the broker's cleaner gives a batch a delete horizon")
    if header.is_transactional:
        # The answer that Kafka gives where a request has no transactional id; one that has is refused as a whole.
        raise TransactionalIdAuthorizationFailed("a transactional batch: transactions are not served by this broker")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id < -1:
        raise InvalidRecord(f"producer id {header.producer_id} is neither -1 nor one that a broker gave out")
    if header.base_sequence < 0 or header.producer_epoch < 0:
        raise InvalidRecord(
            f"base sequence {header.base_sequence} and epoch {header.producer_epoch} of producer id "
            f"{header.producer_id} must not be negative"
        )


def _walk_payload(
    buffer: Buffer, position: int, header: BatchHeader, payload: Buffer, rules: AdmissionRules
) -> BatchHeader:
    earliest, latest = MIN_INT64, MAX_INT64
    is_create_time = rules.timestamp_type is _CREATE_TIME
    if is_create_time:
        earliest = max(rules.now_ms - rules.timestamp_before_max_ms, MIN_INT64)
        latest = min(rules.now_ms + rules.timestamp_after_max_ms, MAX_INT64)
    largest = walk_records(
        payload,
        header,
        keys_required=rules.keys_required,
        earliest_timestamp=earliest,
        latest_timestamp=latest,
    )
    if largest == header.max_timestamp or not is_create_time:
        return header
    return _with_max_timestamp(buffer, position, header, largest)


def _with_max_timestamp(buffer: Buffer, position: int, header: BatchHeader, max_timestamp: int) -> BatchHeader:
    view = memoryview(buffer)
    if view.readonly:
        raise CorruptMessage(
            f"max timestamp {header.max_timestamp} of the batch is not the largest of its records, {max_timestamp}"
        )
    start = position + layout.MAX_TIMESTAMP_POSITION
    view[start : start + 8] = max_timestamp.to_bytes(8, "big", signed=True)
    crc = crc32c(view[position + layout.CRC_START : position + header.size_bytes])
    view[position + layout.CRC_POSITION : position + layout.CRC_START] = crc.to_bytes(4, "big")
    return header._replace(max_timestamp=max_timestamp, crc=crc)
