"""A topic while its nodes are read, and what is published of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import PartitionState, TopicState
from spark_kafkalite.registry.store import Stat


@dataclass(slots=True)
class WatchedTopic:
    """A topic while it is read. ``published`` is made again when ``changed``; ``generation`` is the node's czxid."""

    generation: int
    assignment: znodes.TopicAssignment
    assignment_zxid: int
    config: dict[str, str] | None = None
    config_zxid: int = -1
    # None: the node cannot be read.
    states: dict[int, tuple[znodes.LeaderAndIsr | None, Stat]] = field(default_factory=dict)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    changed_partitions: set[int] = field(default_factory=set)
    published: TopicState | None = None

    def publish(self) -> TopicState | None:
        """Return the topic for the snapshot, None while its config has not been read."""
        if self.config is None:
            return None
        if self.changed_partitions or self.published is None or len(self.partitions) != len(self.assignment.partitions):
            assigned = self.assignment.partitions
            partitions = self.partitions.copy() if self.partitions.keys() <= assigned.keys() else {}
            # The numbers of partitions only grow, so that new ones keep the order.
            for number in sorted(self.changed_partitions) if partitions else assigned:
                if number in assigned:
                    partitions[number] = _partition_state(assigned[number], self.states.get(number))
            self.partitions = partitions
            self.changed_partitions.clear()
        self.published = TopicState(
            self.assignment.topic_id, MappingProxyType(self.partitions), MappingProxyType(self.config)
        )
        return self.published


def _partition_state(
    replicas: tuple[BrokerId, ...], found: tuple[znodes.LeaderAndIsr | None, Stat] | None
) -> PartitionState:
    if found is None:
        return PartitionState(replicas)
    state, stat = found
    if state is None:
        return PartitionState(replicas, version=stat.version, modified_zxid=stat.mzxid, unreadable=True)
    return PartitionState.of(replicas, state, stat)
