"""One client connection: complete requests out of the byte stream, responses back in request order.

Reading. All connections read into one scratch buffer that the owner lends; complete requests are served where they lie.
Only the cut-off last request of a read is copied, into a buffer of its own that takes memory as bytes arrive, and the
next read fills that buffer and some of the scratch in one call (``wire.frame``). An idle connection therefore owns no
buffer. A request's memory is valid only until its handler returns; code that keeps it longer copies it.

Writing. Responses leave in the order of the requests: an immediate answer waits behind an earlier deferred one
(``exchange``). What the responses of one read add up to is sent in one call where possible.

Turns. All connections share the time that a pass of the loop has for what is begun in it (``slices``). A connection
without a turn in this pass is served in turn at the beginning of one of the next passes, unless there is time before.
Without that the last connections would never be served, because epoll names readable connections in the same order
again and again.

Back-pressure. The connection is not read while too many of its requests are unanswered, too many response bytes unsent,
or all requests of the broker together take too much memory. Requests that were received but may not be served yet are
stashed.

One request that takes more than a slice of the loop's time holds its connection (:meth:`Connection.hold`): the next
ones wait until it is done, as every request does in Apache Kafka. Its memory is kept meanwhile, and counted. A client
that is over its quota is muted for a time (:meth:`Connection.mute`), which it learns from the answer (KIP-219).

A file range holds its segment's file open until it is sent or the connection closes, so a deletion does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spark_kafkalite.broker.network.incoming import Incoming
from spark_kafkalite.broker.network.session import Handshake, Session
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import FrameError
from spark_kafkalite.net.channel import Channel
from spark_kafkalite.net.outbox import FileEndedError, Outbox, Response
from spark_kafkalite.net.readiness import Readiness
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.slices import SLICE_S, NextTurn, Slices
from spark_kafkalite.wire.frame import FrameReader, FrameSizeError

_quiet = QuietLog(logging.getLogger(__name__))

# Of a request on a listener without SASL that is for brokers alone, which send no large tokens.
_MOST_BEFORE_PROOF_BYTES = 64 * 1024
# How long a TLS handshake may take, if request.read.timeout.ms is not shorter still.
_HANDSHAKE_S = 10.0
# How long others may wait for a request that has to be complete before they are read on, and how much longer for what
# of it comes meanwhile.
_HINDERS_S = 3.0
_HINDERING_BYTES_PER_S = 1024 * 1024
# The first two bytes of a TLS handshake, where a request has its length.
_TLS_HANDSHAKE = 0x1603


@dataclass(slots=True)
class Limits:
    """The settings that every connection obeys, read once. ``max_unauthenticated_bytes``: of a request while the client
    has to authenticate first."""

    max_frame_bytes: int
    max_requests: int
    max_response_bytes: int
    read_timeout_s: float
    idle_s: float
    max_unauthenticated_bytes: int


class Owner(Protocol):
    """What a connection needs of the server around it."""

    loop: asyncio.AbstractEventLoop
    at_end_of_pass: Callable[[Callable[[], None]], object]
    limits: Limits
    memory: RequestMemory
    room: memoryview
    scratch: memoryview
    slices: Slices

    def serve(self, connection: Connection, frame: memoryview) -> None:
        """Serve one request: answer it, defer the answer, or raise FrameError."""

    def handshake_complete(self, connection: Connection) -> None:
        """Take note that the channel's handshake is complete, or that the client has authenticated."""

    def connection_closed(self, connection: Connection, reason: str, *, hostile: bool) -> None:
        """Forget the connection. ``hostile``: the peer broke the protocol or a limit."""


