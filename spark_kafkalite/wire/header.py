"""Request and response headers: the fields of a frame before the body.

    request:   api_key int16, api_version int16, correlation_id int32, client_id nullable string (int16 length),
               and, when the request version is flexible, tagged fields
    response:  correlation_id int32, and, when the response version is flexible, tagged fields

Two exceptions, both there so that the two sides can talk before they know each other's versions (KIP-511): the client
id keeps its int16 length in flexible versions, and a response to ApiVersions never has tagged fields in its header. A
third, ControlledShutdown version 0 with a shorter header, belongs to an API that this system does not have.
"""

from __future__ import annotations

import struct
from typing import Final

from spark_kafkalite.errors import FrameError
from spark_kafkalite.wire import primitives
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages import SCHEMAS

Buffer = bytes | bytearray | memoryview

_FIXED: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_API_VERSIONS: Final = ApiKey.API_VERSIONS
_MAX_SHORT: Final = 32767
_FLEXIBLE_FROM: Final = {key: api.flexible_from for key, api in SCHEMAS.items()}
_NEVER: Final = _MAX_SHORT + 1


# API key, version, the number that the response must carry (correlation id), client id. One is made for every request
# and taken apart at once; a class of its own costs as much as reading it.
RequestHeader = tuple[int, int, int, str | None]


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version uses compact lengths and tagged fields; False for an API that is not known."""
    return version >= _FLEXIBLE_FROM.get(api_key, _NEVER)


def read_request_header(view: Buffer) -> tuple[RequestHeader, int]:
    """Return a request frame's header and the position of its body.

    The header of an unknown API or version is read too, as far as that is possible: dispatch decides whether to answer
    it or to close the connection. Raises FrameError when the frame is too short or the client id is not UTF-8.
    """
    try:
        api_key, version, correlation_id, length = _FIXED.unpack_from(view)
    except struct.error:
        raise FrameError(
            f"a request frame has a header of at least {_FIXED.size} bytes, this one has {len(view)}"
        ) from None
    position = _FIXED.size
    client_id = None
    if length >= 0:
        end = position + length
        if end > len(view):
            raise FrameError(
                f"request header: the client id has {length} bytes, only {len(view) - position} are left in the frame"
            )
        try:
            client_id = str(view[position:end], "utf-8")
        except UnicodeDecodeError as error:
            raise FrameError(f"request header: the client id is not UTF-8: {error}") from None
        position = end
    if version >= _FLEXIBLE_FROM.get(api_key, _NEVER):
        position = _skip_tags(view, position)
    return (api_key, version, correlation_id, client_id), position


def read_response_header(view: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """Return a response frame's correlation id and the position of its body. Raises FrameError when it is too short."""
    if len(view) < 4:
        raise FrameError(f"a response frame has a header of at least 4 bytes, this one has {len(view)}")
    correlation_id: int = _CORRELATION.unpack_from(view)[0]
    if version >= _FLEXIBLE_FROM.get(api_key, _NEVER) and api_key != _API_VERSIONS:
        return correlation_id, _skip_tags(view, 4)
    return correlation_id, 4


def pack_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """Return a request header as the start of a buffer that the body is appended to."""
    if client_id is None:
        out = bytearray(_FIXED.pack(api_key, version, correlation_id, -1))
    else:
        encoded = client_id.encode()
        if len(encoded) > _MAX_SHORT:
            raise ValueError(f"client.id has {len(encoded)} bytes, at most {_MAX_SHORT} are possible")
        out = bytearray(_FIXED.pack(api_key, version, correlation_id, len(encoded)))
        out += encoded
    if version >= _FLEXIBLE_FROM.get(api_key, _NEVER):
        out.append(0)
    return out


def pack_response_header(api_key: int, version: int, correlation_id: int) -> bytearray:
    """Return a response header as the start of a buffer that the body is appended to."""
    out = bytearray(_CORRELATION.pack(correlation_id))
    if api_key != _API_VERSIONS and is_flexible(api_key, version):
        out.append(0)
    return out


def _skip_tags(view: Buffer, position: int) -> int:
    try:
        if view[position] == 0:
            return position + 1
        count, position = primitives.read_uvarint(view, position)
        return primitives.skip_tagged_fields(view, position, len(view), count)
    except IndexError:
        raise FrameError(f"the frame of {len(view)} bytes ends inside its header") from None
