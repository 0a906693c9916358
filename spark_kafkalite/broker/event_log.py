"""The broker's log on standard error: one line per event, and a bound on how many of a kind.

A line has the time in UTC, the level, the logger's name (``logger_levels`` changes its level), and the text with its
control characters escaped (``printable``). With ``log.format=json`` it is a JSON object with the keys ``ts``,
``level``, ``logger``, ``msg`` and ``broker``; ``exception`` has the traceback of an error, and an event's own fields
follow.

A hostile client can cause an event with every packet. Events that a peer can cause go through a :class:`QuietLog`,
which writes a few of each kind per period and then counts, and adds the count to the next line that it writes.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_kafkalite.printable import PrintableFormatter, printable_json

# Under Kafka's name: what clients were denied (``authorization.audit``).
AUDIT_LOGGER: Final = "kafka.authorizer.logger"

# In UTC: hosts of one cluster may be in several time zones, and clocks of one go back by an hour a year.
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


_TIME = "%Y-%m-%dT%H:%M:%S"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON. ``extra={"event": {...}}`` of the record has further fields."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime(_TIME, time.gmtime(record.created))
        line: dict[str, Any] = {
            "ts": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
            "broker": self._broker_id,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= {name: value for name, value in getattr(record, "event", {}).items() if name not in line}
        return printable_json(json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":")))


def configure_logging(level: str, *, log_format: str = "text", broker_id: int = -1) -> None:
    """Send the package's log lines of ``level`` and above to standard error. For the process that owns it, once."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter(broker_id))
    else:
        formatter = PrintableFormatter(_FORMAT, datefmt=_TIME)
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
        self,
        level: int,
        kind: str,
        message: str,
        *arguments: object,
        exc_info: bool | BaseException = False,
        event: Mapping[str, object] | None = None,
    ) -> bool:
        """Write the line unless its kind has had its share; return whether it was written.

        ``event`` are the fields that the line has with ``log.format=json``.
        """
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
            extra = None if event is None else {"event": event}
            self._logger.log(level, message, *arguments, exc_info=exc_info, extra=extra)
        except MemoryError:
            # Whoever logs an error goes on to deal with it; that matters more than the line.
            return False
        return True
