"""Partitions that topics are about to get, counted against the broker's descriptors until the registry names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from spark_kafkalite.errors import PolicyViolation
from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.registry.cluster.cluster_state import TopicState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.controller.controller import Extension, TopicSpec


class Coming(NamedTuple):
    """What one topic is to get: it will have ``total`` partitions, ``added`` of them new, and ``own`` of these new ones
    are for this broker."""

    total: int
    added: int
    own: int


class Short(NamedTuple):
    """Why ``more`` partitions cannot be hosted: with so many others, and so many connections."""

    more: int
    hosted: int
    connections: int


class ComingPartitions:
    """Those of all requests that are under way.

    Other brokers' limits are not known here: what a broker cannot open it keeps closed, and its clients receive an
    error.
    """

    def __init__(
        self, broker_id: int, view: ClusterView, descriptors: Descriptors, connections: Callable[[], int]
    ) -> None:
        """``connections`` counts those that are open."""
        self._broker_id = broker_id
        self._view = view
        self._descriptors = descriptors
        self._connections = connections
        self._reserved: dict[object, Mapping[str, Coming]] = {}

    def of_new(self, topic: TopicSpec) -> Coming:
        """Return what a new topic is to get: of an assignment this broker's part, else its share of all."""
        if topic.assignment is None:
            return Coming(topic.size, topic.size, self._share(topic.size, topic.replication_factor))
        own = sum(self._broker_id in replicas for replicas in topic.assignment.values())
        return Coming(topic.size, topic.size, own)

    def of_extension(self, extension: Extension, topic: TopicState) -> Coming:
        """Return what a topic is to get that is extended."""
        added = extension.total - len(topic.partitions)
        if extension.assignment is None:
            replicas = max((len(state.replicas) for state in topic.partitions.values()), default=1)
            return Coming(extension.total, added, self._share(added, replicas))
        own = sum(self._broker_id in replicas for replicas in extension.assignment)
        return Coming(extension.total, added, min(own, added))

    def _share(self, partitions: int, replicas: int) -> int:
        """Return how many of new partitions come to this broker when all get the same, rounded up."""
        brokers = max(len(self._view.state.brokers), 1)
        return partitions if replicas >= brokers else -(-partitions * replicas // brokers)

    @contextlib.contextmanager
    def reserved(self, wanted: Mapping[str, Coming]) -> Iterator[dict[str, Short]]:
        """Count what topics are to get as long as the context lasts; give those that cannot be hosted, which are not.

        Not in slices: no other request may come between the check and the reservation. So no more is done here than to
        add: ten thousand topics take a few milliseconds.
        """
        connections = self._connections()
        room = self._descriptors.room_for_partitions(connections)
        hosted = self._hosted_count()
        short: dict[str, Short] = {}
        for name, (_, _, own) in wanted.items():
            if hosted + own <= room:
                hosted += own
            else:
                short[name] = Short(own, hosted, connections)
        reservation = object()
        self._reserved[reservation] = {name: each for name, each in wanted.items() if name not in short}
        try:
            yield short
        finally:
            del self._reserved[reservation]

    def refusal(self, name: str, short: Short) -> PolicyViolation:
        """Return the error of a topic that cannot be hosted."""
        return PolicyViolation(self._descriptors.why_not_hosted(f"topic {name}", *short))

    def _hosted_count(self) -> int:
        """Return how many partitions this broker hosts, or is about to."""
        me, topics = self._broker_id, self._view.state.topics
        hosted = sum(me in state.replicas for topic in topics.values() for state in topic.partitions.values())
        for coming in self._reserved.values():
            for name, (total, added, own) in coming.items():
                left = total - len(topics[name].partitions) if name in topics else added
                if left > 0:
                    # Some of them the registry may name already, and not which ones these are.
                    hosted += -(-left * own // added)
        return hosted
