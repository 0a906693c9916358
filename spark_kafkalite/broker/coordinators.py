"""The coordinators of this broker, one for each kind of key that clients ask a coordinator for.

Each kind has an internal topic, whose partitions divide its keys among the brokers, and the shards of those partitions
that this broker leads. A partition reports its role, and the kind whose topic it belongs to loads or discards the
partition's shard. What a kind answers its clients is its own object's (``BrokerContext.groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.coordination import Coordination
from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.shard import State
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.coordinator.state_machine import OpenKeys


@dataclass(frozen=True, slots=True)
class Coordinator(Generic[State]):
    """One kind: its topic, what this broker coordinates of it, and whether it may answer."""

    host: InternalTopicHost
    shards: Shards[State]
    coordination: Coordination


class Coordinators:
    """All kinds, by the type of their keys."""

    def __init__(self, lease: RegistryLease, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        self._by_type: dict[int, Coordinator[Any]] = {}
        self._by_topic: dict[str, Coordinator[Any]] = {}

    def add(self, key_type: int, host: InternalTopicHost, new_state: Callable[[OpenKeys], State]) -> Coordinator[State]:
        """Coordinate keys of this type too. ``new_state`` makes a shard's state, as :class:`Shards` takes it."""
        if key_type in self._by_type or host.topic.name in self._by_topic:
            raise ValueError(f"key type {key_type} and topic {host.topic.name} have one coordinator each")
        shards = Shards(host, new_state, self._clock)
        coordinator = Coordinator(host, shards, Coordination(self._lease, host, self._clock))
        self._by_type[key_type] = self._by_topic[host.topic.name] = coordinator
        return coordinator

    def __getitem__(self, key_type: int) -> Coordinator[Any]:
        return self._by_type[key_type]

    def get(self, key_type: int) -> Coordinator[Any] | None:
        """Return the coordinator of a type that a client names, None for a type without one."""
        return self._by_type.get(key_type)

    def __iter__(self) -> Iterator[Coordinator[Any]]:
        return iter(self._by_type.values())

    def role_changed(self, partition: Partition) -> None:
        """Load or discard a partition's shard, if it is a partition of one of the topics."""
        topic, number = partition.topic_partition
        coordinator = self._by_topic.get(topic)
        if coordinator is None:
            return
        if partition.is_leader:
            coordinator.shards.lead(number, partition.leader_epoch)
        else:
            coordinator.shards.resign(number)

    def close(self) -> None:
        """Resign everything, because the broker stops."""
        for coordinator in self:
            coordinator.shards.close()
