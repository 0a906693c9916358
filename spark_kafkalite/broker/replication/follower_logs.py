"""What a leader knows of its followers' logs besides their ends: where they start, and which offsets they lack.

All of it was reported under one leader epoch. It decides what is deleted or lost for good: a log start that is promised
to clients, and damage that is accepted. The leader accepts what it lacks where every other replica has reported that it
lacks the same, or an operator has accepted it. Reads pass over it then. What cannot be read after all, once accepted,
is damage again, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from spark_kafkalite.broker.replication.rules.healing import ReplicaReport, had_by_nobody, next_leader
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas
from spark_kafkalite.log.damaged_ranges import NONE, Ranges, without
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.passed_over import Filler
from spark_kafkalite.model import BrokerId
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState


class FollowerLogs:
    """See the module's text. Made by the leader, which ends it, too."""

    __slots__ = ("_accepted", "_damage", "_in_sync", "_io", "_log", "_me", "_now_s", "_refused", "_starts", "has_ended")

    def __init__(
        self, me: int, log: PartitionLog, in_sync: InSyncReplicas, io: IoThreads, now_s: Callable[[], float]
    ) -> None:
        """``me``: the leader's broker; ``in_sync`` has its followers' log ends."""
        self._me = me
        self._log = log
        self._in_sync = in_sync
        self._io = io
        self._now_s = now_s
        self._starts: dict[int, int] = {}
        self._damage: dict[int, Ranges] = {}
        self._refused: dict[int, int] = {}
        # What was accepted, or is about to be.
        self._accepted: Ranges = NONE
        # Whether the epoch is over: what threads have begun is dropped then.
        self.has_ended = False

    def starts_at(self, replica_id: int, offset: int) -> bool:
        """Note where a follower's log starts (-1: unknown); return whether that is later than before."""
        if self._starts.get(replica_id, -1) >= offset:
            return False
        self._starts[replica_id] = offset
        return True

    def lacks(self, replica_id: int, ranges: Ranges) -> None:
        """Note which ranges a follower's log lacks."""
        self._damage[replica_id] = ranges

    def refuses(self, replica_id: int, offset: int) -> bool:
        """Note that a follower refuses what was sent from an offset on; return whether that is news."""
        is_news = self._refused.get(replica_id) != offset
        self._refused[replica_id] = offset
        return is_news

    @property
    def low_watermark(self) -> int:
        """The first offset that a log in sync may still have: nothing below comes back with another leader."""
        others = [self._starts.get(each, 0) for each in self._in_sync.state.isr if each != self._me]
        return min([self._log.log_start_offset, *others])

    def confirms_start(self, offset: int) -> bool:
        """Whether a log start that this broker has not written may be put into force: a follower in sync has the same,
        or no other broker is a replica. See ``log.loading.log_start``."""
        state = self._in_sync.state
        starts = [self._starts.get(each) for each in state.isr if each != self._me]
        return offset in starts or state.replicas == (self._me,)

    def lacked_by_all(self) -> Ranges:
        """Return the ranges that this log and all other replicas lack: all have reported it."""
        others = [each for each in self._in_sync.state.replicas if each != self._me]
        return had_by_nobody(self._log.damaged_ranges, others, self._reports())

    def successor(self) -> BrokerId | None:
        """Return the damaged follower that leads next, None where there is none: see ``healing.next_leader``. It is at
        the log's end, or was lately."""
        log = self._log
        if self._in_sync.state.isr != (self._me,):
            return None
        end_offset = int(log.local.log_end_offset)
        near = self._in_sync.near(self._now_s())
        reports = {
            broker: report._replace(end_offset=end_offset) if broker in near else report
            for broker, report in self._reports().items()
        }
        found = next_leader(log.damaged_ranges, int(log.undeleted_start_offset), end_offset, reports)
        return None if found is None else BrokerId(found)

    def _reports(self) -> dict[int, ReplicaReport]:
        reports = {}
        for broker in self._in_sync.state.replicas:
            end_offset = self._in_sync.end_offset_of(broker)
            if broker != self._me and end_offset is not None:
                start = self._starts.get(broker, 0)
                reports[int(broker)] = ReplicaReport(end_offset, start, self._damage.get(broker, NONE))
        return reports

    # Accepted damage ------------------------------------------------------------------------------------------------

    def accept_lacked_by_all(self) -> None:
        """Accept what this log and every other replica lack: no replica can heal it."""
        self._accept(self.lacked_by_all(), "no replica has them")

    def accept_as_told(self, state: PartitionState, me: BrokerInfo | None) -> None:
        """Accept what an operator has accepted that this log lacks; not what it has come to lack since."""
        accepted = state.accepted_damage
        if accepted is not None and me is not None and me.has_log_of(accepted.incarnation):
            ranges = tuple(each for each in self._log.damaged_ranges if accepted.covers(*each))
            self._accept(ranges, "an operator has accepted that no replica has them")

    def _accept(self, ranges: Ranges, why: str) -> None:
        log, damage = self._log, self._log.local.known_damage
        ranges = without(ranges, self._accepted)
        if not ranges:
            return
        self._accepted += ranges

        def accept(fillers: Iterable[Filler]) -> None:
            if self.has_ended:
                return
            damage.log_acceptance(ranges, why)
            damage.passed_over.add(fillers)
            for start, end in ranges:
                damage.accept(start, end)
            damage.tell()

        prepare = partial(damage.passed_over.prepare, ranges, log.epochs.epoch_for_lost)
        self._io.submit(prepare, accept, lambda _: accept(()))
