"""Answers and events of the registry on their way to the connections of its server.

The registry's writer thread puts them in, in the order of the transactions. The server's loop hands them to their
connections in that order, in slices, what came out of one commit together. The queue counts answers that have not left,
so that no more requests are run than there is room for (:attr:`AnswerQueue.has_room`). It also counts events that have
not been handed to a socket; a connection gets no more of these than it may hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from typing import Final

from spark_kafkalite.registry import store
from spark_kafkalite.registry.served import jute
from spark_kafkalite.registry.served.connection import MAX_UNSENT_BYTES, Request, TreeConnection
from spark_kafkalite.registry.store import WatchEvent
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# All connections together: answers that have not left.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# All connections together: events that have not been handed to a socket.
MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
# What is looked at in one piece.
_SENT_AT_ONCE: Final = 64


class AnswerQueue:
    """Filled in the writer thread, emptied in the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, slices: Slices, connections: Collection[TreeConnection]
    ) -> None:
        """``connections`` are those that are open, at any time."""
        self._loop = loop
        self._slices = slices
        self._connections = connections
        # Connection, bytes to send, the request that they answer (None: an event).
        # bytes None: the request was not run, or, when there is none either, the connection ends here.
        self._waiting: deque[tuple[TreeConnection, bytes | None, Request | None]] = deque()
        self._flush_wanted = False
        self._flushing = False
        # The last event told and its frame: one event goes to thousands. Writer thread only.
        self._last_event: tuple[WatchEvent | None, bytes] = (None, b"")
        # Events: made by the writer thread, and handed to sockets.
        self._event_bytes = 0
        self._told_bytes = 0
        # Answers: made by the writer thread; those that have left, or whose connection has, at the last look.
        self._made_bytes = 0
        self._sent_bytes = 0
        self.sent_frames = 0

    # In the writer thread ---------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether all connections together hold few enough answers."""
        return self._made_bytes - self._sent_bytes < MAX_ANSWER_BYTES

    def count_made(self, more_bytes: int) -> None:
        """Count bytes of answers; less than none when a request was run again."""
        self._made_bytes += more_bytes

    def put(self, connection: TreeConnection, frame: bytes, request: Request | None) -> None:
        """Have a frame sent behind all that were put before, together with what else comes out of the same commit."""
        self._waiting.append((connection, frame, request))

    def put_postponed(self, connection: TreeConnection, request: Request) -> None:
        """Have a connection learn that a request was not run, behind what was answered before it."""
        self._waiting.append((connection, None, request))

    def put_event(self, connection: TreeConnection, event: WatchEvent) -> None:
        """Send an event to a connection, unless that is too much; then it is closed, and the client reads again by
        itself."""
        if connection.overrun:
            return
        last, frame = self._last_event
        if event is not last:
            frame = jute.event_frame(event)
            self._last_event = (event, frame)
        size = len(frame)
        waiting = connection.event_bytes - connection.told_bytes + size
        if waiting > MAX_UNSENT_BYTES or self._event_bytes - self._told_bytes + size > MAX_EVENT_BYTES:
            connection.overrun = True
            store.call_in_loop(self._loop, connection.close, "its events are more than are kept")
            return
        connection.event_bytes += size
        self._event_bytes += size
        self._waiting.append((connection, frame, None))

    def put_end(self, connection: TreeConnection) -> None:
        """End a connection behind what was put for it."""
        self._waiting.append((connection, None, None))
        self.send_soon()

    def send_soon(self) -> None:
        """Have the loop send what was put."""
        if self._waiting and not self._flush_wanted:
            self._flush_wanted = True
            store.call_in_loop(self._loop, self._flush)

    # In the loop ------------------------------------------------------------------------------------------------------

    def count_sent(self) -> None:
        """Look how many bytes of answers have left."""
        self._sent_bytes = self._made_bytes - sum(connection.held_bytes for connection in self._connections)

    def _flush(self) -> None:
        self._flush_wanted = False
        if not self._flushing:
            self._flushing = True
            self._slices.start(self._flush_all(), self._flushed)

    def _flush_all(self) -> Work[None]:
        while self._waiting:
            frames: dict[TreeConnection, list[bytes]] = {}
            done: dict[TreeConnection, list[Request]] = {}
            postponed: dict[TreeConnection, list[Request]] = {}
            ended: list[TreeConnection] = []
            for _ in range(min(_SENT_AT_ONCE, len(self._waiting))):
                connection, frame, request = self._waiting.popleft()
                if frame is None:
                    if request is not None:
                        postponed.setdefault(connection, []).append(request)
                    else:
                        ended.append(connection)
                    continue
                frames.setdefault(connection, []).append(frame)
                if request is not None:
                    done.setdefault(connection, []).append(request)
                else:
                    connection.told_bytes += len(frame)
                    self._told_bytes += len(frame)
            for connection, of_one in frames.items():
                self.sent_frames += len(of_one)
                connection.deliver(of_one, done.get(connection, []))
                yield None
            for connection, requests_of_one in postponed.items():
                # A connection takes nothing more before these are run: no answer can be behind them.
                connection.postpone(requests_of_one)
                yield None
            for connection in ended:
                connection.end()
        self.count_sent()

    def _flushed(self, _: None, error: BaseException | None) -> None:
        self._flushing = False
        if error is not None:
            _LOG.error("answers of the registry could not be sent", exc_info=error)
        if self._waiting:
            self.send_soon()
