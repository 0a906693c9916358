"""A small HTTP/1.1 server for probes and scrapes: GET and HEAD, one request a connection, in an event loop.

A client that sends or takes its bytes too slowly, or sends too many, loses its connection. Beyond the limit of
connections each new one takes the place of the oldest that has not sent its request yet, or else of the oldest. Many
that are held open would keep probes out otherwise, and an orchestrator would restart the process. The server reads the
method, the path and the headers of a request, and no body. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

_MOST_HEAD_BYTES: Final = 8192
_HEAD_TIMEOUT_S: Final = 5.0
_SEND_TIMEOUT_S: Final = 30.0
_MOST_CONNECTIONS: Final = 32
# Read and dropped of what a client sends besides its request.
_MOST_REST_BYTES: Final = 64 * 1024
_GZIP_WBITS: Final = 31
_PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; ``path`` is without its query, ``headers`` have lower-case names."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer; ``headers`` are added to those that every answer has.

    ``is_packed``: the body is compressed by gzip already; a client that does not take that gets it unpacked.
    """

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    is_packed: bool = False


def json_response(status: HTTPStatus, document: Mapping[str, Any]) -> HttpResponse:
    """Return an answer with a JSON document."""
    return HttpResponse(status, (json.dumps(document) + "\n").encode())


Handle = Callable[[HttpRequest], Awaitable[HttpResponse]]


class BadRequest(ValueError):
    """The bytes are no request that is served."""


def parse_head(head: bytes) -> HttpRequest:
    """Return the request of a head that ends with an empty line. Raises BadRequest."""
    try:
        lines = head.decode("latin-1").split("\r\n")
        method, target, version = lines[0].split(" ")
    except ValueError:
        raise BadRequest("the first line is not METHOD PATH HTTP/1.1") from None
    # The absolute form, which proxies send: a server has to accept it (section 3.2.2). Every host name is served.
    scheme, is_absolute, rest = target.partition("://")
    if is_absolute and scheme.lower() in ("http", "https"):
        target = "/" + rest.partition("?")[0].partition("/")[2]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not target.startswith("/"):
        raise BadRequest("the first line is not METHOD PATH HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            break
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest("a header is not NAME: VALUE")
        key = name.lower()
        # A proxy may have checked the other one (RFC 9112, section 3.2).
        if key == "host" and key in headers:
            raise BadRequest("there are two headers Host")
        headers[key] = value.strip()
    return HttpRequest(method, target.partition("?")[0], headers)


class HttpServer:
    """Serves one address. ``handle`` answers every GET and HEAD."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._server: asyncio.Server | None = None
        # The oldest first; True: it has sent its request.
        self._open: dict[asyncio.Task[None], bool] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=_MOST_HEAD_BYTES)
        except OSError as error:
            if error.errno is None or isinstance(error, socket.gaierror):
                raise
            # asyncio's text repeats the address.
            raise OSError(error.errno, os.strerror(error.errno)) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the address and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= _MOST_CONNECTIONS:
            oldest = next((each for each, has_asked in self._open.items() if not has_asked), next(iter(self._open)))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = False
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._serve(task, reader, writer)
        finally:
            self._open.pop(task, None)
            # Whatever was not sent in time is dropped.
            writer.transport.abort()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answer, is_head, may_pack = await self._answered(task, reader)
        body, headers, length, unpacks = answer.body, dict(answer.headers), len(answer.body), False
        if answer.is_packed and not may_pack:
            # The end of a gzip file is the length of its content.
            unpacks, length = True, int.from_bytes(body[-4:], "little")
        elif answer.is_packed:
            headers["Content-Encoding"] = "gzip"
        headers |= {
            "Content-Type": answer.content_type,
            "Content-Length": str(length),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
        }
        first = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        head = first + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        writer.write(head.encode("latin-1"))
        async with asyncio.timeout(_SEND_TIMEOUT_S):
            # In pieces: what a slow client has not taken yet is held once for all of them.
            for piece in () if is_head else _unpacked(body) if unpacks else _pieces(body):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
            await writer.drain()
            # The client closes when it has read to the end; an abort before could take bytes from it.
            rest = _MOST_REST_BYTES
            while rest > 0 and (dropped := await reader.read(_MOST_HEAD_BYTES)):
                rest -= len(dropped)

    async def _answered(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader
    ) -> tuple[HttpResponse, bool, bool]:
        """Return the answer, whether it is sent without its body, and whether its body may be compressed."""
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {_MOST_HEAD_BYTES} bytes"), False, False
        except BadRequest as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error)), False, False
        if request.method not in ("GET", "HEAD"):
            answer = HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"", headers=(("Allow", "GET, HEAD"),))
            return answer, False, False
        if task in self._open:
            self._open[task] = True
        return (
            await self._handle(request),
            request.method == "HEAD",
            takes_gzip(request.headers.get("accept-encoding", "")),
        )


def takes_gzip(accepted: str) -> bool:
    """Return whether a client that sent this Accept-Encoding takes gzip: RFC 9110, section 12.5.3."""
    for each in accepted.lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";")
        if coding in ("gzip", "x-gzip"):
            return re.fullmatch(r"q=0(\.0*)?", weight) is None
    return False


def _text(status: HTTPStatus, text: str) -> HttpResponse:
    return HttpResponse(status, (text + "\n").encode(), "text/plain; charset=utf-8")


def gzip(pieces: Iterable[bytes]) -> bytes:
    """Return pieces as one gzip file."""
    packer = zlib.compressobj(1, wbits=_GZIP_WBITS)
    return b"".join([*(packer.compress(piece) for piece in pieces), packer.flush()])


def _pieces(body: bytes) -> Iterator[memoryview]:
    view = memoryview(body)
    for at in range(0, len(body), _PIECE_BYTES):
        yield view[at : at + _PIECE_BYTES]


def _unpacked(body: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=_GZIP_WBITS)
    piece = unpacker.decompress(body, _PIECE_BYTES)
    while piece:
        yield piece
        piece = unpacker.decompress(unpacker.unconsumed_tail, _PIECE_BYTES)
