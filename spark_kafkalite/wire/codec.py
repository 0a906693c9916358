"""Message bodies to bytes and back, for every API and version that ``messages/`` and ``inner/`` know.

The functions that do it are compiled from the ``SCHEMA`` of the message classes at the first use of an (API, version,
direction), see ``codec_compiler``; a body that is never sent costs nothing. What they promise:

- Malformed bytes raise ``FrameError``, nothing else, in time and memory bounded by the length of the frame. An array's
  count is compared with the bytes left before anything is made of it: each element has a least size in that version.
- The array elements and tagged fields of one *request* are together at most ``MAX_REQUEST_ELEMENTS``. An empty struct
  of two bytes costs some forty times that in memory, and a million of them would stall a broker for a second.
- The forms in slices give the same results and errors, and yield often enough that their caller can stop in between.
- Unknown tagged fields are skipped (KIP-482); a known one must have exactly the length that it claims.
- Bytes after the end of a body are ignored, as Apache Kafka's generated readers do: newer peers may send more than the
  version they name promises.
- ``records`` fields are views into the buffer that was given, everything else is copied out.

A value that a message class lets you set but the version cannot hold (a null where none is allowed, a number out of
range) raises ``ValueError`` when encoding: that is our bug, not a peer's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from spark_kafkalite.errors import FrameError, UnsupportedVersion
from spark_kafkalite.slices import Work
from spark_kafkalite.wire import codec_compiler
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.header import pack_request_header, pack_response_header, read_response_header
from spark_kafkalite.wire.inner import SCHEMAS as INNER_SCHEMAS
from spark_kafkalite.wire.message import ApiMessage, ApiSchema
from spark_kafkalite.wire.messages import SCHEMAS as KAFKAS_SCHEMAS

Buffer = bytes | bytearray | memoryview

_SCHEMAS: Final = {**KAFKAS_SCHEMAS, **INNER_SCHEMAS}

# A quarter of a million topics, partitions or members in one request; decoding them takes about 0.2 s.
MAX_REQUEST_ELEMENTS: Final = 262_144

_UNSUPPORTED_VERSION: Final = b"\x00\x23"  # error code 35, the first field of an ApiVersions response


def decode_request(api_key: int, version: int, view: Buffer, position: int) -> Any:
    """Decode a request body that starts at ``position`` and ends with ``view``, into the API's request class.

    Raises FrameError, or UnsupportedVersion (35) for an API or version without a schema.
    """
    return _decode(_decoder(api_key, version, True)[0], view, position, MAX_REQUEST_ELEMENTS, api_key, version)[0]


def decode_request_in_slices(api_key: int, version: int, view: memoryview, position: int) -> Work[Any]:
    """Do what decode_request does, in slices; ``view`` must stay as it is until the end."""
    decoder, is_generator = _decoder(api_key, version, True, True)
    with _frame_errors(view, api_key, version):
        decoded = decoder(view, position, len(view), [MAX_REQUEST_ELEMENTS])
        message, _ = (yield from decoded) if is_generator else decoded
    return message


def decode_response(api_key: int, version: int, view: Buffer) -> tuple[int, Any]:
    """Decode a whole response frame, header included, into its correlation id and body.

    A broker that does not know the version of an ApiVersions request answers in version 0 whatever was asked, with
    error UNSUPPORTED_VERSION; such an answer is decoded as the version 0 that it is. Source: KIP-511.
    Raises FrameError, or UnsupportedVersion (35) for an API or version without a schema.
    """
    correlation_id, position = read_response_header(view, api_key, version)
    if version > 0 and api_key == ApiKey.API_VERSIONS and view[position : position + 2] == _UNSUPPORTED_VERSION:
        try:
            message, end = _decode(_decoder(api_key, 0, False)[0], view, position, len(view), api_key, 0)
        except FrameError:
            end = -1
        # Otherwise the broker has put the error into the version that it was asked for.
        if end == len(view):
            return correlation_id, message
    message, _ = _decode(_decoder(api_key, version, False)[0], view, position, len(view), api_key, version)
    return correlation_id, message


def decode_response_body(api_key: int, version: int, view: Buffer) -> Any:
    """Decode a response's body, where its header has been read. Raises as :func:`decode_response`."""
    return _decode(_decoder(api_key, version, False)[0], view, 0, len(view), api_key, version)[0]


