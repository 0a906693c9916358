"""What clients count of their own work, under the names of Kafka's clients.

Rates, averages and maxima are those of the last 30 to 60 seconds, as in Kafka with its defaults (two samples of 30 s):
``metrics.num.samples``, ``metrics.sample.window.ms``. Totals count from the client's start. Counting is done once a
batch, a request or an answer, never for a record. What was not observed within the window has no average: it is left
out, where Kafka has NaN. Source: org.apache.kafka.common.metrics.stats.SampledStat, Rate, Avg, Max.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

_WINDOW_S: Final = 30.0

# By group, as Kafka names it, with topic, partition or node behind a point; then by name.
ClientMetrics = dict[str, dict[str, float]]


class Window(NamedTuple):
    """What was observed lately: in ``seconds``, and since the start (``times`` and ``total``)."""

    lately: int
    lately_sum: float
    most: float
    seconds: float
    times: int
    total: float


class Observed:
    """Values that were observed: their total since the start, and what the last windows have."""

    __slots__ = ("_began_s", "_clock_s", "_count", "_last", "_most", "_sum", "_turns_s", "count", "total")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """``clock_s`` is monotonic."""
        self._clock_s = clock_s
        self._began_s = clock_s()
        # When the window ends; what it has; and count, sum and maximum of the one before it.
        self._turns_s = self._began_s + _WINDOW_S
        self._count, self._sum, self._most = 0, 0.0, 0.0
        self._last = (0, 0.0, 0.0)
        # Of the windows before.
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, now_s: float) -> None:
        """Count a value."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        self._count += 1
        self._sum += value
        if value > self._most:
            self._most = value

    def _turn(self, now_s: float) -> None:
        """Begin a new window."""
        late_s = now_s - self._turns_s
        self.count += self._count
        self.total += self._sum
        self._last = (self._count, self._sum, self._most) if late_s < _WINDOW_S else (0, 0.0, 0.0)
        self._count, self._sum, self._most = 0, 0.0, 0.0
        self._turns_s = now_s - late_s % _WINDOW_S + _WINDOW_S

    def window(self) -> Window:
        """Return what was observed. Changes nothing: any thread may read."""
        now_s = self._clock_s()
        last, now = self._last, (self._count, self._sum, self._most)
        count, total = self.count + now[0], self.total + now[1]
        turns_s = self._turns_s
        if now_s >= turns_s:
            last, now = now if now_s < turns_s + _WINDOW_S else (0, 0.0, 0.0), (0, 0.0, 0.0)
            turns_s = now_s - (now_s - turns_s) % _WINDOW_S + _WINDOW_S
        # A rate over less than a window would show the first moments as a burst.
        seconds = max(_WINDOW_S, now_s - max(self._began_s, turns_s - 2 * _WINDOW_S))
        return Window(last[0] + now[0], last[1] + now[1], max(last[2], now[2]), seconds, count, total)


def together(windows: Iterable[Window]) -> Window:
    """Return what several have observed."""
    found = list(windows)
    return Window(
        sum(each.lately for each in found),
        sum(each.lately_sum for each in found),
        max((each.most for each in found), default=0.0),
        max((each.seconds for each in found), default=_WINDOW_S),
        sum(each.times for each in found),
        sum(each.total for each in found),
    )


def totals(prefix: str, window: Window) -> dict[str, float]:
    """Return ``PREFIX-total`` and ``PREFIX-rate`` of the sums."""
    return {f"{prefix}-total": float(window.total), f"{prefix}-rate": window.lately_sum / window.seconds}


def counts(prefix: str, window: Window) -> dict[str, float]:
    """Return ``PREFIX-total`` and ``PREFIX-rate`` of how often something was observed."""
    return {f"{prefix}-total": float(window.times), f"{prefix}-rate": window.lately / window.seconds}


def summary(prefix: str, window: Window) -> dict[str, float]:
    """Return ``PREFIX-avg`` and ``PREFIX-max``, nothing when nothing was observed."""
    if not window.lately:
        return {}
    return {f"{prefix}-avg": window.lately_sum / window.lately, f"{prefix}-max": float(window.most)}
