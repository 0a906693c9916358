"""Does a consumer that reads old data from the disk disturb the others?

A pair at the end of one topic, a producer and a consumer that waits for it, notes how long each record takes from one
to the other: alone, and while two other consumers read an old topic straight through, whose pages the kernel was made
to forget before each pass. They run in a process of their own. The same with Apache Kafka, in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Row, percentile, warm_page_cache
from bench.raw_load import Link, batch_of, check_produced, fetch_request, fetched_in, fill, produce_request
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.apache_kafka import ApacheKafka
from tests.lab.batches import values_of

_PEER = "Apache Kafka 4.3.0"
_BATCH_BYTES = 64_000
_FETCH_BYTES = 1 << 20
_COLD_READERS = 2
# Between two records of the pair: far from what any broker can do, so that only disturbances show.
_PAUSE_S = 0.002


@dataclass(frozen=True)
class Subject:
    """A running broker, the directory of its old topic, and the calls of the pair."""

    name: str
    bootstrap: str
    old_directory: Path


@dataclass(frozen=True)
class Latencies:
    """Milliseconds from one of the pair to the other, and what the cold readers read meanwhile."""

    p50: float
    p99: float
    p999: float
    slowest: float
    cold_mb_per_s: float


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    old_bytes = (512 << 20) if quick else (3 << 30)
    seconds, rounds = (3.0, 1) if quick else (10.0, 3)
    warm_page_cache(2 * old_bytes)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        ours = running.enter_context(BrokerProcess(directory / "ours"))
        peer = running.enter_context(ApacheKafka(directory / "peer", heap_mb=1024))
        subjects = [
            Subject("ours", ours.bootstrap, directory / "ours" / "old-0"),
            Subject("peer", peer.bootstrap, peer.log_directory / "old-0"),
        ]
        for subject in subjects:
            with Admin(bootstrap_servers=subject.bootstrap) as admin:
                admin.create_topic("old", 1, 1)
                admin.create_topic("tail", 1, 1)
            fill(subject.bootstrap, "old", batch_of(600), old_bytes // _BATCH_BYTES)
        measured: dict[tuple[str, bool], list[Latencies]] = {}
        for number in range(rounds + 1):
            for subject in subjects:
                for cold in (False, True):
                    figures = _measure(subject, seconds if number else 1.0, cold=cold)
                    if number:
                        measured.setdefault((subject.name, cold), []).append(figures)
    yield from _rows_of(measured)


def _rows_of(measured: dict[tuple[str, bool], list[Latencies]]) -> Iterator[Row]:
    def column(name: str, cold: bool, take: Callable[[Latencies], float]) -> list[float]:
        return [take(one) for one in measured[name, cold]]

    for cold in (False, True):
        when = f"beside {_COLD_READERS} cold readers" if cold else "alone"
        for what, take, target, at_most in [
            ("p50", lambda one: one.p50, None, None),
            ("p99", lambda one: one.p99, 1.0, None),
            ("p99.9", lambda one: one.p999, 1.0, 20.0),
            ("slowest", lambda one: one.slowest, None, 100.0),
        ]:
            yield Row(
                f"producer to waiting consumer, {when}, {what}", "ms",
                column("ours", cold, take), column("peer", cold, take), _PEER,
                higher_is_better=False, target=target if cold else None, at_most=at_most if cold else None,
            )  # fmt: skip
    yield Row(
        "cold readers, from the disk", "MB/s",
        column("ours", True, lambda one: one.cold_mb_per_s), column("peer", True, lambda one: one.cold_mb_per_s), _PEER,
        target=1.0, note="both together, while the pair is at work",
    )  # fmt: skip


def _measure(subject: Subject, seconds: float, *, cold: bool) -> Latencies:
    readers = None
    if cold:
        command = [sys.executable, "-m", "bench.cold_reader", subject.bootstrap, str(subject.old_directory)]
        readers = subprocess.Popen([*command, str(seconds + 0.5)], stdout=subprocess.PIPE, text=True)
        assert readers.stdout is not None
        readers.stdout.readline()  # they have begun
    ms = [1000 * latency for latency in _pair(subject.bootstrap, seconds)]
    cold_bytes = 0.0
    if readers is not None:
        output, _ = readers.communicate(timeout=60)
        if readers.returncode:
            raise RuntimeError("the cold readers failed")
        cold_bytes = float(output.split()[-1])
    return Latencies(
        percentile(ms, 0.5), percentile(ms, 0.99), percentile(ms, 0.999), max(ms), cold_bytes / (seconds + 0.5) / 1e6
    )


def _pair(bootstrap: str, seconds: float) -> list[float]:
    """Send a record, wait until the consumer's waiting fetch has it, and so on; return the times in seconds."""
    latencies = []
    request = produce_request("tail", [0], batch_of(1), acks=1)
    with Link(bootstrap) as producer, Link(bootstrap) as consumer:
        producer.send(request)
        check_produced(producer.receive())
        offset = fetched_in(consumer.call(fetch_request("tail", [(0, 0)], 1))).high_watermark
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            consumer.send(fetch_request("tail", [(0, offset)], _FETCH_BYTES, max_wait_ms=5000))
            time.sleep(_PAUSE_S)
            began_s = time.perf_counter()
            producer.send(request)
            found = values_of(_records_in(consumer.receive()))
            latencies.append(time.perf_counter() - began_s)
            if [number for number, _ in found] != [offset]:
                raise RuntimeError(f"offset {offset} was expected, got {found[:3]}")
            offset += 1
            check_produced(producer.receive())
    return latencies


