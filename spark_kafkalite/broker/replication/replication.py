"""All that copies what others lead and looks after the ISRs of what this broker leads, put together.

Made after replicas and registry, and before the broker registers itself: from then on it is asked to follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.isr_changes import IsrChanges, IsrWrites
from spark_kafkalite.broker.replication.isr_leaving import IsrLeaving
from spark_kafkalite.broker.replication.log_reports import LogReports
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.replication.replica_fetcher import Connect, FetchSettings, Key, LeaderFetcher
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.store import Store
from spark_kafkalite.slices import Slices


class ReplicaFetchers:
    """A :class:`LeaderFetcher` for each broker that leads what this one follows."""

    def __init__(self, make_fetcher: Callable[[int], LeaderFetcher]) -> None:
        """``make_fetcher`` makes the fetcher of a leader, by its number."""
        self._make_fetcher = make_fetcher
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._followed: dict[TopicPartition, tuple[LeaderFetcher, Key]] = {}
        self._closed = False

    def role_changed(self, partition: Partition) -> None:
        """Follow a partition from now on, or no longer, as its role requires."""
        before = self._followed.pop(partition.topic_partition, None)
        if before is not None:
            before[0].remove(before[1])
        role = partition.role
        if isinstance(role, Follower) and not self._closed:
            key = partition.topic_id, partition.topic_partition.partition
            fetcher = self._fetchers.get(role.leader_id)
            if fetcher is None:
                fetcher = self._fetchers[role.leader_id] = self._make_fetcher(role.leader_id)
            self._followed[partition.topic_partition] = fetcher, key
            fetcher.add(key, role)

    def registered(self, broker_ids: Iterable[int]) -> None:
        """Do not wait any longer to connect to brokers that have just registered."""
        for broker_id in broker_ids:
            fetcher = self._fetchers.get(broker_id)
            if fetcher is not None:
                fetcher.leader_changed()

    def throttle_changed(self) -> None:
        """Obey another rate of the throttle."""
        for fetcher in self._fetchers.values():
            fetcher.throttle_changed()

    def close(self) -> None:
        """End: nothing is copied any more."""
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()


class Replication:
    """See the module's text."""

    def __init__(
        self,
        config: BrokerConfig,
        incarnation: Incarnation,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        view: ClusterView,
        replicas: Replicas,
        connect: Connect,
        store: Callable[[], Store],
        throttle: ReplicationThrottle,
    ) -> None:
        """``connect`` opens a connection to a leader; ``store`` gives the present session with the registry, or raises
        SessionExpired. ``throttle`` bounds what this broker copies as a follower."""
        self._view = view
        settings = FetchSettings(
            config.broker_id,
            incarnation,
            max_wait_ms=config["replica.fetch.wait.max.ms"],
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            partition_max_bytes=config["replica.fetch.max.bytes"],
            backoff_s=config["replica.fetch.backoff.ms"] / 1000,
        )
        self._fetchers = ReplicaFetchers(
            lambda leader_id: LeaderFetcher(
                loop,
                slices,
                leader_id,
                lambda broker_id: view.state.brokers.get(broker_id),
                connect,
                settings,
                throttle,
            )
        )
        throttle.on_change = self._fetchers.throttle_changed
        lag_max_s = config["replica.lag.time.max.ms"] / 1000
        self._changes = IsrChanges(loop, slices, view, replicas, config.broker_id, store, lag_max_s)
        self._keeps_eligible = config["high.watermark.requires.min.insync"]
        self._leaving = IsrLeaving(
            loop, slices, view, replicas, config.broker_id, store, keeps_eligible=self._keeps_eligible
        )
        self._reports = LogReports(loop, slices, view, replicas, config.broker_id, incarnation, store)
        self._follower_backoff_s = settings.backoff_s

    def start(self, services: PartitionServices, on_leader_log_start: Callable[[Partition, int], None]) -> None:
        """Have partitions report what they follow, lead and lose, from now on.

        ``on_leader_log_start`` is called with where a follower's log should start, with its leader's.
        """
        services.follower_backoff_s = self._follower_backoff_s
        services.high_watermark_requires_min_insync = self._keeps_eligible
        services.on_following = self._fetchers.role_changed
        services.on_leader_log_start = on_leader_log_start
        services.isr_changes = self._changes
        services.on_offline += [self._leaving.partition_failed, self._reports.log_changed]
        services.on_settled.append(self._reports.log_changed)
        services.on_hanging = self._leaving.partitions_hang
        services.on_full, services.on_log_lost = self._leaving.partition_full, self._leaving.log_lost
        services.on_lacking, services.on_differing = self._leaving.partition_lacking, self._leaving.partition_differs
        services.on_damaged, services.on_damage_found = self._leaving.partition_damaged, _note_damage
        self._view.add_listener(self._cluster_changed)
        self._changes.start()
        self._leaving.start()
        self._reports.start()

    def _cluster_changed(self, _: ClusterState, __: ClusterState, change: ClusterChange) -> None:
        self._fetchers.registered((*change.new_brokers, *change.bounced_brokers))

    @property
    def isr_writes(self) -> IsrWrites:
        """The changes of ISRs that this broker has written as leader."""
        return self._changes.writes

    async def hand_over(self, within_s: float) -> None:
        """Copy nothing any more, resign what others can lead and leave the other ISRs, in not more than the given time.

        What was copied later would bring this broker back into ISRs.
        """
        self._fetchers.close()
        await self._leaving.hand_over(within_s)

    async def stop(self) -> None:
        """End."""
        await self._reports.stop()
        await self._leaving.stop()
        await self._changes.stop()
        self._fetchers.close()


def _note_damage(partition: Partition, ranges: Sequence[tuple[int, int]], reason: str) -> None:
    """Have a log lack what a comparison with another replica has shown to be damaged here; the comparison has logged
    why."""
    damage = partition.log.local.known_damage
    if damage.is_kept:
        for start_offset, end_offset in ranges:
            damage.add(start_offset, end_offset)
        damage.tell()
