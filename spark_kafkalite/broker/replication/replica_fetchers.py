"""What this broker follows, each partition with the fetcher of its leader."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replica_fetcher import Key, LeaderFetcher
from spark_kafkalite.model import TopicPartition


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

    def close(self) -> None:
        """End: nothing is copied any more."""
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
