"""The clock that is passed to all code that asks for the time, so that tests can set it.

Wall time (``wall_ms``) goes into record timestamps, retention and time-based rolling, and nowhere else; it may jump.
Every timeout, deadline and lease uses ``monotonic_s``, which never goes back. Tests pass ``testing.manual_clock``.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall and monotonic time."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC. May jump in either direction."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary origin. Never goes back; counts while the host sleeps where the OS supports it."""
        ...


# CLOCK_BOOTTIME goes on while a virtual machine is suspended, so that a lease is over when it wakes.
_MONOTONIC_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(_MONOTONIC_ID)


SYSTEM_CLOCK = SystemClock()
