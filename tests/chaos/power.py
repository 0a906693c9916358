"""A loss of power for one broker of several, as far as its own files show it: no mount and no root are needed.

The process is killed, each log loses what had not been synced, from any byte on, and the next start finds another boot
id, so that the broker cannot believe that the page cache survived.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from spark_kafkalite.log.files.small_files import RUN_FILE
from spark_kafkalite.testing.cluster import BrokerProcess
from tests.chaos.broker_program import BOOT, SYNCED, conditions_of


def lose_power(broker: BrokerProcess, chance: random.Random) -> int:
    """Kill a broker and take the power from its disk; its next start is after the machine's. Return the bytes lost."""
    broker.kill()
    conditions = conditions_of(broker.data_dir)
    synced = _synced(conditions / SYNCED)
    lost_bytes = 0
    for path in sorted(broker.data_dir.glob("*/*.log")):
        size_bytes = path.stat().st_size
        # Truncations reach the disk in order with what is written later.
        kept_bytes = chance.randint(min(synced.get(str(path), 0), size_bytes), size_bytes)
        lost_bytes += size_bytes - kept_bytes
        with path.open("r+b") as file:
            file.truncate(kept_bytes)
    (conditions / BOOT).write_text(str(uuid.UUID(int=chance.getrandbits(128))), encoding="ascii")
    return lost_bytes


def start_again(broker: BrokerProcess) -> None:
    """Start a broker that has lost power, and see that it knows of it."""
    broker.start()
    boot_id = (conditions_of(broker.data_dir) / BOOT).read_text(encoding="ascii")
    assert boot_id in (broker.data_dir / RUN_FILE).read_text(encoding="utf-8"), "it believes that its machine ran on"


def _synced(record: Path) -> dict[str, int]:
    found = {}
    for line in record.read_text(encoding="utf-8").splitlines():
        size, _, path = line.partition(" ")
        found[path] = int(size)
    return found
