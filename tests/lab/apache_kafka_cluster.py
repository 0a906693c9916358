"""Apache Kafka as a cluster, for tests and benches: several nodes on this machine, each broker and controller (KRaft),
or brokers and a controller of its own, which stays when brokers end.

Each node is a process with a directory of its own; it keeps its ports, so one that was killed comes back under its
address. Where leaders and in-sync replicas are, the nodes that live are asked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.network.metadata import PartitionInfo
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from tests.lab.apache_kafka import ApacheKafka, QuorumMember, kafka_tool, new_cluster_id

WAIT_TIMEOUT_S: Final = 60.0
_POLL_INTERVAL_S: Final = 0.05
# One that is frozen says nothing, and another one is asked.
_REQUEST_TIMEOUT_MS: Final = 2_000
_CALL_TIMEOUT_MS: Final = 10_000
_LEADER_LINE: Final = re.compile(r"^LeaderId:\s+(-?\d+)$", re.MULTILINE)


class ApacheKafkaCluster:
    """Nodes 1 to N of one cluster; a context manager. ``nodes`` has each by its number; ``apart`` is the controller
    that is no broker, if there is one."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        heap_mb: int = 256,
        jvm_options: Sequence[str] = SHORT_LIVED_OPTIONS,
        overrides: Mapping[str, str] | None = None,
        controller_apart: bool = False,
    ) -> None:
        """Prepare a cluster; ``start()`` or ``with`` starts it.

        ``overrides`` are lines of every node's server.properties; heap and JVM options are those of each node, as
        ``ApacheKafka`` has them. With ``controller_apart`` one more node is the only controller.
        """
        numbers = range(1, size + 1)
        controllers = [size + 1] if controller_apart else numbers
        # In one call, which gives none twice.
        ports = free_ports(size + len(controllers))
        serving = dict(zip(numbers, ports[:size], strict=True))
        controlling = dict(zip(controllers, ports[size:], strict=True))
        voters = {number: f"127.0.0.1:{port}" for number, port in controlling.items()}
        cluster_id = new_cluster_id()

        def node(number: int) -> ApacheKafka:
            listens = {"PLAINTEXT": serving.get(number), "CONTROLLER": controlling.get(number)}
            return ApacheKafka(
                directory / f"node-{number}",
                heap_mb=heap_mb,
                jvm_options=jvm_options,
                overrides=overrides,
                membership=QuorumMember(
                    number, cluster_id, {name: port for name, port in listens.items() if port}, voters, size
                ),
            )

        self.nodes = {number: node(number) for number in numbers}
        self.apart = node(size + 1) if controller_apart else None
        self._admin: Admin | None = None

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> Self:
        """Start the nodes that do not run, all at once: one serves when most of them run.

        Raises ChildFailed, after killing all, when one of them does not start.
        """
        away = [node for node in self._all() if not node.running]
        with ThreadPoolExecutor(len(away) or 1) as starters:
            try:
                for _ in starters.map(ApacheKafka.start, away):
                    pass
            except BaseException:
                self.close()
                raise
        return self

    def stop_all(self) -> None:
        """Stop all nodes in order and at once: the last ones would wait for a quorum that has gone."""
        self._close_admin()
        with ThreadPoolExecutor(len(self.nodes)) as stoppers:
            for _ in stoppers.map(ApacheKafka.stop, self.nodes.values()):
                pass
        if self.apart is not None:
            # Without it the others could not say that they go.
            self.apart.stop()

    def close(self) -> None:
        """Kill all nodes, wherever they are."""
        self._close_admin()
        for node in self._all():
            node.kill()

    def _all(self) -> list[ApacheKafka]:
        return [*self.nodes.values(), *([] if self.apart is None else [self.apart])]

    def controller(self) -> int | None:
        """Return the node that leads the controllers' quorum, None while none does. It takes a tool's start."""
        done = kafka_tool(
            "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", self.bootstrap, "describe", "--status"
        )
        found = _LEADER_LINE.search(done.stdout)
        return None if found is None or int(found.group(1)) < 0 else int(found.group(1))

    def partitions(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return a topic's partitions by the cluster's metadata. Raises KafkaliteError when no node answers."""
        if self._admin is None:
            self._admin = Admin(
                bootstrap_servers=self.bootstrap,
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
                default_api_timeout_ms=_CALL_TIMEOUT_MS,
                reconnect_backoff_max_ms=200,
            )
        return self._admin.describe_topics([topic])[topic].partitions

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Return the replicas of a partition that are in sync. Raises KafkaliteError when no node answers."""
        return set(self.partitions(topic)[partition].isr)

    def wait_for_leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> int:
        """Wait until a node that runs, and not ``other_than``, leads a partition, and return its number.

        Raises ChildFailed when that takes longer than ``timeout_s``.
        """
        leaders: list[int] = []

        def missing() -> str:
            leader = self.partitions(topic)[partition].leader
            leaders.append(leader)
            is_wanted = leader in self.nodes and leader != other_than and self.nodes[leader].running
            return "" if is_wanted else f"{topic}-{partition} is led by {leader}"

        self._wait_until_nothing(missing, timeout_s)
        return leaders[-1]

    def wait_in_sync(self, *topics: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until every partition of these topics is led and has all replicas in sync, on nodes that run.

        Raises ChildFailed, naming a partition, after ``timeout_s``.
        """

        def missing() -> str:
            for topic in topics:
                for each in self.partitions(topic):
                    live = {number for number in each.isr if self.nodes[number].running}
                    if each.leader not in live or live != set(each.replicas):
                        return f"{topic}-{each.partition} is led by {each.leader}, live and in sync are {sorted(live)}"
            return ""

        self._wait_until_nothing(missing, timeout_s)

    def _wait_until_nothing(self, missing: Callable[[], str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                why = missing()
            except KafkaliteError as error:
                why = f"no node answers: {error}"
            if not why:
                return
            if time.monotonic() > deadline:
                raise ChildFailed(f"after {timeout_s} s: {why}")
            time.sleep(_POLL_INTERVAL_S)

    def _close_admin(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop_all()
