"""One hosted partition: its role, its leader epoch, what is committed, what consumers may see, and who waits for it.

Two bounds, both exclusive, neither ever going back while this broker leads:

- ``high_watermark``: everything below it is in the log of every in-sync replica.
- ``visible_end_offset``: everything below it is shown to consumers, through every API. It is the high watermark, and
  with ``visibility.policy=flushed`` not more than what this leader has flushed (the flushed offset is taken before
  fsync is called, so nothing that fsync may have missed is counted). What had been shown before the policy became
  ``flushed`` stays shown: a bound that went back would look like lost data to whoever remembers the old one.

``flushed`` without a rule for when to flush (neither ``flush.messages`` nor ``flush.ms`` set) would hide records until
the segment rolls; every append asks for a flush then, and many share one.

A produce is acknowledged at :meth:`Partition.acknowledged_end_offset`: ``acks=all`` waits for the high watermark, and
with ``flush.before.ack`` (or ``flush.messages=1``) every acknowledgement waits for the flush. One flush runs at a
time; what is appended meanwhile waits for the next one, so many produces share an fsync.

Appends happen in the order in which they were handed in; what needs a thread first goes through ``append_queue``.

There is no await in this file: between reading and changing state nothing else runs, and that is the lock. A failed
write or fsync takes the partition offline; a failed fsync is never tried again, because the kernel has forgotten by
then which pages did not reach the disk. A full disk does not: appends are refused, the partition leads and is read
(``log.disk``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_kafkalite.broker.append_queue import (
    Appender,
    AppendOutcome,
    AppendQueue,
    Checked,
    Recompression,
    recompression_of,
)
from spark_kafkalite.broker.flusher import Flusher
from spark_kafkalite.broker.io_threads import IoThreads
from spark_kafkalite.broker.purgatory import DelayedOperation, Purgatory
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.log.fs import NotInMemory
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.reader import TimestampOffset
from spark_kafkalite.log.segment import LogSlice
from spark_kafkalite.log.write_ahead import WriteAhead
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.admission import INLINE_BATCH_BYTES, AdmissionRules, admit
from spark_kafkalite.records.layout import MAX_INT64, BatchHeader

logger = logging.getLogger(__name__)

_ACKS_ALL = -1

# Of this much at the end of a log it is taken for granted that it is in the page cache.
_RECENT_BYTES = 16 * 1024 * 1024


class PartitionServices:
    """What every partition shares; made once by the broker."""

    __slots__ = (
        "broker_id",
        "clock",
        "io",
        "max_decompressed_bytes",
        "on_role_change",
        "on_storage_failure",
        "purgatory",
    )

    def __init__(
        self,
        broker_id: int,
        clock: Clock,
        io: IoThreads,
        purgatory: Purgatory,
        max_decompressed_bytes: int,
        on_storage_failure: Callable[[Partition, BaseException], None] = lambda partition, error: None,
    ) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.io = io
        self.purgatory = purgatory
        self.max_decompressed_bytes = max_decompressed_bytes
        self.on_storage_failure = on_storage_failure
        # Told when a partition begins to lead under an epoch, and when it ceases to lead.
        self.on_role_change: Callable[[Partition], None] = lambda partition: None


class Partition(Appender):
    """See the module's text."""

    __slots__ = (
        "_ack_waiters",
        "_fetch_waiters",
        "_flusher",
        "_flushes_each",
        "_high_watermark",
        "_queue",
        "_recompression",
        "_rules",
        "_services",
        "_shown_end_offset",
        "_shows_flushed",
        "config",
        "flushes_before_ack",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "replicas",
        "state_version",
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
        """Take over a loaded log. The partition neither leads nor follows until it is told its state."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self._services = services
        self.leader = -1
        self.leader_epoch = -1
        self.is_leader = False
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.state_version = -1
        self.storage_error: KafkaStorageError | None = None
        checkpointed = 0 if checkpointed_high_watermark is None else checkpointed_high_watermark
        self._high_watermark: int = max(log.log_start_offset, min(checkpointed, log.log_end_offset))
        self._flusher = Flusher(
            log, services.clock, services.purgatory, services.io, self._flushed, self._storage_failed
        )
        self._queue = AppendQueue(self, services.io)
        self._fetch_waiters: dict[DelayedOperation, None] = {}
        self._ack_waiters: dict[DelayedOperation, None] = {}
        # Where the visible end was when visibility.policy became ``flushed``.
        self._shown_end_offset = 0
        self._take_up(log.config)
        if log.failure is not None:
            self.go_offline(KafkaStorageError(log.failure))

    # State ----------------------------------------------------------------------------------------------------------

    def apply_config(self, config: TopicConfig) -> None:
        """Obey changed topic settings from now on; the log has got them already.

        What is unflushed and has to wait for a flush under the new settings gets one; who waits for what the new
        settings do not ask for any more is answered.
        """
        shown_end_offset = self.visible_end_offset
        self._take_up(config)
        self._shown_end_offset = shown_end_offset if self._shows_flushed else 0
        self._flusher.config_changed(self.flushes_before_ack or self._shows_flushed)
        # Fewer min.insync.replicas may commit more.
        self._maybe_advance_high_watermark()
        self._wake_all()

    def _take_up(self, config: TopicConfig) -> None:
        self.config = config
        self._shows_flushed = config.visibility_policy == "flushed"
        never_flushes = config.flush_messages == MAX_INT64 and config.flush_ms == MAX_INT64
        self.flushes_before_ack = config.flush_before_ack or config.flush_messages == 1
        self._flushes_each = self.flushes_before_ack or (self._shows_flushed and never_flushes)
        self._rules = AdmissionRules(
            max_message_bytes=config.max_message_bytes,
            timestamp_type=config.timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            keys_required=config.is_compacted,
            max_decompressed_bytes=self._services.max_decompressed_bytes,
        )
        self._recompression = recompression_of(config)

    def become_leader(
        self, leader_epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...], state_version: int
    ) -> None:
        """Lead with this epoch, which is on the disk when this returns. Older states are ignored (rule R2).

        Raises KafkaStorageError when the epoch cannot be written; the partition does not lead then.
        """
        if state_version <= self.state_version:
            return
        is_new_epoch = leader_epoch > self.leader_epoch or not self.is_leader
        self.state_version = state_version
        self.isr = isr
        self.replicas = replicas
        self.leader = self._services.broker_id
        if is_new_epoch:
            self._assign_epoch(leader_epoch)
            self.leader_epoch = leader_epoch
            self.is_leader = True
        self._maybe_advance_high_watermark()
        self._wake_all()
        if is_new_epoch:
            self._services.on_role_change(self)

    def _assign_epoch(self, leader_epoch: int) -> None:
        try:
            # Followers truncate by this epoch (rule R1), so it must outlive a power loss; alone there are none.
            self.log.assign_leader_epoch(leader_epoch, sync=len(self.replicas) > 1)
        except KafkaStorageError as error:
            if self.log.failure is not None:
                self.go_offline(error)
            # Else the disk has no room for it; the next state that names this broker is obeyed, if it is the same too.
            self.state_version = -1
            raise

    def resign(self, leader: int, leader_epoch: int, state_version: int) -> None:
        """Stop leading: ``leader`` (-1: nobody) leads now. Waiting requests are answered with the field's errors."""
        if state_version <= self.state_version:
            return
        self.state_version = state_version
        self.leader = leader
        self.leader_epoch = leader_epoch
        self._stop_leading(f"{self.topic_partition} is led by broker {leader} now")

    def fence(self, why: str) -> None:
        """Stop leading, because this broker cannot prove any more that it leads (rule R6), until a newer state says so.

        Requests that wait are answered as when another broker leads.
        """
        if self.is_leader:
            self.leader = -1
            self._stop_leading(f"{self.topic_partition} has no leader: {why}")

    def _stop_leading(self, text: str) -> None:
        self.is_leader = False
        # What this broker has shown says nothing about the records that another leader puts there.
        self._shown_end_offset = 0
        self._queue.fail(NotLeaderOrFollower(text))
        self._wake_all()
        self._services.on_role_change(self)

    def go_offline(self, error: BaseException) -> None:
        """Serve nothing any more, because the disk failed."""
        self._flusher.close()
        if self.storage_error is None:
            self.storage_error = KafkaStorageError(f"{self.topic_partition}: {error}")
        self.is_leader = False
        self._queue.fail(self.storage_error)
        self._wake_all()
        self._services.on_role_change(self)

    def _storage_failed(self, error: BaseException) -> None:
        self._services.on_storage_failure(self, error)

    def close(self) -> None:
        """Answer everybody who waits, because the partition goes or the broker stops."""
        self._flusher.close()
        self.is_leader = False
        self.leader = -1
        self._queue.close(NotLeaderOrFollower(f"{self.topic_partition} is not hosted here any more"))
        self._wake_all()
        self._services.on_role_change(self)
        self._flusher.forget_partition()

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raise unless this broker leads the partition, in the epoch that the client believes in (-1: not said).

        Raises KafkaStorageError (56), NotLeaderOrFollower (6), FencedLeaderEpoch (74), UnknownLeaderEpoch (75).
        """
        if self.storage_error is not None:
            raise self.storage_error
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            text = f"{self.topic_partition}: leader epoch {current_leader_epoch} asked, {self.leader_epoch} here"
            raise (FencedLeaderEpoch if current_leader_epoch < self.leader_epoch else UnknownLeaderEpoch)(text)
        if not self.is_leader:
            raise NotLeaderOrFollower(f"broker {self._services.broker_id} does not lead {self.topic_partition}")

    # Bounds ---------------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that is still there."""
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        """The first offset that is not in every in-sync replica."""
        return self._high_watermark

    @property
    def visible_end_offset(self) -> int:
        """The first offset that consumers may not see; also what they are told as high watermark."""
        if self._shows_flushed:
            return min(self._high_watermark, max(self._flusher.flushed_end_offset, self._shown_end_offset))
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset that readers of committed transactions may not see: without transactions the visible end."""
        return self.visible_end_offset

    def acknowledged_end_offset(self, acks: int) -> int:
        """Return the offset below which produces with these acks are acknowledged."""
        end: int = self._high_watermark if acks == _ACKS_ALL else self.log.log_end_offset
        return min(end, self._flusher.flushed_end_offset) if self.flushes_before_ack else end

    def _maybe_advance_high_watermark(self) -> bool:
        """Raise the high watermark to the smallest log end of the in-sync replicas; return whether it moved.

        The in-sync replicas of a standalone broker are itself. With fewer than min.insync.replicas it stands still
        (KIP-966): such records would not survive the loss of this broker.
        """
        if not self.is_leader or len(self.isr) < self._required_isr:
            return False
        if self.log.log_end_offset <= self._high_watermark:
            return False
        self._high_watermark = self.log.log_end_offset
        return True

    @property
    def _required_isr(self) -> int:
        return min(self.config.min_insync_replicas, max(len(self.replicas), 1))

    # Appending ------------------------------------------------------------------------------------------------------

    def check_acks(self, acks: int) -> None:
        """Raise NotEnoughReplicas (19) if ``acks=all`` cannot be promised at present."""
        if acks == _ACKS_ALL and len(self.isr) < self._required_isr:
            raise NotEnoughReplicas(
                f"{self.topic_partition} has {len(self.isr)} in-sync replicas, min.insync.replicas is "
                f"{self.config.min_insync_replicas}"
            )

    @property
    def must_queue(self) -> bool:
        """Whether an append has to go through :meth:`append_later` because others wait already."""
        return bool(self._queue)

    def try_append(self, batch: memoryview, produce_version: int) -> AppendResult | BatchHeader:
        """Check and append one batch at once; return its header instead when its records must be walked in a thread.

        ``batch`` is the request's own memory: offset and leader epoch are stamped into it and it is written from there.
        Raises the errors of admission and of the log's sequence check.
        """
        if not self.is_leader:
            self.check_leader()
        rules = self._rules
        rules.now_ms = self._services.clock.wall_ms()
        header, needs_thread = admit(batch, 0, len(batch), rules, produce_version=produce_version)
        if needs_thread or (self._recompression is not None and self._recompression.codec != header.codec):
            return header
        if self.log.segments.active.unread_until_offset >= 0 and self.log.unread_tail() is not None:
            return header
        return self._append(batch, header)

    def append_later(
        self,
        batch: memoryview,
        produce_version: int,
        header: BatchHeader | None,
        on_done: Callable[[AppendOutcome], None],
        release: Callable[[], None],
    ) -> None:
        """Append a batch after those that were handed in before it; ``on_done`` gets the result or the error.

        ``batch`` must stay valid until ``release`` is called. ``header`` is what :meth:`try_append` returned, None when
        not asked.
        """
        self._queue.add(batch, produce_version, header, on_done, release)

    def append_checked(self, checked: Checked, ahead: WriteAhead | None) -> AppendResult | WriteAhead:
        """Append a batch that a thread has checked; of a large one return what a thread has to write first.

        Raises KafkaError, also when leadership has gone meanwhile.
        """
        self.check_leader()
        batch, header = checked
        if len(batch) <= INLINE_BATCH_BYTES:
            return self._append(batch, header)
        if ahead is None or not self.log.holds(ahead):
            try:
                ahead = self.log.write_ahead(batch, header)
            except KafkaStorageError as error:
                self._log_refused(error)
                raise
            if ahead is not None:
                return ahead
        return self._append(batch, header, ahead)

    def read_first(self) -> NotInMemory | None:
        """Return what a thread loads before the log takes the next append, if anything."""
        return self.log.unread_tail()

    def thread_rules(self) -> tuple[AdmissionRules, Recompression | None]:
        """Return the rules for a batch that a thread checks now."""
        self._rules.now_ms = self._services.clock.wall_ms()
        return self._rules, self._recompression

    def _append(self, batch: memoryview, header: BatchHeader, ahead: WriteAhead | None = None) -> AppendResult:
        try:
            result = self.log.append_as_leader(batch, header, self.leader_epoch, ahead)
        except KafkaStorageError as error:
            self._log_refused(error)
            raise
        if not result.duplicate:
            self._flusher.appended(len(batch), self._flushes_each)
            if self._maybe_advance_high_watermark() and self._fetch_waiters and not self._shows_flushed:
                self._services.purgatory.wake(self._fetch_waiters)
        return result

    def append_own(self, batch: memoryview, leader_epoch: int) -> AppendResult:
        """Append a batch that this broker has made itself, under the epoch it was made for; as with ``acks=all``.

        Admission looks for what producers get wrong, and is left out. Raises the errors of :meth:`check_leader` and
        :meth:`check_acks`, MessageTooLarge (10), RecordListTooLarge (18), KafkaStorageError (56).
        """
        self.check_leader(leader_epoch)
        self.check_acks(_ACKS_ALL)
        if len(batch) > self.config.max_message_bytes:
            raise MessageTooLarge(
                f"{self.topic_partition}: the record batch has {len(batch)} bytes, max.message.bytes of the topic is "
                f"{self.config.max_message_bytes}"
            )
        return self._append(batch, kernel.read_header(batch))

    def roll(self) -> None:
        """Begin a new segment, so that retention can take the active one. KafkaStorageError when the disk fails."""
        try:
            self.log.roll()
        except KafkaStorageError as error:
            self._log_refused(error)
            raise

    def _log_refused(self, error: KafkaStorageError) -> None:
        """Go offline if the log takes nothing any more: alone where it is damaged, with the directory where the disk
        has failed."""
        if self.log.is_damaged:
            logger.error("%s is offline: %s", self.topic_partition, error)
            self.go_offline(error)
        elif self.log.failure is not None:
            self._storage_failed(error)

    # Flushing -------------------------------------------------------------------------------------------------------

    def request_flush(self) -> None:
        """Flush in a thread what has been appended until the flush begins."""
        self._flusher.request()

    def _flushed(self) -> None:
        """Wake whoever waits for what has been flushed."""
        if self._ack_waiters:
            self._services.purgatory.wake(self._ack_waiters)
        if self._fetch_waiters and self._shows_flushed:
            self._services.purgatory.wake(self._fetch_waiters)

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, start_offset: int, max_bytes: int, *, at_least_one: bool) -> LogSlice | None:
        """Return visible whole batches from the one that holds ``start_offset``; None when there is nothing (yet).

        The first batch is returned even if larger than ``max_bytes`` when ``at_least_one``.
        Raises OffsetOutOfRange (1) before the log start or beyond the log end; between the visible end and the log end
        there is nothing yet, which is no error.
        """
        until_offset = self.visible_end_offset
        log = self.log
        if start_offset >= until_offset:
            if start_offset > log.log_end_offset:
                raise OffsetOutOfRange(
                    f"{self.topic_partition}: offset {start_offset} is beyond the log end offset {log.log_end_offset}"
                )
            if start_offset >= log.log_start_offset:
                return None
        return log.read(start_offset, max_bytes, until_offset, at_least_one=at_least_one)

    def reaches_end(self, found: LogSlice) -> bool:
        """Return whether a slice ends where the log ends, so that only a later append can give more."""
        active = self.log.segments.active
        return found.position + found.length >= active.size_bytes and found.file is active.file

    def is_recent(self, found: LogSlice) -> bool:
        """Return whether a slice was written so lately that it is in the page cache for certain."""
        active = self.log.segments.active
        return active.size_bytes - found.position <= _RECENT_BYTES and found.file is active.file

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first visible record whose timestamp is at least ``timestamp_ms``, None when there is none."""
        return self.log.offset_for_timestamp(timestamp_ms, self.visible_end_offset)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the visible record with the largest timestamp, None for an empty log."""
        return self.log.offset_of_max_timestamp(self.visible_end_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch in which ``offset`` was given, -1 when it is not known."""
        return self.log.epochs.epoch_at(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest known epoch up to ``leader_epoch`` and its end offset, (-1, -1) when there is none."""
        return self.log.end_offset_for_epoch(leader_epoch)

    # Waiting --------------------------------------------------------------------------------------------------------

    def add_fetch_waiter(self, operation: DelayedOperation) -> None:
        """Wake this operation when consumers can see more, or when the partition's role changes."""
        self._fetch_waiters[operation] = None

    def remove_fetch_waiter(self, operation: DelayedOperation) -> None:
        self._fetch_waiters.pop(operation, None)

    def add_ack_waiter(self, operation: DelayedOperation) -> None:
        """Wake this operation when more is acknowledged, or when the partition's role changes."""
        self._ack_waiters[operation] = None

    def remove_ack_waiter(self, operation: DelayedOperation) -> None:
        self._ack_waiters.pop(operation, None)

    def _wake_all(self) -> None:
        for waiters in (self._fetch_waiters, self._ack_waiters):
            if waiters:
                self._services.purgatory.wake(waiters)

    def __repr__(self) -> str:
        return (
            f"<Partition {self.topic_partition} leader={self.leader} epoch={self.leader_epoch} "
            f"start={self.log_start_offset} high_watermark={self._high_watermark} end={self.log.log_end_offset}>"
        )
