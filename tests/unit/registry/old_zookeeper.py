"""A ZooKeeper as versions before 3.6 are, as far as a client of ours meets it before it gives up.

A request of a kind that such a server does not know is answered with Unimplemented, and the connection closed.
Source: org.apache.zookeeper.server.UnimplementedRequestProcessor of ZooKeeper 3.5.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Final, Self

_PING_XID: Final = -2
_UNIMPLEMENTED: Final = -6
# Of getData, exists and the like; none is asked for anything that matters.
_STAT: Final = bytes(68)
_KNOWN: Final = frozenset((-11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14))


class OldZooKeeper:
    """See the module's text; a context manager. ``said`` is its answer to the four-letter word "srvr"."""

    def __init__(self, said: str) -> None:
        self._said = said.encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        # Kinds of requests that it did not know.
        self.unknown: list[int] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            first = _exactly(connection, 4)
            if first == b"srvr":
                connection.sendall(self._said)
                return
            _exactly(connection, struct.unpack("!i", first)[0])
            _send(connection, struct.pack("!iiqi", 0, 6000, 7, 16) + bytes(17))
            while True:
                request = _exactly(connection, struct.unpack("!i", _exactly(connection, 4))[0])
                xid, kind = struct.unpack_from("!ii", request)
                if kind not in _KNOWN:
                    self.unknown.append(kind)
                    _send(connection, struct.pack("!iqi", xid, 1, _UNIMPLEMENTED))
                    return
                _send(connection, struct.pack("!iqi", xid, 0 if xid == _PING_XID else 1, 0) + _STAT)


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack("!i", len(body)) + body)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
