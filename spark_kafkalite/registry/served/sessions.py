"""Sessions of ZooKeeper's protocol on the embedded tree: passwords and deadlines. Pure: times are arguments.

A session outlives its connections: it ends when its client closes it, or when the client was silent for its timeout. A
process that stood still itself (stopped, starved, a host asleep) has received nothing meanwhile, so all deadlines move
by that time (:meth:`Sessions.tick`).

Where clients have to authenticate, a session whose client has not done so lasts AUTHENTICATE_S, whatever it sends, and
no longer than its connection.
"""

from __future__ import annotations

import hmac
import os
from typing import Any, Final

MIN_TIMEOUT_MS: Final = 500
MAX_TIMEOUT_MS: Final = 120_000
AUTHENTICATE_S: Final = 5.0
# A tick that comes later than this after it was due says that the process stood still.
_LATE_S: Final = 0.25
_PASSWORD_BYTES: Final = 16


class ServedSession:
    """One session. ``connection`` is what currently speaks for it, None between two. ``is_trusted``: its client has
    authenticated, or need not."""

    __slots__ = ("connection", "deadline_s", "is_trusted", "password", "session_id", "timeout_ms")

    def __init__(
        self, session_id: int, timeout_ms: int, password: bytes, deadline_s: float, *, is_trusted: bool
    ) -> None:
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self.password = password
        self.connection: Any = None
        self.deadline_s = deadline_s
        self.is_trusted = is_trusted

    def touch(self, now_s: float) -> None:
        """Take note that its client is alive: that counts once the client is trusted."""
        if self.is_trusted:
            self.deadline_s = now_s + self.timeout_ms / 1000

    def trust(self, now_s: float) -> None:
        """Take note that its client has authenticated."""
        self.is_trusted = True
        self.touch(now_s)


class Sessions:
    """All sessions of one server."""

    def __init__(self, tick_s: float, now_s: float, *, must_authenticate: bool = False) -> None:
        self._must_authenticate = must_authenticate
        self._tick_s = tick_s
        self._last_tick_s = now_s
        self._sessions: dict[int, ServedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(
        self, session_id: int, timeout_ms: int, password: bytes, now_s: float, *, is_new: bool = True
    ) -> ServedSession:
        """Take a session whose time begins now. One that is not new has all of it to come back and authenticate."""
        lasts_s = timeout_ms / 1000
        if is_new and self._must_authenticate:
            lasts_s = min(lasts_s, AUTHENTICATE_S)
        session = self._sessions[session_id] = ServedSession(
            session_id, timeout_ms, password, now_s + lasts_s, is_trusted=not self._must_authenticate
        )
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
