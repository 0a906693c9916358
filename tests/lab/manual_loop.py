"""An event loop whose time is a :class:`ManualClock`'s, and threads that work when a test lets them.

Nothing waits for real time: when everything on the loop waits, the clock jumps to the next timer. So an hour of checks
takes a moment, in the same order each time. It waits for nothing from outside, and raises RuntimeError instead, unless
the loop was made with a function that waits.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

from spark_kafkalite.net.io_threads import Lane
from spark_kafkalite.testing.manual_clock import ManualClock

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: lets the clock jump instead."""

    def __init__(self, clock: ManualClock, before_jump: Callable[[], None] | None) -> None:
        super().__init__()
        self._clock = clock
        self._before_jump = before_jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._before_jump is not None:
            self._before_jump()
            ready = super().select(0)
            if ready:
                return ready
        if timeout is None:
            raise RuntimeError("the loop would wait for ever: nothing is due, now or later")
        # Not before the timer: rounded to the clock's whole milliseconds, that would be another turn.
        self._clock.advance(ms=max(math.ceil(timeout * 1000 - 1e-6), 1))
        return ready


class ManualLoop(asyncio.SelectorEventLoop):
    """See the module's text."""

    def __init__(self, clock: ManualClock, before_jump: Callable[[], None] | None = None) -> None:
        """``before_jump`` is called before time goes on. It returns once nothing is under way in other threads, and
        what they had for the loop has been handed over with ``call_soon_threadsafe``.
        """
        super().__init__(_JumpingSelector(clock, before_jump))
        self._manual_clock = clock

    def time(self) -> float:
        return self._manual_clock.monotonic_s()

    def run_for(self, seconds: float) -> None:
        """Let time pass, and do all that is due meanwhile."""
        self.run_until_complete(asyncio.sleep(seconds))


class ManualThreads:
    """A replacement of a broker's ``IoThreads``; submitted work waits until :meth:`run_one` or :meth:`run_all`.

    With a loop it is done in the loop's next pass instead, unless ``held`` is set.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.held = loop is None
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]] = []
        self._loop = loop

    def submit(
        self,
        work: Callable[[], T],
        on_done: Callable[[T], None],
        on_error: Callable[[BaseException], None],
        lane: Lane = Lane.FILES,
    ) -> None:
        """Keep ``work``; its result goes to ``on_done``, what it raises to ``on_error``."""
        self.work.append((work, on_done, on_error))
        if self._loop is not None and not self.held:
            self._loop.call_soon(self.run_all)

    def renew(self) -> None:
        """Here all of it is done."""

    async def run(self, work: Callable[[], T], lane: Lane = Lane.FILES) -> T:
        """Return the result of ``work``, a pass of the loop later."""
        await asyncio.sleep(0)
        return work()

    def run_one(self) -> None:
        """Do the oldest piece of work."""
        work, on_done, on_error = self.work.pop(0)
        try:
            result = work()
        except BaseException as error:
            on_error(error)
        else:
            on_done(result)

    def run_all(self) -> None:
        """Do what waits now, and nothing that comes of it."""
        for _ in range(len(self.work)):
            self.run_one()
