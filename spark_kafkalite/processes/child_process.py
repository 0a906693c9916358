"""A child process of the command line or of a test: its output kept, its end certain.

A child is started in a session of its own with stdout and stderr going to files, so that a full pipe never stops it and
its last lines can be shown in an error. It ends when its owner stops it, when the interpreter exits (``atexit``), and
when the interpreter is killed: util-linux's ``setpriv --pdeathsig`` has the kernel send SIGKILL then. That signal
belongs to the *thread* that started the child, so all children are started by one thread that lives as long as the
interpreter. :func:`set_starter` puts another way to start processes in its place.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Protocol

_POLL_INTERVAL_S: Final = 0.005
_SETPRIV: Final = shutil.which("setpriv")


class StartedProcess(Protocol):
    """What is used of :class:`subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


class Starter(Protocol):
    """Starts a command with these files as its stdin, stdout and stderr, in a session of its own.

    It returns None for a command that it does not start. ``environment`` and ``directory`` are this process's own when
    None. The process must end with this one.
    """

    def __call__(
        self,
        command: Sequence[str],
        files: tuple[Path, Path, Path],
        environment: Mapping[str, str] | None,
        directory: Path | None,
    ) -> StartedProcess | None: ...


_starter: Starter | None = None
_live: set[ChildProcess] = set()
_spawn_requests: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
_spawn_requests = queue.SimpleQueue()
_spawner_lock = threading.Lock()
_spawner: threading.Thread | None = None


class ChildFailed(Exception):
    """A child process ended or stayed silent when it should have served; the message ends with its last output."""


class ChildProcess:
    """A started process. ``stdout_path`` and ``stderr_path`` hold all it printed, also after its end."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
        stdin_path: Path | None = None,
    ) -> None:
        """Start ``command``; its output goes to ``NAME.out`` and ``NAME.err`` in ``directory``.

        ``environment`` and ``working_directory`` are this process's own when None. It reads ``stdin_path``, or nothing.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.stdout_path = directory / f"{name}.out"
        self.stderr_path = directory / f"{name}.err"
        files = (stdin_path or Path(os.devnull), self.stdout_path, self.stderr_path)
        started = _starter(command, files, environment, working_directory) if _starter is not None else None
        self._group_killed = False
        self._process = started or _start_in_spawner(command, files, environment, working_directory)
        _live.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal, None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process (not to its children); nothing happens when it has ended."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Freeze the process as :func:`freeze` does; nothing happens when it has ended."""
        if self.running:
            freeze(self.pid)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code. Raises ChildFailed when it does not come in time."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{self.name} (pid {self.pid}) did not end within {timeout_s} s{self.tail()}") from None
        _live.discard(self)
        return code

    def kill(self) -> None:
        """Send SIGKILL to it and to every process it has started, and wait for its end."""
        if self._group_killed:
            return  # its number may be another group's by now
        # The group outlives its first process while children of it run, so it is killed in either case.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._group_killed = True
        self._process.wait()
        _live.discard(self)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until ``condition()`` holds. Raises ChildFailed when the process ends first or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.running:
                raise ChildFailed(f"{self.name} ended with exit code {self.returncode} before {what}{self.tail()}")
            if time.monotonic() > deadline:
                raise ChildFailed(f"{self.name} (pid {self.pid}): not {what} within {timeout_s} s{self.tail()}")
            time.sleep(_POLL_INTERVAL_S)

    def stdout_text(self) -> str:
        """Return what it has written to stdout so far."""
        return self.stdout_path.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of both outputs, to be appended to an error message."""
        parts = []
        for path in (self.stdout_path, self.stderr_path):
            last = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:] if path.exists() else []
            if last:
                parts.append("\n".join((f"--- end of {path}", *last)))
        return "\n" + "\n".join(parts) if parts else " (it printed nothing)"


def freeze(pid: int) -> None:
    """Send SIGSTOP to a process, and return when all its threads stand still, or it has ended.

    The signal stops nothing before one thread has taken it. On a busy host that may take a while, and the other threads
    run on until then.
    """
    os.kill(pid, signal.SIGSTOP)
    while any(state not in "TtZXx" for state in _thread_states(pid)):
        time.sleep(_POLL_INTERVAL_S)


def _thread_states(pid: int) -> list[str]:
    """Return the state of each thread of a process (proc(5)), none when it has ended."""
    states = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                content = Path(f"/proc/{pid}/task/{thread}/stat").read_text(encoding="ascii", errors="replace")
                # The name before it may hold anything.
                states.append(content.rpartition(")")[2].split()[0])
    return states


def set_starter(starter: Starter | None) -> None:
    """Ask ``starter`` first, whenever a child is started in this process; None ends that."""
    global _starter
    _starter = starter


def dying_with_this_process(command: Sequence[str]) -> list[str]:
    """Return the command with which a process of this one's spawner thread ends when this process does."""
    if _SETPRIV is None:
        return list(command)
    # The shell's question closes the gap in which this process dies before setpriv has asked for the signal.
    ask = '[ "$PPID" -eq "$0" ] && exec "$@"'
    return [_SETPRIV, "--pdeathsig", "KILL", "sh", "-c", ask, str(os.getpid()), *command]


def start_in_spawner(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Call ``start`` in the thread that lives as long as the interpreter, and return the process."""
    global _spawner
    with _spawner_lock:
        if _spawner is None or not _spawner.is_alive():  # not alive: this process was forked from the one that had it
            _spawner = threading.Thread(target=_spawn_forever, name="child-spawner", daemon=True)
            _spawner.start()
    started: Future[subprocess.Popen[bytes]] = Future()
    _spawn_requests.put((start, started))
    return started.result()


def _start_in_spawner(
    command: Sequence[str],
    files: tuple[Path, Path, Path],
    environment: Mapping[str, str] | None,
    directory: Path | None,
) -> subprocess.Popen[bytes]:
    def start() -> subprocess.Popen[bytes]:
        with files[0].open("rb") as given, files[1].open("wb") as out, files[2].open("wb") as err:
            return subprocess.Popen(
                dying_with_this_process(command),
                stdin=given,
                stdout=out,
                stderr=err,
                env=dict(environment) if environment is not None else None,
                cwd=directory,
                start_new_session=True,
            )

    return start_in_spawner(start)


def _spawn_forever() -> None:
    while True:
        start, started = _spawn_requests.get()
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)


@atexit.register
def _kill_all() -> None:
    for child in list(_live):
        child.kill()
