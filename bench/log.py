"""What the log costs by itself: append, read at the end, at random places and straight through, look-up by time, start.

    python bench/log.py [--quick] [--directory DIR] [--json FILE]

Everything runs in one process and one thread on real files, without a broker. "without the write" replaces the file by
one that takes everything at once: the cost of our own code. Figures are the best of several rounds. Nothing here is
compared with a peer; ``broker.py`` does that.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Callable

from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from tests.lab.batches import header_of, make_batch

ROUNDS = 3


class NoFile:
    """Takes every write and keeps nothing."""

    path = "nowhere"

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        pass


def start(directory: str) -> LogManager:
    config = TopicConfig.from_properties()
    manager = LogManager(OsFs(), [directory], SYSTEM_CLOCK, config_of=lambda topic: config)
    manager.open()
    return manager


def best_us(work: Callable[[], None], calls: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best / calls * 1e6


def appends(log: PartitionLog, calls: int, value_bytes: int) -> Callable[[], None]:
    batch = make_batch([b"x" * value_bytes])
    header = header_of(batch)

    def work() -> None:
        for _ in range(calls):
            log.append_as_leader(batch, header, 0)

    return work


def append_and_read(directory: str, quick: bool) -> dict[str, float]:
    calls = 20_000 if quick else 200_000
    figures = {}
    manager = start(directory)
    manager.load()
    log = manager.create(TopicPartition("bench", 0), bytes(range(16)))
    for value_bytes in (100, 1000, 16_000):
        few = min(calls, 400_000_000 // value_bytes // ROUNDS)
        figures[f"append of {value_bytes} B, us"] = best_us(appends(log, few, value_bytes), few)
    real = log.segments.active._file
    log.segments.active._file = NoFile()  # type: ignore[assignment]
    without = manager.create(TopicPartition("bench", 1), bytes(range(16)))
    without.segments.active._file = NoFile()  # type: ignore[assignment]
    figures["append without the write, us"] = best_us(appends(without, calls, 100), calls)
    log.segments.active._file = real
    end = int(log.log_end_offset)

    def at_the_end() -> None:
        for _ in range(calls):
            log.read(end - 1, 1 << 20, end)

    def anywhere() -> None:
        chance = random.Random(1)
        for _ in range(calls // 10):
            log.read(chance.randrange(end), 1 << 20, end)

    def by_time() -> None:
        for _ in range(calls // 100):
            log.offset_for_timestamp(1_700_000_000_000, end)

    slices = 0

    def straight_through() -> None:
        nonlocal slices
        slices, offset = 0, 0
        while offset < end and (piece := log.read(offset, 1 << 20, end)) is not None:
            slices += 1
            following = [
                known
                for known, position in log.local.reader._positions.items()
                if position == piece.position + piece.length
            ]
            offset = following[0] if following else end

    figures["read at the end, us"] = best_us(at_the_end, calls)
    figures["read anywhere, us"] = best_us(anywhere, calls // 10)
    figures["look-up by time, us"] = best_us(by_time, calls // 100)
    straight_through()
    figures["read on by 1 MiB, us"] = best_us(straight_through, slices)
    manager.abandon()
    return figures


def many_logs(directory: str, quick: bool) -> dict[str, float]:
    count = 100 if quick else 1000
    figures = {}
    manager = start(directory)
    manager.load()
    started = time.perf_counter()
    for number in range(count):
        log = manager.create(TopicPartition("many", number), bytes(range(16)))
        appends(log, 10, 100)()
    figures[f"create {count} logs, s"] = time.perf_counter() - started
    started = time.perf_counter()
    manager.shutdown()
    figures[f"stop {count} logs, s"] = time.perf_counter() - started
    best = float("inf")
    for _ in range(ROUNDS):
        manager = start(directory)
        started = time.perf_counter()
        manager.load()
        best = min(best, time.perf_counter() - started)
        manager.shutdown()
    figures[f"load {count} logs after a clean stop, s"] = best
    manager = start(directory)
    manager.load()
    manager.abandon()
    manager = start(directory)
    started = time.perf_counter()
    manager.load()
    figures[f"load {count} logs after a crash, s"] = time.perf_counter() - started
    manager.abandon()
    return figures


def recovery(directory: str, quick: bool) -> dict[str, float]:
    size_bytes = 64 << 20 if quick else 512 << 20
    manager = start(directory)
    manager.load()
    log = manager.create(TopicPartition("recovery", 0), bytes(range(16)))
    appends(log, size_bytes // 16_500, 16_384)()
    manager.abandon()
    manager = start(directory)
    started = time.perf_counter()
    manager.load()
    passed = time.perf_counter() - started
    size = manager.logs[TopicPartition("recovery", 0)].size_bytes
    manager.abandon()
    return {"recovery of a dirty log in 16 KiB batches, s per GiB": passed / size * (1 << 30)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small amounts: rough figures in seconds")
    parser.add_argument("--directory", help="where to make the logs (default: the system's temporary directory)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    for part in (append_and_read, many_logs, recovery):
        directory = tempfile.mkdtemp(prefix="kafkalite-bench-", dir=arguments.directory)
        try:
            figures.update(part(directory, arguments.quick))
        finally:
            shutil.rmtree(directory)
    for what, figure in figures.items():
        print(f"{what:60} {figure:12.3f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": platform.platform(), "python": platform.python_version(), **figures}, file, indent=2)


if __name__ == "__main__":
    main()
