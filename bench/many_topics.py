"""Do three brokers take 20,000 topics with 100,000 partitions, and 10,000 topics with 30,000 partitions on all of them?

Made in requests of 500 topics, then listed with all partitions by a client that knows nothing, then one broker is
stopped in order and started again. Memory is the largest of the three brokers', at the end. Once over `kafkalite
registry`, once over ZooKeeper, and once on three nodes of Apache Kafka in turn.

Each partition takes a descriptor of a broker, and two maps of a node of Apache Kafka. Where the hard limit of open
files is too low for the whole, so many topics are made as it allows, and the rows say so; Apache Kafka is left out
where `vm.max_map_count` is too low for it.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import confluent_kafka.admin as confluent_admin

from bench.measurement import Row, Usage, resident_bytes
from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from tests.lab.apache_kafka_cluster import ApacheKafkaCluster

_PEER: Final = "Apache Kafka 4.3.0"
_BROKERS: Final = 3
_AT_ONCE: Final = 500
_TIMEOUT_S: Final = 600
_MIB: Final = 1024 * 1024
# What a broker keeps of its descriptors for other things than partitions, and a JVM of its maps.
_OTHER_FILES: Final = 4000
_OTHER_MAPS: Final = 5000


@dataclass(frozen=True)
class Shape:
    """So many topics, each of so many partitions on so many brokers."""

    topics: int
    partitions: int
    replicas: int

    @property
    def logs(self) -> int:
        """How many logs a broker has."""
        return self.topics * self.partitions * self.replicas // _BROKERS

    def within(self, logs: int) -> Shape:
        """Return this shape with as many topics as need no more logs of a broker."""
        topics = logs * _BROKERS // (self.partitions * self.replicas)
        return Shape(min(self.topics, topics), self.partitions, self.replicas)

    def __str__(self) -> str:
        return f"{self.topics:,} topics of {self.partitions} partitions on {self.replicas}"


def _listed(bootstrap: str) -> tuple[int, float]:
    """Return how many topics a new client receives, and the seconds that this takes."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    began_s = time.perf_counter()
    listed = admin.list_topics(timeout=_TIMEOUT_S)
    return len(listed.topics), time.perf_counter() - began_s


def _measured(
    bootstrap: str, shape: Shape, pids: Callable[[], Mapping[str, int]], restart: Callable[[], None]
) -> dict[str, float]:
    """Return the seconds of each step, the CPU seconds of the creation, and MiB of memory."""
    found: dict[str, float] = {}
    usages = {name: Usage(pid) for name, pid in pids().items()}
    admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    began_s = time.perf_counter()
    for first in range(0, shape.topics, _AT_ONCE):
        names = [f"topic-{number:06d}" for number in range(first, min(first + _AT_ONCE, shape.topics))]
        topics = [confluent_admin.NewTopic(name, shape.partitions, shape.replicas) for name in names]
        made = admin.create_topics(topics, operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)
        for each in made.values():
            each.result()
    # A node of Apache Kafka learns of topics after their creation has been answered.
    while (known := _listed(bootstrap)[0]) < shape.topics:
        if time.perf_counter() - began_s > _TIMEOUT_S:
            raise RuntimeError(f"{known} topics are listed after {_TIMEOUT_S} s, not {shape.topics}")
    found["made"] = time.perf_counter() - began_s
    found["CPU"] = sum(usage.cpu_s for usage in usages.values())
    found["listed"] = _listed(bootstrap)[1]
    began_s = time.perf_counter()
    restart()
    found["restarted"] = time.perf_counter() - began_s
    found["memory"] = max(resident_bytes(pid) for name, pid in pids().items() if name != "registry") / _MIB
    return found


def _ours(shape: Shape, registry: type[RegistryProcess | ZooKeeperServer]) -> dict[str, float]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        process: Any = registry(directory / "registry")
        cluster = stack.enter_context(KafkaliteCluster(directory, registry=cast("RegistryProcess", process)))

        def pids() -> dict[str, int]:
            return {"registry": process.pid, **{str(number): each.pid for number, each in cluster.brokers.items()}}

        def restart() -> None:
            cluster.broker(2).stop(_TIMEOUT_S)
            cluster.broker(2).start()

        return _measured(cluster.bootstrap, shape, pids, restart)


def _peers(shape: Shape) -> dict[str, float]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        cluster = ApacheKafkaCluster(directory, heap_mb=1024, jvm_options=("-XX:+UseG1GC",))
        stack.callback(cluster.close)
        cluster.start()

        def restart() -> None:
            cluster.nodes[2].stop(_TIMEOUT_S)
            cluster.nodes[2].start()

        return _measured(
            cluster.bootstrap,
            shape,
            lambda: {str(number): node.pid for number, node in cluster.nodes.items()},
            restart,
        )


def rows(quick: bool) -> Iterator[Row]:
    """Measure both shapes over both registries."""
    wanted = (Shape(2000, 5, 1), Shape(1000, 3, 3)) if quick else (Shape(20_000, 5, 1), Shape(10_000, 3, 3))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    for shape in wanted:
        possible = shape.within(files - _OTHER_FILES)
        note = "" if possible == shape else f"the limit of open files, {files:,}, allows no more; asked for: {shape}"
        peer = _peers(possible) if 2 * possible.logs + _OTHER_MAPS < maps else {}
        if not peer:
            note = "; ".join(filter(None, (note, f"Apache Kafka needs a larger vm.max_map_count than {maps:,}")))
        for name, registry in (("kafkalite registry", RegistryProcess), ("ZooKeeper", ZooKeeperServer)):
            ours = _ours(possible, registry)
            for step, what, unit, at_most in (
                ("made", "made", "s", 600.0),
                ("CPU", "CPU of all processes while they are made", "s", None),
                ("listed", "listed", "s", 5.0),
                ("restarted", "a broker is stopped and started", "s", 60.0),
                ("memory", "resident memory of a broker", "MiB", 1536.0),
            ):
                peers = [peer[step]] if peer else []
                yield Row(
                    f"{possible}, {name}: {what}", unit, [ours[step]], peers, _PEER, False, at_most=at_most, note=note
                )
