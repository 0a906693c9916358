"""What must hold in a simulated cluster, always and in the end; numbers are those of the judge's rules (tests/chaos).

While it runs: one broker leads a partition under one leader epoch (C7); what any replica takes for committed never
differs from what another one does (C1), and whoever begins to lead has all of it (C2: an election that lost some is
seen at once). In the end: every acknowledged value lies at its offset in every replica, nothing else was ever shown,
nothing is there twice or in another order, and nobody waits (C1-C6, C9, C11-C14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.model import UNKNOWN_INCARNATION, TopicPartition
from spark_kafkalite.records.kernel import scan_headers
from tests.lab.batches import values_of
from tests.simulator.clients import Seen
from tests.simulator.registered import Registered, RegisteredState
from tests.simulator.world import World

_ALL_BYTES = 1 << 30
# How often it is seen whether everything is led, and what a controller takes at most to elect: it waits for brokers
# that are registering, and between two tries that have failed.
_LOOK_FOR_LEADERS_S: Final = 0.25
_LEADERLESS_S: Final = 5.0
Key = tuple[bytes, int]


class _Batch(NamedTuple):
    leader_epoch: int
    last_offset: int
    crc: bytes


def batches_of(partition: Partition, first: int, until: int) -> dict[int, _Batch]:
    """Return a log's batches by base offset: from the one that holds ``first`` to the last that ends by ``until``."""
    data = contents_of(partition, first, until)
    found, position = {}, 0
    for header in scan_headers(data):
        if header.next_offset <= until:
            crc = data[position + 17 : position + 21]
            found[header.base_offset] = _Batch(header.partition_leader_epoch, header.last_offset, crc)
        position += header.size_bytes
    return found


def contents_of(partition: Partition, first: int, until: int) -> bytes:
    """Return the bytes of a log's batches from the one that holds ``first`` on."""
    log, data, offset = partition.log, bytearray(), max(first, partition.log_start_offset)
    while offset < min(until, log.log_end_offset):
        piece = log.read(offset, _ALL_BYTES, until, at_least_one=True)
        if piece is None:
            break
        data += piece.read()
        offset = scan_headers(data)[-1].next_offset
    return bytes(data)


