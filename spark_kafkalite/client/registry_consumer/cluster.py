"""The cluster as the registry shows it: brokers from /brokers/ids, leaders from /brokers/topics.

Everything else is the :class:`.cluster.ClusterClient` of our other clients, which asks brokers for the same. Metadata
is read when a caller reports it stale; nothing is watched here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from spark_kafkalite.client.client_config import ClientConfig
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import BrokerUnreachable, RegistryError, UnknownTopicOrPartition
from spark_kafkalite.model import INTERNAL_TOPICS
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.node_json import MalformedNode
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


class RegistryCluster(ClusterClient):
    """Metadata from the registry, requests to brokers."""

    def __init__(self, config: ClientConfig, link: RegistryLink, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, clock)
        self._link = link
        # Brokers that were warned of.
        self._without_listener: set[int] = set()

    def request_any(self, api_key: int, message: Any, deadline: Deadline) -> Any:
        """As any client's. There is no address to begin with: the first brokers are those that the registry names."""
        if not self.snapshot.nodes:
            self.refresh([], deadline)
        return super().request_any(api_key, message, deadline)

    def _ask(self, asked: set[str] | None, deadline: Deadline, allow_auto_create: bool) -> MetadataResponse:
        """Read the registry. Raises BrokerUnreachable when it cannot be read now."""
        try:
            return self._read(asked, deadline)
        except RegistryError as error:
            raise BrokerUnreachable(f"brokers and leaders cannot be looked up in the registry: {error}") from error

    def _read(self, asked: set[str] | None, deadline: Deadline) -> MetadataResponse:
        link, store = self._link, self._link.store
        registered = live_brokers(link, deadline)
        names = sorted(link.children(store, znodes.TOPICS, deadline=deadline) if asked is None else asked)
        found_topics = link.wait_found([store.get(znodes.topic_path(each)) for each in names], deadline)
        assignments = {
            name: _decoded(partial(TopicAssignment.decode, name), node)
            for name, node in zip(names, found_topics, strict=True)
        }
        states = self._leaders(store, {name: each for name, each in assignments.items() if each}, deadline)
        return MetadataResponse(
            brokers=self._addresses(registered),
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

    def _addresses(self, registered: dict[int, BrokerRegistration]) -> list[MetadataResponseBroker]:
        """Return where brokers are reached in our security protocol; those that are not are left out."""
        protocol = self.config.security.protocol.value
        brokers = []
        for broker_id, each in registered.items():
            address = each.address(protocol)
            if address is not None:
                brokers.append(
                    MetadataResponseBroker(node_id=broker_id, host=address[0], port=address[1], rack=each.rack)
                )
            elif broker_id not in self._without_listener:
                self._without_listener.add(broker_id)
                _LOG.warning(
                    "broker %d has no listener with security.protocol=%s; its listeners are %s",
                    broker_id,
                    protocol,
                    ", ".join(each.endpoints) or f"PLAINTEXT://{each.host}:{each.port}",
                )
        return brokers

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


def live_brokers(link: RegistryLink, deadline: Deadline | None = None) -> dict[int, BrokerRegistration]:
    """Return the live brokers as they registered, by id; one whose node cannot be read is left out."""
    session = link.session(deadline)
    broker_ids = [
        broker_id
        for name in link.names(session.children(znodes.BROKER_IDS), deadline)
        if (broker_id := znodes.broker_id_of(name)) is not None
    ]
    nodes = link.wait_found([session.get(znodes.broker_path(each)) for each in broker_ids], deadline)
    return {
        broker_id: broker
        for broker_id, node in zip(broker_ids, nodes, strict=True)
        if (broker := _decoded(partial(BrokerRegistration.decode, broker_id), node)) is not None
    }


def _decoded(decode: Callable[[bytes], T], node: tuple[bytes, Stat] | None) -> T | None:
    """Return a node's decoded content; None when it does not exist, or cannot be read, so that one bad node does no
    harm."""
    try:
        return None if node is None else decode(node[0])
    except MalformedNode as malformed:
        _LOG.warning("leaving a registry node out: %s", malformed)
        return None
