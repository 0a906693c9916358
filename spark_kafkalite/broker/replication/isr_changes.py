"""Has leaders look who is in sync, and writes what follows to the registry.

A leader is looked at when something has happened to it (:meth:`IsrChanges.look`); all are when brokers come or go, and
every half replica.lag.time.max.ms, for members that have become slow. That happens in slices. Changes are written
through the present session, some together in one step; one partition has at most one under way (``rules.in_sync``).
What was not written together is written alone. A write that may have been done is done again: it either succeeds, or
fails for the version, and then the state is read. While there is no session nothing is written, and leaders go on with
the ISR that they know (rule R6).

Two things are not the followers' fault. If this process stood still, nobody is taken for slow until they have had time
to fetch. And where all brokers lose their sessions at once, the first one to register again finds no other: it waits a
moment for the others before it takes them for dead.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.event_loop import end_of_pass
from spark_kafkalite.broker.replication.isr_nodes import (
    GuardMissing,
    StateChange,
    read_state,
    write_state,
    write_states,
)
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas, IsrChange
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import Store
from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

# Changes that share a write, and such writes that are under way at a time. When a broker is gone all that it followed
# changes at once, and all brokers read what each of them has written. More at a time would be done sooner, and nothing
# else meanwhile: what a write causes takes several times as long as the write.
_TOGETHER: Final = 8
_WRITES: Final = 2
# Changes that are written alone at a time, and how many of them begin or end in one pass of the loop: it takes 0.2 ms
# each time, and answers come in bursts.
_ALONE: Final = 64
_ALONE_IN_A_PASS: Final = 8
_RETRY_S: Final = 0.5
# How long other brokers have to register after this one, before they are taken for dead.
_REGISTERING_S: Final = 0.5
# How often it is seen whether the loop stood still, and from when on it did.
_PULSE_S: Final = 1.0
_STOOD_STILL_S: Final = 0.5
# Pauses for which the look for slow members is put off; who stands still time and again may be slow itself.
_PATIENT_WITH_PAUSES: Final = 4


class _IsrWrite(NamedTuple):
    """A change of a partition's ISR, to be written."""

    topic_partition: TopicPartition
    topic_id: bytes
    in_sync: InSyncReplicas
    change: IsrChange


