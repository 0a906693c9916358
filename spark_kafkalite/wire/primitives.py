"""Encodings of the wire format beyond fixed-width numbers: varints, tagged fields, and the errors about them.

An unsigned varint carries seven bits a byte, lowest first, with the top bit set on all bytes but the last; lengths and
tags have at most 32 bits, so a sixth byte is an error. Compact lengths are the length plus one, 0 meaning null.

Readers here raise ``FrameError`` for what is wrong in itself and ``IndexError`` where the buffer ends too early; the
codec, which knows the message's name, turns the latter into a ``FrameError``.
"""

from __future__ import annotations

from typing import Final, NoReturn

from spark_kafkalite.errors import FrameError

Buffer = bytes | bytearray | memoryview

MAX_VARINT_BYTES: Final = 5
# No struct of the protocol has more than a handful; an empty one costs two bytes, but as much time as an array element.
MAX_TAGGED_FIELDS: Final = 4096
# Kafka reads and writes no longer strings, in compact form either.
MAX_STRING_BYTES: Final = 32767
# A bytes field of a request is copied at once, and where the memory for it was never used before, a virtual machine may
# take 3 ms for each MiB. Kafka's coordinator keeps no more of a member than fits into a record, by default 1 MiB.
MAX_REQUEST_BYTES_FIELD: Final = 8 * 1024 * 1024


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the varint at ``position`` and the position after it."""
    value = shift = 0
    for _ in range(MAX_VARINT_BYTES):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise FrameError(f"a varint holds {value}, more than 32 bits")
            return value, position
        shift += 7
    raise FrameError(f"a varint has more than {MAX_VARINT_BYTES} bytes")


def append_uvarint(out: bytearray, value: int) -> None:
    """Append a varint."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def append_string_length(out: bytearray, length: int) -> None:
    """Append the compact length of a string that is not null; ``length`` counts UTF-8 bytes."""
    if length > MAX_STRING_BYTES:
        raise ValueError(f"a string has {length} bytes in UTF-8, at most {MAX_STRING_BYTES} are possible")
    append_uvarint(out, length + 1)


def read_tagged_field(buffer: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """Return the tag of the tagged field at ``position`` and where its content begins and ends."""
    tag, position = read_uvarint(buffer, position)
    size, position = read_uvarint(buffer, position)
    if size > end - position:
        raise FrameError(f"tagged field {tag} has {size} bytes, only {end - position} are left in the frame")
    return tag, position, position + size


def skip_tagged_fields(buffer: Buffer, position: int, end: int, count: int) -> int:
    """Skip ``count`` tagged fields that are unknown here and return the position after them."""
    if count * 2 > end - position:  # a tag and a size have at least one byte each
        raise FrameError(f"{count} tagged fields do not fit into the {end - position} bytes left in the frame")
    if count > MAX_TAGGED_FIELDS:
        raise FrameError(f"a struct has {count} tagged fields, at most {MAX_TAGGED_FIELDS} are possible")
    for _ in range(count):
        _, _, position = read_tagged_field(buffer, position, end)
    return position


def bad_count(field: str, count: int, left: int) -> NoReturn:
    """Refuse an array's count."""
    if count < 0:
        raise FrameError(f"{field} is null, which this version does not allow")
    raise FrameError(f"{field} claims {count} elements, which do not fit into the {left} bytes left in the frame")


def bad_length(field: str, length: int, left: int) -> NoReturn:
    """Refuse the length of a string or byte field."""
    if length < 0:
        raise FrameError(f"{field} is null, which this version does not allow")
    if length <= left:
        raise FrameError(f"{field} has {length} bytes, a string has at most {MAX_STRING_BYTES}")
    raise FrameError(f"{field} claims {length} bytes, only {left} are left in the frame")


def too_many_bytes(field: str, length: int) -> NoReturn:
    """Refuse a byte field that would delay all other requests."""
    raise FrameError(f"{field} has {length} bytes, at most {MAX_REQUEST_BYTES_FIELD} are possible")


def too_many_elements(field: str) -> NoReturn:
    """Refuse a request with more array elements than any honest one has."""
    raise FrameError(f"{field}: the request has too many array elements; split it into smaller ones")


def bad_tag_size(field: str, claimed: int, used: int) -> NoReturn:
    """Refuse a tagged field whose content has another length than it claims."""
    raise FrameError(f"tagged field {field} claims {claimed} bytes, its content has {used}")
