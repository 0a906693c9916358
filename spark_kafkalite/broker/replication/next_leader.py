"""Until when a produce to a partition without a leader waits for the next leader.

A client that is refused while there is no leader learns nothing from metadata, and asks again only after its pause,
which is longer than an election takes. So its answer waits until the next leader is known, for half a second at most
after the last one has gone, and then names it (KIP-951).

Only what is not in the log waits. A client may learn of the next leader elsewhere, and send it more than the five
batches whose repeats a log knows (KIP-98): what was appended here, and is sent again only then, would be there twice.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from spark_kafkalite.broker.waiting.purgatory import DelayedOperation, Purgatory
from spark_kafkalite.errors import NotLeaderOrFollower

# Longer than an election with thousands of partitions, shorter than anybody notices.
_AWAITED_S: Final = 0.5


class NextLeader:
    """The next leader of a partition, from when its leader has gone until the next one is known, or has taken too
    long."""

    __slots__ = ("_has_come", "_purgatory", "_timer", "_until_s", "_waiting")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._waiting = purgatory.waiting_list()
        self._timer: asyncio.TimerHandle | None = None
        self.leader_has_gone()

    def leader_has_gone(self) -> None:
        """Begin to count again: the last leader has gone only now."""
        self._has_come = False
        self._until_s = self._purgatory.now_s() + _AWAITED_S
        if self._timer is not None:
            self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer = self._purgatory.call_later(self._until_s - self._purgatory.now_s(), self.end)

    @property
    def is_awaited(self) -> bool:
        """Whether it is worth waiting for."""
        return not self._has_come and self._purgatory.now_s() < self._until_s

    def add(self, operation: DelayedOperation) -> None:
        """Wake this operation when it is not awaited any more."""
        self._waiting.add(operation)
        if self._timer is None:
            self._set_timer()

    def remove(self, operation: DelayedOperation) -> None:
        """Wake this operation no more."""
        self._waiting.remove(operation)

    def end(self) -> None:
        """The new leader is known, or nothing is served any more, or it takes too long."""
        self._has_come = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.close()


class LeaderMoves(NotLeaderOrFollower):
    """The partition has no leader, as far as is known here; the next one may be known in a moment."""

    code = NotLeaderOrFollower.code

    def __init__(self, message: str, next_leader: NextLeader) -> None:
        super().__init__(message)
        self.next_leader = next_leader
