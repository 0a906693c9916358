"""A byte stream to one peer, behind the few calls that a connection needs.

:class:`PlainChannel` is a raw non-blocking socket. TLS joins as a second class with the same methods: there
``send_file`` reads pieces of the file and sends them, since the kernel cannot. Nothing here knows what the bytes mean.

Every call returns at once. "Would block" is None; a peer that is gone is ``ConnectionError`` or ``OSError``; an orderly
end of stream is 0 received bytes.
"""

from __future__ import annotations

import os
import socket
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Channel(Protocol):
    """What a connection asks of its byte stream."""

    def fileno(self) -> int:
        """File descriptor to watch for readiness."""
        ...

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive into ``buffer``; return the number of bytes, 0 at the end of the stream, None when none are there."""
        ...

    def recv_into_two(self, first: memoryview, second: memoryview) -> int | None:
        """Receive into ``first`` and, once it is full, into ``second``; return the sum, as :meth:`recv_into`."""
        ...

    def send(self, data: Buffer, more: bool) -> int | None:
        """Send a prefix of ``data``; ``more`` says that something follows at once. Return bytes sent, None for none."""
        ...

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        """Send up to ``count`` bytes of a file; return bytes sent, 0 when the file ends before, None for none."""
        ...

    def close(self) -> None:
        """Close at once; what was not sent is lost."""
        ...


class PlainChannel:
    """A raw socket."""

    __slots__ = ("_fileno", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Finds peers that vanished without a word (a host that lost power) long before the idle limit would.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connected
        self._fileno = connected.fileno()

    def fileno(self) -> int:
        return self._fileno

    def recv_into(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def recv_into_two(self, first: memoryview, second: memoryview) -> int | None:
        try:
            return self._socket.recvmsg_into((first, second))[0]
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, data: Buffer, more: bool) -> int | None:
        try:
            # MSG_MORE lets a response header leave in one packet with the records that follow it.
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            return None

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        try:
            return os.sendfile(self._fileno, fileno, position, count)
        except (BlockingIOError, InterruptedError):
            return None

    def close(self) -> None:
        self._socket.close()
