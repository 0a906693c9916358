"""The clock by which old data is deleted."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.upkeep.age_clock import AgeClock
from spark_kafkalite.testing.manual_clock import ManualClock

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("ahead_ms", "set_back_ms"),
    [(0, 0), (HOUR_MS, 0), (HOUR_MS + 1, HOUR_MS + 1), (24 * HOUR_MS, 24 * HOUR_MS), (-24 * HOUR_MS, 0)],
)
def test_only_a_clock_that_is_far_ahead_is_set_back(ahead_ms: int, set_back_ms: int) -> None:
    clock = ManualClock()
    ages = AgeClock(clock, lambda: ahead_ms)
    assert ages.wall_ms() == clock.wall_ms() - set_back_ms
    assert ages.monotonic_s() == clock.monotonic_s()
