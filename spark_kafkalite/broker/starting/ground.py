"""What all phases of a start use: settings, the view of the cluster, connections to peers, quotas, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafkalite.broker.authorization.authorizer import Authorizer
from spark_kafkalite.broker.metrics.endpoint import MetricsEndpoint
from spark_kafkalite.broker.metrics.health import BrokerHealth
from spark_kafkalite.broker.metrics.meters import Meters
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.network.peer import PeerIdentity, PeerSettings
from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.quotas import Quotas
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.settings.authorization_settings import has_authorizer, super_users
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.topic_overrides import TopicSettings
from spark_kafkalite.clock import Clock
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.model import Incarnation
from spark_kafkalite.net.descriptors import Descriptors, raise_limit
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.znodes import new_incarnation
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """What a start is given. ``undo`` receives the functions that undo each phase."""

    config: BrokerConfig
    clock: Clock
    fs: Fs
    undo: contextlib.AsyncExitStack


@dataclass(frozen=True, slots=True)
class Ground:
    """The objects that all phases use, and that need no undoing."""

    loop: asyncio.AbstractEventLoop
    # The incarnation of this run of the process, the same in all of its registry sessions.
    incarnation: Incarnation
    lease: RegistryLease
    slices: Slices
    settings: DynamicConfig
    view: ClusterView
    topic_settings: TopicSettings
    descriptors: Descriptors
    memory: RequestMemory
    inner_wire: InnerWire
    tls: BrokerTls
    peers: Peers
    health: BrokerHealth
    # None in a broker that serves no metrics.
    metrics: MetricsEndpoint | None
    # The settings of users and clients in the registry.
    entities: EntityConfigs
    quotas: Quotas
    # None in a broker without an authorizer.
    authorizer: Authorizer | None

    @property
    def meters(self) -> Meters | None:
        return None if self.metrics is None else self.metrics.meters


def lay_ground(
    given: Given,
    loop: asyncio.AbstractEventLoop,
    slices: Slices,
    make_peers: Callable[[asyncio.AbstractEventLoop, Slices, Callable[[], PeerIdentity], PeerSettings], Peers],
    *,
    has_own_registry: bool,
) -> Ground:
    """Make what all phases use. ``has_own_registry``: the registry is embedded in this broker."""
    config = given.config
    settings, view = DynamicConfig(config), ClusterView()
    inner_wire = InnerWire(
        config.broker_id,
        config.inner_listener.name,
        is_for_brokers_alone=config.inner_listener_is_for_brokers_alone,
    )
    tls = BrokerTls(config)
    for warning in tls.warnings():
        logger.warning("%s", warning)
    peer_settings = PeerSettings(
        config["replica.socket.timeout.ms"] / 1000,
        config["replica.socket.receive.buffer.bytes"],
        tls.peer_channel,
    )
    peers = make_peers(loop, slices, lambda: inner_wire.identity, peer_settings)
    given.undo.callback(peers.close)
    view.add_listener(inner_wire.cluster_changed)
    # Before all other listeners, which use the settings when they receive a change.
    view.add_listener(lambda _, new, change: settings.cluster_changed(new, change))
    entities = EntityConfigs()
    windows = Windows(config["quota.window.num"], config["quota.window.size.seconds"])
    health, metrics = BrokerHealth(), None
    if config.metrics_listener is not None:
        meters = Meters(loop)
        view.add_listener(lambda _, __, change: meters.topics.forget([name for name, _ in change.deleted_topics]))
        metrics = MetricsEndpoint(config.metrics_listener, meters, health, slices, config.broker_id)
    return Ground(
        loop,
        new_incarnation(),
        RegistryLease(unlimited=has_own_registry),
        slices,
        settings,
        view,
        TopicSettings(settings, view),
        Descriptors(raise_limit(), serves_registry=config.registry_listener is not None),
        RequestMemory(config["queued.max.request.bytes"]),
        inner_wire,
        tls,
        peers,
        health,
        metrics,
        entities,
        Quotas(entities, windows, given.clock.monotonic_s),
        _authorizer(config),
    )


def _authorizer(config: BrokerConfig) -> Authorizer | None:
    if not has_authorizer(config.values):
        return None
    return Authorizer(super_users(config.values), allows_everyone=config["allow.everyone.if.no.acl.found"])
