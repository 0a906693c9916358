"""Simulated time: one clock, a loop for each process, and what is on its way between them.

Nothing runs by itself. :meth:`World.run_until` takes what is due next, in the order of its time and then of a random
number from the seed: a message that arrives, or a pass of one process's loop. So one seed is one schedule, and repeats
exactly. A process that is paused is not given passes, though its time goes on; one that is killed is never given one
again, and what was on its way to it is lost.

Loops are asyncio's own (``BaseEventLoop``) without a selector: brokers run on them as they are.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
from asyncio import events
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from spark_kafkalite.broker.waiting import page_cache

START_S: Final = 1_000.0
START_WALL_MS: Final = 1_700_000_000_000
# What a pass of a loop takes, at most; passes of the same process do not overlap.
_PASS_S: Final = 0.0005
_MOST_LAST_PASSES: Final = 100


class SimulatedClock:
    """One process's clock; satisfies ``spark_kafkalite.clock.Clock``. Wall clocks differ, time passes the same."""

    def __init__(self, world: World, wall_offset_ms: int = 0) -> None:
        self._world = world
        self.wall_offset_ms = wall_offset_ms

    def wall_ms(self) -> int:
        return START_WALL_MS + round((self._world.now_s - START_S) * 1000) + self.wall_offset_ms

    def monotonic_s(self) -> float:
        return self._world.now_s

    def boottime_s(self) -> float:
        return self._world.now_s


class _NoSelector:
    """There are no sockets here."""

    def select(self, _: float | None) -> list[Any]:
        return []

    def close(self) -> None: ...


class ProcessLoop(asyncio.BaseEventLoop):
    """The loop of one simulated process; the world gives it its passes."""

    _selector: Any

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        # The mode's stack of each callback is half of a schedule's time; what it finds are calls of other threads.
        self.set_debug(False)
        self._selector = _NoSelector()
        self._world = world
        self.name = name
        self.is_alive = True
        self.paused_until_s = 0.0
        # Until when it waits for its disk, while other threads of the process go on.
        self.hung_until_s = 0.0
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(self._keep_error)

    def _keep_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self.is_alive:
            self.errors.append(context)

    def time(self) -> float:
        return self._world.now_s

    def _process_events(self, _: Any) -> None: ...

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do the work of a thread at once."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _write_to_self(self) -> None: ...

    @property
    def due_s(self) -> float | None:
        """When it has something to do next, None for never."""
        if not self.is_alive:
            return None
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count: int = max(getattr(self, "_timer_cancelled_count", 1) - 1, 0)
        if ready:
            due_s = self._world.now_s
        elif scheduled:
            due_s = scheduled[0]._when
        else:
            return None
        return max(due_s, self.stands_until_s, self._world.now_s)

    @property
    def stands_until_s(self) -> float:
        """Until when it does nothing."""
        return max(self.paused_until_s, self.hung_until_s)

    def run_pass(self) -> None:
        """Do what is ready, and what time has made ready."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(before)

    def __del__(self) -> None: ...

    def kill(self) -> None:
        """End it between two passes, as SIGKILL does."""
        self.is_alive = False

    def bury(self) -> None:
        """Cancel what its tasks still wait for, when nobody looks any more: they would complain when collected."""
        self._scheduled.clear()  # type: ignore[attr-defined]
        for _ in range(_MOST_LAST_PASSES):
            for task in asyncio.all_tasks(self):
                task.cancel()
            if not self._ready:  # type: ignore[attr-defined]
                return
            self.run_pass()


class World:
    """See the module's text."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_s = START_S
        self.loops: list[ProcessLoop] = []
        self.all_loops: list[ProcessLoop] = []
        self._on_its_way: list[tuple[float, int, Callable[[], None]]] = []
        self._sent = 0
        # A sum of everything that has happened: two runs that have the same one were the same.
        self.trace = 0
        # After each pass of a process.
        self.after_each: list[Callable[[], None]] = []
        self._steps = 0
        self._urandom, os.urandom = os.urandom, self.random.randbytes
        self._system_random, random._urandom = random._urandom, self.random.randbytes  # type: ignore[attr-defined]
        self._random_state = random.getstate()
        random.seed(seed)
        # Files in memory are in memory.
        self._is_cached, page_cache._is_cached = page_cache._is_cached, lambda _: True

    def turn_s(self) -> float:
        """The clock by which work in slices ends its turns: the processor's time differs from run to run."""
        self._steps += 1
        return self._steps * 1e-6

    def note(self, what: bytes) -> None:
        """Have the trace tell of something that happens now."""
        self.trace = crc32(b"%r %b" % (self.now_s, what), self.trace)

    def new_loop(self, name: str) -> ProcessLoop:
        """Return the loop of a new process."""
        loop = ProcessLoop(self, name)
        self.loops.append(loop)
        self.all_loops.append(loop)
        return loop

    def close(self) -> None:
        """End all processes, and take time back from the real ones."""
        os.urandom = self._urandom
        random._urandom = self._system_random  # type: ignore[attr-defined]
        random.setstate(self._random_state)
        page_cache._is_cached = self._is_cached
        for loop in self.all_loops:
            loop.is_alive = False
            loop.bury()

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Have something happen outside of all processes: a message arrives, a fault begins."""
        self._sent += 1
        heapq.heappush(self._on_its_way, (self.now_s + max(delay_s, 0.0), self._sent, do))

    def run_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Let time pass until something holds; return whether it did within so many simulated seconds."""
        until_s = self.now_s + timeout_s
        while not holds():
            if not self._step(until_s):
                self.now_s = max(self.now_s, until_s)
                return holds()
        return True

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.run_until(lambda: False, seconds)

    def _step(self, until_s: float) -> bool:
        """Do what is due next, unless that is later; return whether anything was."""
        next_s = self._on_its_way[0][0] if self._on_its_way else None
        due = [(due_s, loop) for loop in self.loops if (due_s := loop.due_s) is not None]
        first_s = min((due_s for due_s, _ in due), default=None)
        if first_s is not None and (next_s is None or first_s <= next_s):
            if first_s > until_s:
                return False
            self.now_s = max(self.now_s, first_s)
            ready = [loop for due_s, loop in due if due_s <= self.now_s]
            loop = ready[0] if len(ready) == 1 else self.random.choice(ready)
            self.note(loop.name.encode())
            loop.run_pass()
            # A process that is always busy lets time pass, too.
            self.now_s += _PASS_S * self.random.random()
            for check in self.after_each:
                check()
        elif next_s is not None:
            if next_s > until_s:
                return False
            self.now_s = max(self.now_s, next_s)
            self.note(b"")
            heapq.heappop(self._on_its_way)[2]()
        else:
            return False
        self.loops = [loop for loop in self.loops if loop.is_alive]
        return True
