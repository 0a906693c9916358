"""The broker as a process: what starts after what, and how it ends.

Start: settings are checked already; log directories are locked; the registry is opened, unless the directories show
that it is not the one they knew (``registry_evidence``), and the cluster read; the logs are loaded (recovered after a
crash); the listening sockets are bound, so that their ports are known; the broker registers itself, which makes its old
leaderships void; the controller elects leaders; when every partition that this broker leads is in place, connections
are accepted and the ready line is printed. A broker that prints it serves.

A stop ends the start wherever it waits; what was begun by then is undone.

Stop (SIGTERM, SIGINT): nothing is accepted any more; handlers that wait are cancelled, fetches and produces that wait
are answered; connections close; threads end; the controller's role and the registration are given up; logs are
flushed and closed and the clean-shutdown marker is written; the registry closes last. Exit code 0.

If the registry is lost (its disk failed) the broker stops with exit code 1: it may not lead what it cannot prove to
lead. So it does when its last log directory fails, as Kafka halts then: alive it could only refuse, and its clients
would go on asking it. Nothing is written to failed directories, so their next start is one after a crash. Whatever
hangs on such a disk is not waited for: the process ends after some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from spark_kafkalite.broker import handlers
from spark_kafkalite.broker.acceptor import Acceptor
from spark_kafkalite.broker.cleaner import Cleaner
from spark_kafkalite.broker.config import BrokerConfig
from spark_kafkalite.broker.config_changes import ConfigChanges
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.descriptors import Descriptors, raise_limit
from spark_kafkalite.broker.disk_watch import DiskWatch
from spark_kafkalite.broker.dispatch import Dispatcher
from spark_kafkalite.broker.dynamic_config import DynamicConfig
from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.group_settings import offsets_topic
from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.io_threads import IoThreads, Lane
from spark_kafkalite.broker.listeners import address_text
from spark_kafkalite.broker.partition import Partition, PartitionServices
from spark_kafkalite.broker.purgatory import Purgatory
from spark_kafkalite.broker.registry_evidence import RegistryEvidence
from spark_kafkalite.broker.replicas import Replicas
from spark_kafkalite.broker.request_memory import RequestMemory
from spark_kafkalite.broker.retention import Retention
from spark_kafkalite.broker.topics import Topics
from spark_kafkalite.broker.upkeep import Upkeep
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.collector import Collector
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.expiry import OffsetExpiry
from spark_kafkalite.coordinator.groups.groups_state import GroupsState
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.errors import ConfigError, KafkaStorageError, RegistryError
from spark_kafkalite.log.checkpoint import META_FILE, CheckpointError, read_meta
from spark_kafkalite.log.fs import Fs, OsFs
from spark_kafkalite.log.loading import LoadInterrupted
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.producer_state import ProducerIdLimits
from spark_kafkalite.log.unopened import LogLimit
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import session
from spark_kafkalite.registry.cluster_state import BrokerInfo, ClusterState
from spark_kafkalite.registry.controller import Controller
from spark_kafkalite.registry.embedded import open_embedded
from spark_kafkalite.registry.embedded_store import EmbeddedStore
from spark_kafkalite.registry.producer_ids import ProducerIds
from spark_kafkalite.registry.store import SessionState, Store, call_in_loop
from spark_kafkalite.registry.watcher import ClusterWatcher
from spark_kafkalite.registry.znodes import BrokerRegistration, MalformedNode
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)

# How long answers that are owed at a stop may take to leave.
_DRAIN_S = 1.0
# How long the first elections may take; afterwards the broker serves what it has.
_FIRST_LEADERS_S = 30.0
_SHOWN_PARTITIONS = 10
# How long a stop may take that no log directory is left for; a thread may hang in a call to a dead disk.
_STOP_WITHOUT_DISKS_S = 3.0


class Broker:
    """One broker in this process, around one event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock = SYSTEM_CLOCK, fs: Fs | None = None) -> None:
        self.config = config
        self._clock = clock
        self._fs = fs if fs is not None else OsFs()
        self._stop_wanted: asyncio.Event
        self._exit_code = 0
        # Where other processes reach the embedded registry, None when nowhere.
        self.registry_address: str | None = None
        # Ends the process when a stop without disks takes too long.
        self._halt = threading.Timer(_STOP_WITHOUT_DISKS_S, os._exit, (1,))
        self._halt.daemon = True
        # Undone in reverse order, also when the start fails half-way.
        self._undo = contextlib.AsyncExitStack()
        self._undo.callback(self._halt.cancel)

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Start, serve until told to stop, stop; return the exit code. ``on_ready`` gets the ready line or lines.

        Raises ConfigError, RegistryError and KafkaStorageError when the start fails.
        """
        # What has been imported is no garbage.
        gc.freeze()
        loop = asyncio.get_running_loop()
        self._stop_wanted = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        async with self._undo:
            if not await self._start_unless_stopped(loop):
                return self._exit_code
            if not self._stop_wanted.is_set():
                on_ready(self._ready_text())
            await self._stop_wanted.wait()
            logger.info("broker %d stops", self.config.broker_id)
        return self._exit_code

    async def _start_unless_stopped(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start; return whether that came to its end. A stop ends it wherever it waits, and what it began is undone."""
        starting = loop.create_task(self._start(loop))
        stopping = loop.create_task(self._stop_wanted.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
        try:
            await starting
        except LoadInterrupted as error:
            logger.info("broker %d stops: %s; the next start recovers its logs again", self.config.broker_id, error)
            return False
        except asyncio.CancelledError:
            logger.info("broker %d stops before it has started", self.config.broker_id)
            return False
        except MalformedNode as error:
            registry_dir = self.config.registry_dir
            raise RegistryError(
                f"{error}; with the broker stopped, write what it should hold through kafkalite registry --data "
                f"{registry_dir}, or have the registry made from the logs by kafkalite registry rebuild"
            ) from error
        return True

    def _ready_text(self) -> str:
        ready = f"kafkalite broker {self.config.broker_id} ready on {self.address}"
        if self.registry_address is not None:
            ready += f"\nkafkalite broker {self.config.broker_id} registry ready on {self.registry_address}"
        return ready

    def stop(self, exit_code: int = 0) -> None:
        """Have :meth:`run` end. May be called from a signal handler of the loop."""
        self._exit_code = max(self._exit_code, exit_code)
        self._stop_wanted.set()

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        broker_id = BrokerId(config.broker_id)
        descriptors = Descriptors(raise_limit(), serves_registry=config.registry_listener is not None)
        slices = Slices(loop)
        logs = LogManager(
            self._fs,
            [str(directory) for directory in config.log_dirs],
            self._clock,
            config_of=lambda name: topics.config_of(name),
            producer_limits=ProducerIdLimits(
                config["max.producer.ids.per.partition"], config["producer.id.expiration.ms"]
            ),
            min_free_bytes=config["log.dir.min.free.bytes"],
            reserve_bytes=config["log.dir.reserve.bytes"],
            open_files=descriptors.kept_open,
            log_limit=LogLimit(descriptors.most_partitions, descriptors.why_log_stays_closed),
            topic_id_of=lambda name: topic.topic_id if (topic := watcher.state.topics.get(name)) is not None else None,
        )
        logs.open()
        # Replaced by the orderly shutdown once the logs are loaded: before that there is nothing to flush, and a
        # clean-shutdown marker would be a lie.
        loaded = False
        self._undo.callback(lambda: None if loaded else logs.abandon())

        evidence = RegistryEvidence(self._fs, logs.log_dirs, config.registry_dir)
        store = self._open_registry(loop, logs, evidence, descriptors)
        watcher = ClusterWatcher(store, slices=slices)
        controller = Controller(
            store,
            watcher,
            broker_id,
            self._clock,
            unclean_election=lambda name: topics.config_of(name).unclean_leader_election_enable,
            slices=slices,
        )
        await session.create_base_nodes(store)
        cluster_id = await session.cluster_id(store, self._stored_cluster_id())

        io = IoThreads(loop, config["num.io.threads"])
        self._undo.callback(io.close)
        memory = RequestMemory(config["queued.max.request.bytes"])
        services = PartitionServices(
            config.broker_id,
            self._clock,
            io,
            Purgatory(loop),
            config["max.decompressed.batch.bytes"],
            self._storage_failed,
        )
        replicas = Replicas(loop, logs, services, lambda: watcher.state, lambda name: topics.config_of(name), slices)
        settings = DynamicConfig(config)
        topics = Topics(settings, controller, watcher, replicas, slices, descriptors, lambda: len(acceptor))
        self._replicas = replicas
        # Before the replicas, which ask for their topics' settings.
        watcher.add_listener(lambda old, new, _: settings.cluster_changed(old, new))
        watcher.add_listener(replicas.cluster_changed)
        await watcher.start(cluster_id)
        self._undo.callback(watcher.close)
        evidence.check_unclaimed(watcher.state)
        logs.claim(config.broker_id, cluster_id)

        await self._load(loop, logs, settings.current["num.recovery.threads.per.data.dir"])
        loaded = True
        # Only now: loading runs in a thread, and raises by itself when no directory is left.
        logs.on_offline = partial(self._log_directory_failed, logs)
        # Settings may have changed while the logs were loaded.
        logs.update_configs()
        await replicas.set_strays_aside()
        self._undo.callback(lambda: logs.shutdown(replicas.high_watermarks()))

        retention = Retention(loop, config, io, self._clock, logs, replicas)
        producer_ids = ProducerIds(store, broker_id)
        offsets_host = InternalTopicHost(offsets_topic(config.values), slices, io, watcher, topics, replicas)
        group_shards = Shards(offsets_host, partial(GroupsState, _group_limits(config)), self._clock)
        services.on_role_change = partial(offsets_host.role_changed, group_shards)
        expiry = OffsetExpiry(
            group_shards, slices, self._clock, lambda: int(settings.current["offsets.retention.minutes"]) * 60_000
        )
        watcher.add_listener(lambda _, __, change: expiry.topics_deleted([name for name, _ in change.deleted_topics]))
        groups = GroupCoordinator(group_shards, self._clock, config["group.coordinator.max.bytes"])
        self._undo.callback(groups.close)
        self._undo.callback(group_shards.close)
        context = BrokerContext(
            settings,
            ConfigChanges(settings, store, watcher, topics, replicas),
            self._clock,
            loop,
            slices,
            io,
            memory,
            logs,
            replicas,
            watcher,
            topics,
            producer_ids,
            retention,
            offsets_host,
            group_shards,
            groups,
            {},
        )
        handlers.load()
        dispatcher = Dispatcher(context)
        acceptor = Acceptor(loop, slices, settings, memory, dispatcher.serve, descriptors, lambda: len(logs.logs))
        self._undo.callback(acceptor.close)
        listeners = acceptor.bind()
        context.listeners.update({listener.name: listener for listener in listeners})
        self.address = address_text(listeners[0].advertised_host, listeners[0].advertised_port)

        def settings_changed(old: BrokerConfig, new: BrokerConfig) -> None:
            logs.producer_limits.max_ids = new["max.producer.ids.per.partition"]
            logs.producer_limits.expiration_ms = new["producer.id.expiration.ms"]
            io.resize(new["num.io.threads"])
            if old.topic_defaults != new.topic_defaults:
                replicas.broker_config_changed()

        settings_changed(config, settings.current)
        settings.add_listener(settings_changed)
        await self._register(store, controller, replicas, watcher, context)
        self._undo.push_async_callback(self._quiesce, acceptor, dispatcher, replicas, io)
        upkeep = Upkeep(loop, slices, config, io, logs, replicas, evidence, lambda: store.registry.committed_zxid)
        upkeep.start()
        self._undo.callback(upkeep.stop)
        expiry.start(config["offsets.retention.check.interval.ms"] / 1000)
        self._undo.push_async_callback(expiry.stop)
        retention.start()
        self._undo.callback(retention.stop)
        cleaner = Cleaner(settings, logs, replicas, io, self._clock)
        cleaner.start()
        self._undo.push_async_callback(cleaner.stop)
        disks = DiskWatch(loop, io, logs, replicas, controller)
        disks.start()
        self._undo.callback(disks.stop)
        zxid = store.registry.committed_zxid
        if zxid < evidence.zxid:
            # A registry begun anew, which nobody misses: not to be compared with the old one's numbers after a crash.
            await io.run(lambda: evidence.note([each.path for each in logs.directories.online], zxid), Lane.SYNC)
        # Before anybody is served: with thousands of logs its first look takes half a second.
        collector = Collector(loop)
        collector.start()
        self._undo.callback(collector.stop)
        acceptor.start()

    async def _load(self, loop: asyncio.AbstractEventLoop, logs: LogManager, threads_per_dir: int) -> None:
        """Load the logs in a thread: recovery after a crash may take minutes, in which a stop must be heard."""
        with ThreadPoolExecutor(1, thread_name_prefix="kafkalite-load") as executor:
            loading = loop.run_in_executor(executor, logs.load, threads_per_dir)
            try:
                await asyncio.shield(loading)
            except asyncio.CancelledError:
                logs.interrupt_load()
                await loading
                raise

    def _open_registry(
        self, loop: asyncio.AbstractEventLoop, logs: LogManager, evidence: RegistryEvidence, descriptors: Descriptors
    ) -> EmbeddedStore:
        registry_dir = self.config.registry_dir
        evidence.check_file()
        store = open_embedded(
            registry_dir,
            clock=self._clock,
            make_room=lambda: logs.directories.release_reserve_beside(str(registry_dir)),
            check=evidence.check_tree,
        )
        self._undo.callback(store.close)

        def session_changed(state: SessionState) -> None:
            if state is SessionState.LOST:
                call_in_loop(loop, self._registry_lost)

        store.add_session_listener(session_changed)
        listener = self.config.registry_listener
        if listener is not None:
            # Not at the top: most brokers serve no registry, and start faster without.
            from spark_kafkalite.registry.tree_server import TreeServer

            server = TreeServer(store.registry, digest=listener.digest, max_connections=descriptors.registry_clients)
            try:
                port = server.start(listener.host, listener.port)
            except OSError as error:
                where = self.config["registry.listener"]
                raise ConfigError(f"cannot listen on registry.listener={where}: {error.strerror}") from error
            self._undo.callback(server.close)
            self.registry_address = listener.address(port)
        return store

    async def _register(
        self,
        store: Store,
        controller: Controller,
        replicas: Replicas,
        watcher: ClusterWatcher,
        context: BrokerContext,
    ) -> None:
        """Register, get leaders elected, and wait until those of this broker's partitions serve."""
        config = self.config
        first, *_ = context.listeners.values()
        registration = BrokerRegistration(
            BrokerId(config.broker_id),
            first.advertised_host,
            first.advertised_port,
            rack=config.rack,
            timestamp_ms=self._clock.wall_ms(),
            endpoints=tuple(listener.endpoint for listener in context.listeners.values()),
        )
        epoch = await session.register_broker(store, registration)
        self._undo.push_async_callback(_deregister, controller, store, config.broker_id)
        replicas.set_registration(
            BrokerInfo(BrokerId(config.broker_id), first.advertised_host, first.advertised_port, config.rack, epoch)
        )
        await watcher.caught_up()
        await controller.start()

        def all_led() -> bool:
            state = watcher.state
            return replicas.is_idle and all(
                partition.leader != config.broker_id or replicas.leads_or_failed(name, number)
                for name, topic in state.topics.items()
                for number, partition in topic.partitions.items()
                if config.broker_id in partition.replicas
            )

        if not await replicas.wait_until(all_led, _FIRST_LEADERS_S):
            logger.warning("some partitions have no leader after %.0f s; serving the others", _FIRST_LEADERS_S)
        self._tell_of_leaderless(watcher.state)

    def _tell_of_leaderless(self, cluster: ClusterState) -> None:
        leaderless = [
            f"{name}-{number}"
            for name, topic in cluster.topics.items()
            for number, partition in topic.partitions.items()
            if self.config.broker_id in partition.replicas and partition.leader < 0 and not partition.unreadable
        ]
        if leaderless:
            logger.warning(
                "partitions without a leader, because no replica that was in sync lives: %s%s; start the brokers that "
                "were, or set unclean.leader.election.enable=true for their topics and lose what only those hold",
                ", ".join(leaderless[:_SHOWN_PARTITIONS]),
                f" and {len(leaderless) - _SHOWN_PARTITIONS} more" if len(leaderless) > _SHOWN_PARTITIONS else "",
            )

    def _stored_cluster_id(self) -> str | None:
        """Return the cluster id that the log directories belong to, None when they are new."""
        for directory in self.config.log_dirs:
            try:
                meta = read_meta(self._fs, f"{directory}/{META_FILE}")
            except CheckpointError as error:
                raise ConfigError(str(error)) from error
            except OSError:
                # It is, or will be, offline.
                continue
            if meta is not None and "cluster.id" in meta:
                return meta["cluster.id"]
        return None

    def _storage_failed(self, partition: Partition, error: BaseException) -> None:
        self._replicas.storage_failed(partition, error)

    def _log_directory_failed(self, logs: LogManager, path: str) -> None:
        """Go on without the directory; without any, stop. Source: LogManager.handleLogDirFailure."""
        self._replicas.directory_failed(path)
        try:
            logs.directories.check_any_online()
        except KafkaStorageError as error:
            logger.critical("broker %d stops: %s", self.config.broker_id, error)
            self.stop(1)
            self._halt.start()

    def _registry_lost(self) -> None:
        if not self._stop_wanted.is_set():
            logger.error("the registry is lost; this broker cannot lead any partition without it and stops")
            self.stop(1)

    async def _quiesce(self, acceptor: Acceptor, dispatcher: Dispatcher, replicas: Replicas, io: IoThreads) -> None:
        """Stop taking requests and give those that were taken their answers."""
        acceptor.stop_accepting()
        await dispatcher.stop()
        replicas.close()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _DRAIN_S
        while acceptor.has_work and loop.time() < until_s:
            await asyncio.sleep(0.005)
        acceptor.close()
        await io.wait_until_idle()


async def _deregister(controller: Controller, store: Store, broker_id: int) -> None:
    with contextlib.suppress(RegistryError):
        await controller.close()
        await session.deregister_broker(store, broker_id)


def _group_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config["group.min.session.timeout.ms"],
        max_session_timeout_ms=config["group.max.session.timeout.ms"],
        max_size=config["group.max.size"],
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        max_bytes=config["group.max.bytes"],
    )


def run_broker(config: BrokerConfig) -> int:
    """Run a broker in this process until SIGTERM or SIGINT; return the exit code.

    Raises KafkaliteError when it cannot start; the caller shows the text.
    """
    configure_logging(config["logging.level"])

    def print_ready(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return asyncio.run(Broker(config).run(print_ready))
