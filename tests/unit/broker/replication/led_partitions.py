"""Partitions that broker 1 leads, and a registry with their nodes: a real tree, whose answers a test can lose."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import BrokerId, Incarnation, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState, TopicState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    Create,
    Get,
    Multi,
    Operation,
    Request,
    SessionExpired,
    SetData,
    Store,
    Sync,
)
from spark_kafkalite.registry.tree.tree import Tree
from spark_kafkalite.registry.znodes import LeaderAndIsr
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop
from tests.lab.partition_states import live_broker, partition_state
from tests.unit.broker.replication.test_partition import Harness

TOPIC_ID = b"i" * 16


class TreeStore(Store):
    """One session with a tree, which answers at once. ``faults``: what becomes of the next writes."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree()
        self.tree.open_session(1)
        self.zxid = 0
        # "lost": done, and the answer lost; "dropped": not done. Anything else is raised by the request.
        self.faults: deque[str | BaseException] = deque()
        self.writes = 0

    @property
    def session_id(self) -> int:
        return 1

    @property
    def session_timeout_ms(self) -> int:
        return 6000

    def close(self) -> None: ...

    def ask(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        fault = None
        if isinstance(request, Multi):
            self.writes += 1
            fault = self.faults.popleft() if self.faults else None
        try:
            if isinstance(fault, BaseException):
                raise fault
            result = None if fault == "dropped" else self._do(request)
            if fault is not None:
                raise ConnectionLoss("the connection broke before the answer came")
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)
        return future

    def _do(self, request: Request) -> Any:
        match request:
            case Sync():
                return None
            case Get(path, _):
                return self.tree.get(path, 1, None)
            case Multi(operations):
                return self.write(*operations)
        raise AssertionError(f"nobody asks for {request}")

    def write(self, *operations: Operation) -> list[Any]:
        self.zxid += 1
        results = self.tree.apply(operations, 1, self.zxid, 0)
        self.tree.settle()
        return results


class Hosted:
    """What is asked of ``Replicas``."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.lost: set[TopicPartition] = set()
        self.taken_up: list[TopicPartition] = []
        # Those that were held, and whether their ISR has been left when they were released.
        self.held: list[Partition] = []
        self.released: list[tuple[Partition, bool]] = []

    def has_lost(self, topic_partition: TopicPartition, _: bytes) -> bool:
        return topic_partition in self.lost

    def take_up(self, topic_partition: TopicPartition) -> None:
        self.taken_up.append(topic_partition)

    def hold(self, partition: Partition) -> None:
        self.held.append(partition)

    def release(self, partition: Partition, *, is_left: bool) -> None:
        self.released.append((partition, is_left))

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        return self.partitions.get(topic_partition)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions.values())


class LedPartitions:
    """See the module's text; time is the loop's, which jumps."""

    def __init__(self, count: int = 1, *isr: int, **settings: object) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.harness = Harness(self.loop)
        self.registry = TreeStore()
        self.has_session = True
        # Of the topic that the registry has now.
        self.topic_id = TOPIC_ID
        self.hosted = Hosted()
        self.view = ClusterView()
        self.live: dict[int, BrokerInfo] = {each: live_broker(each) for each in (1, 2, 3)}
        self.harness.services.live_brokers = lambda: self.view.state.brokers
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        guard = znodes.topic_guard_path(TOPIC_ID)
        for path in ("/kafkalite", znodes.TOPIC_GUARDS, guard, "/brokers", znodes.TOPICS, znodes.topic_path("t")):
            self.registry.write(Create(path))
        self.registry.write(Create(znodes.partitions_path("t")))
        fs = self.harness.fs
        fs.make_directories("/logs")
        fs.sync_directory("/")
        host = LogHost.alone(OpenFiles(fs), "/logs", self.clock)
        for number in range(count):
            key = TopicPartition("t", number)
            state = encoded(partition_state(*isr))
            self.registry.write(Create(znodes.partition_path(*key)))
            self.registry.write(Create(znodes.state_path(*key), state))
            log = PartitionLog.create(host, f"/logs/t-{number}", key, TOPIC_ID, config)
            log.readiness.prepare()
            self.hosted.partitions[key] = Partition(key, TOPIC_ID, log, self.harness.services)
        self.publish()

    def store(self) -> Store:
        if not self.has_session:
            raise SessionExpired("no session")
        return self.registry

    def partition(self, number: int = 0) -> Partition:
        return self.hosted.partitions[TopicPartition("t", number)]

    def node(self, number: int = 0) -> PartitionState:
        """Return what the registry has."""
        data, stat = self.registry.tree.get(znodes.state_path("t", number), 1, None)
        node = LeaderAndIsr.decode("t", number, data)
        return partition_state(
            *node.isr,
            leader=node.leader,
            epoch=node.leader_epoch,
            version=stat.version,
            incarnations=dict(node.incarnations),
            eligible=dict(node.eligible),
        )

    def set_node(self, state: PartitionState, number: int = 0) -> None:
        """Write a state as somebody else does."""
        self.registry.write(SetData(znodes.state_path("t", number), encoded(state)))

    def publish(self) -> None:
        """Have the broker see what the registry has, and obey."""
        states = {key.partition: self.node(key.partition) for key in self.hosted.partitions}
        topic = TopicState(self.topic_id, MappingProxyType(states), MappingProxyType({}))
        new = ClusterState("id", dict(self.live), {"t": topic})
        self.view.publish(new, diff(self.view.state, new))
        for key, partition in self.hosted.partitions.items():
            state = states[key.partition]
            if state.is_led_by(live_broker(1)):
                partition.become_leader(state)
            elif state.leader != 1:
                partition.resign(state.leader, state.leader_epoch, state.version)

    def publish_brokers(self) -> None:
        """Have the broker see who is registered, and nothing else that is new."""
        old = self.view.state
        new = ClusterState("id", dict(self.live), old.topics)
        self.view.publish(new, diff(old, new))

    def fetch(self, follower: int, offset: int, number: int = 0) -> None:
        """Have a follower fetch under its usual incarnation."""
        leader = self.partition(number).check_leader()
        leader.follower_fetched(follower, Incarnation(follower * 10), offset)

    def run(self, seconds: float = 0.05) -> None:
        self.loop.run_for(seconds)


def encoded(state: PartitionState) -> bytes:
    return LeaderAndIsr(
        BrokerId(state.leader),
        state.leader_epoch,
        state.isr,
        state.controller_epoch,
        state.incarnations,
        state.eligible,
    ).encode()
