"""How long does it take to move 1,000 partitions on three brokers, and what do producers notice of it?

Each partition has two of three brokers and 64 KB. One request moves one replica of each to the third broker, and the
next one moves others. Timed are the answer, which comes when all reassignments have begun, and the end of the last one.
One of our producers sends a record to each of the first hundred partitions every 50 ms (acks=all, min.insync.replicas
1). Its longest gap is the time between two acknowledgements of a partition: during the moves, and when each broker is
stopped in order and started again. Our loops' lag is that of ``bench.lag_broker`` during the moves, and counts waits
for a processor. Both clusters get the same requests from our administrator's client, one cluster after the other.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.failover import TOPIC, Pulse
from bench.lag_broker import lag_prefixes, samples
from bench.measurement import Row
from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.lab.apache_kafka_cluster import ApacheKafkaCluster

_PEER: Final = "three nodes of Apache Kafka 4.3.0"
_BROKERS: Final = (1, 2, 3)
_PULSED: Final = 100
_BYTES: Final = 64 << 10
_TIMEOUT_MS: Final = 300_000
_POLL_S: Final = 0.05
_AFTER_S: Final = 1.0
_SETTINGS: Final = {"min.insync.replicas": "1"}


class Figures:
    """What was measured of one cluster, one entry a round; ``moves`` is when each of them began and ended."""

    def __init__(self) -> None:
        self.accepted_s: list[float] = []
        self.moved_s: list[float] = []
        self.moving_gap_s: list[float] = []
        self.restart_gap_s: list[float] = []
        self.moves: list[tuple[int, float, float]] = []


def _replicas(number: int, turn: int) -> list[int]:
    """Return a partition's two brokers after so many moves; each move takes one away and keeps the other."""
    first = number + turn
    return [_BROKERS[first % 3], _BROKERS[(first + 1) % 3]]


def _measure(
    bootstrap: str, partitions: int, rounds: int, stop: Callable[[int], object], start: Callable[[int], object]
) -> Figures:
    found = Figures()
    with ExitStack() as closing:
        admin = closing.enter_context(Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=_TIMEOUT_MS))
        assignments = {number: _replicas(number, 0) for number in range(partitions)}
        admin.create_topics([NewTopic(TOPIC, assignments=assignments)])
        with Producer(bootstrap_servers=bootstrap) as producer:
            payload = os.urandom(_BYTES)
            for number in range(partitions):
                producer.send(TOPIC, payload, partition=number)
        pulse = closing.enter_context(Pulse(bootstrap, _PULSED))
        for turn in range(1, rounds + 1):
            pulse.wait_until_all_acknowledged(time.monotonic())
            targets = {TopicPartition(TOPIC, number): _replicas(number, turn) for number in range(partitions)}
            began_s = time.monotonic()
            refused = [error for error in admin.alter_partition_reassignments(targets).values() if error is not None]
            found.accepted_s.append(time.monotonic() - began_s)
            if refused:
                raise RuntimeError(f"{len(refused)} reassignments are refused, the first: {refused[0]}")
            while admin.list_partition_reassignments():
                if time.monotonic() - began_s > _TIMEOUT_MS / 1000:
                    raise TimeoutError(f"reassignments are in progress after {_TIMEOUT_MS} ms")
                time.sleep(_POLL_S)
            found.moved_s.append(time.monotonic() - began_s)
            pulse.wait_until_all_acknowledged(time.monotonic())
            found.moves.append((0, began_s, time.monotonic()))
            found.moving_gap_s.append(max(pulse.longest_gaps(began_s)))
            time.sleep(_AFTER_S)
        for number in _BROKERS:
            _wait_in_sync(admin, partitions)
            pulse.wait_until_all_acknowledged(time.monotonic())
            began_s = time.monotonic()
            stop(number)
            pulse.wait_until_all_acknowledged(time.monotonic())
            start(number)
            _wait_in_sync(admin, partitions)
            pulse.wait_until_all_acknowledged(time.monotonic())
            found.restart_gap_s.append(max(pulse.longest_gaps(began_s)))
        if pulse.failed:
            raise RuntimeError(f"{pulse.failed} records failed")
    return found


def _wait_in_sync(admin: Admin, partitions: int) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_MS / 1000
    while True:
        known = admin.describe_topics([TOPIC])[TOPIC].partitions
        if len(known) == partitions and all(len(each.isr) == len(each.replicas) for each in known):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"some of {partitions} partitions are not in sync after {_TIMEOUT_MS} ms")
        time.sleep(_POLL_S)


def _ours(partitions: int, rounds: int) -> tuple[Figures, list[float], list[float]]:
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        cluster = running.enter_context(
            KafkaliteCluster(directory / "cluster", overrides=_SETTINGS, command_prefix_of=lag_prefixes(directory))
        )
        found = _measure(cluster.bootstrap, partitions, rounds, cluster.stop, lambda each: cluster.broker(each).start())
        for broker in cluster.brokers.values():
            broker.stop()
        return found, *samples(directory, found.moves)


def _peers(partitions: int, rounds: int) -> Figures:
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        cluster = ApacheKafkaCluster(
            directory, heap_mb=1024, jvm_options=("-XX:+UseG1GC",), overrides=_SETTINGS, controller_apart=True
        )
        running.callback(cluster.close)
        cluster.start()
        return _measure(
            cluster.bootstrap,
            partitions,
            rounds,
            lambda each: cluster.nodes[each].stop(),
            lambda each: cluster.nodes[each].start(),
        )


def rows(quick: bool) -> Iterator[Row]:
    """Measure ours, then Apache Kafka's."""
    partitions, rounds = (300, 1) if quick else (1000, 3)
    ours, late, busy = _ours(partitions, rounds)
    load = f"load of the machine afterwards: {os.getloadavg()[0]:.1f}"
    what = f"{partitions:,} partitions moved"
    wakes = f"{len(late)} wake-ups of 5 ms, with the waits for a processor; {load}"
    yield Row(f"loop lag while {what}: worst", "ms", [max(late)], (), "-", False, at_most=100, note=wakes)
    yield Row(f"loop while {what}: worst turn of the thread's own CPU", "ms", [max(busy)], (), "-", False, at_most=100)
    peer = _peers(partitions, rounds)
    for name, mine, theirs, at_most in (
        (f"{what}: until all are accepted", ours.accepted_s, peer.accepted_s, 2.0),
        (f"{what}: until the last has ended", ours.moved_s, peer.moved_s, None),
        (f"{what}: longest gap of a partition with acks=all", ours.moving_gap_s, peer.moving_gap_s, None),
        (
            f"each of three brokers with {partitions:,} partitions restarted: longest gap with acks=all",
            [max(ours.restart_gap_s)],
            [max(peer.restart_gap_s)],
            1.0,
        ),
    ):
        yield Row(name, "s", mine, theirs, _PEER, higher_is_better=False, at_most=at_most)