class Invariants:
    """Watches the brokers of one simulation."""

    def __init__(
        self,
        world: World,
        running: Callable[[], Iterable[Any]],
        registered: Registered,
        allows_loss: Callable[[], bool],
    ) -> None:
        """``running`` gives the brokers' present processes; ``allows_loss`` says whether data may have been lost."""
        self._world = world
        self._running = running
        self._registered = registered
        self._allows_loss = allows_loss
        self.problems: list[str] = []
        # Of each partition and epoch who led it; and what is committed of each partition.
        self._leaders: dict[tuple[Key, int], int] = {}
        self._latest_epoch: dict[Key, int] = {}
        self._committed: dict[Key, dict[int, _Batch]] = {}
        self._committed_until: dict[Key, int] = {}
        self._looked: dict[tuple[int, Key], tuple[int, int]] = {}
        # The last batch that is committed, by its base offset; and whose members are to be looked at.
        self._last_committed: dict[Key, int] = {}
        self._to_look: set[Key] = set()
        self._seen_zxid = -1
        self._state_zxids: dict[Key, int] = {}
        # Since when a controller that works has left a partition without a leader, and which one.
        self._leaderless: dict[TopicPartition, tuple[float, object]] = {}
        self._look_for_leaders_s = 0.0

    def committed_until(self, state: RegisteredState) -> int:
        """Return the end of what is known to be committed of a partition."""
        return self._committed_until.get((state.topic_id, state.topic_partition.partition), 0)

    def check(self) -> None:
        """Look at what has changed since the last look."""
        for run in self._running():
            self._check_lease(run)
            for partition in run.replicas:
                key = (partition.topic_id, partition.topic_partition.partition)
                leads_under = partition.leader_epoch if partition.leader is not None else -1
                now = (partition.high_watermark, leads_under)
                before = self._looked.get((id(run), key))
                if now != before:
                    self._looked[id(run), key] = now
                    self._look(run, key, partition, before)
                    self._to_look.add(key)
        self._check_members()
        if self._world.now_s >= self._look_for_leaders_s:
            self._look_for_leaders_s = self._world.now_s + _LOOK_FOR_LEADERS_S
            self._check_led()

    def _check_members(self) -> None:
        """Whoever may be elected, as the registry has it now, has everything that is committed (R1-R8, R10-R16)."""
        if self._seen_zxid == self._registered.zxid and not self._to_look:
            return
        self._seen_zxid = self._registered.zxid
        for state in self._registered.states.values():
            key = state.topic_id, state.topic_partition.partition
            if self._state_zxids.get(key) != state.zxid or key in self._to_look:
                self._state_zxids[key] = state.zxid
                self._check_members_of(key, state)
        self._to_look.clear()

    def _check_members_of(self, key: Key, state: RegisteredState) -> None:
        last = self._last_committed.get(key)
        if last is None:
            return
        until = self._committed_until[key]
        members = state.may_lead
        for run in self._running():
            broker = run.owner.broker_id
            partition = run.replicas.find(state.topic_partition)
            if (
                partition is None
                or partition.topic_id != key[0]
                or partition.storage_error is not None
                or partition.log_start_offset > last
                or broker not in members
                or not self._registered.has_log_of(broker, run.incarnation, members[broker])
            ):
                continue
            found = batches_of(partition, last, until).get(last) if partition.log.log_end_offset >= until else None
            if found != self._committed[key][last]:
                self._problem(
                    f"{state.topic_partition}: broker {broker} may be elected, for {state.node}, with a log that ends "
                    f"at {partition.log.log_end_offset} and has {found} at offset {last}, where "
                    f"{self._committed[key][last]} was committed"
                )

    def _check_led(self) -> None:
        """A controller that works leaves no partition without a leader where somebody may lead it (R13)."""
        store = self._registered.controller
        if store is None and not self._registered.has_controller:
            store = next((each for each in self._registered.candidates if each.works), None)
        before, self._leaderless = self._leaderless, {}
        if store is None or not store.works:
            return
        since = store, store.connections, len(self._registered.brokers)
        for where, state in self._registered.states.items():
            if self._is_led(state) or not self._could_be_led(state):
                continue
            known = before.get(where)
            if known is None or known[1] != since:
                known = self._world.now_s, since
            self._leaderless[where] = known
            if self._world.now_s - known[0] > _LEADERLESS_S:
                self.problems.append(f"{where}: {_LEADERLESS_S} s without an election, for {state.node}, by {store!r}")
        for where in self._registered.without_state:
            known = self._leaderless[where] = before.get(where, (self._world.now_s, since))
            if known[1] != since:
                self._leaderless[where] = (self._world.now_s, since)
            elif self._world.now_s - known[0] > _LEADERLESS_S:
                self.problems.append(f"{where}: {_LEADERLESS_S} s without a state node, by {store!r}")

    def _is_led(self, state: RegisteredState) -> bool:
        node, info = state.node, self._registered.brokers.get(state.node.leader)
        return info is not None and info.has_log_of(node.incarnations.get(node.leader, UNKNOWN_INCARNATION))

    def _could_be_led(self, state: RegisteredState) -> bool:
        brokers = self._registered.brokers
        return any(broker in brokers and brokers[broker].has_log_of(named) for broker, named in state.may_lead.items())

    def _check_lease(self, run: Any) -> None:
        """Nobody else leads while a lease holds (R6): the session has not ended, unless somebody has ended it."""
        store = run.store
        if (
            store is not None
            and store.is_forgotten
            and not store.was_ended
            and run.lease.holds(run.clock.monotonic_s())
        ):
            self._problem(f"broker {run.owner.broker_id} holds its lease beyond the end of its session")

    def _look(self, run: Any, key: Key, partition: Partition, before: tuple[int, int] | None) -> None:
        name, broker = partition.topic_partition, run.owner.broker_id
        if partition.leader is not None and (before is None or before[1] != partition.leader_epoch):
            other = self._leaders.setdefault((key, partition.leader_epoch), broker)
            if other != broker:
                self._problem(f"{name}: brokers {other} and {broker} lead under epoch {partition.leader_epoch}")
            # One that hears of its election when there has been a later one was to have what was committed before it,
            # and cannot commit anything any more.
            if partition.leader_epoch >= self._latest_epoch.get(key, -1):
                self._latest_epoch[key] = partition.leader_epoch
                self._check_complete(key, partition, broker)
        goes_on_leading = before is not None and partition.leader is not None and before[1] == partition.leader_epoch
        if goes_on_leading and before is not None and partition.high_watermark < before[0]:
            self._problem(f"{name}: the leader's high watermark went back from {before[0]}")
        self._commit(key, partition, broker)

    def _check_complete(self, key: Key, partition: Partition, broker: int) -> None:
        until = self._committed_until.get(key, 0)
        if partition.log.log_end_offset < until:
            self._problem(
                f"{partition.topic_partition}: broker {broker} leads under epoch {partition.leader_epoch} with a log "
                f"that ends at {partition.log.log_end_offset}, {until} was committed"
            )
            return
        mine = batches_of(partition, 0, until)
        for base_offset, batch in self._committed.get(key, {}).items():
            if base_offset >= partition.log_start_offset and mine.get(base_offset) != batch:
                self._problem(
                    f"{partition.topic_partition}: broker {broker} leads under epoch {partition.leader_epoch} with "
                    f"{mine.get(base_offset)} at offset {base_offset}, where {batch} was committed"
                )
                return

    def _commit(self, key: Key, partition: Partition, broker: int) -> None:
        first, until = self._committed_until.get(key, 0), partition.high_watermark
        if until <= first:
            return
        committed = self._committed.setdefault(key, {})
        for base_offset, batch in batches_of(partition, first, until).items():
            known = committed.setdefault(base_offset, batch)
            if known != batch:
                self._problem(
                    f"{partition.topic_partition}: broker {broker} has committed {batch} at offset {base_offset}, "
                    f"another one {known}"
                )
            self._last_committed[key] = max(self._last_committed.get(key, 0), base_offset)
        self._committed_until[key] = until

    @property
    def expects_all(self) -> bool:
        """Whether all that was committed must be there: not if the disks that had it may be gone."""
        return not self._allows_loss()

    def _problem(self, text: str) -> None:
        if self.expects_all:
            self.problems.append(text)

    # In the end -----------------------------------------------------------------------------------------------------

    def check_end(self, seen: Seen, topics: dict[TopicPartition, bytes]) -> None:
        """Compare every replica's log with each other, and with what clients have seen of the topics of these ids."""
        for topic_partition, topic_id in topics.items():
            replicas = [
                found
                for run in self._running()
                if (found := run.replicas.find(topic_partition)) is not None and found.topic_id == topic_id
            ]
            if not replicas:
                self.problems.append(f"{topic_partition}: nobody has it in the end")
                continue
            # Who deletes records when nobody else is there may start later than who leads after it.
            start = max(each.log_start_offset for each in replicas)
            contents = [contents_of(each, start, int(each.log.log_end_offset)) for each in replicas]
            if len(set(contents)) > 1:
                ends = [int(each.log.log_end_offset) for each in replicas]
                self.problems.append(f"{topic_partition}: the replicas' logs differ in the end; they end at {ends}")
                continue
            self._check_contents(topic_partition, topic_id, contents[0], seen)

    def _check_contents(self, topic_partition: TopicPartition, topic_id: bytes, data: bytes, seen: Seen) -> None:
        values = dict(values_of(data)) if data else {}
        where: dict[bytes, int] = {}
        for offset, value in values.items():
            assert value is not None
            if value not in seen.sent:
                self.problems.append(f"{topic_partition}: offset {offset} holds {value!r}, which nobody has sent")
            if value in where:
                self.problems.append(f"{topic_partition}: {value!r} is at offsets {where[value]} and {offset}")
            where[value] = offset
        for value, claimed in seen.acknowledged_by_leader.items():
            if value in where and claimed != (topic_id, topic_partition.partition, where[value]):
                self.problems.append(
                    f"{topic_partition}: {value!r} was acknowledged by the leader at offset {claimed[2]}, and is at "
                    f"{where[value]}"
                )
        if self._allows_loss():
            return
        for what, claims in (("acknowledged", seen.acknowledged), ("read", seen.read)):
            deleted_until = seen.deleted.get((topic_id, topic_partition.partition), 0)
            for (of_topic, partition, offset), value in claims.items():
                if (of_topic, partition) != (topic_id, topic_partition.partition) or offset < deleted_until:
                    continue
                if values.get(offset) != value:
                    self.problems.append(
                        f"{topic_partition}: {value!r} was {what} at offset {offset}, where {values.get(offset)!r} is "
                        "in the end"
                    )
        self._check_order(topic_partition, values)

    def _check_order(self, topic_partition: TopicPartition, values: dict[int, bytes | None]) -> None:
        last: dict[bytes, tuple[int, int]] = {}
        for offset in sorted(values):
            value = values[offset]
            assert value is not None
            number, run, count, index = value.split(b"-")
            place = (int(count), int(index))
            producer = number + b"-" + run
            if producer in last and place <= last[producer]:
                self.problems.append(f"{topic_partition}: {value!r} at offset {offset} comes after {last[producer]}")
            last[producer] = place
