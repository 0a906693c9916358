"""How long does a cluster keep a producer waiting when a broker is killed, or stopped in order? How soon does it start?

Three brokers over `kafkalite registry`, sessions of 3 s, a topic of 100 partitions with three replicas. One of our
producers (acks=all, everything else at its defaults) sends a record to every partition each 50 ms. Broker after broker
is killed with SIGKILL, started again, and waited for; then the same with SIGTERM.

Timed is, for each partition, the longest time between two acknowledgements around the event; what a row has is that of
the partition that waited longest. Partitions that the broker led wait for an election, the others until it has left the
in-sync replicas. There is no peer.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path

from bench.measurement import Row
from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.kafkalite_cluster import SESSION_TIMEOUT_MS, KafkaliteCluster

TOPIC = "steady"
PARTITIONS = 100
_SEND_EVERY_S = 0.05
# How long all is watched after everything is acknowledged again.
_AFTER_S = 1.0
_TIMEOUT_S = 60.0
_SESSION_S = SESSION_TIMEOUT_MS / 1000


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows about starts, kills and stops."""
    starts = _starts(3 if quick else 10)
    yield Row("start of three brokers and their registry", "s", starts, (), "-", False, at_most=1.2)
    rounds = 3 if quick else 20
    with contextlib.ExitStack() as closing:
        directory = closing.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-"))
        cluster = closing.enter_context(KafkaliteCluster(Path(directory) / "cluster"))
        admin = closing.enter_context(Admin(bootstrap_servers=cluster.bootstrap))
        admin.create_topic(TOPIC, PARTITIONS)
        cluster.wait_in_sync(TOPIC)
        pulse = closing.enter_context(Pulse(cluster.bootstrap))
        led, followed, errors = _measure(cluster, admin, pulse, cluster.kill, rounds)
        for what, gaps, bound in (("leader", led, 5.0), ("follower", followed, _SESSION_S + 1)):
            note = f"{errors} records failed"
            yield Row(f"a {what} is killed: longest gap, median", "s", gaps, (), "-", False, note=note)
            yield Row(f"a {what} is killed: worst of {rounds}", "s", [max(gaps)], (), "-", False, at_most=bound)
        led, followed, errors = _measure(cluster, admin, pulse, cluster.stop, rounds)
        gaps = [max(each) for each in zip(led, followed, strict=True)]
        note = f"{errors} records failed"
        yield Row("a broker is stopped: longest gap, median", "s", gaps, (), "-", False, at_most=0.3, note=note)
        yield Row(f"a broker is stopped: worst of {rounds}", "s", [max(gaps)], (), "-", False, at_most=1.0)


def _starts(rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory,
            KafkaliteCluster(Path(directory) / "cluster") as cluster,
        ):
            seconds.append(cluster.start_seconds)
    return seconds


def _measure(
    cluster: KafkaliteCluster, admin: Admin, pulse: Pulse, end: Callable[[int], object], rounds: int
) -> tuple[list[float], list[float], int]:
    """Return the longest gaps of partitions that the ended brokers led, and followed, and how many records failed."""
    led, followed = [], []
    failed_before = pulse.failed
    for _, number in zip(range(rounds), cycle(cluster.brokers), strict=False):
        admin.elect_leaders()
        leaders = [cluster.leader_of(TOPIC, partition) for partition in range(PARTITIONS)]
        pulse.wait_until_all_acknowledged(time.monotonic())
        began_s = time.monotonic()
        end(number)
        pulse.wait_until_all_acknowledged(time.monotonic())
        time.sleep(_AFTER_S)
        gaps = pulse.longest_gaps(began_s - _SEND_EVERY_S)
        led.append(max(gap for gap, leader in zip(gaps, leaders, strict=True) if leader == number))
        followed.append(max(gap for gap, leader in zip(gaps, leaders, strict=True) if leader != number))
        cluster.restart(number)
        cluster.wait_in_sync(timeout_s=_TIMEOUT_S)
    return led, followed, pulse.failed - failed_before


class Pulse:
    """A producer that sends a small record to every partition of ``TOPIC`` again and again, and when they were
    acknowledged.
    """

    def __init__(self, bootstrap: str, partitions: int = PARTITIONS, every_s: float = _SEND_EVERY_S) -> None:
        self.failed = 0
        self._every_s = every_s
        self._producer = Producer(bootstrap_servers=bootstrap)
        # Of each partition, when its records were acknowledged, and when the last acknowledged one was sent.
        self._acknowledged: list[list[float]] = [[] for _ in range(partitions)]
        self._last_sent = [0.0] * partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_forever, name="pulse")

    def _send_forever(self) -> None:
        while not self._stopping.wait(self._every_s):
            now_s = time.monotonic()
            for partition in range(len(self._last_sent)):
                self._producer.send(TOPIC, b"beat", partition=partition, on_delivery=self._noting(partition, now_s))

    def _noting(self, partition: int, sent_s: float) -> Callable[..., None]:
        def told(_: object, error: BaseException | None) -> None:
            if error is not None:
                self.failed += 1
                return
            self._acknowledged[partition].append(time.monotonic())
            self._last_sent[partition] = sent_s

        return told

    def wait_until_all_acknowledged(self, since_s: float) -> None:
        """Wait until each partition has acknowledged what was sent after this moment."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while min(self._last_sent) < since_s:
            if time.monotonic() > deadline_s:
                waiting = [partition for partition, sent_s in enumerate(self._last_sent) if sent_s < since_s]
                raise TimeoutError(f"no acknowledgement of partitions {waiting} within {_TIMEOUT_S} s")
            time.sleep(_SEND_EVERY_S)

    def longest_gaps(self, since_s: float) -> list[float]:
        """Return each partition's longest time between acknowledgements from this moment on; forget older ones."""
        gaps = []
        for times in self._acknowledged:
            recent = [since_s, *(each for each in times if each > since_s)]
            gaps.append(max(later - earlier for earlier, later in pairwise(recent)))
            times.clear()
        return gaps

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.close()
