"""strace on a running process: its system calls slowed down, made to fail, or counted."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_ATTACH_TIMEOUT_S = 10.0


@contextlib.contextmanager
def traced(pid: int, *options: str, output: Path = Path("/dev/null")) -> Iterator[None]:
    """Trace all threads of a process with these options of strace; it goes on untraced afterwards."""
    command = ["strace", "-f", "-qq", "-o", str(output), "-p", str(pid), *options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        until_s = time.monotonic() + _ATTACH_TIMEOUT_S
        while not _is_traced(pid):
            if process.poll() is not None or time.monotonic() > until_s:
                process.kill()
                pytest.fail(f"strace does not attach: {process.stderr.read(500)!r}")
            time.sleep(0.01)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


def _is_traced(pid: int) -> bool:
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    return all("TracerPid:\t0\n" not in (thread / "status").read_text() for thread in threads)
