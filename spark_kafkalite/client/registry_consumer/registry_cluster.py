"""The cluster as the registry shows it: brokers from /brokers/ids, leaders from /brokers/topics.

Everything else is the :class:`.cluster.ClusterClient` of our other clients, which asks brokers for the same. Metadata
is read when somebody reports it stale; nothing is watched here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar

from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.registry_consumer.registry_link import RegistryLink
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import BrokerUnreachable, RegistryError, UnknownTopicOrPartition
from spark_kafkalite.model import INTERNAL_TOPICS
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Stat, Store
from spark_kafkalite.registry.znodes import BrokerRegistration, LeaderAndIsr, TopicAssignment
from spark_kafkalite.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_LOG = logging.getLogger(__name__)
_LEADER_NOT_AVAILABLE: Final = 5

T = TypeVar("T")
_Node = Future[tuple[bytes, Stat]]


class RegistryCluster(ClusterClient):
    """Metadata from the registry, requests to brokers."""

    def __init__(self, config: ClientConfig, link: RegistryLink, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, clock)
        self._link = link

    def _ask(self, asked: set[str] | None, deadline: Deadline, allow_auto_create: bool) -> MetadataResponse:
        """Read the registry. Raises BrokerUnreachable when it cannot be read now."""
        try:
            return self._read(asked, deadline)
        except RegistryError as error:
            raise BrokerUnreachable(f"brokers and leaders cannot be looked up in the registry: {error}") from error

    def _read(self, asked: set[str] | None, deadline: Deadline) -> MetadataResponse:
        link, store = self._link, self._link.store
        broker_ids = [
            broker_id
            for name in link.children(store, znodes.BROKER_IDS, deadline=deadline)
            if (broker_id := znodes.broker_id_of(name)) is not None
        ]
        names = sorted(link.children(store, znodes.TOPICS, deadline=deadline) if asked is None else asked)
        brokers: list[_Node] = [store.get(znodes.broker_path(each)) for each in broker_ids]
        topics: list[_Node] = [store.get(znodes.topic_path(each)) for each in names]
        found_brokers = link.wait_found(brokers, deadline)
        found_topics = link.wait_found(topics, deadline)
        registered = []
        for broker_id, node in zip(broker_ids, found_brokers, strict=True):
            broker = _decoded(partial(BrokerRegistration.decode, broker_id), node)
            if broker is not None:
                registered.append(
                    MetadataResponseBroker(node_id=broker_id, host=broker.host, port=broker.port, rack=broker.rack)
                )
        assignments = {
            name: _decoded(partial(TopicAssignment.decode, name), node)
            for name, node in zip(names, found_topics, strict=True)
        }
        states = self._leaders(store, {name: each for name, each in assignments.items() if each}, deadline)
        return MetadataResponse(
            brokers=registered,
            topics=[
                MetadataResponseTopic(
                    error_code=UnknownTopicOrPartition.code if found is None else 0,
                    name=name,
                    topic_id=bytes(16) if found is None else found.topic_id,
                    is_internal=name in INTERNAL_TOPICS,
                    partitions=states.get(name, []),
                )
                for name, found in assignments.items()
            ],
        )

    def _leaders(
        self, store: Store, assignments: dict[str, TopicAssignment], deadline: Deadline
    ) -> dict[str, list[MetadataResponsePartition]]:
        wanted = [(topic, number) for topic, found in assignments.items() for number in found.partitions]
        nodes = self._link.wait_found([store.get(znodes.state_path(*each)) for each in wanted], deadline)
        states: dict[str, list[MetadataResponsePartition]] = {}
        for (topic, number), node in zip(wanted, nodes, strict=True):
            state = _decoded(partial(LeaderAndIsr.decode, topic, number), node)
            led = state is not None and state.leader >= 0
            states.setdefault(topic, []).append(
                MetadataResponsePartition(
                    error_code=0 if led else _LEADER_NOT_AVAILABLE,
                    partition_index=number,
                    leader_id=-1 if state is None else state.leader,
                    leader_epoch=-1 if state is None else state.leader_epoch,
                    replica_nodes=list(assignments[topic].partitions[number]),
                    isr_nodes=[] if state is None else list(state.isr),
                )
            )
        return states


def _decoded(decode: Callable[[bytes], T], node: tuple[bytes, Stat] | None) -> T | None:
    """Return what a node says; None when it does not exist, or says nothing that can be read, which others survive."""
    try:
        return None if node is None else decode(node[0])
    except znodes.MalformedNode as malformed:
        _LOG.warning("leaving a registry node out: %s", malformed)
        return None
