"""The plug-in whose clock stalls (``tests.slowclock``): what production's slices read while it is there."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafkalite.slices import SLICE_S, Slices, Work
from tests import slowclock
from tests.slowclock import StallingClock


def stepping(count: int) -> Work[int]:
    for _ in range(count):
        yield None
    return count


def test_it_replaces_the_clock_of_those_slices_that_are_given_none() -> None:
    clock = StallingClock(SLICE_S, 1, seed=1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = Slices(loop).now
        with slowclock.installed(clock):
            drop = Slices(loop).start(stepping(3), lambda *_: None)
            assert drop is not None, "every reading takes a slice, so three steps take more than one"
            drop()
        assert Slices(loop).now is before

    asyncio.run(main())
    assert clock.stalls == clock.readings > 0


def test_a_session_does_not_start_unless_a_brokers_slices_read_the_clock() -> None:
    clock = StallingClock(0.02, 20, seed=1)
    with slowclock.installed(clock):
        slowclock.check_is_read(clock)
    with pytest.raises(pytest.UsageError, match="does not replace the clock"):
        slowclock.check_is_read(clock)


def test_one_reading_in_so_many_is_late_and_a_seed_repeats_which() -> None:
    readings = [[clock() for _ in range(2000)] for clock in (StallingClock(1.0, 20, seed) for seed in (1, 1, 2))]
    assert readings[0] == readings[1] != readings[2]
    late = [after - before > 0.5 for before, after in zip(readings[0], readings[0][1:], strict=False)]
    assert 50 <= sum(late) <= 150


@pytest.mark.parametrize("setting", ["fast", "0.02/x"])
def test_a_setting_of_another_form_is_refused(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALITE_SLOW_CLOCK", setting)
    with pytest.raises(pytest.UsageError, match="SECONDS/READINGS"):
        slowclock.clock_of_environment()
