"""Checks the log directories periodically: how full they are, whether a full one takes records again, their reserves.

Each second the room of each directory is checked, because others write to its disk too; that is two system calls. A
disk that is nearly full is warned of (``log.directories.fullness``). A directory that refuses records and has room is
probed: a thread writes, syncs and removes a small file. The waits between probes double from half a second to ten, and
begin again at half a second after a quiet minute. A probe that finds the disk broken, not full, takes the directory
offline.

When a directory takes records again, so do its partitions, and what could not be done meanwhile is tried again: logs
that could not be opened or made, elections for which the registry had no room. Reserves are made here too, after the
start, because allocating takes time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.log.directories.disk import FailureKind, LogDirectory, kind_of, text_of
from spark_kafkalite.log.directories.fullness import FullnessWarnings
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.net.io_threads import IoThreads

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_FIRST_PROBE_S = 0.5
_LONGEST_PROBE_S = 10.0
_QUIET_S = 60.0
# Partitions without a log are tried again this often, as long as there are any.
_RETRY_S = 10.0


class _Watched:
    """One directory and its probes."""

    __slots__ = ("busy", "directory", "fullness", "next_probe_s", "wait_s")

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.fullness = FullnessWarnings(directory.path)
        # Whether a thread works on it.
        self.busy = False
        self.wait_s = _FIRST_PROBE_S
        self.next_probe_s = 0.0


class DiskWatch:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        io: IoThreads,
        logs: LogManager,
        replicas: Replicas,
        on_room: Callable[[], None],
    ) -> None:
        """``on_room`` is called when a directory takes records again that did not."""
        self._loop = loop
        self._io = io
        self._logs = logs
        self._replicas = replicas
        self._on_room = on_room
        self._watched = [_Watched(directory) for directory in logs.directories]
        self._next_retry_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self._timer = self._loop.call_later(_FIRST_PROBE_S, self._look)

    def stop(self) -> None:
        """End; a thread that is at work finishes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        refusing = False
        for watched in self._watched:
            directory = watched.directory
            if directory.offline is not None or directory.hanging is not None:
                continue
            directory.look()
            space = directory.space()
            if space is not None:
                watched.fullness.look(space)
            if directory.refusal is not None:
                refusing = True
                self._maybe_probe(watched)
            elif directory.wants_reserve and not watched.busy:
                watched.busy = True
                self._io.submit(
                    directory.make_reserve,
                    lambda _, watched=watched: self._idle(watched),  # type: ignore[misc]
                    lambda _, watched=watched: self._idle(watched),  # type: ignore[misc]
                )
        if self._replicas.has_failed and self._loop.time() >= self._next_retry_s:
            self._next_retry_s = self._loop.time() + _RETRY_S
            self._replicas.retry_failed()
        self._timer = self._loop.call_later(_FIRST_PROBE_S if refusing else _LOOK_S, self._look)

    def _maybe_probe(self, watched: _Watched) -> None:
        now_s = self._loop.time()
        if watched.busy or now_s < watched.next_probe_s or not watched.directory.may_resume:
            return
        if now_s - watched.next_probe_s > _QUIET_S:
            watched.wait_s = _FIRST_PROBE_S
        watched.busy = True
        self._io.submit(
            watched.directory.probe,
            lambda _: self._probed(watched, None),
            lambda error: self._probed(watched, error),
        )

    def _probed(self, watched: _Watched, error: BaseException | None) -> None:
        self._idle(watched)
        watched.next_probe_s = self._loop.time() + watched.wait_s
        watched.wait_s = min(watched.wait_s * 2, _LONGEST_PROBE_S)
        directory = watched.directory
        if error is None:
            if directory.resume():
                self._replicas.retry_failed()
                self._on_room()
        elif isinstance(error, OSError) and kind_of(error) is FailureKind.BROKEN:
            self._logs.fail_directory(directory.path, f"a probe failed: {error.strerror or error}")
        elif isinstance(error, OSError) and kind_of(error) is FailureKind.REFUSED:
            logger.error(
                "whether log directory %s has room again cannot be found out: %s", directory.path, text_of(error)
            )

    def _idle(self, watched: _Watched) -> None:
        watched.busy = False
