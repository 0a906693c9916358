"""Whether the processors have room for one more test file.

Tests wait about as long as they compute, but not evenly: for minutes all that run may wait. A pool then begins more
files than its size (``pool.suites.Suite.more``). What it runs does not depend on that, only when.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock

# So much of one processor was idle: a file takes about as much.
ROOM: Final = 0.5
# One look at the processors covers this time. A file that has begun shows in the next one.
LOOK_S: Final = 3.0


class Ticks(NamedTuple):
    """What all processors together have counted since the host started."""

    idle: int
    all: int


class Room:
    """Asked by the processes of a pool that begin a file only while the processors have room. It is thread-safe."""

    def __init__(
        self,
        read_ticks: Callable[[], Ticks] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        processors: int | None = None,
    ) -> None:
        self._read_ticks = read_ticks or read_host_ticks
        self._clock = clock
        self._processors = processors or os.cpu_count() or 1
        self._lock = threading.Lock()
        self._looked_s, self._ticks = clock.monotonic_s(), self._read_ticks()

    def take(self) -> bool:
        """Return whether there was room since the last look. Who is told so has it: the next look begins now."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._looked_s + LOOK_S:
                return False
            ticks = self._read_ticks()
            idle, total = ticks.idle - self._ticks.idle, ticks.all - self._ticks.all
            self._looked_s, self._ticks = now_s, ticks
            return idle * self._processors >= ROOM * max(total, 1)


def read_host_ticks() -> Ticks:
    """Read the first line of /proc/stat: user, nice, system, idle, iowait, and so on. Who waits for a disk is not
    idle: more files would only wait for it, too."""
    counts = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return Ticks(counts[3], sum(counts))
