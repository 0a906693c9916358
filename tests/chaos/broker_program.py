"""Runs a broker on a disk that a test can fill or slow down while it runs, and with a bug on purpose if one is named.

    python -m tests.chaos.broker_program BUG COMMAND...

stands before a broker's command, of which only the ``--override NAME=VALUE`` pairs count. BUG is a name of
``seeded_bugs.BUGS``, or ``-`` for none. A condition of a disk is in force while a file of its name is in the directory
beside the log directory (``conditions_of``); what concerns the whole broker is beside the first one.
"""

from __future__ import annotations

import asyncio
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
from spark_kafkalite.broker.start import BrokerStart
from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.log.files.fs import Space
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.registry.cluster import session
from spark_kafkalite.registry.store import Stat, Store
from spark_kafkalite.registry.znodes import BrokerRegistration

DISK_FULL = "disk-full"
DISK_READ_ONLY = "disk-read-only"
# Every write fails, or every fsync alone.
WRITES_FAIL = "writes-fail"
SYNCS_FAIL = "syncs-fail"
SLOW_WRITES = "slow-writes"
# Holds the boot id that the broker is to find.
BOOT = "boot-id"
# Has a start replace the registration of the broker's last run, for whose end it would wait otherwise.
REPLACES_REGISTRATION = "replaces-registration"
# Lines of a size and a log file's path: so much of it is on the disk.
SYNCED = "synced"
_SLOW_S = 0.05
NO_BUG = "-"


def conditions_of(log_directory: Path) -> Path:
    """Return where the conditions of a log directory's disk are named."""
    return log_directory.with_name(f"{log_directory.name}-conditions")


class _Conditions:
    """The conditions of one log directory's disk, and a record of what has been synced to it."""

    def __init__(self, log_directory: Path) -> None:
        directory = conditions_of(log_directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.prefix = f"{log_directory}/"
        self._directory = str(directory)
        self._synced = (directory / SYNCED).open("a", encoding="utf-8")

    def has(self, condition: str) -> bool:
        return os.path.exists(f"{self._directory}/{condition}")

    def before_write(self, path: str) -> None:
        if self.has(DISK_FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.before_change(path)
        if path.endswith(".log") and self.has(SLOW_WRITES):
            time.sleep(_SLOW_S)

    def before_change(self, path: str) -> None:
        """Fail where even a full disk would not: names come and go."""
        for condition, error in ((DISK_READ_ONLY, errno.EROFS), (WRITES_FAIL, errno.EIO)):
            if self.has(condition):
                raise OSError(error, os.strerror(error), path)

    def before_sync(self, path: str) -> None:
        if self.has(SYNCS_FAIL) or self.has(WRITES_FAIL):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def note_synced(self, path: str, size_bytes: int) -> None:
        """Note how much of a file no loss of power can take."""
        if path.endswith(".log"):
            self._synced.write(f"{size_bytes} {path}\n")
            self._synced.flush()


class _File(OsFile):
    __slots__ = ()

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        _conditions_at(self.path).before_write(self.path)
        return super().pwrite(data, position)

    def allocate(self, size_bytes: int) -> None:
        _conditions_at(self.path).before_write(self.path)
        super().allocate(size_bytes)

    def reserve(self, size_bytes: int) -> None:
        _conditions_at(self.path).before_write(self.path)
        super().reserve(size_bytes)

    def sync(self) -> None:
        conditions = _conditions_at(self.path)
        conditions.before_sync(self.path)
        # What is written meanwhile need not be among it.
        size_bytes = self.size()
        super().sync()
        conditions.note_synced(self.path, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        super().truncate(size_bytes)
        _conditions_at(self.path).note_synced(self.path, size_bytes)


class _Disk(OsFs):
    """All log directories of the broker; ``conditions`` has those of each."""

    conditions: tuple[_Conditions, ...] = ()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if create and not os.path.exists(path):
            _conditions_at(path).before_change(path)
        file = super().open(path, create=create)
        file.__class__ = _File
        return file

    def rename(self, source: str, target: str) -> None:
        _conditions_at(target).before_change(target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        _conditions_at(path).before_change(path)
        super().unlink(path)

    def sync_everything(self, path: str) -> None:
        _conditions_at(path).before_sync(path)
        sizes = {str(each): each.stat().st_size for each in Path(path).glob("*/*.log")}
        super().sync_everything(path)
        for name, size_bytes in sizes.items():
            _conditions_at(name).note_synced(name, size_bytes)

    def space(self, path: str) -> Space:
        found = super().space(path)
        return found._replace(free_bytes=0) if _conditions_at(path).has(DISK_FULL) else found


def _conditions_at(path: str) -> _Conditions:
    """Return the conditions of the disk that a path is on."""
    return next((each for each in _Disk.conditions if f"{path}/".startswith(each.prefix)), _Disk.conditions[0])


class _Everything(frozenset[int]):
    def __contains__(self, each: object) -> bool:
        return True


def _replace_registration() -> None:
    register = session.register_broker

    async def replace(store: Store, registration: BrokerRegistration, _: object) -> Stat:
        return await register(store, registration, _Everything())

    session.register_broker = replace


def main(arguments: list[str]) -> int:
    bug, *command = arguments
    given = tuple(value for name, value in itertools.pairwise(command) if name == "--override")
    overrides = parse_overrides(given)
    log_directories = [Path(each) for each in str(overrides["log.dirs"]).split(",")]
    _Disk.conditions = tuple(_Conditions(each) for each in log_directories)
    directory = conditions_of(log_directories[0])
    if (directory / BOOT).exists():
        boot_id = (directory / BOOT).read_text(encoding="ascii")
        BrokerStart.read_boot_id = staticmethod(lambda: boot_id)
    if (directory / REPLACES_REGISTRATION).exists():
        _replace_registration()
    if bug != NO_BUG:
        from tests.chaos.seeded_bugs import BUGS

        plant: Callable[[], None] = BUGS[bug]
        plant()
    config = BrokerConfig.load(None, overrides)
    configure_logging(config["logging.level"])
    return asyncio.run(Broker(config, fs=_Disk()).run(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