def drop_pages(directory: Path, suffix: str = "") -> None:
    """Have the kernel forget a directory's files whose names end so. What it has not written yet stays."""
    for path in directory.iterdir():
        if path.is_file() and path.name.endswith(suffix):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _read_cold(bootstrap: str, directory: Path, seconds: float) -> None:
    """Read the old topic on several connections at once, each from a place of its own; print the bytes read."""
    drop_pages(directory)
    total = 0
    with ExitStack() as open_links:
        links = [open_links.enter_context(Link(bootstrap)) for _ in range(_COLD_READERS)]
        end = fetched_in(links[0].call(fetch_request("old", [(0, 0)], 1))).high_watermark
        starts = [end * number // _COLD_READERS for number in range(_COLD_READERS)]
        offsets = list(starts)
        print("reading", flush=True)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for link, offset in zip(links, offsets, strict=True):
                link.send(fetch_request("old", [(0, offset)], _FETCH_BYTES))
            for number, link in enumerate(links):
                records = _records_in(link.receive())
                total += len(records)
                offsets[number] = _next_offset(records, offsets[number])
            if any(offset >= stop for offset, stop in zip(offsets, [*starts[1:], end], strict=True)):
                drop_pages(directory)
                offsets = list(starts)
    print(total)


def _records_in(answer: bytes) -> bytes | bytearray | memoryview:
    """Return the records of a fetch's answer."""
    records = fetched_in(answer).records
    assert isinstance(records, bytes | bytearray | memoryview)
    return records


def _next_offset(records: bytes | bytearray | memoryview, otherwise: int) -> int:
    """Return the offset behind the last whole batch, by its headers alone."""
    position, offset = 0, otherwise
    while position + 61 <= len(records):
        length = int.from_bytes(records[position + 8 : position + 12], "big")
        if position + 12 + length > len(records):
            break
        base = int.from_bytes(records[position : position + 8], "big")
        offset = base + int.from_bytes(records[position + 23 : position + 27], "big") + 1
        position += 12 + length
    return offset


def main(arguments: Sequence[str]) -> None:
    """Run the cold readers: bootstrap, directory, seconds."""
    _read_cold(arguments[0], Path(arguments[1]), float(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
