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
that undo its effects. They run in reverse order after the failure of a later phase, and at a stop. The package
:mod:`.starting` has the phases; :class:`BrokerStart` calls them in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.coordinators import Coordinators
from spark_kafkalite.broker.hung_disks import hang_limit_s
from spark_kafkalite.broker.metrics.health import BrokerState
from spark_kafkalite.broker.network.acceptor import Acceptor
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.requests.dispatch import Dispatcher
from spark_kafkalite.broker.requests.slow_requests import watch_for
from spark_kafkalite.broker.secret_keeper import check_secret_file
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.starting.cluster import (
    OpenedRegistry,
    first_for_clients,
    get_secret,
    join_cluster,
    open_registry,
)
from spark_kafkalite.broker.starting.ground import Given, Ground, lay_ground
from spark_kafkalite.broker.starting.requests import (
    GroupParts,
    bind,
    end_sessions_of_deleted_users,
    make_context,
    make_groups,
    make_topics,
    start_replication,
)
from spark_kafkalite.broker.starting.storage import Storage, load_logs, lock_log_dirs, quiesce, watch_disks
from spark_kafkalite.broker.starting.upkeep import start_comparison, start_upkeep
from spark_kafkalite.broker.tls_reload import TlsReload
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaliteError, KafkaStorageError
from spark_kafkalite.log.directories import runs
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.registry.cluster.membership import OpenStore
from spark_kafkalite.slices import Slices


class BrokerStart:
    """The start of one broker; the module's docstring lists its phases."""

    # The simulator replaces these, because it simulates time and network.
    make_io = IoThreads
    make_peers = Peers
    make_slices = Slices
    # The simulator has no clients that authenticate; its recorded schedules know no reads of users and ACLs.
    follows_users_and_acls = True
    read_boot_id = staticmethod(runs.boot_id)

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
        self._given = Given(config, clock, fs, undo)
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
        given, ground = self._given, self._prepare(loop)
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
        membership, boot_id = registry.membership, self.read_boot_id()
        proven = await load_logs(given, ground, storage, membership, boot_id, self._on_disks_lost)
        ground.health.enter(BrokerState.STARTING)
        acceptor, listeners = self._bind(ground, storage)
        end_sessions_of_deleted_users(given, ground, registry, acceptor)
        topics = make_topics(ground, storage, registry, acceptor)
        coordinators = Coordinators(ground.lease, given.clock)
        storage.services.on_role_change.append(coordinators.role_changed)
        groups = make_groups(given, ground, storage, registry, topics, coordinators)
        context = make_context(given, ground, storage, registry, topics, coordinators, groups, listeners)
        meter = None if ground.meters is None else ground.meters.requests
        watch = watch_for(self.config["request.log.slow.ms"], meter)
        dispatcher = Dispatcher(context, watch=watch, quotas=ground.quotas.clients)
        replication = start_replication(given, ground, storage, registry, context)
        if ground.metrics is not None:
            ground.metrics.serve_broker(context, acceptor, replication)
        await join_cluster(given, ground, storage, registry, listeners, proven)
        self._keep_certificates(ground, storage)
        self._watch_disks(ground, storage)
        self._undo.push_async_callback(quiesce, acceptor, dispatcher, storage)
        self._undo.callback(ground.health.enter, BrokerState.SHUTTING_DOWN)
        if self.config["controlled.shutdown.enable"]:
            self._undo.push_async_callback(replication.hand_over, self.config["controlled.shutdown.max.ms"] / 1000)
            self._undo.callback(ground.health.enter, BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        await self._start_upkeep(ground, storage, registry, groups, context)
        start_comparison(given, ground, storage, registry, context)
        acceptor.start(dispatcher.serve)
        ground.health.enter(BrokerState.RUNNING)

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> Ground:
        own = self.has_own_registry
        ground = lay_ground(self._given, loop, self.make_slices(loop), self.make_peers, has_own_registry=own)
        self.settings = ground.settings
        return ground

    def _lock_log_dirs(self, ground: Ground) -> Storage:
        return lock_log_dirs(self._given, ground, self.make_io)

    async def _open_registry(self, ground: Ground, storage: Storage) -> OpenedRegistry:
        registry = await open_registry(
            self._given,
            ground,
            storage,
            self._open_store,
            hang_limit_s=self._hang_limit_s(),
            follows_users_and_acls=self.follows_users_and_acls,
            on_registry_lost=self._on_registry_lost,
        )
        self.registry_address = registry.address
        return registry

    async def _get_secret(self, ground: Ground, storage: Storage, registry: OpenedRegistry) -> None:
        await get_secret(self._given, ground, storage, registry)

    def _bind(self, ground: Ground, storage: Storage) -> tuple[Acceptor, dict[str, Listener]]:
        acceptor, listeners = bind(self._given, ground, storage)
        first = first_for_clients(self.config, listeners.values())
        self.address = address_text(first.advertised_host, first.advertised_port)
        return acceptor, listeners

    def _keep_certificates(self, ground: Ground, storage: Storage) -> None:
        """Renew the certificates of listeners when their files change."""
        self.tls_reload = TlsReload(ground.loop, ground.tls, ground.settings, storage.io)
        self._undo.callback(self.tls_reload.stop)

    def _watch_disks(self, ground: Ground, storage: Storage) -> None:
        watch_disks(self._given, ground, storage, self._hang_limit_s())

    async def _start_upkeep(
        self, ground: Ground, storage: Storage, registry: OpenedRegistry, groups: GroupParts, context: BrokerContext
    ) -> None:
        await start_upkeep(self._given, ground, storage, registry, groups, context)

    def _hang_limit_s(self) -> float:
        return hang_limit_s(self.config["zookeeper.session.timeout.ms"])
