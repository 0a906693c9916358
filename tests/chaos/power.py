"""A loss of power for one broker of several, as far as its own files show it: no mount and no root are needed.

The process is killed, each log loses what the disk did not have to have yet, at any byte, and the next start finds
another boot id, so that the broker cannot believe that the page cache survived.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import read_offsets
from spark_kafkalite.log.loading.loader import topic_partition_of
from spark_kafkalite.records.kernel import read_header
from spark_kafkalite.testing.cluster import BrokerProcess
from tests.chaos.broker_program import BOOT, conditions_of

_RECOVERY_POINTS = "recovery-point-offset-checkpoint"


def lose_power(broker: BrokerProcess, chance: random.Random) -> None:
    """Kill a broker and take the power from its disk; its next start is after the machine's."""
    broker.kill()
    recovery_points = read_offsets(OsFs(), str(broker.data_dir / _RECOVERY_POINTS))
    for directory in broker.data_dir.iterdir():
        at = topic_partition_of(directory.name)
        segments = sorted(directory.glob("*.log")) if at is not None else []
        if at is not None and segments:
            _cut(segments[-1], recovery_points.get(at, 0), chance)
    conditions = conditions_of(broker.data_dir)
    conditions.mkdir(exist_ok=True)
    (conditions / BOOT).write_text(str(uuid.UUID(int=chance.getrandbits(128))), encoding="ascii")


def _cut(segment: Path, flushed_until: int, chance: random.Random) -> None:
    """Cut a segment anywhere behind what had been flushed."""
    data = segment.read_bytes()
    position = 0
    while position < len(data) and (header := read_header(data, position)).base_offset < flushed_until:
        position += header.size_bytes
    with segment.open("r+b") as file:
        file.truncate(chance.randint(min(position, len(data)), len(data)))
