"""Keeps a consumer's commits in order, synchronous and asynchronous ones.

A commit that waits and one that does not must not overtake each other, or an older offset would be what is stored. So
asynchronous ones are done by one thread in the order in which they came (several of the same partitions that wait for
their turn as one request), and a commit that waits for its outcome first waits for these. Outcomes of asynchronous ones
are put down with their callbacks, which the thread that polls then calls.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.offsets import GroupMember, commit_offsets
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.waiting_lock import waiting_lock
from spark_kafkalite.clock import Clock
from spark_kafkalite.model import CommittedOffsets

_LOG = logging.getLogger("spark_kafkalite.client")

CommitCallback = Callable[[CommittedOffsets, Exception | None], None]


class PendingCommit(NamedTuple):
    """An asynchronous commit."""

    offsets: CommittedOffsets
    member: GroupMember
    callback: CommitCallback | None

    def is_like(self, other: PendingCommit) -> bool:
        """Whether both would have the same outcome: as the same member, for the same partitions."""
        return self.member == other.member and self.offsets.keys() == other.offsets.keys()


class CommitLane:
    """All commits of one consumer."""

    def __init__(
        self,
        coordinator: CoordinatorLink,
        notify: Callable[[], None],
        clock: Clock,
        committed: Callable[[float], None] | None = None,
    ) -> None:
        """``committed`` is called with the seconds that each commit took."""
        self._committed = committed
        self._coordinator = coordinator
        self._notify = notify
        self._clock = clock
        self._lock = waiting_lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[PendingCommit] = deque()
        self._in_flight = 0
        self._done: list[tuple[PendingCommit, Exception | None]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether every commit has its outcome."""
        return not self._waiting and not self._in_flight

    @property
    def has_outcomes(self) -> bool:
        """Whether callbacks are to be called."""
        return bool(self._done)

    def submit(self, offsets: CommittedOffsets, member: GroupMember, callback: CommitCallback | None) -> None:
        """Have offsets stored in the background; ``take_outcomes()`` later returns the outcome."""
        commit = PendingCommit(offsets, member, callback)
        with self._lock:
            # A newer one takes the place of one that nobody asks about, so that a queue behind a coordinator that is
            # gone does not grow for ever.
            last = self._waiting[-1] if self._waiting else None
            if last is not None and last.callback is None and callback is None and last.is_like(commit):
                self._waiting.pop()
            self._waiting.append(commit)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafkalite-commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def commit(self, offsets: CommittedOffsets, member: GroupMember, deadline: Deadline) -> None:
        """Store offsets after all that were submitted before; see :func:`.offsets.commit_offsets`."""
        if not self.wait_idle(deadline):
            raise TimeoutError(
                f"group {self._coordinator.group_id!r}: earlier asynchronous commits were not done in time "
                f"({self._coordinator})"
            )
        self._store(offsets, member, deadline)

    def _store(self, offsets: CommittedOffsets, member: GroupMember, deadline: Deadline) -> None:
        began_s = self._clock.monotonic_s()
        commit_offsets(self._coordinator, offsets, member, deadline=deadline)
        if self._committed is not None and offsets:
            self._committed(self._clock.monotonic_s() - began_s)

    def wait_idle(self, deadline: Deadline) -> bool:
        """Wait until every commit has its outcome; False at the deadline."""
        with self._lock:
            while not self.is_idle:
                left_s = deadline.left_s()
                if left_s <= 0 or self._closed:
                    return False
                self._changed.wait(left_s)
            return True

    def take_outcomes(self) -> list[tuple[PendingCommit, Exception | None]]:
        """Return what was done since the last call, in order."""
        with self._lock:
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """Let go of what is not done yet."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                first = self._waiting[0]
                commits = list(takewhile(first.is_like, self._waiting))
                for _ in commits:
                    self._waiting.popleft()
                self._in_flight = len(commits)
            # The last one says it all.
            error = self._commit(commits[-1])
            with self._lock:
                self._in_flight = 0
                self._done += [(each, error) for each in commits]
                self._changed.notify_all()
            self._notify()

    def _commit(self, commit: PendingCommit) -> Exception | None:
        deadline = Deadline.after_ms(self._coordinator.cluster.config.default_api_timeout_ms, self._clock)
        try:
            self._store(commit.offsets, commit.member, deadline)
        except Exception as error:
            _LOG.debug("an asynchronous commit failed: %s", error)
            return error
        return None
