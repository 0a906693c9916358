"""A broker whose fsync takes as long as a test says, by way of strace; and how often it has called it."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from spark_kafkalite.testing.cluster import BrokerProcess
from tests.crash.traced import traced


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
        self._tracing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        delay = f"inject=fdatasync:delay_enter={int(self._hold_s * 1e6)}"
        options = ("-y", "-e", "trace=fdatasync", "-e", delay)
        self._tracing.enter_context(traced(self._broker.pid, *options, output=self._output))
        return self

    def calls(self, name: str = ".log") -> int:
        """Return how many syncs of files with this in their name have begun."""
        return len(re.findall(rf"fdatasync\(\d+<[^>]*{re.escape(name)}", self._output.read_text()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tracing.close()
