"""When a follower compares its logs with their leaders', and how fast. Pure: times and bytes in, times out.

A round goes over all that a broker follows. One begins after a stop that was not in order, or where the last one has
not ended; else ``interval_ms`` after the last one. Times are those of the wall, because rounds are further apart than a
broker may run; a clock that jumps has a round begin early, or late by one interval at most.
"""

from __future__ import annotations

from typing import Final

# A request costs its sender and its leader about as much as to read so many bytes.
_REQUEST_BYTES: Final = 64 * 1024


class CompareRounds:
    """See the module's text."""

    __slots__ = ("_bytes_per_second", "_interval_ms")

    def __init__(self, bytes_per_second: int, interval_ms: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._interval_ms = interval_ms

    @property
    def are_wanted(self) -> bool:
        """Whether anything is ever compared."""
        return self._bytes_per_second > 0

    def wait_s(self, now_ms: int, ended_ms: int, *, stopped_in_order: bool = True) -> float:
        """Return in how many seconds a round begins. ``ended_ms``: when the last one ended; 0: that is not known."""
        if ended_ms <= 0 or not stopped_in_order:
            return 0.0
        return min(max(ended_ms + self._interval_ms - now_ms, 0), self._interval_ms) / 1000

    def bytes_at_once(self, most: int) -> int:
        """Return how many bytes are compared in one go, at most ``most``: what is allowed in a second."""
        return min(self._bytes_per_second, most)

    def pause_s(self, size_bytes: int, requests: int) -> float:
        """Return how long nothing is compared after so many bytes and requests."""
        return max(size_bytes, requests * _REQUEST_BYTES) / self._bytes_per_second
