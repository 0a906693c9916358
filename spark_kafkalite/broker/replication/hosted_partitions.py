"""The partitions that this broker hosts, by name and number: what handlers and the broker's other parts ask.

``Replicas`` keeps them in step with the registry; nothing here changes them.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.errors import KafkaStorageError, NotLeaderOrFollower, UnknownTopicOrPartition
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView


class HostedPartitions:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: LogManager,
        services: PartitionServices,
        view: ClusterView,
        failed: dict[TopicPartition, KafkaStorageError],
    ) -> None:
        """``failed``: why partitions that this broker should host have no log, at any time."""
        self._loop = loop
        self._logs = logs
        self._services = services
        self._view = view
        self._failed = failed
        self._partitions: dict[TopicPartition, Partition] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}

    def get(self, topic_partition: TopicPartition) -> Partition:
        """Return a hosted partition.

        Raises UnknownTopicOrPartition (3), NotLeaderOrFollower (6) when it exists elsewhere (or not here yet),
        KafkaStorageError (56) when its log cannot be opened.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            return partition
        if topic_partition in self._failed:
            raise self._failed[topic_partition]
        if self._view.state.partition(topic_partition) is None:
            raise UnknownTopicOrPartition(f"{topic_partition} does not exist")
        raise NotLeaderOrFollower(f"broker {self._services.broker_id} does not host {topic_partition}")

    def topic_id_of_log(self, topic_partition: TopicPartition) -> bytes | None:
        """Return which topic's log this broker has of a partition; None where it has none, or the log does not name
        one."""
        log = self._logs.get(topic_partition)
        return None if log is None else log.topic_id

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a hosted partition, None when there is none."""
        return self._partitions.get(topic_partition)

    @property
    def refused(self) -> Mapping[TopicPartition, KafkaStorageError]:
        """Why partitions that this broker should host have no log that can be served."""
        return {key: error for key, error in self._failed.items() if key not in self._partitions}

    @property
    def throttles(self) -> Mapping[str, ReplicationThrottle]:
        """The throttles of what is copied from this broker and by it, by its role in that."""
        return {"leader": self._services.leader_throttle, "follower": self._services.follower_throttle}

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def high_watermarks(self, *, replicated: bool = False) -> dict[TopicPartition, int]:
        """Return the high watermark of every hosted partition, for the checkpoint; or of those that have other
        replicas."""
        return {
            key: partition.bounds.remembered_high_watermark
            for key, partition in self._partitions.items()
            if not replicated or partition.is_replicated
        }

    def has_leader(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the partition's leader is registered, whether it serves or not."""
        state = self._state_of(topic_partition, topic_id)
        return state is not None and state.leader in self._view.state.brokers

    def _state_of(self, topic_partition: TopicPartition, topic_id: bytes) -> PartitionState | None:
        is_same = self._view.topic_id_of(topic_partition.topic) == topic_id
        return self._view.state.partition(topic_partition) if is_same else None

    def serves(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether clients can be sent to the partition's leader; if this broker is it, whether it leads."""
        state = self._state_of(topic_partition, topic_id)
        if state is None or state.leader < 0:
            return False
        if state.leader != self._services.broker_id:
            return state.leader in self._view.state.brokers
        partition = self._partitions.get(topic_partition)
        return partition is not None and partition.is_leader and partition.topic_id == topic_id

    def leads_or_failed(self, topic: str, partition_number: int) -> bool:
        """Return whether this broker leads the partition by now, or never will because its disk failed."""
        topic_partition = TopicPartition(topic, partition_number)
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return topic_partition in self._failed
        return partition.is_leader or partition.storage_error is not None

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``condition``, checked after every change, holds; return whether it did in time."""
        deadline_s = self._loop.time() + timeout_s
        while not condition():
            waiter = self._loop.create_future()
            self._waiters[waiter] = None
            timer = self._loop.call_at(deadline_s, complete, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.pop(waiter, None)
            if self._loop.time() >= deadline_s:
                return condition()
        return True

    def _changed(self) -> None:
        for waiter in self._waiters:
            complete(waiter)

    @property
    def has_failed(self) -> bool:
        """Whether some partition has no log, because it could not be opened or made."""
        return bool(self._failed)

    def in_directory(self, path: str) -> list[Partition]:
        """Return the partitions whose logs lie in a log directory."""
        return [partition for partition in self._partitions.values() if partition.log.disk.path == path]

    @property
    def offline_count(self) -> int:
        """How many replicas cannot be served because of their disks."""
        return len(self._failed) + sum(each.storage_error is not None for each in self)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Return whether this broker's replica cannot be served because of its disk."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return topic_partition in self._failed
        return partition.storage_error is not None


def complete(waiter: asyncio.Future[None]) -> None:
    """Have a waiter go on, unless it does."""
    if not waiter.done():
        waiter.set_result(None)
