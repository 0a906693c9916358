"""One TCP connection to one broker: the handshake, versions, frames, and requests answered in order.

Blocking, for one thread at a time; :meth:`BrokerConnection.close` may be called from any thread and makes the blocked
one raise. Requests may be pipelined: ``send`` several, ``receive`` as many. A broker answers in order, so an answer
with another correlation id than the oldest request's means that the stream is broken, and the connection is closed.

On opening, ApiVersions asks the broker what it serves; each request then goes in the highest version that both know
(:data:`SUPPORTED` is our side). Any failure closes the connection and raises BrokerUnreachable, FrameError for an
answer that is not the protocol's; errors inside well-formed answers are the caller's.

A frame's length is the broker's word: memory for a long answer is taken as its bytes arrive (``wire.frame``).
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import itertools
import re
import socket
import struct
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import BrokerUnreachable, FrameError, UnsupportedVersion
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import HEAD_BYTES, LENGTH, FrameReader, FrameSizeError, Memory, lend_memory
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest

# The lowest and highest version of each API that the code in this package sends. Fetch ends before topic ids (13),
# OffsetCommit and OffsetFetch before them (10).
SUPPORTED: Final[dict[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.METADATA: (1, 12),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
}
_API_VERSIONS_MAX: Final = 3

MAX_RESPONSE_BYTES: Final = 1 << 30
_TIMEVAL: Final = struct.Struct("@ll")
_STAGED_BYTES: Final = 16_384

Buffer = bytes | bytearray | memoryview


@cache
def _software_version() -> str:
    """Our version, as the protocol allows it to be written (brokers refuse other characters)."""
    try:
        version = importlib.metadata.version("spark-kafkalite")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return re.sub(r"[^a-zA-Z0-9.\-]", "-", version).strip(".-") or "0"


class BrokerConnection:
    """An open connection. Make one with :meth:`open`, or :meth:`over`."""

    def __init__(self, sock: socket.socket, name: str, config: ClientConfig) -> None:
        self._sock = sock
        # Frames begin in its scratch, so that a small answer takes one system call and not two: every one of them gives
        # up the interpreter lock, and getting that back is what costs.
        self._frames = FrameReader(MAX_RESPONSE_BYTES, memoryview(bytearray(HEAD_BYTES + _STAGED_BYTES)))
        self.name = name
        self._config = config
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation = itertools.count(1)
        # (correlation id, api key, version) of unanswered requests, oldest first.
        self._pending: deque[tuple[int, int, int]] = deque()
        self.closed = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._pending)} unanswered"
        return f"BrokerConnection({self.name}, {state})"

    @classmethod
    def open(cls, host: str, port: int, config: ClientConfig, deadline: Deadline) -> BrokerConnection:
        """Connect and learn the broker's versions.

        Every address of the host is tried. Raises BrokerUnreachable naming each and why it failed.
        """
        deadline = deadline.earlier_of(config.connection_setup_timeout_ms)
        return cls.over(_connect(host, port, config, deadline), f"{host}:{port}", config, deadline)

    @classmethod
    def over(cls, sock: socket.socket, name: str, config: ClientConfig, deadline: Deadline) -> BrokerConnection:
        """Learn the broker's versions over a connected, blocking socket, which is the connection's from then on."""
        connection = cls(sock, name, config)
        try:
            connection._handshake(deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _handshake(self, deadline: Deadline) -> None:
        version = _API_VERSIONS_MAX
        while True:
            request = ApiVersionsRequest(
                client_software_name="spark-kafkalite", client_software_version=_software_version()
            )
            self._send_encoded(ApiKey.API_VERSIONS, version, request)
            # A broker that does not know the version answers in version 0, which the codec understands (KIP-511).
            answer = self.receive(deadline)
            if answer.error_code == UnsupportedVersion.code and version:
                highest = next((api.max_version for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)
                version = max(0, min(version - 1, highest))
                continue
            if answer.error_code:
                raise BrokerUnreachable(f"broker {self.name}: ApiVersions failed with error code {answer.error_code}")
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            return

    def serves(self, api_key: int) -> bool:
        """Whether the broker serves the API at all."""
        return api_key in self._versions

    def version(self, api_key: int) -> int:
        """Return the version to use for an API. Raises UnsupportedVersion when broker and client share none."""
        lowest, highest = SUPPORTED[api_key]
        if api_key not in self._versions:
            raise UnsupportedVersion(f"broker {self.name} does not serve {ApiKey(api_key).api_name} (API {api_key})")
        broker_lowest, broker_highest = self._versions[api_key]
        version = min(highest, broker_highest)
        if version < max(lowest, broker_lowest):
            raise UnsupportedVersion(
                f"broker {self.name} serves {ApiKey(api_key).api_name} in versions {broker_lowest} to "
                f"{broker_highest}, this client speaks {lowest} to {highest}"
            )
        return version

    # Requests -------------------------------------------------------------------------------------------------------

    def request(self, api_key: int, message: Any, deadline: Deadline) -> Any:
        """Send one request and return its decoded answer."""
        self.send(api_key, message)
        return self.receive(deadline)

    def send(self, api_key: int, message: Any) -> None:
        """Send a request; its answer comes after those of all earlier ones."""
        self._send_encoded(api_key, self.version(api_key), message)

    def receive(self, deadline: Deadline) -> Any:
        """Wait for the oldest unanswered request's answer and return it decoded."""
        _, api_key, version = self._pending[0]
        frame = self.receive_frame(deadline)
        try:
            return codec.decode_response(api_key, version, frame)[1]
        except FrameError as error:
            self.close()
            raise BrokerUnreachable(
                f"broker {self.name}: its answer to API {api_key} cannot be read: {error}"
            ) from error

    def next_correlation_id(self) -> int:
        """Return a number for a request that the caller encodes."""
        return next(self._correlation) & 0x7FFFFFFF

    def send_frame(self, correlation_id: int, api_key: int, version: int, pieces: Sequence[Buffer]) -> None:
        """Send a request that is encoded already (header and body, without length), as one frame."""
        self._pending.append((correlation_id, api_key, version))
        length = sum(len(piece) for piece in pieces)
        with self._failing("sending to it"):
            _send_all(self._sock, [LENGTH.pack(length), *pieces])

    def receive_frame(self, deadline: Deadline, into: Memory | None = None) -> memoryview:
        """Wait for the oldest unanswered request's answer and return its frame, correlation id checked.

        ``into`` is used for the frame when it is large enough; the view is then only valid until it is used again.
        """
        frame = self._receive_frame(deadline, into)
        correlation_id, api_key, _ = self._pending.popleft()
        if len(frame) < 4 or int.from_bytes(frame[:4], "big", signed=True) != correlation_id:
            self.close()
            raise BrokerUnreachable(
                f"broker {self.name}: an answer that belongs to no request came instead of that to API {api_key} "
                f"(correlation id {correlation_id})"
            )
        return frame

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
                try:
                    staged = frames.next_frame()
                except FrameSizeError as error:
                    raise FrameError(
                        f"{self.name} announces an answer of {error.size_bytes} bytes: this is not a Kafka broker's"
                    ) from error
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
        left_s = deadline.left_s()
        if left_s <= 0:
            raise TimeoutError
        # The kernel's own timeout on a blocking socket: settimeout() would cost two more calls, and two locks.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left_s))
        try:
            received = self._sock.recv_into(view)
        except BlockingIOError:
            raise TimeoutError from None
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the broker closed the connection")
        return received

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Any:
        """Close the connection on any failure, and raise it as ours."""
        try:
            yield
        except (OSError, FrameError, ValueError) as error:
            closed_by_us = self.closed
            self.close()
            reason = "the connection was closed" if closed_by_us else describe(error)
            raise BrokerUnreachable(f"broker {self.name}: failed while {doing}: {reason}") from error
        except BaseException:
            # An interrupted exchange leaves the stream in the middle of a frame.
            self.close()
            raise

    # The socket -----------------------------------------------------------------------------------------------------

    def detach(self) -> socket.socket:
        """Return the socket, non-blocking; the connection only knows the versions from then on."""
        self._sock.setblocking(False)
        return self._sock

    def close(self) -> None:
        """Close the connection; a thread that waits for an answer gets BrokerUnreachable."""
        if self.closed:
            return
        self.closed = True
        # shutdown() first: close() alone would not wake a thread that is blocked in recv().
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _connect(host: str, port: int, config: ClientConfig, deadline: Deadline) -> socket.socket:
    """Return a connected, blocking socket that is the caller's to close. Raises BrokerUnreachable."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerUnreachable(f"{host}:{port}: the host name cannot be resolved: {describe(error)}") from error
    failures: list[str] = []
    for family, kind, protocol, _, address in addresses:
        try:
            return _connected(socket.socket(family, kind, protocol), address, config, deadline)
        except OSError as error:
            shown = f"{host}:{port}" if address[0] == host else f"{host}:{port} ({address[0]})"
            failures.append(f"{shown}: {describe(error)}")
    raise BrokerUnreachable("; ".join(failures))


def _connected(sock: socket.socket, address: Any, config: ClientConfig, deadline: Deadline) -> socket.socket:
    """Return the socket connected, or close it and raise OSError."""
    try:
        if config.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
        if config.receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(max(0.001, deadline.left_s()))
        sock.connect(address)
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(config.request_timeout_ms / 1000))
    except BaseException:
        sock.close()
        raise
    return sock


def _timeval(seconds: float) -> bytes:
    """Return a time as the socket options want it; at least a microsecond, because zero means for ever."""
    microseconds = max(1, int(seconds * 1_000_000))
    return _TIMEVAL.pack(microseconds // 1_000_000, microseconds % 1_000_000)


def _send_all(sock: socket.socket, pieces: list[Buffer]) -> None:
    """Send every piece, gathered into as few system calls as possible."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    while views:
        sent = sock.sendmsg(views[:64])
        views = views_after(views, sent)


def views_after(views: list[memoryview], sent: int) -> list[memoryview]:
    """Return what is left of ``views`` when the first ``sent`` bytes are gone."""
    for number, view in enumerate(views):
        if sent < len(view):
            return [view[sent:], *views[number + 1 :]]
        sent -= len(view)
    return []


def describe(error: BaseException) -> str:
    """Return an error's text without its number, for messages."""
    # A blocking socket whose send timeout passes says EAGAIN.
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
