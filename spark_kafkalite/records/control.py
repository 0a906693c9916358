"""Control batches: the markers that end transactions, as they lie in a log and on the wire.

A control batch has the control bit and one record, which no consumer is shown. The record's key holds its type. Of the
types only the two markers concern a log's producers; others (a KRaft leader change, a snapshot's begin and end) have no
producer. Compaction may leave a control batch without its record.

A marker is a batch of 78 bytes: the header with the transactional and the control bit, the producer id and epoch of the
transaction, no sequence, no codec, and one record of 17 bytes:

=======  =====  =================  ==============================================================================
offset   size   field              value
=======  =====  =================  ==============================================================================
61       1      record length      varint 16
62       3      the record's own   attributes 0, timestamp delta varint 0, offset delta varint 0
65       1      key length         varint 4
66       2      key version        int16 0
68       2      type               int16: 0 abort, 1 commit
70       1      value length       varint 6
71       2      value version      int16 0
73       4      coordinator epoch  int32: the leader epoch of the coordinator's partition of ``__transaction_state``
77       1      header count       varint 0
=======  =====  =================  ==============================================================================

Source: KIP-98; org.apache.kafka.common.record.ControlRecordType, EndTransactionMarker and MemoryRecords.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records.layout import (
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

MARKER_BYTES: Final = 78
ABORT: Final = 0
COMMIT: Final = 1
# The record whole, with its varints as they are in every marker of version 0.
_RECORD: Final = struct.Struct(">bbbbbhhbhib")
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_CRC: Final = struct.Struct(">I")


class Marker(NamedTuple):
    """The end of a transaction. ``coordinator_epoch`` fences coordinators that have been replaced."""

    commits: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytearray:
    """Return a marker as a batch, with base offset 0 and no leader epoch, for a leader to append."""
    batch = bytearray(MARKER_BYTES)
    HEADER_STRUCT.pack_into(
        batch,
        0,
        0,
        MARKER_BYTES - LOG_OVERHEAD,
        -1,
        MAGIC,
        0,
        TRANSACTIONAL_BIT | CONTROL_BIT,
        0,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        -1,
        1,
    )
    kind = COMMIT if marker.commits else ABORT
    # Zigzag doubles the lengths.
    _RECORD.pack_into(batch, HEADER_BYTES, 32, 0, 0, 0, 8, 0, kind, 12, 0, marker.coordinator_epoch, 0)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(view[CRC_START:]))
    return batch


def control_type(buffer: memoryview | bytes | bytearray, position: int, header: BatchHeader) -> int:
    """Return the type of a control batch's record. Raises CorruptMessage."""
    return _read_key(buffer, position, header)[0]


def read_marker(buffer: memoryview | bytes | bytearray, position: int, header: BatchHeader) -> Marker | None:
    """Return the marker in the control batch at ``position``, of which ``buffer`` has the whole.

    None for a control batch of another type, and for one whose record compaction has removed. Raises CorruptMessage
    when the record cannot be read.
    """
    if not header.record_count:
        return None
    kind, value_at, end = _read_key(buffer, position, header)
    if kind not in (ABORT, COMMIT):
        return None
    try:
        value_at = _skip_varint(buffer, value_at, end)
    except IndexError:
        value_at = end
    # One byte holds the length of a value, also of one that a newer version makes longer; of null it holds 1.
    if buffer[value_at - 1] >> 1 < _VALUE.size or value_at + _VALUE.size > end:
        raise CorruptMessage(f"the transaction marker at offset {header.base_offset} ends inside its record's value")
    # Newer versions would only add fields behind these.
    _, coordinator_epoch = _VALUE.unpack_from(buffer, value_at)
    return Marker(kind == COMMIT, coordinator_epoch)


def _read_key(buffer: memoryview | bytes | bytearray, position: int, header: BatchHeader) -> tuple[int, int, int]:
    """Return a control record's type, the position of its value's length, and the end of what can be read."""
    at = position + HEADER_BYTES
    end = min(position + header.size_bytes, len(buffer))
    # Record length, attributes, timestamp delta, offset delta, key length; all but the attributes are varints.
    try:
        at = _skip_varint(buffer, at, end) + 1
        at = _skip_varint(buffer, _skip_varint(buffer, at, end), end)
        key_at = _skip_varint(buffer, at, end)
    except IndexError:
        key_at = end
    if key_at + _KEY.size > end:
        raise CorruptMessage(f"the control batch at offset {header.base_offset} ends inside its record's key")
    kind: int = _KEY.unpack_from(buffer, key_at)[1]
    # A key of a newer version may be longer; zigzag doubles its length, which one byte holds.
    return kind, key_at + max(buffer[key_at - 1] >> 1, _KEY.size), end


def _skip_varint(buffer: memoryview | bytes | bytearray, at: int, end: int) -> int:
    while at < end:
        at += 1
        if buffer[at - 1] < 0x80:
            return at
    raise IndexError(at)
