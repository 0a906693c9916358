"""Does a large move end, and is anything lost, when brokers are killed ten times during it?

Three kafkalite brokers. A topic with one replica moves from broker 1 to broker 3 at a rate that makes it take a minute
without kills. At ten random points of the copy a broker is killed with SIGKILL: the source, the target or the
controller. It is started again at once, or when its session is over. Meanwhile an idempotent producer writes numbered
records with acks=all to the partitions that move, and to a topic of three replicas.

In the end the move has to be complete, the source's files have to be gone, and everything is read: each record that was
acknowledged is at its offset, none is there twice, all that was there before is there, and nothing else.
``python -m bench.throttled_moves --part killed`` plays it.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Final, Self

from bench.moved_data import (
    ALL_MOVED,
    BROKER_SETTINGS,
    MOVED,
    PARTITIONS,
    begin_move,
    bytes_on_disk,
    check_room,
    count_of,
    filled_number,
    make_moved,
    records_of,
    wait_until,
)
from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.cli.cluster.reassignment_throttle import remove_throttles
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.processes.kafkalite_cluster import SESSION_TIMEOUT_MS, KafkaliteCluster

KILLS: Final = 10
_WRITTEN: Final = "written"
_SOURCE: Final = 1
_TARGET: Final = 3
_ROLES: Final = ("source", "target", "controller")
# Parts of the copy between which the kills are; the last part is left for what comes after them.
_FIRST, _LAST = 0.02, 0.9
_COPY_S: Final = 60.0
_SEND_EVERY_S: Final = 0.02
_TIMEOUT_S: Final = 3_600.0
_READ_TIMEOUT_S: Final = 120.0


class _Writer:
    """A producer that goes on sending numbers, and what was acknowledged of them; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        # The numbers by where they are.
        self.acknowledged: dict[tuple[TopicPartition, int], int] = {}
        self.failed: Counter[str] = Counter()
        self.sent = 0
        self._bootstrap = bootstrap
        self._stopping = Event()
        self._thread = Thread(target=self._send, name="writer")

    def _send(self) -> None:
        with Producer(bootstrap_servers=self._bootstrap, acks="all", delivery_timeout_ms=600_000) as producer:
            while not self._stopping.wait(_SEND_EVERY_S):
                number = self.sent
                self.sent += 1
                topic, partition = (MOVED, number // 2 % PARTITIONS) if number % 2 else (_WRITTEN, 0)
                try:
                    producer.send(topic, b"%d" % number, partition=partition, on_delivery=self._noting(number))
                except KafkaliteError as error:
                    self.failed[type(error).__name__] += 1

    def _noting(self, number: int) -> Callable[..., None]:
        def told(record: Any, error: BaseException | None) -> None:
            if error is not None:
                self.failed[type(error).__name__] += 1
            else:
                key = TopicPartition(record.topic, record.partition)
                self.acknowledged[key, record.offset] = number

        return told

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def play(size_bytes: int, seed: int) -> str:
    """Move ``size_bytes`` among kills, and return what was seen. Raises AssertionError when something is wrong."""
    chance = Random(seed)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        check_room(directory, size_bytes)
        cluster = running.enter_context(KafkaliteCluster(directory, overrides=BROKER_SETTINGS))
        admin = running.enter_context(Admin(bootstrap_servers=cluster.bootstrap))
        make_moved(admin, cluster.broker(_SOURCE).bootstrap, _SOURCE, size_bytes)
        admin.create_topics([NewTopic(_WRITTEN, assignments={0: [1, 2, 3]})])
        began_s = time.monotonic()
        with _Writer(cluster.bootstrap) as writer:
            begin_move(admin, _TARGET, int(size_bytes / _COPY_S))
            killed = [
                _kill(cluster, chance, at * size_bytes)
                for at in sorted(chance.uniform(_FIRST, _LAST) for _ in range(KILLS))
            ]
            wait_until(lambda: not admin.list_partition_reassignments(), "the move to end", _TIMEOUT_S)
            took_s = time.monotonic() - began_s
        remove_throttles(admin, ALL_MOVED)
        cluster.wait_in_sync()
        wait_until(lambda: not bytes_on_disk(cluster.broker(_SOURCE).data_dir), "the source's files to go", _TIMEOUT_S)
        for number in range(PARTITIONS):
            assert cluster.in_sync(MOVED, number) == {_TARGET}, f"{MOVED}-{number} is not on broker {_TARGET} alone"
        read = _check(cluster.bootstrap, writer, count_of(size_bytes))
    return (
        f"{size_bytes / 1e9:g} GB moved in {took_s:.0f} s among {KILLS} kills ({', '.join(killed)}); {read} records "
        f"read; {len(writer.acknowledged)} of {writer.sent} written meanwhile are acknowledged, at their offsets and "
        f"once; refused: {dict(writer.failed)}; seed {seed}"
    )


def _kill(cluster: KafkaliteCluster, chance: Random, at_bytes: float) -> str:
    """Kill a broker once so many bytes are copied, and start it again; return which it was."""
    target_dir = cluster.broker(_TARGET).data_dir
    wait_until(lambda: bytes_on_disk(target_dir) >= at_bytes, "more of the copy", _TIMEOUT_S)
    time.sleep(chance.uniform(0, 0.5))
    role = chance.choice(_ROLES)
    number = {"source": _SOURCE, "target": _TARGET}.get(role) or cluster.controller() or _TARGET
    assert any(cluster.in_sync(MOVED, each) != {_TARGET} for each in range(PARTITIONS)), (
        "the move has ended before all kills: give a higher --gb"
    )
    cluster.kill(number)
    time.sleep(chance.choice((0.0, chance.uniform(0, SESSION_TIMEOUT_MS / 1000 + 2))))
    cluster.broker(number).start()
    return f"{role} {number} at {at_bytes / 1e9:.1f} GB"


def _check(bootstrap: str, writer: _Writer, count: int) -> int:
    """Read everything; return how many records there are."""
    left: dict[tuple[TopicPartition, int], int] = dict(writer.acknowledged)
    seen: Counter[int] = Counter()
    next_filled: dict[TopicPartition, int] = {}
    next_offset: dict[TopicPartition, int] = {}
    total = 0
    for key, offset, value in records_of(bootstrap, [MOVED, _WRITTEN], _READ_TIMEOUT_S):
        total += 1
        assert offset == next_offset.get(key, 0), f"{key} has offset {offset}, not {next_offset.get(key, 0)}"
        next_offset[key] = offset + 1
        number = filled_number(value)
        if number is not None:
            assert number == next_filled.get(key, 0), f"{key} has the filled record {number} at offset {offset}"
            next_filled[key] = number + 1
            continue
        number = int(value)
        assert number < writer.sent, f"{key} has {number} at offset {offset}, which was never sent"
        seen[number] += 1
        assert left.pop((key, offset), number) == number, f"{key} has {number} at offset {offset}, which another had"
    assert not left, f"{len(left)} acknowledged records are lost, the first: {next(iter(left.items()))}"
    _same(next_filled, {TopicPartition(MOVED, number): count for number in range(PARTITIONS)})
    twice = [number for number, times in seen.items() if times > 1]
    assert not twice, f"records of an idempotent producer are there twice: {twice[:10]}"
    return total


def _same(found: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int]) -> None:
    assert dict(found) == dict(wanted), f"filled records: {found}, not {wanted}"
