"""Fetch responses, packed and parsed by hand; see ``packed`` and ``fetch_request``.

As in requests, an answer with one partition and few records is packed and parsed with one ``struct``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.wire import header
from spark_kafkalite.wire.packed.fetch_versions import (
    FETCH,
    FETCH_BY_ID,
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
    NodeEndpoint,
    Piece,
    Pieces,
    Records,
    check_version,
    few_records,
    parsed,
    put_node_endpoints,
    put_tag,
    read_node_endpoints,
    read_tag,
    skip_tags,
    tag_count,
)
from spark_kafkalite.wire.packed.replica_damage import DAMAGE_TAG
from spark_kafkalite.wire.primitives import bad_tag_size, read_tagged_field

_ENDPOINTS: Final = 16

_I: Final = struct.Struct(">i")
_HI: Final = struct.Struct(">hi")
_II: Final = struct.Struct(">ii")
_IQ: Final = struct.Struct(">iq")
_QQ: Final = struct.Struct(">qq")
_FETCHED_4: Final = struct.Struct(">ihqq")  # partition, error code, high watermark, last stable offset
_FETCHED_5: Final = struct.Struct(">ihqqq")  # ... and the log start offset
# ... and how many aborted transactions, of none or null, and the preferred replica.
_FETCHED_12: Final = struct.Struct(">ihqqqBi")
# From version 13 on, an answer of one partition up to the length of its records: throttle time, error code, session id,
# the topic's id and its partition between their counts, how many aborted transactions, the preferred replica. Behind
# the records there are no tagged fields: of the partition, the topic and the answer.
_ONE: Final = struct.Struct(">ihiB16sBihqqqBi")
# Behind the header of a response.
_ONE_WITH_HEADER: Final = struct.Struct(f">iB{_ONE.format[1:]}")
_COUNT_OF_ONE: Final = 2
_NO_TAGS: Final = bytes(3)


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
    # What a leader says to a follower of damaged logs; see ``replica_damage``.
    damage: bytes = b""


def pack_fetch_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]],
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
    damage: bytes = b"",
) -> tuple[list[Piece], int]:
    """Return the pieces of a Fetch response, record buffers and slices among them, and their length together."""
    if version >= FETCH_BY_ID and len(topics) == 1 and len(topics[0][1]) == 1 and not (node_endpoints or damage):
        check_version("Fetch", version, FETCH_VERSIONS)
        topic, (partition,) = topics[0]
        packed = _pack_one(correlation_id, topic, partition, throttle_time_ms, error_code, session_id)
        if packed is not None:
            return [packed], len(packed)
    return run_whole(
        pack_fetch_response_in_slices(
            correlation_id, version, topics, throttle_time_ms, error_code, session_id, node_endpoints, damage
        )
    )


def _pack_one(
    correlation_id: int, topic: Topic, fetched: FetchedPartition, throttle_time_ms: int, error_code: int,
    session_id: int,
) -> bytearray | None:  # fmt: skip
    """Pack an answer of one partition with few records; None when there is more in it."""
    partition, code, high_watermark, last_stable, log_start, records, aborted, preferred, diverging, leader = fetched
    if records is None or aborted or diverging is not None or leader is not None or not is_topic_id(topic):
        return None
    few = few_records(records)
    if few is None:
        return None
    out = bytearray(
        _ONE_WITH_HEADER.pack(
            correlation_id, 0, throttle_time_ms, error_code, session_id, _COUNT_OF_ONE, topic, _COUNT_OF_ONE, partition,
            code, high_watermark, last_stable, log_start, 0 if aborted is None else 1, preferred,
        )
    )  # fmt: skip
    COMPACT.put_records_length(out, len(few))
    out += few
    out += _NO_TAGS
    return out


def pack_fetch_response_in_slices(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]],
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
    damage: bytes = b"",
) -> Work[tuple[list[Piece], int]]:
    """As :func:`pack_fetch_response`, in slices."""
    check_version("Fetch", version, FETCH_VERSIONS)
    flexible = version >= FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    put_topic = topic_writer(version, layout)
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
            aborted = partition.aborted_transactions
            if flexible and not aborted:
                count = 0 if aborted is None else 1
                out += _FETCHED_12.pack(*partition[:5], count, partition.preferred_read_replica)
            else:
                _put_fetched(out, version, layout, partition)
            out = pieces.records(partition.records, layout)
            if flexible:
                _put_fetched_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        if damage:
            tags = bytearray(1)
            if version >= _ENDPOINTS and node_endpoints:
                tags.clear()
                put_node_endpoints(tags, node_endpoints)
            tags[0] += 1
            put_tag(tags, DAMAGE_TAG, damage)
            out += tags
        elif version >= _ENDPOINTS and node_endpoints:
            put_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    return pieces.finish()


def _put_fetched(out: bytearray, version: int, layout: Layout, partition: FetchedPartition) -> None:
    """Pack what comes before the records."""
    out += _FETCHED_5.pack(*partition[:5]) if version >= 5 else _FETCHED_4.pack(*partition[:4])
    aborted = partition.aborted_transactions
    if aborted is None:
        layout.put_count(out, -1)
    else:
        layout.put_count(out, len(aborted))
        for producer_id, first_offset in aborted:
            out += _QQ.pack(producer_id, first_offset)
            if version >= FETCH_FLEXIBLE:
                out.append(0)
    if version >= 11:
        out += _I.pack(partition.preferred_read_replica)


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


def _parse_one(view: memoryview, position: int) -> FetchResponse | None:
    """Parse an answer of one partition, without its header; None when it is of another shape."""
    if len(view) - position <= _ONE.size:
        return None
    (
        throttle_time_ms, error_code, session_id, topics, topic, partitions,
        partition, code, high_watermark, last_stable, log_start, aborted, preferred,
    ) = _ONE.unpack_from(view, position)  # fmt: skip
    if topics != _COUNT_OF_ONE or partitions != _COUNT_OF_ONE or aborted > 1:
        return None
    records, position = COMPACT.records(view, position + _ONE.size)
    if view[position:] != _NO_TAGS:
        return None
    fetched = FetchedPartition(
        partition, code, high_watermark, last_stable, log_start, records, [] if aborted else None, preferred
    )
    return FetchResponse(-1, [(topic, [fetched])], throttle_time_ms, error_code, session_id)


def _parse_answer(view: memoryview, position: int, version: int) -> FetchResponse:
    if version >= FETCH_BY_ID:
        answer = _parse_one(view, position)
        if answer is not None:
            return answer
    flexible = version >= FETCH_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    read_topic = topic_reader(version, layout)
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
    damage = b""
    if version >= _ENDPOINTS:
        node_endpoints = read_node_endpoints(view, position)
        if view[position]:
            damage = read_tag(view, position, DAMAGE_TAG)
    elif flexible:
        skip_tags(view, position)
    return FetchResponse(-1, topics, throttle_time_ms, error_code, session_id, node_endpoints, damage)


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
