"""What counts as a trend."""

from __future__ import annotations

from tests.cluster_day.health import Trend


def trend(*samples: float, bound: float = 5) -> Trend:
    return Trend("memory", bound, samples=list(samples))


def test_the_growth_of_the_first_quarter_is_none() -> None:
    assert trend(10, 50, 100, 100, 100, 100, 100, 100).problem == ""


def test_a_share_and_a_bound_are_allowed_on_top_of_the_second_quarter() -> None:
    assert trend(0, 100, 110, 119).problem == ""
    assert trend(0, 100, 110, 121).problem == (
        "memory grew: memory: first 0.0, last 121.0, median of the second quarter 100.0, of the last 121.0; at most "
        "120.0 is no trend"
    )


def test_one_peak_in_a_quarter_is_no_trend() -> None:
    steady = [100.0] * 15
    assert trend(*steady, 1000).problem == ""
    assert trend(*steady, *[1000.0] * 5).problem != ""


def test_what_was_hardly_looked_at_is_no_day() -> None:
    assert trend(1, 2, 3).problem == "memory: 3 samples are no day's"
