"""The start of a broker, in phases.

The settings have been checked before. The phases are:

1. Lock the log directories.
2. Open the registry and read the cluster. The start ends here if the log directories show that the registry is not the
   one that they knew (``registry_evidence``).
3. Load the logs, and recover them after a crash.
4. Bind the listening sockets, so that their ports are known.
5. Register the broker, which ends its old leaderships.
6. Wait until the controller has elected leaders, and this broker serves every partition that it leads.
7. Accept connections.

Each phase takes the results of earlier phases and returns its own. Before the next phase begins, it registers functions
that undo its effects. They run in reverse order after the failure of a later phase, and at a stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.authentication.authentication import Authentication
from spark_kafkalite.broker.authentication.failure_delays import FailureDelays
from spark_kafkalite.broker.authentication.scram_users import ScramUsers
from spark_kafkalite.broker.authorization.acl_changes import AclChanges
from spark_kafkalite.broker.authorization.authorizer import Authorizer
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.coordinators import Coordinators
from spark_kafkalite.broker.hung_disks import HungDisks, hang_limit_s
from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.joining import check_addresses, tell_of_leaderless, wait_for_leaders
from spark_kafkalite.broker.loop_watch import LoopWatch
from spark_kafkalite.broker.metrics.endpoint import MetricsEndpoint
from spark_kafkalite.broker.metrics.health import BrokerHealth, BrokerState
from spark_kafkalite.broker.metrics.meters import Meters
from spark_kafkalite.broker.network.acceptor import Acceptor
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.peer import PeerSettings
from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.changes import QuotaChanges
from spark_kafkalite.broker.quotas.quotas import Quotas
from spark_kafkalite.broker.recovery_answer import RecoveryAnswer
from spark_kafkalite.broker.registry_notes import RegistryNotes
from spark_kafkalite.broker.replication.comparison import Comparison
from spark_kafkalite.broker.replication.partition import PartitionServices
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.replication import Replication
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.replication.unproven_logs import UnprovenLogs
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import Dispatcher
from spark_kafkalite.broker.requests.fetch_rechecks import FetchRechecks
from spark_kafkalite.broker.requests.fetch_sessions import FetchSessions
from spark_kafkalite.broker.requests.gate import Gate
from spark_kafkalite.broker.requests.slow_requests import watch_for
from spark_kafkalite.broker.requests.topics import TopicAdmin
from spark_kafkalite.broker.secret_keeper import SecretKeeper, check_secret_file
from spark_kafkalite.broker.settings.authorization_settings import has_authorizer, super_users
from spark_kafkalite.broker.settings.cluster_defaults import known_brokers, weaknesses
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.config_changes import ConfigChanges
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.group_settings import group_limits, offsets_topic
from spark_kafkalite.broker.settings.leader_settings import leader_balance
from spark_kafkalite.broker.settings.topic_overrides import TopicSettings
from spark_kafkalite.broker.standalone.log_dirs_survey import stored_cluster_id
from spark_kafkalite.broker.standalone.own_registry import OwnRegistry
from spark_kafkalite.broker.standalone.registry_evidence import RegistryEvidence
from spark_kafkalite.broker.tls_reload import TlsReload
from spark_kafkalite.broker.upkeep.cleaner import Cleaner
from spark_kafkalite.broker.upkeep.disk_watch import DiskWatch
from spark_kafkalite.broker.upkeep.retention import Retention
from spark_kafkalite.broker.upkeep.timers import Upkeep
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.clock import Clock
from spark_kafkalite.collector import Collector
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.expiry import OffsetExpiry
from spark_kafkalite.coordinator.groups.groups_state import GroupsState
from spark_kafkalite.coordinator.internal_topic import GROUPS
from spark_kafkalite.errors import KafkaliteError, KafkaStorageError
from spark_kafkalite.log.directories.runs import boot_id
from spark_kafkalite.log.directories.unopened import LogLimit
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.producer_state import ProducerIdLimits
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.net.descriptors import Descriptors, raise_limit
from spark_kafkalite.net.event_loop import BrokerLoop
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.registry.acl_changes import has_acls
from spark_kafkalite.registry.cluster.acl_watch import AclFollower
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.cluster.membership import ClusterMembership, OpenStore
from spark_kafkalite.registry.cluster.registration import DuplicateBrokerId
from spark_kafkalite.registry.cluster.session import RegistrySession
from spark_kafkalite.registry.znodes import BrokerRegistration, new_incarnation
from spark_kafkalite.slices import Slices
from spark_kafkalite.version import VERSION

logger = logging.getLogger(__name__)

# How long a stop waits for the sending of outstanding answers.
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class _Ground:
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


@dataclass(frozen=True, slots=True)
class _Storage:
    """The log directories and the objects that use them. ``evidence`` is their information about the registry."""

    logs: LogManager
    evidence: RegistryEvidence
    io: IoThreads
    services: PartitionServices
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class _Registry:
    """This broker's membership in the cluster. ``own`` is the embedded registry, None for a shared registry."""

    membership: ClusterMembership
    own: OwnRegistry | None
    users: ScramUsers


