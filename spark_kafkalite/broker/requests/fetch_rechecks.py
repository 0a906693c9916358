"""Has fetches that wait, and fetch sessions, read all their partitions again when ACLs have changed.

A reading asks for the rights on each topic that it reads (``fetch_reading``), so no records leave for a client that has
lost its right. But a session's reading covers only partitions with news, and a fetch that waits is not read until
something is appended: without this a client would not receive the error until then.

Many changes in a row cause one pass in each :data:`PAUSE_S`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from spark_kafkalite.broker.requests.fetch_sessions import FetchSessions
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.slices import Slices, Work

_quiet = QuietLog(logging.getLogger(__name__))

PAUSE_S: Final = 0.2


class FetchRechecks:
    """See the module's text. Lives in one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, slices: Slices, purgatory: Purgatory, sessions: FetchSessions
    ) -> None:
        self._loop = loop
        self._slices = slices
        self._purgatory = purgatory
        self._sessions = sessions
        self._timer: asyncio.TimerHandle | None = None

    def acls_changed(self) -> None:
        """Have everything read again within :data:`PAUSE_S`."""
        if self._timer is None:
            self._timer = self._loop.call_later(PAUSE_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self._slices.start(self._woken(), _report)

    def _woken(self) -> Work[None]:
        for session in self._sessions.of_clients():
            session.read_again()
            if session.waiting is not None:
                self._purgatory.wake_one(session.waiting)
            yield None
        for waiting in list(self._sessions.waiting_without):
            self._purgatory.wake_one(waiting)
            yield None


def _report(_: None, error: BaseException | None) -> None:
    if error is not None:
        _quiet.log(logging.ERROR, "bug", "fetches were not read again after a change of ACLs", exc_info=error)
