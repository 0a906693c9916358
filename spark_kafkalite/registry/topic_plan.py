"""What creating or extending a topic comes to: checks of the request, and the replicas of its partitions.

Pure but for the place where a new topic begins in the ring of brokers, which is random.
The controller asks here before it writes; a handler may ask it to stop at that (``validate_only``).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_kafkalite.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidTopic, TopicAlreadyExists
from spark_kafkalite.model import colliding_topic, topic_name_problem
from spark_kafkalite.registry import placement, znodes
from spark_kafkalite.registry.cluster_state import ClusterState
from spark_kafkalite.registry.znodes import TopicAssignment


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create: either counts, or the replicas of each partition. ``config`` is checked by the caller."""

    name: str
    partition_count: int = 1
    replication_factor: int = 1
    assignment: Mapping[int, Sequence[int]] | None = None
    config: Mapping[str, str] = field(default_factory=dict)


def planned_topic(topic: NewTopic, state: ClusterState) -> TopicAssignment:
    """Check a topic to create and place its replicas."""
    problem = topic_name_problem(topic.name)
    if problem:
        raise InvalidTopic(problem)
    if topic.name in state.topics:
        raise TopicAlreadyExists(f"Topic '{topic.name}' already exists.")
    colliding = colliding_topic(topic.name, state.topics)
    if colliding:
        raise InvalidTopic(
            f"Topic '{topic.name}' collides with existing topic: {colliding}; '.' and '_' are one character in metric "
            "names"
        )
    racks = _racks(state)
    if topic.assignment is not None:
        partitions = placement.check_assignment(topic.assignment, racks)
    else:
        partitions = placement.place(
            topic.partition_count, topic.replication_factor, racks, start=random.randrange(1 << 16)
        )
    return TopicAssignment(znodes.new_uuid(), partitions)


def planned_extension(
    name: str,
    old: TopicAssignment,
    total: int,
    assignment: Sequence[Sequence[int]] | None,
    state: ClusterState,
) -> placement.Assignment:
    """Return the replicas of the partitions to add."""
    count, racks = len(old.partitions), _racks(state)
    if total <= count:
        raise InvalidPartitions(
            f"Topic already has {count} partition(s)."
            if total == count
            else f"The topic {name} currently has {count} partition(s); {total} would not be an increase."
        )
    if assignment is None:
        replicas = old.partitions[0]
        start = placement.start_after(replicas, racks)
        return placement.place(total - count, len(replicas), racks, start=start, first_partition=count)
    if len(assignment) != total - count:
        raise InvalidReplicaAssignment(
            f"Attempted to add {total - count} additional partition(s), but only {len(assignment)} assignment(s) were "
            "specified."
        )
    return placement.check_assignment(dict(enumerate(assignment, start=count)), racks, first_partition=count)


def _racks(state: ClusterState) -> dict[int, str | None]:
    return {broker_id: broker.rack for broker_id, broker in state.brokers.items()}
