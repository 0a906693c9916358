"""When requests that wait have waited for as long as they may.

Nearly every one is answered long before, so a deadline must cost next to nothing to set and to drop; a timer of the
loop for each costs as much as appending a record. They are gathered by the tick in which they end instead, and the loop
has one timer, for the first tick that a request was waiting for when it was set. So a request waits for up to two ticks
longer than it asked for, never less. A long wait ends with a tick that many share, up to a hundredth of it later: there
are never more than some hundred ticks between here and there, however many have been waited for and left.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

_TICKS_PER_S: Final = 250
# How many bits of a wait, in ticks, count.
_WAIT_BITS: Final = 8


class Expiring(Protocol):
    """Who waits."""

    def time_is_up(self) -> None:
        """Wait no longer. Called once, unless dropped before; does not raise."""


# Those that wait for one tick. Each takes itself out when it waits no longer.
Deadline = dict[Expiring, None]


class Deadlines:
    """All deadlines of one event loop."""

    __slots__ = ("_by_tick", "_loop", "_timer", "_timer_tick")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_tick: dict[int, Deadline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def __len__(self) -> int:
        """How many ticks are remembered."""
        return len(self._by_tick)

    def add(self, waiting: Expiring, in_s: float) -> Deadline:
        """Notify ``waiting`` in so many seconds that its time is up. Taking it out of what is returned drops it."""
        tick = int((self._loop.time() + in_s) * _TICKS_PER_S) + 1
        shared_bits = int(in_s * _TICKS_PER_S).bit_length() - _WAIT_BITS
        if shared_bits > 0:
            tick = (tick >> shared_bits) + 1 << shared_bits
        deadline = self._by_tick.get(tick)
        if deadline is None:
            deadline = self._by_tick[tick] = {}
            if self._timer is None or tick < self._timer_tick:
                self._set_timer(tick)
        deadline[waiting] = None
        return deadline

    def _set_timer(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(tick / _TICKS_PER_S, self._tell)
        self._timer_tick = tick

    def _tell(self) -> None:
        """Notify those that have waited long enough, and set the timer for the others."""
        # The loop may call a little early.
        now = max(self._timer_tick, int(self._loop.time() * _TICKS_PER_S))
        self._timer = None
        by_tick = self._by_tick
        due = sorted(tick for tick in by_tick if tick <= now)
        ended = [by_tick.pop(tick) for tick in due]
        # Most have been left by all.
        self._by_tick = {tick: deadline for tick, deadline in by_tick.items() if deadline}
        if self._by_tick:
            self._set_timer(min(self._by_tick))
        for deadline in ended:
            while deadline:
                deadline.popitem()[0].time_is_up()
