"""The log directories of a starting broker: locked first, loaded later, and what works on them while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from spark_kafkalite.broker.hung_disks import HungDisks
from spark_kafkalite.broker.network.acceptor import Acceptor
from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.replication.partition import PartitionServices
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.unproven_logs import UnprovenLogs
from spark_kafkalite.broker.requests.dispatch import Dispatcher
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.quota_settings import FOLLOWER_RATE, LEADER_RATE
from spark_kafkalite.broker.standalone.registry_evidence import RegistryEvidence
from spark_kafkalite.broker.starting.ground import Given, Ground
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.unopened import LogLimit
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.producer_state import ProducerIdLimits
from spark_kafkalite.model import Incarnation
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.registry.cluster.membership import ClusterMembership

# How long a stop waits for the sending of outstanding answers.
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Storage:
    """The log directories and the objects that use them. ``evidence`` is their information about the registry."""

    logs: LogManager
    evidence: RegistryEvidence
    io: IoThreads
    services: PartitionServices
    replicas: Replicas


def lock_log_dirs(
    given: Given, ground: Ground, make_io: Callable[[asyncio.AbstractEventLoop, int], IoThreads]
) -> Storage:
    """Lock the log directories and list their contents. This does not load logs."""
    config = given.config
    logs = LogManager(
        given.fs,
        [str(directory) for directory in config.log_dirs],
        given.clock,
        config_of=ground.topic_settings.config_of,
        producer_limits=ProducerIdLimits(config["max.producer.ids.per.partition"], config["producer.id.expiration.ms"]),
        min_free_bytes=config["log.dir.min.free.bytes"],
        reserve_bytes=config["log.dir.reserve.bytes"],
        open_files=ground.descriptors.kept_open,
        log_limit=LogLimit(
            ground.descriptors.most_partitions, ground.descriptors.why_log_stays_closed, ground.descriptors.remedy
        ),
        topic_id_of=ground.view.topic_id_of,
        lost_directories=config["log.dirs.lost"],
    )
    if ground.metrics is not None:
        ground.metrics.logs = logs
    logs.open()
    # Does nothing after an orderly shutdown, which runs before this if the logs have been loaded.
    given.undo.callback(logs.abandon)
    evidence = RegistryEvidence(given.fs, logs.log_dirs, config.registry_dir, logs.directories.missing)
    io = make_io(ground.loop, config["num.io.threads"])
    given.undo.callback(io.close)
    services = PartitionServices(
        config.broker_id,
        given.clock,
        io,
        Purgatory(ground.loop),
        config["max.decompressed.batch.bytes"],
        meters=ground.meters,
        throttle_windows=Windows(
            config["replication.quota.window.num"], config["replication.quota.window.size.seconds"]
        ),
    )
    replicas = Replicas(ground.loop, logs, services, ground.view, ground.topic_settings.config_of, ground.slices)
    ground.view.add_listener(replicas.cluster_changed)
    return Storage(logs, evidence, io, services, replicas)


async def load_logs(
    given: Given,
    ground: Ground,
    storage: Storage,
    membership: ClusterMembership,
    boot_id: str,
    on_disks_lost: Callable[[KafkaStorageError], None],
) -> tuple[Incarnation, ...]:
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
    given.undo.callback(lambda: logs.shutdown(replicas.high_watermarks()))
    # Only now: the load runs in a thread, and raises an error itself if no directory is left.
    logs.on_offline.append(partial(_directory_failed, storage, on_disks_lost))
    # Settings may have changed while the logs were loaded.
    logs.update_configs()
    follow = partial(_settings_changed, storage)
    follow(given.config, ground.settings.current)
    ground.settings.add_listener(follow)
    await replicas.compare_logs()
    not_whole = logs.not_whole()
    proven = logs.runs.proven(boot_id, len(not_whole))
    if proven and not_whole:
        # Until the states are written: after a crash they must not name logs that the next start takes as complete.
        logs.runs.forget()
        me = given.config.broker_id
        unproven = UnprovenLogs(ground.loop, ground.slices, ground.view, me, lambda: membership.session.store)
        if not await unproven.take_back(not_whole):
            proven = ()
    logs.runs.begin(ground.incarnation, boot_id, proven)
    return proven


def watch_disks(given: Given, ground: Ground, storage: Storage, hang_limit_s: float) -> None:
    """Watch for log directories whose disks hang."""
    disks = HungDisks(
        ground.loop,
        storage.io,
        given.fs.calls,
        storage.logs.directories,
        storage.replicas,
        hang_limit_s,
    )
    disks.start()
    given.undo.callback(disks.stop)


def _directory_failed(storage: Storage, on_disks_lost: Callable[[KafkaStorageError], None], path: str) -> None:
    """Continue without the directory if another one is left."""
    storage.replicas.directory_failed(path)
    try:
        storage.logs.directories.check_any_online()
    except KafkaStorageError as error:
        on_disks_lost(error)


def _settings_changed(storage: Storage, old: BrokerConfig, new: BrokerConfig) -> None:
    """Apply new values of settings to the objects that keep a copy of them."""
    storage.logs.producer_limits.max_ids = new["max.producer.ids.per.partition"]
    storage.logs.producer_limits.expiration_ms = new["producer.id.expiration.ms"]
    storage.io.resize(new["num.io.threads"])
    storage.services.leader_throttle.obey(new[LEADER_RATE])
    storage.services.follower_throttle.obey(new[FOLLOWER_RATE])
    if old.topic_defaults != new.topic_defaults:
        storage.replicas.broker_config_changed()


async def quiesce(acceptor: Acceptor, dispatcher: Dispatcher, storage: Storage) -> None:
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
