"""Bugs that are planted in brokers on purpose, to show that clients and judge would find them.

Each is a classical one of replicated logs, changes one thing, and leaves the rest of the broker as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from spark_kafkalite.broker.replication.bounds import Bounds
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.log.truncation import truncation_to
from spark_kafkalite.records import kernel
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.slices import Work

# What is patched has methods and fields that only its own module should touch.
_Patched = Any


def _replace(owner: object, name: str, value: object) -> None:
    """Put something in the place of what must be there, and is called the same way: a bug that replaces nothing is
    none, and one that its callers cannot call is another than is meant."""
    assert hasattr(owner, name), f"{owner!r} has no {name} any more"
    replaced = getattr(owner, name)
    for is_kind in (inspect.isgeneratorfunction, inspect.iscoroutinefunction):
        assert is_kind(replaced) == is_kind(value), f"{owner!r}.{name} is called in another way now"
    setattr(owner, name, value)


def _acknowledge_before_replication() -> None:
    """What the leader alone has is committed."""
    _replace(InSyncReplicas, "is_alone", property(lambda self: True))
    _replace(InSyncReplicas, "committed_end_offset", lambda self, log_end_offset: log_end_offset)


def _truncate_to_high_watermark() -> None:
    """A follower begins with what it knows to be committed, as before KIP-101."""
    begin: _Patched = Follower.__init__

    def cut_first(self: _Patched, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        log, high_watermark = self.log, self._bounds.high_watermark
        if log.local.is_ready and high_watermark < log.log_end_offset:
            self._rules.is_busy = True
            self._cut(truncation_to(log, high_watermark), high_watermark)

    _replace(Follower, "__init__", cut_first)


def _raise_before_truncating() -> None:
    """A follower takes the leader's high watermark for its own before it has cut off what the leader does not have
    (KAFKA-14704)."""
    take = Follower.take

    def raise_first(self: _Patched, asked: Any, fetched: Any, now_s: float) -> Work[None]:
        if not self.has_ended and self.log.local.is_usable:
            self._bounds.commit(min(fetched.high_watermark, self.log.log_end_offset))
        yield from take(self, asked, fetched, now_s)

    _replace(Follower, "take", raise_first)


def _skip_the_lease() -> None:
    """A broker believes what it last heard from the registry for ever (rule R6)."""
    _replace(RegistryLease, "holds", lambda self, now_s: True)


def _drop_fsync() -> None:
    """What is said to be flushed is not."""
    _replace(FlushJob, "run", lambda self: None)


def _accept_every_crc() -> None:
    """A follower takes what arrives."""
    _replace(kernel, "check_crc", lambda buffer, position, size_bytes: None)


def _trust_every_log() -> None:
    """Who was in an ISR has the log that it had, whatever has happened to it since (rules R11, R12)."""
    _replace(BrokerInfo, "has_log_of", lambda self, incarnation: True)


def _answer_waits_of_old_epochs() -> None:
    """Whoever waits for a leader that has ended waits on, for the same offset (rule R15)."""
    commit = Bounds.commit
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

    _replace(Leader, "end", end)
    _replace(Bounds, "commit", commit_and_wake)


BUGS: dict[str, Callable[[], None]] = {
    "acknowledge-before-replication": _acknowledge_before_replication,
    "truncate-to-high-watermark": _truncate_to_high_watermark,
    "raise-before-truncating": _raise_before_truncating,
    "skip-the-lease": _skip_the_lease,
    "drop-fsync": _drop_fsync,
    "accept-every-crc": _accept_every_crc,
    "trust-every-log": _trust_every_log,
    "answer-waits-of-old-epochs": _answer_waits_of_old_epochs,
}
