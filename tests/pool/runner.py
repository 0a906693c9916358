"""The pool: processes of pytest that take test files from one queue, the longest first, until none is left.

Files of one suite (``pool.suites``) need the same interpreter and expensive fixtures (a Spark session), so only some of
the processes run them. Both cores are busy until the end: a process ends when its suite has nothing left to begin, and
the next one runs the suite that is the most behind. More processes begin a file only while the processors have room
(``pool.idle``). A process that dies fails the file that it ran, and another one takes its place. With pytest's ``-x``
the first failure ends the run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Final

from spark_kafkalite.processes.child_process import dying_with_this_process, start_in_spawner
from tests.paths import PROJECT
from tests.pool.costs import Cost, expected_s, longest_first
from tests.pool.idle import Room
from tests.pool.names import WORKER_VARIABLE
from tests.pool.suites import Backlog, Suite, most_behind
from tests.pool.worker import POOL_VARIABLE

_LOG_LINES: Final = 40
_LOOK_S: Final = 0.5
# So long a process waits for room. Its last test waits, too: it runs when the next one is known.
_HELD_S: Final = 15.0


@dataclass
class FileResult:
    """How one file ended. ``failures`` holds (test, text), ``times`` (seconds, test)."""

    suite: Suite
    file: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    times: list[tuple[float, str]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)


class Pool:
    """Runs the files of some suites, ``size`` at a time, and more while there is room for them. ``on_result`` is called
    as each file ends, in one thread at a time."""

    def __init__(
        self,
        suites: Sequence[Suite],
        size: int,
        known: Mapping[str, Cost],
        on_result: Callable[[FileResult], None],
        root: Path = PROJECT,
        room: Room | None = None,
    ) -> None:
        self._suites = {suite.name: suite for suite in suites}
        self._queues = {suite.name: longest_first(suite.files(root), known, suite.prefix) for suite in suites}
        self._known = known
        self._running: Counter[str] = Counter()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._size = size
        self._on_result = on_result
        self._root = root
        self._room = room or Room()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._directory = tempfile.TemporaryDirectory(prefix="kafkalite-pool-")
        self.is_ended_early = False

    def run(self) -> None:
        """Run all files."""
        slots = [threading.Thread(target=self._run_slot, name=f"pool-slot-{number}") for number in range(self._size)]
        slots += [
            threading.Thread(target=self._run_more, args=(suite,), name=f"pool-more-{suite.name}-{number}")
            for suite in self._suites.values()
            for number in range(suite.more)
        ]
        for slot in slots:
            slot.start()
        for slot in slots:
            slot.join()
        self._directory.cleanup()

    def _run_slot(self) -> None:
        while (suite := self._take_suite()) is not None:
            try:
                self._run_worker(suite)
            finally:
                with self._lock:
                    self._running[suite.name] -= 1

    def _run_more(self, suite: Suite) -> None:
        while self._has_room_for(suite):
            self._run_worker(suite, needs_room=True)

    def _take_suite(self) -> Suite | None:
        """Return what the next process should run."""
        with self._lock:
            suite = most_behind(self._backlog(each) for each in self._suites.values())
            if suite is not None:
                self._running[suite.name] += 1
            return suite

    def _backlog(self, suite: Suite) -> Backlog:
        queue = self._queues[suite.name]
        seconds = sum(expected_s(suite.prefix + file, self._known) for file in queue)
        return Backlog(suite, seconds, len(queue), self._running[suite.name])

    def _run_worker(self, suite: Suite, needs_room: bool = False) -> None:
        """Run one process until it has nothing left to do, or no room, or dies."""
        number = next(self._numbers)
        address = str(Path(self._directory.name) / f"worker-{number}")
        log = Path(self._directory.name) / f"worker-{number}.log"
        environment = {
            **os.environ,
            POOL_VARIABLE: address,
            WORKER_VARIABLE: str(number),
            # Sets of strings have one order in all processes of all runs.
            "PYTHONHASHSEED": str(int(os.environ["KAFKALITE_SEED"]) % (1 << 32)),
        }
        interpreter = str(self._root / suite.environment / "bin" / "python")
        command = [interpreter, "-m", "pytest", "-p", "tests.pool.worker", "-q", "--tb=short"]
        command += [*(["-m", suite.select] if suite.select else []), *suite.arguments]
        begun: list[str] = []
        with Listener(address) as listener, log.open("wb") as output:
            # In a session of its own, so that the system's autogroup gives it a share of its own.
            process = start_in_spawner(
                lambda: subprocess.Popen(
                    dying_with_this_process(command),
                    cwd=self._root,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
            if suite.is_urgent:
                _prefer(process.pid)
            self._add(process)
            threading.Thread(target=_connect_at_the_end, args=(process, address), daemon=True).start()
            asked = False
            with listener.accept() as connection, contextlib.suppress(EOFError, ConnectionError):
                while True:
                    asked |= self._answer(suite, connection, begun, needs_room)
            code = process.wait()
        with self._lock:
            self._processes.discard(process)
        # 1: tests failed.
        if self.is_ended_early or (asked and not begun and code in (0, 1)):
            return
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
        text = f"a process of {suite.name} ended with exit code {code}\n{tail}"
        with self._lock:
            # What it had collected ahead is another one's. One that cannot even begin has no successor.
            self._queues[suite.name][:0] = begun[1:]
            if not asked:
                self._queues[suite.name].clear()
        failed = begun[0] if begun else suite.name
        self._end(FileResult(suite, failed, Counter(error=1), [(failed, text)]))

    def _answer(self, suite: Suite, connection: Connection, begun: list[str], needs_room: bool) -> bool:
        """Answer one message. ``begun`` holds the files that the process has and has not reported."""
        message, content = connection.recv()
        if message == "next":
            may_begin = not needs_room or not begun or self._has_room_for(suite, _HELD_S)
            with self._lock:
                queue = self._queues[suite.name]
                file = queue.pop(0) if queue and may_begin else None
            if file is not None:
                begun.append(file)
            connection.send(file)
        else:
            file, counts, failures, times, cost, is_last = content
            begun.remove(file)
            self._end(FileResult(suite, file, Counter(counts), failures, times, cost))
            if is_last:
                self._end_early()
        return True

    def _has_room_for(self, suite: Suite, within_s: float = math.inf) -> bool:
        """Wait until the processors have room for a file of a suite. Return False when it has none left, and when there
        was no room for so long."""
        until_s = time.monotonic() + within_s
        while self._queues[suite.name] and time.monotonic() < until_s:
            if self._room.take():
                return True
            time.sleep(_LOOK_S)
        return False

    def _add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self.is_ended_early:
                process.send_signal(signal.SIGINT)

    def _end_early(self) -> None:
        """Begin no file any more, and interrupt the processes, which then end what they have started."""
        with self._lock:
            self.is_ended_early = True
            for queue in self._queues.values():
                queue.clear()
            for process in self._processes:
                process.send_signal(signal.SIGINT)

    def _end(self, result: FileResult) -> None:
        with self._lock:
            self._on_result(result)


def _prefer(process: int) -> None:
    """Give a process, and its children in the same session, more of the processor than others, where we may."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, -5)
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text("-5", encoding="ascii")


def _connect_at_the_end(process: subprocess.Popen[bytes], address: str) -> None:
    """End the wait for a process that dies before it has connected."""
    process.wait()
    with contextlib.suppress(OSError):
        Client(address).close()
