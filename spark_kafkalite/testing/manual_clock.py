"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Both of the clock's times, moved by hand; satisfies ``spark_kafkalite.clock.Clock``.

    Wall time and monotonic time pass together in ``advance``; ``jump_wall`` moves wall time alone, as an administrator
    or NTP does, in either direction.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_s: float = 1_000.0) -> None:
        self._start_wall_ms = wall_ms
        self._start_monotonic_s = monotonic_s
        # Whole milliseconds since the start: adding floats over and over would let the two times drift apart.
        self._passed_ms = 0
        self._jumped_ms = 0

    def wall_ms(self) -> int:
        return self._start_wall_ms + self._passed_ms + self._jumped_ms

    def monotonic_s(self) -> float:
        return self._start_monotonic_s + self._passed_ms / 1000

    def advance(self, *, ms: int = 0, s: float = 0.0) -> None:
        """Let time pass. Raises ValueError for a negative time: monotonic time never goes back."""
        passed_ms = ms + round(s * 1000)
        if passed_ms < 0:
            raise ValueError(f"time cannot pass backwards ({passed_ms} ms); jump_wall moves the wall clock back")
        self._passed_ms += passed_ms

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock by ``ms`` (back when negative) while no time passes."""
        self._jumped_ms += ms
