"""Which of a leader's throttled partitions its follower asks for at present (KIP-73). Pure.

While the follower's throttle owes something, none is asked for, and the leader's session forgets those that were. Else
as many are asked for as the rate allows in a tenth of a second, so that one answer does not exceed it by much; they
take turns. Other partitions are not concerned.

Source: kafka.server.ReplicaFetcherThread.shouldFollowerThrottle.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle

# The least that is asked of a partition. The first batch comes whole in any case (KIP-74).
_LEAST_BYTES: Final = 64 * 1024
# For how long a partition may be asked for that has nothing, while others wait for their turn.
_TURN_S: Final = 0.5

Key = tuple[bytes, int]


class ThrottledFetches:
    """The throttled partitions of one leader."""

    __slots__ = ("_asked", "_held", "_partition_max_bytes", "_throttle", "_turned_s", "is_empty")

    def __init__(self, throttle: ReplicationThrottle, partition_max_bytes: int) -> None:
        """``partition_max_bytes``: what is asked of each partition without a throttle."""
        self._throttle = throttle
        self._partition_max_bytes = partition_max_bytes
        # Those that the session at the leader has, and those that wait, the first to be asked first.
        self._asked: dict[Key, None] = {}
        self._held: dict[Key, None] = {}
        self._turned_s = 0.0
        # Whether there are none. An attribute: it is read several times with each fetch.
        self.is_empty = True

    @property
    def fetch_bytes(self) -> int:
        """What is asked of each throttled partition."""
        return min(self._partition_max_bytes, max(self._throttle.most_at_once, _LEAST_BYTES))

    @property
    def _most(self) -> int:
        return max(self._throttle.most_at_once // max(self.fetch_bytes, 1), 1)

    def holds(self, key: Key) -> bool:
        """Return whether a throttled partition is not to be asked for now."""
        if self._throttle.owed_s() > 0:
            return True
        if key in self._asked:
            return False
        free = max(self._most - len(self._asked), 0)
        return key not in islice(self._held, free) if key in self._held else len(self._held) >= free

    def ask(self, key: Key) -> bool:
        """Return whether a throttled partition is to be asked for, and take note of that."""
        self.is_empty = False
        if self.holds(key):
            self._asked.pop(key, None)
            self._held[key] = None
            return False
        self._held.pop(key, None)
        self._asked[key] = None
        return True

    def drop(self, key: Key) -> None:
        """Forget a partition that is not throttled any more, or that cannot be asked for."""
        if not self.is_empty:
            self._asked.pop(key, None)
            self._held.pop(key, None)
            self.is_empty = not self._asked and not self._held

    def took(self, key: Key, size_bytes: int) -> None:
        """Count the records that an answer had of a partition, if it was asked for as a throttled one."""
        if key in self._asked:
            self._throttle.charge(size_bytes)

    def answered(self, now_s: float) -> Key | None:
        """Have another partition's turn come after an answer. Return the one whose turn is over, if any.

        Those with records end their turns by owing for them; this is for those of which the leader has none.
        """
        if not self._held or len(self._asked) < self._most or now_s < self._turned_s + _TURN_S:
            return None
        self._turned_s = now_s
        key = next(iter(self._asked))
        del self._asked[key]
        self._held[key] = None
        return key

    def due(self) -> list[Key]:
        """Return the partitions of which the session changes: those that must wait now, or whose turn has come."""
        if self._throttle.owed_s() > 0:
            return list(self._asked)
        return list(islice(self._held, max(self._most - len(self._asked), 0)))

    @property
    def everything(self) -> Iterable[Key]:
        """All throttled partitions."""
        return [*self._asked, *self._held]

    @property
    def owed_s(self) -> float:
        """For how many seconds no throttled partition is asked for."""
        return self._throttle.owed_s()
