"""A client that speaks frames: for what well-behaved clients never send, and for looking at what a broker answers."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.frame import FrameBuffer, framed
from spark_kafkalite.wire.message import ApiMessage


class RawClient:
    """One connection; a context manager. Versions are the highest that the broker of the first issue serves."""

    def __init__(self, bootstrap: str, timeout_s: float = 10.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._received = FrameBuffer(2**31 - 1)
        self._next_id = 0

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(framed(frame))

    def receive_frame(self) -> bytes:
        """Return the next response frame; ConnectionError when the broker closed."""
        while (frame := self._received.next_frame()) is None:
            piece = self.socket.recv(1 << 20)
            if not piece:
                raise ConnectionError("closed by the broker")
            self._received.feed(piece)
        return frame

    def is_closed(self) -> bool:
        """Wait for the broker to close (or reset) the connection; False when it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def call(self, message: ApiMessage, version: int) -> Any:
        """Send a request and return the decoded response."""
        self.send(message, version)
        return self.receive(message.API_KEY, version)

    def send(self, message: ApiMessage, version: int) -> int:
        """Send a request; return its correlation id."""
        self._next_id += 1
        self.send_frame(codec.encode_request(message, version, self._next_id, "raw"))
        return self._next_id

    def receive(self, api_key: int, version: int) -> Any:
        _, message = codec.decode_response(api_key, version, self.receive_frame())
        return message

    def send_produce(
        self,
        topics: list[tuple[str, list[tuple[int, bytes | bytearray | None]]]],
        *,
        acks: int = -1,
        version: int = 9,
        timeout_ms: int = 5000,
        transactional_id: str | None = None,
    ) -> int:
        self._next_id += 1
        pieces, _ = packed.pack_produce_request(
            self._next_id, "raw", version, acks, timeout_ms, topics, transactional_id
        )
        self.send_frame(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]
        return self._next_id

    def receive_produce(self, version: int = 9) -> packed.ProduceResponse:
        return packed.parse_produce_response(self.receive_frame(), version)

    def produce(
        self, topic: str, batch: bytes | bytearray | None, partition: int = 0, *, version: int = 9, **options: Any
    ) -> packed.ProducedPartition:
        """Produce one batch and return its outcome."""
        self.send_produce([(topic, [(partition, batch)])], version=version, **options)
        return self.receive_produce(version).topics[0][1][0]

    def send_fetch(
        self, topic: str, offset: int, *, partition: int = 0, epoch: int = -1, version: int = 12, **options: Any
    ) -> int:
        self._next_id += 1
        limit = options.pop("partition_max_bytes", 1 << 20)
        asked = packed.FetchPartition(partition, offset, limit, epoch)
        self.send_frame(
            packed.pack_fetch_request(self._next_id, "raw", version, packed.FetchRequest([(topic, [asked])], **options))
        )
        return self._next_id

    def receive_fetch(self, version: int = 12) -> packed.FetchResponse:
        return packed.parse_fetch_response(self.receive_frame(), version)

    def fetch(self, topic: str, offset: int, *, version: int = 12, **options: Any) -> packed.FetchedPartition:
        """Fetch from one partition and return what came."""
        self.send_fetch(topic, offset, version=version, **options)
        return self.receive_fetch(version).topics[0][1][0]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
