"""How does the broker compare with Apache Kafka: start, memory, CPU per GB produced and fetched, throughput, latency?

The same clients drive both: Java's ProducerPerformance for producing, our own fetch connection (which decodes nothing)
for fetching, confluent-kafka for latency. CPU is the broker process's own, user and system.
"""

from __future__ import annotations

import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Row, Usage, percentile, resident_bytes, warm_page_cache
from spark_kafkalite import Admin
from spark_kafkalite.client.config import ADMIN_SETTINGS, client_config, parse_settings
from spark_kafkalite.client.consume.range_fetcher import RangeFetcher
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.apache_kafka import ApacheKafka, kafka_tool

RECORD_BYTES = 100
# The default of Kafka's clients (max.partition.fetch.bytes).
FETCH_BYTES = 1 << 20
_PEER = "Apache Kafka 4.3.0"


@dataclass(frozen=True)
class Subject:
    """A running broker under measurement."""

    name: str
    bootstrap: str
    pid: int


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    records = 1_000_000 if quick else 5_000_000
    rounds = 2 if quick else 5
    warm_page_cache(4 * records * RECORD_BYTES)
    yield from _start_rows(3 if quick else 7)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        ours = running.enter_context(BrokerProcess(directory / "ours"))
        peer = running.enter_context(ApacheKafka(directory / "peer", heap_mb=1024))
        subjects = [Subject("ours", ours.bootstrap, ours.pid), Subject("peer", peer.bootstrap, peer.pid)]
        yield from _produce_rows(subjects, records, rounds)
        yield from _fetch_rows(subjects, records, rounds)
        yield from _latency_rows(subjects, 500 if quick else 3_000, rounds)


def _start_rows(rounds: int) -> Iterator[Row]:
    def measure(make: Callable[[Path], BrokerProcess | ApacheKafka]) -> tuple[float, int]:
        with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory:
            broker = make(Path(directory) / "broker")
            started = time.monotonic()
            with broker:
                return time.monotonic() - started, resident_bytes(broker.pid)

    def installed(directory: Path) -> BrokerProcess:
        # What pip installs is compiled; where the environment forbids Python to keep what it compiles, a source tree
        # would be compiled anew at every start.
        return BrokerProcess(directory, environment={"PYTHONDONTWRITEBYTECODE": ""})

    measure(installed)
    ours = [measure(installed) for _ in range(rounds)]
    peer = [measure(ApacheKafka) for _ in range(2)]
    yield Row(
        "start until it serves", "s", [run[0] for run in ours], [run[0] for run in peer], _PEER,
        higher_is_better=False, at_most=0.3, note="the peer's includes formatting its storage",
    )  # fmt: skip
    yield Row(
        "resident memory after start", "MB", [run[1] / 1e6 for run in ours], [run[1] / 1e6 for run in peer], _PEER,
        higher_is_better=False, at_most=60,
    )  # fmt: skip


def _in_turn(
    subjects: list[Subject], rounds: int, measure: Callable[[Subject], tuple[float, ...]]
) -> dict[str, list[tuple[float, ...]]]:
    """Measure the subjects in turn, after one round that only warms them up."""
    results: dict[str, list[tuple[float, ...]]] = {subject.name: [] for subject in subjects}
    for number in range(rounds + 1):
        for subject in subjects:
            figures = measure(subject)
            if number:
                results[subject.name].append(figures)
    return results


def _column(results: dict[str, list[tuple[float, ...]]], name: str, index: int) -> list[float]:
    return [figures[index] for figures in results[name]]


def _new_topic(bootstrap: str) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, 1)
    return topic


def _delete_topic(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topics([topic])


def produce(bootstrap: str, topic: str, records: int, *settings: str) -> float:
    """Produce with Java's tool, with these settings of the producer, and return records per second, as it says."""
    done = kafka_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={bootstrap}", "batch.size=65536", "linger.ms=5", *settings,
    )  # fmt: skip
    return float(re.findall(r"([\d.]+) records/sec", done.stdout)[-1])


def _produce(subject: Subject, topic: str, records: int) -> float:
    return produce(subject.bootstrap, topic, records, "acks=1", "enable.idempotence=false")


