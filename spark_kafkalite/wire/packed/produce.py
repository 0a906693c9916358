"""Produce, packed and parsed by hand; see ``packed``.

One flow for all versions. Versions differ in the layout of lengths (flexible from 9) and in their fields; where a field
is read, the code states in which versions it exists. Versions 10 and 11 add only tagged fields to version 9: the
present leader of a partition, and its address.

A producer that waits for each record sends one batch at a time. Such a request and its answer have flows of their own,
which touch a tenth as much code: a process that wakes up finds little of its code in the processor's caches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.wire import header
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import MAX_REQUEST_ELEMENTS
from spark_kafkalite.wire.packed.layout import (
    AT_ONCE,
    COMPACT,
    LEGACY,
    Buffer,
    NodeEndpoint,
    Piece,
    Pieces,
    check_version,
    parsed,
    parsed_in_slices,
    put_node_endpoints,
    read_node_endpoints,
    skip_tags,
    skip_tags_of_request,
    tag_count,
)
from spark_kafkalite.wire.primitives import bad_tag_size, read_tagged_field, read_uvarint, too_many_elements

PRODUCE: Final = ApiKey.PRODUCE
PRODUCE_VERSIONS: Final = range(3, 12)
_PRODUCE_FLEXIBLE: Final = 9
_LEADER_HINTS: Final = 10

_I: Final = struct.Struct(">i")
_HI: Final = struct.Struct(">hi")
_II: Final = struct.Struct(">ii")
# Before the name of a request's only topic: no transactional id, acks, timeout, number of topics, the name's length;
# behind it the number of partitions and the partition.
_ONE_HEAD: Final = struct.Struct(">BhiBB")
_ONE_PARTITION: Final = struct.Struct(">Bi")
# The same of an answer: correlation id, no tagged fields, number of topics, the name's length; then the number of
# partitions, the five numbers of a ProducedPartition, no record errors, no text, and no tagged fields of partition and
# topic, the throttle time, no tagged fields.
_ONE_ANSWER_HEAD: Final = struct.Struct(">iBBB")
_ONE_PRODUCED: Final = struct.Struct(">BihqqqBBBBiB")
_COUNT_OF_ONE: Final = 2
# A compact length below it is a byte.
_ONE_BYTE: Final = 128
# Those of partition, topic and request.
_NO_TAGS: Final = bytes(3)
# A partition, the length of its records, no tagged fields.
_LEAST_BEHIND_NAME: Final = _ONE_PARTITION.size + 1 + len(_NO_TAGS)


class ProduceRequest(NamedTuple):
    """A Produce request; the records are views into the frame, None where the producer sent null."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]]


class ProducedPartition(NamedTuple):
    """One partition's outcome in a Produce response.

    ``record_errors`` are (record index, text) pairs. ``current_leader``, (leader id, leader epoch), exists from version
    10 on.
    """

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


class ProduceResponse(NamedTuple):
    """A Produce response. ``node_endpoints``, from version 10 on, are those of the partitions' current leaders."""

    correlation_id: int
    topics: list[tuple[str, list[ProducedPartition]]]
    throttle_time_ms: int
    node_endpoints: Sequence[NodeEndpoint] = ()


# Produce ------------------------------------------------------------------------------------------------------------


def parse_produce(view: Buffer, position: int, version: int) -> ProduceRequest:
    """Parse a Produce request body; the records are writable views where ``view`` is writable."""
    return parsed(_parse_whole, view, position, version, PRODUCE_VERSIONS, "Produce request")


def _parse_whole(view: memoryview, position: int, version: int) -> ProduceRequest:
    if version >= _PRODUCE_FLEXIBLE:
        request = _parse_one(view, position)
        if request is not None:
            return request
    return run_whole(_parse_produce(view, position, version))


def _parse_one(view: memoryview, position: int) -> ProduceRequest | None:
    """Parse a request of one batch; None when it is of another shape, or wrong."""
    last = len(view) - _LEAST_BEHIND_NAME
    if position + _ONE_HEAD.size > last:
        return None
    transactional_id, acks, timeout_ms, topics, name_length = _ONE_HEAD.unpack_from(view, position)
    position += _ONE_HEAD.size
    end = position + name_length - 1
    if transactional_id or topics != _COUNT_OF_ONE or not 0 < name_length < _ONE_BYTE or end > last:
        return None
    partitions, partition = _ONE_PARTITION.unpack_from(view, end)
    length, start = read_uvarint(view, end + _ONE_PARTITION.size)
    stop = start + length - 1
    if partitions != _COUNT_OF_ONE or not length or view[stop:] != _NO_TAGS:
        return None
    return ProduceRequest(None, acks, timeout_ms, [(str(view[position:end], "utf-8"), [(partition, view[start:stop])])])


