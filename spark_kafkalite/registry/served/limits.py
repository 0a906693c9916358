"""The limits of a served registry, logged before one is reached and when it is.

Other programs use up a limit, and a refused client learns only that the connection is closed. So the log has a WARNING
from 80 % on and an ERROR where something is refused: what there is, how much, how much at most, and what to do. Each is
logged again after a minute at the soonest.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.slices import Now

_LOG = logging.getLogger(__name__)

_WARNS_FROM: Final = 0.8


class Limit:
    """One limit. Each is used by one thread."""

    def __init__(self, what: str, most: int, remedy: str, now: Now = time.monotonic) -> None:
        """``what`` is counted, in the plural; ``remedy`` is what to do before and when there are too many."""
        self.most: Final = most
        self._what = what
        self._remedy = remedy
        self._warns_from = int(most * _WARNS_FROM)
        self._quiet = QuietLog.of_states(_LOG, now)

    def is_near(self, count: int) -> bool:
        """Return whether so many are worth a word."""
        return count >= self._warns_from

    def note(self, count: int, whose: str = "") -> None:
        """Log that there are so many, if that is near the limit. ``whose`` they are is in the text."""
        if self.is_near(count):
            self._say(logging.WARNING, count, whose, "more are refused then")

    def refused(self, count: int, whose: str = "") -> None:
        """Log that something has been refused, because there are so many."""
        self._say(logging.ERROR, count, whose, "what comes now is refused")

    def _say(self, level: int, count: int, whose: str, outcome: str) -> None:
        of = f" of {whose}" if whose else ""
        self._quiet.log(
            level,
            outcome,
            "this registry has %d %s%s, and keeps at most %d; %s: %s",
            count, self._what, of, self.most, outcome, self._remedy,
        )  # fmt: skip
