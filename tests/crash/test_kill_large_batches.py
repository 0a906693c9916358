"""The broker is killed with SIGKILL while batches of tens of megabytes are written to it by threads.

What was acknowledged is there, whole and in order, between small batches on both sides; what was not is there whole or
not at all. A consumer that reads along sees nothing but whole batches, too. Segments hold a few large batches each, so
that kills and rolls meet. Each failure names its seed; ``KAFKALITE_SEED`` repeats the moments of the kills.

For the soak: ``test_log_crash`` and ``test_log_crash_steps`` stop the same writing ahead in memory.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import kernel
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED

pytestmark = [pytest.mark.timeout(3600), pytest.mark.soak]

ROUNDS = 60
MEBIBYTE = 1 << 20
LARGE = [(24 * MEBIBYTE, 1), (9 * MEBIBYTE, 3)]


class Batches:
    """What was sent, by its number; small and large ones in turn."""

    def __init__(self) -> None:
        self.sizes = [(100, 1), *LARGE]

    def make(self, number: int) -> bytearray:
        size, count = self.sizes[number % len(self.sizes)]
        # Every other one of the byte that is a batch's magic: recovery looks behind it for batches.
        value = b"%012d" % number + bytes([2 if number % 2 else number % 251]) * size
        return make_batch([value] * count, timestamp_ms=time.time_ns() // 1_000_000)


def write(bootstrap: str, batches: Batches, first: int, acknowledged: dict[int, int]) -> None:
    """Send batches, two at a time on a connection, until the connection ends; note the offsets of the acknowledged."""
    with RawClient(bootstrap, PATIENCE_S) as client:
        number = first
        sent: list[int] = []
        try:
            while True:
                while len(sent) < 2:
                    client.send_produce([("t", [(0, batches.make(number))])], timeout_ms=30_000)
                    sent.append(number)
                    number += 1
                outcome = client.receive_produce().topics[0][1][0]
                assert outcome.error_code == 0, outcome
                acknowledged[sent.pop(0)] = outcome.base_offset
        except (ConnectionError, TimeoutError):
            return


def read_all(bootstrap: str) -> dict[int, int]:
    """Return the number of every batch by its base offset; each must be whole and follow the one before it."""
    found: dict[int, int] = {}
    offset = 0
    with RawClient(bootstrap, PATIENCE_S) as client:
        while True:
            answer = client.fetch("t", offset, max_wait_ms=0, partition_max_bytes=64 * MEBIBYTE)
            assert answer.error_code == 0
            if not answer.records:
                assert offset == answer.high_watermark
                return found
            view = memoryview(answer.records)
            position = 0
            for header in kernel.scan_headers(view):
                kernel.check_crc(view, position, header.size_bytes)
                assert header.base_offset == offset
                at = bytes(view[position + 61 : position + 100])
                found[offset] = int(at[at.index(b"0000") :][:12])
                position += header.size_bytes
                offset = header.next_offset


def size_of_log(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in (data_dir / "t-0").glob("*.log"))


def wait_for_growth(data_dir: Path, size_bytes: int) -> None:
    """Return in the middle of a large batch, as a rule: when the log has just become so much longer."""
    end = size_of_log(data_dir) + size_bytes
    wait_until(lambda: size_of_log(data_dir) > end, f"the log to have more than {end} bytes", poll_s=0.0005)


def test_kill_9_while_large_batches_are_written(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    batches, acknowledged = Batches(), dict[int, int]()
    large = {"max.message.bytes": str(64 * MEBIBYTE), "segment.bytes": str(100 * MEBIBYTE)}
    cuts = 0
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1, large)
        rounds = 0
        # Half of the kills come in the middle of a write; a few more until one does.
        while rounds < ROUNDS or (not cuts and rounds < ROUNDS + 10):
            rounds += 1
            writer = threading.Thread(target=write, args=(broker.bootstrap, batches, rounds * 1_000, acknowledged))
            writer.start()
            time.sleep(0.3 + chance.random() * 0.7)
            wait_for_growth(broker.data_dir, chance.randrange(20) * MEBIBYTE)
            broker.kill()
            writer.join(PATIENCE_S)
            assert not writer.is_alive()
            written = size_of_log(broker.data_dir)
            broker.start()
            cuts += size_of_log(broker.data_dir) < written
            found = read_all(broker.bootstrap)
            for sent, offset in acknowledged.items():
                assert found.get(offset) == sent, (
                    f"batch {sent}, acknowledged at offset {offset}, is {found.get(offset)}; seed {SEED}"
                )
            in_order = list(found.values())
            assert in_order == sorted(set(in_order)), "batches are doubled, or not in the order in which they were sent"
    print(f"{len(acknowledged)} batches acknowledged, {len(found)} found, the end was cut off {cuts} times")
    assert acknowledged and cuts
