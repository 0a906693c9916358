"""The pool: processes of pytest that take test files from one queue, the longest first, until none is left.

Both cores are busy until the end: a process that has nothing left of its own kind takes what there is of another. Files
of one :class:`Kind` need the same interpreter and expensive fixtures (a Spark session), so only some of the processes
run them. A process that dies fails the file that it ran, and another one takes its place.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Final

from spark_kafkalite.testing.child_process import dying_with_this_process, start_in_spawner
from tests.paths import PROJECT
from tests.pool.costs import Cost, longest_first
from tests.pool.names import WORKER_VARIABLE
from tests.pool.worker import POOL_VARIABLE

_LOG_LINES: Final = 40


@dataclass(frozen=True)
class Kind:
    """Test files that the same processes run: ``select`` is pytest's -m, ``workers`` how many run at a time."""

    name: str
    files: tuple[str, ...]
    interpreter: str
    select: str = ""
    workers: int = 1
    arguments: tuple[str, ...] = ()
    # Stands before the names of files that another kind runs, too.
    prefix: str = ""
    # Whether its processes come before others at the processor.
    is_urgent: bool = False


@dataclass
class FileResult:
    """How one file ended. ``failures`` holds (test, text), ``times`` (seconds, test)."""

    kind: Kind
    file: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    times: list[tuple[float, str]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)


class Pool:
    """Runs the files of some kinds, ``size`` at a time. ``on_result`` is called as each file ends, in one thread at a
    time."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        size: int,
        known: Mapping[str, Cost],
        on_result: Callable[[FileResult], None],
        root: Path = PROJECT,
    ) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._queues = {kind.name: longest_first(kind.files, known, kind.prefix) for kind in kinds}
        self._running: Counter[str] = Counter()
        self._size = size
        self._on_result = on_result
        self._root = root
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._directory = tempfile.TemporaryDirectory(prefix="kafkalite-pool-")

    def run(self) -> None:
        """Run all files."""
        slots = [threading.Thread(target=self._run_slot, name=f"pool-slot-{number}") for number in range(self._size)]
        for slot in slots:
            slot.start()
        for slot in slots:
            slot.join()
        self._directory.cleanup()

    def _run_slot(self) -> None:
        while (kind := self._take_kind()) is not None:
            try:
                self._run_worker(kind)
            finally:
                with self._lock:
                    self._running[kind.name] -= 1

    def _take_kind(self) -> Kind | None:
        """Return what the next process should run: the kind with the fewest processes of those that it may have."""
        with self._lock:
            open_kinds = [
                kind
                for kind in self._kinds.values()
                if self._running[kind.name] < min(kind.workers, len(self._queues[kind.name]))
            ]
            if not open_kinds:
                return None
            kind = min(open_kinds, key=lambda each: self._running[each.name] / each.workers)
            self._running[kind.name] += 1
            return kind

    def _run_worker(self, kind: Kind) -> None:
        """Run one process until it has nothing left to do, or dies."""
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
        command = [kind.interpreter, "-m", "pytest", "-p", "tests.pool.worker", "-q", "--tb=short"]
        command += [*(["-m", kind.select] if kind.select else []), *kind.arguments]
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
            if kind.is_urgent:
                _prefer(process.pid)
            threading.Thread(target=_connect_at_the_end, args=(process, address), daemon=True).start()
            asked = False
            with listener.accept() as connection, contextlib.suppress(EOFError, ConnectionError):
                while True:
                    asked |= self._answer(kind, connection, begun)
            code = process.wait()
        # 1: tests failed.
        if asked and not begun and code in (0, 1):
            return
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
        text = f"a process of {kind.name} ended with exit code {code}\n{tail}"
        with self._lock:
            # What it had collected ahead is another one's. One that cannot even begin has no successor.
            self._queues[kind.name][:0] = begun[1:]
            if not asked:
                self._queues[kind.name].clear()
        failed = begun[0] if begun else kind.name
        self._end(FileResult(kind, failed, Counter(error=1), [(failed, text)]))

    def _answer(self, kind: Kind, connection: Connection, begun: list[str]) -> bool:
        """Answer one message. ``begun`` holds the files that the process has and has not reported."""
        message, content = connection.recv()
        if message == "next":
            with self._lock:
                queue = self._queues[kind.name]
                file = queue.pop(0) if queue else None
            if file is not None:
                begun.append(file)
            connection.send(file)
        else:
            file, counts, failures, times, cost = content
            begun.remove(file)
            self._end(FileResult(kind, file, Counter(counts), failures, times, cost))
        return True

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
