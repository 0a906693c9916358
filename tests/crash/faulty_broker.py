"""Runs a broker that has a bug on purpose, to show that the harness would find it.

    python faulty_broker.py BUG COMMAND...

stands before a broker's command; only the command's ``--override NAME=VALUE`` pairs count. The bugs are the classical
ones of durability; each changes one thing and leaves the rest of the broker as it is.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable

from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.log.loading import scan
from spark_kafkalite.log.log_starts import LogStartCheckpoint

_LATE_S = 0.03


class _LogFileWithoutSync(OsFile):
    __slots__ = ()

    def sync(self) -> None:
        if not self.path.endswith(".log"):
            super().sync()


class _TemporaryFileWithoutSync(OsFile):
    __slots__ = ()

    def sync(self) -> None:
        if not self.path.endswith(".tmp"):
            super().sync()


class _HangingSync(OsFile):
    """As on a disk that does not answer any more."""

    __slots__ = ()

    def sync(self) -> None:
        if self.path.endswith("/hangs-0/00000000000000000000.log"):
            threading.Event().wait()
        super().sync()


class _FilesOf(OsFs):
    """Opens files of another class."""

    def __init__(self, file_class: type[OsFile]) -> None:
        self._file_class = file_class

    def open(self, path: str, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        file.__class__ = self._file_class
        return file


class _WithoutDirectorySync(OsFs):
    def sync_directory(self, path: str) -> None:
        pass


def _sync_later() -> OsFs:
    """What waits for a flush is told that it has been, and then it is."""
    run = FlushJob.run

    def later(self: FlushJob) -> None:
        threading.Timer(_LATE_S, run, (self,)).start()

    FlushJob.run = later  # type: ignore[method-assign]
    return OsFs()


def _believe_every_crc() -> OsFs:
    scan.kernel.check_crc = lambda buffer, position, size: None  # type: ignore[attr-defined]
    return OsFs()


def _forget_log_starts() -> OsFs:
    LogStartCheckpoint.write = lambda self: None  # type: ignore[method-assign]
    return OsFs()


BUGS: dict[str, Callable[[], OsFs]] = {
    "skip-log-sync": lambda: _FilesOf(_LogFileWithoutSync),
    "rename-before-sync": lambda: _FilesOf(_TemporaryFileWithoutSync),
    "flushed-before-sync": _sync_later,
    "skip-crc": _believe_every_crc,
    "skip-directory-sync": _WithoutDirectorySync,
    "forget-log-starts": _forget_log_starts,
}

# No bugs of ours, and nothing that strace can do.
BAD_DISKS: dict[str, Callable[[], OsFs]] = {"hang": lambda: _FilesOf(_HangingSync)}

# Where ext4 does more than it promises, a bug hides: it allocates a renamed file's blocks by itself unless told not to,
# and writes data before the sizes that cover it.
SHOWS_ON = {
    "rename-before-sync": "data=writeback,noauto_da_alloc",
    "skip-crc": "data=writeback,nodelalloc,commit=1",
}


def command_prefix(bug: str | None) -> list[str]:
    """Return what stands before the command of a broker with this bug; nothing for one without."""
    return [sys.executable, __file__, bug] if bug else []


def main(arguments: list[str]) -> int:
    bug, *command = arguments
    fs = (BUGS | BAD_DISKS)[bug]()
    given = tuple(value for name, value in itertools.pairwise(command) if name == "--override")
    config = BrokerConfig.load(None, parse_overrides(given))
    configure_logging(config["logging.level"])
    broker = Broker(config, fs=fs)
    return asyncio.run(broker.run(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
