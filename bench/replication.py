"""What do three replicas cost? Beside three nodes of Apache Kafka (KRaft, each broker and controller).

Both clusters stand side by side, and each figure is taken of them in turn: Java's ProducerPerformance with acks=all
into six partitions of three replicas (its idempotence is the client's default), after rounds that do not count,
because a JVM warms up slowly; confluent-kafka, one record at a time, for latency. CPU is that of all broker processes,
ours with the registry's. Then a thousand partitions that get nothing are added to ours.

The event loop's lag is that of ``bench.lag_broker`` from the kill of a broker that leads a third of 300 partitions
until some seconds after all of them are acknowledged again, with a record each 200 ms to every partition, and each
50 ms. It counts waits for a processor; the loop's own turns have a row of their own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from bench.broker import RECORD_BYTES, latencies, produce
from bench.failover import TOPIC, Pulse
from bench.lag_broker import lag_prefixes, samples
from bench.measurement import Row, Usage, percentile, resident_bytes, warm_page_cache
from spark_kafkalite import Admin
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.lab.apache_kafka_cluster import ApacheKafkaCluster

_PEER = "three nodes of Apache Kafka 4.3.0"
_PARTITIONS = 6
_WARMING_ROUNDS = 8
# What a broker follows from each of the two others.
_IDLE_PER_PAIR = 334
_PULSED = 300
_AROUND_S = 3.0
# How often each of the pulsed partitions gets a record.
_PULSES_S = (0.2, 0.05)


@dataclass(frozen=True)
class Subject:
    """A running cluster under measurement."""

    name: str
    bootstrap: str
    brokers: Sequence[int]
    beside: Sequence[int] = ()

    def cpu(self) -> list[Usage]:
        """Return the usage of all its processes from now on."""
        return [Usage(pid) for pid in (*self.brokers, *self.beside)]


def rows(quick: bool) -> Iterator[Row]:
    """Measure both clusters in turn and yield a row for each figure."""
    records = 300_000 if quick else 1_500_000
    rounds = 2 if quick else 5
    warm_page_cache(6 * records * RECORD_BYTES)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        cluster = running.enter_context(KafkaliteCluster(directory / "ours"))
        kafka = running.enter_context(
            ApacheKafkaCluster(
                directory / "peer",
                heap_mb=512,
                jvm_options=("-XX:+UseG1GC",),
                overrides={"min.insync.replicas": "2", "default.replication.factor": "3"},
            )
        )
        ours = Subject(
            "ours", cluster.bootstrap, [each.pid for each in cluster.brokers.values()], [cluster.registry.pid]
        )
        peer = Subject("peer", kafka.bootstrap, [each.pid for each in kafka.nodes.values()])
        yield _memory(ours, peer)
        yield from _produced(ours, peer, records, rounds, 2 if quick else _WARMING_ROUNDS)
        yield from _waited(ours, peer, 500 if quick else 3_000, rounds)
        yield from _led_and_followed(ours, cluster, records, rounds)
        yield from _beside_idle(ours, cluster, records, rounds)
    for every_s in _PULSES_S:
        yield from _lagged(3 if quick else 9, every_s)


def _memory(ours: Subject, peer: Subject) -> Row:
    held = [[sum(map(resident_bytes, (*each.brokers, *each.beside))) / 1e6] for each in (ours, peer)]
    return Row("cluster of three, resident memory after start", "MB", held[0], held[1], _PEER, higher_is_better=False)


def _produced(ours: Subject, peer: Subject, records: int, rounds: int, warming: int) -> Iterator[Row]:
    for _ in range(warming):
        _produce_into(peer, records)
    _produce_into(ours, records)
    figures: dict[str, list[tuple[float, float]]] = {each.name: [] for each in (ours, peer)}
    for _ in range(rounds):
        for subject in (ours, peer):
            figures[subject.name].append(_produce_into(subject, records))
    rates, cpu = ([[figure[at] for figure in figures[name]] for name in ("ours", "peer")] for at in range(2))
    what = "three replicas, acks=all, 100 B into six partitions"
    yield Row(f"{what}: throughput (ProducerPerformance)", "records/s", rates[0], rates[1], _PEER, target=0.8)
    yield Row(f"{what}: CPU of all brokers", "CPU s/GB", cpu[0], cpu[1], _PEER, higher_is_better=False, target=0.7)


def _produce_into(subject: Subject, records: int) -> tuple[float, float]:
    """Produce into a new topic; return records a second, and CPU seconds of the cluster per GB."""
    with _Topic(subject, _PARTITIONS) as topic:
        used = subject.cpu()
        rate = _produce(subject, topic, records)
        return rate, _per_gb(used, records)


def _produce(subject: Subject, topic: str, records: int) -> float:
    return produce(subject.bootstrap, topic, records, "acks=all")


def _per_gb(used: Sequence[Usage], records: int) -> float:
    return sum(each.cpu_s for each in used) / (records * RECORD_BYTES / 1e9)


def _waited(ours: Subject, peer: Subject, messages: int, rounds: int) -> Iterator[Row]:
    figures: dict[str, list[tuple[float, ...]]] = {"ours": [], "peer": []}
    with _Topic(ours, 1) as our_topic, _Topic(peer, 1) as their_topic:
        for number in range(rounds + 1):
            for subject, topic in ((ours, our_topic), (peer, their_topic)):
                found = latencies(subject.bootstrap, topic, messages)
                if number:
                    figures[subject.name].append(found)
    for at, which in enumerate(("p50", "p99")):
        values = [[each[at] for each in figures[name]] for name in ("ours", "peer")]
        yield Row(
            f"three replicas, produce to ack, one at a time, {which}", "ms", values[0], values[1], _PEER,
            higher_is_better=False, target=1.0, note="confluent-kafka on both sides, acks=all",
        )  # fmt: skip


def _led_and_followed(ours: Subject, cluster: KafkaliteCluster, records: int, rounds: int) -> Iterator[Row]:
    """What the leader of one partition uses, and one of its followers."""
    led, followed = [], []
    for _ in range(rounds):
        with _Topic(ours, 1) as topic:
            leader = cluster.leader_of(topic)
            assert leader is not None
            used = {number: Usage(broker.pid) for number, broker in cluster.brokers.items()}
            _produce(ours, topic, records)
            led.append(_per_gb([used.pop(leader)], records))
            followed.append(_per_gb(list(used.values()), records) / len(used))
    yield Row("three replicas of one partition: CPU of its leader", "CPU s/GB", led, (), "-", higher_is_better=False)
    yield Row(
        "three replicas of one partition: CPU of a follower", "CPU s/GB", followed, (), "-", higher_is_better=False
    )


def _beside_idle(ours: Subject, cluster: KafkaliteCluster, records: int, rounds: int) -> Iterator[Row]:
    """The same with idle partitions, beside what it was without them a moment before."""
    without = [_produce_into(ours, records) for _ in range(rounds)]
    with Admin(bootstrap_servers=ours.bootstrap) as admin:
        admin.create_topics([NewTopic("idle", _IDLE_PER_PAIR * len(ours.brokers), 3)])
    cluster.wait_in_sync("idle")
    beside = [_produce_into(ours, records) for _ in range(rounds)]
    what = f"three replicas beside {_IDLE_PER_PAIR} idle partitions on each pair"
    name = "ours without idle partitions"
    rates, cpu = ([[figure[at] for figure in figures] for figures in (beside, without)] for at in range(2))
    yield Row(f"{what}: throughput", "records/s", rates[0], rates[1], name, target=1 / 1.2)
    yield Row(f"{what}: CPU of all brokers", "CPU s/GB", cpu[0], cpu[1], name, higher_is_better=False, target=1.2)


class _Topic:
    """A topic of three replicas for as long as the block lasts; ``with`` gives its name."""

    _count = 0

    def __init__(self, subject: Subject, partitions: int) -> None:
        _Topic._count += 1
        self._name = f"replicated-{_Topic._count}"
        self._admin = Admin(bootstrap_servers=subject.bootstrap)
        self._partitions = partitions

    def __enter__(self) -> str:
        self._admin.create_topic(self._name, self._partitions, 3)
        return self._name

    def __exit__(self, *_: object) -> None:
        self._admin.delete_topics([self._name])
        self._admin.close()


def _lagged(rounds: int, every_s: float) -> Iterator[Row]:
    """How late the loops of the brokers that live are from each kill until some seconds after the failover."""
    windows: list[tuple[int, float, float]] = []
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        prefixes = lag_prefixes(directory)
        cluster = running.enter_context(KafkaliteCluster(directory / "cluster", command_prefix_of=prefixes))
        admin = running.enter_context(Admin(bootstrap_servers=cluster.bootstrap))
        admin.create_topic(TOPIC, _PULSED)
        cluster.wait_in_sync(TOPIC)
        with Pulse(cluster.bootstrap, _PULSED, every_s) as pulse:
            for _, number in zip(range(rounds), cycle(cluster.brokers), strict=False):
                admin.elect_leaders()
                pulse.wait_until_all_acknowledged(time.monotonic())
                began_s = time.monotonic()
                cluster.kill(number)
                pulse.wait_until_all_acknowledged(time.monotonic())
                time.sleep(_AROUND_S)
                windows.append((number, began_s, time.monotonic()))
                cluster.restart(number)
                cluster.wait_in_sync(timeout_s=60)
        for broker in cluster.brokers.values():
            broker.stop()
        late, busy = samples(directory, windows)
    note = f"{rounds} kills, {len(late)} wake-ups of 5 ms, with the waits for a processor"
    what = f"in a failover of 300 partitions, each with a record every {every_s * 1000:.0f} ms"
    yield Row(f"loop lag {what}: p99.9", "ms", [percentile(late, 0.999)], (), "-", False, at_most=20, note=note)
    yield Row(f"loop lag {what}: worst", "ms", [max(late)], (), "-", False, at_most=100, note=note)
    yield Row(f"loop {what}: worst turn of the thread's own CPU", "ms", [max(busy)], (), "-", False, at_most=100)