def _produce_rows(subjects: list[Subject], records: int, rounds: int) -> Iterator[Row]:
    gigabytes = records * RECORD_BYTES / 1e9

    def measure(subject: Subject) -> tuple[float, float]:
        topic = _new_topic(subject.bootstrap)
        usage = Usage(subject.pid)
        rate = _produce(subject, topic, records)
        cpu_s = usage.cpu_s
        _delete_topic(subject.bootstrap, topic)
        return rate, cpu_s / gigabytes

    results = _in_turn(subjects, rounds, measure)
    yield Row(
        "broker, produce, throughput (ProducerPerformance, 100 B, acks=1)", "records/s",
        _column(results, "ours", 0), _column(results, "peer", 0), _PEER, target=1.0,
    )  # fmt: skip
    yield Row(
        "broker, produce, CPU per GB", "CPU s/GB", _column(results, "ours", 1), _column(results, "peer", 1), _PEER,
        higher_is_better=False, target=0.5,
    )  # fmt: skip


def _fetch_rows(subjects: list[Subject], records: int, rounds: int) -> Iterator[Row]:
    topics = {subject.name: _new_topic(subject.bootstrap) for subject in subjects}
    for subject in subjects:
        _produce(subject, topics[subject.name], records)

    def measure(subject: Subject) -> tuple[float, float]:
        usage = Usage(subject.pid)
        started = time.monotonic()
        fetched = 0
        config = client_config(parse_settings(ADMIN_SETTINGS, None, {"bootstrap_servers": subject.bootstrap}))
        partition = TopicPartition(topics[subject.name], 0)
        with closing(ClusterClient(config)) as cluster:
            for _ in range(5):
                with RangeFetcher(cluster, partition, 0, records, max_bytes=FETCH_BYTES, check_crcs=False) as fetcher:
                    for piece in fetcher:
                        fetched += piece.size_bytes
                        piece.release()
        return fetched / (time.monotonic() - started) / 1e6, usage.cpu_s / (fetched / 1e9)

    results = _in_turn(subjects, rounds, measure)
    yield Row(
        "broker, fetch, throughput (one connection, nothing decoded)", "MB/s",
        _column(results, "ours", 0), _column(results, "peer", 0), _PEER, target=1.0,
    )  # fmt: skip
    yield Row(
        "broker, fetch, CPU per GB", "CPU s/GB", _column(results, "ours", 1), _column(results, "peer", 1), _PEER,
        higher_is_better=False, target=0.5,
    )  # fmt: skip


def _latency_rows(subjects: list[Subject], messages: int, rounds: int) -> Iterator[Row]:
    topics = {subject.name: _new_topic(subject.bootstrap) for subject in subjects}
    results = _in_turn(subjects, rounds, lambda subject: latencies(subject.bootstrap, topics[subject.name], messages))
    for index, (what, target) in enumerate(
        [
            ("produce to ack, one at a time, p50", 1.0),
            ("produce to ack, one at a time, p99", 1.0),
            ("end to end, one at a time, p50", 1.0),
            ("end to end, one at a time, p99", 1.0),
        ]
    ):
        yield Row(
            what, "ms", _column(results, "ours", index), _column(results, "peer", index), _PEER,
            higher_is_better=False, target=target, note="confluent-kafka on both sides, acks=all",
        )  # fmt: skip


def latencies(bootstrap: str, topic: str, messages: int) -> tuple[float, ...]:
    """Send records one at a time with confluent-kafka and read each; return the p50 and p99 in ms until it was
    acknowledged, and those until it was read.
    """
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as ConfluentPartition

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    to_ack: list[float] = []
    end_to_end: list[float] = []
    try:
        _, high = consumer.get_watermark_offsets(ConfluentPartition(topic, 0), timeout=10)
        consumer.assign([ConfluentPartition(topic, 0, high)])
        # Unmeasured ones first: connections, the consumer's first fetch.
        for number in range(messages + 100):
            acknowledged: list[float] = []
            started = time.perf_counter()
            producer.produce(
                topic, b"x" * RECORD_BYTES, on_delivery=lambda *_, at=acknowledged: at.append(time.perf_counter())
            )
            producer.flush(10)
            received = consumer.poll(10)
            arrived = time.perf_counter()
            if received is None or not acknowledged:
                raise TimeoutError(f"{bootstrap}: message {number} of {topic} did not come back")
            if number >= 100:
                to_ack.append((acknowledged[0] - started) * 1e3)
                end_to_end.append((arrived - started) * 1e3)
    finally:
        consumer.close()
    return tuple(percentile(values, p) for values in (to_ack, end_to_end) for p in (0.5, 0.99))
