"""What do producers notice of a large move between brokers, with a throttle and without one, and is its rate kept?

Three kafkalite brokers, then three of Apache Kafka with a controller of its own; one after the other, each with an
empty disk. One topic has the bytes that move, on one broker alone: they go from broker 1 to broker 3 without a
throttle, and back with one. Meanwhile the cluster is under full load: a process sends batches of 100 KB to three
partitions of three replicas, each led by another broker, as fast as they are answered with acks=all. What is timed is a
record of another producer with acks=all, one at a time. The control is the same under the same load while nothing
moves. The rate is the bytes that moved, divided by the time until the last partition has ended its move. The throttle
is at most half of the rate of the move without one: what the host cannot copy, no throttle can keep.

    python -m bench.throttled_moves --gb 20                  # both, and the moves among kills
    python -m bench.throttled_moves --gb 20 --part ours      # or kafka, or killed (see bench.killed_moves)

``python -m bench throttled_moves`` moves 0.5 GB, or as many GB as KAFKALITE_BENCH_MOVE_GB says. A move needs twice its
size on the disk, and 4 GB more; all of that is deleted afterwards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from typing import Final, Self

from bench import killed_moves
from bench.measurement import Row, line_of, percentile
from bench.moved_data import (
    ALL_MOVED,
    BROKER_SETTINGS,
    PARTITIONS,
    begin_move,
    bytes_on_disk,
    check_room,
    count_of,
    make_moved,
    wait_until,
)
from bench.raw_load import Link, batch_of, check_produced, produce_request
from spark_kafkalite import Admin
from spark_kafkalite.cli.cluster.reassignment_throttle import remove_throttles
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.lab.apache_kafka_cluster import ApacheKafkaCluster

_PEER: Final = "three nodes of Apache Kafka 4.3.0"
_PROBED: Final = "probed"
_LOADED: Final = "loaded"
_CONTROL: Final = "while nothing moves"
# Requests of one connection that are not answered yet.
_IN_FLIGHT: Final = 4
_WARM_S: Final = 20.0
_CONTROL_S: Final = 20.0
# How long a throttled move is to take at least, unless its rate is given or would be higher than one of these.
_THROTTLED_S: Final = 120.0
_MOST_RATE: Final = 100_000_000
_OF_FREE_RATE: Final = 0.5
_LOOK_S: Final = 0.25
_TIMEOUT_S: Final = 3_600.0
# What the load writes goes soon.
_KEPT: Final = {"retention.bytes": str(128 << 20), "segment.bytes": str(64 << 20), "file.delete.delay.ms": "100"}


@dataclass
class Figures:
    """What was measured of one cluster. Times in ms, rates in bytes a second (``rate`` is the throttle), the load in
    MB/s."""

    alone_ms: list[float] = field(default_factory=list)
    free_ms: float = 0.0
    throttled_ms: float = 0.0
    free_rate: float = 0.0
    rate: int = 0
    throttled_rate: float = 0.0
    loads: dict[str, float] = field(default_factory=dict)
    longest_ms: dict[str, float] = field(default_factory=dict)

    def note(self) -> str:
        """Return what the load had meanwhile, and the longest waits."""
        loads = ", ".join(f"{what} {rate:.0f} MB/s" for what, rate in self.loads.items())
        longest = ", ".join(f"{what} {longest:.0f} ms" for what, longest in self.longest_ms.items())
        return f"the load: {loads}; longest wait: {longest}"


class FullLoad:
    """A process that produces to all brokers as fast as they answer; a context manager."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """``addresses`` has the leader of each partition of ``loaded``."""
        context = multiprocessing.get_context("spawn")
        self._stopping = context.Event()
        self._sent: Synchronized[int] = context.Value("q", 0)
        self._process = context.Process(target=_produce_to_all, args=(addresses, self._stopping, self._sent))

    def megabytes(self) -> float:
        """Return what was acknowledged so far."""
        if not self._process.is_alive():
            raise RuntimeError("the load has ended by itself")
        return self._sent.value / 1e6

    def __enter__(self) -> Self:
        self._process.start()
        wait_until(lambda: self.megabytes() > 0, "the load to begin", _TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._process.join(30)
        self._process.kill()


def _produce_to_all(addresses: Sequence[str], stopping: Event, sent: Synchronized[int]) -> None:
    batch = batch_of(100, b"x" * 1_000)

    def produce(partition: int, address: str) -> None:
        request = produce_request(_LOADED, [partition], batch)
        with Link(address) as link:
            for _ in range(_IN_FLIGHT):
                link.send(request)
            while not stopping.is_set():
                check_produced(link.receive())
                with sent.get_lock():
                    sent.value += len(batch)
                link.send(request)

    threads = [Thread(target=produce, args=each, daemon=True) for each in enumerate(addresses)]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads) and not stopping.wait(_LOOK_S):
        pass


class _Moving:
    """A cluster under load, and what is measured of it."""

    def __init__(self, admin: Admin, addresses: Mapping[int, str], data_dirs: Mapping[int, Path], size: int) -> None:
        self._admin = admin
        self._addresses = addresses
        self._data_dirs = data_dirs
        self._size = size
        self.figures = Figures()

    def measure(self, rate: int | None) -> Figures:
        """Move everything to broker 3, and back at a rate, by default at one that the host can keep."""
        admin, figures, size = self._admin, self.figures, count_of(self._size) * PARTITIONS * 1_000_000
        make_moved(admin, self._addresses[1], 1, self._size)
        admin.create_topics(
            [
                NewTopic(_PROBED, assignments={0: [1, 2, 3]}),
                NewTopic(_LOADED, assignments={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}, configs=_KEPT),
            ]
        )
        with FullLoad([self._addresses[number] for number in (1, 2, 3)]) as load:
            self._p99(load, "", _for(_WARM_S))
            figures.alone_ms.append(self._p99(load, "alone", _for(_CONTROL_S)))
            figures.free_ms, seconds = self._moved(load, 1, 3, None)
            figures.free_rate = size / seconds
            figures.alone_ms.append(self._p99(load, "alone again", _for(_CONTROL_S)))
            figures.rate = rate or _rate_of(size, figures.free_rate)
            figures.throttled_ms, seconds = self._moved(load, 3, 1, figures.rate)
            figures.throttled_rate = size / seconds
        return figures

    def _moved(self, load: FullLoad, origin: int, target: int, rate: int | None) -> tuple[float, float]:
        admin = self._admin
        began_s = ended_s = begin_move(admin, target, rate)

        def is_moving() -> bool:
            nonlocal ended_s
            ended_s = time.monotonic()
            if ended_s > began_s + _TIMEOUT_S:
                raise TimeoutError(f"partitions have not moved after {_TIMEOUT_S:.0f} s")
            return bool(admin.list_partition_reassignments())

        p99 = self._p99(load, "free move" if rate is None else "throttled move", is_moving)
        if rate is not None:
            remove_throttles(admin, ALL_MOVED)
        wait_until(lambda: not bytes_on_disk(self._data_dirs[origin]), "the former replicas' files to go", _TIMEOUT_S)
        return p99, ended_s - began_s

    def _p99(self, load: FullLoad, what: str, goes_on: Callable[[], bool]) -> float:
        """Return the 99th percentile of the time from a produce of one record to its answer, in ms."""
        request, took_ms = produce_request(_PROBED, [0], batch_of(1)), []
        before, began_s, next_look_s = load.megabytes(), time.monotonic(), 0.0
        with Link(self._addresses[1]) as link:
            while True:
                now_s = time.monotonic()
                if now_s >= next_look_s:
                    if not goes_on():
                        break
                    next_look_s = time.monotonic() + _LOOK_S
                sent_s = time.perf_counter()
                check_produced(link.call(request))
                took_ms.append((time.perf_counter() - sent_s) * 1000)
                time.sleep(0.002)
        if what:
            self.figures.loads[what] = (load.megabytes() - before) / (time.monotonic() - began_s)
            self.figures.longest_ms[what] = max(took_ms)
        return percentile(took_ms, 0.99)


def _for(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() < until_s


def _ours(size: int, rate: int | None) -> Figures:
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        check_room(directory, size)
        cluster = running.enter_context(KafkaliteCluster(directory, overrides=BROKER_SETTINGS))
        admin = running.enter_context(Admin(bootstrap_servers=cluster.bootstrap))
        addresses = {number: broker.bootstrap for number, broker in cluster.brokers.items()}
        return _Moving(
            admin, addresses, {number: broker.data_dir for number, broker in cluster.brokers.items()}, size
        ).measure(rate)


def _peers(size: int, rate: int | None) -> Figures:
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        check_room(directory, size)
        cluster = ApacheKafkaCluster(
            directory,
            heap_mb=1024,
            jvm_options=("-XX:+UseG1GC",),
            overrides={**BROKER_SETTINGS, "min.insync.replicas": "2"},
            controller_apart=True,
        )
        running.callback(cluster.close)
        cluster.start()
        admin = running.enter_context(Admin(bootstrap_servers=cluster.bootstrap))
        addresses = {number: node.bootstrap for number, node in cluster.nodes.items()}
        return _Moving(
            admin, addresses, {number: node.directory for number, node in cluster.nodes.items()}, size
        ).measure(rate)


def rows(quick: bool) -> Iterator[Row]:
    """Measure both clusters, one after the other."""
    size = int(float(os.environ.get("KAFKALITE_BENCH_MOVE_GB", "0.2" if quick else "0.5")) * 1e9)
    ours = _ours(size, None)
    yield from _rows(size, ours, _peers(size, ours.rate))


def _rate_of(size: int, free_rate: float) -> int:
    return int(min(size / _THROTTLED_S, _MOST_RATE, _OF_FREE_RATE * free_rate))


def _rows(size: int, ours: Figures, peer: Figures | None) -> Iterator[Row]:
    rate = ours.rate
    moves = f"{size / 1e9:g} GB move under full load"
    figures = (ours,) if peer is None else (ours, peer)
    notes = "; ".join(f"{name}: {each.note()}" for name, each in zip(("ours", "peer"), figures, strict=False))
    for what, p99, most in (
        ("without a throttle", [each.free_ms for each in figures], 3.0),
        (f"at {rate / 1e6:.0f} MB/s", [each.throttled_ms for each in figures], 1.3),
    ):
        name = f"produce of one record, acks=all, 99th percentile, while {moves} {what}"
        yield Row(name, "ms", p99[:1], p99[1:], _PEER, higher_is_better=False, note=notes)
        times = [ms / (sum(each.alone_ms) / len(each.alone_ms)) for ms, each in zip(p99, figures, strict=True)]
        what = f"{name}: by {_CONTROL}"
        yield Row(what, "x", times[:1], times[1:], _PEER, higher_is_better=False, at_most=most)
    alone = [sum(each.alone_ms) / len(each.alone_ms) for each in figures]
    what = f"produce of one record, acks=all, 99th percentile under full load, {_CONTROL}"
    yield Row(what, "ms", alone[:1], alone[1:], _PEER, higher_is_better=False)
    free = [each.free_rate / 1e6 for each in figures]
    yield Row(f"{moves} without a throttle", "MB/s", free[:1], free[1:], _PEER)
    off = [abs(each.throttled_rate / rate - 1) * 100 for each in figures]
    yield Row(f"{moves} at {rate / 1e6:.0f} MB/s: how far its rate is off", "%", off[:1], off[1:], _PEER, False,
              at_most=10.0)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measure the parts that were asked for, and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.throttled_moves", description="Move a topic under load.")
    parser.add_argument("--gb", type=float, default=0.5, help="gigabytes that move (0.5)")
    parser.add_argument(
        "--rate", type=float, help="MB/s of the throttle; by default such that it takes two minutes or more"
    )
    parser.add_argument("--part", action="append", choices=("ours", "kafka", "killed"), help="all when none is named")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and brokers of the kills (1)")
    options = parser.parse_args(arguments)
    parts, size = options.part or ["ours", "kafka", "killed"], int(options.gb * 1e9)
    rate = int(options.rate * 1e6) if options.rate else None
    found = {}
    for part, measure in (("ours", _ours), ("kafka", _peers)):
        if part in parts:
            found[part] = measure(size, rate)
            # Both have the same.
            rate = found[part].rate
            print(f"{part}: {found[part]}", flush=True)
    if "ours" in found:
        for row in _rows(size, found["ours"], found.get("kafka")):
            print(line_of(row), flush=True)
    elif "kafka" in found:
        for row in _rows(size, found["kafka"], None):
            print(f"Apache Kafka's: {line_of(row)}", flush=True)
    if "killed" in parts:
        print(killed_moves.play(size, options.seed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
