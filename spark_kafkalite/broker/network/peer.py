"""A connection of this broker to another one, in the loop: it connects, authenticates, and sends requests in order.

First both brokers prove to each other that they know the cluster secret (``security.cluster_secret``), by SaslHandshake
and two SaslAuthenticate requests. The connection delays other requests until then.

Answers arrive in the order of the requests. The connection passes each answer to the function that its request was sent
with. The connection owns the answer's memory and uses it again. So an answer is valid only during that call, or, if the
call uses :meth:`PeerConnection.hold`, until :meth:`PeerConnection.release`. A large answer is received into its final
memory, without a copy.

A connection ends once, and passes the reason to ``on_closed``. It ends in these cases:

- The other broker has closed the connection, or does not answer in time.
- The authentication fails.
- The other broker sends an invalid answer, or one for which there is no memory.

The connection sends no request twice. The caller does not know whether the other broker has served an unanswered
request.

``peers`` keeps the connections and opens new ones. A follower has a separate connection to each leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.network.wire_versions import WireVersions
from spark_kafkalite.errors import (
    BrokerUnreachable,
    KafkaliteError,
    NoMemoryForAnswer,
    SaslAuthenticationFailed,
    UnsupportedVersion,
)
from spark_kafkalite.net.channel import Buffer, Channel, PlainChannel
from spark_kafkalite.net.outbox import ROOM_BYTES, Outbox
from spark_kafkalite.net.readiness import Readiness
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.security.cluster_secret import MECHANISM, ClusterSecret, broker_user
from spark_kafkalite.slices import NextTurn, Slices
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import decode_response_body, encode_body
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.frame import HEAD_BYTES, LENGTH, FrameReader, lend_memory
from spark_kafkalite.wire.header import pack_request_header, read_response_header
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest

logger = logging.getLogger(__name__)

# Answers up to this size are served in the buffer into which they were received.
_SCRATCH_BYTES: Final = 256 * 1024
# The buffer for larger answers grows in steps, so that slightly larger answers do not each need a new one.
_BUFFER_STEP_BYTES: Final = 1024 * 1024
# The size limit of answers before the other broker has authenticated.
_MOST_BEFORE_PROOF_BYTES: Final = 64 * 1024
_MOST_ANSWER_BYTES: Final = 2**31 - 1
# A body of at least this size is sent without a copy.
_LARGE_BYTES: Final = 64 * 1024
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_MOST_REASON: Final = 500
_REMEDY: Final = "all brokers of a cluster need the same secret (inter.broker.secret.file)"

OnAnswer = Callable[[memoryview], None]
OnClosed = Callable[[KafkaliteError], None]
MakeChannel = Callable[[socket.socket], Channel]


class PeerIdentity(NamedTuple):
    """This broker's identity for other brokers: its id, the cluster secret, and the versions that it speaks."""

    broker_id: int
    secret: ClusterSecret
    versions: WireVersions


class PeerSettings(NamedTuple):
    """``timeout_s`` limits connecting with authentication, and each answer; ``receive_buffer_bytes``: SO_RCVBUF.

    ``tls_channel`` makes the channel to a broker whose inner listener has TLS.
    """

    timeout_s: float
    receive_buffer_bytes: int
    tls_channel: Callable[[socket.socket, BrokerInfo], Channel] | None = None


class _Sent(NamedTuple):
    """A request without an answer yet."""

    correlation_id: int
    api_key: int
    version: int
    due_s: float
    on_answer: OnAnswer


