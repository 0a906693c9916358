"""Has this broker leave ISRs and resign leaderships: when it stops, a disk or log is gone, or a disk is full.

Leadership ends before the state is written, so that the next leader finds one that has stopped. Before that, nothing
more is appended. What has been appended is acknowledged if the followers have it within a second: a producer without an
answer sends its batch again, and a log recognises the repeats of few batches. New produce requests wait until the next
leader is known (``next_leader``). At a stop or a failed disk these steps are not needed for safety: they make a stop
shorter than a crash. A log that is gone is created again only after this broker has left the ISR (``Replicas``).

A follower whose log has other records than its leader's (``comparison``) copies nothing more before the state is
written, and sets its log aside afterwards (``Replicas.hold``, ``Replicas.release``).

This broker leaves a partition whose disk is full when it refuses records, and others can commit without it. Otherwise a
produce with ``acks=all`` would wait for ``replica.lag.time.max.ms``. When all disks are full the leadership would go
round, so a broker resigns only once in a while.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_kafkalite.broker.replication.bounds import required_isr
from spark_kafkalite.broker.replication.contest import Claim
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.leaving import (
    state_left_to_former,
    state_without,
    state_without_damaged,
    state_without_full,
    state_without_lacking,
    state_without_lost,
)
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.state_nodes import GuardedNodes, StateChange
from spark_kafkalite.registry.cluster.state_writer import StateWriter, StateWrites, WritePace
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import SessionExpired, Store
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)

_PACE: Final = WritePace(together=100, steps=4, alone=100, retry_s=0.2)
# How long what is appended may take to be acknowledged before the partition is given back without that.
_SETTLED_S: Final = 1.0
# Partitions that one line of the log names.
_SHOWN: Final = 5
# How long this broker leads a partition on, though its disk is full, that it has given back before and got again.
_GIVEN_BACK_AGAIN_S: Final = 10.0


class _Why(Enum):
    """Why a partition is left."""

    STOP = "stop"
    FAILED = "failed"
    FULL = "full"
    DAMAGED = "damaged"
    LACKING = "lacking"
    DIFFERING = "differing"
    LOST = "lost"
    HANGING = "hanging"


# There is no time for another session; with this one the registration has gone, too.
_IN_THIS_SESSION: Final = (_Why.STOP, _Why.FULL, _Why.LACKING, _Why.DIFFERING)
# What stays so until it is done: it is tried again when the cluster changes.
_STANDING: Final = (_Why.FAILED, _Why.DAMAGED, _Why.HANGING)
# Of these the partition may be led on, where the state has changed meanwhile and there is nobody to leave it to.
_LED_ON: Final = (_Why.FULL, _Why.DAMAGED, _Why.LACKING, _Why.HANGING)


@dataclass(eq=False, slots=True)
class _Leave:
    """A partition that is left; ``partition`` is None where its log is gone."""

    topic_partition: TopicPartition
    topic_id: bytes
    why: _Why
    partition: Partition | None = None
    # Whether this broker has led it when that began, and until when that may wait for acknowledgements.
    is_led: bool = False
    settled_until_s: float = 0.0
    # Which replica has what this broker's log lacks.
    claim: Claim | None = None
    # Of those that have to be heard of before a former member leads, who has not been.
    unheard: frozenset[int] = frozenset()
    # What was found in the node after a refusal.
    found: PartitionState | None = None
    # Whether a state without this broker was to be written, and whether one was.
    is_begun: bool = False
    is_done: bool = False

    @property
    def key(self) -> TopicPartition:
        return self.topic_partition


class IsrLeaving:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
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
        self._slices = slices
        self._view = view
        self._replicas = replicas
        self._nodes = GuardedNodes(store)
        self._leaves = IsrLeaves(loop, view, replicas, BrokerId(broker_id), keeps_eligible=keeps_eligible)
        # What is to be left, and why.
        self._to_leave: dict[_Why, dict[Partition, None]] = {why: {} for why in _Why}
        # Until when those are led on that have been given back because their disk was full.
        self._led_on_until_s: dict[TopicPartition, float] = {}
        # Whose log is gone, with the topic's id.
        self._lost: dict[TopicPartition, bytes] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._begins_again = False
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
        # All of a directory fail in one pass of the loop.
        self._note(partition, _Why.FAILED)

    def partitions_hang(self, partitions: Sequence[Partition]) -> None:
        """Leave partitions to others, now or when there are any, until their disk answers again."""
        led_on = []
        for partition in partitions:
            self._note(partition, _Why.HANGING)
            is_possible = self._leaves.is_possible(self._leave(partition, _Why.HANGING))
            if partition.is_leader and partition.is_replicated and not is_possible:
                led_on.append(str(partition.topic_partition))
        if led_on:
            logger.warning(
                "%d partitions whose disk does not answer are led on, because no other in-sync replica lives: %s%s",
                len(led_on),
                ", ".join(led_on[:_SHOWN]),
                ", ..." if len(led_on) > _SHOWN else "",
            )

    def partition_full(self, partition: Partition) -> None:
        """Leave a partition to others, if they can go on without this broker, because its disk takes no records."""
        leave = self._leave(partition, _Why.FULL)
        if partition in self._to_leave[_Why.FULL] or not self._leaves.is_possible(leave):
            return
        if leave.is_led:
            now_s, until_s = self._loop.time(), self._led_on_until_s
            if now_s < until_s.get(partition.topic_partition, now_s):
                return
            self._led_on_until_s = {key: each for key, each in until_s.items() if each > now_s}
            self._led_on_until_s[partition.topic_partition] = now_s + _GIVEN_BACK_AGAIN_S
        # Who is told of the refusal is answered first.
        self._note(partition, _Why.FULL)

    def partition_damaged(self, partition: Partition) -> None:
        """Leave a partition that this broker leads, and whose log is damaged, to others, now or when there are any."""
        if partition.log.is_damaged and partition.is_leader:
            # The read that has found it is answered first.
            self._note(partition, _Why.DAMAGED)

    def partition_lacking(self, topic_partition: TopicPartition) -> None:
        """Leave a partition, whose log lacks committed records, to replicas that have them."""
        partition = self._replicas.find(topic_partition)
        if partition is not None:
            self._note(partition, _Why.LACKING)

    def partition_differs(self, partition: Partition) -> None:
        """Leave a partition that this broker follows, whose log has other records than its leader's, and then have the
        log set aside and copied again."""
        self._note(partition, _Why.DIFFERING)

    def log_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Leave a partition of which this broker has no log any more to those that had it."""
        self._lost[topic_partition] = topic_id
        self._loop.call_soon(self._begin_leaving)

    def _note(self, partition: Partition, why: _Why) -> None:
        self._to_leave[why][partition] = None
        self._loop.call_soon(self._begin_leaving)

    def _cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        has_news = change.new_brokers or change.bounced_brokers or change.changed_partitions
        if has_news and any(self._to_leave[why] for why in _STANDING):
            self._begin_leaving()

    def _begin_leaving(self) -> None:
        # What is under way may have looked at things before they changed.
        self._begins_again = self._leaving is not None
        if self._begins_again or self._stopped or not (self._lost or any(self._to_leave.values())):
            return
        leaves: dict[Partition, _Leave] = {}
        for why, partitions in self._to_leave.items():
            # One is left for one reason at a time.
            wanted = [each for each in partitions if each not in leaves and self._is_wanted(each, why)]
            self._to_leave[why] = dict.fromkeys(wanted if why in _STANDING else ())
            leaves.update((each, self._leave(each, why)) for each in wanted)
            if why is _Why.DIFFERING:
                for each in wanted:
                    # What it fetched later would bring it back.
                    self._replicas.hold(each)
        lost, self._lost = self._lost, {}
        self._leaving = self._loop.create_task(
            self._leave_all(list(leaves.values()), [_Leave(*each, _Why.LOST) for each in lost.items()])
        )
        self._leaving.add_done_callback(self._left)

    def _is_wanted(self, partition: Partition, why: _Why) -> bool:
        """Return whether the reason to leave a partition still holds."""
        if why is _Why.DAMAGED:
            return partition.log.is_damaged and partition.is_leader
        if why is _Why.DIFFERING:
            return isinstance(partition.role, Follower)
        if why is _Why.HANGING and partition.log.disk.hanging is None:
            return False
        return why not in _STANDING or self._replicas.find(partition.topic_partition) is partition

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving = None
        if not task.cancelled() and task.exception() is not None:
            logger.critical(
                "partitions that have failed, or are full, could not be left to others", exc_info=task.exception()
            )
        if self._begins_again:
            self._begin_leaving()

    # A stop ---------------------------------------------------------------------------------------------------------

    async def hand_over(self, within_s: float) -> None:
        """Resign what others can lead, leave the other ISRs, and wait until others lead, up to the given time.

        This broker must have stopped to follow: what it fetched later would bring it back.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._leave_all([self._leave(each, _Why.STOP) for each in self._replicas])
                await self._view.wait_for(self._leaves.are_led)
        except TimeoutError:
            logger.warning("other brokers do not lead everything after %.1f s; stopping all the same", within_s)

    # Partitions -----------------------------------------------------------------------------------------------------

    def _leave(self, partition: Partition, why: _Why) -> _Leave:
        leave = _Leave(partition.topic_partition, partition.topic_id, why, partition)
        leave.is_led = self._leaves.is_led(leave)
        if why is _Why.LACKING and partition.leader is not None:
            leave.claim = partition.leader.claim
        leave.settled_until_s = self._loop.time() + _SETTLED_S
        return leave

    async def _leave_all(self, leaves: Sequence[_Leave], lost: Sequence[_Leave] = ()) -> None:
        """Leave partitions, many with one write; first those that this broker leads, whose clients wait for the next
        leader."""
        writer = StateWriter(self._loop, self._slices, self._nodes, self._leaves, _PACE)
        await writer.write_all(sorted(leaves, key=lambda each: not each.is_led), lost)


class IsrLeaves(StateWrites[_Leave]):
    """Partitions that this broker is leaving, until it has left or no member would remain."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        view: ClusterView,
        replicas: Replicas,
        me: BrokerId,
        *,
        keeps_eligible: bool,
    ) -> None:
        self._loop = loop
        self._view = view
        self._replicas = replicas
        self._me = me
        self._keeps_eligible = keeps_eligible
        self._given_back: set[TopicPartition] = set()

    def are_led(self, cluster: ClusterState) -> bool:
        """Return whether others lead what this broker has resigned. What they lead is forgotten: it is asked for each
        change."""
        for topic_partition in list(self._given_back):
            state = cluster.partition(topic_partition)
            if state is None or state.leader not in (-1, self._me):
                self._given_back.discard(topic_partition)
        return not self._given_back

    def is_led(self, leave: _Leave) -> bool:
        """Return whether this broker leads a partition, as far as the view knows."""
        state = self._known(leave)
        return state is not None and state.leader == self._me

    def is_possible(self, leave: _Leave) -> bool:
        """Return whether another member would remain for a partition."""
        state = self._known(leave)
        return state is not None and self._without_me(leave, state) is not None

    # What a writer asks -----------------------------------------------------------------------------------------------

    async def prepare(self, writes: Sequence[_Leave]) -> None:
        given_back = [each.partition for each in writes if self.is_led(each) and self.is_possible(each)]
        await self._settle([each for each in given_back if each is not None], writes[0].settled_until_s)

    def may_share(self, write: _Leave, other: _Leave) -> bool:
        return (write.why, write.is_led) == (other.why, other.is_led)

    def change(self, write: _Leave) -> StateChange | None:
        state = self._known(write)
        after = None if state is None else self._without_me(write, state, is_written=True)
        if state is None or after is None:
            if write.partition is not None and not write.is_begun:
                write.partition.open_to_appends()
            return None
        write.is_begun = True
        if write.partition is not None and state.leader == self._me:
            # It is led no more, because the state is about to say so.
            write.partition.fence(self._given_back_text, is_given_back=True)
            self._given_back.add(write.topic_partition)
        return StateChange(write.topic_partition, write.topic_id, state, after)

    def written(self, write: _Leave, change: StateChange, state: PartitionState) -> None:
        write.is_done = True
        logger.debug("%s: left to %s", write.topic_partition, state.isr)

    def found(self, write: _Leave, change: StateChange, state: PartitionState | None) -> None:
        write.found = state

    def failed(self, writes: Sequence[_Leave], error: Exception) -> bool:
        if isinstance(error, MalformedNode):
            logger.error("%s is not left: %s", writes[0].topic_partition, error)
            return False
        if not isinstance(error, RegistryError):
            logger.critical("%d partitions could not be left to others", len(writes), exc_info=error)
            return False
        logger.debug("%d partitions could not be left at once: %s", len(writes), error)
        gives_up = isinstance(error, SessionExpired) and writes[0].why in _IN_THIS_SESSION
        for each in writes:
            each.found = None
            if gives_up:
                self._given_back.discard(each.topic_partition)
        return not gives_up

    def ended(self, write: _Leave) -> None:
        if write.why is _Why.DIFFERING and write.partition is not None:
            self._replicas.release(write.partition, is_left=write.is_done)
        if write.why in _LED_ON and write.is_begun and not write.is_done:
            # Where the state has changed meanwhile there may be nobody to leave it to: it is led on.
            self._replicas.take_up(write.topic_partition)

    # States -----------------------------------------------------------------------------------------------------------

    def _known(self, leave: _Leave) -> PartitionState | None:
        """Return a partition's last known state, None when its topic has gone."""
        if self._view.topic_id_of(leave.topic_partition.topic) != leave.topic_id:
            return None
        return leave.found or self._view.state.partition(leave.topic_partition)

    def _without_me(self, leave: _Leave, state: PartitionState, *, is_written: bool = False) -> PartitionState | None:
        """Return the state after this broker has left, None where it cannot leave. ``is_written``: that state is about
        to be written."""
        if leave.partition is None:
            # It may have a log by now, and be a member with that: then this state is not the one that it was asked for.
            is_lost = self._replicas.has_lost(leave.topic_partition, leave.topic_id)
            return state_without_lost(state, self._me) if is_lost else None
        required = required_isr(leave.partition.log.config.min_insync_replicas, state.settled_count)
        live, eligible_below = self._view.state.brokers, required if self._keeps_eligible else 0
        if leave.why is _Why.FULL:
            return state_without_full(state, self._me, live, required, eligible_below)
        if leave.why is _Why.DAMAGED:
            leader = leave.partition.leader
            if leader is None or not leave.partition.log.is_damaged:
                return None
            successor = leader.follower_logs.successor()
            if successor is not None and is_written and not leader.is_level(successor):
                # It comes to the log's end at another time.
                return None
            return state_without_damaged(state, self._me, live, leader.in_sync.damaged_followers(), successor)
        if leave.why is _Why.LACKING:
            return self._without_lacking(leave, leave.partition.leader, state)
        if leave.why is _Why.HANGING and leave.partition.log.disk.hanging is None:
            return None
        keeps_log = leave.why is _Why.STOP and leave.partition.storage_error is None
        return state_without(state, self._me, live, eligible_below, keeps_log=keeps_log)

    def _without_lacking(self, leave: _Leave, leader: Leader | None, state: PartitionState) -> PartitionState | None:
        live, claim = self._view.state.brokers, leave.claim
        if claim is None or claim.is_named:
            return state_without_lacking(state, self._me, live, None if claim is None else claim.broker)
        if leader is not None:
            if not leader.may_give_up(claim.offset):
                return None
            leave.unheard = leader.in_sync.unheard(claim.broker)
        return state_left_to_former(state, self._me, live, claim.broker, leave.unheard)

    async def _settle(self, partitions: Iterable[Partition], until_s: float) -> None:
        """Have nothing more appended, and wait for what is appended to be acknowledged; not longer than until then."""
        waiting: list[_Settled] = []
        for partition in partitions:
            partition.close_to_appends(self._given_back_text)
            leader = partition.leader
            if leader is not None and not _is_settled(leader):
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


def _is_settled(leader: Leader) -> bool:
    """Whether all that a leader has appended is acknowledged, and in the damaged log that is to lead next, if any."""
    successor = leader.follower_logs.successor() if leader.log.is_damaged else None
    return not leader.has_open_appends and (successor is None or leader.is_level(successor))


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
        if self._leader.end_reason is None and not _is_settled(self._leader):
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
