"""Has other brokers lead when this broker's event loop hangs, as it does in a write to a disk that answers no more.

The session with the registry is kept alive by a thread of its own. So a broker whose loop hangs stays registered: it
leads on, and answers nobody, until somebody ends the process. A thread of this class sees that the loop has not turned
for as long as a session lasts, and at least ten seconds, and gives the session up. The controller then elects other
leaders, and their ISRs go on without this broker. When the loop turns again the broker has lost its session, as after a
pause of its process: it leads nothing (rule R6), opens another session, and copies what it lacks from the new leaders.

A pause of the whole process is none of this: it stops the thread, too, and the registry ends the session by itself. Nor
is a loop that computes, on a host that has too much to do: it gets several times as long. Giving up is no help there,
and makes more work.
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

# How often the loop says that it turns, and the thread looks, in the time that the loop may hang.
_LOOKS: Final = 8
# Of a look's time, the processor time with which a thread counts as computing; one that waits for a disk needs hardly
# any. And what part of the time counts in which the loop computes.
_COMPUTES_SHARE: Final = 0.01
_COMPUTED_COUNTS: Final = 0.2
# How many of the innermost frames of the hanging loop the log line names.
_FRAMES: Final = 4


class Hang:
    """Finds out from regular looks when the loop has not turned for too long. Pure; times in seconds."""

    def __init__(self, limit_s: float, every_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._every_s = every_s
        self._looked_s = self._since_s = now_s
        self._turned_s = -1.0
        self._is_told = False

    def has_begun(self, now_s: float, turned_s: float, computed_s: float = 0.0) -> bool:
        """Return whether the loop, which has last turned at ``turned_s``, hangs since this look, so that it is told
        once. Where looks come late this process stood still, and the loop gets its time anew.

        ``computed_s``: how much of the processor the loop's thread has had since the last look.
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
    """See the module's text. Made and stopped in the loop that it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, give_up: Callable[[], None]) -> None:
        """``give_up`` is called in another thread, once for each time that the loop has not turned for ``limit_s``."""
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
        """Begin to watch."""
        self._turn()
        threading.Thread(target=self._watch, name="kafkalite-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End; the thread ends by itself."""
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
                # First: the log may lie on the disk that hangs.
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
    """Return what tells how much of the processor a thread has had, in seconds; 0 where the system does not say."""
    clock_of: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return lambda: 0.0
    return partial(time.clock_gettime, clock_of(thread))
