"""Sessions of ZooKeeper's protocol on the embedded tree: passwords and deadlines. Pure: times are arguments.

A session outlives its connections: it ends when its client says so, or when nothing of it was heard for its timeout. A
process that stood still itself (stopped, starved, a host asleep) has heard of nobody meanwhile, so all deadlines move
by that time (:meth:`Sessions.tick`).
"""

from __future__ import annotations

import hmac
import os
from typing import Any, Final

MIN_TIMEOUT_MS: Final = 500
MAX_TIMEOUT_MS: Final = 120_000
# A tick that comes later than this after it was due says that the process stood still.
_LATE_S: Final = 0.25
_PASSWORD_BYTES: Final = 16


class ServedSession:
    """One session. ``connection`` is what currently speaks for it, None between two."""

    __slots__ = ("connection", "deadline_s", "password", "session_id", "timeout_ms")

    def __init__(self, session_id: int, timeout_ms: int, password: bytes, now_s: float) -> None:
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self.password = password
        self.connection: Any = None
        self.deadline_s = 0.0
        self.touch(now_s)

    def touch(self, now_s: float) -> None:
        """Take note that its client is alive."""
        self.deadline_s = now_s + self.timeout_ms / 1000


class Sessions:
    """All sessions of one server."""

    def __init__(self, tick_s: float, now_s: float) -> None:
        self._tick_s = tick_s
        self._last_tick_s = now_s
        self._sessions: dict[int, ServedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session_id: int, timeout_ms: int, password: bytes, now_s: float) -> ServedSession:
        """Take a session whose time begins now."""
        session = self._sessions[session_id] = ServedSession(session_id, timeout_ms, password, now_s)
        return session

    def find(self, session_id: int, password: bytes) -> ServedSession | None:
        """Return the session if it lives and the password is its."""
        session = self._sessions.get(session_id)
        return session if session is not None and hmac.compare_digest(session.password, password) else None

    def remove(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def tick(self, now_s: float) -> list[ServedSession]:
        """Return the sessions that are overdue. To be called every ``tick_s``: a late call moves the deadlines."""
        stood_still_s = now_s - self._last_tick_s - self._tick_s
        self._last_tick_s = now_s
        if stood_still_s > _LATE_S:
            for session in self._sessions.values():
                session.deadline_s += stood_still_s
        return [session for session in self._sessions.values() if session.deadline_s < now_s]


def new_password() -> bytes:
    """Return what the client of a new session is to prove it by."""
    return os.urandom(_PASSWORD_BYTES)


def negotiated_ms(wanted_ms: int) -> int:
    """Return the timeout that a session gets when its client wants this one."""
    return min(max(wanted_ms, MIN_TIMEOUT_MS), MAX_TIMEOUT_MS)
