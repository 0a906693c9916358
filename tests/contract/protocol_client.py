"""A client of ZooKeeper's protocol that sends what it is told to, byte for byte, and hides nothing of the answers."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import NamedTuple, Self

from spark_kafkalite.registry.served.jute import write_buffer, write_int, write_long
from spark_kafkalite.wire.frame import FrameBuffer, framed
from tests.patience import PATIENCE_S

EVENT_XID = -1


class Answer(NamedTuple):
    xid: int
    zxid: int
    error: int
    body: bytes


class ProtocolClient:
    """One connection. ``session_id`` is 0 when the server said that the session has expired."""

    def __init__(
        self,
        address: str,
        *,
        timeout_ms: int = 10_000,
        session: tuple[int, bytes] = (0, bytes(16)),
        seen_zxid: int = 0,
        hello: bool = True,
        receive_buffer: int | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((host, int(port)))
        self.events: list[tuple[int, str]] = []
        self._received = FrameBuffer(2**31 - 1)
        self._xid = 0
        if hello:
            body = write_int(0) + write_long(seen_zxid) + write_int(timeout_ms) + write_long(session[0])
            self.send_frame(body + write_buffer(session[1]) + b"\0")
            try:
                answer = self.receive_frame()
            except OSError:
                self.close()
                raise
            self.timeout_ms, self.session_id = struct.unpack_from("!iq", answer, 4)
            self.password = answer[20:36]

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(framed(payload))

    def receive_frame(self) -> bytes:
        while (frame := self._received.next_frame()) is None:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("the server has closed the connection")
            self._received.feed(piece)
        return frame

    def send(self, kind: int, body: bytes = b"", xid: int | None = None) -> int:
        if xid is None:
            self._xid += 1
            xid = self._xid
        self.send_frame(struct.pack("!ii", xid, kind) + body)
        return xid

    def receive(self) -> Answer:
        """Return the next answer; events on the way are kept in ``events`` as (type, path)."""
        while True:
            frame = self.receive_frame()
            answer = Answer(*struct.unpack_from("!iqi", frame), frame[16:])
            if answer.xid != EVENT_XID:
                return answer
            kind, _, length = struct.unpack_from("!iii", answer.body)
            self.events.append((kind, answer.body[12 : 12 + length].decode()))

    def ask(self, kind: int, body: bytes = b"", xid: int | None = None) -> Answer:
        sent = self.send(kind, body, xid)
        answer = self.receive()
        assert answer.xid == sent
        return answer

    def ended(self) -> bool:
        """Whether the server closes the connection (within the socket's timeout)."""
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
