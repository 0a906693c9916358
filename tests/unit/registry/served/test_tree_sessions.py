from __future__ import annotations

from spark_kafkalite.registry.served.sessions import MAX_TIMEOUT_MS, MIN_TIMEOUT_MS, Sessions, negotiated_ms


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
