"""Has this broker leave the ISRs that it is in, and give back what it leads, when it stops, or a disk or log is gone.

The partition is led no more before its state is written, so clients are sent on at once; whoever is elected finds a
leader that has stopped. For a stop and a failed disk nothing of that is needed for safety: it is what makes a stop
shorter than a death. A log that is gone is begun anew only after it (``Replicas``).

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from spark_kafkalite.broker.replication.bounds import required_isr
from spark_kafkalite.broker.replication.isr_nodes import read_state, write_state
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.leaving import state_without, state_without_lost
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.store import SessionExpired, Store
from spark_kafkalite.registry.znodes import MalformedNode

logger = logging.getLogger(__name__)

# Partitions that are left at a time.
_AT_ONCE: Final = 100
_RETRY_S: Final = 0.2


class IsrLeaving:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        view: ClusterView,
        replicas: Replicas,
        broker_id: int,
        store: Callable[[], Store],
        *,
        keeps_eligible: bool,
    ) -> None:
        """``store`` gives the present session with the registry, or raises SessionExpired; ``keeps_eligible`` is
        high.watermark.requires.min.insync."""
        self._loop = loop
        self._view = view
        self._replicas = replicas
        self._me = BrokerId(broker_id)
        self._store = store
        self._keeps_eligible = keeps_eligible
        self._given_back: set[TopicPartition] = set()
        self._failed: dict[Partition, None] = {}
        # Whose log is gone, with the topic's id.
        self._lost: dict[TopicPartition, bytes] = {}
        self._leaving_failed: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to look whether failed partitions can be left to others."""
        self._view.add_listener(self._cluster_changed)

    async def stop(self) -> None:
        """End."""
        self._stopped = True
        self._view.remove_listener(self._cluster_changed)
        if self._leaving_failed is not None:
            self._leaving_failed.cancel()
            await asyncio.wait([self._leaving_failed])

    # Failed disks ---------------------------------------------------------------------------------------------------

    def partition_failed(self, partition: Partition) -> None:
        """Leave a partition whose log cannot be trusted any more to others, now or when there are any."""
        self._failed[partition] = None
        # All of a directory fail in one pass of the loop.
        self._loop.call_soon(self._leave_failed)

    def log_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Leave a partition of which this broker has no log any more to those that had it."""
        self._lost[topic_partition] = topic_id
        self._loop.call_soon(self._leave_failed)

    def _cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        if self._failed and (change.new_brokers or change.bounced_brokers or change.changed_partitions):
            self._leave_failed()

    def _leave_failed(self) -> None:
        if (self._failed or self._lost) and self._leaving_failed is None and not self._stopped:
            failed = [each for each in self._failed if self._replicas.find(each.topic_partition) is each]
            self._failed = dict.fromkeys(failed)
            lost, self._lost = self._lost, {}
            each = [partial(self._leave, partition, keeps_log=False) for partition in failed]
            each += [partial(self._leave_lost, *one) for one in lost.items()]
            self._leaving_failed = self._loop.create_task(_do_all(each))
            self._leaving_failed.add_done_callback(self._left_failed)

    def _left_failed(self, task: asyncio.Task[None]) -> None:
        self._leaving_failed = None
        if not task.cancelled() and task.exception() is not None:
            logger.critical("partitions that have failed could not be left to others", exc_info=task.exception())
        if self._lost:
            self._leave_failed()

    # A stop ---------------------------------------------------------------------------------------------------------

    async def hand_over(self, within_s: float) -> None:
        """Give back what others can lead, leave the other ISRs, and wait until others lead; not longer than said.

        This broker must have stopped to follow: what it fetched later would bring it back.
        """
        try:
            async with asyncio.timeout(within_s):
                await _do_all([partial(self._leave, each, keeps_log=True) for each in self._replicas])
                waiting = self._given_back
                await self._view.wait_for(lambda cluster: self._are_led(cluster, waiting))
        except TimeoutError:
            logger.warning("other brokers do not lead everything after %.1f s; stopping all the same", within_s)

    def _are_led(self, cluster: ClusterState, waiting: set[TopicPartition]) -> bool:
        """Whether others lead ``waiting``, which is what is left of it: it is looked at after every change."""
        for topic_partition in list(waiting):
            state = cluster.partition(topic_partition)
            if state is None or state.leader not in (-1, self._me):
                waiting.discard(topic_partition)
        return not waiting

    # One partition --------------------------------------------------------------------------------------------------

    async def _leave(self, partition: Partition, *, keeps_log: bool) -> None:
        """Leave one partition, until it is left or there is nobody to leave it to."""
        keeps_log = keeps_log and partition.storage_error is None

        def without_me(state: PartitionState) -> PartitionState | None:
            after = self._without_me(partition, state, keeps_log=keeps_log)
            if after is not None and state.leader == self._me:
                partition.fence(f"broker {self._me} has given it back")
                self._given_back.add(partition.topic_partition)
            return after

        await self._write(partition.topic_partition, partition.topic_id, without_me, in_this_session=keeps_log)

    async def _leave_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        def without_me(state: PartitionState) -> PartitionState | None:
            # It may have a log by now, and be a member with that: then this state is not the one that it was asked for.
            is_lost = self._replicas.has_lost(topic_partition, topic_id)
            return state_without_lost(state, self._me) if is_lost else None

        await self._write(topic_partition, topic_id, without_me, in_this_session=False)

    async def _write(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        without_me: Callable[[PartitionState], PartitionState | None],
        *,
        in_this_session: bool,
    ) -> None:
        """Write the state without this broker, until it is written or ``without_me`` says that there is none."""
        state = self._view.state.partition(topic_partition)
        while state is not None and self._view.topic_id_of(topic_partition.topic) == topic_id:
            after = without_me(state)
            if after is None:
                return
            try:
                left = await write_state(self._store(), topic_partition, topic_id, state, after)
                if left is not None:
                    logger.debug("%s: left to %s", topic_partition, left.isr)
                    return
                state = await read_state(self._store(), topic_partition, state)
            except MalformedNode as error:
                logger.error("%s is not left: %s", topic_partition, error)
                return
            except RegistryError as error:
                if in_this_session and isinstance(error, SessionExpired):
                    # There is no time for another session; with this one the registration has gone, too.
                    self._given_back.discard(topic_partition)
                    return
                await asyncio.sleep(_RETRY_S)
                state = self._view.state.partition(topic_partition)

    def _without_me(self, partition: Partition, state: PartitionState, *, keeps_log: bool) -> PartitionState | None:
        required = required_isr(partition.log.config.min_insync_replicas, len(state.replicas))
        return state_without(
            state,
            self._me,
            self._view.state.brokers,
            required if self._keeps_eligible else 0,
            keeps_log=keeps_log,
        )


async def _do_all(pieces: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Do all of them, some at a time."""
    queue = deque(pieces)

    async def work() -> None:
        while queue:
            await queue.popleft()()

    await asyncio.gather(*(work() for _ in range(min(len(queue), _AT_ONCE))))
