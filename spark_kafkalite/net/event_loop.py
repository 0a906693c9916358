"""The broker's event loop: asyncio's loop, which also runs callbacks at the end of each pass.

Many callbacks of one pass may cause the same work. The broker does this work once, after all callbacks of the pass: it
checks the waiting requests, then sends their answers. ``call_soon`` is too late for that, because it runs callbacks in
the next pass. Then a system call precedes the check, and another one the sending. The two cost a tenth of the time for
an acknowledged record with three replicas.

A pass ends when the loop asks its selector for events. Another pass costs as much as sending an answer. It follows at
once only if the callbacks at the end of the pass have scheduled something.

Work for which no request waits runs last (:meth:`BrokerLoop.call_last`): before the loop waits, and at the latest at
the end of the next pass.

Tests may use another loop. There :func:`end_of_pass` returns ``call_soon``, and the order of callbacks is the same.
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

# One round for the check of waiting requests, one for sending the answers.
_ROUNDS: Final = 2


class _PassSelector(selectors.DefaultSelector):
    """A selector that runs the callbacks for the end of a pass before it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Callback] = []
        self.asked_last: list[Callback] = []
        # Whether asked_last has already been delayed by one pass.
        self._was_put_off = False
        # Whether a callback was scheduled in the loop since this was set to false.
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
                # The loop computed the timeout before these callbacks.
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
    """An asyncio loop with callbacks at the end of a pass; the module's docstring describes them."""

    # As in asyncio, without a Python function around each of the many calls.
    time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        # The number of passes that have begun. It stays the same during a pass.
        self.pass_count = 0
        selector = _PassSelector()
        selector.loop = self
        super().__init__(selector)
        self._pass_selector = selector

    def call_at_end_of_pass(self, callback: Callback) -> None:
        """Run a callback after all other callbacks of this pass.

        If it calls this method, the loop runs the new callback directly after the present ones. What that one adds runs
        at the end of the next pass. A callback must be short and should not raise.
        """
        self._pass_selector.asked.append(callback)

    def call_last(self, callback: Callback) -> None:
        """Like :meth:`call_at_end_of_pass`, but after the events that are ready for the next pass, if there are any."""
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
        """Pass an error of a callback at the end of a pass to the loop's exception handler."""
        self.call_exception_handler({"message": "a callback at the end of a pass failed", "exception": error})


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new :class:`BrokerLoop`, like ``asyncio.run``."""
    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        return runner.run(main)


def end_of_pass(loop: asyncio.AbstractEventLoop) -> Callable[[Callback], object]:
    """Return the function that schedules callbacks for the end of the present pass, or, on other loops, soon after."""
    return loop.call_at_end_of_pass if isinstance(loop, BrokerLoop) else loop.call_soon


def last_in_pass(loop: asyncio.AbstractEventLoop) -> Callable[[Callback], object]:
    """Return the function that schedules callbacks for when ``loop`` is idle, or, on other loops, soon."""
    return loop.call_last if isinstance(loop, BrokerLoop) else loop.call_soon
