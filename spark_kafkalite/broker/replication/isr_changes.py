"""Has leaders check which replicas are in sync, and has the changes written to the registry.

A leader is checked when something has happened to it (:meth:`IsrChanges.look`). All leaders are checked when brokers
come or go, and for members that have become slow (``slow_members``). That happens in slices. Changes are written
through the present session by a ``StateWriter``; one partition has at most one under way (``rules.in_sync``). While
there is no session nothing is written, and leaders go on with the ISR that they know (rule R6).

Where all brokers lose their sessions at once, the first one to register again finds no other: it waits a moment for the
others before it takes them for dead.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, cast

from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas, IsrChange
from spark_kafkalite.broker.replication.slow_members import SlowMembers
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.event_loop import end_of_pass
from spark_kafkalite.printable import first_of
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.state_nodes import GuardedNodes, GuardMissing, StateChange
from spark_kafkalite.registry.cluster.state_writer import StateWriter, StateWrites, WritePace
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import Store
from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

# When a broker is gone all that it followed changes at once, and all brokers read what each of them has written. More
# at a time would be done sooner, and nothing else meanwhile: what a write causes takes several times as long as the
# write.
_PACE: Final = WritePace(together=8, steps=2, alone=64, retry_s=0.5)
# How long other brokers have to register after this one, before they are taken for dead.
_REGISTERING_S: Final = 0.5


class _IsrWrite(NamedTuple):
    """A change of a partition's ISR, to be written."""

    topic_partition: TopicPartition
    topic_id: bytes
    in_sync: InSyncReplicas
    isr_change: IsrChange

    @property
    def key(self) -> InSyncReplicas:
        return self.in_sync


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
        self._writer: StateWriter[_IsrWrite] = StateWriter(
            loop, slices, GuardedNodes(store), IsrWrites(loop, view, replicas, self.look), _PACE, end_of_pass(loop)
        )
        self._registering = _Registering(loop, broker_id, self.look_at_all)
        self._slow_members = SlowMembers(
            loop, slices, lag_max_s, lambda: self._registering.is_over, lambda: self._look_for_slow(lag_max_s)
        )
        self._to_look: dict[Leader, None] = {}
        self._looking = False
        self._held: dict[Leader, None] = {}
        self._held_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def writes(self) -> IsrWrites:
        """The changes that were written, and how many."""
        return cast(IsrWrites, self._writer.writes)

    def start(self) -> None:
        """Begin to check the present leaders, and later ones."""
        self._view.add_listener(self._cluster_changed)
        self._registering.see(self._view.state)
        self._slow_members.start()

    async def stop(self) -> None:
        """End. What is being written may be done or not."""
        self._stopped = True
        self._view.remove_listener(self._cluster_changed)
        self._registering.stop()
        self._slow_members.stop()
        if self._held_timer is not None:
            self._held_timer.cancel()
        await self._writer.stop()

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
        if self._to_look and not self._looking and not self._stopped and self._registering.is_over:
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
            logger.critical("in-sync replicas could not be checked", exc_info=error)
        self._start_looking()

    def _look_for_slow(self, lag_max_s: float) -> Work[None]:
        for partition in list(self._replicas):
            if partition.leader is not None:
                self._look_at(partition.leader, lag_max_s)
            yield None

    def _look_at(self, leader: Leader, lag_max_s: float) -> None:
        partition = self._replicas.find(leader.topic_partition)
        in_sync = leader.in_sync
        if self._stopped or partition is None or partition.leader is not leader:
            return
        if in_sync.is_superseded or self._writer.is_writing(in_sync):
            return
        # One that has been left over is of the time before this broker's last session.
        change = in_sync.change or leader.due_change(lag_max_s)
        if change is not None:
            self._writer.add(_IsrWrite(leader.topic_partition, partition.topic_id, in_sync, change))

    def _cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        if change.new_brokers or change.gone_brokers or change.bounced_brokers:
            self._registering.see(new)
            self.look_at_all()


