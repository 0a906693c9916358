"""The log of one partition: appends at its end, reads of whole batches from any offset, look-ups, flushes.

Offsets, and what each of them promises::

    log_start_offset, recovery_point <= log_end_offset
    log_start_offset  the first offset that may be read; never goes back, but in a truncation to below it
    recovery_point    everything below it is on the disk (also called the flushed offset)
    log_end_offset    the next offset to be given

The high watermark is not the log's: the partition of the broker knows it and passes it to reads as ``until_offset``.

Bytes, flushes and failures are those of ``local``, its ``LocalLog``; this is what records mean: offsets, producers,
leader epochs, times, and what a cleaning leaves of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from spark_kafkalite.errors import (
    KafkaStorageError,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
)
from spark_kafkalite.log.compaction.clean_job import CleanedGroup
from spark_kafkalite.log.damaged_ranges import Ranges
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.fs import replace_file, write_whole
from spark_kafkalite.log.files.needs_thread import NeedsThread
from spark_kafkalite.log.files.small_files import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    partition_metadata,
)
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.log.known_damage import ANYWHERE
from spark_kafkalite.log.loading.later_segments import LaterSegments, find_later
from spark_kafkalite.log.loading.loaded_log import LastRun, LoadedLog
from spark_kafkalite.log.loading.recovery import begin_log, load_log
from spark_kafkalite.log.local_log import LocalLog
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.log_producers import LogProducers
from spark_kafkalite.log.markers import marker_in
from spark_kafkalite.log.reader import TimestampOffset
from spark_kafkalite.log.readiness import LogReadiness
from spark_kafkalite.log.segments.active_segment import EndLost
from spark_kafkalite.log.segments.segment import LogSlice, Segment, SegmentCut
from spark_kafkalite.log.segments.swap import Swap
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import NO_LEADER_EPOCH, Offset, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import MAX_INT64, BatchHeader


class AppendResult(NamedTuple):
    """Where a batch lies in the log. ``log_append_time_ms`` is -1 when the producer's timestamps count."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    # The batch was in the log before; nothing was written.
    duplicate: bool


