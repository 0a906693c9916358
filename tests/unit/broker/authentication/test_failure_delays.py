"""How long failures to authenticate are held back."""

from __future__ import annotations

from spark_kafkalite.broker.authentication.failure_delays import LONG_S, MANY, WINDOW_S, FailureDelays


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_many_failures_of_one_address_are_held_back_longer() -> None:
    clock = Clock()
    delays = FailureDelays(0.1, clock)
    assert [delays.failed("/a") for _ in range(MANY + 2)] == [0.1] * MANY + [LONG_S] * 2
    assert delays.failed("/b") == 0.1
    clock.now_s += WINDOW_S + 0.1
    assert delays.failed("/a") == 0.1


def test_an_address_with_many_failures_is_told_from_others() -> None:
    clock = Clock()
    delays = FailureDelays(0.1, clock)
    seen = []
    for _ in range(4):
        seen.append(delays.fails_often("/a"))
        delays.failed("/a")
    assert seen == [False, False, True, True] and not delays.fails_often("/b")
    clock.now_s += WINDOW_S + 0.1
    assert not delays.fails_often("/a")


def test_a_long_delay_stays_long_and_addresses_are_bounded() -> None:
    delays = FailureDelays(30.0, Clock())
    assert [delays.failed("/a") for _ in range(MANY + 1)] == [30.0] * (MANY + 1)
    for number in range(20_000):
        delays.failed(f"/{number}")
    assert len(delays._failures) == 10_000