class IsrChanges:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        view: ClusterView,
        replicas: Replicas,
        broker_id: int,
        store: Callable[[], Store],
        lag_max_s: float,
    ) -> None:
        """``store`` gives the present session with the registry, or raises SessionExpired; ``lag_max_s`` is
        replica.lag.time.max.ms."""
        self._loop = loop
        self._slices = slices
        self._view = view
        self._replicas = replicas
        self._broker_id = broker_id
        self._store = store
        self._lag_max_s = lag_max_s
        self._to_look: dict[Leader, None] = {}
        self._looking = False
        self._held: dict[Leader, None] = {}
        self._held_timer: asyncio.TimerHandle | None = None
        # This broker's registration that has been seen last, and from when on others count as dead in it.
        self._registration = -1
        self._may_look_s = math.inf
        self._settle_timer: asyncio.TimerHandle | None = None
        self._at_end_of_pass = end_of_pass(loop)
        self._to_write: deque[_IsrWrite] = deque()
        # What was not written together with others.
        self._to_write_alone: deque[_IsrWrite] = deque()
        self._writes_soon = False
        # Whose change waits to be written, or is being written.
        self._writing: set[InSyncReplicas] = set()
        self._together: set[asyncio.Task[None]] = set()
        self._alone: set[asyncio.Task[None]] = set()
        self._in_this_pass = 0
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._pulse_due_s = 0.0
        # When slow members are looked for next, and how often that was put off.
        self._check_at_s = math.inf
        self._pauses = 0
        self._checking = False
        self._stopped = False

    def start(self) -> None:
        """Begin to look at what leads already, and later."""
        self._check_at_s = self._loop.time() + self._lag_max_s / 2
        self._view.add_listener(self._cluster_changed)
        self._see_registration(self._view.state)
        self._pulse()

    async def stop(self) -> None:
        """End. What is being written may be done or not."""
        self._stopped = True
        self._view.remove_listener(self._cluster_changed)
        for timer in (self._held_timer, self._settle_timer, self._pulse_timer):
            if timer is not None:
                timer.cancel()
        tasks = [*self._together, *self._alone]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Looking --------------------------------------------------------------------------------------------------------

    def look(self, leader: Leader, in_s: float = 0.0) -> None:
        """Have the change of a leader's ISR that is due begun and written, after this pass of the loop or later."""
        if in_s > 0.0:
            self._held[leader] = None
            if self._held_timer is None:
                self._held_timer = self._loop.call_later(in_s, self._look_at_held)
        else:
            self._to_look[leader] = None
            self._start_looking()

    def look_at_all(self) -> None:
        """As :meth:`look`, for all that this broker leads."""
        for partition in self._replicas:
            if partition.leader is not None:
                self._to_look[partition.leader] = None
        self._start_looking()

    def _look_at_held(self) -> None:
        self._held_timer = None
        held, self._held = self._held, {}
        now_s = self._loop.time()
        for leader in held:
            leader.release_held()
            held_until_s = leader.in_sync.held_until_s
            if held_until_s is not None and leader.end_reason is None:
                self.look(leader, max(held_until_s - now_s, 0.001))

    def _start_looking(self) -> None:
        if self._to_look and not self._looking and not self._stopped and self._loop.time() >= self._may_look_s:
            self._looking = True
            self._loop.call_soon(lambda: self._slices.start(self._look_at_noted(), self._looked))

    def _look_at_noted(self) -> Work[None]:
        while self._to_look:
            leader = next(iter(self._to_look))
            del self._to_look[leader]
            self._look_at(leader, math.inf)
            yield None

    def _looked(self, _: None, error: BaseException | None) -> None:
        self._looking = False
        if error is not None:
            logger.critical("in-sync replicas could not be looked at", exc_info=error)
        self._start_looking()

    def _look_at(self, leader: Leader, lag_max_s: float) -> None:
        partition = self._replicas.find(leader.topic_partition)
        in_sync = leader.in_sync
        if self._stopped or partition is None or partition.leader is not leader:
            return
        if in_sync.is_superseded or in_sync in self._writing:
            return
        # One that has been left over is of the time before this broker's last session.
        change = in_sync.change or leader.due_change(lag_max_s)
        if change is not None:
            self._writing.add(in_sync)
            self._to_write.append(_IsrWrite(leader.topic_partition, partition.topic_id, in_sync, change))
            if not self._writes_soon:
                self._writes_soon = True
                self._at_end_of_pass(self._write_noted)

    # When -----------------------------------------------------------------------------------------------------------

    def _cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        if change.new_brokers or change.gone_brokers or change.bounced_brokers:
            self._see_registration(new)
            self.look_at_all()

    def _see_registration(self, cluster: ClusterState) -> None:
        me = cluster.brokers.get(self._broker_id)
        registration = -1 if me is None else me.epoch
        if registration != self._registration:
            self._registration = registration
            self._may_look_s = math.inf
            if me is not None:
                self._may_look_s = self._loop.time() + _REGISTERING_S
                self._settle_timer = self._loop.call_at(self._may_look_s, self.look_at_all)

    def _pulse(self) -> None:
        """See whether the loop stood still, and whether it is time to look for slow members."""
        now_s = self._loop.time()
        stood_still = self._pulse_timer is not None and now_s - self._pulse_due_s > _STOOD_STILL_S
        if stood_still and self._pauses < _PATIENT_WITH_PAUSES:
            self._pauses += 1
            self._check_at_s = max(self._check_at_s, now_s + self._lag_max_s / 2)
        if now_s >= self._check_at_s and now_s >= self._may_look_s and not self._checking:
            self._check_at_s = now_s + self._lag_max_s / 2
            self._pauses = 0
            self._checking = True
            self._slices.start(self._look_for_slow(), self._checked)
        every_s = min(_PULSE_S, self._lag_max_s / 4)
        self._pulse_due_s = now_s + every_s
        self._pulse_timer = self._loop.call_later(every_s, self._pulse)

    def _look_for_slow(self) -> Work[None]:
        for partition in list(self._replicas):
            if partition.leader is not None:
                self._look_at(partition.leader, self._lag_max_s)
            yield None

    def _checked(self, _: None, error: BaseException | None) -> None:
        self._checking = False
        if error is not None:
            logger.critical("slow in-sync replicas could not be looked for", exc_info=error)

    # Writing --------------------------------------------------------------------------------------------------------

    def _write_noted(self) -> None:
        self._writes_soon = False
        self._write_more()

    def _write_more(self) -> None:
        while self._to_write and len(self._together) < _WRITES and not self._stopped:
            count = min(len(self._to_write), _TOGETHER)
            self._begin(self._together, self._write_together([self._to_write.popleft() for _ in range(count)]))
        while self._to_write_alone and len(self._alone) < _ALONE and not self._stopped:
            self._begin(self._alone, self._write_alone(self._to_write_alone.popleft()))

    def _begin(self, under_way: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            under_way.discard(task)
            if not task.cancelled() and task.exception() is not None:
                logger.critical("in-sync replicas could not be written", exc_info=task.exception())
            self._write_more()

        task = self._loop.create_task(work)
        under_way.add(task)
        task.add_done_callback(ended)

    async def _turn(self) -> None:
        """Wait until a write of one change may begin, or end, without making this pass of the loop long."""
        while self._in_this_pass >= _ALONE_IN_A_PASS:
            await self._slices.next_turn()
        if not self._in_this_pass:
            self._loop.call_soon(self._pass_ended)
        self._in_this_pass += 1

    def _pass_ended(self) -> None:
        self._in_this_pass = 0

    async def _write_together(self, writes: Sequence[_IsrWrite]) -> None:
        """Write these changes in one step and go by them, or have each of them written alone."""
        under_way = dict.fromkeys(writes)
        try:
            due = [each for each in writes if self._is_due(each)]
            written = await self._write_at_once(due) if due else []
            if written is None:
                self._to_write_alone += due
                for each in due:
                    del under_way[each]
                return
            for each, state in zip(due, written, strict=True):
                self._go_by(each, state)
        except RegistryError as error:
            self._log_unknown(writes[0], len(writes) - 1, error)
            self._loop.call_later(_RETRY_S, self._write_again, self._to_write, tuple(under_way))
            under_way.clear()
        finally:
            for each in under_way:
                self._end(each)

    async def _write_at_once(self, writes: Sequence[_IsrWrite]) -> list[PartitionState] | None:
        """Return the states as they are in the registry now; None when none was written. Raises RegistryError when
        nobody knows."""
        changes = [
            StateChange(each.topic_partition, each.topic_id, each.change.before, each.change.after) for each in writes
        ]
        return await write_states(self._store(), changes)

    async def _write_alone(self, write: _IsrWrite) -> None:
        """Write one change, and go by what has come of it; give up when nobody goes by it any more."""
        is_under_way = True
        try:
            await self._turn()
            while self._is_due(write):
                try:
                    await self._write_once(write)
                except MalformedNode as error:
                    logger.error("%s keeps its in-sync replicas: %s", write.topic_partition, error)
                    self._resolve(write, None)
        except RegistryError as error:
            self._log_unknown(write, 0, error)
            self._loop.call_later(_RETRY_S, self._write_again, self._to_write_alone, (write,))
            is_under_way = False
        finally:
            if is_under_way:
                self._end(write)

    def _log_unknown(self, write: _IsrWrite, others: int, error: RegistryError) -> None:
        """Say that changes may have been written or not."""
        _quiet.log(
            logging.WARNING,
            "unknown",
            "the in-sync replicas of %s%s are not known to be written, trying again: %s",
            write.topic_partition,
            f" and {others} more" if others else "",
            error,
        )

    def _write_again(self, to_write: deque[_IsrWrite], writes: Sequence[_IsrWrite]) -> None:
        to_write.extend(writes)
        self._write_more()

    async def _write_once(self, write: _IsrWrite) -> None:
        topic_partition, topic_id, _, change = write
        try:
            written = await write_state(self._store(), topic_partition, topic_id, change.before, change.after)
        except GuardMissing:
            if self._view.topic_id_of(topic_partition.topic) == topic_id:
                # The controller is about to make it.
                raise
            self._resolve(write, None)
            return
        await self._turn()
        if written is None:
            self._resolve(write, await read_state(self._store(), topic_partition, change.before))
        else:
            self._go_by(write, written)

    def _is_due(self, write: _IsrWrite) -> bool:
        """Whether anybody would go by the change. If this broker goes on in this epoch, it is written then."""
        in_sync = write.in_sync
        return in_sync.change is write.change and not in_sync.is_superseded and self._leader_of(write) is not None

    def _go_by(self, write: _IsrWrite, written: PartitionState) -> None:
        _log_change(write.topic_partition, write.change)
        leader = self._leader_of(write)
        if leader is not None:
            leader.isr_written(write.change, written.version, written.modified_zxid)
        else:
            write.in_sync.written(write.change, written.version, written.modified_zxid, self._loop.time())

    def _resolve(self, write: _IsrWrite, found: PartitionState | None) -> None:
        leader = self._leader_of(write)
        if leader is not None:
            leader.isr_resolved(write.change, found)
        else:
            write.in_sync.resolved(write.change, found, self._loop.time())

    def _end(self, write: _IsrWrite) -> None:
        """Let go of a change that is not written any more, and look for the next one."""
        self._writing.discard(write.in_sync)
        leader = self._leader_of(write)
        if leader is not None:
            self.look(leader)

    def _leader_of(self, write: _IsrWrite) -> Leader | None:
        """Return the leader that goes by the write's ISR now: another one than before if the session has changed."""
        partition = self._replicas.find(write.topic_partition)
        leader = None if partition is None else partition.leader
        return leader if leader is not None and leader.in_sync is write.in_sync else None


def _log_change(topic_partition: TopicPartition, change: IsrChange) -> None:
    before, after = change.before, change.after
    if before.isr != after.isr or before.eligible != after.eligible:
        eligible = f", eligible besides: {_listed(after.eligible)}" if after.eligible else ""
        logger.info(
            "%s: in-sync replicas %s, before %s%s", topic_partition, _listed(after.isr), _listed(before.isr), eligible
        )


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(str(each) for each in brokers)
