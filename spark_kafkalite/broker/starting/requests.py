"""What a starting broker answers requests with: sockets, topics, groups, and the context of the handlers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_kafkalite.broker.authentication.authentication import Authentication
from spark_kafkalite.broker.authentication.ended_sessions import EndedSessions
from spark_kafkalite.broker.authentication.failure_delays import FailureDelays
from spark_kafkalite.broker.authentication.gssapi_servers import gssapi_servers
from spark_kafkalite.broker.authorization.acl_changes import AclChanges
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.coordinators import Coordinators
from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.network.acceptor import Acceptor
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.quotas.changes import QuotaChanges
from spark_kafkalite.broker.replication.replication import Replication
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.fetch_rechecks import FetchRechecks
from spark_kafkalite.broker.requests.fetch_sessions import FetchSessions
from spark_kafkalite.broker.requests.gate import Gate
from spark_kafkalite.broker.requests.topics import TopicAdmin
from spark_kafkalite.broker.settings.config_changes import ConfigChanges
from spark_kafkalite.broker.settings.group_settings import group_limits, offsets_topic
from spark_kafkalite.broker.starting.cluster import OpenedRegistry
from spark_kafkalite.broker.starting.ground import Given, Ground
from spark_kafkalite.broker.starting.storage import Storage
from spark_kafkalite.broker.upkeep.retention import Retention
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.expiry import OffsetExpiry
from spark_kafkalite.coordinator.groups.groups_state import GroupsState
from spark_kafkalite.coordinator.internal_topic import GROUPS

if TYPE_CHECKING:
    from spark_kafkalite.broker.authentication.token_keys import TokenKeys
    from spark_kafkalite.security.key_source import KeySource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupParts:
    """The coordinator of groups, and the objects that it uses."""

    expiry: OffsetExpiry
    coordinator: GroupCoordinator


def bind(given: Given, ground: Ground, storage: Storage) -> tuple[Acceptor, dict[str, Listener]]:
    """Bind the listening sockets, which determines their ports. The broker does not accept connections yet."""
    logs = storage.logs.logs
    acceptor = Acceptor(
        ground.loop,
        ground.slices,
        ground.settings,
        ground.memory,
        ground.descriptors,
        ground.inner_wire,
        ground.tls,
        lambda: len(logs),
        ground.quotas.connections,
    )
    given.undo.callback(acceptor.close)
    acceptor.authorizer = ground.authorizer
    listeners = acceptor.bind()
    return acceptor, {listener.name: listener for listener in listeners}


def end_sessions_of_deleted_users(given: Given, ground: Ground, registry: OpenedRegistry, acceptor: Acceptor) -> None:
    """Have the connections of users closed when their credentials are deleted."""
    ended = EndedSessions(ground.loop, ground.slices, lambda: acceptor.connections)
    given.undo.callback(ended.stop)
    registry.users.call_when_deleted(ended.credential_deleted)


def make_topics(ground: Ground, storage: Storage, registry: OpenedRegistry, acceptor: Acceptor) -> TopicAdmin:
    """Make what creates, changes and deletes topics for clients and for this broker itself."""
    return TopicAdmin(
        ground.settings,
        ground.topic_settings,
        registry.membership,
        ground.view,
        storage.replicas,
        ground.slices,
        ground.descriptors,
        ground.peers,
        connections=lambda: len(acceptor),
    )


def make_groups(
    given: Given,
    ground: Ground,
    storage: Storage,
    registry: OpenedRegistry,
    topics: TopicAdmin,
    coordinators: Coordinators,
) -> GroupParts:
    """Make the coordinator of groups. It takes over groups when this broker begins to lead their partitions."""
    config, settings = given.config, ground.settings
    host = InternalTopicHost(
        offsets_topic(config.values), ground.slices, storage.io, ground.view, topics, storage.replicas
    )
    groups = coordinators.add(GROUPS, host, partial(GroupsState, group_limits(config.values)))
    shards, coordination = groups.shards, groups.coordination
    expiry = OffsetExpiry(
        shards,
        ground.slices,
        registry.age_clock(given.clock),
        lambda: int(settings.current["offsets.retention.minutes"]) * 60_000,
    )
    ground.view.add_listener(lambda _, __, change: expiry.topics_deleted([name for name, _ in change.deleted_topics]))
    coordinator = GroupCoordinator(
        shards, given.clock, config["group.coordinator.max.bytes"], stood_still_s=coordination.stood_still_s
    )
    given.undo.callback(coordinator.close)
    given.undo.callback(coordinators.close)
    return GroupParts(expiry, coordinator)


def make_context(
    given: Given,
    ground: Ground,
    storage: Storage,
    registry: OpenedRegistry,
    topics: TopicAdmin,
    coordinators: Coordinators,
    groups: GroupParts,
    listeners: dict[str, Listener],
) -> BrokerContext:
    """Make what the handlers of requests work with, and load the handlers."""
    handlers.load()
    fetch_sessions = FetchSessions()
    acls: AclChanges | None = None
    if ground.authorizer is not None:
        acls = AclChanges(ground.authorizer, ground.slices, lambda: registry.membership.session.store)
        purgatory = storage.services.purgatory
        rechecks = FetchRechecks(ground.loop, ground.slices, purgatory, fetch_sessions)
        ground.authorizer.add_listener(rechecks.acls_changed)
        given.undo.callback(rechecks.stop)
    return BrokerContext(
        settings=ground.settings,
        config_changes=ConfigChanges(
            ground.settings, ground.topic_settings, registry.membership, ground.view, storage.replicas
        ),
        quotas=ground.quotas,
        quota_changes=QuotaChanges(ground.entities, lambda: registry.membership.session.store),
        clock=given.clock,
        loop=ground.loop,
        purgatory=storage.services.purgatory,
        slices=ground.slices,
        io=storage.io,
        memory=ground.memory,
        logs=storage.logs,
        replicas=storage.replicas,
        membership=registry.membership,
        view=ground.view,
        topic_settings=ground.topic_settings,
        topics=topics,
        retention=Retention(
            ground.loop,
            given.config,
            storage.io,
            registry.age_clock(given.clock),
            storage.logs,
            storage.replicas,
            ground.slices,
        ),
        coordinators=coordinators,
        groups=groups.coordinator,
        lease=ground.lease,
        listeners=listeners,
        inner_wire=ground.inner_wire,
        peers=ground.peers,
        gate=Gate(ground.slices.now),
        users=registry.users,
        authentication=_make_authentication(given, ground, storage, registry),
        fetch_sessions=fetch_sessions,
        acls=acls,
        meters=ground.meters,
    )


def _make_authentication(given: Given, ground: Ground, storage: Storage, registry: OpenedRegistry) -> Authentication:
    config, listeners = given.config, given.config.sasl_listeners
    place = f"--registry-dir {config.registry_dir}, while this broker is stopped"
    if config.zookeeper is not None:
        place = f"--registry {config.zookeeper.connect} --digest-file FILE"
    for name, listener in listeners.items():
        has_users, remedy = bool(registry.users.names()), f"kafkalite users add NAME {place}"
        for text in listener.warnings(name, has_scram_users=has_users, remedy=remedy):
            logger.warning("%s", text)
    is_open = any(not each.protocol.encrypts and not each.protocol.uses_sasl for each in config.listeners)
    if is_open and not listeners and ground.authorizer is None and registry.users.names():
        logger.warning(
            "the registry has users, but no listener asks for them, so every client may do everything: set "
            "listeners and authorizer.class.name as before, or give --secure the same directory"
        )
    return Authentication(
        listeners,
        ground.inner_wire,
        registry.users,
        FailureDelays(config["connection.failed.authentication.delay.ms"] / 1000, ground.loop.time),
        config["request.read.timeout.ms"] / 1000,
        _token_keys(given, ground, storage),
        gssapi_servers(listeners, storage.io),
    )


def _token_keys(given: Given, ground: Ground, storage: Storage) -> dict[KeySource, TokenKeys]:
    """Begin to fetch the keys that verify tokens. Raises ConfigError for a file that has none."""
    found: dict[KeySource, TokenKeys] = {}
    for listener in given.config.sasl_listeners.values():
        tokens = listener.tokens
        if tokens is not None and tokens.keys not in found:
            from spark_kafkalite.broker.authentication.token_keys import TokenKeys  # with an HTTP client

            keys = found[tokens.keys] = TokenKeys(tokens.keys, ground.loop, storage.io)
            given.undo.callback(keys.stop)
            keys.start()
    return found


def start_replication(
    given: Given, ground: Ground, storage: Storage, registry: OpenedRegistry, context: BrokerContext
) -> Replication:
    """Follow the leaders of this broker's replicas, and maintain the ISRs of the partitions that it leads."""
    replication = Replication(
        given.config,
        ground.incarnation,
        ground.loop,
        ground.slices,
        ground.view,
        storage.replicas,
        ground.peers.connect,
        lambda: registry.membership.session.store,
        storage.services.follower_throttle,
    )
    replication.start(storage.services, context.retention.follow_leader)
    given.undo.push_async_callback(replication.stop)
    return replication
