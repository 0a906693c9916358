"""The record batch, version 2: its fields, its attribute bits, and the error texts about it.

The only copy of the layout in the package; both twins of the kernel build :class:`BatchHeader` and take the texts of
their errors from here. All integers are big endian, all varints zigzag.

=========  =====  ======================  =========================================================================
offset     size   field                   note
=========  =====  ======================  =========================================================================
0          8      base_offset             given by the broker; not covered by the CRC
8          4      batch_length            bytes after this field, so a batch takes 12 + batch_length; at least 49
12         4      partition_leader_epoch  given by the broker; not covered by the CRC
16         1      magic                   2; at this place in versions 0 and 1 too, so that it can always be read
17         4      crc                     CRC-32C, unsigned, of everything from byte 21 to the end
21         2      attributes              bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 horizon
23         4      last_offset_delta       record count - 1 when it was produced; compaction leaves it unchanged
27         8      base_timestamp          record timestamps are stored relative to it
35         8      max_timestamp           with log append time: the timestamp of every record
43         8      producer_id             -1 without idempotence
51         2      producer_epoch
53         4      base_sequence           -1 without idempotence (aiokafka writes 0)
57         4      record_count            after compaction below last_offset_delta + 1, down to 0
61         ..     records                 compressed as one piece when there is a codec
=========  =====  ======================  =========================================================================

A record: varint length of the rest, int8 attributes (unused), varlong timestamp delta, varint offset delta. Then varint
key length (-1 is null) and key, varint value length (-1 is a tombstone) and value, varint header count. Per header:
varint key length and UTF-8 key, varint value length (-1 is null) and value.

Source: org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, SerializationError
from spark_kafkalite.model import TimestampType

MAGIC: Final = 2
# What batch_length does not count: base_offset and batch_length themselves.
LOG_OVERHEAD: Final = 12
HEADER_BYTES: Final = 61
MIN_BATCH_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD
MAX_BATCH_BYTES: Final = 2**31 - 1

BATCH_LENGTH_POSITION: Final = 8
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_ID_POSITION: Final = 43
# The CRC covers everything from here on.
CRC_START: Final = ATTRIBUTES_POSITION

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

# The seven fields of a record take at least a byte each.
MIN_RECORD_BYTES: Final = 7
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
MIN_INT64: Final = -(2**63)
# One less than fits, so that the difference to a timestamp of -1 (none) fits too.
MAX_TIMESTAMP: Final = MAX_INT64 - 1

HEADER_STRUCT: Final = struct.Struct(">qiibIhiqqqhii")
# Producer id, producer epoch and base sequence lie together.
PRODUCER_STRUCT: Final = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, as numbers."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are not known."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the records' own timestamps count, or ``max_timestamp`` for all of them."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker, which is never shown as a record."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int:
        """When compaction may remove the batch's tombstones, -1 until a cleaning has set it. Source: KIP-534."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else -1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences go from 2^31-1 on to 0. -1 when there is no sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_INT32


class BadRecord(InvalidRecord):
    """InvalidRecord that knows which record of the batch it is about (Produce v8 and newer answer with the index)."""

    def __init__(self, record_index: int, message: str) -> None:
        super().__init__(message)
        self.record_index = record_index


class BadTimestamp(InvalidTimestamp):
    """InvalidTimestamp that knows which record of the batch it is about."""

    def __init__(self, record_index: int, message: str) -> None:
        super().__init__(message)
        self.record_index = record_index


class Fault(IntEnum):
    """What can be wrong inside a records section; the numbers are shared with the native kernel."""

    NONE = 0
    CUT = 1
    OVERLONG = 2
    LENGTH = 3
    ORDER = 4
    BEYOND = 5
    RECORD_REST = 6
    SECTION_REST = 7
    COUNT = 8
    NULL_KEY = 9
    TIMESTAMP = 10
    TOO_EARLY = 11
    TOO_LATE = 12


class Field(IntEnum):
    """The fields of a record, for the texts of errors; the numbers are shared with the native kernel."""

    RECORD_LENGTH = 0
    ATTRIBUTES = 1
    TIMESTAMP_DELTA = 2
    OFFSET_DELTA = 3
    KEY_LENGTH = 4
    VALUE_LENGTH = 5
    HEADER_COUNT = 6
    HEADER_KEY_LENGTH = 7
    HEADER_VALUE_LENGTH = 8


