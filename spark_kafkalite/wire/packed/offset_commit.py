"""OffsetCommit by hand: requests parsed, responses packed; a coordinator of many consumers sees many. See ``packed``.

The same values and bytes as ``codec`` (a test holds both against each other), without a message object for each
partition. One flow for all versions: what differs is the layout of lengths (flexible from 8) and which fields exist.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_kafkalite.model import NO_LEADER_EPOCH
from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import MAX_REQUEST_ELEMENTS
from spark_kafkalite.wire.packed.layout import (
    AT_ONCE,
    COMPACT,
    LEGACY,
    Buffer,
    check_version,
    parsed,
    parsed_in_slices,
    skip_tags,
    skip_tags_of_request,
)
from spark_kafkalite.wire.primitives import too_many_elements

OFFSET_COMMIT: Final = ApiKey.OFFSET_COMMIT
# Beyond, topics are named by their ids.
OFFSET_COMMIT_VERSIONS: Final = range(2, 10)
NO_RETENTION: Final = -1

_FIRST_WITHOUT_RETENTION: Final = 5
_FIRST_WITH_LEADER_EPOCH: Final = 6
_FIRST_WITH_INSTANCE_ID: Final = 7
_FLEXIBLE: Final = 8
_FIRST_WITH_THROTTLE: Final = 3
_NAME: Final = "OffsetCommit request"

_I: Final = struct.Struct(">i")
_Q: Final = struct.Struct(">q")
# Partition and offset, from version 6 the leader epoch.
_OFFSET: Final = struct.Struct(">iq")
_OFFSET_WITH_EPOCH: Final = struct.Struct(">iqi")
# Partition, offset, leader epoch, and the lengths of the metadata and the tags: the whole of a partition where neither
# is there, as in nearly all commits. None takes less.
_BARE_FLEXIBLE: Final = struct.Struct(">iqiBB")
_NULL_OR_EMPTY: Final = (None, "")
# Fewer are read sooner one by one.
_FEWEST_BARE: Final = 3
_LENGTH_AT: Final = 16
_TAGS_AT: Final = 17
# Correlation id and throttle time; from version 8 the header has tags.
_HEAD: Final = struct.Struct(">ii")
_HEAD_FLEXIBLE: Final = struct.Struct(">ixi")
_OUTCOME: Final = struct.Struct(">ih")
_OUTCOME_FLEXIBLE: Final = struct.Struct(">ihx")


# An offset to commit: partition, offset, leader epoch, and metadata, which is None where the client sent null. They
# come by the hundred thousand a second, and a class of their own costs as much as reading one.
CommittedPartition = tuple[int, int, int, str | None]


class OffsetCommit(NamedTuple):
    """An OffsetCommit request; ``retention_time_ms`` is -1 unless an old client names one."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[tuple[str, list[CommittedPartition]]]


def parse_offset_commit(view: Buffer, position: int, version: int) -> OffsetCommit:
    """Parse an OffsetCommit request body."""
    return parsed(_parse_whole, view, position, version, OFFSET_COMMIT_VERSIONS, _NAME)


def _parse_whole(view: memoryview, position: int, version: int) -> OffsetCommit:
    return run_whole(_parse(view, position, version))


def parse_offset_commit_in_slices(view: Buffer, position: int, version: int) -> Work[OffsetCommit]:
    """Parse an OffsetCommit request body; yields after every ``AT_ONCE`` partitions."""
    return parsed_in_slices(_parse, view, position, version, OFFSET_COMMIT_VERSIONS, _NAME)


