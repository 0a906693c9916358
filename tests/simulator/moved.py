"""What must hold of partitions that are reassigned, always and in the end (the rules V1 to V8 of docs/replication.md).

The ISR is a subset of the replicas, also of those that the state has not removed. A reassignment ends when all targets
are in sync, by the state that it was written with (V1). A replica that comes has flushed what
was committed when it began to come, before it is in sync (V4). In the end no broker has anything of a partition that it
is no replica of, but what it is about to delete (V6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE, read_topic_id
from spark_kafkalite.log.strays import StrayFate
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, TopicPartition
from tests.simulator.clients import Seen
from tests.simulator.invariants import Invariants
from tests.simulator.registered import Registered, RegisteredState
from tests.simulator.world import World

_DIRECTORY: Final = "/logs"
# How often it is seen whether what could end has ended, and what a controller takes at most for that.
_LOOK_FOR_ENDED_S: Final = 0.25
_ENDED_WITHIN_S: Final = 5.0


class Moved:
    """Watches the partitions of one simulation."""

    def __init__(
        self, world: World, running: Callable[[], Iterable[Any]], registered: Registered, invariants: Invariants
    ) -> None:
        self._world = world
        self._running = running
        self._registered = registered
        self._invariants = invariants
        self.problems: list[str] = []
        self._seen_zxid = -1
        # Since when a controller that works could have ended a reassignment, and by which state.
        self._endable_since: dict[TopicPartition, tuple[float, object]] = {}
        self._look_for_ended_s = 0.0
        # Where each partition was moving to, when the registry was looked at last.
        self._targets: dict[TopicPartition, tuple[bytes, tuple[int, ...]]] = {}
        # What was committed when a broker began to come to a partition.
        self._committed_at_first: dict[tuple[TopicPartition, int], int] = {}

    def check(self) -> None:
        """Look at the registry's states, if any has changed."""
        if self._world.now_s >= self._look_for_ended_s:
            self._look_for_ended_s = self._world.now_s + _LOOK_FOR_ENDED_S
            self._check_ended()
        if self._seen_zxid == self._registered.zxid:
            return
        self._seen_zxid = self._registered.zxid
        coming: dict[tuple[TopicPartition, int], int] = {}
        targets, self._targets = self._targets, {}
        for where, state in self._registered.states.items():
            outside = set(state.node.isr) - set(state.replicas)
            if outside or set(state.node.isr) & set(state.node.removed):
                self.problems.append(f"{where}: ISR {state.node.isr} is not of replicas {state.replicas}: {state.node}")
            if state.is_moving:
                self._targets[where] = state.topic_id, state.targets
            elif (
                targets.get(where) == (state.topic_id, state.replicas)
                and state.zxid <= state.replicas_zxid
                and not set(state.replicas) <= set(state.node.isr)
            ):
                self.problems.append(f"{where}: reassigned to {state.replicas} before all are in sync: {state.node}")
            for broker in state.adding:
                known = self._committed_at_first.get((where, broker), self._invariants.committed_until(state))
                if broker in state.node.isr and (where, broker) in self._committed_at_first:
                    self._check_flushed(where, state, broker, known)
                    # It has joined; what follows is as for every member.
                    known = 0
                coming[where, broker] = known
        self._committed_at_first = coming

    def _check_ended(self) -> None:
        """A controller that works ends what can end (V8)."""
        store, brokers = self._registered.controller, self._registered.brokers
        before, self._endable_since = self._endable_since, {}
        if store is None or not store.works:
            return
        for where, state in self._registered.states.items():
            named = state.node.incarnations
            if state.is_moving and all(
                each in state.node.isr
                and each in brokers
                and brokers[each].has_log_of(named.get(BrokerId(each), UNKNOWN_INCARNATION))
                for each in state.targets
            ):
                what = store, store.connections, state.zxid
                since_s, known = before.get(where, (self._world.now_s, what))
                self._endable_since[where] = (since_s if known == what else self._world.now_s), what
                if self._world.now_s - self._endable_since[where][0] > _ENDED_WITHIN_S:
                    self.problems.append(f"{where}: {_ENDED_WITHIN_S} s without an end of its move, by {store!r}")

    def _check_flushed(self, where: TopicPartition, state: RegisteredState, broker: int, until: int) -> None:
        for run in self._running():
            partition = run.replicas.find(where)
            if (
                run.owner.broker_id == broker
                and run.incarnation == state.node.incarnations.get(broker)
                and partition is not None
                and partition.topic_id == state.topic_id
                and partition.log.recovery_point < until
                and self._invariants.expects_all
            ):
                self.problems.append(
                    f"{where}: broker {broker} has joined, has flushed up to {partition.log.recovery_point} only, and "
                    f"{until} was committed when it began to copy"
                )

    def check_accepted(self, seen: Seen) -> None:
        """Where all brokers live, no reassignment has a leader refuse acks=all (V7)."""
        self.problems += [f"{each}: a leader has refused acks=all meanwhile" for each in sorted(seen.refused)]

    def check_end(self) -> None:
        """Look for what is left over on the disks."""
        for run in self._running():
            number = run.owner.broker_id
            foreign = {
                f"{where.topic}-{where.partition}": where
                for where, state in self._registered.states.items()
                if number not in state.replicas
            }
            for entry in run.owner.fs.entries(_DIRECTORY):
                name = entry.name.partition(".")[0]
                if not entry.is_directory or name not in foreign or entry.name.endswith("-delete"):
                    continue
                topic_id = read_topic_id(run.owner.fs, f"{_DIRECTORY}/{entry.name}/{PARTITION_METADATA_FILE}")
                if run.replicas.fate_of_stray(entry.name, topic_id) is not StrayFate.DELETED:
                    self.problems.append(f"{foreign[name]}: broker {number} keeps {entry.name}, and is no replica")
