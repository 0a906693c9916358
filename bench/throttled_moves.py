"""What do producers notice of a move between brokers, with a throttle and without one, and is the throttle's rate kept?

Three brokers of ours. A program produces one record at a time with acks=all to a topic of three replicas, while one
replica of another topic's partitions, on the same leader, moves from one of its followers to the other and back. The
bytes that move are 0.5 GB, or as many GB as KAFKALITE_BENCH_MOVE_GB says. The control is the same program while nothing
moves. The rate is what the new replicas have got, divided by the time until all are in sync.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.measurement import Row, percentile, warm_page_cache
from bench.raw_load import batch_of
from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.cli.cluster.reassignment_throttle import remove_throttles, set_throttle
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster

_MOVED: Final = "moved"
_LOAD: Final = "load"
_PARTITIONS: Final = 4
_RECORD: Final = os.urandom(10_000)
_CONTROL: Final = "while nothing moves"
# How long a throttled move is to take.
_THROTTLED_S: Final = 30.0
_MOST: Final = 1.1
# So that the files of a replica that has gone go soon.
_QUICK: Final = {"log.segment.delete.delay.ms": 100, "log.retention.check.interval.ms": 1_000}


def rows(quick: bool) -> Iterator[Row]:
    """Move partitions to and fro, and measure another client meanwhile."""
    size = int(float(os.environ.get("KAFKALITE_BENCH_MOVE_GB", "0.2" if quick else "0.5")) * 1e9)
    rounds = 1 if quick else 3
    rate = int(size / _THROTTLED_S)
    warm_page_cache(2 * size)
    with (
        tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory,
        KafkaliteCluster(Path(directory), overrides=_QUICK) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        admin.create_topics(
            [
                NewTopic(_MOVED, assignments={number: [1, 2] for number in range(_PARTITIONS)}),
                NewTopic(_LOAD, assignments={0: [1, 2, 3]}),
            ]
        )
        with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
            for number in range(size // len(_RECORD)):
                producer.send(_MOVED, value=_RECORD, partition=number % _PARTITIONS)
        alone: list[float] = []
        free: list[float] = []
        throttled: list[float] = []
        free_rates: list[float] = []
        rates: list[float] = []
        _latency_ms(cluster, lambda: False, least_s=5.0)
        for _ in range(rounds):
            alone.append(_latency_ms(cluster, lambda: False, least_s=10.0))
            p99, seconds = _moved(cluster, admin, [1, 3], None)
            free.append(p99)
            free_rates.append(size / seconds / 1e6)
            p99, seconds = _moved(cluster, admin, [1, 2], rate)
            throttled.append(p99)
            rates.append(size / seconds / rate)
    what = "produce of one record, acks=all, 99th percentile, while"
    moved = f"{size / 1e9:g} GB move"
    yield Row(
        f"{what} {moved} at {rate / 1e6:.0f} MB/s", "ms", throttled, alone, _CONTROL, higher_is_better=False, target=1.2
    )
    yield Row(f"{what} {moved} without a throttle", "ms", free, alone, _CONTROL, higher_is_better=False)
    yield Row(f"{moved} with a throttle", "of its rate", rates, [], "", at_most=_MOST, higher_is_better=False)
    yield Row(f"{moved} without a throttle", "MB/s", free_rates, [], "")


def _moved(cluster: KafkaliteCluster, admin: Admin, replicas: list[int], rate: int | None) -> tuple[float, float]:
    """Move all partitions; return the latency of the other client meanwhile, and the seconds that it took."""
    plan = {TopicPartition(_MOVED, number): replicas for number in range(_PARTITIONS)}
    if rate is not None:
        set_throttle(admin, plan, rate)
    begun_s = time.monotonic()
    ended_s = begun_s
    for key, error in admin.alter_partition_reassignments(plan).items():
        if error is not None:
            raise RuntimeError(f"{key} cannot be moved: {error}")

    def is_moving() -> bool:
        nonlocal ended_s
        ended_s = time.monotonic()
        return bool(admin.list_partition_reassignments())

    latency = _latency_ms(cluster, is_moving)
    if rate is not None:
        remove_throttles(admin, {_MOVED})
    # The files of the former replica go, so that it copies everything when the partitions come back.
    time.sleep(3)
    return latency, ended_s - begun_s


def _latency_ms(cluster: KafkaliteCluster, goes_on: Callable[[], bool], *, least_s: float = 0.0) -> float:
    """Return the 99th percentile of the time from a produce of one record to its answer, in ms."""
    from tests.interop.support.raw_client import RawClient

    batch, took_ms = batch_of(1), []
    with RawClient(cluster.broker(1).bootstrap, client_id="another") as client:
        until_s, next_look_s = time.monotonic() + least_s, 0.0
        while True:
            begun_s = time.monotonic()
            if begun_s >= next_look_s:
                if begun_s >= until_s and not goes_on():
                    return percentile(took_ms, 0.99)
                next_look_s = begun_s + 0.1
            begun_s = time.perf_counter()
            client.produce(_LOAD, batch, acks=-1)
            took_ms.append((time.perf_counter() - begun_s) * 1000)
            time.sleep(0.002)
