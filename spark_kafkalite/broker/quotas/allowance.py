"""What may be used of one quota: an allowance that grows with time, and a debt once more was used. Pure.

Apache Kafka keeps samples (``quota.window.num`` of ``quota.window.size.seconds`` each) and compares their average with
the quota. Clients that always want more come out above the quota so, by a tenth and more in half a minute, because old
samples are dropped whatever they were over. Here nothing that was used is forgotten. The same two settings bound how
much of its allowance a client that uses less may save: that of a fifth of the windows but one, or of one window.
So in the time of thrice the windows no client is more than a tenth above its quota. A new allowance begins with that
of one window.

Source: org.apache.kafka.common.metrics.stats.Rate, org.apache.kafka.server.quota.QuotaUtils.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeVar

# Of one kind. Clients choose their ids, and may come from any address.
MOST_ALLOWANCES: Final = 10_000
# The part of them that goes at once when there are too many.
_DROPPED_PART: Final = 10
# Of the windows but one, the part whose allowance is saved.
_SAVED_PART: Final = 5
# The longest debt: a quota that was lowered by mistake must not stop a client for a day.
_MOST_OWED_S: Final = 3600.0
# A quota of 0, which other programs may have stored, is this one.
_LEAST_BOUND: Final = 1e-9


Key = TypeVar("Key", bound=Hashable)


class Windows(NamedTuple):
    """The settings ``quota.window.num`` and ``quota.window.size.seconds``."""

    number: int = 11
    size_s: float = 1.0

    @property
    def saved_s(self) -> float:
        """For how many seconds an allowance is saved."""
        return max((self.number - 1) / _SAVED_PART, 1) * self.size_s


class Allowance:
    """What is left of a quota of ``bound`` units a second; below zero: what is owed.

    ``used``: what was charged so far, in units. ``throttled``: how often its client was throttled for it, and
    ``throttled_s`` for how long.
    """

    __slots__ = ("_at_s", "_bound", "_left", "_most_owed_s", "_windows", "throttled", "throttled_s", "used")

    def __init__(self, bound: float, windows: Windows, now_s: float, most_owed_s: float = _MOST_OWED_S) -> None:
        """``most_owed_s``: what takes longer to pay back is forgotten."""
        self._windows = windows
        self._most_owed_s = most_owed_s
        self._bound = max(bound, _LEAST_BOUND)
        self._left = self._bound * windows.size_s
        self._at_s = now_s
        self.used = 0.0
        self.throttled = 0
        self.throttled_s = 0.0

    @property
    def used_s(self) -> float:
        """When it was last asked or charged."""
        return self._at_s

    def obey(self, bound: float, now_s: float) -> None:
        """Grow by another quota from now on. What is owed stays owed, in units."""
        self._grow(now_s)
        self._bound = max(bound, _LEAST_BOUND)
        self._grow(now_s)

    def _grow(self, now_s: float) -> None:
        grown = self._left + self._bound * (now_s - self._at_s)
        self._left = max(min(grown, self._bound * self._windows.saved_s), -self._bound * self._most_owed_s)
        self._at_s = now_s

    def charge(self, amount: float, now_s: float) -> float:
        """Take ``amount`` units that were used; return as :meth:`owed_s`."""
        self._grow(now_s)
        self.used += amount
        self._left = max(self._left - amount, -self._bound * self._most_owed_s)
        return self._owed_s

    def throttle(self, seconds: float) -> None:
        """Count a throttled answer."""
        self.throttled += 1
        self.throttled_s += seconds

    def owed_s(self, now_s: float) -> float:
        """Return after how many seconds nothing is owed any more; 0 if nothing is."""
        self._grow(now_s)
        return self._owed_s

    @property
    def _owed_s(self) -> float:
        return -self._left / self._bound if self._left < 0 else 0.0

    def room(self, now_s: float) -> float:
        """Return how many units may be used at once: what is left, and not less than one window's allowance."""
        self._grow(now_s)
        return max(self._left, self._bound * self._windows.size_s)


def drop_oldest(allowances: dict[Key, Allowance]) -> None:
    """Make room for another allowance: drop a tenth of them, those that were used longest ago, with what they owe."""
    for key in sorted(allowances, key=lambda key: allowances[key].used_s)[: max(len(allowances) // _DROPPED_PART, 1)]:
        del allowances[key]
