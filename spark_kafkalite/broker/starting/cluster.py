"""A starting broker and its cluster: the session with the registry, the cluster secret, and the registration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from spark_kafkalite.broker.authentication.scram_users import ScramUsers
from spark_kafkalite.broker.authorization.authorizer import Authorizer
from spark_kafkalite.broker.joining import check_addresses, tell_of_leaderless, wait_for_leaders
from spark_kafkalite.broker.loop_watch import LoopWatch
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.secret_keeper import SecretKeeper
from spark_kafkalite.broker.settings.cluster_defaults import known_brokers, weaknesses
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.leader_settings import leader_balance
from spark_kafkalite.broker.standalone.log_dirs_survey import stored_cluster_id
from spark_kafkalite.broker.standalone.own_registry import OwnRegistry
from spark_kafkalite.broker.starting.ground import Given, Ground
from spark_kafkalite.broker.starting.storage import Storage
from spark_kafkalite.broker.upkeep.age_clock import AgeClock
from spark_kafkalite.clock import Clock
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.net.event_loop import BrokerLoop
from spark_kafkalite.registry.acl_changes import has_acls
from spark_kafkalite.registry.cluster.acl_watch import AclFollower
from spark_kafkalite.registry.cluster.membership import ClusterMembership, OpenStore
from spark_kafkalite.registry.cluster.registration import DuplicateBrokerId
from spark_kafkalite.registry.cluster.session import RegistrySession
from spark_kafkalite.registry.znodes import BrokerRegistration
from spark_kafkalite.version import VERSION

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedRegistry:
    """This broker's membership in the cluster. ``own`` is the embedded registry, None for a shared registry."""

    membership: ClusterMembership
    own: OwnRegistry | None
    users: ScramUsers
    # Of the embedded registry, if it serves other processes.
    address: str | None

    def age_clock(self, clock: Clock) -> AgeClock:
        """Return the clock by which the broker deletes what is old."""
        return AgeClock(clock, lambda: self.membership.clock_ahead_ms or 0)


async def open_registry(
    given: Given,
    ground: Ground,
    storage: Storage,
    open_store: OpenStore | None,
    *,
    hang_limit_s: float,
    follows_users_and_acls: bool,
    on_registry_lost: Callable[[BaseException], None],
) -> OpenedRegistry:
    """Open a session with the registry, and fill the view of the cluster.

    ``open_store`` None: the registry is embedded in this broker, and opened first. ``on_registry_lost`` is called with
    the reason when the registry is lost for good. Raises RegistryError, KafkaStorageError.
    """
    config, own = given.config, None
    if open_store is None:
        own = OwnRegistry(config, storage.logs, storage.evidence, given.clock)
        given.undo.callback(own.close)
        open_store = own.open_session
    users = ScramUsers(ground.entities, lambda: membership.session.store)
    membership = ClusterMembership(
        open_store,
        partial(
            RegistrySession,
            view=ground.view,
            entities=ground.entities if follows_users_and_acls else None,
            acls=_follower(ground.authorizer),
            broker_id=BrokerId(config.broker_id),
            clock=given.clock,
            slices=ground.slices,
            unclean_election=ground.topic_settings.allows_unclean_election,
            recovery=ground.topic_settings.recovers_by_itself,
            min_insync=ground.topic_settings.min_insync,
            balance=leader_balance(config.values),
            on_answer=ground.lease.renew if own is None else None,
        ),
        ground.view,
        on_registration=storage.replicas.set_registration,
        on_end=on_registry_lost,
        loss_is_final=own is not None,
    )
    given.undo.push_async_callback(membership.close)
    if own is None and isinstance(ground.loop, BrokerLoop):
        watch = LoopWatch(ground.loop, hang_limit_s, membership.abandon_session)
        watch.start()
        given.undo.callback(watch.stop)
    address = None if own is None else own.serve(ground.descriptors.registry_clients)
    # The embedded registry was compared with the logs when it was opened.
    stored, holds_logs = stored_cluster_id(given.fs, storage.logs.log_dirs), bool(storage.evidence.logs)
    if own is not None or not holds_logs:
        await membership.open(stored)
    else:
        me, evidence = BrokerId(config.broker_id), storage.evidence
        await membership.open(
            stored,
            holds_logs=True,
            check_zxid=lambda zxid, settled: evidence.check_shared(zxid, settled.get(me)),
        )
    storage.evidence.check_unclaimed(ground.view.state)
    storage.logs.claim(config.broker_id, ground.view.state.cluster_id)
    if follows_users_and_acls:
        await users.start()
    if follows_users_and_acls and ground.authorizer is None and await has_acls(membership.session.store):
        logger.warning(
            "this broker does not obey the ACLs in the registry, and its clients may do everything: set "
            "authorizer.class.name as on the other brokers"
        )
    return OpenedRegistry(membership, own, users, address)


async def get_secret(given: Given, ground: Ground, storage: Storage, registry: OpenedRegistry) -> None:
    """Get the cluster secret if there may be other brokers, and check that these brokers accept it."""
    if registry.own is not None:
        return
    membership = registry.membership
    keeper = SecretKeeper(given.config, ground.inner_wire, storage.io, lambda: membership.session.store)
    given.undo.callback(keeper.stop)
    await keeper.start()
    others = [broker for _, broker in sorted(ground.view.state.brokers.items())]
    me = given.config.broker_id
    await keeper.check_accepted(ground.peers, [each for each in others if each.broker_id != me])


def first_for_clients(config: BrokerConfig, listeners: Iterable[Listener]) -> Listener:
    """Return the listener whose address clients get by default: the first that is not for brokers alone."""
    inner = config.inner_listener.name if config.inner_listener_is_for_brokers_alone else ""
    return next(listener for listener in listeners if listener.name != inner)


async def join_cluster(
    given: Given,
    ground: Ground,
    storage: Storage,
    registry: OpenedRegistry,
    listeners: dict[str, Listener],
    proven: tuple[Incarnation, ...],
) -> None:
    """Register, and wait until the controller has elected leaders and this broker serves what it leads."""
    config = given.config
    first = first_for_clients(config, listeners.values())
    registration = BrokerRegistration(
        BrokerId(config.broker_id),
        first.advertised_host,
        first.advertised_port,
        rack=config.rack,
        timestamp_ms=given.clock.wall_ms(),
        endpoints=tuple(listener.endpoint for listener in listeners.values()),
        protocols={listener.name: listener.protocol.value for listener in listeners.values()},
        inner_listener=config.inner_listener.name,
        incarnation=ground.incarnation,
        steady=proven,
        software_version=VERSION,
    )
    # Before the logs are closed, so that other brokers lead by then.
    given.undo.push_async_callback(registry.membership.close)
    try:
        await registry.membership.join(registration)
    except DuplicateBrokerId:
        # So that new directories do not belong to the wrong broker.id when the operator has corrected it.
        storage.logs.directories.withdraw_claim()
        raise
    check_addresses(config.broker_id, ground.view.state)
    await wait_for_leaders(config.broker_id, ground.view, storage.replicas)
    settings = ground.topic_settings
    tell_of_leaderless(
        config.broker_id, ground.view.state, settings.allows_unclean_election, settings.recovers_by_itself
    )
    if config.zookeeper is not None:
        found = weaknesses(ground.settings.current.values, known_brokers(ground.view.state))
        if found:
            logger.warning("a record acknowledged with acks=all may be lost with a broker: %s", "; ".join(found))


def _follower(authorizer: Authorizer | None) -> AclFollower | None:
    if authorizer is None:
        return None
    return AclFollower(authorizer.put, authorizer.acls.resources)
