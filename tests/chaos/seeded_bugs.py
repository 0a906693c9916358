"""Bugs that are planted in brokers on purpose, to show that clients and judge would find them.

Each is a classical one of replicated logs, changes one thing, and leaves the rest of the broker as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_kafkalite.broker.replication.bounds import Bounds
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.records import kernel
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo

# mypy and readers see replaced methods as what they are: anything.
_Patched = Any


def _acknowledge_before_replication() -> None:
    """What the leader alone has is committed."""
    rules: _Patched = InSyncReplicas
    rules.is_alone = property(lambda self: True)
    rules.committed_end_offset = lambda self, log_end_offset: log_end_offset


def _truncate_to_high_watermark() -> None:
    """A follower begins with what it knows to be committed, as before KIP-101."""
    patched: _Patched = Follower
    begin = patched.__init__

    def cut_first(self: _Patched, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        log, high_watermark = self.log, self._bounds.high_watermark
        if log.local.is_ready and high_watermark < log.log_end_offset:
            self._rules.is_busy = True
            self._cut(log.truncation_to(high_watermark), high_watermark)

    patched.__init__ = cut_first


def _skip_the_lease() -> None:
    """A broker believes what it last heard from the registry for ever (rule R6)."""
    patched: _Patched = RegistryLease
    patched.holds = lambda self, now_s: True


def _drop_fsync() -> None:
    """What is said to be flushed is not."""
    patched: _Patched = FlushJob
    patched.run = lambda self: None


def _accept_every_crc() -> None:
    """A follower takes what arrives."""
    patched: _Patched = kernel
    patched.check_crc = lambda buffer, position, size_bytes: None


def _trust_every_log() -> None:
    """Who was in an ISR has the log that it had, whatever has happened to it since (rules R11, R12)."""
    patched: _Patched = BrokerInfo
    patched.has_log_of = lambda self, incarnation: True


def _answer_waits_of_old_epochs() -> None:
    """Whoever waits for a leader that has ended waits on, for the same offset (rule R15)."""
    leaders: _Patched = Leader
    bounds: _Patched = Bounds
    commit = bounds.commit
    ended: list[Any] = []

    def end(self: _Patched, reason: object) -> None:
        ended.append(self)
        self._queue.close(reason)
        self.consumers.close()
        self.followers.close()

    def commit_and_wake(self: _Patched, end_offset: int) -> bool:
        has_moved: bool = commit(self, end_offset)
        for leader in ended:
            if has_moved and leader._bounds is self:
                leader.ack_waiters.wake()
        return has_moved

    leaders.end = end
    bounds.commit = commit_and_wake


BUGS: dict[str, Callable[[], None]] = {
    "acknowledge-before-replication": _acknowledge_before_replication,
    "truncate-to-high-watermark": _truncate_to_high_watermark,
    "skip-the-lease": _skip_the_lease,
    "drop-fsync": _drop_fsync,
    "accept-every-crc": _accept_every_crc,
    "trust-every-log": _trust_every_log,
    "answer-waits-of-old-epochs": _answer_waits_of_old_epochs,
}