class PartitionLog:
    """The log of one partition. Made by ``PartitionLog.open`` and ``PartitionLog.create``, held by the LogManager."""

    def __init__(
        self,
        host: LogHost,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: TopicConfig,
        loaded: LoadedLog,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.host = host
        self.disk = host.disk
        self.local = LocalLog(host, directory, topic_partition, config, loaded)
        self.segments = self.local.segments
        self._clock = host.clock
        self._on_dirty = host.on_dirty
        self.topic_id = topic_id
        self.log_start_offset = Offset(loaded.log_start_offset)
        # What somebody else has put into ``log-start-offset-checkpoint`` for this log, to be confirmed; 0: nothing.
        self.unconfirmed_start_offset = loaded.unconfirmed_start_offset
        # Told when retention or a deletion of records has moved the log start forward.
        self.on_start_moved: list[Callable[[], None]] = []
        self.epochs = loaded.epochs
        self.producers = LogProducers(
            host, directory, topic_partition, self.segments, self.local.reader, loaded.producers
        )
        # Compaction: how far the log has been cleaned; whether the cleaner copies segments of it, which nobody may
        # remove then; and what it is about to put in their place.
        self.cleaned_until_offset = loaded.cleaned_until_offset
        self.cleaning = False
        self.swap: Swap | None = None
        # How much recovery had to do, for the log line of the start.
        self.recovered_segments = loaded.recovered_segments
        self.cut_bytes = loaded.cut_bytes
        # Whether all is there that the last run of the broker had written; see ``loaded_log.LoadedLog``.
        self.was_whole = loaded.is_whole
        # Whether a cleaning that a crash had interrupted has been ended; see ``loaded_log.LoadedLog``.
        self.swapped_at_start = loaded.swapped

    @classmethod
    def open(
        cls,
        host: LogHost,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: TopicConfig,
        last_run: LastRun,
        *,
        sync: bool = True,
    ) -> PartitionLog:
        """Open the log in ``directory``, which has this topic id; see ``recovery.load_log``. OSError comes out when the
        disk fails, LogRefused when the files are not what they look like.

        The log goes on where it had ended, as far as that is known, even if its last records are gone.
        """
        loaded = load_log(host, directory, config, last_run, sync=sync)
        log = cls(host, directory, topic_partition, topic_id, config, loaded)
        if sync and not last_run.clean:
            log.local.identity.changed()
        damage = log.local.known_damage
        if loaded.has_damaged_ranges:
            damage.load(log.log_start_offset, max(loaded.log_end_offset, loaded.given_until))
        for hole in loaded.holes:
            damage.add(hole.start_offset, hole.end_offset)
        # What fails is said by ``failure``, and met by the first append.
        with contextlib.suppress(KafkaStorageError):
            log._check_end(loaded)
        log.local.report_holes()
        damage.write()
        return log

    def _check_end(self, loaded: LoadedLog) -> None:
        if loaded.end_is_suspect and self.segments.active.unread_until_offset >= 0:
            self.readiness.read_end()
        elif self.log_end_offset < loaded.given_until:
            reason = "the last segment has lost its end" if loaded.found_segments else "all segments are missing"
            self._go_on_at_end(loaded.given_until, loaded.end_reason or reason, flush=True)

    def _find_later(self, lost: EndLost) -> LaterSegments:
        """Make segments of what lies behind damage in the active one; may run in a thread. OSError when the disk
        fails."""
        active = self.segments.active
        return find_later(
            self.host.files,
            self.directory,
            active,
            lost,
            until_offset=active.unread_until_offset,
            epoch_at=self.epochs.epoch_at,
            most_batch_bytes=self.config.max_message_bytes,
            has_gaps=self.config.is_compacted or lost.end_offset < self.cleaned_until_offset,
        )

    def _go_on_behind(self, lost: EndLost, later: LaterSegments, end_offset: int) -> None:
        """Go on with what was found behind damage, and at ``end_offset``, where the log ended when the broker
        stopped. KafkaStorageError when the disk fails."""
        try:
            self.local.go_on_with(lost, later)
        except KafkaStorageError as error:
            # No offset may be given twice.
            self.local.fail(str(error))
            raise
        self._on_dirty(self)
        if self.log_end_offset < end_offset:
            self._go_on_at_end(end_offset, str(lost))
        else:
            self.local.report_holes()

    def _go_on_at_end(self, end_offset: int, reason: str, *, flush: bool = False) -> None:
        self.local.known_damage.add(int(self.log_end_offset), end_offset)
        try:
            self.local.go_on_at(end_offset, reason, self.epochs.epoch_at(self.log_end_offset))
            self._on_dirty(self)
            # What a recovery of the new segment begins with is to know the producers of what is lost, too.
            self._snapshot_producers(self.producers.write_snapshot_anew)
            if flush:
                # What proved it may be gone by now.
                self.flush()
        except KafkaStorageError as error:
            # No offset may be given below.
            self.local.fail(str(error))
            raise
        self.producers.state.map_end_offset = end_offset
        self.log_start_offset = Offset(max(self.log_start_offset, self.segments.first.base_offset))

    @classmethod
    def create(
        cls,
        host: LogHost,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: TopicConfig,
    ) -> PartitionLog:
        """Make an empty log in a new ``directory``. It is on the disk after the first flush. May run in any thread."""
        if not host.files.fs.make_directories(directory):
            # What an earlier attempt has left, or something else.
            log = cls.open(host, directory, topic_partition, None, config, LastRun(clean=True))
            if topic_id is not None:
                log.adopt_topic_id(topic_id)
        else:
            log = cls(host, directory, topic_partition, topic_id, config, begin_log(host, directory))
            if topic_id is not None:
                # A crash that leaves half of it leaves an empty log, which takes an id again.
                path = f"{directory}/{PARTITION_METADATA_FILE}"
                metadata = partition_metadata(topic_id, topic_partition.partition)
                write_whole(host.files.fs.open(path, create=True), metadata)
                log.local.identity.changed()
        log.local.unsynced.directories += [directory, directory.rpartition("/")[0]]
        return log

    def adopt_topic_id(self, topic_id: bytes) -> None:
        """Write the topic id of a log that has none yet."""
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        metadata = partition_metadata(topic_id, self.topic_partition.partition)
        replace_file(self.host.files.fs, path, metadata, sync=False)
        self.topic_id = topic_id
        self.local.identity.changed()

    def __repr__(self) -> str:
        failed = f", failure={self.failure!r}" if self.failure else ""
        return (
            f"PartitionLog({self.topic_partition}, log_start_offset={self.log_start_offset}, "
            f"recovery_point={self.recovery_point}, log_end_offset={self.log_end_offset}, "
            f"segments={len(self.segments)}{failed})"
        )

    # What many callers ask of ``local``; the rest they ask themselves.

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self.local.config

    def update_config(self, config: TopicConfig) -> None:
        """Take up changed topic settings; they hold from the next append on."""
        self.local.update_config(config)

    @property
    def log_end_offset(self) -> Offset:
        """The next offset to be given."""
        return self.local.log_end_offset

    @property
    def recovery_point(self) -> Offset:
        """Everything below it is on the disk."""
        return self.local.recovery_point

    @property
    def failure(self) -> str | None:
        """What went wrong with the disk; None while the log can be written."""
        return self.local.failure

    @property
    def closed(self) -> bool:
        """Whether the log is in use no more."""
        return self.local.closed

    @property
    def damaged_ranges(self) -> Ranges:
        """What the log has had and has no more, or cannot be read: (start, end exclusive) offsets, in order."""
        return self.local.known_damage.ranges

    @property
    def is_damaged(self) -> bool:
        """Whether records are missing, or cannot be read."""
        return bool(self.local.known_damage.ranges)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.segments.size_bytes

    @property
    def readiness(self) -> LogReadiness:
        """What the log needs before it takes appends; not kept, as the two would keep each other in memory."""
        return LogReadiness(self.local, self._find_later, self._go_on_behind)

    # Append ---------------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        leader_epoch: int,
        ahead: WriteAhead | None = None,
        *,
        is_own: bool = False,
    ) -> AppendResult:
        """Append one admitted batch, giving it its offsets in place (``batch`` must be writable).

        ``is_own``: a coordinator of this broker writes it, perhaps for a producer; then only epochs are checked.

        ``ahead``: what :meth:`write_ahead` has given for this batch and a thread has run; it is of use as long as the
        log ``holds`` it. A batch of an idempotent producer that is in the log already is not written again: the result
        names the original's offsets. Raises OutOfOrderSequenceNumber (45), InvalidProducerEpoch (47), UnknownProducerId
        (59), RecordListTooLarge (18), KafkaStorageError (56), and for an own batch TransactionCoordinatorFenced (52);
        nothing is written then.
        """
        local = self.local
        if not local.takes_appends:
            self.readiness.prepare()
        has_producer, marker = header.producer_id >= 0, None
        if is_own:
            if has_producer:
                marker = marker_in(batch, 0, header)
                self.producers.state.check_own(header, marker)
        elif has_producer:
            try:
                original = self.producers.check(header, self.log_start_offset)
            except OutOfOrderSequenceNumber:
                # On a disk without room the batch before was refused for that, and comes again. So does this one, if it
                # gets the same answer: librdkafka gives its batches other sequences after this error, and then what
                # waits for an acknowledgement in other partitions is there twice.
                local.take_room(len(batch))
                raise
            if original is not None:
                stamped = local.config.message_timestamp_type == "LogAppendTime"
                return AppendResult(
                    original.base_offset, original.last_offset, original.timestamp_ms if stamped else -1, True
                )
        base_offset = local.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        is_ahead = ahead is not None and local.holds(ahead)
        if ahead is not None and is_ahead:
            append_time_ms = ahead.append_time_ms
            kernel.stamp(batch, 0, base_offset, leader_epoch)
        else:
            local.take_room(len(batch))
            append_time_ms = self._append_time_ms()
            kernel.stamp(batch, 0, base_offset, leader_epoch, append_time_ms if append_time_ms >= 0 else None)
        if append_time_ms >= 0:
            header = header._replace(max_timestamp=append_time_ms)
        if leader_epoch != self.epochs.latest:
            self.assign_leader_epoch(leader_epoch, sync=False)
        position = -1
        try:
            active = local.segments.active
            # What is written ahead lies where its segment has room for it.
            if not is_ahead and active.must_roll(
                len(batch), last_offset, header.max_timestamp, local.config, self._clock
            ):
                self.roll()
                active = local.segments.active
            position = active.size_bytes
            if local.append(batch, base_offset, last_offset, header.max_timestamp):
                self._on_dirty(self)
            if has_producer:
                seen_ms = append_time_ms if append_time_ms >= 0 else self._clock.wall_ms()
                producers = self.producers.state
                producers.update(header, base_offset, seen_ms, marker)
                if producers.forgotten:
                    self.producers.tell_of_forgotten()
        except MemoryError:
            local.take_back(base_offset, position)
            raise
        return AppendResult(base_offset, last_offset, append_time_ms, False)

    def write_ahead(self, batch: bytearray | memoryview, header: BatchHeader) -> WriteAhead | None:
        """Return what a thread runs before a large batch is appended, so that the append is little work.

        None when the batch is not going to be written: ``append_as_leader`` returns why. Raises what that raises.
        """
        if not self.local.takes_appends:
            self.readiness.prepare()
        if header.producer_id >= 0 and self.producers.check(header, self.log_start_offset) is not None:
            return None
        self.local.take_room(len(batch))
        append_time_ms = self._append_time_ms()
        max_timestamp = append_time_ms if append_time_ms >= 0 else header.max_timestamp
        if self.must_roll(len(batch), self.log_end_offset + header.last_offset_delta, max_timestamp):
            self.roll()
        return self.local.write_ahead(batch, append_time_ms)

    def must_roll(self, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether the settings, or the formats of files, want a new segment for a batch."""
        local = self.local
        return local.segments.active.must_roll(size, last_offset, max_timestamp, local.config, self._clock)

    def _append_time_ms(self) -> int:
        """Return what is stamped into the next batch as LogAppendTime, -1 for nothing."""
        # The clock as it is, as in Kafka: times that may not go back would keep one wrong moment of it for ever.
        return self._clock.wall_ms() if self.config.message_timestamp_type == "LogAppendTime" else -1

    def assign_leader_epoch(self, leader_epoch: int, start_offset: int | None = None, *, sync: bool = True) -> None:
        """Note that ``leader_epoch`` begins at the log end (or ``start_offset``). With ``sync`` it is on the disk when
        this returns, which a leader with followers needs before it acts; without, after the flush of its records.

        KafkaStorageError (56), also for want of room; the epoch is known in memory then, and can be assigned again.
        """
        start = self.log_end_offset if start_offset is None else start_offset
        try:
            self.disk.persist(lambda: self.epochs.assign(leader_epoch, start, write=sync))
        except OSError as error:
            raise self.local.write_error("write the leader epochs of", error) from error

    def write_epochs(self) -> None:
        """Write the file of leader epochs; the next flush syncs it. KafkaStorageError (56) when that fails."""
        try:
            self.disk.persist(lambda: self.epochs.write(sync=False))
        except OSError as error:
            raise self.local.write_error("write the leader epochs of", error) from error
        self.local.unsynced.add_path(f"{self.directory}/{LEADER_EPOCH_FILE}")

    def start_flush(self) -> FlushJob | None:
        """Return what to sync; see ``LocalLog.start_flush``. Epochs that are in memory only are written first."""
        error: OSError | None = None
        if self.epochs.unwritten and not self.local.flush_in_progress and self.local.is_usable:
            try:
                self.disk.persist(self._write_epochs)
            except OSError as failed:
                error = failed
        job = self.local.start_flush()
        if job is not None and error is not None:
            job.error = error
            job.can_be_repeated = kind_of(error) is not FailureKind.BROKEN
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """Take up the result of a flush; see ``LocalLog.finish_flush``."""
        self.local.finish_flush(job)

    def flush(self) -> None:
        """Flush now, in this thread. KafkaStorageError when it fails."""
        job = self.start_flush()
        if job is not None:
            job.run()
            self.finish_flush(job)

    def _write_epochs(self) -> None:
        if self.epochs.must_be_written(self.log_end_offset):
            self.epochs.write(sync=False)
            self.local.unsynced.add_path(f"{self.directory}/{LEADER_EPOCH_FILE}")

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment, with a snapshot of the producers. What is new is synced by the next flush."""
        if self.segments.active.unread_until_offset >= 0:
            self.readiness.read_end()
        self.local.roll(base_offset)
        self._snapshot_producers(self.producers.write_snapshot)

    def _snapshot_producers(self, write: Callable[[int], str | None]) -> None:
        try:
            snapshot = write(self.segments.active.base_offset)
        except OSError as error:
            if kind_of(error) is FailureKind.BROKEN:
                raise self.local.fatal_error("write a producer snapshot of", error) from error
            # The segment has rolled all the same; after a crash recovery replays from the snapshot before this one.
            return
        if snapshot is not None:
            self.local.unsynced.add_path(snapshot)
            self.producers.drop_large_snapshots(self.recovery_point)

    # Read -----------------------------------------------------------------------------------------------------------

    @property
    def undeleted_start_offset(self) -> int:
        """The first offset that was not deleted: the log start, or damage before that, where first segments are gone.

        Other replicas learn this one as the log start, because they are to keep what is only damaged here.
        """
        damaged = self.local.known_damage.ranges
        return min(self.log_start_offset, damaged[0][0]) if damaged else self.log_start_offset

    def read(
        self, start_offset: int, max_bytes: int, until_offset: int, *, at_least_one: bool = True
    ) -> LogSlice | None:
        """Return whole batches from the one that holds ``start_offset`` on, all below ``until_offset``.

        They lie in one segment and take up to ``max_bytes``; the first one may be larger, unless ``at_least_one`` is
        false. None when there is nothing to return. Raises OffsetOutOfRange (1) unless log_start_offset <= start_offset
        <= log_end_offset; KafkaStorageError (56) where records are missing or cannot be read (``damaged_ranges``).
        Source: KIP-74.
        """
        end_offset = self.local.log_end_offset
        if start_offset < self.log_start_offset and self.undeleted_start_offset <= start_offset:
            self.local.known_damage.check(start_offset, until_offset, end_offset)
            # Accepted as lost: readers pass over it.
            start_offset = self.log_start_offset
        if not self.log_start_offset <= start_offset <= end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {start_offset} lies outside "
                f"{self.log_start_offset} (log start) to {end_offset} (log end)"
            )
        until_offset = min(until_offset, end_offset)
        if start_offset >= until_offset:
            return None
        return self.local.slice(start_offset, max_bytes, until_offset, at_least_one=at_least_one)

    def offset_for_timestamp(self, timestamp_ms: int, until_offset: int) -> TimestampOffset | None:
        """Return the first record at or after ``timestamp_ms`` and below ``until_offset``; None when there is none."""
        at_or_after = self.local.reader.at_or_after
        return self._by_time(lambda start, until: at_or_after(timestamp_ms, start, until), until_offset)

    def offset_of_max_timestamp(self, until_offset: int) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of all below ``until_offset``; None when there is none."""
        return self._by_time(self.local.reader.with_max_timestamp, until_offset)

    def _by_time(self, find: Callable[[int, int], TimestampOffset | None], until_offset: int) -> TimestampOffset | None:
        if self.local.is_usable and not self.local.is_ready:
            # The times in what a fast start has left unread count too.
            self.readiness.read_end()
        damage = self.local.known_damage
        try:
            return find(self.log_start_offset, min(until_offset, self.log_end_offset))
        except NeedsThread as missing:
            raise damage.guarded(missing, ANYWHERE, self.log_end_offset) from None
        except (OSError, SegmentCut) as error:
            raise damage.failed(error, ANYWHERE, self.log_end_offset) from error
        finally:
            damage.tell()

    @property
    def last_record_epoch(self) -> int:
        """The leader epoch that wrote the last record, -1 when there is none: one that has begun but written nothing
        does not count."""
        end_offset = self.local.log_end_offset
        return self.epochs.epoch_at(end_offset - 1) if end_offset > self.log_start_offset else NO_LEADER_EPOCH

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (the largest known epoch at or below ``leader_epoch``, its end offset); (-1, -1) when unknown."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def ends_epoch(self, leader_epoch: int, end_offset: int) -> bool:
        """Return whether, by the batches on both sides of ``end_offset``, what was written up to ``leader_epoch`` ends
        there. One header each is read; raises NeedsThread, CorruptMessage (2)."""
        for offset in (end_offset - 1, end_offset):
            if self.log_start_offset <= offset < self.log_end_offset:
                found = self.segments.floor(offset).find(offset)
                if found is not None and found.header.base_offset <= offset:
                    is_behind = found.header.partition_leader_epoch > leader_epoch
                    if is_behind != (offset == end_offset):
                        return False
        return True

    # Ends -----------------------------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> bool:
        """Hide everything below ``offset``, which is at most the log end; return whether anything changed.

        The checkpoint has this offset by then (``LogStarts.promise``). Segments stay until ``drop_hidden``.
        """
        if offset <= self.log_start_offset:
            return False
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: the log start cannot go to {offset}, beyond the log end {self.log_end_offset}"
            )
        self.log_start_offset = Offset(offset)
        if offset >= self.unconfirmed_start_offset:
            self.unconfirmed_start_offset = 0
        self.local.known_damage.keep(offset, MAX_INT64)
        # The file keeps the older epochs until it is written for a new one; opening the log drops them again.
        self.epochs.truncate_from_start(offset)
        for listener in self.on_start_moved:
            listener()
        return True

    @property
    def hidden_segments(self) -> int:
        """How many segments lie wholly below the log start offset and can be removed.

        None while the cleaner copies: what it read must still be there when it puts the copy in place.
        """
        if self.cleaning:
            return 0
        return self.segments.count_below(min(self.log_start_offset, self.local.removable_until_offset))

    def drop_hidden(self, at_most: int) -> list[str]:
        """Take the oldest ``hidden_segments`` out of use and return their files' new names, which the manager removes
        (``LogManager.delete_files``). KafkaStorageError when the disk fails."""
        if not self.local.is_usable:
            raise self.local.unusable_error()
        return self.retire(self.segments.drop_oldest(min(self.hidden_segments, at_most)))

    def retire(self, segments: Sequence[Segment]) -> list[str]:
        """Rename the files of segments and their snapshots of producers; see ``LocalLog.retire``."""
        retired = self.local.retire(segments)
        return retired + self._retire_snapshots([segment.base_offset for segment in segments])

    def replace_segments(self, group: CleanedGroup) -> list[str]:
        """Put a cleaned segment in the place of its sources; see ``LocalLog.replace_segments``."""
        retired = self.local.replace_segments(group)
        return retired + self._retire_snapshots(group.sources)

    def _retire_snapshots(self, base_offsets: Sequence[int]) -> list[str]:
        try:
            return self.disk.persist(lambda: self.producers.retire_snapshots(base_offsets))
        except OSError as error:
            raise self.local.write_error("remove producer snapshots of", error) from error

    def write_checkpoints(self) -> None:
        """Have the manager write the checkpoints of recovery points and cleaned logs now, in this thread."""
        self.host.note_recovery_points()()

    def expire_producers(self) -> Generator[None, None, int]:
        """Forget producers that have been silent for ``producer.id.expiration.ms``, in slices; return how many."""
        return (yield from self.producers.state.expire(self._clock.wall_ms()))

    def close(self, *, clean: bool = True, sync: bool = True) -> None:
        """End the log's use. With ``clean``, records, indexes and producers are written and synced first, so that the
        next start need not scan. Without ``sync`` the caller has called ``write_small_files`` and synced the file
        system. KafkaStorageError when that fails. Slices that are out stay readable."""
        if self.closed:
            return
        try:
            if clean and self.failure is None:
                self.write_small_files()
                self.local.forget_flush(is_synced=not sync)
                self.flush()
        finally:
            self.local.close()

    def write_small_files(self) -> None:
        """Write the active segment's indexes and a producer snapshot; the next flush syncs them."""
        try:
            self.disk.persist(self._write_small_files)
        except OSError as error:
            raise self.local.write_error("write the indexes of", error) from error

    def _write_small_files(self) -> None:
        self._write_epochs()
        self.local.write_indexes()
        snapshot = self.producers.write_snapshot(self.log_end_offset) if self.log_end_offset > 0 else None
        if snapshot is not None:
            self.local.unsynced.add_path(snapshot)
