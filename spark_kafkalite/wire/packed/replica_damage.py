"""What follower and leader report to each other of damaged logs, in a tagged field of their Fetch requests and answers.

Only brokers write and read it. Other receivers of such a message skip the field, as every tagged field that they do
not know. It is DAMAGE_TAG of the request and of the answer, and has one entry for each partition that is or was
damaged at the follower, or that it refuses; the leader answers each. An entry is big endian::

    topic id (16 bytes), partition (4), leader epoch (4), stage (4), flags (1), log start offset (8),
    count (2), then as many times start offset (8) and end offset (8)

In a request the ranges are the follower's, and the stage counts how often they have changed in this process. The flag
REFUSED is set while the follower refuses what the leader has sent from the end of its log on, because the CRC or header
is wrong. In an answer the ranges are the leader's, with the start of its log, the stage that it answers, and UNCOUNTED
if it counts on nothing that the follower has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from spark_kafkalite.errors import FrameError

# Beyond whatever Kafka gives its fields.
DAMAGE_TAG: Final = 17_000
UNCOUNTED: Final = 1
REFUSED: Final = 2
_HEAD: Final = struct.Struct(">16siiibqH")
_RANGE: Final = struct.Struct(">qq")
_MOST_RANGES: Final = 1000


class ReplicaDamage(NamedTuple):
    """What one side reports of one partition; see the module's text."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    stage: int
    ranges: tuple[tuple[int, int], ...] = ()
    flags: int = 0
    log_start_offset: int = -1


def pack_damage(entries: Iterable[ReplicaDamage]) -> bytes:
    """Return the field's content; empty for no entries."""
    out = bytearray()
    for topic_id, partition, leader_epoch, stage, ranges, flags, log_start_offset in entries:
        out += _HEAD.pack(topic_id, partition, leader_epoch, stage, flags, log_start_offset, len(ranges))
        for each in ranges:
            out += _RANGE.pack(*each)
    return bytes(out)


def parse_damage(data: bytes) -> list[ReplicaDamage]:
    """Return the field's entries. FrameError for what it cannot be."""
    entries: list[ReplicaDamage] = []
    position = 0
    try:
        while position < len(data):
            topic_id, partition, epoch, stage, flags, log_start_offset, count = _HEAD.unpack_from(data, position)
            position += _HEAD.size
            if count > _MOST_RANGES:
                raise FrameError(f"{count} damaged ranges of one partition, at most {_MOST_RANGES} are possible")
            ranges = tuple(_RANGE.unpack_from(data, position + _RANGE.size * number) for number in range(count))
            position += _RANGE.size * count
            entries.append(ReplicaDamage(topic_id, partition, epoch, stage, ranges, flags, log_start_offset))
    except struct.error as error:
        raise FrameError(f"a field about damaged logs ends at {len(data)} bytes: {error}") from None
    return entries
