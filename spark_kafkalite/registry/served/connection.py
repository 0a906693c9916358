"""One connection of ZooKeeper's protocol: frames in, answers and events out in order, bounded memory.

Requests run in the registry's writer thread in the order in which they came. Their answers, and the events of this
connection's watches, come back through the server's outbox in the order of the transactions and leave in that order.

Bounds, so that the cost of each client is limited:

- a frame has at most MAX_FRAME_BYTES, the first one (before there is a session) MAX_HELLO_BYTES;
- what arrives waits in a buffer until the server's loop has a slice for it (``advance_work``), a few frames of each
  connection in turn; with more than MAX_UNTAKEN_BYTES of that nothing more is read;
- MAX_IN_FLIGHT requests, or MAX_IN_FLIGHT_BYTES of them with REQUEST_OVERHEAD_BYTES each, may be unanswered: then
  nothing more is read;
- MAX_HELD_BYTES of answers may wait for a slow reader (or the server's share, if that is used up): later requests are
  then *postponed*, which means that they are not run before the answers have left, and nothing more is read. When the
  server's share is used up, a client that has taken none of its answers for STALLED_S is closed, or others would never
  get theirs;
- a closed connection's requests still run, and count until they have. When all connections together hold too many
  bytes of requests, the server has the one with the most drop its requests (``drop_requests``): they do not run;
- events cannot be held back: with more than MAX_UNSENT_BYTES unsent the connection is closed, and so is the one whose
  event is too much for all together (``outbox.MAX_EVENT_BYTES``);
- there must be a session within HELLO_S; then its deadline rules.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from spark_kafkalite.errors import FrameError
from spark_kafkalite.net.channel import Channel
from spark_kafkalite.net.outbox import Outbox
from spark_kafkalite.net.readiness import Readiness
from spark_kafkalite.registry.served import jute
from spark_kafkalite.registry.served.requests import Answer, Requester, Run
from spark_kafkalite.registry.served.sessions import ServedSession
from spark_kafkalite.registry.store import ConnectionLoss, WatchEvent
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.frame import FrameBuffer

MAX_HELLO_BYTES: Final = 1024
MAX_IN_FLIGHT: Final = 1000
MAX_IN_FLIGHT_BYTES: Final = 4 * 1024 * 1024
MAX_HELD_BYTES: Final = 4 * 1024 * 1024
MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
# More than the largest frame.
MAX_UNTAKEN_BYTES: Final = 2 * 1024 * 1024
# What a request takes besides its frame while it is under way: objects, not bytes of the wire.
REQUEST_OVERHEAD_BYTES: Final = 512
HELLO_S: Final = 5.0
STALLED_S: Final = 5.0

_WORD_BYTES: Final = 4
# With more than this unsent, nothing more is taken until all of it has left.
_MAX_UNSENT_TO_TAKE_BYTES: Final = 256 * 1024
# Frames of one connection that are taken before those of others.
_TAKEN_IN_A_TURN: Final = 32
# Postponed requests that are tried again together: few of them, as most are postponed again.
_AGAIN_AT_ONCE: Final = 32


class Request:
    """One request under way. ``answer_bytes`` is set in the writer thread, again if it is run again."""

    __slots__ = ("answer_bytes", "run", "size", "xid")

    def __init__(self, xid: int, run: Run, size: int) -> None:
        self.xid = xid
        self.run = run
        self.size = size + REQUEST_OVERHEAD_BYTES
        self.answer_bytes = 0


class ConnectionOwner(Protocol):
    """What a connection asks of the server around it; see ``server.TreeServer``."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that serves."""
        ...

    @property
    def scratch(self) -> memoryview:
        """Where a connection receives bytes, before it keeps them."""
        ...

    @property
    def room(self) -> memoryview:
        """Where a connection gathers what it sends; see ``net.outbox``."""
        ...

    @property
    def has_room_for_answers(self) -> bool:
        """Whether all connections together hold few enough answers."""
        ...

    def connection_lost(self, connection: TreeConnection) -> None:
        """Forget a connection, and what belonged to it."""
        ...

    def log_closed(self, connection: TreeConnection, reason: str) -> None:
        """Log why a connection was closed."""
        ...

    def count_requests(self, connection: TreeConnection, more_bytes: int) -> None:
        """Count bytes of requests that a connection holds; have some dropped if all together hold too many."""
        ...

    def advance_soon(self, connection: TreeConnection) -> None:
        """Have a connection take its frames when it is its turn."""
        ...

    def take(self, connection: TreeConnection, frame: bytes) -> None:
        """Take one frame. Raises FrameError when it makes no sense."""
        ...

    def submit(self, connection: TreeConnection, request: Request) -> None:
        """Have a request run by the registry."""
        ...

    def put_event(self, connection: TreeConnection, event: WatchEvent) -> None:
        """Send an event to a connection, unless that is too much."""
        ...

    def four_letters(self, connection: TreeConnection, word: bytes) -> bool:
        """Answer a four-letter word; return whether it was one."""
        ...


