"""A producer's connection to one broker, non-blocking: many produce requests on their way, answers as they come.

Wraps an opened :class:`BrokerConnection` (handshake done, versions known) for a thread that waits on several sockets at
once. Owns what is not yet written, the requests in flight in their order, and the frame being received. Every method
raises BrokerUnreachable when the connection is broken; the owner then closes it and takes back ``in_flight``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.client.network.connection import MAX_RESPONSE_BYTES, BrokerConnection
from spark_kafkalite.client.network.sockets import MAX_PIECES, Buffer, describe, views_after
from spark_kafkalite.client.produce.accumulator import PartitionQueue
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.errors import BrokerUnreachable, SslHandshakeFailed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import HEAD_BYTES, LENGTH, FrameReader, FrameSizeError, lend_memory

_RECEIVE_BYTES: Final = 65_536


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
        self._tls = connection.tls
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
        return bool(self._output) or (self._tls is not None and self._tls.has_unsent)

    @property
    def wants_renewal(self) -> bool:
        """Whether the connection is to authenticate again, and takes no new request until then."""
        return self.connection.wants_renewal

    def detach(self) -> BrokerConnection:
        """Return the connection, blocking again; nothing may be in flight or unwritten, and this is over."""
        self.connection.attach()
        return self.connection

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
        try:
            while self._output:
                sent = self._sock.sendmsg(self._output[:MAX_PIECES])
                self._output = views_after(self._output, sent)
            if self._tls is not None:
                self._tls.flush()
        except BlockingIOError:
            return
        except (OSError, SslHandshakeFailed) as error:
            raise self._broken("sending to it", error) from error

    def read(self) -> list[tuple[InFlight, memoryview]]:
        """Read the received bytes and return the answers that are complete, each with its request.

        Without TLS that is what one system call brings: the socket stays readable while there is more. With TLS, all
        bytes that have left the socket are read, as the socket does not signal them again; they are bounded by one
        system call too.
        """
        answers: list[tuple[InFlight, memoryview]] = []
        self._read(self._sock.recv_into, answers)
        tls = self._tls
        if tls is not None:
            while tls.has_input and self._read(tls.recv_decrypted, answers):
                pass
        return answers

    def _read(self, recv_into: Callable[[memoryview], int | None], answers: list[tuple[InFlight, memoryview]]) -> bool:
        """Read once, and add the answers that are complete; returns whether anything was received."""
        frames = self._frames
        try:
            received = recv_into(frames.room()[0])
        except BlockingIOError:
            return False
        except (OSError, SslHandshakeFailed) as error:
            raise self._broken("waiting for its answer", error) from error
        if received is None:
            return False
        if not received:
            raise BrokerUnreachable(f"broker {self.connection.name} closed the connection")
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
        return True

    def _answered_by(self, frame: memoryview) -> InFlight:
        """Take the oldest request, which this frame answers."""
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self.in_flight or self.in_flight[0].correlation_id != correlation_id:
            raise BrokerUnreachable(f"broker {self.connection.name} answers a request that was not its oldest")
        return self.in_flight.popleft()

    def _broken(self, doing: str, error: Exception) -> BrokerUnreachable:
        return BrokerUnreachable(f"broker {self.connection.name}: failed while {doing}: {describe(error)}")

    def close(self) -> None:
        """Close the connection; ``in_flight`` stays for the owner."""
        self._output.clear()
        self.connection.close()
