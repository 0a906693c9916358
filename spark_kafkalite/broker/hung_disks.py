"""Lets other brokers lead the partitions of a log directory whose disk hangs, while this broker's loop still runs.

Threads flush and truncate logs, and look up old data. When such a call hangs, the requests that wait for it get no
answer, and the broker keeps its session with the registry. So the loop checks, several times in a session timeout,
which calls have not returned (``log.files.disk_calls``).

A log directory hangs (``LogDirectory.hanging``) if a call has not returned for a session timeout and for at least ten
seconds. Then this broker acts as for a failed disk:

- It leaves the ISRs of the directory's partitions.
- It relinquishes the leadership of those that have another live member of the ISR (``isr_leaving``).
- It replicates nothing into the directory (``follower``).

The directory recovers when the calls have returned and the broker can write a probe soon enough. Then a thread reads
the ends of the logs again, each from its recovery point. The broker replicates unreadable parts again
(``known_damage``). After that it follows as before.

``loop_watch`` detects a loop that hangs itself. A pause of the process is not a hang: after a delayed check the time of
all calls starts again. A stop waits at most one session timeout for a thread's call that hangs, and five for a call of
the loop itself (:class:`StopWatch`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.log.directories.disk import LogDirectory
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.files.disk_calls import DiskCall, DiskCalls
from spark_kafkalite.net.io_threads import IoThreads, Lane

logger = logging.getLogger(__name__)

# The smallest limit for a call, for short session timeouts: a busy disk may delay a call for some seconds.
_LEAST_LIMIT_S: Final = 10.0
# How many checks there are in the time that a call may take.
_LOOKS: Final = 8
# The part of that time in which a recovering directory must write a probe. Otherwise a slow directory would hang and
# recover again and again.
_PROBE_SHARE: Final = 1 / 2
# How many session timeouts a stop waits for a call of the loop itself, which may flush gigabytes.
_STOP_SESSIONS: Final = 5


def hang_limit_s(session_ms: int) -> float:
    """Return how long a call, or a pass of the loop, may take in a broker with this session timeout."""
    return max(session_ms / 1000, _LEAST_LIMIT_S)


class HungCalls:
    """Finds calls that have not returned for too long, by regular checks. Pure; times in seconds."""

    def __init__(self, limit_s: float, every_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._every_s = every_s
        self._looked_s = now_s
        # The calls of the last check with the times from which they count, and those of them that hang.
        self._since_s: dict[DiskCall, float] = {}
        self._hung: set[DiskCall] = set()

    def look(self, now_s: float, under_way: Iterable[DiskCall]) -> set[DiskCall]:
        """Return the calls that hang. A call that hangs does so until it returns.

        A delayed check means that the process was paused or got no CPU time. Then the time of the other calls starts
        again.
        """
        is_late, self._looked_s = now_s - self._looked_s > 2 * self._every_s, now_s
        before = self._since_s
        self._since_s = {call: now_s if is_late else before.get(call, call.since_s) for call in under_way}
        self._hung = {
            call for call, since_s in self._since_s.items() if call in self._hung or now_s - since_s >= self._limit_s
        }
        return self._hung


class HungDisks:
    """Finds hanging log directories and lets other brokers lead their partitions. Used in the loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        io: IoThreads,
        calls: DiskCalls,
        directories: LogDirectories,
        replicas: Replicas,
        limit_s: float,
    ) -> None:
        self._loop = loop
        self._io = io
        self._calls = calls
        self._directories = directories
        self._replicas = replicas
        self._limit_s = limit_s
        self._every_s = limit_s / _LOOKS
        self._rule = HungCalls(limit_s, self._every_s, loop.time())
        # When the calls of hanging directories began, and the directories whose logs are being read again.
        self._since_s: dict[LogDirectory, float] = {}
        self._reading: set[LogDirectory] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the checks."""
        self._timer = self._loop.call_later(self._every_s, self._look)

    def stop(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._look)
        now_s = self._loop.time()
        hung = self._by_directory(self._rule.look(now_s, self._calls.under_way()))
        for directory in self._directories:
            if directory in hung and directory.hanging is None and directory.offline is None:
                self._hangs(directory, hung[directory], now_s)
            elif directory.hanging is not None and directory not in self._reading and directory not in hung:
                self._reading.add(directory)
                self._probe(directory, now_s)

    def _by_directory(self, calls: Iterable[DiskCall]) -> dict[LogDirectory, DiskCall]:
        """Return the directories of these calls, each with its oldest call."""
        found: dict[LogDirectory, DiskCall] = {}
        for call in sorted(calls, key=lambda each: -each.since_s):
            directory = _directory_of(self._directories, call.path)
            if directory is not None:
                found[directory] = call
        return found

    def _hangs(self, directory: LogDirectory, call: DiskCall, now_s: float) -> None:
        self._since_s[directory] = call.since_s
        directory.hanging = f"{call.name} of {call.path} has not returned for {now_s - call.since_s:.1f} s"
        logger.error(
            "log directory %s does not answer: %s, longer than a session with the registry; until it does, what "
            "other in-sync replicas have is left to them: look whether its disk is overloaded or about to fail",
            directory.path,
            directory.hanging,
        )
        self._replicas.directory_hangs(directory.path)
        # The waiting work may concern other disks.
        self._io.renew()

    def _probe(self, directory: LogDirectory, began_s: float) -> None:
        """Check whether the disk writes again. Then let a thread read the ends of the logs, one after the other."""

        def probed(_: object) -> None:
            # Also after an error: the next write handles that.
            if self._loop.time() - began_s > self._limit_s * _PROBE_SHARE:
                self._reading.discard(directory)
                return
            partitions = self._replicas.in_directory(directory.path)
            self._read_next(directory, deque(partitions), partitions)

        self._io.submit(directory.probe, probed, probed)

    def _read_next(self, directory: LogDirectory, left: deque[Partition], partitions: Sequence[Partition]) -> None:
        if not left or directory.offline is not None:
            self._answers(directory, partitions)
            return
        log = left.popleft().log
        read = partial(log.local.known_damage.survey_end, int(log.recovery_point), int(log.log_end_offset))
        again: Callable[[object], None] = lambda _: self._read_next(directory, left, partitions)  # noqa: E731
        self._io.submit(read, again, again, Lane.READ)

    def _answers(self, directory: LogDirectory, partitions: Sequence[Partition]) -> None:
        self._reading.discard(directory)
        directory.hanging = None
        after_s = self._loop.time() - self._since_s.pop(directory)
        if directory.offline is not None:
            return
        logger.warning(
            "log directory %s answers again, after %.1f s; the ends of its %d logs have been read again",
            directory.path,
            after_s,
            len(partitions),
        )
        for partition in partitions:
            partition.disk_answers()


class StopWatch:
    """Ends the process when its stop waits too long for a disk that does not answer."""

    def __init__(self, calls: DiskCalls, limit_s: float, end: Callable[[int], object] = os._exit) -> None:
        """``end`` ends the process with an exit code."""
        self._calls = calls
        self._limit_s = limit_s
        self._end = end
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()

    def start(self) -> None:
        """Start to watch. The broker calls this in the loop when its stop begins."""
        threading.Thread(target=self._watch, name="kafkalite-stop-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; the thread ends by itself."""
        self._stopped.set()

    def _watch(self) -> None:
        every_s, began_s = self._limit_s / _LOOKS, time.monotonic()
        rule = HungCalls(self._limit_s, every_s, began_s)
        while not self._stopped.wait(every_s):
            now_s = time.monotonic()
            for call in rule.look(now_s, self._calls.under_way()):
                sessions = _STOP_SESSIONS if call.thread == self._loop_thread else 1
                if now_s - max(call.since_s, began_s) >= self._limit_s * sessions:
                    logger.critical(
                        "the stop ends here, because a disk does not answer: %s of %s has not returned for %.1f s; the "
                        "next start is one after a crash",
                        call.name,
                        call.path,
                        now_s - call.since_s,
                    )
                    self._end(1)
                    return


def _directory_of(directories: Iterable[LogDirectory], path: str) -> LogDirectory | None:
    """Return the log directory that contains a path: of nested directories the innermost one."""
    holders = [each for each in directories if path == each.path or path.startswith(f"{each.path.rstrip('/')}/")]
    return max(holders, key=lambda each: len(each.path), default=None)