@dataclass(frozen=True, slots=True)
class _Groups:
    """The coordinator of groups, and the objects that it uses."""

    expiry: OffsetExpiry
    coordinator: GroupCoordinator


def _authorizer(config: BrokerConfig) -> Authorizer | None:
    if not has_authorizer(config.values):
        return None
    return Authorizer(super_users(config.values), allows_everyone=config["allow.everyone.if.no.acl.found"])


def _follower(authorizer: Authorizer | None) -> AclFollower | None:
    if authorizer is None:
        return None
    return AclFollower(authorizer.put, lambda: [resource for resource, _ in authorizer.acls.resources()])


class BrokerStart:
    """The start of one broker; the module's docstring lists its phases."""

    # The simulator replaces these, because it simulates time and network.
    make_io = IoThreads
    make_peers = Peers
    make_slices = Slices
    # The simulator has no clients that authenticate; its recorded schedules know no reads of users and ACLs.
    follows_users_and_acls = True
    read_boot_id = staticmethod(boot_id)

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        fs: Fs,
        open_store: OpenStore | None,
        undo: contextlib.AsyncExitStack,
        *,
        on_registry_lost: Callable[[BaseException], None],
        on_disks_lost: Callable[[KafkaStorageError], None],
    ) -> None:
        """``undo`` receives the functions that undo each phase.

        ``on_registry_lost`` is called with the reason when the registry is lost for good, ``on_disks_lost`` when no log
        directory is left.
        """
        self.config = config
        # The broker's address for clients, and that of its registry if it serves it; known when run() has ended.
        self.address = ""
        self.registry_address: str | None = None
        self.metrics_address: str | None = None
        # The settings in force; None until the start has begun.
        self.settings: DynamicConfig | None = None
        # None until the broker has joined the cluster.
        self.tls_reload: TlsReload | None = None
        self._clock = clock
        self._fs = fs
        self._open_store = open_store
        self._undo = undo
        self._on_registry_lost = on_registry_lost
        self._on_disks_lost = on_disks_lost

    @property
    def has_own_registry(self) -> bool:
        """Whether the registry is embedded in this broker, and not shared."""
        return self._open_store is None

    async def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start; the broker serves when this returns.

        Raises ConfigError, RegistryError, KafkaStorageError, LoadInterrupted.
        """
        ground = self._prepare(loop)
        if ground.metrics is not None:
            await ground.metrics.start()
            self._undo.push_async_callback(ground.metrics.stop)
            self.metrics_address = ground.metrics.address
        if not self.has_own_registry:
            # Before the start waits for the registry.
            check_secret_file(self.config)
        storage = self._lock_log_dirs(ground)
        registry = await self._open_registry(ground, storage)
        try:
            await self._get_secret(ground, storage, registry)
        except KafkaliteError:
            # So that new directories have no owner when the operator has corrected the error.
            storage.logs.directories.withdraw_claim()
            raise
        ground.health.enter(BrokerState.RECOVERY)
        proven = await self._load_logs(ground, storage, registry)
        ground.health.enter(BrokerState.STARTING)
        acceptor, listeners = self._bind(ground, storage)
        topics = self._make_topics(ground, storage, registry, acceptor)
        coordinators = Coordinators(ground.lease, self._clock)
        storage.services.on_role_change.append(coordinators.role_changed)
        groups = self._make_groups(ground, storage, topics, coordinators)
        context = self._make_context(ground, storage, registry, topics, coordinators, groups, listeners)
        meter = None if ground.meters is None else ground.meters.requests
        watch = watch_for(self.config["request.log.slow.ms"], meter)
        dispatcher = Dispatcher(context, meter=watch, quotas=ground.quotas.clients)
        replication = self._start_replication(ground, storage, registry, context)
        if ground.metrics is not None:
            ground.metrics.serve_broker(context, acceptor, replication)
        await self._join_cluster(ground, storage, registry, listeners, proven)
        self._keep_certificates(ground, storage)
        self._watch_disks(ground, storage)
        self._undo.push_async_callback(_quiesce, acceptor, dispatcher, storage)
        self._undo.callback(ground.health.enter, BrokerState.SHUTTING_DOWN)
        if self.config["controlled.shutdown.enable"]:
            self._undo.push_async_callback(replication.hand_over, self.config["controlled.shutdown.max.ms"] / 1000)
            self._undo.callback(ground.health.enter, BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        await self._start_upkeep(ground, storage, registry, groups, context)
        self._start_comparison(ground, storage, registry, context)
        acceptor.start(dispatcher.serve)
        ground.health.enter(BrokerState.RUNNING)

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> _Ground:
        config, slices = self.config, self.make_slices(loop)
        settings, view = DynamicConfig(config), ClusterView()
        self.settings = settings
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
        peers = self.make_peers(loop, slices, lambda: inner_wire.identity, peer_settings)
        self._undo.callback(peers.close)
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
        return _Ground(
            loop,
            new_incarnation(),
            RegistryLease(unlimited=self.has_own_registry),
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
            Quotas(entities, windows, self._clock.monotonic_s),
            _authorizer(config),
        )

    def _lock_log_dirs(self, ground: _Ground) -> _Storage:
        """Lock the log directories and list their contents. This does not load logs."""
        config = self.config
        logs = LogManager(
            self._fs,
            [str(directory) for directory in config.log_dirs],
            self._clock,
            config_of=ground.topic_settings.config_of,
            producer_limits=ProducerIdLimits(
                config["max.producer.ids.per.partition"], config["producer.id.expiration.ms"]
            ),
            min_free_bytes=config["log.dir.min.free.bytes"],
            reserve_bytes=config["log.dir.reserve.bytes"],
            open_files=ground.descriptors.kept_open,
            log_limit=LogLimit(ground.descriptors.most_partitions, ground.descriptors.why_log_stays_closed),
            topic_id_of=ground.view.topic_id_of,
            lost_directories=config["log.dirs.lost"],
        )
        if ground.metrics is not None:
            ground.metrics.logs = logs
        logs.open()
        # Does nothing after an orderly shutdown, which runs before this if the logs have been loaded.
        self._undo.callback(logs.abandon)
        evidence = RegistryEvidence(self._fs, logs.log_dirs, config.registry_dir, logs.directories.missing)
        io = self.make_io(ground.loop, config["num.io.threads"])
        self._undo.callback(io.close)
        services = PartitionServices(
            config.broker_id,
            self._clock,
            io,
            Purgatory(ground.loop),
            config["max.decompressed.batch.bytes"],
            meters=ground.meters,
        )
        replicas = Replicas(ground.loop, logs, services, ground.view, ground.topic_settings.config_of, ground.slices)
        ground.view.add_listener(replicas.cluster_changed)
        return _Storage(logs, evidence, io, services, replicas)

    async def _open_registry(self, ground: _Ground, storage: _Storage) -> _Registry:
        """Open a session with the registry, and fill the view of the cluster."""
        config, open_store, own = self.config, self._open_store, None
        if open_store is None:
            own = OwnRegistry(config, storage.logs, storage.evidence, self._clock)
            self._undo.callback(own.close)
            open_store = own.open_session
        users = ScramUsers(ground.entities, lambda: membership.session.store)
        membership = ClusterMembership(
            open_store,
            partial(
                RegistrySession,
                view=ground.view,
                entities=ground.entities if self.follows_users_and_acls else None,
                acls=_follower(ground.authorizer),
                broker_id=BrokerId(config.broker_id),
                clock=self._clock,
                slices=ground.slices,
                unclean_election=ground.topic_settings.allows_unclean_election,
                recovery=ground.topic_settings.recovers_by_itself,
                min_insync=ground.topic_settings.min_insync,
                balance=leader_balance(config.values),
                on_answer=ground.lease.renew if own is None else None,
            ),
            ground.view,
            on_registration=storage.replicas.set_registration,
            on_end=self._on_registry_lost,
            loss_is_final=own is not None,
        )
        self._undo.push_async_callback(membership.close)
        if own is None and isinstance(ground.loop, BrokerLoop):
            watch = LoopWatch(ground.loop, self._hang_limit_s(), membership.abandon_session)
            watch.start()
            self._undo.callback(watch.stop)
        if own is not None:
            self.registry_address = own.serve(ground.descriptors.registry_clients)
        # The embedded registry was compared with the logs when it was opened.
        stored, holds_logs = stored_cluster_id(self._fs, storage.logs.log_dirs), bool(storage.evidence.logs)
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
        if self.follows_users_and_acls:
            await users.start()
        if self.follows_users_and_acls and ground.authorizer is None and await has_acls(membership.session.store):
            logger.warning(
                "this broker does not obey the ACLs in the registry, and its clients may do everything: set "
                "authorizer.class.name as on the other brokers"
            )
        return _Registry(membership, own, users)

    async def _get_secret(self, ground: _Ground, storage: _Storage, registry: _Registry) -> None:
        """Get the cluster secret if there may be other brokers, and check that these brokers accept it."""
        if registry.own is not None:
            return
        membership = registry.membership
        keeper = SecretKeeper(self.config, ground.inner_wire, storage.io, lambda: membership.session.store)
        self._undo.callback(keeper.stop)
        await keeper.start()
        others = [broker for _, broker in sorted(ground.view.state.brokers.items())]
        me = self.config.broker_id
        await keeper.check_accepted(ground.peers, [each for each in others if each.broker_id != me])

    async def _load_logs(self, ground: _Ground, storage: _Storage, registry: _Registry) -> tuple[Incarnation, ...]:
        """Load the logs in a thread, because recovery after a crash may take minutes, during which a stop must work.

        Returns the earlier incarnations whose logs are complete (rule R12), as far as states in the registry name them.
        """
        logs, replicas = storage.logs, storage.replicas
        with ThreadPoolExecutor(1, thread_name_prefix="kafkalite-load") as executor:
            loading = ground.loop.run_in_executor(
                executor, logs.load, ground.settings.current["num.recovery.threads.per.data.dir"]
            )
            try:
                await asyncio.shield(loading)
            except asyncio.CancelledError:
                logs.interrupt_load()
                await loading
                raise
        # Only after the load: before it a clean-shutdown marker would be wrong.
        self._undo.callback(lambda: logs.shutdown(replicas.high_watermarks()))
        # Only now: the load runs in a thread, and raises an error itself if no directory is left.
        logs.on_offline.append(partial(self._directory_failed, storage))
        # Settings may have changed while the logs were loaded.
        logs.update_configs()
        follow = partial(_settings_changed, storage)
        follow(self.config, ground.settings.current)
        ground.settings.add_listener(follow)
        await replicas.compare_logs()
        boot_id = self.read_boot_id()
        proven = logs.proven_runs(boot_id)
        not_whole = logs.not_whole() if proven else {}
        if not_whole:
            # Until the states are written: after a crash they must not name logs that the next start takes as complete.
            logs.forget_runs()
            membership, me = registry.membership, self.config.broker_id
            unproven = UnprovenLogs(ground.loop, ground.slices, ground.view, me, lambda: membership.session.store)
            if not await unproven.take_back(not_whole):
                proven = ()
        logs.begin_run(ground.incarnation, boot_id, proven)
        return proven

    def _bind(self, ground: _Ground, storage: _Storage) -> tuple[Acceptor, dict[str, Listener]]:
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
        self._undo.callback(acceptor.close)
        acceptor.authorizer = ground.authorizer
        listeners = acceptor.bind()
        first = self._first_for_clients(listeners)
        self.address = address_text(first.advertised_host, first.advertised_port)
        return acceptor, {listener.name: listener for listener in listeners}

    def _first_for_clients(self, listeners: Iterable[Listener]) -> Listener:
        config = self.config
        inner = config.inner_listener.name if config.inner_listener_is_for_brokers_alone else ""
        return next(listener for listener in listeners if listener.name != inner)

    def _make_topics(self, ground: _Ground, storage: _Storage, registry: _Registry, acceptor: Acceptor) -> TopicAdmin:
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

    def _make_groups(
        self, ground: _Ground, storage: _Storage, topics: TopicAdmin, coordinators: Coordinators
    ) -> _Groups:
        """Make the coordinator of groups. It takes over groups when this broker begins to lead their partitions."""
        config, settings = self.config, ground.settings
        host = InternalTopicHost(
            offsets_topic(config.values), ground.slices, storage.io, ground.view, topics, storage.replicas
        )
        groups = coordinators.add(GROUPS, host, partial(GroupsState, group_limits(config.values)))
        shards, coordination = groups.shards, groups.coordination
        expiry = OffsetExpiry(
            shards, ground.slices, self._clock, lambda: int(settings.current["offsets.retention.minutes"]) * 60_000
        )
        ground.view.add_listener(
            lambda _, __, change: expiry.topics_deleted([name for name, _ in change.deleted_topics])
        )
        coordinator = GroupCoordinator(
            shards, self._clock, config["group.coordinator.max.bytes"], stood_still_s=coordination.stood_still_s
        )
        self._undo.callback(coordinator.close)
        self._undo.callback(coordinators.close)
        return _Groups(expiry, coordinator)

    def _make_context(
        self,
        ground: _Ground,
        storage: _Storage,
        registry: _Registry,
        topics: TopicAdmin,
        coordinators: Coordinators,
        groups: _Groups,
        listeners: dict[str, Listener],
    ) -> BrokerContext:
        handlers.load()
        fetch_sessions = FetchSessions()
        acls: AclChanges | None = None
        if ground.authorizer is not None:
            acls = AclChanges(ground.authorizer, ground.slices, lambda: registry.membership.session.store)
            purgatory = storage.services.purgatory
            rechecks = FetchRechecks(ground.loop, ground.slices, purgatory, fetch_sessions)
            ground.authorizer.add_listener(rechecks.acls_changed)
            self._undo.callback(rechecks.stop)
        return BrokerContext(
            settings=ground.settings,
            config_changes=ConfigChanges(
                ground.settings, ground.topic_settings, registry.membership, ground.view, storage.replicas
            ),
            quotas=ground.quotas,
            quota_changes=QuotaChanges(ground.entities, lambda: registry.membership.session.store),
            clock=self._clock,
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
                ground.loop, self.config, storage.io, self._clock, storage.logs, storage.replicas, ground.slices
            ),
            coordinators=coordinators,
            groups=groups.coordinator,
            lease=ground.lease,
            listeners=listeners,
            inner_wire=ground.inner_wire,
            peers=ground.peers,
            gate=Gate(ground.slices.now),
            users=registry.users,
            authentication=self._make_authentication(ground, registry),
            fetch_sessions=fetch_sessions,
            acls=acls,
            meters=ground.meters,
        )

    def _make_authentication(self, ground: _Ground, registry: _Registry) -> Authentication:
        config, listeners = self.config, self.config.sasl_listeners
        place = f"--registry-dir {config.registry_dir}, while this broker is stopped"
        if config.zookeeper is not None:
            place = f"--registry {config.zookeeper.connect} --digest-file FILE"
        for name, listener in listeners.items():
            has_users, remedy = bool(registry.users.names()), f"kafkalite users add NAME {place}"
            for text in listener.warnings(name, has_scram_users=has_users, remedy=remedy):
                logger.warning("%s", text)
        return Authentication(
            listeners,
            ground.inner_wire,
            registry.users,
            FailureDelays(config["connection.failed.authentication.delay.ms"] / 1000, ground.loop.time),
            config["request.read.timeout.ms"] / 1000,
        )

    def _start_replication(
        self, ground: _Ground, storage: _Storage, registry: _Registry, context: BrokerContext
    ) -> Replication:
        """Follow the leaders of this broker's replicas, and maintain the ISRs of the partitions that it leads."""
        replication = Replication(
            self.config,
            ground.incarnation,
            ground.loop,
            ground.slices,
            ground.view,
            storage.replicas,
            ground.peers.connect,
            lambda: registry.membership.session.store,
        )
        replication.start(storage.services, context.retention.follow_leader)
        self._undo.push_async_callback(replication.stop)
        return replication

    def _hang_limit_s(self) -> float:
        return hang_limit_s(self.config["zookeeper.session.timeout.ms"])

    def _keep_certificates(self, ground: _Ground, storage: _Storage) -> None:
        """Renew the certificates of listeners when their files change."""
        self.tls_reload = TlsReload(ground.loop, ground.tls, ground.settings, storage.io)
        self._undo.callback(self.tls_reload.stop)

    def _watch_disks(self, ground: _Ground, storage: _Storage) -> None:
        """Watch for log directories whose disks hang."""
        disks = HungDisks(
            ground.loop,
            storage.io,
            self._fs.calls,
            storage.logs.directories,
            storage.replicas,
            self._hang_limit_s(),
        )
        disks.start()
        self._undo.callback(disks.stop)

    async def _join_cluster(
        self,
        ground: _Ground,
        storage: _Storage,
        registry: _Registry,
        listeners: dict[str, Listener],
        proven: tuple[Incarnation, ...],
    ) -> None:
        """Register, and wait until the controller has elected leaders and this broker serves what it leads."""
        config = self.config
        first = self._first_for_clients(listeners.values())
        registration = BrokerRegistration(
            BrokerId(config.broker_id),
            first.advertised_host,
            first.advertised_port,
            rack=config.rack,
            timestamp_ms=self._clock.wall_ms(),
            endpoints=tuple(listener.endpoint for listener in listeners.values()),
            protocols={listener.name: listener.protocol.value for listener in listeners.values()},
            inner_listener=config.inner_listener.name,
            incarnation=ground.incarnation,
            steady=proven,
            software_version=VERSION,
        )
        # Before the logs are closed, so that other brokers lead by then.
        self._undo.push_async_callback(registry.membership.close)
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

    def _start_comparison(
        self, ground: _Ground, storage: _Storage, registry: _Registry, context: BrokerContext
    ) -> None:
        """Compare logs with those of their leaders from time to time. A broker with an embedded registry has no leaders
        to follow."""
        if registry.own is not None:
            return
        comparison = context.comparison = Comparison(
            ground.loop,
            self.config,
            storage.io,
            self._clock,
            storage.logs,
            storage.replicas,
            storage.services,
            ground.view,
            ground.peers,
        )
        comparison.start()
        self._undo.push_async_callback(comparison.stop)

    async def _start_upkeep(
        self, ground: _Ground, storage: _Storage, registry: _Registry, groups: _Groups, context: BrokerContext
    ) -> None:
        """Start the periodic work."""
        config, loop, io = self.config, ground.loop, storage.io
        logs, replicas = storage.logs, storage.replicas
        own, membership = registry.own, registry.membership
        notes = RegistryNotes(
            logs, storage.evidence, lambda: membership.seen_zxid if own is None else own.committed_zxid
        )
        upkeep = Upkeep(loop, ground.slices, config, io, logs, replicas, notes)
        upkeep.start()
        self._undo.callback(upkeep.stop)
        groups.expiry.start(config["offsets.retention.check.interval.ms"] / 1000)
        self._undo.push_async_callback(groups.expiry.stop)
        context.retention.start()
        self._undo.callback(context.retention.stop)
        cleaner = Cleaner(ground.settings, logs, replicas, io, self._clock, ground.slices)
        cleaner.start()
        self._undo.push_async_callback(cleaner.stop)
        disks = DiskWatch(loop, io, logs, replicas, on_room=registry.membership.check_everything)
        disks.start()
        self._undo.callback(disks.stop)
        if own is None:
            context.recovery_answer = RecoveryAnswer(
                self.config.broker_id,
                ground.incarnation,
                ground.slices,
                ground.view,
                logs,
                replicas,
                membership,
                notes,
                io,
            )
        await notes.replace_old(io)
        # Before the broker serves clients: with thousands of logs the collector's start takes half a second.
        collector = Collector(loop)
        collector.start()
        self._undo.callback(collector.stop)

    def _directory_failed(self, storage: _Storage, path: str) -> None:
        """Continue without the directory if another one is left."""
        storage.replicas.directory_failed(path)
        try:
            storage.logs.directories.check_any_online()
        except KafkaStorageError as error:
            self._on_disks_lost(error)


def _settings_changed(storage: _Storage, old: BrokerConfig, new: BrokerConfig) -> None:
    """Apply new values of settings to the objects that keep a copy of them."""
    storage.logs.producer_limits.max_ids = new["max.producer.ids.per.partition"]
    storage.logs.producer_limits.expiration_ms = new["producer.id.expiration.ms"]
    storage.io.resize(new["num.io.threads"])
    if old.topic_defaults != new.topic_defaults:
        storage.replicas.broker_config_changed()


async def _quiesce(acceptor: Acceptor, dispatcher: Dispatcher, storage: _Storage) -> None:
    """Stop accepting requests, and answer the accepted ones."""
    acceptor.stop_accepting()
    await dispatcher.stop()
    storage.replicas.close()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _DRAIN_S
    while acceptor.has_work and loop.time() < until_s:
        await asyncio.sleep(0.005)
    acceptor.close()
    await storage.io.wait_until_idle()
