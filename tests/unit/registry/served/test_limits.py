"""A limit of the served registry is named before it is reached, and when it is."""

from __future__ import annotations

import logging

import pytest

from spark_kafkalite.registry.served.limits import Limit


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def limit(now: list[float]) -> Limit:
    return Limit("watches", 100, "watch fewer nodes", now=lambda: now[0])


def test_a_warning_comes_before_the_error(limit: Limit, caplog: pytest.LogCaptureFixture) -> None:
    for count in (0, 50, 79, 80, 99):
        limit.note(count, "session 7")
    limit.refused(101, "session 7")
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (
            logging.WARNING,
            "this registry has 80 watches of session 7, and keeps at most 100; more are refused then: "
            "watch fewer nodes",
        ),
        (
            logging.ERROR,
            "this registry has 101 watches of session 7, and keeps at most 100; what comes now is refused: "
            "watch fewer nodes",
        ),
    ]


def test_neither_is_said_again_within_a_minute(
    limit: Limit, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(121):
        now[0] = float(second)
        limit.note(90)
        limit.refused(100)
    assert [each.levelno for each in caplog.records] == [logging.WARNING, logging.ERROR] * 3
    assert "90 watches, and" in caplog.records[0].getMessage()
