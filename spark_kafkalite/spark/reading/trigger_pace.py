"""How fast a streaming query asks for batches: waits without news, and ``minOffsetsPerTrigger``.

With the default trigger the engine calls ``latestOffset`` as fast as it returns. So without news the call waits, longer
from call to call, and looks again meanwhile. A query over several sources waits for each in turn, so that the longest
wait is also what an idle source may delay a busy one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

_FIRST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 0.2
_LOOKS: Final = 4


class TriggerPace:
    """The waits of one source. ``min_offsets`` None: a batch may have any size."""

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        """``min_offsets``: ``minOffsetsPerTrigger``; ``max_delay_ms``: ``maxTriggerDelay``."""
        self._min_offsets = min_offsets
        self._max_delay_s = max_delay_ms / 1000
        self._idle_wait_s = 0.0
        self._last_trigger_s: float | None = None

    def looks(self) -> Iterator[None]:
        """Wait for news, twice as long as the call before: yields whenever the caller is to look for them."""
        self._idle_wait_s = min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, self._idle_wait_s * 2))
        until_s = time.monotonic() + self._idle_wait_s
        while True:
            time.sleep(self._idle_wait_s / _LOOKS)
            yield
            if time.monotonic() >= until_s:
                return

    def has_batch(self) -> None:
        """Take note of a batch: the next wait is a short one again."""
        self._idle_wait_s = 0.0

    def waits_for_more(self, waiting_offsets: int) -> bool:
        """Whether these are less than ``minOffsetsPerTrigger``, and ``maxTriggerDelay`` has not passed; waits then."""
        if self._min_offsets is None:
            return False
        now_s = time.monotonic()
        # The first trigger of a run always fires, as in the JVM connector.
        if (
            self._last_trigger_s is None
            or now_s - self._last_trigger_s >= self._max_delay_s
            or waiting_offsets >= self._min_offsets
        ):
            self._last_trigger_s = now_s
            return False
        time.sleep(_LONGEST_WAIT_S)
        return True
