"""The periodic work of a broker, begun at the end of its start."""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.recovery_answer import RecoveryAnswer
from spark_kafkalite.broker.registry_notes import RegistryNotes
from spark_kafkalite.broker.replication.comparison import Comparison
from spark_kafkalite.broker.starting.cluster import OpenedRegistry
from spark_kafkalite.broker.starting.ground import Given, Ground
from spark_kafkalite.broker.starting.requests import GroupParts
from spark_kafkalite.broker.starting.storage import Storage
from spark_kafkalite.broker.upkeep.cleaner import Cleaner
from spark_kafkalite.broker.upkeep.disk_watch import DiskWatch
from spark_kafkalite.broker.upkeep.timers import Upkeep
from spark_kafkalite.collector import Collector


async def start_upkeep(
    given: Given, ground: Ground, storage: Storage, registry: OpenedRegistry, groups: GroupParts, context: BrokerContext
) -> None:
    """Start the periodic work."""
    config, loop, io = given.config, ground.loop, storage.io
    logs, replicas = storage.logs, storage.replicas
    own, membership = registry.own, registry.membership
    notes = RegistryNotes(logs, storage.evidence, lambda: membership.seen_zxid if own is None else own.committed_zxid)
    upkeep = Upkeep(loop, ground.slices, config, io, logs, replicas, notes)
    upkeep.start()
    given.undo.callback(upkeep.stop)
    groups.expiry.start(config["offsets.retention.check.interval.ms"] / 1000)
    given.undo.push_async_callback(groups.expiry.stop)
    context.retention.start()
    given.undo.callback(context.retention.stop)
    cleaner = Cleaner(ground.settings, logs, replicas, io, registry.age_clock(given.clock), ground.slices)
    cleaner.start()
    if ground.metrics is not None:
        ground.metrics.cleaner = cleaner
    given.undo.push_async_callback(cleaner.stop)
    disks = DiskWatch(loop, io, logs, replicas, on_room=registry.membership.check_everything)
    disks.start()
    given.undo.callback(disks.stop)
    if own is None:
        context.recovery_answer = RecoveryAnswer(
            given.config.broker_id,
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
    given.undo.callback(collector.stop)


def start_comparison(
    given: Given, ground: Ground, storage: Storage, registry: OpenedRegistry, context: BrokerContext
) -> None:
    """Compare logs with those of their leaders from time to time. A broker with an embedded registry has no leaders
    to follow."""
    if registry.own is not None:
        return
    comparison = context.comparison = Comparison(
        ground.loop,
        given.config,
        storage.io,
        given.clock,
        storage.logs,
        storage.replicas,
        storage.services,
        ground.view,
        ground.peers,
    )
    comparison.start()
    given.undo.push_async_callback(comparison.stop)
