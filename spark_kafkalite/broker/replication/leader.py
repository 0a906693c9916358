"""What a leader does in one leader epoch: appends, reads, the high watermark, and the requests that wait for them.

A :class:`Leader` lives for one leader epoch of one partition. Its queue of appends and its waiting lists end with it
(:meth:`Leader.end`). Each waiting request is answered with the reason, whatever the partition does next (rule R15 in
docs/replication.md: first the epoch, then the offset). An ended leader's state no longer describes the partition.

Each kind of reader (``reader``) waits in a list of its own for more that it can see, and producers wait in another one
for more to be acknowledged. ``rules.in_sync`` works out which replicas are in sync, what that commits, and which change
of the ISR is due. ``isr_changes`` writes the change to the registry.

Appends happen in the order in which they were handed in; what needs a thread first goes through ``append_queue``.

There is no await in this file: between reading and changing state nothing else runs, and that is the lock.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle, is_listed
from spark_kafkalite.broker.replication.append_queue import (
    Appender,
    AppendQueue,
    Checked,
    QueuedBatch,
    Recompression,
    recompression_of,
)
from spark_kafkalite.broker.replication.bounds import ACKS_ALL, Bounds, required_isr
from spark_kafkalite.broker.replication.contest import Claim, Contest
from spark_kafkalite.broker.replication.flusher import Flusher
from spark_kafkalite.broker.replication.follower_logs import FollowerLogs
from spark_kafkalite.broker.replication.leadership_confirmation import Confirmation, OnAnswer, Question
from spark_kafkalite.broker.replication.next_leader import LeaderMoves
from spark_kafkalite.broker.replication.reader import COMMITTED, UNCOMMITTED, Reader
from spark_kafkalite.broker.replication.replica_services import ReplicaServices
from spark_kafkalite.broker.replication.rules.in_sync import FetchClock, InSyncReplicas, IsrChange
from spark_kafkalite.broker.replication.rules.refusals import Refusals
from spark_kafkalite.broker.waiting.purgatory import WaitingList
from spark_kafkalite.errors import (
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
)
from spark_kafkalite.log.damaged_ranges import Ranges
from spark_kafkalite.log.files.needs_thread import NeedsThread
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.model import BrokerId, Incarnation, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.admission import INLINE_BATCH_BYTES, AdmissionRules, admit
from spark_kafkalite.records.layout import MAX_INT64, BatchHeader
from spark_kafkalite.registry.cluster.cluster_state import PartitionState


class Leader(Appender):
    """See the module's text. Made by the partition, which ends it, too."""

    __slots__ = (
        "_bounds",
        "_flusher",
        "_commits_at_append",
        "_confirmation",
        "_contest",
        "_flushes_each",
        "_isr_is_enough",
        "_may_commit",
        "_meter",
        "_on_refused",
        "_queue",
        "_recompression",
        "_rules",
        "_services",
        "ack_waiters",
        "consumers",
        "end_reason",
        "epoch",
        "follower_logs",
        "followers",
        "has_followers",
        "in_sync",
        "is_throttled",
        "log",
        "moves",
        "refusals",
        "stable_readers",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        epoch: int,
        log: PartitionLog,
        bounds: Bounds,
        flusher: Flusher,
        services: ReplicaServices,
        on_refused: Callable[[KafkaStorageError], None],
        in_sync: InSyncReplicas,
    ) -> None:
        """Lead with an epoch that the log knows. ``on_refused`` is called when the log takes nothing; ``in_sync`` has
        the followers' reports of this epoch, if this broker has led with it before."""
        self.topic_partition = topic_partition
        self.epoch = epoch
        # Why the epoch is over; None while it lasts.
        self.end_reason: KafkaError | None = None
        # What appends are refused with while the partition is about to be given back.
        self.moves: LeaderMoves | None = None
        self.refusals = Refusals()
        # Once somebody has asked.
        self._confirmation: Confirmation | None = None
        self.in_sync = in_sync
        self.follower_logs = FollowerLogs(services.broker_id, log, in_sync, services.io, services.purgatory.now_s)
        self.consumers: WaitingList = services.purgatory.waiting_list()
        self.stable_readers: WaitingList = services.purgatory.waiting_list()
        self.followers: WaitingList = services.purgatory.waiting_list()
        self.ack_waiters: WaitingList = services.purgatory.waiting_list()
        self.log = log
        self._bounds = bounds
        self._flusher = flusher
        self._services = services
        self._on_refused = on_refused
        self._queue = AppendQueue(self, services.io)
        self._meter = None if services.meters is None else services.meters.topics.of(topic_partition.topic)
        self._contest: Contest | None = None
        # What follows from ``in_sync``, and is asked at every append.
        self.has_followers = False
        self._isr_is_enough = False
        self._may_commit = False
        self._commits_at_append = False
        # Whether the topic names this replica among those from which copies are throttled.
        self.is_throttled = False
        self.obey()

    # State ----------------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Apply the settings that the log has now."""
        config = self.log.config
        never_flushes = config.flush_messages == MAX_INT64 and config.flush_ms == MAX_INT64
        # ``flushed`` without a rule for when to flush would hide records until the segment rolls.
        self._flushes_each = self._bounds.acknowledges_flushed or (self._bounds.shows_flushed and never_flushes)
        self._rules = AdmissionRules(
            max_message_bytes=config.max_message_bytes,
            timestamp_type=config.timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            keys_required=config.is_compacted,
            max_decompressed_bytes=self._services.max_decompressed_bytes,
        )
        self._recompression = recompression_of(config)
        listed = config.leader_replication_throttled_replicas
        was_throttled = self.is_throttled
        self.is_throttled = is_listed(listed, self.topic_partition.partition, self._services.broker_id)
        if was_throttled and not self.is_throttled:
            self.followers.wake()
        self._update_required_isr()

    def take_state(self, state: PartitionState) -> None:
        """Adopt a state of this epoch from the registry."""
        self.in_sync.take_state(state, self._services.purgatory.now_s())
        self._update_required_isr()
        self._services.isr_changes.look(self)

    def _update_required_isr(self) -> None:
        """Count how many in-sync replicas a commit takes, and commit what that allows: min.insync.replicas, or the
        replicas, may have become fewer."""
        in_sync = self.in_sync
        replicas = len(in_sync.state.replicas)
        required = required_isr(self.log.config.min_insync_replicas, in_sync.state.settled_count)
        if required != in_sync.required:
            in_sync.required = required
            self._services.isr_changes.look(self)
        in_sync.keeps_eligible = self._services.high_watermark_requires_min_insync
        self.has_followers = replicas > 1
        self._isr_is_enough = in_sync.is_enough
        self._isr_changed()
        self._wake_consumers()
        self.ack_waiters.wake()

    def _isr_changed(self) -> None:
        """Commit what may be committed, after the ISR has changed."""
        self._may_commit = self.in_sync.may_commit
        self._advance_high_watermark()
        if self.is_throttled:
            # One that has joined is throttled no longer, and producers wait for it.
            self.followers.wake()
        if self._confirmation is not None:
            self._confirmation.look()

    def _advance_high_watermark(self) -> None:
        """Commit what all members that count have, if anything may be committed, after followers have fetched."""
        in_sync = self.in_sync
        self._commits_at_append = self._may_commit and in_sync.is_alone
        end_offset = in_sync.committed_end_offset(self.log.local.log_end_offset)
        if not self._may_commit or end_offset <= self._bounds.high_watermark:
            return
        # Unless it is bounded by what is flushed, what consumers see grows as well.
        shown = self.end_offset_for(UNCOMMITTED) if self._bounds.shows_flushed else -1
        has_stable_readers = self.stable_readers.operations or self.stable_readers.watchers
        stable = self.end_offset_for(COMMITTED) if has_stable_readers else -1
        self._raise_high_watermark(end_offset)
        self.ack_waiters.wake()
        if shown < 0 or self.end_offset_for(UNCOMMITTED) > shown:
            self.consumers.wake()
        if has_stable_readers and self.end_offset_for(COMMITTED) > stable:
            self.stable_readers.wake()

    def _raise_high_watermark(self, end_offset: int) -> bool:
        """Raise the high watermark; return whether it moved."""
        if not self._bounds.commit(end_offset):
            return False
        self.followers.tell_of_change()
        if self._bounds.shows_flushed:
            self._tell_consumers_of_change()
        return True

    def _wake_consumers(self) -> None:
        self.consumers.wake()
        self.stable_readers.wake()

    def _tell_consumers_of_change(self) -> None:
        self.consumers.tell_of_change()
        self.stable_readers.tell_of_change()

    def log_start_moved(self) -> None:
        """Have the answers of fetch sessions include a new log start, and send it to followers at once."""
        self._tell_consumers_of_change()
        self.followers.wake()

    def end(self, reason: KafkaError) -> None:
        """Answer all requests that wait for this leader: the epoch is over, or nothing is served any more."""
        if self.end_reason is None:
            self.end_reason = reason
        self.follower_logs.has_ended = True
        self._queue.close(reason)
        for waiting in (self.consumers, self.stable_readers, self.followers, self.ack_waiters):
            waiting.close()
        # Where nobody is known who leads next, it is waited for on.
        if self.moves is not None and not isinstance(reason, LeaderMoves):
            self.moves.next_leader.end()
        if self._confirmation is not None:
            self._confirmation.look()

    # In-sync replicas -----------------------------------------------------------------------------------------------

    def follower_fetched(
        self,
        replica_id: int,
        incarnation: Incarnation,
        fetch_offset: int,
        session: FetchClock | None = None,
        log_start_offset: int = -1,
        damage_stage: int = 0,
    ) -> None:
        """Note from a follower's fetch that it has everything below ``fetch_offset`` of this epoch's log.

        Its log starts at ``log_start_offset`` (-1: unknown). Only where :meth:`divergence` finds none, and not for an
        offset that has not been asked for under this epoch. ``session`` is the fetch session, if any: each fetch of
        that is one at the same offset (KIP-227). Raises NotLeaderOrFollower (6) for a broker that is no replica,
        OffsetOutOfRange (1) beyond the log's end.
        """
        in_sync, log_end_offset = self.in_sync, self.log.local.log_end_offset
        if replica_id not in in_sync.state.replicas or replica_id == self._services.broker_id:
            raise NotLeaderOrFollower(f"broker {replica_id} is not a follower of {self.topic_partition}")
        if fetch_offset > log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {fetch_offset} is beyond the log end offset {log_end_offset}"
            )
        look_in_s = in_sync.fetched(
            replica_id,
            incarnation,
            fetch_offset,
            log_end_offset,
            self._bounds.high_watermark,
            self._services.purgatory.now_s(),
            session,
            damage_stage,
        )
        self._advance_high_watermark()
        if self.follower_logs.starts_at(replica_id, log_start_offset):
            self._services.on_follower_log_start()
        if look_in_s is not None:
            self._services.isr_changes.look(self, look_in_s)
        if not self.log.local.known_damage.is_quiet:
            self.log.local.known_damage.reported()
        if self._confirmation is not None:
            self._confirmation.look()

    def throttle_of(self, replica_id: int) -> ReplicationThrottle | None:
        """Return what bounds the copying of a follower; None where nothing does, or commits wait for it."""
        return self._services.leader_throttle if self.is_throttled and not self.in_sync.counts(replica_id) else None

    def confirm(self, on_answer: OnAnswer) -> Question:
        """Ask the followers whether this leader still leads; see ``leadership_confirmation``."""
        if self._confirmation is None:
            self._confirmation = Confirmation(self, self._services.purgatory)
        return self._confirmation.ask(on_answer)

    def is_fetched_in(self, session: FetchClock) -> bool:
        """Whether a follower fetches this partition in a session, under this leader epoch."""
        return any(each.session is session and each.leader_epoch == self.epoch for each in self.followers.watchers)

    def follower_damage(self, replica_id: int, incarnation: Incarnation, stage: int, ranges: Ranges) -> None:
        """Take up which ranges a follower's log lacks, as of a stage."""
        in_sync = self.in_sync
        if replica_id not in in_sync.state.replicas or replica_id == self._services.broker_id:
            return
        self.follower_logs.lacks(replica_id, ranges)
        if in_sync.damaged(replica_id, incarnation, stage, is_damaged=bool(ranges)):
            self._isr_changed()
            self._services.isr_changes.look(self)
            self.log.local.known_damage.reported()

    def refused_by(self, replica_id: int) -> None:
        """Have the next read check what a follower refuses to append: what was sent from the end of its log on."""
        offset = self.in_sync.end_offset_of(replica_id)
        if offset is not None and self.follower_logs.refuses(replica_id, offset):
            self.log.local.known_damage.suspect(offset, f"broker {replica_id} refuses what was sent from there")

    def given_again(self, offset: int) -> None:
        """Count that a consumer was given batches from an offset on, and perhaps makes no progress with them
        (``rules.rereads``). If that happens again and again, have the next read check them (rule R23)."""
        services = self._services
        if services.rereads.is_due(self.topic_partition, offset, services.purgatory.now_s()):
            self.log.local.known_damage.suspect(offset, "consumers ask for it again and again")

    def is_level(self, broker: BrokerId) -> bool:
        """Whether a follower has reported under this epoch that its log ends where this one does."""
        return self.in_sync.end_offset_of(broker) == self.log.local.log_end_offset

    def due_change(self, lag_max_s: float) -> IsrChange | None:
        """Begin the change of the ISR that is due, if any; see ``InSyncReplicas.due``. It is to be written."""
        change = self.in_sync.due(self._services.purgatory.now_s(), self._bounds.high_watermark, lag_max_s)
        self._isr_changed()
        return change

    def isr_written(self, change: IsrChange, version: int, zxid: int) -> None:
        """Adopt a change of the ISR that has been written; see ``InSyncReplicas.written``."""
        self.in_sync.written(change, version, zxid, self._services.purgatory.now_s())
        self._update_required_isr()

    def isr_resolved(self, change: IsrChange, state: PartitionState | None) -> None:
        """Adopt the state that was read after a change that was not written, or perhaps was."""
        self.in_sync.resolved(change, state, self._services.purgatory.now_s())
        self._update_required_isr()

    def release_held(self) -> None:
        """Have the high watermark wait no longer for followers that have not come to join."""
        self.in_sync.release(self._services.purgatory.now_s())
        self._isr_changed()

    @property
    def epoch_start_offset(self) -> int:
        """Where this epoch begins. While the high watermark is below, it may be lower than what the former leader has
        shown to consumers (KIP-207)."""
        return self.in_sync.epoch_start_offset

    # Acknowledgements -----------------------------------------------------------------------------------------------

    def flushed(self) -> None:
        """Wake the requests that wait for what has been flushed."""
        self.ack_waiters.wake()
        if self._bounds.shows_flushed:
            self._wake_consumers()

    def acknowledged_end_offset(self, acks: int) -> int:
        """Return the offset below which produces with these acks are acknowledged."""
        local = self.log.local
        return self._bounds.acknowledged_end_offset(acks, local.log_end_offset, local.recovery_point)

    # Appending ------------------------------------------------------------------------------------------------------

    def check_acks(self, acks: int) -> None:
        """Raise NotEnoughReplicas (19) if ``acks=all`` cannot be promised at present, NotLeaderOrFollower (6) when this
        leader is about to resign."""
        if self.moves is not None:
            raise self.moves.with_traceback(None)
        if acks == ACKS_ALL and not self._isr_is_enough:
            raise NotEnoughReplicas(
                f"{self.topic_partition} has {self._in_sync_text()}, min.insync.replicas is "
                f"{self.log.config.min_insync_replicas}"
            )

    def check_acknowledged(self, acks: int) -> None:
        """Raise NotEnoughReplicasAfterAppend (20) if what is acknowledged now is in too few logs for ``acks=all``.

        The in-sync replicas have become too few since the append. Source: Partition.checkEnoughReplicasReachOffset.
        """
        if acks == ACKS_ALL and not self._isr_is_enough:
            raise NotEnoughReplicasAfterAppend(
                f"{self.topic_partition}: the record batch is in the log, but by now it has only "
                f"{self._in_sync_text()}, min.insync.replicas is {self.log.config.min_insync_replicas}"
            )

    def _in_sync_text(self) -> str:
        count = len(self.in_sync.state.isr)
        return f"{count} in-sync replica{'s' if count != 1 else ''}"

    @property
    def has_open_appends(self) -> bool:
        """Whether something is not appended yet, or would not be acknowledged yet with ``acks=all``."""
        return self.must_queue or self.acknowledged_end_offset(ACKS_ALL) < self.log.local.log_end_offset

    @property
    def must_queue(self) -> bool:
        """Whether an append has to go through :meth:`append_later` because others wait already."""
        return bool(self._queue.waiting)

    def try_append(self, batch: memoryview, produce_version: int) -> AppendResult | BatchHeader:
        """Check and append one batch at once; return its header instead when a thread must work on it first.

        ``batch`` is the request's own memory: offset and leader epoch are stamped into it and it is written from there.
        Raises the errors of admission and of the log's sequence check.
        """
        rules = self._rules
        rules.now_ms = self._services.clock.wall_ms()
        header, needs_thread = admit(batch, 0, len(batch), rules, produce_version=produce_version)
        if needs_thread or (self._recompression is not None and self._recompression.codec != header.codec):
            return header
        if not self.log.local.takes_appends and self.log.readiness.missing() is not None:
            return header
        return self._append(batch, header)

    def append_later(self, queued: QueuedBatch) -> None:
        """Append a batch after those that were handed in before it. Its ``on_done`` gets the result or the error, also
        that the epoch is over; its ``header`` is what :meth:`try_append` returned, None when not asked."""
        self._queue.add(queued)

    def append_checked(self, checked: Checked, ahead: WriteAhead | None) -> AppendResult | WriteAhead:
        """Append a batch that a thread has checked; of a large one return what a thread has to write first."""
        batch, header = checked
        if len(batch) > INLINE_BATCH_BYTES and not (ahead is not None and self.log.local.holds(ahead)):
            try:
                ahead = self.log.write_ahead(batch, header)
            except KafkaStorageError as error:
                self._on_refused(error)
                raise
            if ahead is not None:
                return ahead
        return self._append(batch, header, ahead)

    def before_append(self) -> NeedsThread | None:
        """Return what a thread has to do before the log takes the next append, if anything."""
        return self.log.readiness.missing()

    def thread_rules(self) -> tuple[AdmissionRules, Recompression | None]:
        """Return the rules for a batch that a thread checks now."""
        self._rules.now_ms = self._services.clock.wall_ms()
        return self._rules, self._recompression

    def append_own(self, batch: memoryview) -> AppendResult:
        """Append a batch that this broker has made itself, as with ``acks=all``.

        Admission looks for what producers get wrong, and is left out. Raises the errors of :meth:`check_acks`,
        MessageTooLarge (10), RecordListTooLarge (18), KafkaStorageError (56); for a producer's transaction
        InvalidProducerEpoch (47) and TransactionCoordinatorFenced (52).
        """
        self.check_acks(ACKS_ALL)
        limit_bytes = self._rules.max_message_bytes
        if len(batch) > limit_bytes:
            raise MessageTooLarge(
                f"{self.topic_partition}: the record batch has {len(batch)} bytes, max.message.bytes of the topic is "
                f"{limit_bytes}"
            )
        return self._append(batch, kernel.read_header(batch), is_own=True)

    def _append(
        self, batch: memoryview, header: BatchHeader, ahead: WriteAhead | None = None, *, is_own: bool = False
    ) -> AppendResult:
        try:
            result = self.log.append_as_leader(batch, header, self.epoch, ahead, is_own=is_own)
        except KafkaStorageError as error:
            self._on_refused(error)
            raise
        if not result.duplicate:
            self._flusher.appended(len(batch), self._flushes_each)
            if self._meter is not None:
                self._meter.bytes_in += len(batch)
                self._meter.messages_in += header.record_count
            if self.has_followers:
                self.followers.wake()
                # Their log ends bound the high watermark, unless none of them is in sync.
                self.in_sync.appended()
            if (
                self._commits_at_append
                and self._raise_high_watermark(self.log.local.log_end_offset)
                and not self._bounds.shows_flushed
            ):
                self._wake_consumers()
        return result

    # Fetching -------------------------------------------------------------------------------------------------------

    def divergence(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return where a reader's log parts from this one: the largest common epoch that is known, and its end offset.

        None when it has not parted: its last epoch, ``last_fetched_epoch`` (-1: unknown), ends here at or behind
        ``fetch_offset``. Source: KIP-595, Partition.readRecords.
        """
        log = self.log
        is_latest = last_fetched_epoch == log.epochs.latest
        if last_fetched_epoch < 0 or (is_latest and fetch_offset <= log.local.log_end_offset):
            return None
        epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def check_divergence(
        self, replica_id: int, incarnation: Incarnation, log_end: int, high_watermark: int, diverging: tuple[int, int]
    ) -> None:
        """Raise OffsetNotAvailable (78) while it is not sure that the logs part there, or where a follower contests it
        that may lead next: it would be cut below ``high_watermark`` (-1: it does not contest). See ``contest``.

        ``log_end``: where the follower's log ends. If that is below this leader's high watermark, the follower itself
        lacks committed records, and contests nothing.
        """
        if self._contest is None:
            self._contest = Contest(self.log, self._services.io, self._services.on_lacking)
        self._contest.check(diverging)
        known = self._bounds.high_watermark
        if high_watermark >= 0 and log_end >= known:
            in_sync = self.in_sync
            is_eligible = high_watermark > known and in_sync.is_eligible(replica_id, incarnation)
            is_named = is_eligible or in_sync.is_member(replica_id, incarnation)
            parts_at = diverging[1]
            is_former = high_watermark > parts_at and in_sync.may_succeed(replica_id, incarnation)
            if is_named or (is_former and self.may_give_up(parts_at)):
                in_sync.contested(replica_id, self._services.purgatory.now_s())
                awaited = None if is_named else in_sync.unheard(replica_id)
                raise self._contest.refusal(replica_id, high_watermark, diverging, awaited)

    def may_give_up(self, offset: int) -> bool:
        """Whether this log had nothing from ``offset`` on when the epoch began, and nothing has been committed there
        since."""
        return self.in_sync.epoch_start_offset <= offset and self._bounds.high_watermark <= offset

    @property
    def claim(self) -> Claim | None:
        """Which replica has committed records that this log is known to lack, None where it lacks none."""
        return None if self._contest is None else self._contest.claim

    def end_offset_for(self, reader: Reader) -> int:
        """Return the first offset that a reader does not get."""
        if reader is UNCOMMITTED:
            return self._bounds.visible_end_offset(self.log.local.recovery_point)
        if reader is COMMITTED:
            return self._bounds.stable_end_offset(self.log.local.recovery_point)
        return self.log.local.log_end_offset

    def waiters_with(self, reader: Reader) -> WaitingList:
        """Return the list that a fetch waits in for its bound to move."""
        if reader is UNCOMMITTED:
            return self.consumers
        return self.stable_readers if reader is COMMITTED else self.followers

    def read(
        self, start_offset: int, max_bytes: int, *, at_least_one: bool, reader: Reader = UNCOMMITTED
    ) -> LogSlice | None:
        """Return whole batches from the one that holds ``start_offset``; None when there is nothing (yet).

        The first batch is returned even if larger than ``max_bytes`` when ``at_least_one``.
        Raises OffsetOutOfRange (1) before the log start or beyond the log end; between the reader's bound and the log
        end there is nothing yet, which is no error.
        """
        until_offset = self.end_offset_for(reader)
        log = self.log
        if start_offset >= until_offset:
            if start_offset > log.local.log_end_offset:
                raise OffsetOutOfRange(
                    f"{self.topic_partition}: offset {start_offset} is beyond the log end offset {log.log_end_offset}"
                )
            if start_offset >= log.undeleted_start_offset:
                return None
        return log.read(start_offset, max_bytes, until_offset, at_least_one=at_least_one)

    def __repr__(self) -> str:
        ended = f", ended: {self.end_reason}" if self.end_reason is not None else ""
        return f"<Leader {self.topic_partition} epoch={self.epoch} isr={self.in_sync.state.isr}{ended}>"
