"""Fetch, packed and parsed by hand; see ``packed``.

One flow for all versions: what differs is the layout of lengths (flexible from 12), what names a topic (its id from 13
on), the fixed part of a partition, for which there is one ``struct`` per shape, and which fields exist, given where
they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.wire import header
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import MAX_REQUEST_ELEMENTS
from spark_kafkalite.wire.packed.layout import (
    AT_ONCE,
    COMPACT,
    LEGACY,
    Buffer,
    Layout,
    NodeEndpoint,
    Piece,
    Pieces,
    Records,
    check_version,
    parsed,
    parsed_in_slices,
    put_node_endpoints,
    read_node_endpoints,
    skip_tags,
    skip_tags_of_request,
    tag_count,
)
from spark_kafkalite.wire.primitives import append_uvarint, bad_tag_size, read_tagged_field, too_many_elements

FETCH: Final = ApiKey.FETCH
FETCH_VERSIONS: Final = range(4, 18)
_FETCH_FLEXIBLE: Final = 12
# From here on topics are named by their ids.
FETCH_BY_ID: Final = 13
_REPLICA_STATE: Final = 15
_ENDPOINTS: Final = 16

# What names a topic: its name, or its id of 16 bytes from version 13 on.
Topic = str | bytes

_I: Final = struct.Struct(">i")
_HI: Final = struct.Struct(">hi")
_II: Final = struct.Struct(">ii")
_IQ: Final = struct.Struct(">iq")
_QQ: Final = struct.Struct(">qq")
_ID_BYTES: Final = 16


class FetchPartition(NamedTuple):
    """Where to read one partition in a Fetch request, -1 for what the version does not say."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


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


class FetchedPartition(NamedTuple):
    """One partition in a Fetch response.

    ``records`` is a view when parsed; when packed it may be a slice. ``aborted_transactions`` are (producer id, first
    offset) pairs, None for null. ``diverging_epoch`` is (epoch, end offset), ``current_leader`` (leader id, leader
    epoch); both exist from version 12 on.
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Records | None = b""
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


class FetchResponse(NamedTuple):
    """A Fetch response. ``node_endpoints``, from version 16 on, are those of the partitions' current leaders."""

    correlation_id: int
    topics: list[tuple[Topic, list[FetchedPartition]]]
    throttle_time_ms: int
    error_code: int
    session_id: int
    node_endpoints: Sequence[NodeEndpoint] = ()


# Fetch --------------------------------------------------------------------------------------------------------------

_FETCH_HEAD: Final = struct.Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_FETCH_HEAD_15: Final = struct.Struct(">iiib")  # ... without the replica id, which is in a tagged field
_REPLICA: Final = struct.Struct(">iq")  # replica id and its epoch
_FETCH_PARTITION_4: Final = struct.Struct(">iqi")  # partition, fetch offset, max bytes
_FETCH_PARTITION_5: Final = struct.Struct(">iqqi")  # ... with the log start offset before max bytes
_FETCH_PARTITION_9: Final = struct.Struct(">iiqqi")  # ... with the current leader epoch after the partition
_FETCH_PARTITION_12: Final = struct.Struct(">iiqiqi")  # ... with the last fetched epoch after the fetch offset


def _fetch_partition_struct(version: int) -> struct.Struct:
    if version >= 12:
        return _FETCH_PARTITION_12
    if version >= 9:
        return _FETCH_PARTITION_9
    return _FETCH_PARTITION_5 if version >= 5 else _FETCH_PARTITION_4


def _read_topic_id(view: memoryview, position: int, field: str) -> tuple[bytes, int]:
    # One that is cut off is found out by whatever comes behind it: a count, always.
    end = position + _ID_BYTES
    return bytes(view[position:end]), end


def _put_topic_id(out: bytearray, topic_id: Topic) -> None:
    if type(topic_id) is not bytes or len(topic_id) != _ID_BYTES:
        raise ValueError(
            f"a topic's id has {_ID_BYTES} bytes, and from Fetch {FETCH_BY_ID} on it is needed: {topic_id!r}"
        )
    out += topic_id


def _topic_reader(version: int, layout: Layout) -> Callable[[memoryview, int, str], tuple[Topic, int]]:
    return _read_topic_id if version >= FETCH_BY_ID else layout.string


def _topic_writer(version: int, layout: Layout) -> Callable[[bytearray, Any], None]:
    return _put_topic_id if version >= FETCH_BY_ID else layout.put_string


def parse_fetch(view: Buffer, position: int, version: int) -> FetchRequest:
    """Parse a Fetch request body."""
    return parsed(_parse_whole, view, position, version, FETCH_VERSIONS, "Fetch request")


def _parse_whole(view: memoryview, position: int, version: int) -> FetchRequest:
    return run_whole(_parse_fetch(view, position, version))


