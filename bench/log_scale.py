"""Does the cost of a log grow with its size, or with how many there are?

One partition grows from 100 MB to 20 GB (to 50 GB where the disk has room for it twice, to 2 GB with --quick) in
batches of 64 KB with the broker's timestamps. At each size: appends at its end, fetches at its end, fetches at random
old offsets and look-ups of random times, each request waited for. Before the random ones the kernel is made to forget
the records, so that each reads from the disk, at 100 MB as at 20 GB; the indexes stay in memory, as they do where they
are used. Cost is the broker's CPU and the wall time of a request. The first size is the peer of the last: flat is 1x.
``results/log_scale.svg`` has the points between.

A virtual machine pays for memory that it touches for the first time, up to ten times what writing there costs later,
and a log that grows through all of it gets there sooner or later. So after each request this process writes, or reads,
as much in a file beside it, and what is held against the bound is the cost beyond that.

Then 2,000 partitions on one broker: a round of produces and of fetches over all of them, descriptors, memory, start.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.cold_reader import drop_pages
from bench.measurement import Row, percentile, resident_bytes, thread_seconds, warm_page_cache
from bench.plot import Series, write_plot
from bench.raw_load import (
    Link,
    batch_of,
    check_produced,
    fetch_request,
    fetched_in,
    fill,
    offset_in,
    offset_request,
    produce_request,
)
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess

MEGABYTE = 1_000_000
_RECORDS = 64
_VALUE = b"x" * 1000
_PLOT = Path(__file__).resolve().parent / "results" / "log_scale.svg"
PARTITIONS = 2_000
# So few that hardly two of them fall on the same part of even the smallest log, which the second would find in memory.
_COLD_REQUESTS = 20


@dataclass
class Cost:
    """Of one kind of request at one size: microseconds of wall time (median) and of the broker's CPU, in each round;
    and what is left of them without those of the bare writes or reads of the same moment."""

    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    wall_beyond_us: list[float] = field(default_factory=list)
    cpu_beyond_us: list[float] = field(default_factory=list)


def rows(quick: bool) -> Iterator[Row]:
    """Grow the log, then make the partitions; yield a row for each figure."""
    yield from _growth_rows(quick)
    yield from _partition_rows(quick)


def _sizes(quick: bool, directory: Path) -> list[int]:
    sizes = [100, 300, 1_000, 2_000]
    if not quick:
        sizes += [5_000, 10_000, 20_000]
        if shutil.disk_usage(directory).free > 120_000 * MEGABYTE:
            sizes.append(50_000)
    return [size * MEGABYTE for size in sizes]


def _growth_rows(quick: bool) -> Iterator[Row]:
    requests, rounds = (150, 3) if quick else (400, 5)
    measured: dict[str, dict[int, Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as scratch:
        sizes = _sizes(quick, Path(scratch))
        # The kernel has to have the room for dirty pages at hand when the first size is measured, as for the last.
        warm_page_cache(1 << 30)
        with BrokerProcess(Path(scratch) / "data") as broker:
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                admin.create_topic("growing", 1, 1, {"message.timestamp.type": "LogAppendTime"})
            log = _GrowingLog(broker, Path(scratch) / "data" / "growing-0")
            for size_bytes in sizes:
                log.grow_to(size_bytes)
                for kind, measure in log.kinds.items():
                    cost = measured.setdefault(kind, {}).setdefault(size_bytes, Cost())
                    for _ in range(rounds * 3 if "disk" in kind else rounds):
                        measure(requests, cost)
            log.close()
    first, last = sizes[0], sizes[-1]
    columns: list[tuple[str, Callable[[Cost], list[float]]]] = [
        ("wall", lambda cost: cost.wall_us),
        ("wall, beyond the file system's", lambda cost: cost.wall_beyond_us),
        ("broker's CPU", lambda cost: cost.cpu_us),
        ("broker's CPU, beyond the file system's", lambda cost: cost.cpu_beyond_us),
    ]
    for kind, costs in measured.items():
        has_bare = bool(costs[last].wall_beyond_us)
        for what, take in columns:
            values = {size: take(cost) for size, cost in costs.items()}
            if not values[last]:
                continue
            yield Row(
                f"{kind}, {what}, at {last // MEGABYTE:,} MB", "us/request", values[last], values[first],
                f"the same at {first // MEGABYTE} MB", higher_is_better=False,
                # Where there is a bare write or read to compare with, only what lies beyond it is ours.
                target=None if has_bare and "beyond" not in what else 1.25,
                note=", ".join(f"{size // MEGABYTE:,} MB: {median(each):.0f}" for size, each in values.items()),
            )  # fmt: skip
    write_plot(
        _PLOT,
        f"Cost of a request as one log grows to {last // MEGABYTE:,} MB (median wall time)",
        "log, MB",
        "us",
        [
            Series(kind, [(size / MEGABYTE, median(cost.wall_us)) for size, cost in costs.items()])
            for kind, costs in measured.items()
        ],
    )


class _GrowingLog:
    """One partition, and the requests that are measured on it."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        self._broker = broker
        self._directory = directory
        self._link = Link(broker.bootstrap)
        self._batches = 0
        self._batch = batch_of(_RECORDS, _VALUE)
        # When something was being appended: first and last millisecond.
        self._times: list[tuple[int, int]] = []
        self._chance = random.Random(1)
        self.kinds: dict[str, Callable[[int, Cost], None]] = {
            "append of 64 KB": self._append,
            "fetch at the end": self._fetch_end,
            "fetch at a random old offset, from the disk": self._fetch_old,
            "look-up of a random time, from the disk": self._look_up,
        }

        self._bare_path = directory.parent.parent / "bare"
        self._bare = os.open(self._bare_path, os.O_RDWR | os.O_CREAT)

    def close(self) -> None:
        self._link.socket.close()
        os.close(self._bare)

    def grow_to(self, size_bytes: int) -> None:
        count = size_bytes // len(self._batch) - self._batches
        began_ms = _now_ms()
        fill(self._broker.bootstrap, "growing", self._batch, count)
        self._times.append((began_ms, _now_ms()))
        self._batches += count

    def _timed(
        self,
        requests: Sequence[bytes],
        cost: Cost,
        check: Callable[[bytes], object],
        bare: Callable[[], None] | None = None,
    ) -> None:
        used_s = thread_seconds(self._broker.pid)
        wall_us, bare_us = [], []
        bare_cpu_s = 0.0
        for request in requests:
            began_s = time.perf_counter()
            response = self._link.call(request)
            wall_us.append((time.perf_counter() - began_s) * 1e6)
            check(response)
            if bare is not None:
                began_s, began_cpu_s = time.perf_counter(), time.thread_time()
                bare()
                bare_us.append((time.perf_counter() - began_s) * 1e6)
                bare_cpu_s += time.thread_time() - began_cpu_s
        cpu_us = (thread_seconds(self._broker.pid) - used_s) / len(requests) * 1e6
        cost.wall_us.append(percentile(wall_us, 0.5))
        cost.cpu_us.append(cpu_us)
        if bare is not None:
            cost.wall_beyond_us.append(percentile(wall_us, 0.5) - percentile(bare_us, 0.5))
            cost.cpu_beyond_us.append(cpu_us - bare_cpu_s / len(requests) * 1e6)

    def _write_bare(self) -> None:
        os.write(self._bare, self._batch)

    def _bare_reader(self) -> Callable[[], None]:
        """Return what reads as much as a request does, from anywhere in the log's own files."""
        sizes = {path: path.stat().st_size for path in self._directory.glob("*.log")}
        paths = self._chance.choices(list(sizes), list(sizes.values()), k=_COLD_REQUESTS)
        places = iter([(path, self._chance.randrange(max(sizes[path] - len(self._batch), 1))) for path in paths])

        def read() -> None:
            path, position = next(places)
            descriptor = os.open(path, os.O_RDONLY)
            os.pread(descriptor, len(self._batch), position)
            os.close(descriptor)

        return read

    def _append(self, count: int, cost: Cost) -> None:
        request = produce_request("growing", [0], self._batch, acks=1)
        self._timed([request] * count, cost, check_produced, self._write_bare)
        self._batches += count

    def _fetch_end(self, count: int, cost: Cost) -> None:
        offset = (self._batches - 1) * _RECORDS
        self._timed([fetch_request("growing", [(0, offset)], len(self._batch))] * count, cost, _check_fetched)

    def _fetch_old(self, count: int, cost: Cost) -> None:
        drop_pages(self._directory, ".log")
        offsets = [self._chance.randrange(self._batches * _RECORDS) for _ in range(_COLD_REQUESTS)]
        requests = [fetch_request("growing", [(0, offset)], len(self._batch)) for offset in offsets]
        self._timed(requests, cost, _check_fetched, self._bare_reader())

    def _look_up(self, count: int, cost: Cost) -> None:
        drop_pages(self._directory, ".log")
        spans = self._chance.choices(self._times, [last - first + 1 for first, last in self._times], k=_COLD_REQUESTS)
        times = [self._chance.randrange(first, last) for first, last in spans]
        self._timed([offset_request("growing", at) for at in times], cost, _check_offset, self._bare_reader())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_fetched(response: bytes) -> None:
    fetched = fetched_in(response)
    if fetched.error_code or not fetched.records:
        raise RuntimeError(f"a fetch gave error {fetched.error_code}, or no records")


