"""The beginning of a Fetch answer (version 17, without header) of which the rest is not here: what it announces.

A follower that has no memory for an answer learns from it whose records are too large.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from spark_kafkalite.errors import FrameError
from spark_kafkalite.wire.packed.layout import skip_tags
from spark_kafkalite.wire.primitives import read_uvarint

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
    data = memoryview(beginning)
    try:
        topics, position = read_uvarint(data, _HEAD_BYTES)
        for _ in range(topics - 1):
            topic_id = bytes(data[position : position + _TOPIC_ID_BYTES])
            partitions, position = read_uvarint(data, position + _TOPIC_ID_BYTES)
            for _ in range(partitions - 1):
                number = _FIXED.unpack_from(data, position)[0]
                aborted, position = read_uvarint(data, position + _FIXED.size)
                position += max(aborted - 1, 0) * _ABORTED_BYTES + _PREFERRED_BYTES
                size, position = read_uvarint(data, position)
                size = max(size - 1, 0)
                yield topic_id, number, size
                position = skip_tags(data, position + size)
            position = skip_tags(data, position)
    except (struct.error, IndexError, FrameError):
        return
