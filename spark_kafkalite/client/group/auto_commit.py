"""Automatic commits: when they are due, and which offsets have not changed since the last one.

They happen in polls, every ``auto.commit.interval.ms``, with what *earlier* polls returned, and before partitions are
given up. A failure is logged, and the next one tries again: what was not stored is read again, by this consumer or by
another.
"""

from __future__ import annotations

import logging
from typing import Final

from spark_kafkalite.client.group.commits import CommitLane
from spark_kafkalite.client.group.offsets import GroupMember
from spark_kafkalite.client.group.settings import GroupConfig
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import CommittedOffsets

_LOG = logging.getLogger("spark_kafkalite.client")

# Positions that stand still are stored again only now and then, for coordinators that let old offsets expire.
_UNCHANGED_S: Final = 60.0


class AutoCommit:
    """The automatic commits of one consumer; ``is_on`` is whether it wants any."""

    def __init__(self, config: GroupConfig, lane: CommitLane, clock: Clock) -> None:
        self.is_on = config.auto_commit
        self._group_id = config.group_id
        self._interval_s = config.auto_commit_interval_ms / 1000
        self._lane = lane
        self._clock = clock
        self._next_s = clock.monotonic_s() + self._interval_s
        self._stored: CommittedOffsets = {}
        self._stored_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next poll should commit.

        One at a time: while one is on its way the next one waits, however short the interval.
        """
        return self.is_on and self._lane.is_idle and self._clock.monotonic_s() >= self._next_s

    def restart(self) -> None:
        """Begin again, with other partitions: another member may have committed other offsets for them meanwhile."""
        self._next_s = self._clock.monotonic_s() + self._interval_s
        self._stored = {}

    def submit(self, offsets: CommittedOffsets, member: GroupMember) -> None:
        """Have offsets stored in the background, unless they were a moment ago."""
        now_s = self._clock.monotonic_s()
        self._next_s = now_s + self._interval_s
        if offsets and (offsets != self._stored or now_s >= self._stored_s + _UNCHANGED_S):
            self._lane.submit(offsets, member, self._done)

    def commit(self, offsets: CommittedOffsets, member: GroupMember, deadline: Deadline) -> None:
        """Store offsets and wait until that is done, or has failed."""
        try:
            self._lane.commit(offsets, member, deadline)
        except (KafkaliteError, TimeoutError) as error:
            self._done(offsets, error)

    def _done(self, offsets: CommittedOffsets, error: Exception | None) -> None:
        if error is None:
            self._stored, self._stored_s = offsets, self._clock.monotonic_s()
        else:
            _LOG.warning("group %r: an automatic commit failed: %s", self._group_id, error)