class TreeConnection:
    """One client's connection. Used in the server's loop, unless a method names another thread."""

    def __init__(self, server: ConnectionOwner, channel: Channel, peer: str) -> None:
        """Take over ``channel`` and begin to read. ``peer`` is its address, for the log."""
        self._server = server
        self._channel = channel
        self._outbox = Outbox(channel, server.room)
        self.peer = peer
        self.session: ServedSession | None = None
        # Between the client's hello and the session there is nothing else to do.
        self.opening = False
        self.authorized = False
        self.closed = False
        # Since when a session, or the end, is awaited.
        self.began_s = time.monotonic()
        self._received = FrameBuffer(MAX_HELLO_BYTES)
        self._ending = False
        self._reading = True
        self._writable = True
        # Requests that the registry has not answered, in their order, and what they take.
        self._under_way: dict[Request, None] = {}
        self._in_flight_bytes = 0
        # What the server has counted of ``buffered_bytes``.
        self._counted_bytes = 0
        # Whether the requests under way must not run any more. Read in the writer thread.
        self.dropped = False
        # The largest zxid that the client knows of.
        self.last_zxid = 0
        # Bytes of answers: made (writer thread), handed to the outbox, and of these sent.
        self.made_bytes = 0
        self._handed_bytes = 0
        self.sent_bytes = 0
        # What was left to send when that last changed, and when that was.
        self._left_bytes = 0
        self._left_since_s = self.began_s
        # Set in the writer thread, taken back here when nothing of this connection is there any more.
        self.postponing = False
        self.postponed: deque[Request] = deque()
        # Of these, those that were tried again and have been postponed once more; their place is before the others.
        self._returned: deque[Request] = deque()
        # Whether the server knows that frames may have to be taken.
        self.in_turn = False
        # Events made (writer thread) and handed to the outbox; whether they became too many.
        self.event_bytes = 0
        self.told_bytes = 0
        self.overrun = False
        # Last, because it may call back from now on.
        self._readiness = Readiness(server.loop, channel, self._receive, self._send_more)

    def __repr__(self) -> str:
        session = f"session {self.session.session_id}" if self.session else "no session"
        return f"TreeConnection({self.peer}, {session}, in_flight={self.in_flight}, held={self.held_bytes})"

    @property
    def held_bytes(self) -> int:
        """Answers that were made and have not left."""
        return self.made_bytes - self.sent_bytes

    @property
    def in_flight(self) -> int:
        """Requests that the registry has not answered."""
        return len(self._under_way)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of requests: those that wait to be taken, and those under way, also of a closed connection."""
        return len(self._received) + self._in_flight_bytes

    @property
    def droppable_bytes(self) -> int:
        """What of ``buffered_bytes`` goes, now or soon, when the requests are dropped."""
        return 0 if self.dropped else self.buffered_bytes

    def overdue(self, now_s: float) -> bool:
        """Whether there should be a session, or an end, by now."""
        is_silent = self.session is None and not self.opening and not self.in_turn
        return (self._ending or is_silent) and now_s > self.began_s + HELLO_S

    def stalled(self, now_s: float) -> bool:
        """Whether the client has taken none of its waiting answers for long. To be asked regularly."""
        left_bytes = 0 if self.closed else self._outbox.unsent_bytes
        if left_bytes != self._left_bytes or not left_bytes:
            self._left_bytes, self._left_since_s = left_bytes, now_s
        return now_s > self._left_since_s + STALLED_S

    @property
    def waits_for_registry(self) -> bool:
        """Whether the registry has not answered what was handed to it."""
        return self.in_flight > len(self.postponed) + len(self._returned)

    @property
    def waits_for_server(self) -> bool:
        """Whether something that the client sent waits for its turn, or for the registry: the client is not silent."""
        return self.in_turn or self.waits_for_registry

    # The channel ------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        scratch = self._server.scratch
        try:
            count = self._channel.recv_into(scratch)
        except OSError as error:
            self.close(f"it is gone: {error.strerror}")
            return
        if count is None:
            return
        if count == 0:
            self._peer_ended()
        elif not self._ending:
            self._received.feed(scratch[:count])
            self._server.advance_soon(self)
            self._read_or_not()
            self._count()

    def _peer_ended(self) -> None:
        """Close when everything has been sent: a peer that sends nothing more may still read."""
        if self._outbox.pieces:
            self.end()
        else:
            self.close("closed by the peer")

    def _put(self, frames: Iterable[bytes]) -> bool:
        """Send frames behind those that wait already; return whether the connection is still open."""
        self._outbox.put_framed(frames)
        if not self._readiness.writing:
            self._flush()
        if self._outbox.unsent_bytes > _MAX_UNSENT_TO_TAKE_BYTES:
            self._writable = False
        return not self.closed

    def _flush(self) -> bool:
        """Send what the socket takes; return whether that was all."""
        try:
            is_empty = self._outbox.flush()
        except OSError as error:
            self.close(f"it is gone: {error.strerror}")
            return False
        self._readiness.set_writing(not is_empty)
        return is_empty

    def _send_more(self) -> None:
        if not self._flush():
            return
        if self._ending:
            self.close("it was ended")
        elif not self._writable:
            self._writable = True
            self.sent_bytes = self._handed_bytes
            self.retry_postponed()
            self._server.advance_soon(self)

    # In ---------------------------------------------------------------------------------------------------------------

    def advance_work(self) -> Work[None]:
        """Take some of the frames that have arrived, as far as the bounds allow. The rest have their turn behind other
        connections: a client that sends without end does not keep those waiting."""
        self.in_turn = False
        try:
            for _ in range(_TAKEN_IN_A_TURN):
                if self.closed or self._ending or not self._may_take() or (frame := self._next_frame()) is None:
                    break
                self._server.take(self, frame)
                self._count()
                yield None
            else:
                self._server.advance_soon(self)
        except FrameError as error:
            self.close(str(error))
            return
        if self.closed or self._ending:
            self._received.clear()
        self._count()
        self._read_or_not()

    def _next_frame(self) -> bytes | None:
        """Take the next frame, or answer a four-letter word; None when neither has arrived. Raises FrameError."""
        received = self._received
        if self.session is not None:
            received.max_frame_bytes = jute.MAX_FRAME_BYTES
        elif len(received) >= _WORD_BYTES and self._server.four_letters(self, received.peek(_WORD_BYTES)):
            return None
        return received.next_frame()

    def _may_take(self) -> bool:
        return (
            not self.opening
            and self._writable
            and not self.postponed
            and not self._returned
            and self.in_flight < MAX_IN_FLIGHT
            and self._in_flight_bytes < MAX_IN_FLIGHT_BYTES
        )

    def _read_or_not(self) -> None:
        if self.closed or self._ending:
            return
        # While a session is opened, too: a client that gives up is to be noticed.
        reading = (self.opening or self._may_take()) and len(self._received) <= MAX_UNTAKEN_BYTES
        if reading != self._reading:
            self._reading = reading
            self._readiness.set_reading(reading)

    def begin(self, request: Request) -> None:
        """Count a request that is handed to the registry."""
        self._under_way[request] = None
        self._in_flight_bytes += request.size

    def postpone(self, requests: Sequence[Request]) -> None:
        """Keep requests that were not run, in their order."""
        if self.closed:
            self._complete(requests)
            return
        self._returned += requests
        self.retry_postponed()

    def retry_postponed(self) -> None:
        """Run what was postponed, once its place is free and nothing that was asked for later can overtake it."""
        if (
            (self.postponed or self._returned)
            and not self.closed
            and self._writable
            and not self.waits_for_registry
            and self.held_bytes < MAX_HELD_BYTES // 2
            and self._server.has_room_for_answers
        ):
            self.postponing = False
            self.postponed.extendleft(reversed(self._returned))
            self._returned.clear()
            for _ in range(min(_AGAIN_AT_ONCE, len(self.postponed))):
                self._server.submit(self, self.postponed.popleft())

    # Out --------------------------------------------------------------------------------------------------------------

    def tell(self, event: WatchEvent) -> None:
        """Send a watch event, in the order of the transactions. In the writer thread."""
        self._server.put_event(self, event)

    def deliver(self, frames: list[bytes], done: list[Request]) -> None:
        """Send what came out of the registry, which completes these requests."""
        self._complete(done)
        self._handed_bytes += sum(request.answer_bytes for request in done)
        if self.closed:
            self.sent_bytes = self._handed_bytes
            return
        is_open = self._ending or self._put(frames)
        if not is_open or self._writable:
            self.sent_bytes = self._handed_bytes
        elif self._outbox.unsent_bytes > MAX_UNSENT_BYTES:
            is_open = False
            self.close("it does not read its events")
        else:
            self.sent_bytes = max(self.sent_bytes, self._handed_bytes - self._outbox.unsent_bytes)
        if not is_open:
            return
        self.retry_postponed()
        if self._received or not self._reading:
            self._server.advance_soon(self)

    def _complete(self, requests: Sequence[Request]) -> None:
        """Forget requests that the registry has answered, or that will never run."""
        for request in requests:
            del self._under_way[request]
            self._in_flight_bytes -= request.size
        self._count()

    def _count(self) -> None:
        more_bytes = self.buffered_bytes - self._counted_bytes
        if more_bytes:
            self._counted_bytes += more_bytes
            self._server.count_requests(self, more_bytes)

    def send(self, data: bytes) -> None:
        """Send something that has no request under way."""
        if not self.closed and not self._ending:
            self._put((data,))

    def end(self) -> None:
        """Take nothing more, and close when everything has been sent."""
        self._ending = True
        self._received.clear()
        self._count()
        self.began_s = time.monotonic()
        if self.closed:
            return
        self._readiness.set_reading(False)
        if not self._outbox.pieces:
            self.close("it was ended")

    def close(self, reason: str) -> None:
        """Close at once."""
        if self.closed:
            return
        self._server.log_closed(self, reason)
        self.closed = True
        self._forget()
        self._readiness.close()
        self._outbox.clear()
        self._channel.close()
        self._server.connection_lost(self)

    def drop_requests(self, reason: str) -> None:
        """Close at once, and release the memory of requests that have not run: they do not run any more."""
        # Before any of them is emptied: a later one must not run when an earlier one has not.
        self.dropped = True
        for request in self._under_way:
            request.run = _dropped
            self._in_flight_bytes -= request.size - REQUEST_OVERHEAD_BYTES
            request.size = REQUEST_OVERHEAD_BYTES
        self._count()
        self.close(reason)

    def _forget(self) -> None:
        """Forget what the registry does not have yet."""
        self._received.clear()
        postponed = (*self._returned, *self.postponed)
        self._returned.clear()
        self.postponed.clear()
        self._complete(postponed)


def _dropped(_: Requester) -> Answer:
    raise ConnectionLoss("the connection was closed before its request ran")
