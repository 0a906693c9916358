"""What the benches of moves share: a topic of so many gigabytes, whose records are known, and how much of it there is.

Each record is a batch of a megabyte: its number in the partition, and the same filling bytes. So they are written as
fast as the disk takes them, and a reader knows each of them.
"""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final

from bench.raw_load import Link, batch_of, check_produced, produce_request
from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.cli.cluster.reassignment_throttle import set_throttle
from spark_kafkalite.client.admin.admin import NewTopic

MOVED: Final = "moved"
PARTITIONS: Final = 8
ALL_MOVED: Final = tuple(TopicPartition(MOVED, number) for number in range(PARTITIONS))
# Files of replicas that have gone go at once, so that there are never three copies.
BROKER_SETTINGS: Final = {"log.segment.delete.delay.ms": "100", "log.retention.check.interval.ms": "1000"}
# What else a bench has on the disk: the logs of other topics, three times.
BESIDE_BYTES: Final = 4 << 30
_NUMBER: Final = struct.Struct(">q")
_FILLING: Final = Random(1).randbytes(1_000_000 - _NUMBER.size)
_IN_FLIGHT: Final = 8
_FILLERS: Final = 2
_POLL_S: Final = 0.25


def check_room(directory: Path, size_bytes: int) -> None:
    """Raise OSError if the disk has no room for two copies of a moved topic and what is written next to it."""
    needed, free = 2 * size_bytes + BESIDE_BYTES, shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(f"{directory} has {free / 1e9:.0f} GB free, and {needed / 1e9:.0f} are needed: give a lower --gb")


def count_of(size_bytes: int) -> int:
    """Return how many records each partition of a topic of that size has."""
    return max(size_bytes // PARTITIONS // (_NUMBER.size + len(_FILLING)), 1)


def make_moved(admin: Admin, address: str, broker: int, size_bytes: int) -> None:
    """Make the topic, whose only replicas are on a broker, with ``size_bytes`` in all; ``address`` is that broker's."""
    admin.create_topics([NewTopic(MOVED, assignments={number: [broker] for number in range(PARTITIONS)})])
    with Consumer(bootstrap_servers=address) as consumer:
        # Answered once each of them has a leader that knows.
        consumer.end_offsets(ALL_MOVED)
    with ThreadPoolExecutor(_FILLERS) as fillers:
        for _ in fillers.map(lambda number: _fill(address, number, count_of(size_bytes)), range(PARTITIONS)):
            pass


def _fill(address: str, partition: int, count: int) -> None:
    with Link(address) as link:
        for number in range(count):
            batch = batch_of(1, _NUMBER.pack(number) + _FILLING)
            link.send(produce_request(MOVED, [partition], batch, acks=1))
            if number >= _IN_FLIGHT:
                check_produced(link.receive())
        for _ in range(min(count, _IN_FLIGHT)):
            check_produced(link.receive())


def begin_move(admin: Admin, target: int, rate: int | None) -> float:
    """Begin to move the topic to a broker, with a throttle (bytes a second) or without one; return the time of that."""
    plan = {key: [target] for key in ALL_MOVED}
    if rate is not None:
        set_throttle(admin, plan, rate)
    began_s = time.monotonic()
    for key, error in admin.alter_partition_reassignments(plan).items():
        if error is not None:
            raise RuntimeError(f"{key} cannot be moved: {error}")
    return began_s


def bytes_on_disk(data_dir: Path) -> int:
    """Return what a broker has of the topic, also while it is dead or has it under another name for its deletion."""
    total = 0
    for path in data_dir.glob(f"**/{MOVED}-*/*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait for a condition. Raises TimeoutError."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"after {timeout_s:.0f} s: waiting for {what}")
        time.sleep(_POLL_S)


def records_of(bootstrap: str, topics: Sequence[str], timeout_s: float) -> Iterator[tuple[TopicPartition, int, bytes]]:
    """Read all records of topics; yield the partition, offset and value of each. Raises TimeoutError when there are no
    more before the end."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        found = admin.describe_topics(topics)
    keys = [TopicPartition(name, each.partition) for name, info in found.items() for each in info.partitions]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        left = {key: end for key, end in consumer.end_offsets(keys).items() if end > 0}
        consumer.assign(list(left))
        consumer.seek_to_beginning()
        heard_s = time.monotonic()
        while left:
            records = consumer.poll(1_000)
            for record in records:
                heard_s = time.monotonic()
                key = TopicPartition(record.topic, record.partition)
                yield key, record.offset, record.value or b""
                if record.offset + 1 >= left.get(key, 0):
                    left.pop(key, None)
            if time.monotonic() > heard_s + timeout_s:
                raise TimeoutError(f"no record for {timeout_s:.0f} s, and these are not read to their ends: {left}")


def filled_number(value: bytes) -> int | None:
    """Return the number of a record of :func:`make_moved`, None for another one. Raises ValueError if it is damaged."""
    if len(value) != _NUMBER.size + len(_FILLING):
        return None
    if value[_NUMBER.size :] != _FILLING:
        raise ValueError("a record has other bytes than were written")
    return int(_NUMBER.unpack_from(value)[0])
