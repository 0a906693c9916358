"""The broker's event loop: asyncio's, and the end of each pass as a time at which something may be done.

What many callbacks of one pass cause is done once, when all of them have run: waiting requests are checked, and what
they were answered leaves. ``call_soon`` is no such time: it is the next pass, so there is a system call in between,
and again one between the check and the sending, which is a tenth of what an acknowledged record of three replicas
takes. The end of a pass is when the loop asks its selector for more. Another pass, which costs as much as sending an
answer, follows at once only where something was asked for meanwhile.

What nobody waits for is done last: before the loop would wait, and at the end of the next pass at the latest.

On any other loop, which tests may have, :func:`end_of_pass` gives ``call_soon``: what is said of the order holds there.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

Callback = Callable[[], None]
T = TypeVar("T")

# A check and what comes of it: answers that are sent.
_ROUNDS: Final = 2


class _PassSelector(selectors.DefaultSelector):
    """A selector that has something done before it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Callback] = []
        self.asked_last: list[Callback] = []
        # Whether these have let a pass go first.
        self._was_put_off = False
        # Whether anything was asked of the loop since this was set to false.
        self.loop_was_asked = False
        self.loop: BrokerLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.asked or self.asked_last:
            self.loop_was_asked = False
            self._do_asked()
            if self.asked_last:
                events = [] if self._was_put_off else super().select(0)
                self._was_put_off = bool(events)
                if events:
                    self.loop.pass_count += 1
                    return events
                self.asked += self.asked_last
                self.asked_last = []
                self._do_asked()
            if self.loop_was_asked or self.asked or self.asked_last:
                # For how long to wait was reckoned before that.
                timeout = 0
        self.loop.pass_count += 1
        return super().select(timeout)

    def _do_asked(self) -> None:
        for _ in range(_ROUNDS):
            callbacks, self.asked = self.asked, []
            for callback in callbacks:
                try:
                    callback()
                except Exception as error:
                    self.loop.report(error)


class BrokerLoop(asyncio.SelectorEventLoop):
    """See the module's text."""

    # As asyncio has it, without a call of Python's for each of the many times that the time is asked.
    time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        # Of the passes that have begun: while it stays the same, so does the pass.
        self.pass_count = 0
        selector = _PassSelector()
        selector.loop = self
        super().__init__(selector)
        self._pass_selector = selector

    def call_at_end_of_pass(self, callback: Callback) -> None:
        """Call back once all that this pass was to do is done; what such a callback asks for itself comes right after,
        what that asks for at the end of the next pass. It must not take long and should not raise."""
        self._pass_selector.asked.append(callback)

    def call_last(self, callback: Callback) -> None:
        """As :meth:`call_at_end_of_pass`, after what comes in the next pass if that is there already."""
        self._pass_selector.asked_last.append(callback)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._pass_selector.loop_was_asked = True
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._pass_selector.loop_was_asked = True
        return super().call_at(when, callback, *args, context=context)

    def report(self, error: Exception) -> None:
        """Tell of an error in what was to be done at the end of a pass."""
        self.call_exception_handler({"message": "a callback at the end of a pass failed", "exception": error})


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, like ``asyncio.run``."""
    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        return runner.run(main)


def end_of_pass(loop: asyncio.AbstractEventLoop) -> Callable[[Callback], object]:
    """Return what takes callbacks for the end of the present pass of ``loop``, or for a time soon after."""
    return loop.call_at_end_of_pass if isinstance(loop, BrokerLoop) else loop.call_soon


def last_in_pass(loop: asyncio.AbstractEventLoop) -> Callable[[Callback], object]:
    """Return what takes callbacks for when the loop has nothing else to do, or for a time soon after."""
    return loop.call_last if isinstance(loop, BrokerLoop) else loop.call_soon
