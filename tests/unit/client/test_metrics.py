"""Totals, rates, averages and maxima of what clients count, by a clock that is set."""

from __future__ import annotations

from spark_kafkalite.client.metrics import Observed, counts, summary, together, totals


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_totals_stay_and_rates_are_those_of_the_last_minute() -> None:
    clock = Clock()
    observed = Observed(clock)
    for _ in range(30):
        observed.observe(10, clock.now_s)
        clock.now_s += 1
    assert totals("byte", observed.window()) == {"byte-total": 300, "byte-rate": 10}
    assert counts("request", observed.window()) == {"request-total": 30, "request-rate": 1}
    clock.now_s += 20
    assert totals("", observed.window())["-rate"] == 300 / 50
    clock.now_s += 10
    assert totals("byte", observed.window()) == {"byte-total": 300, "byte-rate": 0}


def test_a_rate_of_the_first_seconds_is_not_a_burst() -> None:
    clock = Clock()
    observed = Observed(clock)
    observed.observe(300, clock.now_s)
    assert totals("", observed.window())["-rate"] == 10


def test_averages_and_maxima_forget_and_are_left_out() -> None:
    clock = Clock()
    observed = Observed(clock)
    assert summary("latency", observed.window()) == {}
    for value in (1.0, 9.0, 2.0):
        observed.observe(value, clock.now_s)
    assert summary("latency", observed.window()) == {"latency-avg": 4.0, "latency-max": 9.0}
    clock.now_s += 35
    observed.observe(2.0, clock.now_s)
    assert summary("latency", observed.window()) == {"latency-avg": 3.5, "latency-max": 9.0}
    clock.now_s += 30
    assert summary("latency", observed.window()) == {"latency-avg": 2.0, "latency-max": 2.0}
    clock.now_s += 1000
    assert summary("latency", observed.window()) == {}


def test_several_together() -> None:
    clock = Clock()
    first, second = Observed(clock), Observed(clock)
    first.observe(1, clock.now_s)
    second.observe(5, clock.now_s)
    second.observe(6, clock.now_s)
    both = together([first.window(), second.window()])
    assert summary("size", both) == {"size-avg": 4.0, "size-max": 6.0}
    assert totals("size", both) == {"size-total": 12.0, "size-rate": 0.4}
    assert summary("size", together([])) == {}
