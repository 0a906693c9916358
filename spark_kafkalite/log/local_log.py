"""The files of one log: appends, reads, and which part of them is on the disk.

Knows segments and positions, the log end, the recovery point and the first failure. Producers, leader epochs, log start
offsets and cleanings belong to the ``PartitionLog`` that has it. The split is Kafka's, of LocalLog and UnifiedLog.

One thread owns a log and calls everything here; only ``FlushJob.run``, ``IdentitySync.work`` and ``WriteAhead.run`` may
be called elsewhere.
Nothing waits. An append is one ``pwrite`` at a position that only this object advances, so a reader's slice, which ends
at a batch that is already written, can never run into one that is being written. Of a large batch another thread has
written all but the header by then (``write_ahead``).

What a failed write means is decided in ``disk``. A full disk and a lack of descriptors leave the log as it was, once
what was half written has been cut off. Every other failed write, and every failed sync, ends the log's life as far as
writing goes: ``failure`` is set, and every later append raises KafkaStorageError. Going on could put a batch behind a
hole (KAFKA-10778). Reads go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from spark_kafkalite.errors import ClosedError, CorruptMessage, KafkaStorageError, RecordListTooLarge
from spark_kafkalite.log.compaction.clean_job import CleanedGroup
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.needs_thread import NeedsThread
from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE
from spark_kafkalite.log.flush import FlushJob, SyncJob, Unsynced
from spark_kafkalite.log.identity import LogIdentity
from spark_kafkalite.log.known_damage import KnownDamage
from spark_kafkalite.log.loading.damage import DamageLines
from spark_kafkalite.log.loading.holes import Hole
from spark_kafkalite.log.loading.holes import report as report_holes
from spark_kafkalite.log.loading.later_segments import LaterSegments
from spark_kafkalite.log.loading.loaded_log import LoadedLog
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.reader import LogReader
from spark_kafkalite.log.segments.active_segment import EndLost
from spark_kafkalite.log.segments.segment import LOOK_UP_BYTES, Found, LogSlice, Segment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.log.steps import Piece, Steps
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import Offset, TopicPartition
from spark_kafkalite.records.assemble import empty_batch
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, BatchHeader

# Of this much at the end of a log it is taken for granted that it is in the page cache.
_RECENT_BYTES = 16 * 1024 * 1024


class LocalLog:
    """Segments on a disk, appended to at the end."""

    def __init__(
        self,
        host: LogHost,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        loaded: LoadedLog,
    ) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self.directory = directory
        self.segments: Segments = loaded.segments
        self.log_end_offset = Offset(loaded.log_end_offset)
        self.recovery_point = Offset(loaded.recovery_point)
        # What went wrong with the disk; None while the log can be written.
        self.failure: str | None = None
        # Whether that is this log's own damage, which says nothing about the disk.
        self.is_damaged = False
        self.closed = False
        # How often the log has been truncated.
        self.generation = 0
        # The log directory that it lies in.
        self.disk = host.disk
        self._files = host.files
        self._clock = host.clock
        # What is missing or cannot be read, and what is said of damaged batches.
        self.known_damage = KnownDamage(host.files.fs, directory, topic_partition, loaded.segments, host.clock)
        self.damage = DamageLines(topic_partition, host.clock, self.known_damage)
        self.reader = LogReader(loaded.segments, self.damage)
        self._note_recovery_points = host.note_recovery_points
        # Whether a truncation is under way, whose pieces another thread may be running.
        self.truncating = False
        # Monotonic time since when something is unflushed; None when nothing is.
        self._dirty_since_s: float | None = None
        self._flushing = False
        # What the next flush syncs, besides the active segment.
        self.unsynced = Unsynced()
        self.identity = LogIdentity(host.files.fs, host.disk, directory)
        # What was found missing, until it is logged.
        self._holes: Sequence[Hole] = loaded.holes
        # What a thread has made of what lies behind damage, for the log to go on with.
        self.later: LaterSegments | None = None
        self._prepare_active()

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.segments.size_bytes

    @property
    def is_usable(self) -> bool:
        """Whether the log is written: neither has its disk failed, nor is it closed, nor being truncated."""
        return self.failure is None and not self.closed and not self.truncating

    @property
    def is_ready(self) -> bool:
        """Whether the log takes appends as it is: usable, and with its end read, which a fast start puts off."""
        usable = self.failure is None and not self.closed and not self.truncating
        return usable and self.segments.active.unread_until_offset < 0

    @property
    def takes_appends(self) -> bool:
        """Whether a record may be appended now: the log is ready, and its identity on the disk."""
        usable = self.failure is None and not self.closed and not self.truncating
        return usable and self.segments.active.unread_until_offset < 0 and self.identity.is_synced

    @property
    def unflushed_records(self) -> int:
        """How many offsets are not known to be on the disk."""
        return self.log_end_offset - self.recovery_point

    def update_config(self, config: TopicConfig) -> None:
        """Take up changed topic settings; they hold from the next append on."""
        old, self.config = self.config, config
        if (config.segment_jitter_ms, config.segment_ms) != (old.segment_jitter_ms, old.segment_ms):
            self._set_jitter()

    def _prepare_active(self) -> None:
        """Do for a new active segment what the settings want."""
        self._set_jitter()
        if self.config.preallocate:
            self.segments.active.preallocate(self.config.segment_bytes)

    def _set_jitter(self) -> None:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        self.segments.active.roll_jitter_ms = random.randrange(jitter_ms) if jitter_ms else 0

    # Write ----------------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
    ) -> bool:
        """Append a batch to the active segment; return whether it is the first since all was on the disk.

        KafkaStorageError (56) when it cannot be written.
        """
        active = self.segments.active
        position = active.size_bytes
        try:
            active.append(batch, last_offset, max_timestamp, self.config.index_interval_bytes)
        except OSError as error:
            raise self.write_error("append to", error, len(batch)) from error
        self.reader.remember(base_offset, position)
        # Not Offset(...): a call for each append, which gives back what it is given.
        self.log_end_offset = last_offset + 1  # type: ignore[assignment]
        if self._dirty_since_s is not None:
            return False
        self._dirty_since_s = self._clock.monotonic_s()
        return True

    def append_run(self, batches: memoryview, headers: Sequence[BatchHeader]) -> bool:
        """Append several batches with one write; else as :meth:`append`."""
        active = self.segments.active
        position = active.size_bytes
        try:
            active.append_run(batches, headers, self.config.index_interval_bytes)
        except OSError as error:
            raise self.write_error("append to", error, len(batches)) from error
        self.reader.remember(headers[0].base_offset, position)
        self.log_end_offset = Offset(headers[-1].last_offset + 1)
        if self._dirty_since_s is not None:
            return False
        self._dirty_since_s = self._clock.monotonic_s()
        return True

    def take_room(self, size: int) -> None:
        """Raise unless a batch of this size fits a segment (RecordListTooLarge), and the disk (KafkaStorageError)."""
        if size > self.config.segment_bytes:
            raise RecordListTooLarge(
                f"{self.topic_partition}: a batch of {size} bytes does not fit "
                f"segment.bytes={self.config.segment_bytes}"
            )
        self.disk.budget_bytes -= size
        if self.disk.budget_bytes < 0:
            self.disk.check(size)

    def write_ahead(self, batch: bytearray | memoryview, append_time_ms: int) -> WriteAhead:
        """Return what a thread runs before a large batch is appended to the active segment."""
        try:
            return self.segments.active.write_ahead(batch, append_time_ms)
        except OSError as error:
            raise self.write_error("append to", error) from error

    def holds(self, ahead: WriteAhead) -> bool:
        """Return whether what was written ahead is still where the next batch goes."""
        return self.segments.active.holds(ahead)

    def take_back(self, base_offset: int, position: int) -> None:
        """Undo an append at ``position`` in the middle of which memory ran out: its producer gets no answer, so its
        records must not be read.

        Where that fails too, and in the middle of a roll (position -1), the log fails.
        """
        try:
            if position < 0:
                raise MemoryError
            self.segments.active.truncate(position, base_offset)
            self.reader.forget_positions()
            self.log_end_offset = Offset(base_offset)
        except (MemoryError, OSError):
            self.fail(f"out of memory in the middle of an append to {self.topic_partition}; restart the broker")

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment. The old one is synced by the next flush."""
        base = int(self.log_end_offset) if base_offset is None else base_offset
        self._begin_segment(lambda: self.segments.roll(base, self._clock.wall_ms()))

    def _begin_segment(self, begin: Callable[[], Segment]) -> None:
        """Begin a segment by a function that returns the sealed one. The old one is synced by the next flush."""
        old_file = self.segments.active.file
        try:
            sealed = self.disk.persist(begin)
        except OSError as error:
            raise self.write_error("roll a segment of", error) from error
        self.unsynced.files.append(old_file)
        self.unsynced.add_path(sealed.offset_index.path)
        self.unsynced.add_path(sealed.time_index.path)
        self.reader.forget_positions()
        if self.config.preallocate:
            old_file.release_reserve()
        self._prepare_active()

    def go_on_at(self, offset: int, reason: str, leader_epoch: int) -> None:
        """Leave a hole from the log end to ``offset``, log what is lost, and go on there: see ``holes``.

        A segment of its own begins with a batch without records, of ``leader_epoch``, that spans the hole: readers use
        the ends of batches, and would otherwise reach ``offset`` only after the next produce request. KafkaStorageError
        when the disk fails.
        """
        lost = Hole(self.log_end_offset, offset, reason)
        try:
            if not self.segments.size_bytes:
                self.segments.start_anew(offset, self._clock.wall_ms())
                self.reader.forget_positions()
                self._prepare_active()
            elif offset - lost.start_offset > MAX_INT32:
                # More than a batch can span.
                self.roll(offset)
            else:
                if self.segments.active.size_bytes:
                    self.roll()
                filler = empty_batch(lost.start_offset, offset - 1, leader_epoch)
                active, interval_bytes = self.segments.active, self.config.index_interval_bytes
                self.disk.persist(lambda: active.append(filler, offset - 1, -1, interval_bytes))
        except OSError as error:
            raise self.write_error("begin a segment of", error) from error
        self.unsynced.files.append(self.segments.active.file)
        self.unsynced.directories.append(self.directory)
        self.log_end_offset = Offset(offset)
        if self._dirty_since_s is None:
            self._dirty_since_s = self._clock.monotonic_s()
        # Of the segments that are missing at the end each has its own hole already.
        report_holes(self.directory, [*(hole for hole in self._holes if hole.end_offset <= lost.start_offset), lost])
        self._holes = ()

    def go_on_with(self, lost: EndLost, later: LaterSegments) -> None:
        """Go on with the segments that were made of what lies behind damage, and note what is missing between them, to
        be logged. What comes next begins a segment, which has the damaged one synced. KafkaStorageError when the disk
        fails."""
        active = self.segments.active
        self.log_end_offset = Offset(lost.end_offset)
        try:
            self.disk.persist(active.cut_unsound)
        except OSError as error:
            raise self.write_error("cut a segment of", error) from error
        reason = f"{active.log_path.rpartition('/')[2]} is damaged at position {lost.position}"
        if later.kept:
            reason += f"; what lay there is kept in {later.kept}"
        for segment, end_offset in later.segments:
            hole = Hole(self.log_end_offset, segment.base_offset, reason)
            self._holes = [*self._holes, hole]
            self.known_damage.add(hole.start_offset, hole.end_offset)
            self._begin_segment(partial(self.segments.go_on_with, segment))
            self.log_end_offset = Offset(end_offset)

    def report_holes(self) -> None:
        """Log, once, what was found missing."""
        report_holes(self.directory, self._holes)
        self._holes = ()

    def write_error(self, doing: str, error: OSError, size_bytes: int = 0) -> KafkaStorageError:
        """Take up a failed write that has changed nothing in memory, and return what to raise."""
        kind = kind_of(error)
        if kind is FailureKind.BROKEN:
            return self.fatal_error(doing, error)
        try:
            self.segments.active.cut_back()
        except OSError:
            return self.fatal_error(doing, error)
        doing = f"{doing} {self.topic_partition}"
        if kind is FailureKind.NO_ROOM:
            return self.disk.out_of_room(doing, error, size_bytes)
        return KafkaStorageError(f"cannot {doing}: {error.strerror or error}; nothing was written, try again")

    def fatal_error(self, doing: str, error: OSError) -> KafkaStorageError:
        """Mark the log failed, and cut off what a failed append may have left."""
        self.fail(f"cannot {doing} {self.topic_partition} in {self.directory}: {error.strerror or error}")
        try:
            self.segments.active.cut_back()
        except OSError as again:
            # Recovery cuts it at the next start.
            self.failure = f"{self.failure}; cutting the segment back failed too: {again.strerror or again}"
        return KafkaStorageError(self.failure)

    def fail(self, reason: str) -> None:
        """Write nothing any more, because the disk cannot be trusted."""
        if self.failure is None:
            self.failure = reason

    def unusable_error(self) -> KafkaStorageError | ClosedError:
        """Return what to raise when the log is not usable."""
        if self.failure is not None:
            return KafkaStorageError(self.failure)
        if self.truncating:
            return KafkaStorageError(f"the log of {self.topic_partition} is being truncated; try again")
        return ClosedError(f"the log of {self.topic_partition} is closed")

    # Read -----------------------------------------------------------------------------------------------------------

    def slice(self, start_offset: int, max_bytes: int, until_offset: int, *, at_least_one: bool) -> LogSlice | None:
        """Return whole batches from the one that holds ``start_offset``; see ``PartitionLog.read``, which has checked
        the offsets. Raises KafkaStorageError (56)."""
        damage, end_offset, ends_at_damage, read_bytes = self.known_damage, self.log_end_offset, False, LOOK_UP_BYTES
        if not damage.is_quiet:
            readable_end = damage.check(start_offset, until_offset, end_offset)
            filler = damage.passed_over.at(start_offset)
            if filler is not None:
                fits = filler.end <= until_offset and (at_least_one or filler.size_bytes <= max_bytes)
                return filler.slice(start_offset) if fits else None
            until_offset, ends_at_damage = readable_end, readable_end < until_offset
            # A read fails as a whole for one bad sector in it.
            read_bytes = HEADER_BYTES
        try:
            return self.reader.slice(
                start_offset, max_bytes, until_offset, end_offset, at_least_one, ends_at_damage, read_bytes
            )
        except NeedsThread as missing:
            raise damage.guarded(missing, start_offset, end_offset) from None
        except (CorruptMessage, OSError) as error:
            raise damage.failed(error, start_offset, end_offset) from error

    def place_of(self, found: LogSlice) -> tuple[bool, bool]:
        """Return whether a slice was written so lately that it is in the page cache for certain, and whether it ends
        where the log ends, so that only a later append can give more."""
        active = self.segments.active
        if found.file is not active.file:
            return False, False
        after_start = active.size_bytes - found.position
        return after_start <= _RECENT_BYTES, found.length >= after_start

    # Flush ----------------------------------------------------------------------------------------------------------

    def start_flush(self) -> FlushJob | None:
        """Return what to sync for everything appended so far; None when it is synced, a flush is under way, or the disk
        does not answer.

        The caller runs the job, in any thread, and then calls ``finish_flush`` in its own.
        """
        if self._flushing or not self.is_usable or self.disk.hanging is not None:
            return None
        unsynced = self.unsynced
        is_flushed = self.recovery_point >= self.log_end_offset and self.identity.is_synced
        if is_flushed and not unsynced.files and not unsynced.paths:
            return None
        self._flushing = True
        self.unsynced = Unsynced()
        if not self.identity.is_synced:
            self.identity.add_to(unsynced)
        unsynced.files.append(self.segments.active.file)
        now_s = self._clock.monotonic_s()
        return FlushJob(self._files.fs, self.disk, unsynced, self.log_end_offset, self.generation, now_s)

    def finish_flush(self, job: FlushJob) -> None:
        """Take up the result of a flush: ``recovery_point`` moves, or the log fails and KafkaStorageError is raised."""
        self._flushing = False
        if job.can_be_repeated:
            self.unsynced.put_back(job.unsynced)
        self._check_synced(job, "flush")
        if job.generation != self.generation:
            # Truncated meanwhile: what the job synced may have been replaced by other records at the same offsets.
            return
        self.recovery_point = Offset(max(self.recovery_point, min(job.end_offset, self.log_end_offset)))
        if self.recovery_point >= self.log_end_offset:
            self._dirty_since_s = None
        else:
            self._dirty_since_s = job.started_s

    def _check_synced(self, job: SyncJob, doing: str) -> None:
        """Raise KafkaStorageError where a job has not synced; the log fails unless the job can be repeated."""
        if job.error is None:
            return
        if job.can_be_repeated:
            text = job.error.strerror or job.error
            raise KafkaStorageError(f"cannot {doing} {self.topic_partition} at present: {text}") from job.error
        raise self.fatal_error(doing, job.error) from job.error

    def sync_identity(self) -> None:
        """Have the log's identity on the disk, in this thread where no other has synced it; see ``identity``.

        KafkaStorageError when the disk fails, or cannot sync at present.
        """
        job = self.identity.take_up()
        if job is not None:
            self._check_synced(job, f"sync {PARTITION_METADATA_FILE} of")

    @property
    def flush_in_progress(self) -> bool:
        """Whether a flush has been started and not finished."""
        return self._flushing

    def flush_due(self, now_s: float) -> bool:
        """Return whether ``flush.messages`` or ``flush.ms`` asks for a flush at this monotonic time."""
        if self._dirty_since_s is None or self._flushing or self.failure is not None:
            return False
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            return True
        return (now_s - self._dirty_since_s) * 1000 >= self.config.flush_ms

    def flush_deadline_s(self) -> float | None:
        """Return the monotonic time at which ``flush.ms`` asks for a flush; None when nothing is unflushed."""
        return None if self._dirty_since_s is None else self._dirty_since_s + self.config.flush_ms / 1000

    @property
    def has_sealed_unflushed(self) -> bool:
        """Whether a segment has rolled and is not synced yet."""
        return bool(self.unsynced.files)

    @property
    def has_unsynced(self) -> bool:
        """Whether a flush would sync anything: records, small files, or names of files."""
        unsynced = self.unsynced
        has_others = unsynced.files or unsynced.paths or unsynced.directories
        return bool(self.unflushed_records or has_others or not self.identity.is_synced)

    def forget_flush(self, *, is_synced: bool) -> None:
        """Have the last flush cover what another one, which is under way, may not bring to its end any more. With
        ``is_synced`` the file system has been synced, and small files and names need nothing."""
        self._flushing = False
        if is_synced:
            self.identity.is_synced = True
            self.unsynced.paths.clear()
            self.unsynced.directories.clear()

    def write_indexes(self) -> None:
        """Write the active segment's indexes, for a stop that leaves files that end where the log ends."""
        active = self.segments.active
        active.drop_ahead()
        if active.write_indexes():
            self.unsynced.add_path(active.offset_index.path)
            self.unsynced.add_path(active.time_index.path)

    def close(self) -> None:
        """End the log's use; nothing is written. Slices that are out stay readable."""
        self.closed = True
        self.segments.forget_files()

    # Remove ---------------------------------------------------------------------------------------------------------

    @property
    def removable_until_offset(self) -> int:
        """Segments that end at or below it can be done without: the next one's name, and the snapshot of producers that
        was taken where it begins, are on the disk.

        That is the recovery point, but where a segment has rolled since: it may begin just there, and be unsynced.
        """
        return self.recovery_point - (self.has_sealed_unflushed or self._flushing)

    def retire(self, segments: Sequence[Segment]) -> list[str]:
        """Rename the files of segments that are already out of ``segments``, and return the new names, which all end in
        ``.deleted``; the manager unlinks them later (``LogManager.delete_files``).

        Slices that are out stay readable. Whatever makes the segments' records unneeded (a log start offset beyond
        them, other segments in their place) is on the disk before this is called: the renames may be all that
        survives a power loss. KafkaStorageError when the disk fails.
        """
        try:
            # What a first attempt has renamed, and a second does not find any more, the next start removes.
            retired = self.disk.persist(lambda: _rename_out_of_use(segments))
        except OSError as error:
            raise self.write_error("remove segments of", error) from error
        self.reader.forget_positions()
        return retired

    def replace_segments(self, group: CleanedGroup) -> list[str]:
        """Put a cleaned segment in the place of its sources; return the new names of their files, as ``retire`` does.

        A crash must be known to end in the same state: see ``swap``. Reads that are being answered go on with the old
        files. KafkaStorageError when the disk fails.
        """
        cleaned = Segment(
            self._files,
            self.directory,
            group.base_offset,
            group.size_bytes,
            index_entries=group.index_entries,
            time_index_entries=group.time_index_entries,
        )
        replaced = self.segments.replace(group.sources, cleaned)
        max_timestamp = (group.max_timestamp_ms, group.offset_of_max_timestamp)
        try:
            # Half-way there is no way back, so here a full disk is a broken one.
            retired = self.disk.persist(lambda: _rename_out_of_use(replaced))
            self.disk.persist(lambda: cleaned.take_cleaned_files(max_timestamp))
        except OSError as error:
            raise self.fatal_error("name the cleaned segments of", error) from error
        self.reader.forget_positions()
        return retired

    # Truncate -------------------------------------------------------------------------------------------------------

    def truncate(self, found: Found | None, end_offset: int) -> Steps[None]:
        """Remove everything from ``end_offset`` on, where the batch ``found`` begins, in steps. OSError when the disk
        fails; KafkaStorageError when it has no room for a lower recovery point: nothing has changed then."""
        for segment in self.segments.from_offset(end_offset):
            is_first = segment.base_offset <= end_offset
            segment.sending.cut(found.position if is_first and found is not None else 0)
        yield from self._before_truncation(end_offset)
        now_ms = self._clock.wall_ms()
        yield (cutting := Piece(lambda: self._cut(end_offset, now_ms)))
        cutting.result()
        self.log_end_offset = Offset(end_offset)
        self._set_jitter()

    def begins_damage(self, offset: int) -> bool:
        """Whether damage is known to begin at an offset, or nothing before it is damaged."""
        known = self.known_damage.ranges
        return bool(known) and (offset <= known[0][0] or any(start == offset for start, _ in known))

    def check_cut(self, offset: int) -> None:
        """Check, in a thread, that the log can be cut back to where damage begins. CorruptMessage where more damage
        before it, in the same segment, hides what is between the two."""
        if offset > self.known_damage.ranges[0][0]:
            self.segments.floor(offset).check_readable(offset)

    def _cut(self, end_offset: int, now_ms: int) -> None:
        if self.begins_damage(end_offset):
            self.segments.floor(end_offset).cut_to_readable(end_offset)
        self.segments.truncate(end_offset, now_ms)

    def truncate_fully(self, start_offset: int) -> Steps[None]:
        """Remove everything, and go on at ``start_offset``, in steps. Raises as :meth:`truncate`."""
        for segment in self.segments:
            segment.sending.cut(0)
        yield from self._before_truncation(0)
        now_ms = self._clock.wall_ms()
        yield (cutting := Piece(lambda: self.segments.start_anew(start_offset, now_ms)))
        cutting.result()
        self.log_end_offset = Offset(start_offset)
        self._prepare_active()

    def _before_truncation(self, offset: int) -> Steps[None]:
        """Take the recovery point back, on the disk too, before anything above it changes. KafkaStorageError where the
        disk has no room for that: nothing has changed then.

        Otherwise, after a crash, a start would trust what lies below the old one: old segments whose removal was not
        synced, together with new records at the same offsets.
        """
        self.segments.active.drop_ahead()
        self.known_damage.files_change()
        self.generation += 1
        self.reader.forget_positions()
        self.unsynced.directories.append(self.directory)
        before = self.recovery_point
        if offset >= before:
            return
        self.recovery_point = Offset(offset)
        yield (write := Piece(self._note_recovery_points()))
        try:
            write.result()
        except OSError as error:
            if kind_of(error) is not FailureKind.NO_ROOM:
                raise
            self.recovery_point = before
            raise self.disk.out_of_room(f"lower the recovery point of {self.topic_partition}", error) from error

    def sync_truncation(self) -> None:
        """Put on the disk, in this thread, that what a truncation has removed is gone. OSError when the disk fails."""
        self.segments.active.file.sync()
        self._files.fs.sync_directory(self.directory)


def _rename_out_of_use(segments: Sequence[Segment]) -> list[str]:
    return [path for segment in segments for path in segment.retire()]
