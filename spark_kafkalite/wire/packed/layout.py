"""What the hand-written codecs share: the two ways to write lengths, tagged fields, and pieces.

A version is either legacy (int16 and int32 lengths, -1 for null) or flexible (compact lengths, tagged fields after
every struct); a ``Layout`` is the set of functions for one of them, chosen once per message. Counts are compared with
the bytes left, at the least size an element can have, before a list is made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from spark_kafkalite.errors import FrameError, UnsupportedVersion
from spark_kafkalite.slices import Work, freed
from spark_kafkalite.wire.primitives import (
    MAX_STRING_BYTES,
    MAX_TAGGED_FIELDS,
    append_string_length,
    append_uvarint,
    bad_count,
    bad_length,
    bad_tag_size,
    read_tagged_field,
    read_uvarint,
    skip_tagged_fields,
    too_many_elements,
)

Buffer = bytes | bytearray | memoryview
Result = TypeVar("Result")

# Records up to this size are copied between their neighbours: cheaper than one more entry for sendmsg.
_COPIED_BUFFER_BYTES: Final = 512
# Of a file: cheaper to read than to send as a range.
_COPIED_SLICE_BYTES: Final = 4096

_LEAST_ENDPOINT_BYTES: Final = 11

_H: Final = struct.Struct(">h")
_I: Final = struct.Struct(">i")


class RecordSlice(Protocol):
    """Records that are not in memory, for the connection to send from where they are."""

    @property
    def length(self) -> int:
        """How many bytes it has."""

    def read(self) -> bytes | None:
        """Return them; None when they are not there any more, which sending finds out."""


Records = Buffer | RecordSlice
Piece = Buffer | RecordSlice


@dataclass(frozen=True, slots=True)
class Layout:
    """How one family of versions writes strings, counts and records.

    Readers take a buffer and a position and return a value and the position after it. ``array_count(view, position,
    least element size, field, nullable)`` gives -1 for a null array; ``records`` gives a view or None. A length or
    count of -1 is written as null.
    """

    string: Callable[[memoryview, int, str], tuple[str, int]]
    nullable_string: Callable[[memoryview, int, str], tuple[str | None, int]]
    array_count: Callable[[memoryview, int, int, str, bool], tuple[int, int]]
    records: Callable[[memoryview, int], tuple[memoryview | None, int]]
    put_string: Callable[[bytearray, str | None], None]
    put_count: Callable[[bytearray, int], None]
    put_records_length: Callable[[bytearray, int], None]


def _legacy_string(view: memoryview, position: int, field: str) -> tuple[str, int]:
    (length,) = _H.unpack_from(view, position)
    position += 2
    end = position + length
    if length < 0 or end > len(view):
        bad_length(field, length, len(view) - position)
    return str(view[position:end], "utf-8"), end


def _legacy_nullable_string(view: memoryview, position: int, field: str) -> tuple[str | None, int]:
    (length,) = _H.unpack_from(view, position)
    return (None, position + 2) if length < 0 else _legacy_string(view, position, field)


def _compact_string(view: memoryview, position: int, field: str) -> tuple[str, int]:
    length = view[position]
    if 0 < length < 128:
        end = position + length
        if end <= len(view):
            return str(view[position + 1 : end], "utf-8"), end
    length, position = read_uvarint(view, position)
    end = position + length - 1
    if length == 0 or end > len(view) or length > MAX_STRING_BYTES + 1:
        bad_length(field, length - 1, len(view) - position)
    return str(view[position:end], "utf-8"), end


def _compact_nullable_string(view: memoryview, position: int, field: str) -> tuple[str | None, int]:
    return (None, position + 1) if view[position] == 0 else _compact_string(view, position, field)


def _legacy_count(view: memoryview, position: int, least: int, field: str, nullable: bool) -> tuple[int, int]:
    (count,) = _I.unpack_from(view, position)
    position += 4
    if count < 0 and nullable:
        return -1, position
    if count < 0 or count * least > len(view) - position:
        bad_count(field, count, len(view) - position)
    return count, position


def _compact_count(view: memoryview, position: int, least: int, field: str, nullable: bool) -> tuple[int, int]:
    count = view[position]
    if count < 128:
        position += 1
    else:
        count, position = read_uvarint(view, position)
    count -= 1
    if count < 0 and nullable:
        return -1, position
    if count < 0 or count * least > len(view) - position:
        bad_count(field, count, len(view) - position)
    return count, position


def _legacy_records(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    (length,) = _I.unpack_from(view, position)
    position += 4
    if length < 0:
        return None, position
    end = position + length
    if end > len(view):
        bad_length("records", length, len(view) - position)
    return view[position:end], end


def _compact_records(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    length = view[position]
    if length < 128:
        position += 1
    else:
        length, position = read_uvarint(view, position)
    if length == 0:
        return None, position
    end = position + length - 1
    if end > len(view):
        bad_length("records", length - 1, len(view) - position)
    return view[position:end], end


def _put_legacy_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise ValueError(f"a string has {len(encoded)} bytes in UTF-8, at most {MAX_STRING_BYTES} are possible")
    out += _H.pack(len(encoded))
    out += encoded


def _put_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = text.encode()
    length = len(encoded)
    if length < 127:
        out.append(length + 1)
    else:
        append_string_length(out, length)
    out += encoded


def _put_legacy_count(out: bytearray, count: int) -> None:
    out += _I.pack(count)


def _put_compact_count(out: bytearray, count: int) -> None:
    if count < 127:
        out.append(count + 1)
    else:
        append_uvarint(out, count + 1)


LEGACY: Final = Layout(
    _legacy_string,
    _legacy_nullable_string,
    _legacy_count,
    _legacy_records,
    _put_legacy_string,
    _put_legacy_count,
    _put_legacy_count,
)
COMPACT: Final = Layout(
    _compact_string,
    _compact_nullable_string,
    _compact_count,
    _compact_records,
    _put_compact_string,
    _put_compact_count,
    _put_compact_count,
)


def tag_count(view: memoryview, position: int) -> tuple[int, int]:
    """Return how many tagged fields follow, checked against the bytes left, and the position after that number."""
    count, position = read_uvarint(view, position)
    if count > MAX_TAGGED_FIELDS:
        raise FrameError(f"a struct has {count} tagged fields, at most {MAX_TAGGED_FIELDS} are possible")
    if count * 2 > len(view) - position:
        bad_count("tagged fields", count, len(view) - position)
    return count, position


def skip_tags(view: memoryview, position: int) -> int:
    """Skip a whole section of tagged fields."""
    if view[position] == 0:
        return position + 1
    count, position = read_uvarint(view, position)
    return skip_tagged_fields(view, position, len(view), count)


def skip_tags_of_request(view: memoryview, position: int, room: int, name: str) -> tuple[int, int]:
    """Skip a section that is not empty; return the position after it and what is left of the elements allowed."""
    count, position = read_uvarint(view, position)
    if count > room:
        too_many_elements(name)
    return skip_tagged_fields(view, position, len(view), count), room - count


class NodeEndpoint(NamedTuple):
    """Where a broker that is named in an answer can be reached (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def put_node_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Append an answer's tagged fields: the endpoints, which are tag 0, alone."""
    tag = bytearray()
    _put_compact_count(tag, len(endpoints))
    for node_id, host, port, rack in endpoints:
        tag += _I.pack(node_id)
        _put_compact_string(tag, host)
        tag += _I.pack(port)
        _put_compact_string(tag, rack)
        tag.append(0)
    out += b"\x01\x00"
    append_uvarint(out, len(tag))
    out += tag


def put_tag(out: bytearray, tag: int, content: bytes) -> None:
    """Append one tagged field."""
    append_uvarint(out, tag)
    append_uvarint(out, len(content))
    out += content


def read_tag(view: memoryview, position: int, wanted: int) -> bytes:
    """Return the content of one of a struct's tagged fields, empty where there is none of this number."""
    count, position = tag_count(view, position)
    for _ in range(count):
        tag, position, stop = read_tagged_field(view, position, len(view))
        if tag == wanted:
            return bytes(view[position:stop])
        position = stop
    return b""


def read_node_endpoints(view: memoryview, position: int) -> Sequence[NodeEndpoint]:
    """Read an answer's tagged fields, the last bytes of it, and return the endpoints in them."""
    if view[position] == 0:
        return ()
    endpoints: list[NodeEndpoint] = []
    count, position = tag_count(view, position)
    for _ in range(count):
        tag, position, stop = read_tagged_field(view, position, len(view))
        if tag == 0:
            used = position
            endpoint_count, used = _compact_count(view, used, _LEAST_ENDPOINT_BYTES, "node_endpoints", False)
            endpoints = []
            for _ in range(endpoint_count):
                (node_id,) = _I.unpack_from(view, used)
                host, used = _compact_string(view, used + 4, "host")
                (port,) = _I.unpack_from(view, used)
                rack, used = _compact_nullable_string(view, used + 4, "rack")
                used = skip_tags(view, used)
                endpoints.append(NodeEndpoint(node_id, host, port, rack))
            if used != stop:
                bad_tag_size("node_endpoints", stop - position, used - position)
        position = stop
    return endpoints


# Elements that are parsed or packed between two yields of what works in slices, less one; a mask.
AT_ONCE: Final = 127


def dismantle_topics(topics: Sequence[tuple[Any, Sequence[Any]]]) -> Work[None]:
    """Free topics with what is listed of their partitions, in slices, as ``message.dismantle`` does with messages.

    Only lists are emptied: pass a tuple for what another owner still uses.
    """
    if not isinstance(topics, list):
        return
    while topics:
        for _, partitions in topics[-AT_ONCE:]:
            if len(partitions) > AT_ONCE and isinstance(partitions, list):
                yield from freed(partitions)
        del topics[-AT_ONCE:]
        yield None


def parsed_in_slices(
    parser: Callable[[memoryview, int, int], Work[Result]],
    view: Buffer,
    position: int,
    version: int,
    known: range,
    name: str,
) -> Work[Result]:
    """As :func:`parsed`, for a parser that works in slices; ``view`` must stay as it is until the end."""
    if version not in known:
        check_version(name, version, known)
    if type(view) is not memoryview:
        view = memoryview(view)
    try:
        return (yield from parser(view, position, version))
    except (struct.error, IndexError):
        raise FrameError(f"{name} version {version}: the frame of {len(view)} bytes ends inside a field") from None
    except UnicodeDecodeError as error:
        raise FrameError(f"{name} version {version}: a string is not UTF-8: {error}") from None


def parsed(
    parser: Callable[[memoryview, int, int], Result], view: Buffer, position: int, version: int, known: range, name: str
) -> Result:
    """Run a parser; whatever way it runs out of bytes becomes a FrameError. ``name`` begins with the API's name."""
    if version not in known:
        check_version(name, version, known)
    if type(view) is not memoryview:
        view = memoryview(view)
    try:
        return parser(view, position, version)
    except (struct.error, IndexError):
        raise FrameError(f"{name} version {version}: the frame of {len(view)} bytes ends inside a field") from None
    except UnicodeDecodeError as error:
        raise FrameError(f"{name} version {version}: a string is not UTF-8: {error}") from None


def check_version(name: str, version: int, known: range) -> None:
    """Raise UnsupportedVersion (35) for a version that is not packed by hand."""
    if version not in known:
        raise UnsupportedVersion(f"{name} version {version}: packed here are {known[0]} to {known[-1]}")


def few_records(records: Records) -> Buffer | None:
    """Return records that are to be copied, because there are few bytes of them; else None."""
    if isinstance(records, bytes | bytearray | memoryview):
        return records if len(records) <= _COPIED_BUFFER_BYTES else None
    return records.read() if records.length <= _COPIED_SLICE_BYTES else None


class Pieces:
    """Collects a message as pieces: ``out`` is the buffer that grows until the next large record buffer or slice."""

    __slots__ = ("_pieces", "_total", "out")

    def __init__(self, start: bytearray) -> None:
        self.out = start
        self._pieces: list[Piece] = []
        self._total = 0

    def records(self, records: Records | None, layout: Layout) -> bytearray:
        """Add a records field and return the buffer to go on with."""
        out = self.out
        if records is None:
            layout.put_records_length(out, -1)
            return out
        few = few_records(records)
        if few is not None:
            layout.put_records_length(out, len(few))
            out += few
            return out
        length = len(records) if isinstance(records, bytes | bytearray | memoryview) else records.length
        layout.put_records_length(out, length)
        self._pieces.append(out)
        self._pieces.append(records)
        self._total += len(out) + length
        self.out = bytearray()
        return self.out

    def finish(self) -> tuple[list[Piece], int]:
        """Return all pieces and their length together."""
        if self.out:
            self._pieces.append(self.out)
            self._total += len(self.out)
        return self._pieces, self._total
