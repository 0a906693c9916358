"""One hosted partition: its log, its bounds, and the role that this broker has in it.

The registry's states name the leader (:meth:`Partition.become_leader`, :meth:`Partition.resign`). States apply forward
only (rule R2). Under each leader epoch the partition has another object for its role: a ``leader.Leader``, which takes
appends and answers waiting requests, or a ``follower.Follower``. What both have is here: the log, which outlives the
roles, how far it is safe and shown (``bounds``), and when it is flushed (``flusher``).

The topic's settings are the log's (``PartitionLog.config``), and all code reads them there. Changed ones come in
through :meth:`Partition.apply_config`.

A failed write or fsync takes the partition offline; a failed fsync is never tried again, because the kernel has
forgotten by then which pages did not reach the disk. A full disk does not: appends are refused, and the partition is
read (``log.directories.disk``); it is left to others where these can go on without this broker (``isr_leaving``).

There is no await in this file: between reading and changing state nothing else runs, and that is the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from spark_kafkalite.broker.replication.bounds import Bounds
from spark_kafkalite.broker.replication.flusher import Flusher
from spark_kafkalite.broker.replication.follower import Follower, NoLeader
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.next_leader import LeaderMoves, NextLeader
from spark_kafkalite.broker.replication.replica_services import ReplicaServices, ignored
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation
from spark_kafkalite.errors import FencedLeaderEpoch, KafkaError, KafkaStorageError, UnknownLeaderEpoch
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import NO_ORDER, PartitionState

logger = logging.getLogger(__name__)

# How long what cannot be read is not read again where no other broker has it.
_READ_AGAIN_S = 10.0


Role = Leader | Follower | NoLeader


@dataclass
class PartitionServices(ReplicaServices):
    """What every partition shares."""

    on_storage_failure: Callable[[Partition, BaseException], None] = field(default=ignored)
    # Told which offsets of a log that other brokers have, too, are found to be damaged, and why.
    on_damage_found: Callable[[Partition, Sequence[tuple[int, int]], str], None] = field(default=ignored)
    # Told when a follower's log has other sound batches than its leader's.
    on_differing: Callable[[Partition], None] = field(default=ignored)
    # Told when a follower's log has committed records that its leader lacks for good.
    on_parted: Callable[[Partition], None] = field(default=ignored)
    # Told when a partition's disk has failed, so that nobody waits for it.
    on_offline: list[Callable[[Partition], None]] = field(default_factory=list)
    # Told when a partition's disk has refused records for want of room, so that others may go on without it.
    on_full: Callable[[Partition], None] = field(default=ignored)
    # Told which partitions lie on a disk that does not answer, so that others may go on without it.
    on_hanging: Callable[[Sequence[Partition]], None] = field(default=ignored)
    # Told when records of a partition are known to be missing here, or not to be readable, or are healed.
    on_damaged: Callable[[Partition], None] = field(default=ignored)
    # Told when a partition begins to lead under an epoch, and when it ceases to lead.
    on_role_change: list[Callable[[Partition], None]] = field(default_factory=list)
    # Told when a partition has another role; with a Follower it is to be copied from its leader.
    on_following: Callable[[Partition], None] = field(default=ignored)
    # Told when a truncation has ended, so that the partition can have another role again.
    on_settled: list[Callable[[Partition], None]] = field(default_factory=list)
    # Told where a follower's log should start, with its leader's.
    on_leader_log_start: Callable[[Partition, int], None] = field(default=ignored)


class Partition:
    """See the module's text."""

    __slots__ = (
        "_flusher",
        "_in_sync",
        "_services",
        "bounds",
        "leader_epoch",
        "log",
        "role",
        "state_order",
        "storage_error",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        log: PartitionLog,
        services: PartitionServices,
        checkpointed_high_watermark: int | None = None,
    ) -> None:
        """Take over a loaded log. The partition neither leads nor follows until it receives its state."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self._services = services
        self.role: Role = NoLeader(topic_partition)
        # What was heard under the last epoch that this broker led with; it may lead with that again.
        self._in_sync: InSyncReplicas | None = None
        self.leader_epoch = -1
        self.state_order = NO_ORDER
        self.storage_error: KafkaStorageError | None = None
        checkpointed = 0 if checkpointed_high_watermark is None else checkpointed_high_watermark
        high_watermark = max(log.log_start_offset, min(checkpointed, log.log_end_offset))
        self.bounds = Bounds(high_watermark, log.config, checkpointed)
        self._flusher = Flusher(
            log, services.clock, services.purgatory, services.io, self._flushed, self._storage_failed, services.meters
        )
        log.on_start_moved.append(self._log_start_moved)
        log.local.known_damage.listener = self
        if log.failure is not None:
            self.go_offline(KafkaStorageError(log.failure))

    def apply_config(self, config: TopicConfig) -> None:
        """Obey changed topic settings from now on.

        What is unflushed and has to wait for a flush under the new settings gets one; a request that waits for a flush
        that the new settings do not require is answered.
        """
        self.log.update_config(config)
        bounds = self.bounds
        bounds.obey(config, self.log.recovery_point)
        self._flusher.config_changed(bounds.acknowledges_flushed or bounds.shows_flushed)
        if isinstance(self.role, Leader | Follower):
            self.role.obey()

    # Role -----------------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader | None:
        """What this broker does as the leader; None while it does not lead."""
        return self.role if isinstance(self.role, Leader) else None

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return isinstance(self.role, Leader)

    def become_leader(self, state: PartitionState) -> None:
        """Lead under this state. Older states than the last are ignored, but not newer replicas with one (rule R2).

        Raises KafkaStorageError when the log cannot take the epoch; the partition does not lead then.
        """
        is_newer, leader, leader_epoch = state.order > self.state_order, self.leader, state.leader_epoch
        if not is_newer and (leader is None or state.replicas_zxid <= leader.in_sync.state.replicas_zxid):
            return
        self._is_one_of(state.replicas)
        if leader is not None and (leader_epoch <= self.leader_epoch or not is_newer):
            self.state_order = max(self.state_order, state.order)
            leader.take_state(state)
            return
        self._assign_epoch(leader_epoch)
        self.state_order = state.order
        in_sync = self._in_sync
        if in_sync is None or in_sync.state.leader_epoch != leader_epoch:
            me = BrokerId(self._services.broker_id)
            # Not where the epoch began: a process before this one may have led with it, and shown what is behind that.
            in_sync = self._in_sync = InSyncReplicas(me, self.log.log_end_offset, self._services.live_brokers)
        leader = Leader(
            self.topic_partition,
            leader_epoch,
            self.log,
            self.bounds,
            self._flusher,
            self._services,
            self._log_refused,
            in_sync,
        )
        self._change_role(leader, leader_epoch)
        leader.take_state(state)
        self._tell(self._services.on_role_change)
        if self.log.is_damaged:
            leader.follower_logs.accept_as_told(state, self._services.live_brokers().get(self._services.broker_id))
            self._services.on_damaged(self)

    def _assign_epoch(self, leader_epoch: int) -> None:
        try:
            # Not synced: records carry their epoch, and one without records needs no place in the log (rule R1).
            self.log.assign_leader_epoch(leader_epoch, sync=False)
        except KafkaStorageError as error:
            if self.log.failure is not None:
                self.go_offline(error)
            else:
                # There is no room for it. The next state that names this broker is obeyed, if it is the same too.
                self.state_order = NO_ORDER
                self._services.on_full(self)
            raise

    def resign(self, leader_id: int, leader_epoch: int, version: int, created_zxid: int = -1) -> None:
        """Do not lead (any more): follow the new leader ``leader_id``; -1: there is no leader.

        The state's node was made by ``created_zxid``. Requests that wait for this leader are answered with the field's
        errors. Older states are ignored (rule R2).
        """
        if (created_zxid, version) <= self.state_order:
            return
        self.state_order = created_zxid, version
        self.log.local.known_damage.is_kept = True
        role = self.role
        if isinstance(role, Follower) and (role.leader_id, role.epoch) == (leader_id, leader_epoch):
            role.state_changed()
            return
        if leader_id < 0:
            if isinstance(role, NoLeader) and role.awaits_leader:
                self.leader_epoch = leader_epoch
            else:
                gone = NoLeader(self.topic_partition, next_leader=NextLeader(self._services.purgatory))
                self._stop_leading(gone, leader_epoch)
            return
        follower = Follower(
            self.topic_partition,
            leader_id,
            leader_epoch,
            self.log,
            self.bounds,
            self._flusher,
            self._services,
            on_refused=self._log_refused,
            on_settled=self._settled,
            on_log_start=self._leader_starts_at,
            on_parted=self._parted,
        )
        self._stop_leading(follower, leader_epoch)

    @property
    def broker_id(self) -> int:
        """This broker."""
        return self._services.broker_id

    @property
    def is_replicated(self) -> bool:
        """Whether other brokers have the partition, too, as far as is known here."""
        role = self.role
        return len(role.in_sync.state.replicas) > 1 if isinstance(role, Leader) else isinstance(role, Follower)

    @property
    def is_truncating(self) -> bool:
        """Whether threads have the log to themselves for a truncation; until then the partition takes no other role."""
        return self.log.local.truncating

    def _settled(self) -> None:
        self._tell(self._services.on_settled)

    def _tell(self, listeners: Iterable[Callable[[Partition], None]]) -> None:
        for listener in listeners:
            listener(self)

    def _parted(self) -> None:
        self._services.on_parted(self)

    def _leader_starts_at(self, offset: int) -> None:
        self._services.on_leader_log_start(self, offset)

    def fence(self, why: str, *, is_given_back: bool = False) -> None:
        """Stop leading, because this broker cannot prove any more that it leads (rule R6), or resigns.

        It may lead again under the same state, when no other broker was elected meanwhile. Waiting requests are
        answered as when another broker leads. After a resignation, produce requests wait until the next leader is
        known.
        """
        leader = self.leader
        if leader is not None:
            created_zxid, version = self.state_order
            self.state_order = created_zxid, version - 1
            next_leader = None
            if is_given_back:
                self.close_to_appends(why)
                assert leader.moves is not None
                next_leader = leader.moves.next_leader
                next_leader.leader_has_gone()
            gone = NoLeader(self.topic_partition, f"{self.topic_partition} has no leader: {why}", next_leader)
            self._stop_leading(gone, self.leader_epoch)

    def stop_following(self, why: str) -> None:
        """Copy nothing more from the leader, until the same state is applied again."""
        if isinstance(self.role, Follower):
            created_zxid, version = self.state_order
            self.state_order = created_zxid, version - 1
            self._stop_leading(NoLeader(self.topic_partition, f"{self.topic_partition}: {why}"), self.leader_epoch)

    def close_to_appends(self, why: str) -> None:
        """Append nothing more, because this leader is about to resign: produce requests wait for the next leader. What
        is in the log, or in the queue, can still be acknowledged."""
        if self.leader is not None and self.leader.moves is None:
            text = f"{self.topic_partition} has no leader: {why}"
            self.leader.moves = LeaderMoves(text, NextLeader(self._services.purgatory))

    def open_to_appends(self) -> None:
        """Append again: this leader does not resign after all."""
        if self.leader is not None and self.leader.moves is not None:
            self.leader.moves.next_leader.end()
            self.leader.moves = None

    def _stop_leading(self, role: Follower | NoLeader, leader_epoch: int) -> None:
        # What this broker has shown says nothing about the records that another leader puts there.
        self.bounds.forget_shown()
        self._change_role(role, leader_epoch)
        self._tell(self._services.on_role_change)

    def _change_role(self, role: Role, leader_epoch: int, reason: KafkaError | None = None) -> None:
        """Take another role. Requests that wait for this broker as the former leader are answered."""
        before, self.role, self.leader_epoch = self.role, role, leader_epoch
        if isinstance(before, Follower | NoLeader):
            before.end()
        else:
            if reason is None:
                after = (
                    NoLeader(self.topic_partition, f"{self.topic_partition} is led by this broker in a new epoch")
                    if isinstance(role, Leader)
                    else role
                )
                reason = after.refusal()
            before.end(reason)
        self._services.on_following(self)

    def go_offline(self, error: BaseException) -> None:
        """Serve nothing any more, because the disk failed."""
        self._flusher.close()
        if self.storage_error is None:
            self.storage_error = KafkaStorageError(f"{self.topic_partition}: {error}")
        self._change_role(NoLeader(self.topic_partition), self.leader_epoch, self.storage_error)
        self._tell(self._services.on_role_change)
        self._tell(self._services.on_offline)

    def _storage_failed(self, error: BaseException) -> None:
        self._services.on_storage_failure(self, error)

    def disk_hangs(self) -> None:
        """Send the leader no fetches, if this broker follows, because the disk does not answer."""
        if isinstance(self.role, Follower):
            self.role.on_ready()

    def disk_answers(self) -> None:
        """Go on: the disk answers again, and the log's end has been read."""
        self.log.local.known_damage.tell()
        self._flusher.request()
        if isinstance(self.role, Follower):
            self.role.on_ready()

    def close(self) -> None:
        """Answer all waiting requests, because the partition is removed or the broker stops."""
        self._flusher.close()
        gone = NoLeader(self.topic_partition, f"{self.topic_partition} is not hosted here any more")
        self._change_role(gone, self.leader_epoch)
        self._tell(self._services.on_role_change)
        self._flusher.forget_partition()
        if self._log_start_moved in self.log.on_start_moved:
            self.log.on_start_moved.remove(self._log_start_moved)
        # The log may be another partition's by now.
        if self.log.local.known_damage.listener is self:
            self.log.local.known_damage.listener = None

    def check_leader(self, current_leader_epoch: int = -1) -> Leader:
        """Return what leads here, in the epoch that the client believes in (-1: unknown).

        Raises KafkaStorageError (56), NotLeaderOrFollower (6), FencedLeaderEpoch (74), UnknownLeaderEpoch (75).
        """
        if self.storage_error is not None:
            raise self.storage_error.with_traceback(None)
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            text = f"{self.topic_partition}: leader epoch {current_leader_epoch} asked, {self.leader_epoch} here"
            raise (FencedLeaderEpoch if current_leader_epoch < self.leader_epoch else UnknownLeaderEpoch)(text)
        role = self.role
        if isinstance(role, Leader):
            return role
        raise role.refusal()

    # Bounds ---------------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that is still there."""
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        """The first offset that is not in every in-sync replica."""
        return self.bounds.high_watermark

    @property
    def visible_end_offset(self) -> int:
        """The first offset that consumers may not see; also the high watermark that they receive."""
        return self.bounds.visible_end_offset(self.log.recovery_point)

    @property
    def last_stable_offset(self) -> int:
        """The first offset that readers of committed transactions may not see."""
        return self.bounds.stable_end_offset(self.log.recovery_point)

    # The log --------------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Begin a new segment, so that retention can take the active one. KafkaStorageError when the disk fails."""
        try:
            self.log.roll()
        except KafkaStorageError as error:
            self._log_refused(error)
            raise

    def _log_refused(self, error: KafkaStorageError) -> None:
        """Go offline if the log takes nothing any more: alone where it is damaged, with the directory where the disk
        has failed. Log an error where the disk is full."""
        if self.log.local.is_damaged:
            logger.error("%s is offline: %s", self.topic_partition, error)
            self.go_offline(error)
        elif self.log.failure is not None:
            self._storage_failed(error)
        elif self.log.disk.refusal is not None:
            self._services.on_full(self)

    def request_flush(self) -> None:
        """Flush in a thread what has been appended until the flush begins."""
        self._flusher.request()

    def _flushed(self) -> None:
        if not isinstance(self.role, NoLeader):
            self.role.flushed()

    def _log_start_moved(self) -> None:
        if not isinstance(self.role, NoLeader):
            self.role.log_start_moved()

    # Damage ---------------------------------------------------------------------------------------------------------

    def _is_one_of(self, replicas: Sequence[BrokerId]) -> None:
        """Lead as one of these replicas. What the only one lacks is accepted: no other replica has it."""
        damage = self.log.local.known_damage
        damage.is_kept = len(replicas) > 1
        if not damage.is_kept and damage.ranges:
            damage.accept()
            damage.tell()
            # Also where nobody had been told of what the last run has known.
            self._services.io.submit(damage.try_to_write, ignored, ignored)

    def damage_changed(self) -> None:
        """Have the damage healed where another broker has the records, and read again where none has."""
        damage = self.log.local.known_damage
        if damage.is_kept:
            if isinstance(self.role, Follower):
                self.role.damage_changed()
            self._services.on_damaged(self)
        elif damage.ranges:
            # No other broker has it, and perhaps it can be read again.
            asyncio.get_running_loop().call_later(_READ_AGAIN_S, self._read_again)
            return
        self._services.io.submit(damage.try_to_write, ignored, ignored)

    def damage_reported(self) -> None:
        """Accept what this leader and every other replica lack: no replica can heal it. Hand over to a damaged replica
        from which this one can be healed."""
        leader = self.leader
        if leader is not None:
            leader.follower_logs.accept_lacked_by_all()
            leader.ack_waiters.wake()
            if leader.follower_logs.successor() is not None:
                self._services.on_damaged(self)

    def _read_again(self) -> None:
        damage = self.log.local.known_damage
        if not damage.is_kept:
            damage.accept()

    def damage_found(self, ranges: Sequence[tuple[int, int]], reason: str) -> None:
        """Take note of offsets, from one to another exclusive, that are damaged here."""
        self._services.on_damage_found(self, ranges, reason)

    # For the brokers' own topics ------------------------------------------------------------------------------------

    def append_own(self, batch: memoryview, leader_epoch: int) -> AppendResult:
        """Append a batch that this broker has made itself under an epoch; see ``Leader.append_own``.

        Raises its errors and those of :meth:`check_leader`.
        """
        return self.check_leader(leader_epoch).append_own(batch)

    def acknowledged_end_offset(self, acks: int) -> int:
        """Return the offset below which produces with these acks are acknowledged."""
        local = self.log.local
        return self.bounds.acknowledged_end_offset(acks, local.log_end_offset, local.recovery_point)

    def add_ack_waiter(self, operation: DelayedOperation) -> None:
        """Wake this operation when the leader acknowledges more, or ends. Raises the errors of ``check_leader``."""
        self.check_leader().ack_waiters.add(operation)

    def remove_ack_waiter(self, operation: DelayedOperation) -> None:
        if isinstance(self.role, Leader):
            self.role.ack_waiters.remove(operation)

    def __repr__(self) -> str:
        return (
            f"<Partition {self.topic_partition} {self.role!r} epoch={self.leader_epoch} "
            f"start={self.log_start_offset} high_watermark={self.high_watermark} end={self.log.log_end_offset}>"
        )
