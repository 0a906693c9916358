"""TLS for both ends of a connection, without a socket: contexts made from settings, and a stream over two buffers.

A non-blocking ``SSLSocket`` corrupts the stream when a write is repeated with other bytes, and a blocking one ignores
the kernel's receive timeout; an ``SSLObject`` over two ``MemoryBIO`` does neither, since it never touches a socket.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any


def client_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context of a client, made from the parsed ``ssl.*`` settings.

    Raises ConfigError for keys and certificates that cannot be used.
    """
    raise NotImplementedError


class TlsStream:
    """One end of a TLS connection. For one thread at a time; the caller moves the bytes.

    Ciphertext that came from the peer goes in by :meth:`received`; ciphertext for the peer comes out of
    :meth:`take_output`, which is to be asked after every other call.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = False, host: str | None = None) -> None:
        """``host`` is the name or address connected to, which the peer's certificate must name if the context says."""
        raise NotImplementedError

    def received(self, ciphertext: memoryview) -> None:
        """Take bytes that came from the peer."""
        raise NotImplementedError

    def ended(self) -> None:
        """Take note that the peer sends no more bytes."""
        raise NotImplementedError

    def handshake(self) -> bool:
        """Go on with the handshake; return whether it is done, else more bytes must be received.

        Raises SslHandshakeFailed, in one line that says which setting to change, and HandshakeFailed when the peer
        ended it or does not speak TLS.
        """
        raise NotImplementedError

    def read_into(self, view: memoryview) -> int | None:
        """Decrypt into ``view`` and return how many bytes; 0 at the end of the stream, None when more must be received.

        Raises SslHandshakeFailed when the peer refuses our certificate (TLS 1.3 tells that only here), ConnectionError
        for what is not the stream's.
        """
        raise NotImplementedError

    @property
    def has_input(self) -> bool:
        """Whether bytes that were received wait to be read: the socket will not say so."""
        raise NotImplementedError

    def write(self, data: memoryview) -> None:
        """Encrypt all of ``data``."""
        raise NotImplementedError

    def take_output(self) -> bytes:
        """Return the ciphertext that is to be sent, empty when there is none."""
        raise NotImplementedError