class _Registering:
    """For how long other brokers may still be about to register, because this one has done so just now."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker_id: int, on_over: Callable[[], None]) -> None:
        self._loop = loop
        self._broker_id = broker_id
        self._on_over = on_over
        # This broker's registration that has been seen last, and from when on others count as dead in it.
        self._registration = -1
        self._until_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._until_s

    def see(self, cluster: ClusterState) -> None:
        """Begin again if this broker has registered again."""
        me = cluster.brokers.get(self._broker_id)
        registration = -1 if me is None else me.epoch
        if registration != self._registration:
            self._registration = registration
            self._until_s = math.inf
            if me is not None:
                self._until_s = self._loop.time() + _REGISTERING_S
                self._timer = self._loop.call_at(self._until_s, self._on_over)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class IsrWrites(StateWrites[_IsrWrite]):
    """Changes of ISRs as they are written; their leaders, if they still lead, adopt the outcome."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        view: ClusterView,
        replicas: Replicas,
        look: Callable[[Leader], None],
    ) -> None:
        self._loop = loop
        self._view = view
        self._replicas = replicas
        self._look = look
        # How many ISRs have lost members, and how many have got some.
        self.shrinks = self.expands = 0

    def change(self, write: _IsrWrite) -> StateChange | None:
        """Return the change as long as a leader would adopt it. If this broker goes on in this epoch, it is written
        then."""
        topic_partition, topic_id, in_sync, change = write
        if in_sync.change is change and not in_sync.is_superseded and self._leader_of(write) is not None:
            return StateChange(topic_partition, topic_id, change.before, change.after)
        return None

    def written(self, write: _IsrWrite, change: StateChange, state: PartitionState) -> None:
        _log_change(change)
        before, after = set(change.before.isr), set(change.after.isr)
        self.shrinks += bool(before - after)
        self.expands += bool(after - before)
        leader = self._leader_of(write)
        if leader is not None:
            leader.isr_written(write.isr_change, state.version, state.modified_zxid)
        else:
            write.in_sync.written(write.isr_change, state.version, state.modified_zxid, self._loop.time())

    def found(self, write: _IsrWrite, change: StateChange, state: PartitionState | None) -> None:
        self._resolve(write, state)

    def failed(self, writes: Sequence[_IsrWrite], error: Exception) -> bool:
        first = writes[0]
        if isinstance(error, MalformedNode):
            logger.error("%s keeps its in-sync replicas: %s", first.topic_partition, error)
            self._resolve(first, None)
            return False
        if isinstance(error, GuardMissing) and self._view.topic_id_of(first.topic_partition.topic) != first.topic_id:
            # Otherwise the controller is about to make it.
            self._resolve(first, None)
            return False
        if not isinstance(error, RegistryError):
            logger.critical("in-sync replicas could not be written", exc_info=error)
            return False
        _quiet.log(
            logging.WARNING,
            "unknown",
            "the in-sync replicas of %s are not known to be written, trying again: %s",
            first_of([each.topic_partition for each in writes], 1),
            error,
        )
        return True

    def ended(self, write: _IsrWrite) -> None:
        """Look for the next change."""
        leader = self._leader_of(write)
        if leader is not None:
            self._look(leader)

    def _resolve(self, write: _IsrWrite, found: PartitionState | None) -> None:
        leader = self._leader_of(write)
        if leader is not None:
            leader.isr_resolved(write.isr_change, found)
        else:
            write.in_sync.resolved(write.isr_change, found, self._loop.time())

    def _leader_of(self, write: _IsrWrite) -> Leader | None:
        """Return the leader that uses the write's ISR now: another one than before if the session has changed."""
        partition = self._replicas.find(write.topic_partition)
        leader = None if partition is None else partition.leader
        return leader if leader is not None and leader.in_sync is write.in_sync else None


def _log_change(change: StateChange) -> None:
    before, after = change.before, change.after
    if before.isr != after.isr or before.eligible != after.eligible:
        eligible = f", eligible besides: {_listed(after.eligible)}" if after.eligible else ""
        logger.info(
            "%s: in-sync replicas %s, before %s%s",
            change.topic_partition,
            _listed(after.isr),
            _listed(before.isr),
            eligible,
        )


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(str(each) for each in brokers)