_FIELD_NAMES: Final = (
    "record length",
    "attributes",
    "timestamp delta",
    "offset delta",
    "key length",
    "value length",
    "header count",
    "header key length",
    "header value length",
)


def record_error(fault: int, field: int, index: int, first: int, second: int) -> InvalidRecord | InvalidTimestamp:
    """Return the error for a fault in the record at ``index``; ``first`` and ``second`` are the fault's numbers."""
    if fault == Fault.COUNT:
        return InvalidRecord(f"record count {first} does not fit in the {second} bytes of the records section")
    if fault == Fault.SECTION_REST:
        return InvalidRecord(f"{first} bytes are left in the batch after its last record ({index} records)")
    if fault == Fault.TOO_EARLY:
        return BadTimestamp(
            index,
            f"record {index}: timestamp {first} is before {second}, the earliest allowed "
            "(message.timestamp.before.max.ms)",
        )
    if fault == Fault.TOO_LATE:
        return BadTimestamp(
            index,
            f"record {index}: timestamp {first} is after {second}, the latest allowed (message.timestamp.after.max.ms)",
        )
    name = _FIELD_NAMES[field]
    if fault == Fault.CUT:
        reason = f"{name} is cut off: the data ends before it does"
    elif fault == Fault.OVERLONG:
        reason = f"{name} is a varint of more than {64 if field == Field.TIMESTAMP_DELTA else 32} bits"
    elif fault == Fault.LENGTH:
        reason = f"{name} {first} does not fit in the {second} bytes that are left"
    elif fault == Fault.ORDER:
        reason = f"offset delta {first} is not above the one before it, {second}"
    elif fault == Fault.BEYOND:
        reason = f"offset delta {first} is above the batch's last offset delta {second}"
    elif fault == Fault.RECORD_REST:
        reason = f"{first} bytes are left in the record after its last header"
    elif fault == Fault.NULL_KEY:
        reason = "it has no key, which a compacted topic requires"
    else:
        reason = f"timestamp delta {second} takes base timestamp {first} beyond 64 bits"
    return BadRecord(index, f"record {index}: {reason}")


def timestamp_problem(timestamp: int) -> str:
    """Return that a timestamp cannot be written."""
    return f"timestamp {timestamp} is not between -1 (none) and {MAX_TIMESTAMP} ms"


def too_large(size_bytes: int) -> SerializationError:
    """Return the error for a record that by itself is beyond what a batch can hold."""
    return SerializationError(
        f"the record makes a batch of {size_bytes} bytes; the record format ends at {MAX_BATCH_BYTES}"
    )


def too_short(position: int, available: int) -> CorruptMessage:
    """Return the error for a buffer that ends inside a batch's header."""
    return CorruptMessage(
        f"record batch at position {position}: its header takes {HEADER_BYTES} bytes, {available} are left"
    )


def bad_magic(position: int, magic: int) -> CorruptMessage:
    """Return the error for a batch of an older or unknown version."""
    return CorruptMessage(
        f"record batch at position {position}: magic {magic} is not supported, only {MAGIC} is (Kafka 0.11 and newer)"
    )


def bad_length(position: int, batch_length: int) -> CorruptMessage:
    """Return the error for a batch length that no batch can have."""
    return CorruptMessage(
        f"record batch at position {position}: batch length {batch_length} is not between {MIN_BATCH_LENGTH} "
        f"and {MAX_BATCH_BYTES - LOG_OVERHEAD}"
    )


def cut_batch(position: int, size_bytes: int, available: int) -> CorruptMessage:
    """Return the error for a buffer that ends inside a batch."""
    return CorruptMessage(
        f"record batch at position {position}: it takes {size_bytes} bytes, the buffer holds {available} from there on"
    )


def bad_crc(position: int, stored: int, computed: int) -> CorruptMessage:
    """Return the error for a batch whose bytes have changed."""
    return CorruptMessage(
        f"record batch at position {position}: its CRC field is 0x{stored:08x}, its bytes give 0x{computed:08x}"
    )
