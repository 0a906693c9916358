"""What the registry of a simulated cluster has, as brokers would read it at this moment."""

from __future__ import annotations

from typing import NamedTuple

from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.registry.znodes import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.simulator.registry import SimulatedRegistry, SimulatedStore


class RegisteredState(NamedTuple):
    """A partition's state node, and when it and the topic node, which has the replicas, were written."""

    topic_partition: TopicPartition
    topic_id: bytes
    replicas: tuple[int, ...]
    node: LeaderAndIsr
    zxid: int
    replicas_zxid: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def targets(self) -> tuple[int, ...]:
        """The replicas that stay when a reassignment ends."""
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def may_lead(self) -> dict[BrokerId, Incarnation]:
        """The replicas that may be elected, with the incarnations that the state names."""
        named = {**self.node.eligible, **self.node.incarnations}
        return {broker: which for broker, which in named.items() if broker in self.replicas}


class Registered:
    """See the module's text. What has not changed since the last look is not decoded again."""

    def __init__(self, registry: SimulatedRegistry) -> None:
        self._registry = registry
        self._seen_zxid = -1
        self._states: dict[TopicPartition, RegisteredState] = {}
        self._brokers: dict[int, BrokerInfo] = {}

    def _look(self) -> None:
        if self._seen_zxid == self._registry.zxid:
            return
        self._seen_zxid = self._registry.zxid
        before, self._states, self._brokers = self._states, {}, {}
        for path, node in self._registry.tree.nodes.items():
            parts = path.split("/")
            if path.endswith("/state"):
                where = TopicPartition(parts[3], int(parts[5]))
                known, topic = before.get(where), self._registry.tree.nodes["/".join(parts[:4])]
                if known is None or (known.zxid, known.replicas_zxid) != (node.mzxid, topic.mzxid):
                    assigned = TopicAssignment.decode(parts[3], topic.data)
                    known = RegisteredState(
                        where,
                        assigned.topic_id,
                        tuple(assigned.partitions[where.partition]),
                        LeaderAndIsr.decode(*where, node.data),
                        node.mzxid,
                        topic.mzxid,
                        tuple(assigned.adding.get(where.partition, ())),
                        tuple(assigned.removing.get(where.partition, ())),
                    )
                self._states[where] = known
            elif path.startswith(znodes.BROKER_IDS + "/"):
                registration = BrokerRegistration.decode(int(parts[3]), node.data)
                self._brokers[int(parts[3])] = BrokerInfo.of(registration, BrokerEpoch(node.czxid))

    @property
    def without_state(self) -> list[TopicPartition]:
        """The partitions that a topic node names and that have no state node."""
        nodes, states = self._registry.tree.nodes, self.states
        topics = [path for path in nodes if path.startswith(f"{znodes.TOPICS}/") and path.count("/") == 3]
        named = (
            TopicPartition(path.rpartition("/")[2], number)
            for path in topics
            for number in TopicAssignment.decode(path.rpartition("/")[2], nodes[path].data).partitions
        )
        return [each for each in named if each not in states]

    def forget(self) -> None:
        """Look at everything again: what has been put back has numbers that other things had before."""
        self._seen_zxid = -1
        self._states.clear()

    @property
    def zxid(self) -> int:
        """The last transaction."""
        return self._registry.zxid

    @property
    def states(self) -> dict[TopicPartition, RegisteredState]:
        """Every partition's state."""
        self._look()
        return self._states

    @property
    def brokers(self) -> dict[int, BrokerInfo]:
        """The registered brokers."""
        self._look()
        return self._brokers

    def has_log_of(self, broker: int, run: Incarnation, named: Incarnation) -> bool:
        """Whether a run of a broker is, or has proven to have the log of, the incarnation that a state names.

        Rules R11 and R12, judged without the brokers' own code.
        """
        info = self.brokers.get(broker)
        return named == run or (info is not None and info.incarnation == run and named in info.steady)

    @property
    def controller(self) -> SimulatedStore | None:
        """The session that has the controller's role; None: nobody has it, or a process that has ended."""
        node = self._registry.tree.nodes.get(znodes.CONTROLLER)
        owner = 0 if node is None else node.ephemeral_owner
        return next((each for each in self._registry.stores if each.session_id == owner and each.loop.is_alive), None)

    @property
    def has_controller(self) -> bool:
        """Whether some session has the controller's role."""
        return znodes.CONTROLLER in self._registry.tree.nodes

    @property
    def candidates(self) -> list[SimulatedStore]:
        """The sessions of registered brokers."""
        paths = {znodes.broker_path(broker) for broker in self.brokers}
        owners = {self._registry.tree.nodes[path].ephemeral_owner for path in paths}
        return [each for each in self._registry.stores if each.session_id in owners]
