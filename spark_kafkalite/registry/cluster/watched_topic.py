"""A topic while its nodes are read, and what is published of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import PartitionState, TopicState
from spark_kafkalite.registry.store import Stat


@dataclass(slots=True)
class WatchedTopic:
    """A topic while it is read. ``generation`` is the node's czxid."""

    generation: int
    assignment: znodes.TopicAssignment
    assignment_zxid: int
    config: dict[str, str] | None = None
    config_zxid: int = -1
    # None: the node cannot be read.
    states: dict[int, tuple[znodes.LeaderAndIsr | None, Stat]] = field(default_factory=dict)
    # What the nodes held that are gone.
    former: dict[int, znodes.LeaderAndIsr] = field(default_factory=dict)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    changed_partitions: set[int] = field(default_factory=set)
    published: TopicState | None = None
    # Partitions whose states have not been read yet since the topic was seen first.
    unread: set[int] = field(default_factory=set)
    # Whether the next reading of the topic's node is followed by one of everything else.
    is_read_again: bool = False

    @property
    def is_read(self) -> bool:
        """Whether all of it has been read once: before that it is not published, partition by partition."""
        return self.config is not None and not self.unread

    def publish(self) -> TopicState | None:
        """Return the topic for the snapshot, None while it has not been read."""
        if self.config is None or self.unread:
            return None
        if self.changed_partitions or self.published is None or len(self.partitions) != len(self.assignment.partitions):
            assigned = self.assignment.partitions
            partitions = self.partitions.copy() if self.partitions.keys() <= assigned.keys() else {}
            # The numbers of partitions only grow, so that new ones keep the order.
            for number in sorted(self.changed_partitions) if partitions else assigned:
                if number in assigned:
                    partitions[number] = self._partition_state(number)
            self.partitions = partitions
            self.changed_partitions.clear()
        moving = frozenset(
            number
            for moves in (self.assignment.adding, self.assignment.removing)
            for number, replicas in moves.items()
            if replicas and number in self.partitions
        )
        self.published = TopicState(
            self.assignment.topic_id, MappingProxyType(self.partitions), MappingProxyType(self.config), moving
        )
        return self.published

    def _partition_state(self, number: int) -> PartitionState:
        replicas, found = self.assignment.partitions[number], self.states.get(number)
        adding, removing = self.assignment.adding.get(number, ()), self.assignment.removing.get(number, ())
        if found is None:
            former = self.former.get(number)
            return PartitionState.without_node(replicas, self.assignment_zxid, former, adding, removing)
        state, stat = found
        if state is None:
            return PartitionState(
                replicas,
                version=stat.version,
                modified_zxid=stat.mzxid,
                unreadable=True,
                created_zxid=stat.czxid,
                replicas_zxid=self.assignment_zxid,
                adding=adding,
                removing=removing,
            )
        return PartitionState.of(replicas, state, stat, self.assignment_zxid, adding, removing)

    def forget_state(self, number: int) -> bool:
        """Note that a partition's state node is gone; return whether it was known."""
        gone = self.states.pop(number, None)
        if gone is None:
            return False
        if gone[0] is not None:
            self.former[number] = gone[0]
        self.changed_partitions.add(number)
        return True