def parse_produce_in_slices(view: Buffer, position: int, version: int) -> Work[ProduceRequest]:
    """Parse a Produce request body; yields after every ``AT_ONCE`` partitions."""
    return parsed_in_slices(_parse_produce, view, position, version, PRODUCE_VERSIONS, "Produce request")


def _parse_produce(view: memoryview, position: int, version: int) -> Work[ProduceRequest]:
    flexible = version >= _PRODUCE_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    transactional_id, position = layout.nullable_string(view, position, "transactional_id")
    acks, timeout_ms = _HI.unpack_from(view, position)
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]] = []
    count, position = layout.array_count(view, position + 6, 3, "topics", False)
    room = MAX_REQUEST_ELEMENTS - count
    since = 0
    for _ in range(count):
        name, position = layout.string(view, position, "topic")
        partition_count, position = layout.array_count(view, position, 5, "partitions", False)
        room -= partition_count
        if room < 0:
            too_many_elements("Produce request")
        partitions: list[tuple[int, memoryview | None]] = []
        since += partition_count + 1
        if since > AT_ONCE:
            since = 0
            yield None
        for index in range(partition_count):
            if index & AT_ONCE == AT_ONCE:
                yield None
            (partition,) = _I.unpack_from(view, position)
            records, position = layout.records(view, position + 4)
            if flexible:
                if view[position]:
                    position, room = skip_tags_of_request(view, position, room, "Produce request")
                else:
                    position += 1
            partitions.append((partition, records))
        if flexible:
            if view[position]:
                position, room = skip_tags_of_request(view, position, room, "Produce request")
            else:
                position += 1
        topics.append((name, partitions))
    if flexible:
        skip_tags(view, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def pack_produce_request(
    correlation_id: int,
    client_id: str | None,
    version: int,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[str, Sequence[tuple[int, Buffer | None]]]],
    transactional_id: str | None = None,
) -> tuple[list[Piece], int]:
    """Return the pieces of a Produce request and their length together."""
    check_version("Produce", version, PRODUCE_VERSIONS)
    flexible = version >= _PRODUCE_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    pieces = Pieces(header.pack_request_header(PRODUCE, version, correlation_id, client_id))
    out = pieces.out
    layout.put_string(out, transactional_id)
    out += _HI.pack(acks, timeout_ms)
    layout.put_count(out, len(topics))
    for name, partitions in topics:
        layout.put_string(out, name)
        layout.put_count(out, len(partitions))
        for partition, records in partitions:
            out += _I.pack(partition)
            out = pieces.records(records, layout)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return pieces.finish()


# Partition, error code, base offset, log append time, and from version 5 the log start offset.
_PRODUCED_3: Final = struct.Struct(">ihqq")
_PRODUCED_5: Final = struct.Struct(">ihqqq")


def pack_produce_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str, Sequence[ProducedPartition]]],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """Return a Produce response with its header."""
    if version >= _PRODUCE_FLEXIBLE and len(topics) == 1 and not node_endpoints:
        check_version("Produce", version, PRODUCE_VERSIONS)
        ((name, partitions),) = topics
        if len(partitions) == 1:
            packed = _pack_one(correlation_id, name.encode(), partitions[0], throttle_time_ms)
            if packed is not None:
                return packed
    return bytes(
        run_whole(pack_produce_response_in_slices(correlation_id, version, topics, throttle_time_ms, node_endpoints))
    )


def _pack_one(correlation_id: int, name: bytes, produced: ProducedPartition, throttle_time_ms: int) -> bytes | None:
    """Pack the answer to a request of one batch; None when the answer has more than the appended batch's offset."""
    partition, code, base_offset, time_ms, log_start_offset, record_errors, text, leader = produced
    length = len(name) + 1
    if record_errors or text is not None or leader is not None or length >= _ONE_BYTE:
        return None
    head = _ONE_ANSWER_HEAD.pack(correlation_id, 0, _COUNT_OF_ONE, length)
    return b"%b%b%b" % (
        head, name, _ONE_PRODUCED.pack(
            _COUNT_OF_ONE, partition, code, base_offset, time_ms, log_start_offset, 1, 0, 0, 0, throttle_time_ms, 0
        )
    )  # fmt: skip