class Connection:
    """See the module's text."""

    __slots__ = (
        "_channel",
        "_flush_scheduled",
        "_frames",
        "_held",
        "_hinders_until_s",
        "_incoming",
        "_memory",
        "_muted_until_s",
        "_next_turn",
        "_now",
        "_outbox",
        "_owner",
        "_pending",
        "_readiness",
        "_serving",
        "_turn_ends_s",
        "_turn_s",
        "closed",
        "last_activity_s",
        "received_s",
        "session",
    )

    def __init__(self, owner: Owner, channel: Channel, session: Session) -> None:
        """Start to serve a connected channel; ``session`` is new, and names the client and its listener."""
        self._owner = owner
        self._channel = channel
        self.session = session
        expects_proof = session.handshake is Handshake.EXPECTED
        most_bytes = owner.limits.max_frame_bytes
        if expects_proof:
            uses_sasl = session.listener.protocol.uses_sasl
            most_bytes = owner.limits.max_unauthenticated_bytes if uses_sasl else _MOST_BEFORE_PROOF_BYTES
        self._frames = FrameReader(most_bytes, owner.scratch)
        self._memory = owner.memory
        self._incoming = Incoming(self._frames, owner.memory)
        # By how much work that is not done.
        self._held = 0
        self._muted_until_s = 0.0
        # Until when others wait for its request, not counting the time that its bytes allow it.
        self._hinders_until_s = math.inf
        self._pending: deque[Exchange] = deque()
        self._outbox = Outbox(channel, owner.room)
        self._serving = False
        self._flush_scheduled = False
        # When the connection's present turn began, and when it ends if that is before the pass's time is used up.
        self._turn_s = 0.0
        self._turn_ends_s = math.inf
        self._next_turn = NextTurn(owner.slices)
        # The clock by which turns end; the loop's is another.
        self._now = owner.slices.now
        self.closed = False
        # When bytes last came, and when they last came or went.
        self.received_s = self.last_activity_s = owner.loop.time()
        self._readiness = Readiness(owner.loop, channel, self._go_on_reading, self._go_on_writing)

    # Reading --------------------------------------------------------------------------------------------------------

    def _go_on_reading(self) -> None:
        if self._next_turn.is_now(self._turn_has_come):
            self._take_turn()

    def _turn_has_come(self) -> None:
        """Serve the client for a slice."""
        if self.closed:
            return
        self._turn_ends_s = self._now() + SLICE_S
        try:
            if self._frames.stashed_bytes:
                self._maybe_resume()
            elif self._readiness.reading:
                self._take_turn()
        except Exception:
            self._report_bug()
        finally:
            self._turn_ends_s = math.inf

    def _take_turn(self) -> None:
        """Read, and serve what was read."""
        slices = self._owner.slices
        self._turn_s = self._now()
        try:
            if self._channel.needs_handshake and not self._shake_hands():
                return
            self._read()
            if self._channel.has_buffered and self._readiness.reading:
                self._readiness.read_soon()
        except MemoryError:
            self._out_of_memory("a request")
        except Exception:
            self._report_bug()
        finally:
            slices.note(self._turn_s)

    def _shake_hands(self) -> bool:
        """Go on with the channel's handshake; return whether it is done."""
        try:
            done = self._channel.handshake()
        except OSError as error:
            # That a peer just goes says little: programs that look whether a port is open do so.
            is_hostile = not isinstance(error, ConnectionResetError)
            self.close(f"did not complete its handshake: {error.strerror or error}", hostile=is_hostile)
            return False
        self._readiness.update()
        if done:
            self._owner.handshake_complete(self)
        return done

    def _report_bug(self) -> None:
        """Close after an error that is ours: a callback that raises would be called again and again."""
        try:
            _quiet.log(logging.ERROR, "bug", "the connection to %s failed", self.session.peer, exc_info=True)
        finally:
            self.close("an error in the broker")

    def _out_of_memory(self, what: str) -> None:
        """Close, because there is no memory for what the peer sends; others may still be served."""
        _quiet.log(
            logging.WARNING, "memory", "closed the connection from %s: no memory for %s", self.session.peer, what
        )
        self.close(f"no memory for {what}")

    def _read(self) -> None:
        owner = self._owner
        if not self._memory.may_read(self):
            self._readiness.set_reading(False)
            return
        frames = self._frames
        try:
            received = self._channel.recv_into(*frames.room())
        except OSError as error:
            self.close(f"connection lost: {error.strerror}")
            return
        if received is None:
            self._readiness.update()
            return
        if received == 0:
            self.close("closed by the peer" + (" in the middle of a request" if frames.is_amid_frame else ""))
            return
        self.received_s = self.last_activity_s = owner.loop.time()
        if frames.partial is None:
            frames.received(received)
        else:
            frame = self._incoming.received(received)
            if frame is None:
                return
            try:
                if not self._serve(frame):
                    return
            finally:
                self._incoming.served(frame)
            # Also if another request has begun: a client that sends without a pause would keep the others out.
            self._memory.request_complete(self)
        self._serve_received()
        if frames.partial is None:
            self._memory.request_complete(self)

    @property
    def _limit_name(self) -> str:
        is_all = self._frames.max_frame_bytes == self._owner.limits.max_frame_bytes
        return "socket.request.max.bytes" if is_all else "sasl.server.max.receive.size, until it authenticates"

    def allow_large_requests(self) -> None:
        """Take requests of any allowed size, although the session began with a handshake."""
        if self.closed:
            # The client has left while its authentication was waiting: its share of memory is given back already.
            return
        self._frames.max_frame_bytes = self._owner.limits.max_frame_bytes
        self._owner.handshake_complete(self)

    def use_memory(self, memory: RequestMemory) -> None:
        """Count requests in another memory from now on: the share of a client, or the whole for a broker."""
        if memory is not self._memory:
            self._memory.forget(self)
            self._memory = memory
            self._incoming.move_to(memory)

    def keep(self, frame: memoryview) -> tuple[memoryview, Callable[[], None]]:
        """Return memory with the request being served that stays as it is until the returned function is called."""
        return self._incoming.keep(frame)

    def _serve_received(self) -> None:
        """Serve the complete requests that were received, and keep what is left."""
        frames, slices = self._frames, self._owner.slices
        served = False
        while frames.left_bytes:
            try:
                frame = frames.next_frame()
            except FrameSizeError as error:
                self.close(_oversized(error.size_bytes, frames.max_frame_bytes, self._limit_name), hostile=True)
                return
            if frame is None:
                break
            if self._is_congested():
                frames.put_back(frame)
                self._flush()
                if self.closed:
                    return
                if self._is_congested():
                    self._stash()
                    return
                continue
            if served:
                slices.note(self._turn_s)
                if slices.is_spent or self._now() >= self._turn_ends_s:
                    frames.put_back(frame)
                    self._stash()
                    self._schedule_flush()
                    return
            if not self._serve(frame):
                return
            served = True
        if frames.left_bytes or frames.stashed_bytes:
            self._keep_rest()
        if self._outbox.pieces and not self._readiness.writing:
            self._flush()

    def _serve(self, frame: memoryview) -> bool:
        """Hand one request to the owner; return whether the connection is still open."""
        self._serving = True
        self._incoming.begun_s = 0.0
        try:
            self._owner.serve(self, frame)
        except FrameError as error:
            self.close(f"sent a request that cannot be read: {error}", hostile=True)
        finally:
            self._serving = False
        return not self.closed

    def _keep_rest(self) -> None:
        """Keep the beginning of a request that has not fully arrived."""
        try:
            self._incoming.keep_rest(self.received_s)
        except (MemoryError, OSError):
            self._out_of_memory(f"a request of {self._frames.announced_bytes} bytes")

    def _stash(self) -> None:
        """Keep received requests that may not be served yet, and stop reading."""
        self._incoming.stash()
        self._stop_reading()

    def _is_congested(self) -> bool:
        limits = self._owner.limits
        return (
            self._held > 0
            or self._muted_until_s > 0.0
            or len(self._pending) + len(self._outbox.pieces) >= limits.max_requests
            or self._outbox.unsent_bytes >= limits.max_response_bytes
        )

    def _maybe_resume(self) -> None:
        """Serve what is stashed, and read on when nothing prevents it any more."""
        frames = self._frames
        served = False
        while frames.stashed_bytes and not self._serving:
            if self._is_congested():
                return
            # Not before a request is served: with a slow clock, a turn would be over before it has done anything.
            if served and self._now() >= self._turn_ends_s:
                self._next_turn.ask(self._turn_has_come)
                return
            if not self._next_turn.is_now(self._turn_has_come):
                return
            self._turn_s = self._now()
            self.last_activity_s = self.now_s()
            self._serve_received()
            served = True
        if not self._readiness.reading and not self.closed and not frames.stashed_bytes and not self._is_congested():
            self._readiness.set_reading(True)

    def memory_available(self) -> None:
        """Read on after a pause for want of request memory."""
        if not self.closed:
            self._maybe_resume()
            if not self._readiness.reading:
                self._memory.stopped_reading(self)

    def _stop_reading(self) -> None:
        self._readiness.set_reading(False)
        self._memory.stopped_reading(self)

    # Answering ------------------------------------------------------------------------------------------------------

    def answered(self, exchange: Exchange) -> None:
        """Queue the answer of an exchange; it leaves when those before it have."""
        if exchange.has_place:
            if not exchange.abandoned:
                self._place_filled()
        elif self.closed or not exchange.response:
            exchange.ended(sent=not self.closed)
        elif self._pending:
            self.take_place(exchange)
        else:
            self._put(exchange, exchange.response)

    def take_place(self, exchange: Exchange) -> None:
        """Have answers to later requests wait behind this one."""
        exchange.has_place = True
        if self.closed:
            exchange.abandon()
        else:
            self._pending.append(exchange)

    def _put(self, exchange: Exchange, response: Response) -> None:
        self._outbox.put(response)
        if exchange.oversight is not None:
            self._outbox.watch(lambda sent: exchange.ended(sent=sent))

    def now_s(self) -> float:
        """The loop's time."""
        return self._owner.loop.time()

    def hold(self) -> None:
        """Serve no further request, and read none, until :meth:`release` is called as often."""
        self._held += 1
        self._stop_reading()

    def release(self) -> None:
        """Go on with the requests that came meanwhile."""
        self._held -= 1
        self._schedule_flush()

    def mute(self, seconds: float) -> None:
        """Serve no further request, and read none, for some time; answers leave meanwhile."""
        until_s = self.now_s() + seconds
        if until_s <= self._muted_until_s or self.closed:
            return
        if not self._muted_until_s:
            self._owner.loop.call_later(seconds, self._unmute)
        self._muted_until_s = until_s
        self._stop_reading()

    def _unmute(self) -> None:
        left_s = self._muted_until_s - self.now_s()
        if self.closed:
            return
        if left_s > 0:
            # Another answer has muted it for longer meanwhile.
            self._owner.loop.call_later(left_s, self._unmute)
            return
        self._muted_until_s = 0.0
        # The client was to be silent; neither that nor a request cut in two by it is held against it.
        self.last_activity_s = self.now_s()
        if self._incoming.begun_s:
            self._incoming.begun_s = self.last_activity_s
        self._schedule_flush()

    def _place_filled(self) -> None:
        pending = self._pending
        while pending and (response := pending[0].response) is not None:
            self._put(pending.popleft(), response)
        # While requests are being served the flush comes at the end; else soon, so that several completions share it.
        to_send = self._outbox.pieces and not self._serving and not self._readiness.writing
        if to_send or (self._frames.stashed_bytes and not self._outbox.pieces):
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._owner.at_end_of_pass(self._scheduled_flush)

    def send_answers(self) -> None:
        """Send now what would be sent soon, because no more answers are made just now."""
        if not self._flush_scheduled or self.closed or self._readiness.writing or not self._outbox.pieces:
            return
        try:
            self._flush_apart()
        except Exception:
            self._report_bug()

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        if self.closed:
            return
        try:
            if self._outbox.pieces and not self._readiness.writing:
                self._flush_apart()
            if not self.closed:
                self._maybe_resume()
        except Exception:
            self._report_bug()

    def _flush(self) -> None:
        """Send what the socket takes; the rest follows when it is writable."""
        try:
            self._readiness.set_writing(not self._outbox.flush())
        except OSError as error:
            self.close(f"connection lost: {error.strerror}")
        except FileEndedError as error:
            self.close(str(error))

    def _flush_apart(self) -> None:
        """Send, when nothing has been received just now, which is the other activity that there is."""
        sent_bytes = self._outbox.sent_bytes
        self._flush()
        if self._outbox.sent_bytes != sent_bytes:
            self.last_activity_s = self._owner.loop.time()

    def _go_on_writing(self) -> None:
        try:
            self._flush_apart()
            if not self.closed:
                self._maybe_resume()
        except Exception:
            self._report_bug()

    # Ending ---------------------------------------------------------------------------------------------------------

    def overdue(self, now_s: float) -> str | None:
        """Return why the connection must be closed now for being slow or idle, or None. Called every second or so."""
        limits = self._owner.limits
        self.session.maybe_expire(now_s)
        if now_s > self.session.handshake_due_s:
            failed = self.session.handshake is Handshake.FAILED
            return "failed to authenticate" if failed else "did not authenticate in time (request.read.timeout.ms)"
        if not self._memory.hinders(self):
            self._hinders_until_s = math.inf
        else:
            earned_s = self._frames.filled_bytes / _HINDERING_BYTES_PER_S
            if self._hinders_until_s == math.inf:
                self._hinders_until_s = now_s + _HINDERS_S - earned_s
            elif now_s > self._hinders_until_s + earned_s:
                return "is too slow with a request for which others wait (queued.max.request.bytes)"
        if self._channel.needs_handshake:
            waited_s = now_s - self.last_activity_s
            if waited_s > min(limits.read_timeout_s, _HANDSHAKE_S):
                return f"did not complete its handshake in {waited_s:.0f} s"
        elif self._frames.is_amid_frame:
            # Not the peer's fault while we do not read.
            return self._incoming.slowness(now_s, limits.read_timeout_s) if self._readiness.reading else None
        elif (
            limits.idle_s >= 0
            and not self._pending
            and not self._muted_until_s
            and now_s - self.last_activity_s > limits.idle_s
        ):
            return f"idle for {now_s - self.last_activity_s:.0f} s (connections.max.idle.ms)"
        return None

    @property
    def is_paused(self) -> bool:
        """Whether the connection is not read, so that the end of the stream would go unnoticed."""
        return not self._readiness.reading

    @property
    def is_muted(self) -> bool:
        """Whether it is not read because its client is over a quota, for a while."""
        return self._muted_until_s > 0.0

    @property
    def has_work(self) -> bool:
        """Whether responses are owed or unsent."""
        return bool(self._pending or self._outbox.pieces or self._channel.unsent_bytes)

    def fileno(self) -> int:
        """File descriptor of the channel."""
        return self._channel.fileno()

    def close(self, reason: str, *, hostile: bool = False) -> None:
        """Close at once; what is queued is dropped, and the handlers of deferred responses are notified."""
        if self.closed:
            return
        self._readiness.close()
        self.closed = True
        self._channel.close()
        self._memory.forget(self)
        self._incoming.close()
        self._outbox.clear()
        pending, self._pending = self._pending, deque()
        for exchange in pending:
            if exchange.response is None:
                exchange.abandon()
            else:
                exchange.ended(sent=False)
        self.session.connection_closed()
        self._owner.connection_closed(self, reason, hostile=hostile)

    def __repr__(self) -> str:
        return (
            f"<Connection {self.session.peer} pending={len(self._pending)} unsent={self._outbox.unsent_bytes} "
            f"reading={self._readiness.reading} writing={self._readiness.writing} closed={self.closed}>"
        )


def _oversized(size_bytes: int, most_bytes: int, setting: str) -> str:
    """Return why a connection is closed that announces a request of this size; ``setting`` has the limit."""
    if size_bytes >> 16 == _TLS_HANDSHAKE:
        return (
            "speaks TLS to a listener without TLS; a client of it needs security.protocol=PLAINTEXT or SASL_PLAINTEXT"
        )
    return (
        f"announced a request of {size_bytes} bytes, allowed are 1 to {most_bytes} ({setting}); is this a client of "
        "another protocol?"
    )
