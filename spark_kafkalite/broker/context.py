"""The parts of the broker that request handlers work with; no sockets among them.

A broker has one such object, which ``start.py`` makes. Handlers read the cluster through
:attr:`BrokerContext.cluster`, an immutable snapshot that is replaced whenever the registry changes; two reads around an
``await`` may see two snapshots.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from spark_kafkalite.broker.authentication.authentication import Authentication
from spark_kafkalite.broker.authentication.scram_users import ScramUsers
from spark_kafkalite.broker.authorization.acl_changes import AclChanges
from spark_kafkalite.broker.coordinators import Coordinators
from spark_kafkalite.broker.metrics.meters import Meters
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.quotas.changes import QuotaChanges
from spark_kafkalite.broker.quotas.quotas import Quotas
from spark_kafkalite.broker.recovery_answer import RecoveryAnswer
from spark_kafkalite.broker.replication.comparison import Comparison
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.fetch_sessions import FetchSessions
from spark_kafkalite.broker.requests.gate import Gate
from spark_kafkalite.broker.requests.topics import TopicAdmin
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.config_changes import ConfigChanges
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.topic_overrides import TopicSettings
from spark_kafkalite.broker.upkeep.retention import Retention
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.groups_state import GroupShards, GroupsState
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.internal_topic import GROUPS
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.cluster.producer_ids import ProducerIdManager
from spark_kafkalite.slices import Slices, Work

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """The parts of a running broker. ``listeners`` are the bound ones, by name."""

    settings: DynamicConfig
    config_changes: ConfigChanges
    quotas: Quotas
    quota_changes: QuotaChanges
    clock: Clock
    loop: asyncio.AbstractEventLoop
    purgatory: Purgatory
    slices: Slices
    io: IoThreads
    memory: RequestMemory
    logs: LogManager
    replicas: Replicas
    membership: ClusterMembership
    view: ClusterView
    topic_settings: TopicSettings
    topics: TopicAdmin
    retention: Retention
    coordinators: Coordinators
    groups: GroupCoordinator
    lease: RegistryLease
    listeners: dict[str, Listener]
    inner_wire: InnerWire
    peers: Peers
    gate: Gate
    users: ScramUsers
    authentication: Authentication
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    # None in a broker on its own, which follows nobody.
    comparison: Comparison | None = None
    # None in a broker with a registry of its own.
    recovery_answer: RecoveryAnswer | None = None
    # None in a broker without an authorizer.
    acls: AclChanges | None = None
    # None in a broker that serves no metrics.
    meters: Meters | None = None

    @property
    def config(self) -> BrokerConfig:
        """This broker's settings in force."""
        return self.settings.current

    @property
    def cluster(self) -> ClusterState:
        """The cluster as the registry last reported it."""
        return self.view.state

    @property
    def producer_ids(self) -> ProducerIdManager:
        """The present registry session's supply. Raises SessionExpired while there is no session."""
        return self.membership.session.producer_ids

    def not_coordinating(self) -> BrokerContext:
        """Return the same for a broker that coordinates no group: its handlers answer that in their APIs' own ways."""
        none: GroupShards = Shards(self.coordinators[GROUPS].host, partial(GroupsState, GroupLimits()), self.clock)
        return replace(self, groups=GroupCoordinator(none, self.clock, 0))

    async def work(self, exchange: Exchange, work: Work[T]) -> T:
        """Return the result of a coroutine handler's work, done in slices, and inside the gate if it is long."""
        work = exchange.counted(work)
        return await self.slices.run(work if exchange.is_inside else self.gate.when_long(work))

    def address_of(self, broker: BrokerInfo, session: Session) -> tuple[str, int] | None:
        """Return the host and port under which the client of ``session`` reaches a broker, None when it does not.

        That is the address of the listener of the name that the client used: a client that came in from outside must
        not be sent to an inside address. A broker without such a listener is none for that client, as in Kafka.
        """
        if broker.broker_id == self.config.broker_id:
            return session.listener.advertised_host, session.listener.advertised_port
        return broker.listeners.get(session.listener.name)
