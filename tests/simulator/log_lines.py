"""What the brokers of a simulation log: exceptions that nobody has foreseen, and how many lines there are."""

from __future__ import annotations

import logging
import traceback
from asyncio import events
from collections import Counter, deque
from typing import Final

from tests.simulator.world import World

LOG: Final = logging.getLogger("spark_kafkalite")
# Of one broker, in a minute of simulated time.
MOST_LINES: Final = 600
_MINUTE_S: Final = 60.0


class Unforeseen(logging.Handler):
    """Hears of exceptions that the brokers log, because nobody has foreseen them (C10)."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.problems: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.problems.append("".join([record.getMessage(), "\n", *traceback.format_exception(record.exc_info[1])]))

    def __enter__(self) -> None:
        LOG.addHandler(self)

    def __exit__(self, *_: object) -> None:
        LOG.removeHandler(self)


class LogLines(logging.Handler):
    """Counts the lines that each broker logs: the process whose pass it is."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._lines: dict[str, deque[float]] = {}
        self._texts: dict[str, Counter[str]] = {}
        self.problems: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(events._get_running_loop(), "name", "")
        lines, now_s = self._lines.setdefault(name, deque()), self._world.now_s
        lines.append(now_s)
        self._texts.setdefault(name, Counter())[str(record.msg)] += 1
        while lines[0] < now_s - _MINUTE_S:
            lines.popleft()
        if len(lines) == MOST_LINES and name:
            self.problems.append(
                f"{name} logs {len(lines)} lines in a minute, mostly {self._texts[name].most_common(3)}"
            )
