"""Losses of power for the brokers of a cluster.

There are two kinds. ``lose_power`` shows one as far as a broker's own files do, without root: the process is killed,
and each log loses what had not been synced, from any byte on. ``Images`` has every log directory on a file system of
its own, and a broker that loses power finds what the file system had sent to its device (``tests.crash.loop_disk``).

In both, the next start finds another boot id, so that the broker cannot believe that the page cache survived.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark_kafkalite.log.files.small_files import RUN_FILE
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.chaos.broker_program import BOOT, SYNCED, conditions_of
from tests.crash.loop_disk import Disk, Disks

_MOUNTED: Final = "data=ordered"


def lose_power(broker: BrokerProcess, chance: random.Random) -> int:
    """Kill a broker and take the power from its disk; its next start is after the machine's. Return the bytes lost."""
    broker.kill()
    synced = synced_bytes(broker.data_dir)
    lost_bytes = 0
    for path in sorted(broker.data_dir.glob("*/*.log")):
        size_bytes = path.stat().st_size
        # Truncations reach the disk in order with what is written later.
        kept_bytes = chance.randint(min(synced.get(str(path), 0), size_bytes), size_bytes)
        lost_bytes += size_bytes - kept_bytes
        with path.open("r+b") as file:
            file.truncate(kept_bytes)
    _boot_anew(broker, chance)
    return lost_bytes


def start_again(broker: BrokerProcess) -> None:
    """Start a broker that has lost power, and see that it knows of it."""
    broker.start()
    boot_id = (conditions_of(broker.data_dir) / BOOT).read_text(encoding="ascii")
    assert boot_id in (broker.data_dir / RUN_FILE).read_text(encoding="utf-8"), "it believes that its machine ran on"


def synced_bytes(log_directory: Path) -> dict[str, int]:
    """Return how much of each log file (by path) no loss of power can take, as the broker has noted it."""
    found = {}
    for line in (conditions_of(log_directory) / SYNCED).read_text(encoding="utf-8").splitlines():
        size, _, path = line.partition(" ")
        found[path] = int(size)
    return found


class Images:
    """The disks of a cluster's brokers; it needs root. A broker's log directory is a link to the disk that it has at
    present."""

    def __init__(self, disks: Disks, log_directories: Mapping[int, Path]) -> None:
        """Make a disk for each broker's log directory, which must not exist yet."""
        self._log_directories = dict(log_directories)
        self._disks: dict[int, Disk] = {}
        for number, path in self._log_directories.items():
            disk = self._disks[number] = disks.new_disk(_MOUNTED)
            (disk.path / "data").mkdir()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(disk.path / "data")

    def lose_power(self, brokers: Mapping[int, BrokerProcess], chance: random.Random) -> None:
        """Take the power from these brokers, from all in the same moment: none writes any more when the first image is
        made."""
        for broker in brokers.values():
            broker.pause()
        for number, broker in brokers.items():
            image = self._disks[number].cut_power(chance, still=broker.pause)
            broker.kill()
            self._disks[number].unmount()
            self._disks[number] = image
            link = self._log_directories[number]
            link.unlink()
            link.symlink_to(image.path / "data")
            _boot_anew(broker, chance)

    def unmount(self) -> None:
        """Remove the disks, with what is on them."""
        while self._disks:
            self._disks.popitem()[1].unmount()


def _boot_anew(broker: BrokerProcess, chance: random.Random) -> None:
    boot_id = str(uuid.UUID(int=chance.getrandbits(128)))
    (conditions_of(broker.data_dir) / BOOT).write_text(boot_id, encoding="ascii")
