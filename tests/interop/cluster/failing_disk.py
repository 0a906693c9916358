"""Runs a broker on disks that a test can break: each is one of its log directories.

    python -m tests.interop.cluster.failing_disk COMMAND...

stands before a broker's command, of which only the ``--override NAME=VALUE`` pairs count. While there is a file
``broken_by(directory)``, every write and every flush of a file in the directory fails as on a disk that has died; while
there is ``unflushed_by(directory)``, every flush fails and no write does; while there is ``filled_by(directory)``,
every write fails as on one that is full; while there is ``hung_by(directory)``, no write and no flush returns; while
there is ``stalled_by(directory)``, writes do and flushes, which threads make, do not.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.log.files.disk_calls import CALLS
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.net import event_loop


def broken_by(directory: Path) -> Path:
    """Return the file whose presence breaks a log directory."""
    return directory.with_name(f"{directory.name}-broken")


def unflushed_by(directory: Path) -> Path:
    """Return the file whose presence has every flush in a log directory fail."""
    return directory.with_name(f"{directory.name}-unflushed")


def filled_by(directory: Path) -> Path:
    """Return the file whose presence fills a log directory's disk."""
    return directory.with_name(f"{directory.name}-full")


def hung_by(directory: Path) -> Path:
    """Return the file whose presence has a log directory's disk answer no more."""
    return directory.with_name(f"{directory.name}-hung")


def stalled_by(directory: Path) -> Path:
    """Return the file whose presence has a log directory's disk flush nothing."""
    return directory.with_name(f"{directory.name}-stalled")


class _Disks:
    directories: tuple[Path, ...] = ()

    @classmethod
    def check(cls, path: str, cause: Callable[[Path], Path] = broken_by) -> None:
        for directory in cls.directories:
            if path.startswith(f"{directory}/") and cause(directory).exists():
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    @classmethod
    def wait(cls, name: str, path: str, *causes: Callable[[Path], Path]) -> None:
        """Wait in a call of this name, as long as there is one of the causes."""

        def until_there_is_none() -> None:
            for directory in cls.directories:
                while path.startswith(f"{directory}/") and any(cause(directory).exists() for cause in causes):
                    time.sleep(0.05)

        CALLS.make(name, path, until_there_is_none)

    @classmethod
    def check_room(cls, path: str) -> None:
        for directory in cls.directories:
            if path.startswith(f"{directory}/") and filled_by(directory).exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class _File(OsFile):
    __slots__ = ()

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        _Disks.wait("pwrite", self.path, hung_by)
        _Disks.check(self.path)
        _Disks.check_room(self.path)
        return super().pwrite(data, position)

    def sync(self) -> None:
        _Disks.wait("fdatasync", self.path, hung_by, stalled_by)
        _Disks.check(self.path)
        _Disks.check(self.path, unflushed_by)
        super().sync()


class _Fs(OsFs):
    def open(self, path: str, *, create: bool = False) -> OsFile:
        if create:
            _Disks.check(path)
        file = super().open(path, create=create)
        file.__class__ = _File
        return file


def main(command: list[str]) -> int:
    given = tuple(value for name, value in itertools.pairwise(command) if name == "--override")
    config = BrokerConfig.load(None, parse_overrides(given))
    configure_logging(config["logging.level"])
    _Disks.directories = tuple(Path(path) for path in config["log.dirs"])
    return event_loop.run(Broker(config, fs=_Fs()).run(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
