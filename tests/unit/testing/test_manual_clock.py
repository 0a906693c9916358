import pytest

from spark_kafkalite.clock import Clock
from spark_kafkalite.testing.manual_clock import ManualClock


def read(clock: Clock) -> tuple[int, float]:
    return clock.wall_ms(), clock.monotonic_s()


def test_it_stands_still() -> None:
    clock = ManualClock(wall_ms=5_000, monotonic_s=7.0)
    assert read(clock) == read(clock) == (5_000, 7.0)


def test_both_times_pass_together() -> None:
    clock = ManualClock(wall_ms=5_000, monotonic_s=7.0)
    clock.advance(ms=250)
    clock.advance(s=1.75)
    assert read(clock) == (7_000, 9.0)


def test_many_small_steps_add_up_exactly() -> None:
    clock = ManualClock(wall_ms=0, monotonic_s=0.0)
    for _ in range(1_000):
        clock.advance(ms=1)
    assert read(clock) == (1_000, 1.0)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_jump_moves_wall_time_alone(jump_ms: int) -> None:
    clock = ManualClock(wall_ms=5_000_000, monotonic_s=7.0)
    clock.jump_wall(jump_ms)
    assert read(clock) == (5_000_000 + jump_ms, 7.0)


def test_time_does_not_pass_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(ms=-1)