def decode_response_body_in_slices(api_key: int, version: int, view: memoryview) -> Work[Any]:
    """Do what decode_response_body does, in slices; ``view`` must stay as it is until the end."""
    decoder, is_generator = _decoder(api_key, version, False, True)
    with _frame_errors(view, api_key, version):
        decoded = decoder(view, 0, len(view), [len(view)])
        message, _ = (yield from decoded) if is_generator else decoded
    return message


def encode_request(message: ApiMessage, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode header and body of a request, without the length in front of it."""
    out = pack_request_header(message.API_KEY, version, correlation_id, client_id)
    _encode(message, version, out)
    return bytes(out)


def encode_response(message: ApiMessage, version: int, correlation_id: int) -> bytes:
    """Encode header and body of a response, without the length in front of it."""
    out = pack_response_header(message.API_KEY, version, correlation_id)
    _encode(message, version, out)
    return bytes(out)


def encode_response_in_slices(message: ApiMessage, version: int, correlation_id: int) -> Work[bytearray]:
    """Do what encode_response does, in slices."""
    out = pack_response_header(message.API_KEY, version, correlation_id)
    yield from _encode_in_slices(message, version, out)
    return out


def encode_body(message: ApiMessage, version: int) -> bytes:
    """Encode a body alone."""
    out = bytearray()
    _encode(message, version, out)
    return bytes(out)


def encode_body_in_slices(message: ApiMessage, version: int) -> Work[bytearray]:
    """Do what encode_body does, in slices."""
    out = bytearray()
    yield from _encode_in_slices(message, version, out)
    return out


def _decode(
    decoder: Callable[..., Any], view: Buffer, position: int, elements: int, api_key: int, version: int
) -> tuple[Any, int]:
    if type(view) is not memoryview:
        view = memoryview(view)
    with _frame_errors(view, api_key, version):
        decoded: tuple[Any, int] = decoder(view, position, len(view), [elements])
    return decoded


class _frame_errors:  # noqa: N801
    """Turns what a decoder raises into FrameError. No generator: entering one would cost as much as a small message."""

    __slots__ = ("_api_key", "_version", "_view")

    def __init__(self, view: memoryview, api_key: int, version: int) -> None:
        self._view = view
        self._api_key = api_key
        self._version = version

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            return
        where = f"{_SCHEMAS[self._api_key].name} (API {self._api_key}) version {self._version}"
        if isinstance(error, UnicodeDecodeError):
            raise FrameError(f"{where}: a string is not UTF-8: {error}") from None
        if isinstance(error, struct.error | IndexError):
            raise FrameError(f"{where}: the frame of {len(self._view)} bytes ends inside a field") from None


class _value_errors:  # noqa: N801
    """Turns what an encoder raises into ValueError."""

    __slots__ = ("_message", "_version")

    def __init__(self, message: ApiMessage, version: int) -> None:
        self._message = message
        self._version = version

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, struct.error | AttributeError | TypeError):
            message = self._message
            raise ValueError(
                f"cannot encode {type(message).__name__} version {self._version}: {error}; in {message!r}"
            ) from error


def _encode(message: ApiMessage, version: int, out: bytearray) -> None:
    with _value_errors(message, version):
        _encoder(message.API_KEY, version, message.IS_REQUEST)[0](out, message)


def _encode_in_slices(message: ApiMessage, version: int, out: bytearray) -> Work[None]:
    encoder, is_generator = _encoder(message.API_KEY, version, message.IS_REQUEST, True)
    with _value_errors(message, version):
        encoded = encoder(out, message)
        if is_generator:
            yield from encoded


def _schema(api_key: int, version: int, is_request: bool) -> tuple[ApiSchema, type[ApiMessage]]:
    api = _SCHEMAS.get(api_key)
    if api is None:
        raise UnsupportedVersion(f"API key {api_key} is not known")
    if not api.first_version <= version <= api.last_version:
        raise UnsupportedVersion(
            f"{api.name} (API {api_key}) version {version} is not known, "
            f"versions {api.first_version} to {api.last_version} are"
        )
    return api, api.request_class if is_request else api.response_class


@cache
def _decoder(api_key: int, version: int, is_request: bool, in_slices: bool = False) -> tuple[Callable[..., Any], bool]:
    api, cls = _schema(api_key, version, is_request)
    return codec_compiler.compile_decoder(cls, version, flexible=version >= api.flexible_from, in_slices=in_slices)


@cache
def _encoder(
    api_key: int, version: int, is_request: bool, in_slices: bool = False
) -> tuple[Callable[[bytearray, Any], Any], bool]:
    api, cls = _schema(api_key, version, is_request)
    return codec_compiler.compile_encoder(cls, version, flexible=version >= api.flexible_from, in_slices=in_slices)
