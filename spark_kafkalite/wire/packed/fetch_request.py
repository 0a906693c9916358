"""Fetch requests, packed and parsed by hand; see ``packed``.

One flow for all versions. Versions differ in the layout of lengths (flexible from 12), in what names a topic (its id
from 13 on), and in the fixed part of a partition, for which there is one ``struct`` per shape. Where a field is read,
the code states in which versions it exists.

A follower or consumer that keeps up with one partition asks for it record by record and for nothing else. Such a
request is parsed and packed with one ``struct`` (``_ONE``): otherwise it would cost more than the records it brings.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.wire import header
from spark_kafkalite.wire.codec import MAX_REQUEST_ELEMENTS
from spark_kafkalite.wire.packed.fetch_versions import (
    FETCH,
    FETCH_FLEXIBLE,
    FETCH_VERSIONS,
    Topic,
    is_topic_id,
    topic_reader,
    topic_writer,
)
from spark_kafkalite.wire.packed.layout import (
    AT_ONCE,
    COMPACT,
    LEGACY,
    Buffer,
    Layout,
    check_version,
    parsed,
    parsed_in_slices,
    put_tag,
    skip_tags,
    skip_tags_of_request,
    tag_count,
)
from spark_kafkalite.wire.packed.replica_damage import DAMAGE_TAG
from spark_kafkalite.wire.primitives import append_uvarint, bad_tag_size, read_tagged_field, too_many_elements

_REPLICA_STATE: Final = 15

_I: Final = struct.Struct(">i")
_II: Final = struct.Struct(">ii")
_Q: Final = struct.Struct(">q")
_FETCH_HEAD: Final = struct.Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_FETCH_HEAD_15: Final = struct.Struct(">iiib")  # ... without the replica id, which is in a tagged field
_REPLICA: Final = struct.Struct(">iq")  # replica id and its epoch
_FETCH_PARTITION_4: Final = struct.Struct(">iqi")  # partition, fetch offset, max bytes
_FETCH_PARTITION_5: Final = struct.Struct(">iqqi")  # ... with the log start offset before max bytes
_FETCH_PARTITION_9: Final = struct.Struct(">iiqqi")  # ... with the current leader epoch after the partition
_FETCH_PARTITION_12: Final = struct.Struct(">iiqiqi")  # ... with the last fetched epoch after the fetch offset
# From version 15 on, a request of one partition whose lists and strings are empty but for it: the head, the session
# id and epoch, the topic id and its partition between their counts, then, a byte each, the tagged fields of the
# partition and the topic, the forgotten topics, the rack, and how many tagged fields there are.
_ONE: Final = struct.Struct(">iiibiiB16sBiiqiqi5B")
_ONE_AND_ITS_REPLICA: Final = struct.Struct(f"{_ONE.format}BBiqB")  # ... with the tagged field of the replica
_COUNT_OF_ONE: Final = 2
_HIGH_WATERMARK_TAG: Final = 1
_REPLICA_TAG_BYTES: Final = _REPLICA.size + 1


def _fetch_partition_struct(version: int) -> struct.Struct:
    if version >= 12:
        return _FETCH_PARTITION_12
    if version >= 9:
        return _FETCH_PARTITION_9
    return _FETCH_PARTITION_5 if version >= 5 else _FETCH_PARTITION_4


class FetchPartition(NamedTuple):
    """Where to read one partition in a Fetch request, -1 for a field that the version does not have.

    ``high_watermark`` is the follower's, if the request has it: a tagged field, which Apache Kafka has since version 18
    (KIP-1166). Between our brokers it is in earlier versions, too; other receivers skip it.
    """

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = -1


class FetchRequest(NamedTuple):
    """A Fetch request; the session fields' defaults mean a fetch without a session.

    ``replica_epoch`` is the incarnation of the broker ``replica_id``; it exists from version 15 on.
    """

    topics: Sequence[tuple[Topic, Sequence[FetchPartition]]]
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    replica_id: int = -1
    session_id: int = 0
    session_epoch: int = -1
    forgotten_topics: Sequence[tuple[Topic, Sequence[int]]] = ()
    rack_id: str = ""
    cluster_id: str | None = None
    replica_epoch: int = -1
    # What a follower says of its damaged logs; see ``replica_damage``.
    damage: bytes = b""


def parse_fetch(view: Buffer, position: int, version: int) -> FetchRequest:
    """Parse a Fetch request body."""
    if _REPLICA_STATE <= version < FETCH_VERSIONS.stop:
        request = _parse_one(view, position)
        if request is not None:
            return request
    return parsed(_parse_whole, view, position, version, FETCH_VERSIONS, "Fetch request")


def _parse_whole(view: memoryview, position: int, version: int) -> FetchRequest:
    return run_whole(_parse_fetch(view, position, version))


def _parse_one(view: Buffer, position: int) -> FetchRequest | None:
    """Parse a request of one partition; None when it is of another shape."""
    replica_id = replica_epoch = -1
    length = len(view) - position
    if length == _ONE.size:
        (
            max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
            topics, topic, partitions, partition, epoch, offset, last_epoch, log_start, limit, *rest,
        ) = _ONE.unpack_from(view, position)  # fmt: skip
        if rest != [0, 0, 1, 1, 0]:
            return None
    elif length == _ONE_AND_ITS_REPLICA.size:
        (
            max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
            topics, topic, partitions, partition, epoch, offset, last_epoch, log_start, limit,
            *rest, replica_id, replica_epoch, end,
        ) = _ONE_AND_ITS_REPLICA.unpack_from(view, position)  # fmt: skip
        if end or rest != [0, 0, 1, 1, 1, 1, _REPLICA_TAG_BYTES]:
            return None
    else:
        return None
    if topics != _COUNT_OF_ONE or partitions != _COUNT_OF_ONE:
        return None
    asked = FetchPartition(partition, offset, limit, epoch, last_epoch, log_start)
    return FetchRequest(
        [(topic, [asked])],
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        replica_id,
        session_id,
        session_epoch,
        replica_epoch=replica_epoch,
    )


def parse_fetch_in_slices(view: Buffer, position: int, version: int) -> Work[FetchRequest]:
    """Parse a Fetch request body; yields after every ``AT_ONCE`` partitions."""
    return parsed_in_slices(_parse_fetch, view, position, version, FETCH_VERSIONS, "Fetch request")


def _parse_fetch(view: memoryview, position: int, version: int) -> Work[FetchRequest]:
    flexible = version >= FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    read_topic = topic_reader(version, layout)
    fixed = _fetch_partition_struct(version)
    replica_id = replica_epoch = -1
    if version >= _REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD_15.unpack_from(view, position)
        position += _FETCH_HEAD_15.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD.unpack_from(view, position)
        position += _FETCH_HEAD.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _II.unpack_from(view, position)
        position += 8
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    count, position = layout.array_count(view, position, 3, "topics", False)
    room = MAX_REQUEST_ELEMENTS - count
    since = 0
    for _ in range(count):
        topic, position = read_topic(view, position, "topic")
        partition_count, position = layout.array_count(view, position, fixed.size, "partitions", False)
        room -= partition_count
        if room < 0:
            too_many_elements("Fetch request")
        partitions = []
        since += partition_count + 1
        if since > AT_ONCE:
            since = 0
            yield None
        for index in range(partition_count):
            if index & AT_ONCE == AT_ONCE:
                yield None
            values = fixed.unpack_from(view, position)
            position += fixed.size
            if version >= 12:
                partition, epoch, offset, last_epoch, log_start, limit = values
                high_watermark = -1
                if view[position]:
                    high_watermark = _high_watermark(view, position)
                    position, room = skip_tags_of_request(view, position, room, "Fetch request")
                else:
                    position += 1
                partitions.append(
                    FetchPartition(partition, offset, limit, epoch, last_epoch, log_start, high_watermark)
                )
            elif version >= 9:
                partition, epoch, offset, log_start, limit = values
                partitions.append(FetchPartition(partition, offset, limit, epoch, -1, log_start))
            elif version >= 5:
                partition, offset, log_start, limit = values
                partitions.append(FetchPartition(partition, offset, limit, -1, -1, log_start))
            else:
                partitions.append(FetchPartition(*values))
        if flexible:
            if view[position]:
                position, room = skip_tags_of_request(view, position, room, "Fetch request")
            else:
                position += 1
        topics.append((topic, partitions))
    forgotten_topics: Sequence[tuple[Topic, Sequence[int]]] = ()
    if version >= 7:
        forgotten_topics, position = yield from _parse_forgotten(view, position, version, layout, room)
    rack_id = ""
    if version >= 11:
        rack_id, position = layout.string(view, position, "rack_id")
    cluster_id = None
    damage = b""
    if flexible:
        if version >= _REPLICA_STATE:
            cluster_id, replica_id, replica_epoch, damage = _parse_request_tags(view, position, version)
        elif view[position]:
            cluster_id, *_ = _parse_request_tags(view, position, version)
    return FetchRequest(
        topics,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        replica_id,
        session_id,
        session_epoch,
        forgotten_topics,
        rack_id,
        cluster_id,
        replica_epoch,
        damage,
    )


def _high_watermark(view: memoryview, position: int) -> int:
    """Return the high watermark among the tagged fields of a partition, -1 when they have none; its tag is the second
    of all, so that it is one of the first two."""
    count, position = tag_count(view, position)
    for _ in range(min(count, _HIGH_WATERMARK_TAG + 1)):
        tag, position, stop = read_tagged_field(view, position, len(view))
        if tag == _HIGH_WATERMARK_TAG:
            if stop - position != _Q.size:
                bad_tag_size("high_watermark", stop - position, _Q.size)
            high_watermark: int = _Q.unpack_from(view, position)[0]
            return high_watermark
        position = stop
    return -1


def _parse_forgotten(
    view: memoryview, position: int, version: int, layout: Layout, room: int
) -> Work[tuple[Sequence[tuple[Topic, Sequence[int]]], int]]:
    read_topic = topic_reader(version, layout)
    forgotten: list[tuple[Topic, Sequence[int]]] = []
    count, position = layout.array_count(view, position, 3, "forgotten_topics_data", False)
    room -= count
    since = 0
    for _ in range(count):
        topic, position = read_topic(view, position, "forgotten topic")
        partition_count, position = layout.array_count(view, position, 4, "forgotten partitions", False)
        room -= partition_count
        if room < 0:
            too_many_elements("Fetch request")
        since += partition_count + 1
        if since > AT_ONCE:
            since = 0
            yield None
        forgotten.append((topic, list(struct.unpack_from(f">{partition_count}i", view, position))))
        position += 4 * partition_count
        if version >= FETCH_FLEXIBLE:
            position, room = skip_tags_of_request(view, position, room, "Fetch request")
    return tuple(forgotten), position


def _parse_request_tags(view: memoryview, position: int, version: int) -> tuple[str | None, int, int, bytes]:
    """Return the cluster id, the replica id, the replica epoch, and the report of damage."""
    cluster_id, replica_id, replica_epoch, damage = None, -1, -1, b""
    count, position = tag_count(view, position)
    for _ in range(count):
        tag, position, stop = read_tagged_field(view, position, len(view))
        used = stop
        if tag == 0:
            cluster_id, used = COMPACT.nullable_string(view, position, "cluster_id")
        elif tag == 1 and version >= _REPLICA_STATE:
            replica_id, replica_epoch = _REPLICA.unpack_from(view, position)
            used = skip_tags(view, position + _REPLICA.size)
        elif tag == DAMAGE_TAG and version >= _REPLICA_STATE:
            damage = bytes(view[position:stop])
        if used != stop:
            bad_tag_size("replica_state" if tag else "cluster_id", stop - position, used - position)
        position = stop
    return cluster_id, replica_id, replica_epoch, damage


def pack_fetch_request(correlation_id: int, client_id: str | None, version: int, request: FetchRequest) -> bytes:
    """Return a Fetch request with its header."""
    return bytes(header.pack_request_header(FETCH, version, correlation_id, client_id)) + pack_fetch_body(
        version, request
    )


def pack_fetch_body(version: int, request: FetchRequest) -> bytes:
    """Return a Fetch request without a header."""
    check_version("Fetch", version, FETCH_VERSIONS)
    if version >= _REPLICA_STATE and len(request.topics) == 1 and len(request.topics[0][1]) == 1:
        packed = _pack_one(request)
        if packed is not None:
            return packed
    flexible = version >= FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    put_topic = topic_writer(version, layout)
    out = bytearray()
    if version < _REPLICA_STATE:
        out += _I.pack(request.replica_id)
    out += _FETCH_HEAD_15.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= 7:
        out += _II.pack(request.session_id, request.session_epoch)
    layout.put_count(out, len(request.topics))
    for topic, partitions in request.topics:
        put_topic(out, topic)
        layout.put_count(out, len(partitions))
        for partition, offset, limit, epoch, last_epoch, log_start, high_watermark in partitions:
            if version >= 12:
                out += _FETCH_PARTITION_12.pack(partition, epoch, offset, last_epoch, log_start, limit)
                if high_watermark < 0:
                    out.append(0)
                else:
                    out += b"\x01\x01\x08" + _Q.pack(high_watermark)  # one tagged field: tag 1, 8 bytes
            elif version >= 9:
                out += _FETCH_PARTITION_9.pack(partition, epoch, offset, log_start, limit)
            elif version >= 5:
                out += _FETCH_PARTITION_5.pack(partition, offset, log_start, limit)
            else:
                out += _FETCH_PARTITION_4.pack(partition, offset, limit)
        if flexible:
            out.append(0)
    if version >= 7:
        layout.put_count(out, len(request.forgotten_topics))
        for topic, numbers in request.forgotten_topics:
            put_topic(out, topic)
            layout.put_count(out, len(numbers))
            out += struct.pack(f">{len(numbers)}i", *numbers)
            if flexible:
                out.append(0)
    if version >= 11:
        layout.put_string(out, request.rack_id)
    if flexible:
        _put_request_tags(out, request, version)
    return bytes(out)


def _pack_one(request: FetchRequest) -> bytes | None:
    """Pack a request of one partition; None when there is more in it."""
    topic, (asked,) = request.topics[0]
    if request.forgotten_topics or request.rack_id or request.cluster_id is not None or not is_topic_id(topic):
        return None
    partition, offset, limit, epoch, last_epoch, log_start, high_watermark = asked
    if high_watermark >= 0 or request.damage:
        return None
    values = (
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level,
        request.session_id, request.session_epoch,
        _COUNT_OF_ONE, topic, _COUNT_OF_ONE, partition, epoch, offset, last_epoch, log_start, limit, 0, 0, 1, 1,
    )  # fmt: skip
    if request.replica_id == request.replica_epoch == -1:
        return _ONE.pack(*values, 0)
    return _ONE_AND_ITS_REPLICA.pack(*values, 1, 1, _REPLICA_TAG_BYTES, request.replica_id, request.replica_epoch, 0)


def _put_request_tags(out: bytearray, request: FetchRequest, version: int) -> None:
    has_cluster_id = request.cluster_id is not None
    replica = request.replica_id, request.replica_epoch
    has_replica = version >= _REPLICA_STATE and replica != (-1, -1)
    has_damage = version >= _REPLICA_STATE and bool(request.damage)
    out.append(has_cluster_id + has_replica + has_damage)
    if has_cluster_id:
        tag = bytearray()
        COMPACT.put_string(tag, request.cluster_id)
        out.append(0)
        append_uvarint(out, len(tag))
        out += tag
    if has_replica:
        out += b"\x01\x0d" + _REPLICA.pack(*replica) + b"\x00"  # tag 1, 13 bytes, no tagged fields inside
    if has_damage:
        put_tag(out, DAMAGE_TAG, request.damage)
