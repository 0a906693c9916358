"""Has this broker leave ISRs and give back what it leads: when it stops, or a disk or log is gone, or a disk is full.

Leadership ends before the state is written, so that the next leader finds one that has stopped. Before that nothing
more is appended, and what has been appended is acknowledged, if the followers have it within a second: who is not
answered sends it again, and a log knows the repeats of few batches. What producers bring meanwhile waits until the next
leader is known (``next_leader``). For a stop and a failed disk nothing of that is needed for safety: it is what makes a
stop shorter than a death. A log that is gone is begun anew only after it (``Replicas``).

A partition whose disk is full is left when records for it are refused, and where others can commit without this broker:
who waits for ``acks=all`` would else wait for ``replica.lag.time.max.ms``. When all disks are full the leadership would
go round; so it is given back once in a while only.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

from spark_kafkalite.broker.replication.bounds import required_isr
from spark_kafkalite.broker.replication.isr_nodes import StateChange, read_state, write_state, write_states
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.leaving import (
    state_without,
    state_without_damaged,
    state_without_full,
    state_without_lost,
)
from spark_kafkalite.broker.requests.purgatory import DelayedOperation
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import SessionExpired, Store

logger = logging.getLogger(__name__)

# Partitions that share a write, and writes that are under way at a time.
_LEFT_AT_ONCE: Final = 100
_WRITES_AT_ONCE: Final = 4
_RETRY_S: Final = 0.2
# How long what is appended may take to be acknowledged before the partition is given back without that.
_SETTLED_S: Final = 1.0
# How long this broker leads a partition on, though its disk is full, that it has given back before and got again.
_GIVEN_BACK_AGAIN_S: Final = 10.0


class _Why(Enum):
    """Why a partition is left."""

    STOP = "stop"
    FAILED = "failed"
    FULL = "full"
    DAMAGED = "damaged"


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
        # Whose log is damaged; kept while it is, and left as soon as a whole one is in sync.
        self._damaged: dict[Partition, None] = {}
        # Whose disk has refused records, and until when those are led on that have been given back for that.
        self._full: dict[Partition, None] = {}
        self._led_on_until_s: dict[TopicPartition, float] = {}
        # Whose log is gone, with the topic's id.
        self._lost: dict[TopicPartition, bytes] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to look whether failed partitions can be left to others."""
        self._view.add_listener(self._cluster_changed)

    async def stop(self) -> None:
        """End."""
        self._stopped = True
        self._view.remove_listener(self._cluster_changed)
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.wait([self._leaving])

    # Failed disks ---------------------------------------------------------------------------------------------------

    def partition_failed(self, partition: Partition) -> None:
        """Leave a partition whose log cannot be trusted any more to others, now or when there are any."""
        self._failed[partition] = None
        # All of a directory fail in one pass of the loop.
        self._loop.call_soon(self._begin_leaving)

    def partition_full(self, partition: Partition) -> None:
        """Leave a partition to others, if they can go on without this broker, because its disk takes no records."""
        state = self._state_of(partition)
        if state is None or partition in self._full or self._without_me(partition, state, _Why.FULL) is None:
            return
        if state.leader == self._me:
            now_s, until_s = self._loop.time(), self._led_on_until_s
            if now_s < until_s.get(partition.topic_partition, now_s):
                return
            self._led_on_until_s = {key: each for key, each in until_s.items() if each > now_s}
            self._led_on_until_s[partition.topic_partition] = now_s + _GIVEN_BACK_AGAIN_S
        self._full[partition] = None
        # Who is told of the refusal is answered first.
        self._loop.call_soon(self._begin_leaving)

    def partition_damaged(self, partition: Partition) -> None:
        """Leave a partition that this broker leads, and whose log is damaged, to others, now or when there are any."""
        if partition.log.is_damaged and partition.is_leader:
            self._damaged[partition] = None
            # The read that has found it is answered first.
            self._loop.call_soon(self._begin_leaving)

    def log_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Leave a partition of which this broker has no log any more to those that had it."""
        self._lost[topic_partition] = topic_id
        self._loop.call_soon(self._begin_leaving)

    def _cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        if (self._failed or self._damaged) and (
            change.new_brokers or change.bounced_brokers or change.changed_partitions
        ):
            self._begin_leaving()

    def _begin_leaving(self) -> None:
        if (self._failed or self._full or self._lost or self._damaged) and self._leaving is None and not self._stopped:
            failed = [each for each in self._failed if self._replicas.find(each.topic_partition) is each]
            self._failed = dict.fromkeys(failed)
            self._damaged = dict.fromkeys(each for each in self._damaged if each.log.is_damaged and each.is_leader)
            full, self._full = self._full, {}
            lost, self._lost = self._lost, {}
            self._leaving = self._loop.create_task(self._leave_these(failed, full, lost, list(self._damaged)))
            self._leaving.add_done_callback(self._left)

    async def _leave_these(
        self,
        failed: Iterable[Partition],
        full: Iterable[Partition],
        lost: Mapping[TopicPartition, bytes],
        damaged: Iterable[Partition],
    ) -> None:
        await self._leave_all(failed, _Why.FAILED)
        await self._leave_all(full, _Why.FULL)
        await self._leave_all(damaged, _Why.DAMAGED)
        await _do_all([partial(self._leave_lost, *each) for each in lost.items()], _LEFT_AT_ONCE)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving = None
        if not task.cancelled() and task.exception() is not None:
            logger.critical(
                "partitions that have failed, or are full, could not be left to others", exc_info=task.exception()
            )
        if self._lost or self._full:
            self._begin_leaving()

    # A stop ---------------------------------------------------------------------------------------------------------

    async def hand_over(self, within_s: float) -> None:
        """Give back what others can lead, leave the other ISRs, and wait until others lead; not longer than said.

        This broker must have stopped to follow: what it fetched later would bring it back.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._leave_all(self._replicas, _Why.STOP)
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

    # Partitions -----------------------------------------------------------------------------------------------------

    async def _leave_all(self, partitions: Iterable[Partition], why: _Why) -> None:
        """Leave partitions, many with one write; first those that this broker leads, whose clients wait for the next
        leader."""
        until_s = self._loop.time() + _SETTLED_S
        led: list[Partition] = []
        others: list[Partition] = []
        for partition in partitions:
            state = self._view.state.partition(partition.topic_partition)
            (led if state is not None and state.leader == self._me else others).append(partition)
        batches = [
            partial(self._leave_some, each[first : first + _LEFT_AT_ONCE], why, until_s)
            for each in (led, others)
            for first in range(0, len(each), _LEFT_AT_ONCE)
        ]
        await _do_all(batches, _WRITES_AT_ONCE)

    async def _leave_some(self, partitions: Sequence[Partition], why: _Why, settled_until_s: float) -> None:
        await self._settle([each for each in partitions if self._is_given_back(each, why)], settled_until_s)
        changes: list[StateChange] = []
        left: list[Partition] = []
        for partition in partitions:
            state = self._state_of(partition)
            after = self._without_me(partition, state, why) if state is not None else None
            if state is not None and after is not None:
                self._give_back(partition, state)
                changes.append(StateChange(partition.topic_partition, partition.topic_id, state, after))
                left.append(partition)
            else:
                partition.open_to_appends()
        if not changes:
            return
        try:
            if await write_states(self._store(), changes) is not None:
                return
        except RegistryError as error:
            logger.debug("%d partitions could not be left at once: %s", len(changes), error)
        # None of them, or nobody knows: each by itself, to find what it was for.
        await _do_all([partial(self._leave, partition, why) for partition in left], _LEFT_AT_ONCE)

    def _is_given_back(self, partition: Partition, why: _Why) -> bool:
        state = self._state_of(partition)
        return state is not None and state.leader == self._me and self._without_me(partition, state, why) is not None

    async def _settle(self, partitions: Iterable[Partition], until_s: float) -> None:
        """Have nothing more appended, and wait for what is appended to be acknowledged; not longer than until then."""
        waiting: list[_Settled] = []
        for partition in partitions:
            partition.close_to_appends(self._given_back_text)
            leader = partition.leader
            if leader is not None and leader.has_open_appends:
                waiting.append(_Settled(leader, self._loop.create_future()))
        if waiting:
            try:
                await asyncio.wait([each.settled for each in waiting], timeout=max(until_s - self._loop.time(), 0.0))
            finally:
                for each in waiting:
                    each.finish()

    @property
    def _given_back_text(self) -> str:
        return f"broker {self._me} has given it back"

    def _state_of(self, partition: Partition) -> PartitionState | None:
        """Return what the view has of a partition, None when its topic has gone."""
        if self._view.topic_id_of(partition.topic_partition.topic) != partition.topic_id:
            return None
        return self._view.state.partition(partition.topic_partition)

    def _give_back(self, partition: Partition, state: PartitionState) -> None:
        """Lead a partition no more whose state is about to say so."""
        if state.leader == self._me:
            partition.fence(self._given_back_text, is_given_back=True)
            self._given_back.add(partition.topic_partition)

    async def _leave(self, partition: Partition, why: _Why) -> None:
        """Leave one partition by itself, until it is left or there is nobody to leave it to."""

        def without_me(state: PartitionState) -> PartitionState | None:
            after = self._without_me(partition, state, why)
            if after is not None:
                self._give_back(partition, state)
            return after

        in_this_session = why is not _Why.FAILED
        await self._write(partition.topic_partition, partition.topic_id, without_me, in_this_session=in_this_session)
        if why in (_Why.FULL, _Why.DAMAGED):
            # Where the state has changed meanwhile there may be nobody to leave it to: it is led on.
            self._replicas.take_up(partition.topic_partition)

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

    def _without_me(self, partition: Partition, state: PartitionState, why: _Why) -> PartitionState | None:
        required = required_isr(partition.log.config.min_insync_replicas, len(state.replicas))
        live, eligible_below = self._view.state.brokers, required if self._keeps_eligible else 0
        if why is _Why.FULL:
            return state_without_full(state, self._me, live, required, eligible_below)
        if why is _Why.DAMAGED:
            leader = partition.leader
            if leader is None or not partition.log.is_damaged:
                return None
            return state_without_damaged(state, self._me, live, leader.in_sync.damaged_followers())
        keeps_log = why is _Why.STOP and partition.storage_error is None
        return state_without(state, self._me, live, eligible_below, keeps_log=keeps_log)


class _Settled(DelayedOperation):
    """Waits until all that a leader has appended is acknowledged.

    Completed by that, or by the end of its epoch. It has no deadline.
    """

    __slots__ = ("_leader", "settled")

    def __init__(self, leader: Leader, settled: asyncio.Future[None]) -> None:
        super().__init__()
        self._leader = leader
        self.settled = settled
        leader.ack_waiters.add(self)

    def try_complete(self) -> bool:
        if self._leader.end_reason is None and self._leader.has_open_appends:
            return False
        self.finish()
        return True

    def release(self) -> None:
        self._leader.ack_waiters.remove(self)
        if not self.settled.done():
            self.settled.set_result(None)

    def expire(self) -> None:
        raise AssertionError("it has no deadline")

    def fail(self) -> None:
        """Nothing more than the end, which follows: it is waited for no longer."""


async def _do_all(pieces: Iterable[Callable[[], Awaitable[None]]], at_once: int) -> None:
    """Do all of them, so many at a time."""
    queue = deque(pieces)

    async def work() -> None:
        while queue:
            await queue.popleft()()

    await asyncio.gather(*(work() for _ in range(min(len(queue), at_once))))
