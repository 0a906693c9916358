"""Opens a log that is on the disk: quickly after a clean stop, by scanning after a crash.

After a clean stop the files are trusted: a segment costs nothing but its entry in the directory, and no index is read.
The log's end is in the checkpoint of recovery points, if there is a snapshot of producers at that offset as a clean
stop takes it. Without one the batches after the last index entry of the active segment are walked.

After a crash everything from the recovery point on (the first offset that was not known to be on the disk) is scanned
(see ``scan``). At the first batch that is not sound the file is cut. Batches of the recovery point's own segment that
lie below it are walked by their headers only. Indexes, leader epochs and producers are rebuilt on the way; then all is
synced, and the recovery point is the end.

A torn tail lies at the end of the log. So where a later segment begins with a sound batch of no older leader epoch, the
log goes on there. What is between is a hole like any other: a segment is gone, or has lost its end, or a power cut has
taken pages of it while later ones came to the disk. Within a segment it goes on likewise: sound batches behind damage
become segments of their own (see ``resume``). Other segments leave the log: an empty name, or what was truncated and
came back. Whole batches of what is cut off are kept next to the log (see ``torn``), and their offsets are not given
again.

In a compacted topic as well a gap is no cleaner's if it lies beyond the checkpoints: the cleaner makes gaps only in
what was flushed, and its checkpoint has the end of these.

A segment whose indexes are missing or torn is scanned after a clean stop too, with all that follow it.

Source: org.apache.kafka.storage.internals.log.LogLoader. Epoch 0 is an epoch like any other (KAFKA-10432).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.epochs import LeaderEpochs
from spark_kafkalite.log.files.log_files import (
    LogFiles,
    drop_segments_below,
    drop_snapshots,
    list_log_files,
)
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, LOG_START_OFFSET_FILE
from spark_kafkalite.log.loading.behind import Behind
from spark_kafkalite.log.loading.epoch_check import heads_differ
from spark_kafkalite.log.loading.found_epochs import FoundEpochs
from spark_kafkalite.log.loading.holes import Hole, believed_start, compare, gaps, is_within
from spark_kafkalite.log.loading.loaded_log import LastRun, LoadedLog
from spark_kafkalite.log.loading.log_start import start_in_force, tell_of_unconfirmed_start
from spark_kafkalite.log.loading.producers import forget_producers
from spark_kafkalite.log.loading.scan import EVERYWHERE, Scan
from spark_kafkalite.log.loading.torn import remove_indexes, set_segment_aside
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.producer_snapshot import load_newest_snapshot, snapshot_path, write_snapshot
from spark_kafkalite.log.producer_state import ProducerStateManager
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.segment import LOG_SUFFIX, Segment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.log.topic_config import TopicConfig

logger = logging.getLogger(__name__)


def load_log(host: LogHost, directory: str, config: TopicConfig, last_run: LastRun, *, sync: bool = True) -> LoadedLog:
    """Open the log in ``directory``, recovering it unless the last run was stopped in order.

    With ``sync`` what was recovered is on the disk when this returns; without, the caller sees to it before the
    recovery point is used. Raises OSError when the disk fails.

    What is missing in the middle is in ``holes`` of the result. What is missing at the end lies between the log end and
    ``given_until``, or is to be looked for: ``end_is_suspect``.
    """
    files = host.files
    found = list_log_files(files.fs, directory)
    cleaned_until_offset = max(last_run.cleaned_until_offset, found.swapped_until_offset)
    found_segments = bool(found.logs)
    log_start_offset = last_run.log_start_offset
    said_offset = max(last_run.said_start_offset, log_start_offset)
    # Both files may have been raised; neither is believed beyond the log's end.
    is_raised, reached = said_offset > log_start_offset, max(last_run.recovery_point, last_run.high_watermark)
    if log_start_offset > reached:
        log_start_offset = believed_start(files, directory, found.logs, found.snapshots, log_start_offset)
    if not is_raised:
        said_offset = log_start_offset
    elif said_offset > reached:
        said_offset = believed_start(files, directory, found.logs, found.snapshots, said_offset)
    log_start_offset = start_in_force(found.logs, log_start_offset, said_offset)
    if said_offset > log_start_offset:
        tell_of_unconfirmed_start(directory, found.logs, log_start_offset, said_offset)
    drop_segments_below(files.fs, directory, found, log_start_offset)
    last_run = last_run._replace(log_start_offset=log_start_offset, cleaned_until_offset=cleaned_until_offset)
    loader = _Loader(host, directory, config, found, last_run, sync=sync)
    loaded = loader.load()
    return loaded._replace(
        # Never more than there is: what a crash took will be written anew, with other records.
        cleaned_until_offset=min(cleaned_until_offset, loaded.segments.active.base_offset),
        unconfirmed_start_offset=said_offset if said_offset > log_start_offset else 0,
        swapped=found.swapped_until_offset > 0,
        found_segments=found_segments,
        has_damaged_ranges=found.has_damaged_ranges,
    )


def begin_log(host: LogHost, directory: str) -> LoadedLog:
    """Begin an empty log in a directory that was just made: what :func:`load_log` does there, without its reads."""
    files = host.files
    epochs = LeaderEpochs(files.fs, f"{directory}/{LEADER_EPOCH_FILE}")
    producers = ProducerStateManager(host.producer_limits)
    producers.map_end_offset = 0
    active = ActiveSegment(files, directory, 0, 0, host.clock.wall_ms())
    return LoadedLog(Segments(files, directory, [], active), epochs, producers, 0, 0, 0, found_segments=False)


class _Loader:
    """One log that is being opened."""

    def __init__(
        self,
        host: LogHost,
        directory: str,
        config: TopicConfig,
        found: LogFiles,
        last_run: LastRun,
        *,
        sync: bool,
    ) -> None:
        files = host.files
        self._files = files
        self._directory = directory
        self._config = config
        self._found = found
        self._bases = found.base_offsets
        self._clean = last_run.clean
        self._recovery_point = last_run.recovery_point
        self._knows_recovery_point = last_run.points_are_known or last_run.recovery_point > 0
        self._log_start_offset = last_run.log_start_offset
        self._now_ms = host.clock.wall_ms()
        self._gaps_until_offset = EVERYWHERE if config.is_compacted else last_run.cleaned_until_offset
        self._cleaned_until_offset = last_run.cleaned_until_offset
        self._high_watermark = last_run.high_watermark
        self._sync = sync
        self._on_bytes = host.on_bytes
        self._stopped_with = last_run.stopped_with if last_run.clean else None
        self._producer_limits = host.producer_limits
        self._found_epochs = FoundEpochs(files, directory, found, last_run)
        # The size of each snapshot that the scan has written, by its offset.
        self._new_snapshots: dict[int, int] = {}
        self._behind = Behind(files.fs, directory)
        self._newest_snapshot = max(found.snapshots, default=-1)
        self._end_reason = ""
        self._found_damage = False
        # What the scan has found to be missing, and the first segment that it was of.
        self._holes: list[Hole] = []
        self._scanned_from = EVERYWHERE

    def load(self) -> LoadedLog:
        """Choose what the files need, and do it."""
        holes: Sequence[Hole] = ()
        if self._stopped_with:
            self._leave_out_newer(max(self._stopped_with))
        end_is_suspect = False
        if self._stopped_with:
            holes, end_is_suspect = compare(self._found.logs, self._stopped_with, self._log_start_offset, self._sealed)
        loaded = self._load()
        if self._stopped_with:
            # What is missing of segments is compared above, and met by the scan of those behind it.
            self._holes = [each for each in self._holes if not is_within(each, holes)]
        else:
            if not self._config.is_compacted:
                from_offset = max(self._cleaned_until_offset, self._log_start_offset)
                holes = gaps(loaded.segments, from_offset, self._scanned_from)
            first = loaded.segments.first.base_offset
            if (known := self._found_epochs.first_offset) < first:
                holes = [Hole(known, first, "the segments before the first one are missing"), *holes]
        holes = sorted([*holes, *self._holes])
        given_until = max(self._given_until(end_is_suspect), self._behind.given_until)
        if self._behind.kept:
            self._end_reason += f"; what lies behind is kept in {self._behind}"
            if given_until <= loaded.log_end_offset:
                logger.error("%s: %s", self._directory.rpartition("/")[2], self._end_reason)
        known_end = max(given_until, self._recovery_point, self._high_watermark)
        if max(loaded.log_end_offset, given_until) < known_end:
            logger.warning(
                "%s: the log ends at offset %d, but the checkpoints of its log directory name offset %d: records at "
                "its end are missing, or the checkpoints are wrong. If other brokers have these records, they are "
                "copied",
                self._directory.rpartition("/")[2],
                loaded.log_end_offset,
                known_end,
            )
        lacks_end = loaded.log_end_offset < known_end or self._lacks_last_segment(loaded)
        return loaded._replace(
            holes=holes,
            end_is_suspect=end_is_suspect,
            given_until=given_until,
            end_reason=self._end_reason,
            is_whole=not (holes or end_is_suspect or self._found_damage or self._behind.kept or lacks_end),
        )

    def _lacks_last_segment(self, loaded: LoadedLog) -> bool:
        """Return whether the last segment is gone: a roll has left the snapshot of the producers at its base offset,
        and no segment begins there. A clean stop leaves a snapshot at the log's end, too, but notes the recovery point
        there; if that may be lost, the two look alike. What the segment had is not known, so the line names only its
        first offset."""
        base = self._newest_snapshot
        if self._clean or not self._knows_recovery_point:
            return False
        if base <= self._recovery_point or base < loaded.log_end_offset:
            return False
        if base <= loaded.segments.active.base_offset:
            return False
        logger.error(
            "%s: the last segment is missing, which began at offset %d: records from there on are lost, unless another "
            "broker has them",
            self._directory.rpartition("/")[2],
            base,
        )
        return True

    def _leave_out_newer(self, last: int) -> None:
        """Take segments away that lie behind the last one that a clean stop has left: they are none of this log's."""
        fs, directory = self._files.fs, self._directory
        for base in [base for base in self._bases if base > last]:
            size_bytes = self._found.logs.pop(base)
            if size_bytes:
                what = f"it is kept as {set_segment_aside(fs, directory, base)}"
            else:
                fs.unlink(f"{directory}/{base:020d}{LOG_SUFFIX}")
                remove_indexes(fs, directory, base)
                what = "it is empty, and is removed"
            self._found.indexes.pop(base, None)
            self._found.time_indexes.pop(base, None)
            self._bases.remove(base)
            logger.error(
                "%s: segment %d was not there when the broker was stopped, and the log ends before it: %s",
                directory.rpartition("/")[2], base, what,
            )  # fmt: skip

    def _given_until(self, end_is_suspect: bool) -> int:
        """Return up to where offsets have been given, as far as the files next to the segments prove it."""
        point, snapshot = self._recovery_point, max(self._found.snapshots, default=-1)
        if self._clean:
            # A damaged checkpoint must not make a hole: the newest snapshot, or the last file's size, says the same.
            return point if end_is_suspect or point == snapshot or not self._bases else 0
        if not self._bases:
            return max(
                point, self._cleaned_until_offset, self._high_watermark, snapshot, self._found_epochs.last_start_offset
            )
        # Nor after a crash: another file has to have come as far.
        return point if point <= max(self._high_watermark, snapshot) else 0

    def _load(self) -> LoadedLog:
        self._found_epochs.load()
        if not self._bases:
            return self._begin()
        first_unsound = self._first_to_scan()
        if first_unsound == len(self._bases):
            try:
                return self._trust()
            except CorruptMessage as error:
                name = self._directory.rpartition("/")[2]
                logger.warning("%s: not what a clean stop leaves: %s; recovering", name, error)
                self._found_epochs.load()
                first_unsound -= 1
        return self._recover(first_unsound)

    def _begin(self) -> LoadedLog:
        """Make the first segment of a log without any."""
        base = max(self._log_start_offset, 0)
        active = ActiveSegment(self._files, self._directory, base, 0, self._now_ms)
        producers = forget_producers(self._files.fs, self._directory, base, self._producer_limits)
        segments = Segments(self._files, self._directory, [], active)
        return LoadedLog(segments, self._found_epochs.epochs, producers, base, base, base)

    def _first_to_scan(self) -> int:
        """Return the number of the first segment that must be scanned; how many there are when none must."""
        bases = self._bases
        for number, base in enumerate(bases):
            active = number == len(bases) - 1
            # When the recovery point is just where the next segment begins, the flush that set it may have come before
            # the roll: the records are on the disk, the indexes written at the roll perhaps not.
            if not self._clean and (active or bases[number + 1] >= self._recovery_point):
                return number
            if not self._found.has_whole_indexes(base):
                return number
        return len(bases)

    def _scan(self, producers: ProducerStateManager, trusted_until_offset: int) -> Scan:
        return Scan(
            self._found_epochs.epochs,
            producers,
            self._config.index_interval_bytes,
            self._now_ms,
            trusted_until_offset=trusted_until_offset,
            gaps_until_offset=self._gaps_until_offset,
            on_bytes=self._on_bytes,
            behind=self._behind,
            known_epoch_at=self._found_epochs.known_at,
            most_batch_bytes=self._config.max_message_bytes,
        )

    # After a clean stop ---------------------------------------------------------------------------------------------

    def _trust(self) -> LoadedLog:
        """Open the log as a clean stop has left it. CorruptMessage when the active segment does not agree."""
        fs, bases, found = self._files.fs, self._bases, self._found
        known, epochs = self._found_epochs, self._found_epochs.epochs
        active = self._active(bases[-1])
        is_end_known = bases[-1] < self._recovery_point == max(found.snapshots, default=-1)
        if is_end_known and active.size_bytes and known.last_record_epoch >= 0:
            # A clean stop flushes the log and takes a snapshot at its end; only then is the checkpoint written. So the
            # end is known, and indexes need not be read before somebody appends or asks for times.
            end = active.unread_until_offset = self._recovery_point
        else:
            last = active.load_tail()
            end = last.next_offset if last else active.base_offset
            if last is not None and known.last_record_epoch < 0:
                known.last_record_epoch = last.partition_leader_epoch
        segments = Segments(self._files, self._directory, [self._sealed(base) for base in bases[:-1]], active)
        producers = load_newest_snapshot(fs, self._directory, found.snapshots, end, self._producer_limits)
        scan = self._scan(producers, 0)
        if producers.map_end_offset < end:
            scan.replay(segments, producers.map_end_offset)
        if known.is_lost:
            scan.replay(segments, segments.first.base_offset)
            epochs.write()
        elif known.lacks_last(end):
            known.complete([*segments])
            epochs.write()
        # The leader of an idle log begins its epoch at the log end; nobody begins one behind it.
        epochs.truncate_from_end(end + 1)
        producers.map_end_offset = end
        if len(found.snapshots) > len(bases):
            drop_snapshots(fs, self._directory, found.snapshots, bases, producers.snapshot_offset, end)
        start = max(self._log_start_offset, bases[0])
        return LoadedLog(segments, epochs, producers, start, end, end)

    # After a crash --------------------------------------------------------------------------------------------------

    def _recover(self, first_unsound: int) -> LoadedLog:
        """Scan the segments from number ``first_unsound`` on, and cut off what does not pass."""
        fs, bases = self._files.fs, self._bases
        known, epochs = self._found_epochs, self._found_epochs.epochs
        first_base = bases[first_unsound]
        sealed = [self._sealed(base) for base in bases[:first_unsound]]
        known.begin_scan()
        self._scanned_from = first_base
        if sealed and not known.is_lost:
            unsound = Segment(self._files, self._directory, first_base, self._found.logs[first_base])
            if heads_differ(epochs, [*sealed, unsound], self._log_start_offset):
                known.complete(sealed)
        producers = load_newest_snapshot(
            fs,
            self._directory,
            self._found.snapshots,
            first_base if not self._clean else max(first_base, self._recovery_point),
            self._producer_limits,
        )
        scan = self._scan(producers, self._recovery_point)
        if sealed and (known.is_lost or producers.map_end_offset < first_base):
            before = Segments(self._files, self._directory, sealed[:-1], self._active(sealed[-1].base_offset))
            scan.replay(before, bases[0] if known.is_lost else producers.map_end_offset)
        # What the file says of the segments to scan may be older or newer than they are; they say it themselves.
        epochs.truncate_from_end(first_base)
        scan.next_offset = first_base
        scan.leader_epoch = max(scan.leader_epoch, epochs.epoch_at(first_base - 1))
        recovered = self._scan_segments(scan, bases[first_unsound:])
        end = scan.next_offset
        start = max(self._log_start_offset, bases[0])
        epochs.truncate_from_end(end)
        epochs.truncate_from_start(start)
        sealed += [segment.seal() for segment in recovered[:-1]]
        segments = Segments(self._files, self._directory, sealed, recovered[-1])
        if start > end:
            # Records were deleted up to an offset that the crash has taken away; nothing below it may come back.
            logger.error(
                "%s: the log start offset in %s is %d, beyond the log end %d: the %d offsets %d to %d are gone",
                self._directory.rpartition("/")[2],
                LOG_START_OFFSET_FILE,
                start,
                end,
                start - end,
                end,
                start - 1,
            )
            segments.start_anew(start, self._now_ms)
            self._found_damage = True
            recovered = [segments.active]
            end = start
            epochs.truncate_from_end(0)
            producers.clear()
        if known.has_changed:
            epochs.write(sync=self._sync)
        producers.map_end_offset = end
        snapshots = self._found.snapshots | self._new_snapshots
        drop_snapshots(fs, self._directory, snapshots, bases, producers.snapshot_offset, end)
        if self._sync:
            self._sync_recovered(recovered)
        return LoadedLog(
            segments,
            epochs,
            producers,
            start,
            end,
            end,
            len(recovered),
            scan.cut_bytes,
        )

    def _scan_segments(self, scan: Scan, bases: list[int]) -> list[ActiveSegment]:
        """Scan segments in order; return those that stay, the last of them cut where the log ends."""
        recovered: list[ActiveSegment] = []
        # Why the log does not go on behind what was scanned; None while it does.
        reason: str | None = None
        left = deque(bases)
        while left:
            base = left.popleft()
            segment = ActiveSegment(self._files, self._directory, base, self._found.logs[base], self._now_ms)
            end, until = scan.next_offset, left[0] if left else EVERYWHERE
            if reason is not None or not self._may_follow(scan, base):
                reason = reason or f"the next segment begins at {base}"
                self._found_damage = True
                if not scan.begins_soundly(segment, self._found_epochs.known_at(base)):
                    split = scan.split_at(segment, 0, base, until) if base >= end else {}
                    if self._take_split(split, left) or not self._behind.set_aside(base, end):
                        segment.remove()
                    continue
            if recovered:
                self._note_hole(recovered[-1], end, base, reason)
                # As a roll does, so that the next crash need not replay from further back.
                scan.producers.map_end_offset = end
                snapshot = write_snapshot(scan.producers, self._files.fs, self._directory)
                if snapshot is not None:
                    self._new_snapshots[end] = self._files.fs.open(snapshot).size()
            reason = scan.recover(segment, until)
            self._take_split(scan.split, left)
            if base > end and not segment.size_bytes and not self._known_until_offset:
                # Nothing but its name says that offsets up to it were given, and no reader would ever come so far.
                reason = reason or f"the next segment, {base}, is empty"
                self._found_damage = True
                scan.next_offset = end
                segment.remove()
                continue
            recovered.append(segment)
        if reason is not None:
            self._report_end(scan, recovered[-1], reason)
        self._found_damage |= scan.found_damage
        return recovered

    def _take_split(self, sizes: dict[int, int], left: deque[int]) -> bool:
        """Have the segments that one was split into scanned next; return whether there are any."""
        self._found.logs.update(sizes)
        self._bases += sizes
        left.extendleft(reversed(sizes))
        return bool(sizes)

    def _note_hole(self, segment: Segment, end_offset: int, next_base_offset: int, reason: str | None) -> None:
        """Note what is missing between a segment's end and the next one that stays, unless a cleaning may have left
        that out. ``reason``: why the log would end there, None if it goes on."""
        kept = self._behind.passed()
        start = max(end_offset, self._log_start_offset, self._cleaned_until_offset if reason is None else 0)
        if start < next_base_offset and (reason is not None or not self._config.is_compacted):
            reason = reason or f"the next segment begins at {next_base_offset}"
            kept = f"; what lay there is kept in {kept}" if kept else ""
            name = segment.log_path.rpartition("/")[2]
            self._holes.append(Hole(start, next_base_offset, f"{name}: {reason}{kept}"))

    @property
    def _known_until_offset(self) -> int:
        """Up to where records were on the disk, or cleaned since, by the checkpoints; 0 when none has the log."""
        return max(self._cleaned_until_offset, self._recovery_point)

    def _may_follow(self, scan: Scan, base: int) -> bool:
        """Return whether a segment may come next as it is: behind a gap only where the cleaner may have made it, or
        where what is missing was on the disk.

        Elsewhere a gap may be what a power cut leaves of whole batches at the end of a segment that were not flushed,
        when the name of the next segment was; then that has to begin soundly. Without any checkpoint it is unknown
        which of the two it is, and the records stay.
        """
        if base == scan.next_offset:
            return True
        if scan.next_offset < base <= self._recovery_point:
            # What is missing was on the disk, so no power cut has taken it; what follows is as sound as ever.
            return True
        if not scan.may_follow(base):
            return False
        return not self._known_until_offset or base <= self._known_until_offset

    def _report_end(self, scan: Scan, segment: Segment, reason: str) -> None:
        end = scan.next_offset
        name = self._directory.rpartition("/")[2]
        logger.warning("%s: %s: %s; the log ends at offset %d", name, segment.log_path, reason, end)
        self._end_reason = f"{segment.log_path.rpartition('/')[2]}: {reason}"

    def _sync_recovered(self, recovered: list[ActiveSegment]) -> None:
        for segment in recovered:
            segment.file.sync()
        for segment in recovered[:-1]:
            self._files.open(segment.offset_index.path).sync()
            self._files.open(segment.time_index.path).sync()
        for offset in self._new_snapshots:
            path = snapshot_path(self._directory, offset)
            if self._files.fs.exists(path):
                self._files.fs.open(path).sync()
        self._files.fs.sync_directory(self._directory)

    def _sealed(self, base: int) -> Segment:
        # A copy of a running broker's log has no indexes of the segment that was the last one.
        return Segment(
            self._files,
            self._directory,
            base,
            self._found.logs[base],
            index_entries=self._found.indexes.get(base, 0) // OffsetIndex.ENTRY.size,
            time_index_entries=self._found.time_indexes.get(base, 0) // TimeIndex.ENTRY.size,
        )

    def _active(self, base: int) -> ActiveSegment:
        return ActiveSegment(
            self._files,
            self._directory,
            base,
            self._found.logs[base],
            self._now_ms,
            index_entries=self._found.indexes[base] // OffsetIndex.ENTRY.size,
            time_index_entries=self._found.time_indexes[base] // TimeIndex.ENTRY.size,
        )
