"""Brokers as processes: started from this interpreter, killed, stopped and restarted on the same port.

Works wherever the package is installed; ``testing.pytest_plugin`` makes fixtures of it. A broker listens on loopback
unless its overrides say otherwise, keeps its log in the directory it is given, and ends with the test process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spark_kafkalite.testing.child_process import ChildFailed, ChildProcess

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
_READY_LINE: Final = re.compile(r"^kafkalite broker (\d+) ready on (.+):(\d+)$", re.MULTILINE)
# Debug mode of asyncio is for loops in the test process; it makes a broker several times slower.
_NOT_INHERITED: Final = ("PYTHONASYNCIODEBUG",)


class BrokerProcess:
    """One ``kafkalite broker`` process; a context manager.

    ``bootstrap`` is its address from the first start on, and stays the same over restarts.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
        command_prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a broker; ``start()`` or ``with`` starts it.

        Port 0 takes a free one, which later starts keep. ``overrides`` are broker settings in Kafka's names; giving
        ``listeners`` replaces the loopback listener (and then ``port`` means nothing). ``command_prefix`` stands before
        the command (``ip netns exec N``, ``strace ...``), ``environment`` is added to this process's own.
        """
        self.data_dir = data_dir
        self.port = port
        self.host = "127.0.0.1"
        self.overrides = dict(overrides or {})
        self._command_prefix = tuple(command_prefix)
        self._environment = dict(environment or {})
        self._process: ChildProcess | None = None
        self._starts = 0
        self.start_seconds = 0.0

    @property
    def bootstrap(self) -> str:
        """``host:port`` as the broker's ready line named it."""
        if not self.port:
            raise ChildFailed("the broker has not been started yet, so it has no address")
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def stderr_path(self) -> Path:
        """The file with what the latest start wrote to stderr."""
        return self._started().stderr_path

    def start(self) -> Self:
        """Start the broker and return when it serves; ``start_seconds`` then says how long that took.

        Raises ChildFailed, with the end of its output, when it ends or stays silent for START_TIMEOUT_S.
        """
        if self.running:
            raise ChildFailed(f"the broker on {self.bootstrap} is already running (pid {self.pid})")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        began = time.monotonic()
        self._process = process = ChildProcess(
            [*self._command_prefix, *self._command()],
            self._output_directory(),
            f"broker-{self._starts}",
            environment=self._full_environment(),
        )
        try:
            process.wait_until(
                lambda: _READY_LINE.search(process.stdout_text()) is not None,
                START_TIMEOUT_S,
                "saying that it is ready",
            )
        except ChildFailed:
            process.kill()
            raise
        self.start_seconds = time.monotonic() - began
        ready = _READY_LINE.search(process.stdout_text())
        assert ready is not None
        self.host, self.port = ready.group(2), int(ready.group(3))
        return self

    def kill(self) -> None:
        """End the broker and every process it started with SIGKILL, as a crash does. No error when it has ended."""
        if self._process is not None:
            self._process.kill()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the broker with SIGTERM and return its exit code (0 when it stopped in order).

        Raises ChildFailed, after killing it, when it does not end in time.
        """
        process = self._started()
        process.signal(signal.SIGTERM)
        try:
            return process.wait(timeout_s)
        finally:
            process.kill()

    def restart(self) -> Self:
        """Stop the broker if it runs, and start it again on the same port and data."""
        if self.running:
            self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the broker with SIGSTOP: its connections stay open and nothing is answered."""
        self._started().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen broker go on."""
        self._started().signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return the broker's resident memory (RssAnon plus mapped files), as the kernel counts it now."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        if found is None:
            raise ChildFailed(f"the broker (pid {self.pid}) has ended; it has no resident memory")
        return int(found.group(1)) * 1024

    def tail(self, lines: int = 20) -> str:
        """Return the end of the latest start's output, for an error message."""
        return self._started().tail(lines)

    def _command(self) -> list[str]:
        settings: dict[str, object] = {
            "log.dirs": self.data_dir,
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            **self.overrides,
        }
        pairs = [part for name, value in settings.items() for part in ("--override", f"{name}={_text(value)}")]
        return [sys.executable, "-m", "spark_kafkalite.cli", "broker", *pairs]

    def _output_directory(self) -> Path:
        # Beside the data, not in it: what lies in a log directory is the broker's.
        return self.data_dir.with_name(f"{self.data_dir.name}-output")

    def _full_environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        return {**inherited, "PYTHONUNBUFFERED": "1", **self._environment}

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise ChildFailed("the broker has not been started")
        return self._process

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the broker; one that a test paused or broke is killed."""
        if not self.running:
            self.kill()  # of a dead broker only what it started may be left
            return
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        self.stop()


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
