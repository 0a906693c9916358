"""The beginning of a Fetch answer (version 17, without header) of which the rest is not here: what it announces.

A follower that has no memory for an answer learns from it whose records are too large.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Throttle time, error, session id.
_HEAD_BYTES = 10
_TOPIC_ID_BYTES = 16
# Partition, error, high watermark, last stable offset, log start offset.
_FIXED = struct.Struct(">ihqqq")
# Producer id, first offset, no tags.
_ABORTED_BYTES = 17
_PREFERRED_BYTES = 4


def announced_records(beginning: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield topic id, partition, and the size of its records in bytes, as far as the bytes go."""
    data = beginning
    try:
        topics, position = _unsigned(data, _HEAD_BYTES)
        for _ in range(topics - 1):
            topic_id = data[position : position + _TOPIC_ID_BYTES]
            partitions, position = _unsigned(data, position + _TOPIC_ID_BYTES)
            for _ in range(partitions - 1):
                number = _FIXED.unpack_from(data, position)[0]
                aborted, position = _unsigned(data, position + _FIXED.size)
                position += max(aborted - 1, 0) * _ABORTED_BYTES + _PREFERRED_BYTES
                size, position = _unsigned(data, position)
                size = max(size - 1, 0)
                yield topic_id, number, size
                position = _behind_tags(data, position + size)
            position = _behind_tags(data, position)
    except (struct.error, IndexError):
        return


def _behind_tags(data: bytes, position: int) -> int:
    count, position = _unsigned(data, position)
    for _ in range(count):
        _, position = _unsigned(data, position)
        size, position = _unsigned(data, position)
        position += size
    return position


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    """Return a varint and the position behind it. IndexError where it is not all here."""
    found = shift = 0
    while True:
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, position
        shift += 7
