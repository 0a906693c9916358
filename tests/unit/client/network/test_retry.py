"""Backoff and deadlines."""

from __future__ import annotations

import random

from spark_kafkalite.client.network.retry import JITTER, Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.errors import BrokerUnreachable, InvalidTopic, NotLeaderOrFollower, RequestTimedOut
from spark_kafkalite.testing.manual_clock import ManualClock


def test_pauses_double_to_the_limit_and_spread() -> None:
    backoff = Backoff(100, 1_000, random_source=random.Random(1))
    for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        pause = backoff.next_s()
        assert expected * (1 - JITTER) <= pause <= expected * (1 + JITTER)
    backoff.reset()
    assert backoff.next_s() <= 0.1 * (1 + JITTER)


def test_many_attempts_stay_at_the_limit() -> None:
    assert Backoff(100, 1_000, attempts=100_000).next_s() <= 1 + JITTER


def test_a_deadline_passes_with_the_clock() -> None:
    clock = ManualClock()
    deadline = Deadline.after_ms(1_000, clock)
    assert deadline.left_s() == 1.0
    clock.advance(ms=400)
    assert round(deadline.left_s(), 6) == 0.6
    assert round(deadline.earlier_of(100).left_s(), 6) == 0.1
    assert round(deadline.earlier_of(10_000).left_s(), 6) == 0.6
    clock.advance(ms=601)
    assert deadline.passed()
    assert deadline.left_s() == 0


def test_errors_say_whether_they_pass() -> None:
    assert is_retriable(RequestTimedOut()) and not needs_refresh(RequestTimedOut())
    assert is_retriable(NotLeaderOrFollower()) and needs_refresh(NotLeaderOrFollower())
    assert is_retriable(BrokerUnreachable()) and needs_refresh(BrokerUnreachable())
    assert not is_retriable(InvalidTopic()) and not is_retriable(ValueError())