def parse_fetch_in_slices(view: Buffer, position: int, version: int) -> Work[FetchRequest]:
    """Parse a Fetch request body; yields after every ``AT_ONCE`` partitions."""
    return parsed_in_slices(_parse_fetch, view, position, version, FETCH_VERSIONS, "Fetch request")


def _parse_fetch(view: memoryview, position: int, version: int) -> Work[FetchRequest]:
    flexible = version >= _FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    read_topic = _topic_reader(version, layout)
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
                partitions.append(FetchPartition(partition, offset, limit, epoch, last_epoch, log_start))
                if view[position]:
                    position, room = skip_tags_of_request(view, position, room, "Fetch request")
                else:
                    position += 1
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
    if flexible:
        if version >= _REPLICA_STATE:
            cluster_id, replica_id, replica_epoch = _parse_request_tags(view, position, version)
        elif view[position]:
            cluster_id, _, _ = _parse_request_tags(view, position, version)
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
    )


def _parse_forgotten(
    view: memoryview, position: int, version: int, layout: Layout, room: int
) -> Work[tuple[Sequence[tuple[Topic, Sequence[int]]], int]]:
    read_topic = _topic_reader(version, layout)
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
        if version >= _FETCH_FLEXIBLE:
            position, room = skip_tags_of_request(view, position, room, "Fetch request")
    return tuple(forgotten), position


def _parse_request_tags(view: memoryview, position: int, version: int) -> tuple[str | None, int, int]:
    """Return the cluster id, the replica id and the replica epoch."""
    cluster_id, replica_id, replica_epoch = None, -1, -1
    count, position = tag_count(view, position)
    for _ in range(count):
        tag, position, stop = read_tagged_field(view, position, len(view))
        used = stop
        if tag == 0:
            cluster_id, used = COMPACT.nullable_string(view, position, "cluster_id")
        elif tag == 1 and version >= _REPLICA_STATE:
            replica_id, replica_epoch = _REPLICA.unpack_from(view, position)
            used = skip_tags(view, position + _REPLICA.size)
        if used != stop:
            bad_tag_size("replica_state" if tag else "cluster_id", stop - position, used - position)
        position = stop
    return cluster_id, replica_id, replica_epoch


def pack_fetch_request(correlation_id: int, client_id: str | None, version: int, request: FetchRequest) -> bytes:
    """Return a Fetch request with its header."""
    return bytes(header.pack_request_header(FETCH, version, correlation_id, client_id)) + pack_fetch_body(
        version, request
    )


def pack_fetch_body(version: int, request: FetchRequest) -> bytes:
    """Return a Fetch request without a header."""
    check_version("Fetch", version, FETCH_VERSIONS)
    flexible = version >= _FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    put_topic = _topic_writer(version, layout)
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
        for partition, offset, limit, epoch, last_epoch, log_start in partitions:
            if version >= 12:
                out += _FETCH_PARTITION_12.pack(partition, epoch, offset, last_epoch, log_start, limit)
                out.append(0)
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


def _put_request_tags(out: bytearray, request: FetchRequest, version: int) -> None:
    has_cluster_id = request.cluster_id is not None
    replica = request.replica_id, request.replica_epoch
    has_replica = version >= _REPLICA_STATE and replica != (-1, -1)
    out.append(has_cluster_id + has_replica)
    if has_cluster_id:
        tag = bytearray()
        COMPACT.put_string(tag, request.cluster_id)
        out.append(0)
        append_uvarint(out, len(tag))
        out += tag
    if has_replica:
        out += b"\x01\x0d" + _REPLICA.pack(*replica) + b"\x00"  # tag 1, 13 bytes, no tagged fields inside


_FETCHED_4: Final = struct.Struct(">ihqq")  # partition, error code, high watermark, last stable offset
_FETCHED_5: Final = struct.Struct(">ihqqq")  # ... and the log start offset


def pack_fetch_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]],
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> tuple[list[Piece], int]:
    """Return the pieces of a Fetch response, record buffers and slices among them, and their length together."""
    return run_whole(
        pack_fetch_response_in_slices(
            correlation_id, version, topics, throttle_time_ms, error_code, session_id, node_endpoints
        )
    )


def pack_fetch_response_in_slices(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]],
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Work[tuple[list[Piece], int]]:
    """As :func:`pack_fetch_response`, in slices."""
    check_version("Fetch", version, FETCH_VERSIONS)
    flexible = version >= _FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    put_topic = _topic_writer(version, layout)
    pieces = Pieces(header.pack_response_header(FETCH, version, correlation_id))
    out = pieces.out
    out += _I.pack(throttle_time_ms)
    if version >= 7:
        out += _HI.pack(error_code, session_id)
    layout.put_count(out, len(topics))
    since = 0
    for topic, partitions in topics:
        put_topic(out, topic)
        layout.put_count(out, len(partitions))
        since += len(partitions) + 1
        if since > AT_ONCE:
            since = 0
            yield None
        for number, partition in enumerate(partitions):
            if number & AT_ONCE == AT_ONCE:
                yield None
            out += _FETCHED_5.pack(*partition[:5]) if version >= 5 else _FETCHED_4.pack(*partition[:4])
            aborted = partition.aborted_transactions
            if aborted is None:
                layout.put_count(out, -1)
            else:
                layout.put_count(out, len(aborted))
                for producer_id, first_offset in aborted:
                    out += _QQ.pack(producer_id, first_offset)
                    if flexible:
                        out.append(0)
            if version >= 11:
                out += _I.pack(partition.preferred_read_replica)
            out = pieces.records(partition.records, layout)
            if flexible:
                _put_fetched_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        if version >= _ENDPOINTS and node_endpoints:
            put_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    return pieces.finish()