def _parse(view: memoryview, position: int, version: int) -> Work[OffsetCommit]:
    flexible = version >= _FLEXIBLE
    with_epoch = version >= _FIRST_WITH_LEADER_EPOCH
    layout = COMPACT if flexible else LEGACY
    nullable_string = layout.nullable_string
    group_id, position = layout.string(view, position, "group_id")
    (generation_id,) = _I.unpack_from(view, position)
    member_id, position = layout.string(view, position + 4, "member_id")
    group_instance_id = None
    if version >= _FIRST_WITH_INSTANCE_ID:
        group_instance_id, position = nullable_string(view, position, "group_instance_id")
    retention_time_ms = NO_RETENTION
    if version < _FIRST_WITHOUT_RETENTION:
        (retention_time_ms,) = _Q.unpack_from(view, position)
        position += 8
    topics: list[tuple[str, list[CommittedPartition]]] = []
    count, position = layout.array_count(view, position, 3, "topics", False)
    room = MAX_REQUEST_ELEMENTS - count
    since = 0
    for _ in range(count):
        name, position = layout.string(view, position, "topic")
        partition_count, position = layout.array_count(view, position, 13, "partitions", False)
        room -= partition_count
        if room < 0:
            too_many_elements(_NAME)
        partitions: list[CommittedPartition] = []
        since += partition_count + 1
        if since > AT_ONCE:
            since = 0
            yield None
        if flexible and _FEWEST_BARE <= partition_count <= AT_ONCE:
            partitions = _bare(view, position, partition_count)
            position += len(partitions) * _BARE_FLEXIBLE.size
        for index in range(len(partitions), partition_count):
            if index & AT_ONCE == AT_ONCE:
                yield None
            if flexible:
                partition, offset, leader_epoch, length, tags = _BARE_FLEXIBLE.unpack_from(view, position)
                if length < 2 and not tags:
                    position += _BARE_FLEXIBLE.size
                    partitions.append((partition, offset, leader_epoch, _NULL_OR_EMPTY[length]))
                    continue
            if with_epoch:
                partition, offset, leader_epoch = _OFFSET_WITH_EPOCH.unpack_from(view, position)
                position += 16
            else:
                partition, offset = _OFFSET.unpack_from(view, position)
                leader_epoch = NO_LEADER_EPOCH
                position += 12
            metadata, position = nullable_string(view, position, "metadata")
            if flexible:
                if view[position]:
                    position, room = skip_tags_of_request(view, position, room, _NAME)
                else:
                    position += 1
            partitions.append((partition, offset, leader_epoch, metadata))
        if flexible:
            if view[position]:
                position, room = skip_tags_of_request(view, position, room, _NAME)
            else:
                position += 1
        topics.append((name, partitions))
    if flexible:
        skip_tags(view, position)
    return OffsetCommit(group_id, generation_id, member_id, group_instance_id, retention_time_ms, topics)


def _bare(view: memoryview, position: int, count: int) -> list[CommittedPartition]:
    """Return so many partitions if none of them has metadata or tags, else none."""
    rows = view[position : position + count * _BARE_FLEXIBLE.size]
    # If the first has neither, the second begins behind it, and so on.
    lengths, tags = bytes(rows[_LENGTH_AT :: _BARE_FLEXIBLE.size]), bytes(rows[_TAGS_AT :: _BARE_FLEXIBLE.size])
    if len(tags) < count or lengths.strip(b"\0\1") or tags.strip(b"\0"):
        return []
    return [
        (partition, offset, leader_epoch, _NULL_OR_EMPTY[length])
        for partition, offset, leader_epoch, length, _ in _BARE_FLEXIBLE.iter_unpack(rows)
    ]


def pack_offset_commit_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    throttle_time_ms: int = 0,
) -> bytes:
    """Return an OffsetCommit response with its header; ``topics`` have (partition, error code) pairs."""
    return bytes(run_whole(pack_offset_commit_response_in_slices(correlation_id, version, topics, throttle_time_ms)))


def pack_offset_commit_response_in_slices(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    throttle_time_ms: int = 0,
) -> Work[bytearray]:
    """As :func:`pack_offset_commit_response`, in slices."""
    if version not in OFFSET_COMMIT_VERSIONS:
        check_version("OffsetCommit", version, OFFSET_COMMIT_VERSIONS)
    flexible = version >= _FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    pack = (_OUTCOME_FLEXIBLE if flexible else _OUTCOME).pack
    if flexible:
        out = bytearray(_HEAD_FLEXIBLE.pack(correlation_id, throttle_time_ms))
    elif version >= _FIRST_WITH_THROTTLE:
        out = bytearray(_HEAD.pack(correlation_id, throttle_time_ms))
    else:
        out = bytearray(_I.pack(correlation_id))
    layout.put_count(out, len(topics))
    since = 0
    for name, partitions in topics:
        layout.put_string(out, name)
        layout.put_count(out, len(partitions))
        since += len(partitions) + 1
        if since > AT_ONCE:
            since = 0
            yield None
        for index, (partition, error_code) in enumerate(partitions):
            if index & AT_ONCE == AT_ONCE:
                yield None
            out += pack(partition, error_code)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return out
