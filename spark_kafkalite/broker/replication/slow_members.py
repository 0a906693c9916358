"""When a leader's members are looked through for slow ones: every half replica.lag.time.max.ms.

Missing fetches are not the followers' fault where this process stood still. Then no follower is taken for slow until it
has had time to fetch. A process that stands still time and again may be slow itself, so the look is put off a few times
only.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)

# How often it is seen whether the loop stood still, and from when on it did.
_PULSE_S: Final = 1.0
_STOOD_STILL_S: Final = 0.5
# Pauses for which the look is put off.
_PATIENT_WITH_PAUSES: Final = 4


class Pulse:
    """Sees whether a loop stood still: calls back now and every so often, and reports whether that call was delayed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float, beat: Callable[[bool], None]) -> None:
        self._loop = loop
        self._every_s = every_s
        self._beat = beat
        self._due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to beat."""
        now_s = self._loop.time()
        self._beat(now_s - self._due_s > _STOOD_STILL_S)
        self._due_s = now_s + self._every_s
        self._timer = self._loop.call_later(self._every_s, self.start)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()


class SlowMembers:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        lag_max_s: float,
        may_look: Callable[[], bool],
        look: Callable[[], Work[None]],
    ) -> None:
        """``look`` looks all members through, in slices; ``may_look`` returns whether it is time for that at all."""
        self._loop = loop
        self._slices = slices
        self._every_s = lag_max_s / 2
        self._may_look = may_look
        self._look = look
        self._pulse = Pulse(loop, min(_PULSE_S, lag_max_s / 4), self._beat)
        # When the next look is, and how often that was put off.
        self._look_at_s = math.inf
        self._pauses = 0
        self._is_looking = False

    def start(self) -> None:
        """Look for the first time half the lag from now."""
        self._look_at_s = self._loop.time() + self._every_s
        self._pulse.start()

    def stop(self) -> None:
        """Begin no further look."""
        self._pulse.stop()

    def _beat(self, stood_still: bool) -> None:
        now_s = self._loop.time()
        if stood_still and self._pauses < _PATIENT_WITH_PAUSES:
            self._pauses += 1
            self._look_at_s = max(self._look_at_s, now_s + self._every_s)
        if now_s >= self._look_at_s and not self._is_looking and self._may_look():
            self._look_at_s = now_s + self._every_s
            self._pauses = 0
            self._is_looking = True
            self._slices.start(self._look(), self._looked)

    def _looked(self, _: None, error: BaseException | None) -> None:
        self._is_looking = False
        if error is not None:
            logger.critical("slow in-sync replicas could not be looked for", exc_info=error)