class PeerConnection:
    """A connection to another broker; the module's docstring describes it."""

    __slots__ = (
        "_address",
        "_buffer",
        "_channel",
        "_client_id",
        "_correlation_id",
        "_due_timer",
        "_flush_scheduled",
        "_frames",
        "_held",
        "_identity",
        "_in_turn",
        "was_proved",
        "_later",
        "_loop",
        "_make_channel",
        "_next_turn",
        "_on_closed",
        "_opening",
        "_outbox",
        "_peer_id",
        "_readiness",
        "_resume_scheduled",
        "_room",
        "_sent",
        "_settings",
        "_slices",
        "closed",
        "name",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        peer_id: int,
        address: tuple[str, int],
        identity: PeerIdentity,
        settings: PeerSettings,
        on_closed: OnClosed,
        make_channel: MakeChannel = PlainChannel,
    ) -> None:
        """Begin to connect to broker ``peer_id``. ``make_channel`` may raise OSError and ConfigError.

        ``on_closed`` is called once, never from inside a call to this object, and not after :meth:`close`. Raises
        BrokerUnreachable if there is no memory for a connection.
        """
        self._peer_id = peer_id
        self.name = f"broker {peer_id} at {address_text(*address)}"
        self.closed = False
        self._loop = loop
        self._slices = slices
        self._address = address
        self._identity = identity
        self._client_id = broker_user(identity.broker_id)
        self._settings = settings
        self._on_closed = on_closed
        self._make_channel = make_channel
        try:
            self._frames = FrameReader(_MOST_BEFORE_PROOF_BYTES, lend_memory(HEAD_BYTES + _SCRATCH_BYTES))
            self._room = lend_memory(ROOM_BYTES)
        except (MemoryError, OSError) as error:
            raise self._unreachable(f"is not connected to: there is no memory ({error})") from error
        self._buffer: memoryview | None = None
        self._sent: deque[_Sent] = deque()
        # Requests that wait for the authentication.
        self._later: deque[tuple[int, int, Buffer, OnAnswer, float]] = deque()
        self._correlation_id = 0
        self.was_proved = False
        self._held = 0
        self._flush_scheduled = self._resume_scheduled = self._in_turn = False
        self._next_turn = NextTurn(slices)
        self._channel: Channel | None = None
        self._outbox: Outbox
        self._readiness: Readiness
        self._due_timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = loop.create_task(self._open())

    # Requests -------------------------------------------------------------------------------------------------------

    def send(
        self, api_key: int, version: int, body: Buffer, on_answer: OnAnswer, *, timeout_s: float | None = None
    ) -> None:
        """Send a request, now or after the authentication. ``body`` follows the header; this does not change it.

        ``on_answer`` receives the answer's body. It is not called if the connection ends before. The connection ends if
        the answer does not arrive within ``timeout_s``; None means the settings' ``timeout_s``.
        """
        if self.closed:
            return
        timeout_s = self._settings.timeout_s if timeout_s is None else timeout_s
        if self.was_proved:
            self._put(api_key, version, body, on_answer, timeout_s)
        else:
            self._later.append((api_key, version, body, on_answer, timeout_s))

    @property
    def unanswered(self) -> int:
        """How many requests have no answer yet."""
        return len(self._sent) + len(self._later)

    def hold(self) -> None:
        """Keep the present answer valid and pass on no further one, until :meth:`release` was called as often.

        Meanwhile no answer is overdue, because it may have arrived already.
        """
        self._held += 1
        self._readiness.set_reading(False)

    def release(self) -> None:
        """Continue with the answers that have arrived meanwhile."""
        self._held -= 1
        if not self._held and not self.closed:
            self._postpone_deadlines()
            self._resume_soon()

    def close(self) -> None:
        """End the connection without calling ``on_closed``."""
        if self.closed:
            return
        self.closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        if self._due_timer is not None:
            self._due_timer.cancel()
        if self._channel is not None:
            self._readiness.close()
            self._channel.close()
            self._outbox.clear()
        self._frames.clear()
        self._buffer = None
        self._sent.clear()
        self._later.clear()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "proved" if self.was_proved else "opening"
        return f"<PeerConnection to {self.name} {state} unanswered={self.unanswered}>"

    # Opening --------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        timeout_s = self._settings.timeout_s
        error: KafkaliteError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                self._channel = channel = await self._connected()
                self._outbox = Outbox(channel, self._room)
                self._readiness = Readiness(self._loop, channel, self._go_on_reading, self._go_on_writing)
                await self._prove()
        except TimeoutError:
            did = "cannot be connected to" if self._channel is None else "does not complete the authentication"
            error = self._unreachable(f"{did} within {timeout_s:.1f} s (replica.socket.timeout.ms)")
        except OSError as caught:
            error = self._unreachable(f"cannot be connected to: {caught.strerror or caught}")
            error.__cause__ = caught
        except KafkaliteError as caught:
            error = caught
        except Exception:
            logger.exception("the connection to %s failed", self.name)
            error = self._unreachable("is not connected to, because of an error in this broker")
        self._opening = None
        if error is not None:
            self._end(error)
            return
        self.was_proved = True
        self._frames.max_frame_bytes = _MOST_ANSWER_BYTES
        while self._later:
            self._put(*self._later.popleft())

    async def _connected(self) -> Channel:
        """Return a channel whose handshake is complete. Raises OSError, ConfigError."""
        problem: OSError | None = None
        for family, address in await _addresses(self._loop, *self._address):
            connecting = socket.socket(family, socket.SOCK_STREAM)
            try:
                connecting.setblocking(False)
                if self._settings.receive_buffer_bytes > 0:
                    # Before connecting, because TCP announces its window scale in the handshake.
                    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._settings.receive_buffer_bytes)
                await self._loop.sock_connect(connecting, address)
                channel = self._make_channel(connecting)
                while not channel.handshake():
                    await self._ready(channel)
                return channel
            except OSError as error:
                connecting.close()
                problem = error
            except BaseException:
                connecting.close()
                raise
        raise problem or OSError("its name has no address")

    async def _ready(self, channel: Channel) -> None:
        """Wait until the handshake can go on."""
        ready: asyncio.Future[None] = self._loop.create_future()
        fileno, is_write = channel.fileno(), channel.read_needs_write
        watch = self._loop.add_writer if is_write else self._loop.add_reader
        watch(fileno, _complete, ready)
        try:
            await ready
        finally:
            (self._loop.remove_writer if is_write else self._loop.remove_reader)(fileno)

    async def _prove(self) -> None:
        """Authenticate this broker to the other one, and the other one to this broker. Raises KafkaliteError."""
        answer = await self._ask(SaslHandshakeRequest(mechanism=MECHANISM), _HANDSHAKE_VERSION)
        if answer.error_code:
            raise error_for(
                answer.error_code,
                f"{self.name} does not authenticate brokers by {MECHANISM} on this listener: "
                "inter.broker.listener.name must name the same listener at all brokers, and all need a secret",
            )
        broker_id, secret, versions = self._identity
        exchange = secret.client(broker_id, _REMEDY, versions.version)
        said: bytes | None = exchange.first()
        while said is not None:
            answer = await self._ask(SaslAuthenticateRequest(auth_bytes=said), _AUTHENTICATE_VERSION)
            if answer.error_code:
                why = answer.error_message or "no reason given"
                if answer.error_code == UnsupportedVersion.code:
                    why = f"{self.name} refuses {broker_user(broker_id)} for its version: {why[:_MOST_REASON]}"
                    raise versions.refused_by(self._peer_id, why)
                raise error_for(
                    answer.error_code, f"{self.name} refuses {broker_user(broker_id)}: {why[:200]!r}; {_REMEDY}"
                )
            try:
                said = exchange.answer(answer.auth_bytes)
            except SaslAuthenticationFailed as error:
                raise SaslAuthenticationFailed(f"{self.name}: {error}; {_REMEDY}") from error

    async def _ask(self, message: ApiMessage, version: int) -> Any:
        """Send a request for the authentication and return its answer. Raises FrameError."""
        answered: asyncio.Future[Any] = self._loop.create_future()

        def on_answer(body: memoryview) -> None:
            if not answered.done():
                answered.set_result(bytes(body))

        self._put(message.API_KEY, version, encode_body(message, version), on_answer, self._settings.timeout_s)
        return decode_response_body(message.API_KEY, version, await answered)

    # Writing --------------------------------------------------------------------------------------------------------

    def _put(self, api_key: int, version: int, body: Buffer, on_answer: OnAnswer, timeout_s: float) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        head = pack_request_header(api_key, version, self._correlation_id, self._client_id)
        if len(body) < _LARGE_BYTES:
            head += body
            self._outbox.put(bytes(head))
        else:
            self._outbox.put(([bytes(head), body], len(head) + len(body)))
        due_s = self._loop.time() + timeout_s
        self._sent.append(_Sent(self._correlation_id, api_key, version, due_s, on_answer))
        if self._due_timer is not None and self._due_timer.when() > due_s:
            self._due_timer.cancel()
            self._due_timer = None
        if self._due_timer is None:
            self._due_timer = self._loop.call_at(due_s, self._check_due)
        # Not now: several requests are sent together, and send() must not call back.
        if not self._in_turn and not self._flush_scheduled and not self._readiness.writing:
            self._flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        if not self.closed:
            self._go_on_writing()

    def _go_on_writing(self) -> None:
        try:
            self._readiness.set_writing(not self._outbox.flush())
        except OSError as error:
            self._fail(f"is gone: {error.strerror}")

    def _check_due(self) -> None:
        """End the connection if an answer is overdue; check again when the next one would be."""
        self._due_timer = None
        if not self._sent:
            return
        if self._held:
            self._due_timer = self._loop.call_later(self._settings.timeout_s, self._check_due)
            return
        soonest = min(self._sent, key=lambda sent: sent.due_s)
        if soonest.due_s > self._loop.time():
            self._due_timer = self._loop.call_at(soonest.due_s, self._check_due)
        else:
            self._fail(f"did not answer {ApiKey(soonest.api_key).api_name} in time (replica.socket.timeout.ms)")

    def _postpone_deadlines(self) -> None:
        """Start the time limits of all unanswered requests again, because their answers could not be read meanwhile."""
        soonest_s = self._loop.time() + self._settings.timeout_s
        self._sent = deque(each._replace(due_s=max(each.due_s, soonest_s)) for each in self._sent)

    # Reading --------------------------------------------------------------------------------------------------------

    def _go_on_reading(self) -> None:
        # If this call does not read, the selector reports the data again.
        if not self._resume_scheduled and self._next_turn.is_now(self._turn_has_come):
            self._take_turn(self._read)

    def _turn_has_come(self) -> None:
        if not self.closed and not self._resume_scheduled and self._readiness.reading:
            self._take_turn(self._read)

    def _take_turn(self, work: Callable[[], None]) -> None:
        """Read, or pass on answers; then send the requests that were added meanwhile."""
        since_s = self._slices.now()
        self._in_turn = True
        try:
            work()
        except Exception:
            logger.exception("the connection to %s failed", self.name)
            self._fail("is disconnected because of an error in this broker")
        finally:
            self._in_turn = False
            if self._outbox.pieces and not self.closed and not self._readiness.writing:
                self._go_on_writing()
            self._slices.note(since_s)

    def _read(self) -> None:
        assert self._channel is not None
        try:
            received = self._channel.recv_into(*self._frames.room())
        except OSError as error:
            self._fail(f"is gone: {error.strerror}")
            return
        if self._channel.has_buffered:
            self._readiness.read_soon()
        if received is None:
            return
        if received == 0:
            amid = " in the middle of an answer" if self._frames.is_amid_frame else ""
            self._fail(f"closed the connection{amid}")
            return
        completed = self._frames.received(received)
        if completed is not None:
            self._answered(completed)
        elif self._frames.partial is not None:
            return
        self._take_answers()

    def _take_answers(self) -> None:
        """Pass on the received answers within this turn's time; keep the beginning of an incomplete one."""
        frames = self._frames
        is_first = True
        while not self.closed and not self._held:
            if self._slices.is_spent and frames.left_bytes and not is_first:
                self._readiness.set_reading(False)
                self._resume_soon()
                return
            is_first = False
            try:
                frame = frames.next_frame() if frames.left_bytes else None
            except KafkaliteError as error:
                self._fail(f"sends an invalid answer: {error}")
                return
            if frame is None:
                if frames.left_bytes:
                    try:
                        frames.keep_rest(self._lend)
                    except (MemoryError, OSError) as error:
                        self._end(self._without_memory(error))
                        return
                self._readiness.set_reading(True)
                return
            self._answered(frame)

    def _answered(self, frame: memoryview) -> None:
        """Pass an answer to the function of its request."""
        if not self._sent:
            self._fail("sends an answer without a request")
            return
        sent = self._sent.popleft()
        try:
            correlation_id, position = read_response_header(frame, sent.api_key, sent.version)
        except KafkaliteError as error:
            self._fail(f"sends an invalid answer: {error}")
            return
        if correlation_id != sent.correlation_id:
            self._fail(f"answers request {correlation_id} instead of {sent.correlation_id}")
            return
        sent.on_answer(frame[position:])

    def _without_memory(self, error: MemoryError | OSError) -> NoMemoryForAnswer:
        rest = self._frames.rest()
        size_bytes, body = LENGTH.unpack_from(rest)[0], b""
        if self._sent:
            sent = self._sent[0]
            with contextlib.suppress(KafkaliteError):
                body = bytes(rest[4 + read_response_header(rest[4:], sent.api_key, sent.version)[1] :])
        reason = error.strerror if isinstance(error, OSError) else "out of memory"
        text = f"{self.name} gives an answer of {size_bytes} bytes, for which there is no memory ({reason})"
        return NoMemoryForAnswer(text, size_bytes, body)

    def _lend(self, size_bytes: int) -> memoryview:
        """Return the buffer for one large answer: the present one if it is large enough."""
        buffer = self._buffer
        if buffer is None or len(buffer) < size_bytes:
            steps = -(-size_bytes // _BUFFER_STEP_BYTES)
            self._buffer = buffer = lend_memory(min(steps * _BUFFER_STEP_BYTES, _MOST_ANSWER_BYTES))
        return buffer[:size_bytes]

    def _resume_soon(self) -> None:
        if not self._resume_scheduled:
            self._resume_scheduled = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_scheduled = False
        if not self.closed:
            self._take_turn(self._take_answers)

    # Ending ---------------------------------------------------------------------------------------------------------

    def _unreachable(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"{self.name} {why}")

    def _fail(self, why: str) -> None:
        self._end(self._unreachable(why))

    def _end(self, error: KafkaliteError) -> None:
        if self.closed:
            return
        on_closed = self._on_closed
        self.close()
        on_closed(error)


def _complete(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the addresses of a host with their families. A thread looks names up. Raises OSError."""
    try:
        is_old = ipaddress.ip_address(host).version == 4
    except ValueError:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return [(socket.AF_INET if is_old else socket.AF_INET6, (host, port))]
