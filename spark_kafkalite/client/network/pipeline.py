"""A producer's connection to one broker, non-blocking: many produce requests on their way, answers as they come.

Wraps an opened :class:`BrokerConnection` (handshake done, versions known) for a thread that waits on several sockets at
once. Owns what is not yet written, the requests in flight in their order, and the frame being received. Every method
raises BrokerUnreachable when the connection is broken; the owner then closes it and takes back ``in_flight``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_kafkalite.client.network.connection import (
    MAX_RESPONSE_BYTES,
    BrokerConnection,
    Buffer,
    describe,
    views_after,
)
from spark_kafkalite.client.produce.accumulator import PartitionQueue
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.errors import BrokerUnreachable
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import HEAD_BYTES, LENGTH, FrameReader, FrameSizeError, lend_memory

_RECEIVE_BYTES: Final = 65_536
# Buffers handed to one sendmsg(); the system's limit (IOV_MAX) is 1024.
_MAX_PIECES: Final = 64


class InFlight(NamedTuple):
    """A produce request that waits for its answer."""

    correlation_id: int
    sent_s: float
    batches: list[tuple[PartitionQueue, ProducerBatch]]


class Pipeline:
    """One broker's produce requests."""

    def __init__(self, connection: BrokerConnection, now_s: float) -> None:
        self.connection = connection
        self.version = connection.version(ApiKey.PRODUCE)
        self._sock = connection.detach()
        self._output: list[memoryview] = []
        self._frames = FrameReader(MAX_RESPONSE_BYTES, memoryview(bytearray(HEAD_BYTES + _RECEIVE_BYTES)))
        self.in_flight: deque[InFlight] = deque()
        self.used_s = now_s

    def __repr__(self) -> str:
        return f"Pipeline({self.connection.name}, {len(self.in_flight)} requests in flight)"

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._output)

    def send(self, request: InFlight, pieces: Sequence[Buffer], *, answered: bool) -> None:
        """Queue a request, given as header and body without length, and write what the socket takes now."""
        self.used_s = request.sent_s
        if answered:
            self.in_flight.append(request)
        length = sum(len(piece) for piece in pieces)
        self._output.append(memoryview(LENGTH.pack(length)))
        self._output.extend(memoryview(piece).cast("B") for piece in pieces if len(piece))
        self.write()

    def write(self) -> None:
        """Write as much as the socket takes."""
        while self._output:
            try:
                sent = self._sock.sendmsg(self._output[:_MAX_PIECES])
            except BlockingIOError:
                return
            except OSError as error:
                raise self._broken("sending to it", error) from error
            self._output = views_after(self._output, sent)

    def read(self) -> list[tuple[InFlight, memoryview]]:
        """Read what is there and return the answers that are complete, each with its request."""
        frames = self._frames
        try:
            received = self._sock.recv_into(frames.room()[0])
        except BlockingIOError:
            return []
        except OSError as error:
            raise self._broken("waiting for its answer", error) from error
        if not received:
            raise BrokerUnreachable(f"broker {self.connection.name} closed the connection")
        answers: list[tuple[InFlight, memoryview]] = []
        completed = frames.received(received)
        if completed is not None:
            answers.append((self._answered_by(completed), completed))
        try:
            while (frame := frames.next_frame()) is not None:
                answers.append((self._answered_by(frame), memoryview(bytes(frame))))
        except FrameSizeError as error:
            raise BrokerUnreachable(
                f"broker {self.connection.name} announces an answer of {error.size_bytes} bytes"
            ) from error
        frames.keep_rest(lend_memory)
        return answers

    def _answered_by(self, frame: memoryview) -> InFlight:
        """Take the oldest request, which this frame answers."""
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self.in_flight or self.in_flight[0].correlation_id != correlation_id:
            raise BrokerUnreachable(f"broker {self.connection.name} answers a request that was not its oldest")
        return self.in_flight.popleft()

    def _broken(self, doing: str, error: OSError) -> BrokerUnreachable:
        return BrokerUnreachable(f"broker {self.connection.name}: failed while {doing}: {describe(error)}")

    def close(self) -> None:
        """Close the connection; ``in_flight`` stays for the owner."""
        self._output.clear()
        self.connection.close()
