"""What may be used of one quota, by a manual clock."""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.broker.quotas.allowance import Allowance, Windows, drop_oldest
from tests.seeds import SEED

WINDOWS = Windows(11, 1.0)


def used_in(seconds: float, bound: float, request: float, *, clients: int = 1, idle_s: float = 0.0) -> float:
    """Return what clients use that send their next request as soon as they may, in units a second of the quota."""
    allowance = Allowance(bound, WINDOWS, 0.0)
    begun_s = idle_s
    next_s = [begun_s] * clients
    used = 0.0
    while (now_s := min(next_s)) < begun_s + seconds:
        client = next_s.index(now_s)
        used += request
        # A request takes a while, too.
        next_s[client] = now_s + 1e-3 + allowance.charge(request, now_s)
    return used / seconds / bound


@pytest.mark.parametrize("idle_s", [0.0, 1.0, 3600.0])
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("request_bytes", [10_000, 100_000])
def test_the_rate_of_half_a_minute_is_within_a_tenth(request_bytes: int, clients: int, idle_s: float) -> None:
    rate = used_in(30, 1e6, request_bytes, clients=clients, idle_s=idle_s)
    assert 0.99 <= rate <= 1.1


@pytest.mark.parametrize("request_bytes", [1_000_000, 4_000_000])
def test_large_requests_are_paid_back(request_bytes: int) -> None:
    assert used_in(300, 1e6, request_bytes) == pytest.approx(1, abs=0.02)


def test_a_client_below_its_quota_owes_nothing() -> None:
    allowance = Allowance(1000, WINDOWS, 0.0)
    assert [allowance.charge(900, float(second)) for second in range(100)] == [0.0] * 100


def test_what_is_saved_is_bounded() -> None:
    allowance = Allowance(1000, WINDOWS, 0.0)
    assert allowance.charge(2000, 3600.0) == 0
    assert allowance.charge(500, 3600.0) == pytest.approx(0.5)
    # One that is new has the allowance of a window.
    assert Allowance(1000, WINDOWS, 7.0).charge(1000, 7.0) == 0
    assert Allowance(1000, WINDOWS, 7.0).charge(1500, 7.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("windows", "saved_s"), [(Windows(), 2.0), (Windows(1, 5), 5.0), (Windows(101, 1), 20.0)])
def test_windows_say_how_much_is_saved(windows: Windows, saved_s: float) -> None:
    assert windows.saved_s == saved_s


def test_debt_is_bounded_and_stays_when_the_quota_changes() -> None:
    allowance = Allowance(1000, WINDOWS, 0.0)
    assert allowance.charge(21_000, 0.0) == pytest.approx(20)
    allowance.obey(2000, 10.0)
    assert allowance.owed_s(10.0) == pytest.approx(5)
    allowance.obey(10, 10.0)
    assert allowance.owed_s(10.0) == pytest.approx(1000)
    assert allowance.charge(1e12, 10.0) == 3600


@pytest.mark.parametrize("bound", [0.0, 1e-300, 1e300])
def test_extreme_quotas_give_numbers(bound: float) -> None:
    allowance = Allowance(bound, WINDOWS, 0.0)
    owed_s = allowance.charge(1_000_000, 1.0)
    assert owed_s == (0 if bound > 1 else 3600)
    assert allowance.room(2.0) > 0


def test_room_is_what_is_left_but_never_less_than_a_window() -> None:
    allowance = Allowance(1000, WINDOWS, 0.0)
    assert allowance.room(2.0) == 2000
    allowance.charge(5000, 2.0)
    assert allowance.room(2.0) == 1000


def test_those_used_longest_ago_are_dropped() -> None:
    order = list(range(100))
    random.Random(SEED).shuffle(order)
    allowances = {number: Allowance(1, WINDOWS, float(number)) for number in order}
    drop_oldest(allowances)
    assert sorted(allowances) == list(range(10, 100))
