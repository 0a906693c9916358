from __future__ import annotations

import pytest

from spark_kafkalite.registry.served.sessions import (
    AUTHENTICATE_S,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
    Sessions,
    negotiated_ms,
)


def test_a_session_is_overdue_when_nothing_was_heard_for_its_timeout() -> None:
    sessions = Sessions(0.1, 0.0)
    silent, talking = sessions.add(1, 1000, b"secret", 0.0), sessions.add(2, 1000, b"secret", 0.0)
    now_s = 0.0
    overdue = []
    while not overdue:
        now_s += 0.1
        talking.touch(now_s)
        overdue = sessions.tick(now_s)
    assert overdue == [silent]
    assert 1.0 < now_s < 1.15


def test_time_in_which_the_server_stood_still_moves_every_deadline() -> None:
    sessions = Sessions(0.1, 0.0)
    session = sessions.add(1, 1000, b"secret", 0.0)
    assert sessions.tick(0.1) == []
    # Stopped for an hour.
    assert sessions.tick(3600.1) == []
    assert sessions.tick(3600.2) == []
    assert session.deadline_s > 3600.8
    now_s = 3600.2
    while now_s < 3601.5:
        now_s += 0.1
        overdue = sessions.tick(now_s)
    assert overdue == [session]


def test_a_session_whose_client_does_not_authenticate_ends_whatever_it_sends() -> None:
    sessions = Sessions(0.1, 0.0, must_authenticate=True)
    stranger, user = sessions.add(1, 60_000, b"secret", 0.0), sessions.add(2, 60_000, b"secret", 0.0)
    short = sessions.add(3, 1000, b"secret", 0.0)
    user.trust(0.0)
    now_s = 0.0
    ended: dict[int, float] = {}
    while now_s < AUTHENTICATE_S + 1:
        now_s += 0.1
        for session in (stranger, user, short):
            session.touch(now_s)
        for session in sessions.tick(now_s):
            ended.setdefault(session.session_id, now_s)
    assert ended == {3: pytest.approx(1.1), 1: pytest.approx(AUTHENTICATE_S + 0.1)}
    # From its last word on.
    assert user.deadline_s == now_s + 60


def test_a_session_of_an_earlier_process_has_its_whole_time_to_authenticate() -> None:
    sessions = Sessions(0.1, 0.0, must_authenticate=True)
    kept = sessions.add(1, 60_000, b"secret", 0.0, is_new=False)
    kept.touch(30.0)
    assert kept.deadline_s == 60.0
    kept.trust(31.0)
    assert kept.deadline_s == 91.0


def test_a_session_is_found_with_its_password_only() -> None:
    sessions = Sessions(0.1, 0.0)
    session = sessions.add(1, 1000, b"secret", 0.0)
    assert sessions.find(1, session.password) is session
    assert sessions.find(1, bytes(16)) is None
    assert sessions.find(1, b"") is None
    assert sessions.find(2, session.password) is None
    sessions.remove(1)
    assert sessions.find(1, session.password) is None
    assert len(sessions) == 0


def test_timeouts_are_bounded() -> None:
    assert [negotiated_ms(wanted) for wanted in (-1, 0, 1000, 2**31 - 1)] == [
        MIN_TIMEOUT_MS,
        MIN_TIMEOUT_MS,
        1000,
        MAX_TIMEOUT_MS,
    ]
