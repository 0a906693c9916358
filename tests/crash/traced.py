"""strace on a running process: its system calls slowed down, made to fail, or counted."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until


@contextlib.contextmanager
def traced(pid: int, *options: str, output: Path = Path("/dev/null")) -> Iterator[None]:
    """Trace all threads of a process with these options of strace; it goes on untraced afterwards."""
    command = ["strace", "-f", "-qq", "-o", str(output), "-p", str(pid), *options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        wait_until(lambda: process.poll() is not None or _is_traced(pid), "strace to attach")
        if process.poll() is not None:
            pytest.fail(f"strace does not attach: {process.stderr.read(500)!r}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


def _is_traced(pid: int) -> bool:
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    return all("TracerPid:\t0\n" not in (thread / "status").read_text() for thread in threads)
