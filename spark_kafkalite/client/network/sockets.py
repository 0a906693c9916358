"""TCP connections to brokers: opening them, the kernel's timeouts, and writing what lies in several buffers.

A connection's socket is the system's own, or a :class:`.tls_socket.TlsSocket` around it: both have the methods of
:class:`ByteSocket`, so that an unencrypted connection has nothing in front of its socket.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol

from spark_kafkalite.client.client_config import ClientConfig
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import BrokerUnreachable

_TIMEVAL: Final = struct.Struct("@ll")
# Buffers handed to one sendmsg(); the system's limit (IOV_MAX) is 1024.
MAX_PIECES: Final = 64

Buffer = bytes | bytearray | memoryview


class ByteSocket(Protocol):
    """What a connection does with its socket; each raises OSError, BlockingIOError where the system would block."""

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int:
        """Send from the first buffers on, and return how many bytes were taken."""

    def recv_into(self, buffer: memoryview, /) -> int | None:
        """Receive, and return how many bytes; 0 at the end of the stream, None when what came is no bytes yet."""

    def fileno(self) -> int: ...

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...

    def setblocking(self, blocking: bool, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


def connect(host: str, port: int, config: ClientConfig, deadline: Deadline) -> socket.socket:
    """Return a connected, blocking socket that is the caller's to close. Raises BrokerUnreachable.

    Every address of the host is tried; the error names each and why it failed.
    """
    try:
        # As bytes where they say the same: for a text Python first loads the tables of international names.
        name = host.encode("ascii") if host.isascii() else host
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerUnreachable(f"{host}:{port}: the host name cannot be resolved: {describe(error)}") from error
    failures: list[str] = []
    for family, kind, protocol, _, address in addresses:
        try:
            return _connected(socket.socket(family, kind, protocol), address, config, deadline)
        except OSError as error:
            shown = f"{host}:{port}" if address[0] == host else f"{host}:{port} ({address[0]})"
            failures.append(f"{shown}: {describe(error)}")
    raise BrokerUnreachable("; ".join(failures))


def _connected(sock: socket.socket, address: Any, config: ClientConfig, deadline: Deadline) -> socket.socket:
    """Return the socket connected, or close it and raise OSError."""
    try:
        if config.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
        if config.receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(max(0.001, deadline.left_s()))
        sock.connect(address)
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(config.request_timeout_ms / 1000))
    except BaseException:
        sock.close()
        raise
    return sock


def limit_receiving(sock: ByteSocket, deadline: Deadline) -> None:
    """Have a blocking socket's receives end at the deadline with BlockingIOError. Raises TimeoutError when it is now.

    The kernel's own timeout: settimeout() would cost two more calls, and two locks.
    """
    left_s = deadline.left_s()
    if left_s <= 0:
        raise TimeoutError
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left_s))


def _timeval(seconds: float) -> bytes:
    """Return a time as the socket options want it; at least a microsecond, because zero means for ever."""
    microseconds = max(1, int(seconds * 1_000_000))
    return _TIMEVAL.pack(microseconds // 1_000_000, microseconds % 1_000_000)


def send_all(sock: ByteSocket, pieces: list[Buffer]) -> None:
    """Send every piece, gathered into as few system calls as possible."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    while views:
        sent = sock.sendmsg(views[:MAX_PIECES])
        views = views_after(views, sent)


def views_after(views: list[memoryview], sent: int) -> list[memoryview]:
    """Return what is left of ``views`` when the first ``sent`` bytes are gone."""
    for number, view in enumerate(views):
        if sent < len(view):
            return [view[sent:], *views[number + 1 :]]
        sent -= len(view)
    return []


def describe(error: BaseException) -> str:
    """Return an error's text without its number, for messages."""
    # A blocking socket whose send timeout passes says EAGAIN.
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
