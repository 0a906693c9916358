"""What clients count of their own work, under the names of Kafka's clients.

Rates, averages and maxima are those of the last 30 to 60 seconds, as in Kafka with its defaults (two samples of 30 s):
``metrics.num.samples``, ``metrics.sample.window.ms``. Totals count from the client's start. Counting is done once a
batch, a request or an answer, never for a record. What was not observed within the window has no average: it is left
out, where Kafka has NaN. Source: org.apache.kafka.common.metrics.stats.SampledStat, Rate, Avg, Max.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

_WINDOW_S: Final = 30.0

# By group, as Kafka names it, with topic, partition or node behind a point; then by name.
ClientMetrics = dict[str, dict[str, float]]


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
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, now_s: float) -> None:
        """Count a value."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        self.count += 1
        self.total += value
        self._count += 1
        self._sum += value
        if value > self._most:
            self._most = value

    def _turn(self, now_s: float) -> None:
        """Begin a new window."""
        late_s = now_s - self._turns_s
        self._last = (self._count, self._sum, self._most) if late_s < _WINDOW_S else (0, 0.0, 0.0)
        self._count, self._sum, self._most = 0, 0.0, 0.0
        self._turns_s = now_s - late_s % _WINDOW_S + _WINDOW_S

    def _window(self) -> tuple[int, float, float, float]:
        """Return count, sum, maximum and seconds of the last windows. Changes nothing: any thread may read."""
        now_s = self._clock_s()
        last, now = self._last, (self._count, self._sum, self._most)
        turns_s = self._turns_s
        if now_s >= turns_s:
            last, now = now if now_s < turns_s + _WINDOW_S else (0, 0.0, 0.0), (0, 0.0, 0.0)
            turns_s = now_s - (now_s - turns_s) % _WINDOW_S + _WINDOW_S
        # A rate over less than a window would show the first moments as a burst.
        seconds = max(_WINDOW_S, now_s - max(self._began_s, turns_s - 2 * _WINDOW_S))
        return last[0] + now[0], last[1] + now[1], max(last[2], now[2]), seconds

    def rate(self) -> float:
        """Return the sum a second."""
        _, total, _, seconds = self._window()
        return total / seconds

    def count_rate(self) -> float:
        """Return how many values were observed a second."""
        count, _, _, seconds = self._window()
        return count / seconds

    def summary(self) -> dict[str, float]:
        """Return ``avg`` and ``max``, nothing when nothing was observed."""
        count, total, most, _ = self._window()
        return {"avg": total / count, "max": most} if count else {}


def totals(prefix: str, observed: Observed) -> dict[str, float]:
    """Return ``PREFIX-total`` and ``PREFIX-rate`` of the sums."""
    return {f"{prefix}-total": observed.total, f"{prefix}-rate": observed.rate()}


def counts(prefix: str, observed: Observed) -> dict[str, float]:
    """Return ``PREFIX-total`` and ``PREFIX-rate`` of how often something was observed."""
    return {f"{prefix}-total": float(observed.count), f"{prefix}-rate": observed.count_rate()}


def summary(prefix: str, observed: Observed, kinds: Iterable[str] = ("avg", "max")) -> dict[str, float]:
    """Return ``PREFIX-avg`` and ``PREFIX-max``, or one of them, where something was observed."""
    found = observed.summary()
    return {f"{prefix}-{kind}": found[kind] for kind in kinds if kind in found}
