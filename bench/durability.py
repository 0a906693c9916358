"""What does an acknowledgement that waits for the disk cost, and how well do waiting produces share an fsync?

``flush.before.ack=true`` (group commit) beside Apache Kafka with ``flush.messages=1``, its only way to acknowledge what
is on the disk, and both without a flush. Batches of ten records of 100 bytes, acks=all, one replica. Clients each have
one request unanswered; "pipelined" is one client with 64. How many fsyncs there are is counted by strace in a run of
its own, for ours; Kafka's code makes one for each produce.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Row, percentile, warm_page_cache
from bench.raw_load import batch_of, closed_loop, produce_request
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.apache_kafka import ApacheKafka

RECORDS = 10
_PEER = "Apache Kafka 4.3.0, flush.messages=1"
_PEER_UNFLUSHED = "Apache Kafka 4.3.0"


@dataclass(frozen=True)
class Shape:
    """How the load is spread."""

    name: str
    clients: int
    in_flight: int = 1
    partitions: int = 1


SHAPES = (
    Shape("1 client", 1),
    Shape("16 clients", 16),
    Shape("64 clients", 64),
    Shape("pipelined", 1, in_flight=64),
    Shape("16 clients on 16 partitions", 16, partitions=16),
)


@dataclass(frozen=True)
class Figures:
    """Of one run: records a second, and milliseconds to the acknowledgement."""

    rate: float
    p50_ms: float
    p99_ms: float


class Subject:
    """A broker with a topic for each way to flush."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Mapping[str, str]]) -> None:
        self.bootstrap = bootstrap
        with Admin(bootstrap_servers=bootstrap) as admin:
            for name, config in settings.items():
                admin.create_topic(name, 16, 1, config)

    def run(self, topic: str, shape: Shape, seconds: float) -> Figures:
        batch = batch_of(RECORDS)
        requests = [produce_request(topic, [number % shape.partitions], batch) for number in range(shape.clients)]
        load = closed_loop(self.bootstrap, requests, shape.in_flight, seconds)
        ms = [1000 * latency for latency in load.latencies_s]
        return Figures(load.requests * RECORDS / load.seconds, percentile(ms, 0.5), percentile(ms, 0.99))


OURS = {"grouped": {"flush.before.ack": "true"}, "each": {"flush.messages": "1"}, "unflushed": {}}
PEERS = {"each": {"flush.messages": "1"}, "unflushed": {}}


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    seconds, rounds = (0.7, 1) if quick else (1.5, 3)
    warm_page_cache(512 << 20)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        ours = Subject(running.enter_context(BrokerProcess(directory / "ours")).bootstrap, OURS)
        peer = Subject(running.enter_context(ApacheKafka(directory / "peer", heap_mb=1024)).bootstrap, PEERS)
        for shape in SHAPES:
            measured: dict[str, list[Figures]] = {}
            for number in range(rounds + 1):
                for name, subject, topic in [
                    ("grouped", ours, "grouped"), ("each", ours, "each"), ("unflushed", ours, "unflushed"),
                    ("peer each", peer, "each"), ("peer unflushed", peer, "unflushed"),
                ]:  # fmt: skip
                    figures = subject.run(topic, shape, seconds if number else 0.3)
                    if number:
                        measured.setdefault(name, []).append(figures)
            yield from _rows_of(shape, measured)
    yield from _fsync_rows(seconds)


def _rows_of(shape: Shape, measured: dict[str, list[Figures]]) -> Iterator[Row]:
    def row(what: str, unit: str, attribute: str, ours: str, peer: str, peer_name: str, **options: object) -> Row:
        return Row(
            f"{shape.name}, {what}", unit,
            [getattr(one, attribute) for one in measured[ours]], [getattr(one, attribute) for one in measured[peer]],
            peer_name, higher_is_better=attribute == "rate", **options,  # type: ignore[arg-type]
        )  # fmt: skip

    yield row("flush.before.ack, throughput", "records/s", "rate", "grouped", "peer each", _PEER, target=1.0)
    yield row("flush.before.ack, to ack, p50", "ms", "p50_ms", "grouped", "peer each", _PEER, target=1.0)
    yield row("flush.before.ack, to ack, p99", "ms", "p99_ms", "grouped", "peer each", _PEER, target=1.0)
    yield row("flush.messages=1, throughput", "records/s", "rate", "each", "peer each", _PEER)
    yield row("not flushed, throughput", "records/s", "rate", "unflushed", "peer unflushed", _PEER_UNFLUSHED)
    yield row("not flushed, to ack, p99", "ms", "p99_ms", "unflushed", "peer unflushed", _PEER_UNFLUSHED)


def _fsync_rows(seconds: float) -> Iterator[Row]:
    if shutil.which("strace") is None:
        return
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as scratch:
        calls = Path(scratch) / "calls"
        prefix = ("strace", "-f", "--seccomp-bpf", "-y", "-qq", "-e", "trace=fdatasync", "-o", str(calls))
        with BrokerProcess(Path(scratch) / "data", command_prefix=prefix) as broker, ExitStack() as at_end:
            # Not stopped: strace does not hand the signal on to the broker that it started.
            at_end.callback(broker.kill)
            subject = Subject(broker.bootstrap, {"grouped": OURS["grouped"]})
            subject.run("grouped", SHAPES[0], 0.3)
            for shape in SHAPES:
                before = _fsyncs(calls)
                figures = subject.run("grouped", shape, seconds)
                fsyncs = _fsyncs(calls) - before
                requests = figures.rate * seconds / RECORDS
                yield Row(
                    f"{shape.name}, flush.before.ack, fsyncs", "1/s", [fsyncs / seconds], [requests / seconds],
                    "one for each produce", higher_is_better=False,
                    note=f"{requests / max(fsyncs, 1):.1f} produces share an fsync (the broker runs under strace here)",
                )  # fmt: skip


def _fsyncs(calls: Path) -> int:
    return len(re.findall(r"fdatasync\(\d+<[^>]*\.log>", calls.read_text()))
