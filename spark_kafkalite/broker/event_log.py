"""The broker's log on standard error: one line per event, and a bound on how many of a kind.

A line has the time in UTC, the level, the logger's name (``logger_levels`` changes its level), and the text with its
control characters escaped (``printable``).

A hostile client can cause an event with every packet. Events that a peer can cause go through a :class:`QuietLog`,
which writes a few of each kind per period and then counts, and adds the count to the next line that it writes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

from spark_kafkalite.printable import PrintableFormatter

# Under Kafka's name: what clients were denied (``authorization.audit``).
AUDIT_LOGGER: Final = "kafka.authorizer.logger"

# In UTC: hosts of one cluster may be in several time zones, and clocks of one go back by an hour a year.
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def configure_logging(level: str) -> None:
    """Send the package's log lines of ``level`` and above to standard error. For the process that owns it, once."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = PrintableFormatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    for name in ("spark_kafkalite", AUDIT_LOGGER):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level)


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
        # kind -> [start of its period, lines written in it, lines left out]; kinds are literals in our code, so few.
        self._kinds: dict[str, list[float]] = {}

    def log(
        self, level: int, kind: str, message: str, *arguments: object, exc_info: bool | BaseException = False
    ) -> bool:
        """Write the line unless its kind has had its share; return whether it was written."""
        if not self._logger.isEnabledFor(level):
            return False
        now = self._monotonic_s()
        state = self._kinds.setdefault(kind, [now, 0, 0])
        left_out = 0
        if now - state[0] >= self._period_s:
            left_out = int(state[2])
            state[:] = [now, 0, 0]
        if state[1] >= self._burst:
            state[2] += 1
            return False
        state[1] += 1
        if left_out:
            message += " (%d more like this were not written)"
            arguments = (*arguments, left_out)
        try:
            self._logger.log(level, message, *arguments, exc_info=exc_info)
        except MemoryError:
            # Whoever logs an error goes on to deal with it; that matters more than the line.
            return False
        return True
