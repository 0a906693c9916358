import time

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock


def test_wall_time_is_the_systems_in_whole_milliseconds() -> None:
    clock: Clock = SYSTEM_CLOCK
    before = time.time_ns() // 1_000_000
    now = clock.wall_ms()
    assert isinstance(now, int)
    assert before <= now <= time.time_ns() // 1_000_000


def test_monotonic_time_never_goes_back() -> None:
    readings = [SYSTEM_CLOCK.monotonic_s() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert readings[-1] > readings[0]


def test_monotonic_time_counts_while_the_host_is_suspended() -> None:
    boot_time = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= SYSTEM_CLOCK.monotonic_s() - boot_time < 5
