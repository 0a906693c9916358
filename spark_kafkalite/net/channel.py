"""A byte stream to one peer, behind the few calls that a connection needs.

:class:`PlainChannel` is a raw non-blocking socket. Under TLS (``tls_channel``) more can be so, and a connection counts
on all of it:

- a handshake comes before the first byte;
- bytes may be here, decrypted, for which the socket does not become readable any more (``has_buffered``);
- receiving may have to wait until something can be sent, and sending until something was received;
- what a call receives ends where one record ends, however much room there is behind;
- ``send_file`` reads pieces of the file and sends them, since the kernel cannot;
- what ``send`` has taken may still wait, encrypted, in the channel (``unsent_bytes``) until ``flush`` has sent it.

Nothing here knows what the bytes mean. Every call returns at once. "Would block" is None (False for the handshake), and
``read_needs_write`` and ``write_needs_read`` name what to wait for then; a peer that is gone, or that fails in the
handshake, is ``OSError``; an orderly end of stream is 0 received bytes.
"""

from __future__ import annotations

import socket
from typing import Protocol

from spark_kafkalite.platform_calls import MSG_MORE, send_file

Buffer = bytes | bytearray | memoryview


class Channel(Protocol):
    """What a connection asks of its byte stream."""

    @property
    def turn_bytes(self) -> int:
        """How many bytes one connection may send before others get their turn."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the channel has taken to send and still holds; what is sent next waits behind them."""

    @property
    def needs_handshake(self) -> bool:
        """Whether :meth:`handshake` is to be called, and called again, before anything else."""

    @property
    def has_buffered(self) -> bool:
        """Whether bytes were received that no caller has taken yet: the socket need not become readable for them."""

    @property
    def read_needs_write(self) -> bool:
        """Whether the last call to receive, or the handshake, waits until the socket is writable, not readable."""

    @property
    def write_needs_read(self) -> bool:
        """Whether the last call to send waits until the socket is readable, not writable."""

    def fileno(self) -> int:
        """File descriptor to watch for readiness."""

    def handshake(self) -> bool:
        """Go on with what comes before the first byte; return whether it is done. Raises OSError when it fails."""

    def recv_into(self, buffer: memoryview, beyond: memoryview | None = None) -> int | None:
        """Receive into ``buffer`` and, once that is full, where one call can do both, into ``beyond``.

        Returns the number of bytes in all, 0 at the end of the stream, None when none have arrived.
        """

    def send(self, data: Buffer, more: bool) -> int | None:
        """Send a prefix of ``data``; ``more``: something follows at once. Return bytes sent, None for none."""

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        """Send up to ``count`` bytes of a file; return bytes sent, 0 when the file ends before, None for none."""

    def flush(self) -> bool:
        """Send what the channel holds; return whether it holds nothing any more."""

    def close(self) -> None:
        """Close at once; what was not sent is lost."""


def prepare(connected: socket.socket) -> None:
    """Set the options of a connected socket for a channel. Raises OSError."""
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Finds peers that vanished without a word (a host that lost power) long before the idle limit would.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class PlainChannel:
    """A raw socket."""

    __slots__ = ("_fileno", "_socket")

    turn_bytes = 4 * 1024 * 1024
    unsent_bytes = 0
    needs_handshake = False
    has_buffered = False
    read_needs_write = False
    write_needs_read = False

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        prepare(connected)
        self._socket = connected
        self._fileno = connected.fileno()

    def fileno(self) -> int:
        return self._fileno

    def handshake(self) -> bool:
        return True

    def recv_into(self, buffer: memoryview, beyond: memoryview | None = None) -> int | None:
        try:
            if beyond is None:
                return self._socket.recv_into(buffer)
            return self._socket.recvmsg_into((buffer, beyond))[0]
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, data: Buffer, more: bool) -> int | None:
        try:
            # MSG_MORE lets a response header leave in one packet with the records that follow it.
            return self._socket.send(data, MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            return None

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        try:
            return send_file(self._fileno, fileno, position, count)
        except (BlockingIOError, InterruptedError):
            return None

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        self._socket.close()
