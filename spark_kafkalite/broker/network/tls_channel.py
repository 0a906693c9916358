"""A channel under TLS: a socket, and a :class:`TlsStream` through which all bytes of it go.

Encryption is done in the loop: 32 KiB take some 15 us, less than handing them to a thread and back. Ciphertext that the
socket does not take stays here, at most some 70 KiB: a call to send takes nothing more until it has left. A connection
that has sent little holds some 22 KiB, OpenSSL's buffers; one without TLS holds none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import Final, Protocol

from spark_kafkalite.errors import HandshakeFailed, KafkaliteError
from spark_kafkalite.net.channel import Buffer, prepare
from spark_kafkalite.platform_calls import MSG_MORE
from spark_kafkalite.security.tls import TlsStream

# What is encrypted, or read from a file, at a time: a stream's buffers keep the size that they once had.
_PIECE_BYTES: Final = 32 * 1024
# What one call to receive decrypts at most.
_MOST_RECEIVED_BYTES: Final = 512 * 1024
# How often it receives at most. Records may be empty, so that no bytes come of them.
_MOST_RECEIVES: Final = 16
# What a peer may send before its handshake is complete. A chain of certificates has some KiB.
_MOST_HANDSHAKE_BYTES: Final = 64 * 1024
# What a peer may send after it without any data. A change of keys takes it 27 bytes, and the loop 10 to 30 us; a record
# that has not arrived whole has 16 KiB. Each byte of data allows for so many others: records may be of one byte.
_MOST_BARREN_BYTES: Final = 32 * 1024
_ALLOWED_BY_DATA: Final = 64
# What is received at a time until data comes.
_FIRST_RECEIVED_BYTES: Final = 16 * 1024
# What may wait to be sent that no caller has asked for: answers to a peer that changes keys again and again.
_MOST_UNASKED_BYTES: Final = 256 * 1024


class TlsBuffers:
    """Memory that all channels of one loop share, for the time of a call."""

    __slots__ = ("ciphertext", "piece")

    def __init__(self) -> None:
        self.ciphertext = memoryview(bytearray(2 * _PIECE_BYTES))
        self.piece = memoryview(bytearray(_PIECE_BYTES))


class ChannelWatcher(Protocol):
    """What wants to know how a channel fares; each is called once at most."""

    def complete(self, stream: TlsStream) -> None:
        """Take note that the handshake is complete. May raise OSError, which ends the connection."""

    def failed(self) -> None:
        """Take note that the handshake has failed, and not because the peer just closed the connection."""

    def closed(self) -> None:
        """Take note that the channel has closed."""


class TlsChannel:
    """See the module's text."""

    __slots__ = (
        "_barren_bytes",
        "_buffers",
        "_fileno",
        "_handshake_bytes",
        "_socket",
        "_stream",
        "_unsent",
        "_watcher",
        "needs_handshake",
        "unsent_bytes",
    )

    # About a millisecond.
    turn_bytes = 1024 * 1024
    write_needs_read = False

    def __init__(
        self,
        connected: socket.socket,
        stream: TlsStream,
        buffers: TlsBuffers,
        watcher: ChannelWatcher | None = None,
    ) -> None:
        """Take over a connected socket."""
        prepare(connected)
        self._socket = connected
        self._fileno = connected.fileno()
        self._stream = stream
        self._buffers = buffers
        self._watcher = watcher
        # Ciphertext that the socket has not taken, and its length.
        self._unsent: bytes | memoryview = b""
        self.unsent_bytes = 0
        self.needs_handshake = True
        self._handshake_bytes = 0
        # What has been received of which no data has come yet, or a little, so that the first receive is a small one.
        self._barren_bytes = 1

    @property
    def has_buffered(self) -> bool:
        return self._stream.has_input

    @property
    def read_needs_write(self) -> bool:
        return self.needs_handshake and self.unsent_bytes > 0

    def fileno(self) -> int:
        return self._fileno

    # The handshake --------------------------------------------------------------------------------------------------

    def handshake(self) -> bool:
        """Go on with the handshake. Raises OSError, ConnectionResetError when the peer just closed the connection."""
        try:
            return self._go_on_with_handshake()
        except OSError as error:
            if self._watcher is not None and not isinstance(error, ConnectionResetError):
                self._watcher.failed()
            raise

    def _go_on_with_handshake(self) -> bool:
        if self.unsent_bytes and not self.flush():
            return False
        received = self._receive()
        while True:
            try:
                done = self._stream.handshake()
            except KafkaliteError as error:
                # The alert tells the peer why.
                with contextlib.suppress(OSError):
                    self._send_output()
                closed = received == 0 and isinstance(error, HandshakeFailed)
                raise (ConnectionResetError if closed else ConnectionError)(errno.EPROTO, str(error)) from None
            self._send_output()
            if done:
                break
            if not received:
                return False
            received = self._receive()
        if self.unsent_bytes and not self.flush():
            return False
        self.needs_handshake = False
        if self._watcher is not None:
            self._watcher.complete(self._stream)
        return True

    def _receive(self) -> int | None:
        """Receive ciphertext; return how much, 0 at the end, None when there is none."""
        buffer = self._buffers.ciphertext
        if self._barren_bytes:
            if self._barren_bytes > _MOST_BARREN_BYTES:
                raise ConnectionError(errno.EPROTO, f"it sent {self._barren_bytes} bytes of TLS without any data")
            buffer = buffer[:_FIRST_RECEIVED_BYTES]
        try:
            received = self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        if received == 0:
            self._stream.ended()
            return 0
        if self.needs_handshake:
            self._handshake_bytes += received
            if self._handshake_bytes > _MOST_HANDSHAKE_BYTES:
                raise ConnectionError(
                    errno.EPROTO, f"it sent more than {_MOST_HANDSHAKE_BYTES} bytes without completing it"
                )
        else:
            self._barren_bytes += received
        self._stream.received(buffer[:received])
        return received

    # Receiving ------------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: memoryview, beyond: memoryview | None = None) -> int | None:
        """Decrypt into ``buffer`` what has arrived, up to half a MiB; ``beyond`` is not used."""
        stream = self._stream
        read_into, length = stream.read_into, min(len(buffer), _MOST_RECEIVED_BYTES)
        got = receives = 0
        try:
            while got < length:
                count = read_into(buffer[got:length])
                if count:
                    got += count
                    if self._barren_bytes:
                        self._barren_bytes = max(self._barren_bytes - _ALLOWED_BY_DATA * count, 0)
                elif count == 0:
                    # Once more in the next call, if something came before.
                    return got
                elif receives == _MOST_RECEIVES or (received := self._receive()) is None:
                    break
                else:
                    # That was all there is: what comes later makes the socket readable again.
                    receives = receives + 1 if received >= _FIRST_RECEIVED_BYTES else _MOST_RECEIVES
        except KafkaliteError as error:
            raise ConnectionError(errno.EPROTO, str(error)) from None
        except ConnectionError as error:
            # The stream's own have a text only, and what closes a connection is told by strerror.
            raise ConnectionError(error.errno or errno.EPROTO, error.strerror or str(error)) from None
        finally:
            # New keys of the peer are answered, and so are bytes that are not of the stream.
            if stream.has_output:
                self._send_output()
        return got or None

    # Sending --------------------------------------------------------------------------------------------------------

    def send(self, data: Buffer, more: bool) -> int | None:
        """Encrypt and send in pieces, until the socket does not take one whole, or a turn's bytes are sent."""
        if self.unsent_bytes and not self.flush():
            return None
        view = memoryview(data)
        length = min(len(view), self.turn_bytes)
        taken = 0
        while taken < length and not self.unsent_bytes:
            end = min(taken + _PIECE_BYTES, length)
            self._encrypt(view[taken:end])
            taken = end
            self._send_output(more=more or end < len(view))
        return taken

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        if self.unsent_bytes and not self.flush():
            return None
        taken, count = 0, min(count, self.turn_bytes)
        while taken < count and not self.unsent_bytes:
            piece = self._buffers.piece[: count - taken]
            read = os.preadv(fileno, (piece,), position + taken)
            if read == 0:
                break
            self._encrypt(piece[:read])
            taken += read
            self._send_output(more=taken < count)
        return taken

    def _encrypt(self, data: memoryview) -> None:
        try:
            self._stream.write(data)
        except ConnectionError as error:
            raise ConnectionError(errno.EPROTO, str(error)) from None

    def flush(self) -> bool:
        while self.unsent_bytes:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            self._keep(self._unsent, sent)
        return True

    def _send_output(self, *, more: bool = False) -> None:
        """Send the stream's ciphertext as far as the socket takes it; keep the rest."""
        output = self._stream.take_output()
        if not output:
            return
        if self.unsent_bytes:
            self._keep(bytes(self._unsent) + output, 0)
            if self.unsent_bytes > _MOST_UNASKED_BYTES:
                raise ConnectionError(errno.EPROTO, "it asks for new keys, and does not read the answers")
            return
        try:
            sent = self._socket.send(output, MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self._keep(output, sent)

    def _keep(self, ciphertext: bytes | memoryview, sent: int) -> None:
        self.unsent_bytes = len(ciphertext) - sent
        self._unsent = memoryview(ciphertext)[sent:] if self.unsent_bytes else b""

    # Ending ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close at once, with a close_notify alert if the socket takes it."""
        if not self.unsent_bytes and not self.needs_handshake:
            self._stream.close()
            # A peer that is gone, or does not read, learns the same from the end of the connection.
            with contextlib.suppress(OSError):
                self._socket.send(self._stream.take_output())
        self._socket.close()
        if self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            watcher.closed()
