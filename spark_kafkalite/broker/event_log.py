"""The broker's log on standard error: one line per event. ``quiet_log`` bounds how many there are of a kind.

A line has the time in UTC, the level, the logger's name (``logger_levels`` changes its level), and the text with its
control characters escaped (``printable``). With ``log.format=json`` it is a JSON object with the keys ``ts``,
``level``, ``logger``, ``msg`` and ``broker``; ``exception`` has the traceback of an error, and an event's own fields
follow.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

from spark_kafkalite.printable import PrintableFormatter, printable_json

# Under Kafka's name: what clients were denied (``authorization.authorizer_log``).
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
