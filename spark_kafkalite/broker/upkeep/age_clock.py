"""The clock by which a broker deletes what is old: records, tombstones, and committed offsets.

A leader whose clock is a day ahead takes each record for a day older than it is. It would delete too much, and its
followers with it. So a clock that was more than an hour ahead of the registry's when the broker registered is read as
if it were set back by the difference. If it is corrected while the broker runs, old data goes so much later, until the
broker registers again. Apache Kafka trusts the clock of each broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_kafkalite.clock import Clock

# What clocks of hosts may differ by without a difference to what is old; the default of message.timestamp.after.max.ms.
_MOST_AHEAD_MS: Final = 3_600_000


class AgeClock:
    """A clock whose wall time is set back by ``ahead_ms()`` if that is more than an hour."""

    def __init__(self, clock: Clock, ahead_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC, by which ages are judged."""
        ahead_ms = self._ahead_ms()
        return self._clock.wall_ms() - (ahead_ms if ahead_ms > _MOST_AHEAD_MS else 0)

    def monotonic_s(self) -> float:
        """As the clock beneath."""
        return self._clock.monotonic_s()
