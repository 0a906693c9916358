"""What must hold in a cluster that disasters hit, where ``invariants`` asks for more than can be.

What may be lost is known exactly (``copies``): a batch whose last copy on any disk a fault has taken. Everything else
that was acknowledged, or read, is to be had from its leader in the end, and in every in-sync replica. Besides:

- replicas never hold different batches where both have taken the offsets for committed;
- an in-sync replica that no fault has touched cuts nothing that is committed;
- nobody cuts back, or writes lines of log, for ever;
- a partition whose state somebody has removed is led by what the logs have, where all of them are there;
- who leads and cannot write for long gives that up where another member of the ISR lives.

Damage of a file that a broker has open, or of records after a stop in order, stays unknown until somebody reads it:
consumers, whose leader finds it then (R23), or the comparison at the end. Only a file that is gone from its directory
under a running broker is not missed before the next start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.model import TopicPartition
from tests.simulator.broker import DIRECTORY, Run
from tests.simulator.clients import Seen
from tests.simulator.copies import Batch, Copies, batches_on
from tests.simulator.disaster_clients import CheckingReader
from tests.simulator.invariants import Invariants, Key
from tests.simulator.registered import Registered, RegisteredState
from tests.simulator.world import World

# In a minute of simulated time, of one broker and one partition.
MOST_TRUNCATIONS: Final = 30
_MINUTE_S: Final = 60.0
# What a fault does to a replica that no comparison shows: a process reads on what it has open.
_UNSEEN: Final = "file missing .log while running"
# How long a leader that cannot write may keep what others could lead, beyond the session's timeout.
_HANGS_S: Final = 5.0
_LOOK_S: Final = 0.25


class DisasterJudge(Invariants):
    """See the module's text."""

    def __init__(
        self, world: World, running: Callable[[], Iterable[Any]], registered: Registered, copies: Copies
    ) -> None:
        super().__init__(world, running, registered, lambda: False)
        self._copies = copies
        # Whether somebody has changed the registry by hand: what brokers do then is judged by what is left alone.
        self.registry_is_touched = False
        # Of an older registry only this is asked: what lies on the disks stays there.
        self.registry_is_older = False
        self._known: dict[Key, dict[int, Batch]] = {}
        # Log ends, by the partition's id, which nothing else has while it is kept.
        self._ends: dict[int, int] = {}
        self._kept: list[Partition] = []
        self._cuts: dict[tuple[int, Key], deque[float]] = {}
        self._look_at_hung_s = 0.0
        self._hung_since_s: dict[tuple[int, TopicPartition], float] = {}

    def check(self) -> None:
        """Look at what has changed since the last look."""
        super().check()
        for run in self._running():
            for partition in run.replicas:
                end, before = partition.log.log_end_offset, self._ends.get(id(partition))
                if end != before:
                    self._ends[id(partition)] = end
                    if before is None:
                        self._kept.append(partition)
                    if before is not None and end < before:
                        key = (partition.topic_id, partition.topic_partition.partition)
                        self._cut(run, key, partition, before)
        if self._world.now_s >= self._look_at_hung_s:
            self._look_at_hung_s = self._world.now_s + _LOOK_S
            self._check_hung()

    # In place of what asks for whole logs ---------------------------------------------------------------------------

    def _check_members_of(self, key: Key, state: RegisteredState) -> None:
        """Members may be damaged, and nobody knows."""

    def _check_led(self) -> None:
        if not self.registry_is_older:
            super()._check_led()

    def _could_be_led(self, state: RegisteredState) -> bool:
        return super()._could_be_led(state) or self._is_known_by_logs(state)

    def _is_known_by_logs(self, state: RegisteredState) -> bool:
        """Whether somebody has removed the state, and all replicas are there with logs that no fault has touched."""
        where, node = state.topic_partition, state.node
        if node.leader >= 0 or node.isr or node.eligible:
            return False
        runs = {run.owner.broker_id: run for run in self._running()}
        found = [runs[each].replicas.find(where) if each in runs else None for each in state.replicas]
        if any(
            each not in self._registered.brokers or (each, where) in self._copies.touched for each in state.replicas
        ):
            return False
        logs = [each.log for each in found if each is not None and each.storage_error is None]
        # Beside logs that have records, one that has none is that of a new directory, too.
        return len(logs) == len(found) and len({log.log_end_offset > 0 for log in logs}) == 1

    def _check_complete(self, key: Key, partition: Partition, broker: int) -> None:
        """A longer damaged log may lead until a whole one has its end."""

    def _commit(self, key: Key, partition: Partition, broker: int) -> None:
        first, until = self._committed_until.get(key, 0), int(partition.high_watermark)
        if until <= first:
            return
        known = self._known.setdefault(key, {})
        lost = self._copies.lost[partition.topic_partition]
        for batch in self._batches(partition, self._run_of(broker), first).values():
            if batch.last_offset < first or batch.last_offset >= until or not batch.records:
                continue
            other = known.setdefault(batch.base_offset, batch)
            if other == batch:
                continue
            if other in lost:
                known[batch.base_offset] = batch
            else:
                self._problem(
                    f"{partition.topic_partition}: forked: broker {broker} has committed {batch}, where {other} was"
                )
        self._committed_until[key] = until

    def _run_of(self, broker: int) -> Run:
        return next(run for run in self._running() if run.owner.broker_id == broker)

    def _batches(self, partition: Partition, run: Run, first: int) -> dict[int, Batch]:
        where = partition.topic_partition
        return batches_on(run.owner.disk, f"{where.topic}-{where.partition}", first)

    # What nobody does for ever --------------------------------------------------------------------------------------

    def _cut(self, run: Run, key: Key, partition: Partition, before: int) -> None:
        where, broker, now_s = partition.topic_partition, run.owner.broker_id, self._world.now_s
        end, committed = int(partition.log.log_end_offset), self._committed_until.get(key, 0)
        cuts = self._cuts.setdefault((broker, key), deque())
        cuts.append(now_s)
        while cuts[0] < now_s - _MINUTE_S:
            cuts.popleft()
        if len(cuts) == MOST_TRUNCATIONS:
            self._problem(f"{where}: broker {broker} has cut its log back {len(cuts)} times in a minute")
        state = self._registered.states.get(where)
        if (
            end < min(committed, before)
            and (broker, where) not in self._copies.touched
            and not self.registry_is_older
            and state is not None
            and state.topic_id == key[0]
            and state.node.incarnations.get(run.owner.broker_id) == run.incarnation
        ):
            self._problem(
                f"{where}: broker {broker}, which is in sync and which no fault has touched, cuts its log from "
                f"{before} back to {end}; {committed} was committed"
            )

    def _check_hung(self) -> None:
        now_s, before, self._hung_since_s = self._world.now_s, self._hung_since_s, {}
        owners = {run.owner.broker_id: run for run in self._running()}
        for where, state in self._registered.states.items():
            leader = owners.get(state.node.leader)
            if leader is None or leader.owner.hangs_until_s <= now_s or not leader.owner.has_hung:
                continue
            others = [each for each in state.node.isr if each in owners and owners[each].owner.hangs_until_s <= now_s]
            if not others:
                continue
            since_s = before.get((state.node.leader, where), now_s)
            self._hung_since_s[state.node.leader, where] = since_s
            bound_s = leader.owner.registry.session_timeout_s + _HANGS_S
            if now_s - since_s > bound_s:
                self._problem(
                    f"{where}: broker {state.node.leader} leads for {now_s - since_s:.1f} s while its disk hangs, and "
                    f"{others} are in sync"
                )

    # In the end -----------------------------------------------------------------------------------------------------

    def check_logs(self, where: TopicPartition, topic_id: bytes, seen: Seen, reader: CheckingReader | None) -> None:
        """Compare what was acknowledged and read with what is to be had. Without a ``reader``, because an operator is
        asked for, the records have to lie on a disk."""
        key = (topic_id, where.partition)
        logs = {
            run.owner.broker_id: batches_on(run.owner.disk, f"{where.topic}-{where.partition}")
            for run in self._running()
        }
        lost = self._offsets(self._copies.lost[where])
        found = self._on_disks(where) if reader is None else reader.values
        missing = []
        for claims in (seen.acknowledged, seen.read):
            for (of_topic, partition, offset), value in claims.items():
                if (of_topic, partition) != key or found.get(offset) == value or offset in lost:
                    continue
                if offset >= seen.deleted.get(key, 0):
                    missing.append((offset, value, found.get(offset)))
        if missing:
            missing.sort()
            offset, value, other = missing[0]
            have = [broker for broker, log in logs.items() if offset in self._offsets(log.values())]
            self.problems.append(
                f"{where}: {len(missing)} records are missing in the end, the first is {value!r} at offset {offset}, "
                f"where {other!r} is; no fault has taken all copies; logs of brokers {have} have that offset"
                + ("" if reader is None else f"; {reader.state}")
            )
        if reader is not None and not missing:
            self._check_replicas(where, key, logs, lost)

    def _check_replicas(
        self, where: TopicPartition, key: Key, logs: dict[int, dict[int, Batch]], lost: set[int]
    ) -> None:
        state = self._registered.states[where].node
        members = [broker for broker in state.isr if broker in logs]
        starts = {run.owner.broker_id: run.replicas.find(where) for run in self._running()}
        until = self._committed_until.get(key, 0)
        every: dict[int, dict[Batch, list[int]]] = {}
        for broker in members:
            for base, batch in logs[broker].items():
                if batch.records and batch.last_offset < until:
                    every.setdefault(base, {}).setdefault(batch, []).append(broker)
        for base, batches in sorted(every.items()):
            if len(batches) > 1:
                # What a file is given under the hands of its broker, and still has its CRC, only a comparison shows.
                batches = {batch: sound for batch, who in batches.items() if (sound := self._sound(where, who))}
            if len(batches) > 1:
                self.problems.append(f"{where}: in-sync replicas differ in the end at offset {base}: {batches}")
                return
            if not batches:
                continue
            ((batch, have),) = batches.items()
            for broker in members:
                partition = starts[broker]
                start = 0 if partition is None else int(partition.log_start_offset)
                if broker not in have and base >= start and self._sound(where, [broker]):
                    how = sorted(self._copies.touched.get((broker, where), ()))
                    self.problems.append(
                        f"{where}: broker {broker} is in sync in the end, and lacks {batch}, which {have} have; faults "
                        f"that touched it: {how}"
                    )
                    return

    def _sound(self, where: TopicPartition, brokers: list[int]) -> list[int]:
        """Return those of them whose files no fault has touched in a way that they need not have found by now."""
        touched = self._copies.touched
        return [b for b in brokers if _UNSEEN not in touched.get((b, where), ())]

    def _on_disks(self, where: TopicPartition) -> dict[int, bytes | None]:
        """Return what lies on any disk, in a directory of this partition or one that was set aside."""
        values: dict[int, bytes | None] = {}
        for run in self._running():
            disk = run.owner.disk
            for name in disk.directories(DIRECTORY):
                if name.startswith(f"{where.topic}-{where.partition}"):
                    values.update(CheckingReader.values_in(disk, f"{DIRECTORY}/{name}/"))
        return values

    @staticmethod
    def _offsets(batches: Iterable[Batch]) -> set[int]:
        return {offset for each in batches for offset in range(each.base_offset, each.last_offset + 1) if each.records}
