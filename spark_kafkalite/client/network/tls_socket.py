"""A socket with TLS in front of it, for connections that are not aware of TLS.

It has the methods of :class:`.sockets.ByteSocket`, blocking or not. :class:`TlsStream` encrypts and decrypts, without a
socket; this class moves the ciphertext. It answers the peer's requests in between (key updates) on the way. For one
thread at a time, except ``shutdown()`` and ``close()``, which end the system's socket only. They send no close_notify
alert, since the length of a frame shows where a stream was cut off.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Final

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.sockets import limit_receiving
from spark_kafkalite.errors import SslHandshakeFailed
from spark_kafkalite.security.tls import TlsStream

# Ciphertext that one system call receives. The stream keeps memory of that size: with 64 KiB reading takes 5 % less
# CPU, and each connection 40 KiB more.
_RECEIVE_BYTES: Final = 32_768
# What is encrypted before the socket is asked to take it: more saves nothing, and the stream keeps memory of that size.
_SEND_BYTES: Final = 65_536
# Pieces that are shorter share a TLS record, whose head and check cost as much as some hundred bytes.
_RECORD_BYTES: Final = 16_384

_OF_THREAD: Final = threading.local()


def _scratch() -> memoryview:
    """Return this thread's memory for ciphertext on its way from a socket into a stream."""
    try:
        scratch: memoryview = _OF_THREAD.scratch
    except AttributeError:
        scratch = _OF_THREAD.scratch = memoryview(bytearray(_RECEIVE_BYTES))
    return scratch


class TlsSocket:
    """The socket. It is blocking until ``setblocking(False)``."""

    def __init__(self, sock: socket.socket, stream: TlsStream) -> None:
        """``sock`` is connected, and this one's from then on."""
        self._sock = sock
        self._stream = stream
        # Ciphertext that the socket has not taken yet.
        self._unsent = memoryview(b"")
        self._blocking = True
        # The beginning of what the peer has sent: it tells what else than TLS it may be.
        self.first_received = b""

    def handshake(self, deadline: Deadline) -> None:
        """Agree on keys and check each other's certificates.

        Raises SslHandshakeFailed or HandshakeFailed as :meth:`TlsStream.handshake` does, TimeoutError or
        BlockingIOError at the deadline, OSError.
        """
        stream = self._stream
        while True:
            try:
                done = stream.handshake()
            except BaseException:
                self._send_last_words()
                raise
            self._send_output()
            if done:
                return
            limit_receiving(self, deadline)
            self._receive()

    def peer_certificate_expires(self) -> str | None:
        """Return when the peer's certificate expires, as ``ssl.cert_time_to_seconds`` takes it; after the handshake."""
        return self._stream.peer_certificate_expires()

    # Bytes ----------------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive decrypted bytes; returns 0 at the end of the stream, None when what came is no whole record yet.

        The system's socket is asked at most once, and only when no bytes received before are left. Raises
        SslHandshakeFailed when the peer refuses our certificate, which TLS 1.3 reports only now.
        """
        received = self.recv_decrypted(buffer)
        if received is None:
            self._receive()
            received = self.recv_decrypted(buffer)
        return received

    def _receive(self) -> None:
        scratch = _scratch()
        received = self._sock.recv_into(scratch)
        if not received:
            self._stream.ended()
            return
        if not self.first_received:
            self.first_received = bytes(scratch[: min(received, 16)])
        self._stream.received(scratch[:received])

    def recv_decrypted(self, buffer: memoryview) -> int | None:
        """Fill the buffer from what has been received, as :meth:`recv_into`, but never ask the system's socket."""
        stream = self._stream
        filled = stream.read_into(buffer)
        while filled and filled < len(buffer) and stream.has_input:
            more = stream.read_into(buffer[filled:])
            # The end of the stream is met again by who reads on.
            if not more:
                break
            filled += more
        # The peer may have asked for new keys, which is answered; to one that has gone there is nothing to say.
        if filled != 0:
            self._send_output()
        return filled

    @property
    def has_input(self) -> bool:
        """Whether received bytes may be read that the system's socket does not signal any more."""
        return self._stream.has_input

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Encrypt and send a part of the buffers, at least a byte, and return how much was taken.

        Non-blocking it takes more only when all of the last call's ciphertext has left, and raises BlockingIOError
        else: what is taken is encrypted, and cannot be taken back.
        """
        if self._unsent:
            self._send_unsent()
        stream = self._stream
        taken = 0
        short: list[memoryview] = []
        short_bytes = 0
        for buffer in buffers:
            part = buffer[: _SEND_BYTES - taken]
            taken += len(part)
            if len(part) < _RECORD_BYTES:
                short.append(part)
                short_bytes += len(part)
            if short and (len(part) >= _RECORD_BYTES or short_bytes >= _RECORD_BYTES):
                stream.write(memoryview(b"".join(short)))
                short, short_bytes = [], 0
            if len(part) >= _RECORD_BYTES:
                stream.write(part)
            if taken == _SEND_BYTES:
                break
        if short:
            stream.write(short[0] if len(short) == 1 else memoryview(b"".join(short)))
        self._send_output()
        return taken

    @property
    def has_unsent(self) -> bool:
        """Whether ciphertext waits for the system's socket to take it."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what waits, as far as the system's socket takes it."""
        if self._unsent:
            try:
                self._send_unsent()
            except BlockingIOError:
                if self._blocking:
                    raise

    def _send_output(self) -> None:
        output = self._stream.take_output()
        if output:
            self._queue(output)
        self.flush()

    def _queue(self, ciphertext: bytes) -> None:
        self._unsent = memoryview(b"".join((self._unsent, ciphertext)) if self._unsent else ciphertext)

    def _send_unsent(self) -> None:
        """Send what waits. Raises BlockingIOError when the socket takes no more, with the rest kept."""
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent)
                self._unsent = self._unsent[sent:]
        except ConnectionError:
            # Who closes has often said why, and that is here already.
            self._look_for_reason()
            raise

    def _look_for_reason(self) -> None:
        """Raise SslHandshakeFailed when that is the reason in the peer's last bytes before it closed."""
        try:
            scratch = _scratch()
            received = self._sock.recv_into(scratch, 0, socket.MSG_DONTWAIT)
            if received:
                self._stream.received(scratch[:received])
                if self._stream.handshake():
                    self._stream.read_into(memoryview(bytearray(1)))
        except SslHandshakeFailed:
            raise
        except Exception:
            return

    def _send_last_words(self) -> None:
        """Send the peer the reason why the handshake failed, if that is possible."""
        try:
            output = self._stream.take_output()
            if output:
                self._sock.send(output)
        except Exception:
            return

    # The system's socket --------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self._sock.setsockopt(level, option, value)

    def setblocking(self, blocking: bool) -> None:
        self._blocking = blocking
        self._sock.setblocking(blocking)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
