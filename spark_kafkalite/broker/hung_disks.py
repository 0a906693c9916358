"""Has other brokers lead what lies in a log directory whose disk does not answer a thread, while the loop turns.

Flushes, truncations, look-ups of old data and the like run in threads. One that hangs answers nobody: what waits for
the flush waits on, and the session with the registry lives. So the loop looks, several times in a session, which calls
have not returned (``log.files.disk_calls``). A directory of which one has not for as long as a session lasts, and at
least ten seconds, is hanging (``LogDirectory.hanging``): this broker leaves the ISRs of its partitions as for a failed
disk, gives back what it leads where another member of the ISR lives (``isr_leaving``), and copies nothing
(``follower``). When the calls have returned, and a probe is written soon enough, a thread reads the ends of the logs
again, from where they are known to be on the disk; what cannot be read is copied again (``known_damage``). Then the
broker follows as before.

A loop that hangs itself is the business of ``loop_watch``. A pause of the process is no hang: where looks come late all
calls get their time anew. A stop waits for such a disk no longer than a session (:class:`StopWatch`).
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

from spark_kafkalite.broker.io_threads import IoThreads, Lane
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.log.directories.disk import LogDirectory
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.files.disk_calls import DiskCall, DiskCalls

logger = logging.getLogger(__name__)

# What a call may take at least, however short sessions are: a disk that is only busy keeps one for some seconds.
_LEAST_LIMIT_S: Final = 10.0
# How often to look in the time that a call may take.
_LOOKS: Final = 8
# Of that time, what a probe may take of a directory that is to be used again: one that is only slow would else come and
# go.
_PROBE_SHARE: Final = 1 / 2
# How many sessions a stop waits for a call that the loop itself makes: it may have gigabytes to flush.
_STOP_SESSIONS: Final = 5


def hang_limit_s(session_ms: int) -> float:
    """Return how long a call, or a turn of the loop, may take in a broker with sessions of this length."""
    return max(session_ms / 1000, _LEAST_LIMIT_S)


class HungCalls:
    """Finds, by regular looks, the calls that have not returned for too long. Pure; times in seconds."""

    def __init__(self, limit_s: float, every_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._every_s = every_s
        self._looked_s = now_s
        # The calls of the last look, since when they count, and those of them that hang.
        self._since_s: dict[DiskCall, float] = {}
        self._hung: set[DiskCall] = set()

    def look(self, now_s: float, under_way: Iterable[DiskCall]) -> set[DiskCall]:
        """Return those that hang; they do so until they return. Where this look comes late the process stood still, or
        had no processor, and the others get their time anew."""
        is_late, self._looked_s = now_s - self._looked_s > 2 * self._every_s, now_s
        before = self._since_s
        self._since_s = {call: now_s if is_late else before.get(call, call.since_s) for call in under_way}
        self._hung = {
            call for call, since_s in self._since_s.items() if call in self._hung or now_s - since_s >= self._limit_s
        }
        return self._hung


class HungDisks:
    """See the module's text. Lives in the loop."""

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
        # Since when directories hang, and those of them whose logs are being read again.
        self._since_s: dict[LogDirectory, float] = {}
        self._reading: set[LogDirectory] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._loop.call_later(self._every_s, self._look)

    def stop(self) -> None:
        """End."""
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
        """Return the directories that some of these calls are of, each with the oldest one."""
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
        # What waits for a thread may be for another disk.
        self._io.renew()

    def _probe(self, directory: LogDirectory, began_s: float) -> None:
        """See whether the disk writes again; then have a thread read the ends of the logs, one after the other."""

        def probed(_: object) -> None:
            # With an error, too: what that means is found out by who writes.
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
    """Ends the process when its stop waits for a disk that does not answer; see the module's text."""

    def __init__(self, calls: DiskCalls, limit_s: float, end: Callable[[int], object] = os._exit) -> None:
        """``end`` ends the process with an exit code."""
        self._calls = calls
        self._limit_s = limit_s
        self._end = end
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()

    def start(self) -> None:
        """Begin to watch; called in the loop, when the stop begins."""
        threading.Thread(target=self._watch, name="kafkalite-stop-watch", daemon=True).start()

    def stop(self) -> None:
        """End; the thread ends by itself."""
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
    """Return the log directory that a path lies in; of one in another the inner one."""
    holders = [each for each in directories if path == each.path or path.startswith(f"{each.path.rstrip('/')}/")]
    return max(holders, key=lambda each: len(each.path), default=None)
