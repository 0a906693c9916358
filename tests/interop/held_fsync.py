"""A broker whose fsync takes as long as a test says, by way of strace; and how often it has called it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from spark_kafkalite.testing.cluster import BrokerProcess

_ATTACH_TIMEOUT_S = 10.0


class HeldFsync:
    """Holds every fdatasync of a running broker up for ``hold_s`` before it begins; a context manager.

    Only the log calls fdatasync in a file of its own: the registry's and checkpoints' syncs are held up as well.
    """

    def __init__(self, broker: BrokerProcess, hold_s: float, scratch: Path) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed: scripts/install_debian_packages.sh")
        self._broker = broker
        self._hold_s = hold_s
        self._output = scratch / "strace"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        delay = f"inject=fdatasync:delay_enter={int(self._hold_s * 1e6)}"
        traced = ["-p", str(self._broker.pid), "-e", "trace=fdatasync", "-e", delay]
        command = ["strace", "-f", "-y", "-qq", "-o", str(self._output), *traced]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until_s = time.monotonic() + _ATTACH_TIMEOUT_S
        while not self._attached():
            if self._process.poll() is not None or time.monotonic() > until_s:
                error = b"" if self._process.stderr is None else self._process.stderr.read(500)
                self._end()
                pytest.fail(f"strace does not attach to the broker: {error!r}")
            time.sleep(0.01)
        return self

    def _attached(self) -> bool:
        threads = list(Path(f"/proc/{self._broker.pid}/task").iterdir())
        return all("TracerPid:\t0\n" not in (thread / "status").read_text() for thread in threads)

    def calls(self, name: str = ".log") -> int:
        """Return how many syncs of files with this in their name have begun."""
        return len(re.findall(rf"fdatasync\(\d+<[^>]*{re.escape(name)}", self._output.read_text()))

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
