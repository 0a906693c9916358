"""A bound on the large requests that are worked on at a time, over all connections.

A request that names thousands of things takes many times its own size in memory until it is answered, and more so does
one of a few bytes that is answered with thousands of things. Some slices' worth of work is let pass. What takes longer
goes through the gate: ``AT_ONCE`` of them at a time, of all connections, the others in the order in which they came.

Nothing that waits for what another client does may be inside: JoinGroup waits for other members' requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeVar

from spark_kafkalite.slices import PASS_S, Now, Work

T = TypeVar("T")

AT_ONCE = 4


class Gate:
    """Lets a number of works in at a time."""

    __slots__ = ("_inside", "_limit", "_now", "_waiting")

    def __init__(self, now: Now, limit: int = AT_ONCE) -> None:
        """``now`` is the clock of the slices in which the works are done (``Slices.now``)."""
        self._now = now
        self._limit = limit
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        """Whether anything is inside."""
        return self._inside > 0

    def enter(self) -> Work[None]:
        """Wait for a place; the caller releases it with :meth:`leave`."""
        if self._inside < self._limit:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            yield turn
        except GeneratorExit:
            # Nobody waits for the answer any more. If it was let in already, the next one may be.
            if not turn.cancel():
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place of one that has left to the next one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._inside -= 1

    def through(self, work: Work[T]) -> Work[T]:
        """Do the work inside."""
        yield from self.enter()
        try:
            return (yield from work)
        finally:
            self.leave()

    def when_long(self, work: Work[T]) -> Work[T]:
        """Do the work for a pass's time, and what is left of it inside."""
        now = self._now
        until_s = now() + PASS_S
        try:
            while now() < until_s:
                yield next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        except GeneratorExit:
            work.close()
            raise
        return (yield from self.through(work))
