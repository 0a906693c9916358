"""One connection to one broker: TLS and authentication where they are wanted, frames, and requests answered in order.

Blocking, for one thread at a time; :meth:`BrokerConnection.close` may be called from any thread and makes the blocked
one raise. Requests may be pipelined: ``send`` several, ``receive`` as many. A broker answers in order, so an answer
with another correlation id than the oldest request's means that the stream is broken, and the connection is closed.

Any failure closes the connection and raises BrokerUnreachable, or HandshakeFailed before the broker has shown that it
talks with us (:mod:`.wrong_door`); errors inside well-formed answers are the caller's.

A session that authentication has made may end (KIP-368). Shortly before, or with the first request after that, the
connection authenticates again in :meth:`BrokerConnection.send_frame`: answers that are outstanding are taken in first
and kept for :meth:`BrokerConnection.receive_frame`. If that fails, the connection is broken like any other.

A frame's length is the broker's word: memory for a long answer is taken as its bytes arrive (``wire.frame``).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafkalite.client.client_config import ClientConfig
from spark_kafkalite.client.network import authentication, wrong_door
from spark_kafkalite.client.network.half_open import HalfOpen
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.served_versions import API_VERSIONS_MAX, api_versions_request, version_for
from spark_kafkalite.client.network.sockets import Buffer, ByteSocket, connect, describe, limit_receiving, send_all
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import (
    BrokerUnreachable,
    FrameError,
    HandshakeFailed,
    KafkaliteError,
    SslHandshakeFailed,
    UnsupportedVersion,
)
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import HEAD_BYTES, LENGTH, FrameReader, FrameSizeError, Memory, lend_memory

if TYPE_CHECKING:
    from spark_kafkalite.client.network.tls_socket import TlsSocket

MAX_RESPONSE_BYTES: Final = 1 << 30
# Of answers up to authentication: what is no broker announces more, and nobody waits for that to come.
_MAX_FIRST_RESPONSE_BYTES: Final = 1 << 20
_STAGED_BYTES: Final = 16_384


class Stage(Enum):
    """What the other end has shown so far; see :mod:`.wrong_door`."""

    # Nothing: it may be anything.
    UNKNOWN = auto()
    # It is a broker: ApiVersions was answered.
    GREETED = auto()
    # It has answered a real request, or has authenticated us.
    IN_USE = auto()


class _Request(NamedTuple):
    """A request that was sent."""

    correlation_id: int
    api_key: int
    version: int


class BrokerConnection:
    """An open connection. Make one with :meth:`open`, or :meth:`over`."""

    def __init__(self, sock: socket.socket, name: str, config: ClientConfig, clock: Clock) -> None:
        self._sock: ByteSocket = sock
        self.tls: TlsSocket | None = None
        # Frames begin in its scratch, so that a small answer takes one system call and not two: every one of them gives
        # up the interpreter lock, and getting that back is what costs.
        self._frames = FrameReader(_MAX_FIRST_RESPONSE_BYTES, memoryview(bytearray(HEAD_BYTES + _STAGED_BYTES)))
        self.name = name
        self.host = name.rpartition(":")[0]
        self._config = config
        self._clock = clock
        self._stage = Stage.UNKNOWN
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation = itertools.count(1)
        # Unanswered requests, oldest first; and before them those whose answers were taken in early.
        self._pending: deque[_Request] = deque()
        self._kept: deque[tuple[_Request, memoryview]] = deque()
        # When the session is to be renewed (monotonic); None for one without end.
        self._renew_at_s: float | None = None
        self.closed = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._pending)} unanswered"
        return f"BrokerConnection({self.name}, {state})"

    # Opening --------------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, host: str, port: int, config: ClientConfig, deadline: Deadline, half_open: HalfOpen | None = None
    ) -> BrokerConnection:
        """Connect, encrypt, learn the broker's versions and authenticate, as ``security.protocol`` requires.

        Every address of the host is tried. ``half_open`` holds the connection meanwhile. Raises BrokerUnreachable
        naming each and why it failed, HandshakeFailed for what takes the connection and does not go on,
        SslHandshakeFailed, SaslAuthenticationFailed (58), UnsupportedSaslMechanism (33), IllegalSaslState (34).
        """
        deadline = deadline.earlier_of(config.connection_setup_timeout_ms)
        return cls.over(connect(host, port, config, deadline), host, port, config, deadline, half_open)

    @classmethod
    def over(
        cls,
        sock: socket.socket,
        host: str,
        port: int,
        config: ClientConfig,
        deadline: Deadline,
        half_open: HalfOpen | None = None,
    ) -> BrokerConnection:
        """Go on over a connected, blocking socket, which is the connection's from then on; else like :meth:`open`."""
        connection = cls(sock, f"{host}:{port}", config, deadline.clock)
        try:
            with contextlib.nullcontext() if half_open is None else half_open.holding(connection):
                connection._begin(host, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, host: str, deadline: Deadline) -> None:
        """Do all that comes before the first real request."""
        security = self._config.security
        if security.protocol.encrypts:
            self._encrypt(host, deadline)
        self._learn_versions(deadline)
        if security.login is not None:
            try:
                self._authenticate(deadline)
            except BrokerUnreachable as error:
                raise HandshakeFailed(f"{error}, while it was to authenticate this client") from error
        self._frames.max_frame_bytes = MAX_RESPONSE_BYTES

    def _encrypt(self, host: str, deadline: Deadline) -> None:
        # A client that does not encrypt loads nothing of this.
        from spark_kafkalite.client.network.tls_socket import TlsSocket
        from spark_kafkalite.security.tls import TlsStream

        context = self._config.security.tls_context
        assert context is not None
        assert isinstance(self._sock, socket.socket)
        self._sock = self.tls = TlsSocket(self._sock, TlsStream(context, host=host))
        with self._failing("encrypting it"):
            try:
                self.tls.handshake(deadline)
            except HandshakeFailed as error:
                raise wrong_door.no_tls(self.name, str(error), self.tls.first_received) from error

    def _learn_versions(self, deadline: Deadline) -> None:
        version = API_VERSIONS_MAX
        while True:
            self._send_encoded(ApiKey.API_VERSIONS, version, api_versions_request())
            # A broker that does not know the version answers in version 0, which the codec understands (KIP-511).
            answer = self.receive(deadline)
            if answer.error_code == UnsupportedVersion.code and version:
                highest = next((api.max_version for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)
                version = max(0, min(version - 1, highest))
                continue
            if answer.error_code:
                raise BrokerUnreachable(f"broker {self.name}: ApiVersions failed with error code {answer.error_code}")
            break
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        self._stage = Stage.GREETED

    def _authenticate(self, deadline: Deadline) -> None:
        security = self._config.security
        assert security.login is not None
        # The requests that carry the exchange must not ask for another one.
        self._renew_at_s = None
        began_s = self._clock.monotonic_s()
        lifetime_ms = authentication.authenticate(self, security.login, security.protocol, deadline)
        self._stage = Stage.IN_USE
        if lifetime_ms > 0:
            self._renew_at_s = authentication.renewal_at_s(lifetime_ms, began_s, self._clock.monotonic_s())

    @property
    def wants_renewal(self) -> bool:
        """Whether the connection is to authenticate again before the next request."""
        return self._renew_at_s is not None and self._clock.monotonic_s() >= self._renew_at_s

    def renew(self, deadline: Deadline) -> None:
        """Authenticate again, after all outstanding answers have arrived; it may take as long as opening a connection.

        Raises BrokerUnreachable: a new connection finds out whether the credentials still do.
        """
        try:
            self._renew_at_s = None
            kept, self._kept = self._kept, deque()
            while self._pending:
                frame = self._receive_frame(deadline, None)
                kept.append((self._answered_by(frame), frame))
            self._authenticate(deadline.earlier_of(self._config.connection_setup_timeout_ms))
            self._kept = kept
        except KafkaliteError as error:
            self.close()
            raise BrokerUnreachable(
                f"broker {self.name}: authenticating again before the session ends failed: {error}"
            ) from error
        except BaseException:
            self.close()
            raise

    def serves(self, api_key: int) -> bool:
        """Whether the broker serves the API at all."""
        return api_key in self._versions

    def version(self, api_key: int) -> int:
        """Return the version to use for an API. Raises UnsupportedVersion when broker and client share none."""
        return version_for(api_key, self._versions, self.name)

    # Requests -------------------------------------------------------------------------------------------------------

    def request(self, api_key: int, message: Any, deadline: Deadline) -> Any:
        """Send one request and return its decoded answer."""
        if self.wants_renewal:
            self.renew(deadline)
        self.send(api_key, message)
        return self.receive(deadline)

    def send(self, api_key: int, message: Any) -> None:
        """Send a request; its answer comes after those of all earlier ones."""
        self._send_encoded(api_key, self.version(api_key), message)

    def receive(self, deadline: Deadline) -> Any:
        """Wait for the oldest unanswered request's answer and return it decoded."""
        _, api_key, version = self._kept[0][0] if self._kept else self._pending[0]
        frame = self.receive_frame(deadline)
        try:
            return codec.decode_response(api_key, version, frame)[1]
        except FrameError as error:
            raise self._broken(f"its answer to API {api_key} cannot be read: {error}") from error

    def next_correlation_id(self) -> int:
        """Return a number for a request that the caller encodes."""
        return next(self._correlation) & 0x7FFFFFFF

    def send_frame(self, correlation_id: int, api_key: int, version: int, pieces: Sequence[Buffer]) -> None:
        """Send a request that is encoded already (header and body, without length), as one frame."""
        if self._renew_at_s is not None and self.wants_renewal:
            self.renew(Deadline.after_ms(self._config.default_api_timeout_ms, self._clock))
        self._pending.append(_Request(correlation_id, api_key, version))
        length = sum(len(piece) for piece in pieces)
        with self._failing("sending to it"):
            send_all(self._sock, [LENGTH.pack(length), *pieces])

    def receive_frame(self, deadline: Deadline, into: Memory | None = None) -> memoryview:
        """Wait for the oldest unanswered request's answer and return its frame, correlation id checked.

        ``into`` is used for the frame when it is large enough; the view is then only valid until it is used again.
        """
        if self._kept:
            return self._kept.popleft()[1]
        frame = self._receive_frame(deadline, into)
        self._answered_by(frame)
        return frame

    def _answered_by(self, frame: memoryview) -> _Request:
        """Take the oldest request, which this frame must be the answer to."""
        request = self._pending.popleft()
        if len(frame) < 4 or int.from_bytes(frame[:4], "big", signed=True) != request.correlation_id:
            raise self._broken(
                f"an answer that belongs to no request came instead of that to API {request.api_key} (correlation id "
                f"{request.correlation_id})"
            )
        if self._stage is Stage.GREETED:
            self._stage = Stage.IN_USE
        return request

    def _send_encoded(self, api_key: int, version: int, message: Any) -> None:
        correlation_id = self.next_correlation_id()
        body = codec.encode_request(message, version, correlation_id, self._config.client_id)
        self.send_frame(correlation_id, api_key, version, [body])

    def _receive_frame(self, deadline: Deadline, into: Memory | None) -> memoryview:
        def lend(size_bytes: int) -> memoryview:
            if into is not None and len(into) >= size_bytes:
                return memoryview(into)[:size_bytes]
            return lend_memory(size_bytes)

        frames = self._frames
        with self._failing("waiting for its answer"):
            while True:
                staged = frames.next_frame()
                if staged is not None:
                    frame = lend(len(staged))
                    frame[:] = staged
                    return frame
                frames.keep_rest(lend)
                received = self._receive(frames.room()[0], deadline)
                completed = frames.received(received)
                if completed is not None:
                    return completed

    def _receive(self, view: memoryview, deadline: Deadline) -> int:
        """Receive at least a byte. Raises TimeoutError at the deadline, ConnectionResetError at the stream's end."""
        sock = self._sock
        while True:
            limit_receiving(sock, deadline)
            try:
                received = sock.recv_into(view)
            except BlockingIOError:
                raise TimeoutError from None
            if received:
                return received
            if received == 0:
                raise ConnectionResetError(errno.ECONNRESET, "the broker closed the connection")

    # Failure --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Close the connection on any failure, and raise it as ours."""
        try:
            yield
        except (OSError, FrameError, ValueError) as error:
            closed_by_us = self.closed
            self.close()
            if closed_by_us:
                raise BrokerUnreachable(
                    f"broker {self.name}: failed while {doing}: the connection was closed"
                ) from error
            raise self._failed(doing, error) from error
        except SslHandshakeFailed as error:
            self.close()
            raise SslHandshakeFailed(f"broker {self.name}: {error}") from error
        except BaseException:
            # An interrupted exchange leaves the stream in the middle of a frame.
            self.close()
            raise

    def _failed(self, doing: str, error: Exception) -> BrokerUnreachable:
        """Return what an error of the stream means at this stage."""
        protocol = self._config.security.protocol
        if isinstance(error, FrameSizeError):
            if self._stage is Stage.UNKNOWN:
                return wrong_door.stranger(self.name, protocol, LENGTH.pack(error.size_bytes))
            return BrokerUnreachable(
                f"broker {self.name} announces an answer of {error.size_bytes} bytes: this is not a Kafka broker's"
            )
        if self._stage is Stage.UNKNOWN and isinstance(error, (ConnectionError, TimeoutError, BlockingIOError)):
            silent = not isinstance(error, ConnectionError)
            return wrong_door.nothing_said(self.name, protocol, "it is silent" if silent else "it ends the connection")
        if self._stage is Stage.GREETED and isinstance(error, ConnectionError) and not protocol.uses_sasl:
            return wrong_door.closed_at_first_request(self.name, protocol)
        return BrokerUnreachable(f"broker {self.name}: failed while {doing}: {describe(error)}")

    def _broken(self, problem: str) -> BrokerUnreachable:
        """Close the connection, and return the error for an answer that makes no sense."""
        self.close()
        kind = HandshakeFailed if self._stage is Stage.UNKNOWN else BrokerUnreachable
        return kind(f"broker {self.name}: {problem}")

    # The socket -----------------------------------------------------------------------------------------------------

    def detach(self) -> ByteSocket:
        """Return the socket, non-blocking; the connection only knows the versions and the session from then on."""
        self._sock.setblocking(False)
        return self._sock

    def attach(self) -> None:
        """Take the socket back, with nothing on its way in either direction."""
        self._sock.setblocking(True)

    def close(self) -> None:
        """Close the connection; a thread that waits for an answer gets BrokerUnreachable."""
        if self.closed:
            return
        self.closed = True
        # shutdown() first: close() alone would not wake a thread that is blocked in recv().
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
