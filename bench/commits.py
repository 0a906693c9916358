"""How many commits of offsets does the group coordinator take, beside Apache Kafka's?

Ready-made OffsetCommit requests of clients without members, each client with a group of its own, as 32 consumers or
stream tasks would send them; one replica, nothing flushed, the topic of offsets with 50 partitions on both sides. Every
client has one request unanswered, or many where it says pipelined. ``CPU`` is the broker's. The last row is how long a
broker takes from kill -9 until it answers for every group again, most of which is reading the log.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Row, Usage, percentile, warm_page_cache
from bench.raw_load import Link, closed_loop
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import framed
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafkalite.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.lab.apache_kafka import ApacheKafka

TOPIC = "read"
PARTITIONS = 10
_PEER = "Apache Kafka 4.3.0"
_FIND_VERSION, _COMMIT_VERSION, _FETCH_VERSION = 4, 8, 8
_LOADED_GROUPS = 32


@dataclass(frozen=True)
class Shape:
    """How the load is spread."""

    name: str
    clients: int
    partitions: int = 1
    in_flight: int = 1


SHAPES = (
    Shape("1 client", 1),
    Shape("1 client, pipelined", 1, in_flight=64),
    Shape("32 clients", 32),
    Shape("32 clients, 10 partitions each", 32, partitions=10),
)


@dataclass(frozen=True)
class Figures:
    """Of one run: requests a second, milliseconds to the answer, the broker's microseconds of CPU a request."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def commit_request(group: str, partitions: Sequence[int]) -> bytes:
    asked = [OffsetCommitRequestPartition(partition_index=number, committed_offset=12345) for number in partitions]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=asked)])
    return framed(codec.encode_request(request, _COMMIT_VERSION, 1, "bench"))


def check_committed(response: bytes) -> None:
    for topic in codec.decode_response(ApiKey.OFFSET_COMMIT, _COMMIT_VERSION, response)[1].topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise RuntimeError(f"{topic.name}-{partition.partition_index}: error {partition.error_code}")


def find_coordinators(bootstrap: str, groups: Sequence[str]) -> None:
    """Wait until the broker coordinates the groups."""
    request = FindCoordinatorRequest(coordinator_keys=list(groups))
    with Link(bootstrap) as link:
        while True:
            answer = link.call(framed(codec.encode_request(request, _FIND_VERSION, 1, "bench")))
            found = codec.decode_response(ApiKey.FIND_COORDINATOR, _FIND_VERSION, answer)[1].coordinators
            if not any(one.error_code for one in found) and not _unserved(link, groups):
                return
            time.sleep(0.01)


def _unserved(link: Link, groups: Sequence[str]) -> bool:
    asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    answer = link.call(framed(codec.encode_request(OffsetFetchRequest(groups=asked), _FETCH_VERSION, 1, "bench")))
    return any(one.error_code for one in codec.decode_response(ApiKey.OFFSET_FETCH, _FETCH_VERSION, answer)[1].groups)


def groups_of(shape: Shape) -> list[str]:
    return [f"group {number}" for number in range(shape.clients)]


def run(bootstrap: str, pid: int, shape: Shape, seconds: float) -> Figures:
    requests = [commit_request(group, range(shape.partitions)) for group in groups_of(shape)]
    usage = Usage(pid)
    load = closed_loop(bootstrap, requests, shape.in_flight, seconds, check_committed)
    cpu_us = usage.cpu_s * 1e6 / load.requests
    ms = [1000 * latency for latency in load.latencies_s]
    return Figures(load.requests / load.seconds, percentile(ms, 0.5), percentile(ms, 0.99), cpu_us)


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    seconds, rounds = (1.0, 1) if quick else (2.0, 3)
    warm_page_cache(256 << 20)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        ours = running.enter_context(BrokerProcess(directory / "ours"))
        overrides = {"offsets.topic.num.partitions": "50"}
        options = ("-XX:+UseG1GC",)
        kafka = ApacheKafka(directory / "peer", heap_mb=1024, jvm_options=options, overrides=overrides)
        peer = running.enter_context(kafka)
        for broker in (ours, peer):
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                admin.create_topic(TOPIC, PARTITIONS, 1)
            find_coordinators(broker.bootstrap, groups_of(SHAPES[-1]))
            # The peer's code is compiled while it runs.
            run(broker.bootstrap, broker.pid, SHAPES[1], 3 * seconds)
        for shape in SHAPES:
            measured: dict[str, list[Figures]] = {"ours": [], "peer": []}
            for number in range(rounds + 1):
                for name, broker in (("ours", ours), ("peer", peer)):
                    figures = run(broker.bootstrap, broker.pid, shape, seconds if number else 0.5)
                    if number:
                        measured[name].append(figures)
            yield from _rows_of(shape, measured["ours"], measured["peer"])
        yield _load_row(ours, peer, 50_000 if quick else 300_000)


def _rows_of(shape: Shape, ours: list[Figures], peer: list[Figures]) -> Iterator[Row]:
    def row(what: str, unit: str, attribute: str, *, target: float | None = 1.0) -> Row:
        return Row(
            f"{shape.name}, {what}", unit,
            [getattr(one, attribute) for one in ours], [getattr(one, attribute) for one in peer],
            _PEER, higher_is_better=attribute == "rate", target=target,
        )  # fmt: skip

    yield row("commits", "requests/s", "rate")
    yield row("to answer, p50", "ms", "p50_ms")
    yield row("to answer, p99", "ms", "p99_ms")
    yield row("CPU of the broker", "us/request", "cpu_us", target=None)


def _load_row(ours: BrokerProcess, peer: ApacheKafka, commits: int) -> Row:
    """Kill each broker with so many commits in its log, and see when it answers for all groups again."""
    shape = Shape("", _LOADED_GROUPS, partitions=PARTITIONS, in_flight=16)
    groups = groups_of(shape)
    taken_s: list[list[float]] = []
    for broker in (ours, peer):
        written = 0
        while written < commits:
            requests = [commit_request(group, range(PARTITIONS)) for group in groups]
            written += closed_loop(broker.bootstrap, requests, 16, 1.0, check_committed).requests * PARTITIONS
        broker.kill()
        began_s = time.perf_counter()
        broker.start()
        find_coordinators(broker.bootstrap, groups)
        taken_s.append([time.perf_counter() - began_s])
    return Row(
        f"kill -9 with {commits:,} commits, until all groups are served again", "s", taken_s[0], taken_s[1], _PEER,
        higher_is_better=False, target=1.0,
    )  # fmt: skip
