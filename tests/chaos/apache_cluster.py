"""Apache Kafka under chaos: three nodes, each broker and controller, on which rows are played that need processes
only. Times are those of our cluster, as far as it has settings for them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.chaos.clients.client import Place
from tests.chaos.final_logs import logs_of
from tests.chaos.history import Complaint, Health, HistoryWriter, Leftover, State
from tests.chaos.our_cluster import LAG_TIME_S, SESSION_S
from tests.chaos.played_cluster import mend_processes
from tests.lab.apache_kafka import ApacheKafka
from tests.lab.apache_kafka_cluster import WAIT_TIMEOUT_S, ApacheKafkaCluster

_SESSION_MS: Final = int(SESSION_S * 1000)
_SETTINGS: Final = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "broker.session.timeout.ms": str(_SESSION_MS),
    "broker.heartbeat.interval.ms": str(_SESSION_MS // 6),
    "replica.lag.time.max.ms": str(int(LAG_TIME_S * 1000)),
    # Files of topics that are made again and again go soon.
    "log.segment.delete.delay.ms": "1000",
    # Members of the newer groups have no say in it.
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}


class _Node:
    """A node whose start waits for no quorum that is not there yet: rows start one after the other."""

    def __init__(self, node: ApacheKafka, nodes: Mapping[int, ApacheKafka], has_quorum: bool) -> None:
        self._node = node
        self._nodes = nodes
        self._has_quorum = has_quorum
        self.stop, self.kill, self.pause, self.resume = node.stop, node.kill, node.pause, node.resume

    @property
    def bootstrap(self) -> str:
        return self._node.bootstrap

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def running(self) -> bool:
        return self._node.running

    def start(self) -> None:
        """Start it, and return when all that run serve, or are too few to."""
        self._node.launch()
        running = [node for node in self._nodes.values() if node.running]
        if self._has_quorum or len(running) > len(self._nodes) // 2:
            for node in running:
                node.wait_until_serving()


class ApacheChaosCluster:
    """An ``ApacheKafkaCluster`` as a ``PlayedCluster``; a context manager. There is no registry to look into, and what
    its nodes complain of is not judged here."""

    def __init__(self, directory: Path, *, controller_apart: bool = False) -> None:
        self.cluster = ApacheKafkaCluster(directory, overrides=_SETTINGS, controller_apart=controller_apart)
        nodes = self.cluster.nodes
        self.brokers = {number: _Node(node, nodes, has_quorum=controller_apart) for number, node in nodes.items()}

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def addresses(self) -> dict[int, str]:
        return {number: node.bootstrap for number, node in self.brokers.items()}

    def leader_of(self, place: Place, partition: int = 0) -> int:
        return self.cluster.wait_for_leader(place.topic, partition)

    def follower_of(self, place: Place, partition: int = 0) -> int:
        leader = self.leader_of(place, partition)
        return min(self.in_sync(place, partition) - {leader})

    def in_sync(self, place: Place, partition: int = 0) -> set[int]:
        return self.cluster.in_sync(place.topic, partition)

    def replicas_of(self, place: Place, partition: int = 0) -> set[int]:
        return set(self.cluster.partitions(place.topic)[partition].replicas)

    def mend(self) -> None:
        mend_processes(self.brokers)

    def wait_in_sync(self, place: Place, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        self.cluster.wait_in_sync(place.topic, timeout_s=timeout_s)

    def note_states(self, place: Place) -> None:
        now = time.monotonic()
        place.history.note(
            *(
                State(
                    begun=now, ended=now, topic=place.topic_id, partition=each.partition, leader=each.leader,
                    epoch=each.leader_epoch, isr=list(each.isr),
                )
                for each in self.cluster.partitions(place.topic)
            )
        )  # fmt: skip

    def note_registrations(self, history: HistoryWriter) -> None:
        pass

    def note_health(self, history: HistoryWriter, phase: str) -> None:
        """Note open files; a heap takes the memory that it may have."""
        now = time.monotonic()
        history.note(
            *(
                Health(
                    begun=now, ended=now, broker=number, phase=phase, open_files=len(os.listdir(f"/proc/{node.pid}/fd"))
                )
                for number, node in self.brokers.items()
            )
        )

    def stop(self) -> None:
        self.cluster.stop_all()

    def note_files(self, history: HistoryWriter, topics: Mapping[str, str]) -> None:
        for number, node in self.cluster.nodes.items():
            history.note(*logs_of(number, node.log_directory, topics))

    def complaints(self) -> list[Complaint | Leftover]:
        return []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.cluster.close)
            self.cluster.start()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()
