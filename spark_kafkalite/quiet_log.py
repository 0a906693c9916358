"""A bound on how many lines of a kind a log gets.

A hostile client can cause an event with every packet, and work that is tried again can fail for hours. So events that a
peer can cause, and failures that repeat, go through a :class:`QuietLog`. It writes a few lines of each kind per period
and then counts. It adds the count to the next line that it writes.

:meth:`QuietLog.of_states` makes a log for what lasts. It writes one line a minute, and a new line at once when there is
news.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

_STATE_PERIOD_S: Final = 60.0


class _Kind:
    """The lines of one kind in a period: since when, how many, how many were left out, and the last news."""

    __slots__ = ("left_out", "news", "since_s", "written")

    def __init__(self, since_s: float, news: str | None) -> None:
        self.since_s = since_s
        self.news = news
        self.written = self.left_out = 0


class QuietLog:
    """Writes at most ``burst`` lines of a kind per period; the rest are counted and the count is logged later."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        burst: int = 5,
        period_s: float = 10.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._burst = burst
        self._period_s = period_s
        self._monotonic_s = monotonic_s
        self._is_of_states = False
        # Kinds are literals in our code, or are forgotten, so there are few.
        self._kinds: dict[str, _Kind] = {}

    @classmethod
    def of_states(cls, logger: logging.Logger, monotonic_s: Callable[[], float] = time.monotonic) -> QuietLog:
        """Return a log for what lasts: a line of a kind a minute, without a count."""
        quiet = cls(logger, burst=1, period_s=_STATE_PERIOD_S, monotonic_s=monotonic_s)
        quiet._is_of_states = True
        return quiet

    def log(
        self,
        level: int,
        kind: str,
        message: str,
        *arguments: object,
        news: str | None = None,
        exc_info: bool | BaseException = False,
        event: Mapping[str, object] | None = None,
    ) -> bool:
        """Write the line unless its kind has had its share; return whether it was written.

        A line with other ``news`` than the last one of its kind begins a new period. ``event`` are the fields that the
        line has with ``log.format=json``.
        """
        if not self._logger.isEnabledFor(level):
            return False
        now_s = self._monotonic_s()
        known = self._kinds.get(kind)
        left_out = 0
        if known is None or now_s - known.since_s >= self._period_s or known.news != news:
            if known is not None:
                left_out = known.left_out
            known = self._kinds[kind] = _Kind(now_s, news)
        if known.written >= self._burst:
            known.left_out += 1
            return False
        known.written += 1
        if left_out and not self._is_of_states:
            message += " (%d more like this were not written)"
            arguments = (*arguments, left_out)
        try:
            extra = None if event is None else {"event": event}
            self._logger.log(level, message, *arguments, exc_info=exc_info, extra=extra)
        except MemoryError:
            # Whoever logs an error goes on to deal with it; that matters more than the line.
            return False
        return True

    def forget(self, kind: str) -> None:
        """Write the next line of a kind whenever it comes: what it was about is over."""
        self._kinds.pop(kind, None)