def pack_produce_response_in_slices(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str, Sequence[ProducedPartition]]],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Work[bytearray]:
    """Return a Produce response with its header."""
    check_version("Produce", version, PRODUCE_VERSIONS)
    flexible = version >= _PRODUCE_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    out = header.pack_response_header(PRODUCE, version, correlation_id)
    layout.put_count(out, len(topics))
    since = 0
    for name, partitions in topics:
        layout.put_string(out, name)
        layout.put_count(out, len(partitions))
        since += len(partitions) + 1
        if since > AT_ONCE:
            since = 0
            yield None
        for number, partition in enumerate(partitions):
            if number & AT_ONCE == AT_ONCE:
                yield None
            if version < 5:
                out += _PRODUCED_3.pack(*partition[:4])
                continue
            out += _PRODUCED_5.pack(*partition[:5])
            if version >= 8:
                record_errors = partition.record_errors
                layout.put_count(out, len(record_errors))
                for index, text in record_errors:
                    out += _I.pack(index)
                    layout.put_string(out, text)
                    if flexible:
                        out.append(0)
                layout.put_string(out, partition.error_message)
                if flexible:
                    leader = partition.current_leader if version >= _LEADER_HINTS else None
                    if leader is None:
                        out.append(0)
                    else:
                        out += b"\x01\x00\x09" + _II.pack(*leader) + b"\x00"  # one field: tag 0, 9 bytes
        if flexible:
            out.append(0)
    out += _I.pack(throttle_time_ms)
    if flexible:
        if version >= _LEADER_HINTS and node_endpoints:
            put_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    return out


def parse_produce_response(view: Buffer, version: int) -> ProduceResponse:
    """Parse a whole Produce response frame."""
    return parsed(_parse_produce_response, view, 0, version, PRODUCE_VERSIONS, "Produce response")


def _parse_produce_response(view: memoryview, position: int, version: int) -> ProduceResponse:
    flexible = version >= _PRODUCE_FLEXIBLE
    layout = COMPACT if flexible else LEGACY
    fixed = _PRODUCED_3 if version < 5 else _PRODUCED_5
    correlation_id, position = header.read_response_header(view, PRODUCE, version)
    topics: list[tuple[str, list[ProducedPartition]]] = []
    count, position = layout.array_count(view, position, 3, "topics", False)
    for _ in range(count):
        name, position = layout.string(view, position, "topic")
        partition_count, position = layout.array_count(view, position, fixed.size, "partitions", False)
        partitions = []
        for _ in range(partition_count):
            partition, code, base_offset, time, *log_start = fixed.unpack_from(view, position)
            position += fixed.size
            record_errors: list[tuple[int, str | None]] = []
            error_message = current_leader = None
            if version >= 8:
                error_count, position = layout.array_count(view, position, 5, "record_errors", False)
                for _ in range(error_count):
                    (index,) = _I.unpack_from(view, position)
                    text, position = layout.nullable_string(view, position + 4, "record error")
                    if flexible:
                        position = skip_tags(view, position)
                    record_errors.append((index, text))
                error_message, position = layout.nullable_string(view, position, "error_message")
                if version >= _LEADER_HINTS:
                    current_leader, position = _parse_current_leader(view, position)
                elif flexible:
                    position = skip_tags(view, position)
            log_start_offset = log_start[0] if log_start else -1
            partitions.append(
                ProducedPartition(
                    partition,
                    code,
                    base_offset,
                    time,
                    log_start_offset,
                    tuple(record_errors),
                    error_message,
                    current_leader,
                )
            )
        if flexible:
            position = skip_tags(view, position)
        topics.append((name, partitions))
    (throttle_time_ms,) = _I.unpack_from(view, position)
    node_endpoints: Sequence[NodeEndpoint] = ()
    if version >= _LEADER_HINTS:
        node_endpoints = read_node_endpoints(view, position + 4)
    elif flexible:
        skip_tags(view, position + 4)
    return ProduceResponse(correlation_id, topics, throttle_time_ms, node_endpoints)


def _parse_current_leader(view: memoryview, position: int) -> tuple[tuple[int, int] | None, int]:
    current_leader = None
    count, position = tag_count(view, position)
    for _ in range(count):
        tag, position, stop = read_tagged_field(view, position, len(view))
        if tag == 0:
            current_leader = _II.unpack_from(view, position)
            used = skip_tags(view, position + _II.size)
            if used != stop:
                bad_tag_size("current_leader", stop - position, used - position)
        position = stop
    return current_leader, position