def _check_offset(response: bytes) -> None:
    if offset_in(response) < 0:
        raise RuntimeError("a time in the log was not found")


def _partition_rows(quick: bool) -> Iterator[Row]:
    rounds = 2 if quick else 5
    peer = "no peer"
    numbers = list(range(PARTITIONS))
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as scratch:
        broker = BrokerProcess(Path(scratch) / "data")
        with broker:
            empty_bytes = resident_bytes(broker.pid)
            began_s = time.perf_counter()
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                admin.create_topic("many", PARTITIONS, 1)
            created_s = time.perf_counter() - began_s
            produced, fetched = [], []
            batch = batch_of(10)
            with Link(broker.bootstrap) as link:
                for number in range(rounds + 1):
                    requests = [produce_request("many", [one], batch, acks=1) for one in numbers]
                    began_s = time.perf_counter()
                    for start in range(0, PARTITIONS, 50):
                        link.send(b"".join(requests[start : start + 50]))
                        for _ in range(50):
                            check_produced(link.receive())
                    took_s = time.perf_counter() - began_s
                    if number:
                        produced.append(took_s / PARTITIONS * 1e6)
                    request = fetch_request("many", [(one, number * 10) for one in numbers], 4096)
                    began_s = time.perf_counter()
                    _check_fetched(link.call(request))
                    if number:
                        fetched.append((time.perf_counter() - began_s) / PARTITIONS * 1e6)
            descriptors = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
            grown_bytes = resident_bytes(broker.pid) - empty_bytes
        starts = []
        for _ in range(rounds):
            broker.restart()
            starts.append(broker.start_seconds)
            broker.stop()
    yield Row(f"{PARTITIONS:,} partitions, create", "s", [created_s], [], peer, higher_is_better=False)
    yield Row(
        f"{PARTITIONS:,} partitions, one produce to each, 50 in flight", "us/produce", produced, [], peer,
        higher_is_better=False,
    )  # fmt: skip
    yield Row(
        f"{PARTITIONS:,} partitions, one fetch from all", "us/partition", fetched, [], peer, higher_is_better=False
    )
    yield Row(
        f"{PARTITIONS:,} partitions, descriptors", "open files", [float(descriptors)], [], peer,
        higher_is_better=False, at_most=PARTITIONS + 1200,
        note="the active segments', and as many others as are kept open",
    )  # fmt: skip
    yield Row(
        f"{PARTITIONS:,} partitions, memory", "KB/partition", [grown_bytes / PARTITIONS / 1000], [], peer,
        higher_is_better=False, at_most=30,
    )  # fmt: skip
    yield Row(
        f"{PARTITIONS:,} partitions, start after a clean stop", "s", starts, [], peer, higher_is_better=False, at_most=5
    )