def _put_fetched_tags(out: bytearray, partition: FetchedPartition) -> None:
    diverging, leader = partition.diverging_epoch, partition.current_leader
    out.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        out += b"\x00\x0d" + _IQ.pack(*diverging) + b"\x00"  # tag 0, 13 bytes, no tagged fields inside
    if leader is not None:
        out += b"\x01\x09" + _II.pack(*leader) + b"\x00"  # tag 1, 9 bytes


def parse_fetch_response(view: Buffer, version: int) -> FetchResponse:
    """Parse a whole Fetch response frame; the records are views into it."""
    return parsed(_parse_fetch_response, view, 0, version, FETCH_VERSIONS, "Fetch response")


def _parse_fetch_response(view: memoryview, position: int, version: int) -> FetchResponse:
    correlation_id, position = header.read_response_header(view, FETCH, version)
    return _parse_answer(view, position, version)._replace(correlation_id=correlation_id)


def parse_fetch_answer(view: Buffer, version: int) -> FetchResponse:
    """Parse a Fetch response without its header; the records are views into it. Its correlation id is -1."""
    return parsed(_parse_answer, view, 0, version, FETCH_VERSIONS, "Fetch response")


def _parse_answer(view: memoryview, position: int, version: int) -> FetchResponse:
    flexible = version >= _FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    read_topic = _topic_reader(version, layout)
    fixed = _FETCHED_5 if version >= 5 else _FETCHED_4
    aborted_size = _QQ.size + flexible
    (throttle_time_ms,) = _I.unpack_from(view, position)
    position += 4
    error_code = session_id = 0
    if version >= 7:
        error_code, session_id = _HI.unpack_from(view, position)
        position += 6
    topics: list[tuple[Topic, list[FetchedPartition]]] = []
    count, position = layout.array_count(view, position, 3, "responses", False)
    for _ in range(count):
        topic, position = read_topic(view, position, "topic")
        partition_count, position = layout.array_count(view, position, fixed.size, "partitions", False)
        partitions = []
        for _ in range(partition_count):
            partition, code, high_watermark, last_stable, *log_start = fixed.unpack_from(view, position)
            position += fixed.size
            aborted: list[tuple[int, int]] | None = None
            aborted_count, position = layout.array_count(view, position, aborted_size, "aborted_transactions", True)
            if aborted_count >= 0:
                aborted = []
                for _ in range(aborted_count):
                    aborted.append(_QQ.unpack_from(view, position))
                    position += _QQ.size
                    if flexible:
                        position = skip_tags(view, position)
            preferred_read_replica = -1
            if version >= 11:
                (preferred_read_replica,) = _I.unpack_from(view, position)
                position += 4
            records, position = layout.records(view, position)
            diverging_epoch = current_leader = None
            if flexible:
                if view[position]:
                    diverging_epoch, current_leader, position = _parse_fetched_tags(view, position)
                else:
                    position += 1
            partitions.append(
                FetchedPartition(
                    partition,
                    code,
                    high_watermark,
                    last_stable,
                    log_start[0] if log_start else -1,
                    records,
                    aborted,
                    preferred_read_replica,
                    diverging_epoch,
                    current_leader,
                )
            )
        if flexible:
            position = skip_tags(view, position)
        topics.append((topic, partitions))
    node_endpoints: Sequence[NodeEndpoint] = ()
    if version >= _ENDPOINTS:
        node_endpoints = read_node_endpoints(view, position)
    elif flexible:
        skip_tags(view, position)
    return FetchResponse(-1, topics, throttle_time_ms, error_code, session_id, node_endpoints)


def _parse_fetched_tags(view: memoryview, position: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    diverging_epoch = current_leader = None
    count, position = tag_count(view, position)
    for _ in range(count):
        tag, position, stop = read_tagged_field(view, position, len(view))
        if tag <= 1:
            fixed = _II if tag else _IQ
            pair = fixed.unpack_from(view, position)
            used = skip_tags(view, position + fixed.size)
            if used != stop:
                bad_tag_size("current_leader" if tag else "diverging_epoch", stop - position, used - position)
            if tag:
                current_leader = pair
            else:
                diverging_epoch = pair
        position = stop
    return diverging_epoch, current_leader, position
