"""Runs a broker whose fdatasync can be held up, and notes each call.

    python held_fsync.py DIRECTORY COMMAND...

stands before a broker's command. While the file DIRECTORY/hold exists, each fdatasync waits before it begins. Each call
is a line of DIRECTORY/calls: the path of the file, written before the wait. Only the log calls fdatasync.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_kafkalite.log.files import os_fs
from tests.patience import wait_until

_POLL_S = 0.005


def command_prefix(directory: Path) -> tuple[str, ...]:
    """Return what stands before the command of a broker whose fdatasync :class:`HeldFsync` holds up."""
    return (sys.executable, __file__, str(directory))


class HeldFsync:
    """Holds every fdatasync of a broker up, from ``with`` to :meth:`release` or the end of the block."""

    def __init__(self, directory: Path) -> None:
        self._hold = directory / "hold"
        self._calls = directory / "calls"
        self._before = 0

    def __enter__(self) -> Self:
        self._before = self._logs_synced()
        self._hold.touch()
        return self

    def calls(self) -> int:
        """Return how many calls for a log's file have begun since the hold began, those after the release too."""
        return self._logs_synced() - self._before

    def wait_for_calls(self, count: int = 1) -> None:
        wait_until(lambda: self.calls() >= count, lambda: f"{count} flushes begun, there are {self.calls()}")

    def release(self) -> None:
        """Let the calls that wait, and all later ones, go on."""
        self._hold.unlink(missing_ok=True)

    def _logs_synced(self) -> int:
        return self._calls.read_text().count(".log\n") if self._calls.exists() else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _hold_up(directory: Path) -> None:
    hold = directory / "hold"
    # Not buffered: the broker may be killed.
    calls = (directory / "calls").open("ab", buffering=0)
    sync_data = os_fs.sync_data

    def held(descriptor: int) -> None:
        calls.write(os.readlink(f"/proc/self/fd/{descriptor}").encode() + b"\n")
        while hold.exists():
            time.sleep(_POLL_S)
        sync_data(descriptor)

    # A forked broker has its modules already.
    os_fs.sync_data = held  # type: ignore[misc]


if __name__ == "__main__":
    _hold_up(Path(sys.argv[1]))
    # The command is that of a module: python -m MODULE ARGUMENT...
    module = sys.argv[4]
    sys.argv = sys.argv[4:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
