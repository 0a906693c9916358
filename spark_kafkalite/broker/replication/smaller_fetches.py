"""How a follower goes on when there is no memory for an answer of its leader.

It asks for half as much, and again half, down to 64 KiB. A leader returns a batch that is larger than what was asked
for, where it is the first of an answer (KIP-74). The beginning of the answer names the partition of that batch. The
follower leaves this partition out, for a second at first and for a minute at last. All is as before when a minute has
passed without that. One line a minute reports what is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from spark_kafkalite.errors import NoMemoryForAnswer
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.wire.packed.fetch_beginning import announced_records

logger = logging.getLogger(__name__)

_LEAST_BYTES: Final = 64 * 1024
_MOST_HALVINGS: Final = 20
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_PERIOD_S: Final = 60.0

Key = tuple[bytes, int]


class _LeftOut(NamedTuple):
    until_s: float
    pause_s: float


class SmallerFetches:
    """What is asked of one leader while its answers are too large."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._halvings = 0
        self._until_s = 0.0
        self._left_out: dict[Key, _LeftOut] = {}
        self._quiet = QuietLog(logger, burst=1, period_s=_PERIOD_S, monotonic_s=now_s)

    def of(self, size_bytes: int) -> int:
        """Return how much to ask for, where it is ``size_bytes`` else."""
        if self._halvings and self._now_s() >= self._until_s:
            self._halvings = 0
        return min(size_bytes, max(size_bytes >> self._halvings, _LEAST_BYTES)) if self._halvings else size_bytes

    def leaves_out(self, key: Key) -> bool:
        """Return whether nothing is to be asked of a partition for now."""
        left_out = self._left_out.get(key) if self._left_out else None
        return left_out is not None and self._now_s() < left_out.until_s

    def too_large(self, error: NoMemoryForAnswer, partition_max_bytes: int) -> list[tuple[Key, float]]:
        """Take note of an answer for which there was no memory; return the partitions to be left out, for so many
        seconds. ``partition_max_bytes`` is what is asked of each at other times."""
        now_s = self._now_s()
        most = self.of(partition_max_bytes)
        self._halvings = min(self._halvings + 1, _MOST_HALVINGS)
        self._until_s = now_s + _PERIOD_S
        found: list[tuple[Key, float]] = []
        named = ""
        for topic_id, number, size in announced_records(error.beginning):
            if size <= most:
                continue
            key = topic_id, number
            former = self._left_out.get(key)
            is_again = former is not None and now_s - former.until_s < _PERIOD_S
            pause_s = min(former.pause_s * 2, _LONGEST_PAUSE_S) if former is not None and is_again else _FIRST_PAUSE_S
            self._left_out[key] = _LeftOut(now_s + pause_s, pause_s)
            found.append((key, pause_s))
            named = f"; a batch of {size} bytes in partition {number} of topic id {topic_id.hex()} is left out for now"
        self._quiet.log(
            logging.WARNING, "memory", "%s; less is asked for from now on%s, and other partitions go on", error, named
        )
        return found
