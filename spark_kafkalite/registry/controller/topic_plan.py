"""Plans the creation or extension of topics: checks the request, and places the replicas.

Pure but for the place where a new topic begins in the ring of brokers, which is random. In slices: a request may name
ten thousand topics, or as many partitions.
The controller asks here before it writes; a handler may ask it to stop at that (``validate_only``).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_kafkalite.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidTopic,
    KafkaError,
    TopicAlreadyExists,
)
from spark_kafkalite.model import metric_name, topic_name_problem
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.controller import placement
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Work


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create: either counts, or the replicas of each partition. ``config`` is checked by the caller."""

    name: str
    partition_count: int = 1
    replication_factor: int = 1
    assignment: Mapping[int, Sequence[int]] | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many partitions it is to have."""
        return self.partition_count if self.assignment is None else len(self.assignment)


@dataclass(frozen=True, slots=True)
class Extension:
    """A topic to extend to ``total`` partitions; ``assignment`` lists the replicas of the new ones only."""

    name: str
    total: int
    assignment: Sequence[Sequence[int]] | None = None


def planned_topics(topics: Sequence[TopicSpec], state: ClusterState) -> Work[dict[str, TopicAssignment | KafkaError]]:
    """Check topics to create and place their replicas; give each one's assignment, or what is wrong with it.

    Of two that collide the first one is created.
    """
    racks = _racks(state)
    taken: dict[str, str] = {}
    for name in state.topics:
        taken[metric_name(name)] = name
        yield None
    planned: dict[str, TopicAssignment | KafkaError] = {}
    for topic in topics:
        yield None
        try:
            _check_name(topic.name, state, taken)
            planned[topic.name] = TopicAssignment(znodes.new_uuid(), (yield from _placed(topic, racks)))
            taken[metric_name(topic.name)] = topic.name
        except KafkaError as error:
            planned[topic.name] = error
    return planned


def _check_name(name: str, state: ClusterState, taken: Mapping[str, str]) -> None:
    problem = topic_name_problem(name)
    if problem:
        raise InvalidTopic(problem)
    if name in state.topics:
        raise TopicAlreadyExists(f"Topic '{name}' already exists.")
    colliding = taken.get(metric_name(name))
    if colliding is not None:
        raise InvalidTopic(
            f"Topic '{name}' collides with existing topic: {colliding}; '.' and '_' are one character in metric names"
        )


def _placed(topic: TopicSpec, racks: Mapping[int, str | None]) -> Work[placement.Assignment]:
    if topic.assignment is not None:
        return (yield from placement.check_assignment(topic.assignment, racks))
    start = random.randrange(1 << 16)
    return (yield from placement.place_work(topic.partition_count, topic.replication_factor, racks, start=start))


def planned_extension(extension: Extension, old: TopicAssignment, state: ClusterState) -> Work[placement.Assignment]:
    """Return the replicas of the partitions to add."""
    name, total, assignment = extension.name, extension.total, extension.assignment
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
        return (
            yield from placement.place_work(total - count, len(replicas), racks, start=start, first_partition=count)
        )
    if len(assignment) != total - count:
        raise InvalidReplicaAssignment(
            f"Attempted to add {total - count} additional partition(s), but only {len(assignment)} assignment(s) were "
            "specified."
        )
    numbered = dict(enumerate(assignment, start=count))
    return (yield from placement.check_assignment(numbered, racks, first_partition=count))


def _racks(state: ClusterState) -> dict[int, str | None]:
    return {broker_id: broker.rack for broker_id, broker in state.brokers.items()}
