"""Lets other brokers lead when this broker's event loop hangs, for example in a write to a disk that does not answer.

A separate thread keeps the session with the registry alive. So a broker whose loop hangs stays registered. It remains
the leader of its partitions and answers no requests until the process ends. This module's thread therefore checks the
loop. If the loop has made no pass for a session timeout and for at least ten seconds, the thread ends the session. The
controller then elects other leaders, and the ISRs continue without this broker. When the loop runs again, the broker
has lost its session, as after a pause of its process. It leads nothing (rule R6), opens another session, and replicates
the missing records from the new leaders.

Two other cases are not hangs. A pause of the whole process also stops the thread, and the registry ends the session by
itself. A loop that computes, on an overloaded host, gets several times as long: ending the session would only cause
more work.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Final

logger = logging.getLogger(__name__)

# How often the loop records a pass, and the thread checks it, in the time that the loop may hang.
_LOOKS: Final = 8
# A thread computes if it uses this share of the time between two checks. One that waits for a disk uses almost none.
# And the share of its computing time that counts towards the limit.
_COMPUTES_SHARE: Final = 0.01
_COMPUTED_COUNTS: Final = 0.2
# How many of the innermost frames of the hanging loop the log line names.
_FRAMES: Final = 4


class Hang:
    """Finds out by regular checks when the loop has made no pass for too long. Pure; times in seconds."""

    def __init__(self, limit_s: float, every_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._every_s = every_s
        self._looked_s = self._since_s = now_s
        self._turned_s = -1.0
        self._is_told = False

    def has_begun(self, now_s: float, turned_s: float, computed_s: float = 0.0) -> bool:
        """Return whether this check is the first one of a hang. So the caller reports each hang once.

        ``turned_s``: the time of the loop's last pass. ``computed_s``: the CPU time of the loop's thread since the last
        check. A delayed check means that the process was paused. Then the loop's time starts again.
        """
        if turned_s != self._turned_s:
            self._is_told = False
        if turned_s != self._turned_s or now_s - self._looked_s > 2 * self._every_s:
            self._turned_s, self._since_s = turned_s, now_s
        elif computed_s > _COMPUTES_SHARE * self._every_s:
            self._since_s += (1 - _COMPUTED_COUNTS) * (now_s - self._looked_s)
        self._looked_s = now_s
        if self._is_told or now_s - self._since_s < self._limit_s:
            return False
        self._is_told = True
        return True


class LoopWatch:
    """Watches a loop and ends the registry session when it hangs. Create and stop it in that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, give_up: Callable[[], None]) -> None:
        """``give_up`` is called in another thread, once for each time that the loop makes no pass for ``limit_s``."""
        self._loop = loop
        self._limit_s = limit_s
        self._give_up = give_up
        self._every_s = limit_s / _LOOKS
        self._turned_s = time.monotonic()
        self._is_hanging = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._computed_s = processor_time_of(self._loop_thread)

    def start(self) -> None:
        """Start to watch."""
        self._turn()
        threading.Thread(target=self._watch, name="kafkalite-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; the thread ends by itself."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        now_s = time.monotonic()
        if self._is_hanging:
            self._is_hanging = False
            logger.warning("the event loop turns again, after %.1f s", now_s - self._turned_s)
        self._turned_s = now_s
        self._timer = self._loop.call_later(self._every_s, self._turn)

    def _watch(self) -> None:
        hang = Hang(self._limit_s, self._every_s, time.monotonic())
        computed_s = self._computed_s()
        while not self._stopped.wait(self._every_s):
            now_s, before_s = time.monotonic(), computed_s
            computed_s = self._computed_s()
            if hang.has_begun(now_s, self._turned_s, computed_s - before_s):
                self._is_hanging = True
                # Before the log line: the program's log may be on the disk that hangs.
                self._give_up()
                self._tell(now_s - self._turned_s)

    def _tell(self, hanging_s: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        frames = traceback.extract_stack(frame)[-_FRAMES:] if frame is not None else []
        logger.error(
            "the event loop has not turned for %.1f s, as when a disk does not answer: this broker gives its session "
            "with the registry up, so that others lead its partitions; it is in %s",
            hanging_s,
            " < ".join(f"{each.name} ({each.filename.rpartition('/')[2]}:{each.lineno})" for each in reversed(frames)),
        )


def processor_time_of(thread: int) -> Callable[[], float]:
    """Return a function that returns a thread's CPU time in seconds, always 0 if the system does not measure it."""
    clock_of: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return lambda: 0.0
    return partial(time.clock_gettime, clock_of(thread))
