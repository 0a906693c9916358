"""How long the broker waits until it answers a client that failed to authenticate. Pure, with an injected clock.

The wait limits how fast one address can guess passwords. It is longer after many failures from an address, and only
for failures: a client with the right password never waits for the wrong ones of others behind the same address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# So many failures in so many seconds are many, and are answered after this time.
MANY: Final = 10
WINDOW_S: Final = 10.0
LONG_S: Final = 5.0
# After so many an address has log lines of its own kind: with a flood of failures it must not hide those of others.
FEW: Final = 2
# Addresses that are remembered: an attacker may have many.
_MOST_ADDRESSES: Final = 10_000


class FailureDelays:
    """Counts the failures of each address."""

    def __init__(self, delay_s: float, now: Callable[[], float]) -> None:
        """``delay_s`` is the least wait; ``now`` is a monotonic clock in seconds."""
        self._delay_s = delay_s
        self._now = now
        # Address to the start of its window and the failures in it, the oldest window first.
        self._failures: dict[str, tuple[float, int]] = {}

    def fails_often(self, address: str) -> bool:
        """Whether an address has more than a few failures in its window."""
        begun_s, count = self._failures.get(address, (0.0, 0))
        return count >= FEW and self._now() - begun_s <= WINDOW_S

    def failed(self, address: str) -> float:
        """Count a failure; return after how many seconds to answer it."""
        now_s = self._now()
        begun_s, count = self._failures.pop(address, (now_s, 0))
        if now_s - begun_s > WINDOW_S:
            begun_s, count = now_s, 0
        if len(self._failures) >= _MOST_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = begun_s, count + 1
        return max(self._delay_s, LONG_S) if count >= MANY else self._delay_s
