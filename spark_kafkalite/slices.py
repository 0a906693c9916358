"""Long work in slices, so that everybody else on an event loop is served between them.

Work is a generator: it yields wherever it may be interrupted, after every few hundred microseconds at the latest, and
returns its result. :class:`Slices` runs all such work of one loop in turn, one slice in a pass of the loop however many
wait, so that what they cost others is one slice and not their number. Work that one slice completes is completed at
once, without a task or a future: most requests are small.

Between two yields nothing else runs on the loop; after a yield everything may have changed. So work yields only where
it can go on from what it then finds, and closes over no state that it expects to stand still.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, TypeVar

SLICE_S = 0.010

T = TypeVar("T")
Work = Generator[None, None, T]


class NotFinished(Exception):
    """Work has more to do than one slice."""


def run_slice(work: Work[T], slice_s: float = SLICE_S) -> T:
    """Run ``work`` for one slice and return its result. Raises NotFinished, and whatever the work raises."""
    until_s = perf_counter() + slice_s
    try:
        next(work)
        while perf_counter() < until_s:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result
    raise NotFinished


class Slices:
    """The unfinished work of one event loop, run in turn."""

    __slots__ = ("_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled = False
        self._waiting: deque[tuple[Work[Any], Callable[[Any, BaseException | None], None]]] = deque()

    def add(self, work: Work[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run ``work`` in coming passes of the loop, then call ``done`` with its result, or with what it raised."""
        self._waiting.append((work, done))
        self._schedule()

    async def run(self, work: Work[T]) -> T:
        """Return the result of ``work``, at once if one slice completes it. Cancellation ends the work."""
        try:
            return run_slice(work)
        except NotFinished:
            pass
        outcome: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if outcome.cancelled():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        self.add(work, done)
        try:
            return await outcome
        except asyncio.CancelledError:
            self.drop(work)
            raise

    def drop(self, work: Work[Any]) -> None:
        """End work that nobody waits for any more; nobody is called."""
        for index, (waiting, _) in enumerate(self._waiting):
            if waiting is work:
                del self._waiting[index]
                break
        work.close()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        self._scheduled = False
        if not self._waiting:
            return
        work, done = self._waiting.popleft()
        try:
            result = run_slice(work)
        except NotFinished:
            self._waiting.append((work, done))
        except Exception as error:
            done(None, error)
        else:
            done(result, None)
        finally:
            self._schedule()
