"""What the broker counts while it works, for its metrics. Without ``metrics.listener`` nothing is counted.

Times of requests are measured for one request of each API in
sixteen, because the times of all of them would cost a tenth of a small request.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, Final

from spark_kafkalite.broker.metrics.counters import Histogram, LogMeters
from spark_kafkalite.broker.requests.exchange import Exchange, Oversight, Times
from spark_kafkalite.wire.api_keys import ApiKey

_SAMPLED_MASK: Final = 15
_LOOKS_EVERY_S: Final = 0.1
# How long the average of the loop's idle share reaches back, as that of Kafka's meters.
_AVERAGED_S: Final = 60.0


class RequestTimes:
    """The durations of one API's sampled requests, by phase."""

    __slots__ = ("phases",)

    def __init__(self) -> None:
        # From the last byte read to the handler; the handler; what it waited for; from the answer to its last byte.
        self.phases = {name: Histogram() for name in ("queue", "local", "remote", "send", "total")}


class RequestMeter(Oversight):
    """Counts requests by API, and sees the exchanges that it samples."""

    def __init__(self) -> None:
        # Own keys are far above Kafka's.
        self.counts: dict[int, int] = dict.fromkeys(map(int, ApiKey), 0)
        self.times: dict[int, RequestTimes] = {}

    def next(self, api_key: int) -> Oversight | None:
        """Count a request of a served API; return what measures its times, None if they are not measured."""
        count = self.counts[api_key]
        self.counts[api_key] = count + 1
        return None if count & _SAMPLED_MASK else self

    def ended(self, exchange: Exchange, times: Times) -> None:
        """Take the times of a sampled exchange; one whose client has gone away has none."""
        if not times.sent_s:
            return
        found = self.times.get(exchange.api_key)
        if found is None:
            found = self.times[exchange.api_key] = RequestTimes()
        phases = found.phases
        phases["queue"].observe(times.started_s - times.arrived_s)
        phases["local"].observe(times.answered_s - times.started_s - times.waited_s)
        phases["remote"].observe(times.waited_s)
        phases["send"].observe(times.sent_s - times.answered_s)
        phases["total"].observe(times.sent_s - times.arrived_s)


class LoopMeter:
    """How late the event loop calls what is due, how much of the time its thread computes, and the collector's pauses.

    ``idle`` is the share of the last minute in which the loop's thread did not compute.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag = Histogram()
        self.gc_pauses = {generation: Histogram() for generation in range(3)}
        self.idle = 1.0
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._seen = (0.0, 0.0)
        self._gc_began_s = 0.0

    def start(self) -> None:
        """Begin to look; call it in the loop's thread."""
        self._seen = time.monotonic(), time.thread_time()
        gc.callbacks.append(self._collecting)
        self._wait()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._collecting)

    def _wait(self) -> None:
        self._due_s = self._loop.time() + _LOOKS_EVERY_S
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        self.lag.observe(max(0.0, self._loop.time() - self._due_s))
        now_s, computed_s = time.monotonic(), time.thread_time()
        before_s, before_computed_s = self._seen
        self._seen = now_s, computed_s
        passed_s = now_s - before_s
        if passed_s > 0:
            idle = min(1.0, max(0.0, 1 - (computed_s - before_computed_s) / passed_s))
            weight = min(1.0, passed_s / _AVERAGED_S)
            self.idle += (idle - self.idle) * weight
        self._wait()

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._gc_began_s = now_s
        else:
            self.gc_pauses[info["generation"]].observe(now_s - self._gc_began_s)


class Meters(LogMeters):
    """All that is counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.requests = RequestMeter()
        self.loop = LoopMeter(loop)
