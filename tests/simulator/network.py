"""Connections between simulated processes, and what a schedule does to them.

A connection is as TCP's: frames arrive in order, or the connection breaks. Where the way in one direction is cut,
frames wait for it to be mended, as TCP sends them again and again; nobody is told. A process that has died breaks its
connections; one that is paused takes frames when it goes on. A single connection may be stalled, as by TCP's growing
pauses before it sends again: what was sent by it arrives later, even if the sender has closed it or died by then.

Ends are called in their own process: each frame is a callback of its loop. Clients, which are no processes, live
outside of all loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tests.simulator.world import ProcessLoop, World

_LONGEST_WAY_S: Final = 0.003
# How often a way that is cut is tried again.
_AGAIN_S: Final = 0.2
CLIENT: Final = 0


class End(Protocol):
    """Who is at an end of a connection."""

    def frame_came(self, frame: bytes) -> None:
        """Take one frame, without its length."""

    def broken(self, reason: str) -> None:
        """Hear that the connection is gone; at most once, and never after closing it oneself."""


class Network:
    """All connections, and which ways are cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        # (from, to): until when nothing arrives.
        self._cut_until_s: dict[tuple[int, int], float] = {}
        self._connections: list[Wire] = []
        # What accepts connections at each broker that runs.
        self.servers: dict[int, tuple[ProcessLoop, Callable[[Wire], End]]] = {}

    def cut(self, from_: int, to: int, seconds: float) -> None:
        """Let nothing through in one direction for a while."""
        self._cut_until_s[from_, to] = max(self._cut_until_s.get((from_, to), 0.0), self.world.now_s + seconds)

    def is_cut(self, from_: int, to: int) -> bool:
        return self._cut_until_s.get((from_, to), 0.0) > self.world.now_s

    def mend_all(self) -> None:
        """Let everything through again."""
        self._cut_until_s.clear()

    def reset(self, number: int) -> None:
        """Break all connections of a broker."""
        for each in list(self._connections):
            if number in (each.from_, each.to):
                each.break_off("connection reset")

    def end(self, number: int) -> None:
        """Break the connections of a process that has ended; what it had sent by one that is stalled comes later."""
        for each in list(self._connections):
            if number in (each.from_, each.to):
                each.break_off("connection reset", by_opener=number == each.from_)

    def stall(self, number: int, seconds: float) -> None:
        """Keep up what a broker sends by the connections that it has opened; those to come are as they were."""
        for each in self._connections:
            if each.from_ == number:
                each.stalled_until_s = max(each.stalled_until_s, self.world.now_s + seconds)

    def connect(self, from_: int, loop: ProcessLoop | None, to: int, end: End) -> Wire:
        """Open a connection; its end hears of it only when something arrives or it breaks."""
        wire = Wire(self, from_, loop, to, end)
        self._connections.append(wire)
        wire.open()
        return wire

    def forget(self, wire: Wire) -> None:
        if wire in self._connections:
            self._connections.remove(wire)


class Wire:
    """One connection. ``from_`` opened it; each side sends by its own method."""

    def __init__(self, network: Network, from_: int, loop: ProcessLoop | None, to: int, end: End) -> None:
        self._network = network
        self._world = network.world
        self.from_, self.to = from_, to
        self._opener_loop = loop
        self._opener = end
        self._server_loop: ProcessLoop | None = None
        self._server: End | None = None
        self.is_open = True
        # Whether its opener has closed it or died, while what it had sent is still on its way.
        self._is_left = False
        self.stalled_until_s = 0.0
        # When what was sent last arrives, in each direction.
        self._there_s = self._back_s = 0.0
        # What is under way to the server, and back. Whatever arrives is the first of these: what waits for the end of a
        # cut is not overtaken by what comes just after that.
        self._under_way: dict[bool, deque[Callable[[], None]]] = {True: deque(), False: deque()}

    def open(self) -> None:
        """Reach the other side, or hear that nobody is there."""

        def arrive() -> None:
            found = self._network.servers.get(self.to)
            if found is None or not found[0].is_alive:
                self.break_off("connection refused")
                return
            self._server_loop, accept = found
            self._on(self._server_loop, lambda: self._accepted(accept))

        self._send(True, arrive)

    def _accepted(self, accept: Callable[[Wire], End]) -> None:
        if self.is_open:
            self._server = accept(self)

    def request(self, frame: bytes) -> None:
        """Send a frame from the side that has opened the connection."""

        self._world.note(frame)

        def arrive() -> None:
            self._on(self._server_loop, lambda: self._server is not None and self._server.frame_came(frame))

        self._send(True, arrive)

    def answer(self, frame: bytes) -> None:
        """Send a frame from the side that has accepted it."""
        self._world.note(frame)
        if not self._is_left:
            self._send(False, lambda: self._on(self._opener_loop, lambda: self._opener.frame_came(frame)))

    def close(self, *, by_opener: bool = False) -> None:
        """Close it, from either side: the other one hears of it."""
        self.break_off("closed by the peer", by_opener=by_opener)

    def break_off(self, reason: str, *, by_opener: bool = False) -> None:
        """End it; both ends hear of it, once what is on its way cannot come any more."""
        if not self.is_open or (by_opener and self._is_left):
            return
        if by_opener and self._server is not None and self._world.now_s < self.stalled_until_s:
            self._is_left = True
            self._tell(self._opener_loop, self._opener, reason)
            # Behind what has been kept up.
            self._send(True, lambda: self.break_off(reason))
            return
        self.is_open = False
        self._network.forget(self)
        if not self._is_left:
            self._tell(self._opener_loop, self._opener, reason)
        if self._server is not None:
            self._tell(self._server_loop, self._server, reason)

    def _tell(self, loop: ProcessLoop | None, end: End, reason: str) -> None:
        if loop is None:
            self._world.later(0.0, lambda: end.broken(reason))
        elif loop.is_alive:
            loop.call_soon(end.broken, reason)

    def _send(self, there: bool, arrive: Callable[[], None]) -> None:
        """Have something arrive, behind all that was sent that way before, when the way is not cut."""
        if not self.is_open:
            return
        way_s = self._world.random.uniform(0.0001, _LONGEST_WAY_S)
        if there:
            self._there_s = due_s = max(self._there_s, self._world.now_s + way_s)
        else:
            self._back_s = due_s = max(self._back_s, self._world.now_s + way_s)
        self._under_way[there].append(arrive)
        self._world.later(due_s - self._world.now_s, lambda: self._deliver(there))

    def _deliver(self, there: bool) -> None:
        if not self.is_open:
            return
        ends = (self.from_, self.to) if there else (self.to, self.from_)
        if there and self._world.now_s < self.stalled_until_s:
            self._world.later(self.stalled_until_s - self._world.now_s, lambda: self._deliver(there))
            return
        if not there and self._is_left:
            return
        if self._network.is_cut(*ends):
            # What comes behind it waits longer.
            until_s = self._world.now_s + _AGAIN_S
            if there:
                self._there_s = max(self._there_s, until_s)
            else:
                self._back_s = max(self._back_s, until_s)
            self._world.later(_AGAIN_S, lambda: self._deliver(there))
            return
        self._under_way[there].popleft()()

    def _on(self, loop: ProcessLoop | None, do: Callable[[], object]) -> None:
        """Do something at an end, if it is still there."""

        def now() -> None:
            if self.is_open:
                do()

        if loop is None:
            now()
        elif loop.is_alive:
            loop.call_soon(now)
        else:
            self.break_off("connection reset")
