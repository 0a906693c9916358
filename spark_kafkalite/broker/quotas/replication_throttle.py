"""How much of what moves between brokers may be copied in a second (KIP-73).

A broker has two throttles. ``leader.replication.throttled.rate`` bounds what its followers copy from it, and
``follower.replication.throttled.rate`` what it copies itself. Each covers the replicas that the topic's settings
``leader.replication.throttled.replicas`` and ``follower.replication.throttled.replicas`` name, as long as commits do
not wait for the replica that copies. What in-sync replicas copy, and those that are about to join, is neither held up
nor counted, so producers never wait for a throttle. (Apache Kafka counts it, so there the moves get what is left.)

What was copied beyond the rate is owed, and while anything is owed nothing more is copied. As in Kafka, debts are
forgotten after ``replication.quota.window.num`` windows: so each of them lets at least one batch pass, however low the
rate is.

Source: kafka.server.ReplicationQuotaManager, ReplicaManager.shouldLeaderThrottle,
ReplicaFetcherThread.shouldFollowerThrottle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from spark_kafkalite.broker.quotas.allowance import Allowance, Windows
from spark_kafkalite.model import UNLIMITED_RATE

_ALL: Final = "*"
_AT_ONCE_S: Final = 0.1


def is_listed(replicas: frozenset[str], partition: int, broker_id: int) -> bool:
    """Return whether a topic's list of throttled replicas names the one of a partition on a broker."""
    return bool(replicas) and (_ALL in replicas or f"{partition}:{broker_id}" in replicas)


class ReplicationThrottle:
    """The throttle of one direction. ``total_bytes`` counts what was copied under it, with and without a rate."""

    __slots__ = ("_allowance", "_copied", "_now_s", "_windows", "on_change", "rate", "total_bytes")

    def __init__(self, now_s: Callable[[], float], windows: Windows | None = None) -> None:
        """``now_s`` is a monotonic clock, in seconds."""
        self._now_s = now_s
        self._windows = windows or Windows()
        self._allowance: Allowance | None = None
        # Windows by number, and the bytes that were copied in each.
        self._copied: deque[tuple[int, int]] = deque()
        # Bytes a second.
        self.rate = UNLIMITED_RATE
        self.total_bytes = 0
        self.on_change: Callable[[], None] = lambda: None

    def obey(self, rate: int) -> None:
        """Allow ``rate`` bytes a second from now on."""
        if rate == self.rate:
            return
        self.rate = rate
        if rate >= UNLIMITED_RATE:
            self._allowance = None
        elif self._allowance is None:
            self._allowance = Allowance(rate, self._windows, self._now_s(), self._remembered_s)
        else:
            self._allowance.obey(rate, self._now_s())
        self.on_change()

    @property
    def _remembered_s(self) -> float:
        return self._windows.number * self._windows.size_s

    def owed_s(self) -> float:
        """Return for how many seconds nothing may be copied; 0 if something may."""
        return 0.0 if self._allowance is None else self._allowance.owed_s(self._now_s())

    @property
    def most_at_once(self) -> int:
        """The bytes that one fetch may have: what the rate allows in a tenth of a second.

        So copies come in small pieces, next to the records that producers wait for.
        """
        return self.rate if self._allowance is None else int(self.rate * _AT_ONCE_S) + 1

    def charge(self, size_bytes: int) -> None:
        """Count bytes that were copied."""
        self.total_bytes += size_bytes
        now_s = self._now_s()
        if self._allowance is not None:
            self._allowance.charge(size_bytes, now_s)
        window = int(now_s / self._windows.size_s)
        if self._copied and self._copied[-1][0] == window:
            size_bytes += self._copied.pop()[1]
        self._copied.append((window, size_bytes))
        self._forget(window)

    def _forget(self, window: int) -> None:
        while self._copied and self._copied[0][0] <= window - self._windows.number:
            self._copied.popleft()

    def byte_rate(self) -> float:
        """Return the bytes a second that were copied in the last windows."""
        self._forget(int(self._now_s() / self._windows.size_s))
        return sum(size for _, size in self._copied) / self._remembered_s
