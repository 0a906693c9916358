"""Opening a log that is on the disk: quickly after a clean stop, by scanning after a crash.

After a clean stop the files are trusted: a sealed segment costs nothing but its entry in the directory, of the active
one the batches after its last index entry are walked.

After a crash everything from the recovery point on (the first offset that was not known to be on the disk) is scanned:
each batch must start where the one before ended, have magic 2 and a sane length, follow in offset and leader epoch, and
pass its CRC. At the first that does not the file is cut and all later segments are removed: what comes after a hole
was never acknowledged as flushed, and must not be read. Batches of the recovery point's own segment that lie below it
are walked by their headers only. Indexes, leader epochs and producers are rebuilt on the way; then all is synced,
and the recovery point is the end.

A zero-filled, stale or random tail, a cut batch, a batch after a hole, a length that is negative or beyond the file:
all are the same case. Nothing is allocated for a length before it was found to lie within the file.

Source: org.apache.kafka.storage.internals.log.LogLoader. Epoch 0 is an epoch like any other (KAFKA-10432).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.checkpoint import LEADER_EPOCH_FILE, CheckpointError
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.log.epochs import LeaderEpochs
from spark_kafkalite.log.fs import File
from spark_kafkalite.log.offset_index import OffsetIndex
from spark_kafkalite.log.open_files import OpenFiles
from spark_kafkalite.log.producer_state import SNAPSHOT_SUFFIX, ProducerState, load_newest_snapshot
from spark_kafkalite.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, ActiveSegment, Segment
from spark_kafkalite.log.segments import Segments
from spark_kafkalite.log.time_index import TimeIndex
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import CRC_POSITION, CRC_START, HEADER_BYTES, LOG_APPEND_TIME_BIT, BatchHeader

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
# Larger batches are checked piece by piece, so that a damaged length cannot make the broker swallow a whole segment.
_WHOLE_BATCH_BYTES = 16 << 20
_TEMPORARY_SUFFIXES = (".cleaned", ".deleted", ".tmp")
_NAME_DIGITS = 20


class LoadedLog(NamedTuple):
    """What was found on the disk."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    last_append_time_ms: int
    recovered_segments: int
    cut_bytes: int


class _Files(NamedTuple):
    """The names in a partition's directory, by kind: base offset to size."""

    logs: dict[int, int]
    indexes: dict[int, int]
    time_indexes: dict[int, int]
    snapshots: list[int]


class _Scan:
    """What recovery carries from one segment to the next."""

    def __init__(
        self,
        epochs: LeaderEpochs,
        producers: ProducerState,
        config: TopicConfig,
        trusted_until_offset: int,
        now_ms: int,
    ) -> None:
        self.epochs = epochs
        self.producers = producers
        self.index_interval_bytes = config.index_interval_bytes
        # Only compaction makes gaps between batches, so elsewhere a gap is the mark of a foreign batch.
        self.gaps_allowed = config.is_compacted
        self.trusted_until_offset = trusted_until_offset
        self._now_ms = now_ms
        self.next_offset = 0
        self.leader_epoch = -1
        self.last_append_time_ms = -1
        self.cut_bytes = 0

    def may_follow(self, base_offset: int) -> bool:
        """Return whether a segment may come next: not one that was truncated before the crash and came back, nor one
        before which another is missing."""
        return base_offset >= self.next_offset if self.gaps_allowed else base_offset == self.next_offset

    def recover(self, segment: ActiveSegment) -> str | None:
        """Take up a segment's sound batches, cut the rest off, and say what was wrong; None when all is sound."""
        file, base_offset = segment.file, segment.base_offset
        file_size = file.size()
        segment.reset()
        reason = None
        self.next_offset = max(self.next_offset, base_offset)
        position = window_position = 0
        window = b""
        while position < file_size and reason is None:
            at = position - window_position
            if at + HEADER_BYTES > len(window):
                window, window_position, at = file.pread(_READ_BYTES, position), position, 0
            try:
                header = kernel.read_header(window, at)
                reason = self._fault(header, base_offset, file_size - position)
                if reason is None and header.last_offset >= self.trusted_until_offset:
                    size = header.size_bytes
                    if at + size > len(window) and size <= _WHOLE_BATCH_BYTES:
                        window, window_position, at = file.pread(max(size, _READ_BYTES), position), position, 0
                    if at + size <= len(window):
                        kernel.check_crc(window, at, size)
                    else:
                        _check_crc_in_pieces(file, position, header)
            except CorruptMessage as error:
                reason = str(error)
            if reason is None:
                self.take_up(header)
                segment.take_up(
                    position, header.size_bytes, header.last_offset, header.max_timestamp, self.index_interval_bytes
                )
                position += header.size_bytes
        if reason is not None:
            self.cut_bytes += file_size - position
            segment.cut_back()
            reason = f"cut at position {position} ({file_size - position} bytes): {reason}"
        return reason

    def _fault(self, header: BatchHeader, base_offset: int, bytes_left: int) -> str | None:
        if header.size_bytes > bytes_left:
            return f"a batch of {header.size_bytes} bytes, {bytes_left} are left"
        if header.last_offset_delta < 0:
            return f"a batch with last offset delta {header.last_offset_delta}"
        if header.base_offset < self.next_offset or header.last_offset - base_offset > 2**31 - 1:
            return f"a batch with base offset {header.base_offset}, {self.next_offset} was expected"
        if header.last_offset >= self.trusted_until_offset:
            if header.base_offset > self.next_offset and not self.gaps_allowed:
                return f"a batch with base offset {header.base_offset}, {self.next_offset} was expected"
            if header.partition_leader_epoch < self.leader_epoch:
                return f"a batch of leader epoch {header.partition_leader_epoch} after one of {self.leader_epoch}"
        return None

    def take_up(self, header: BatchHeader) -> None:
        """Take up a sound batch."""
        self.next_offset = header.next_offset
        if header.partition_leader_epoch > self.leader_epoch:
            self.leader_epoch = header.partition_leader_epoch
            self.epochs.note(header.partition_leader_epoch, header.base_offset)
        if header.attributes & LOG_APPEND_TIME_BIT:
            self.last_append_time_ms = header.max_timestamp
        if header.producer_id >= 0 and header.last_offset >= self.producers.map_end_offset:
            self.producers.update(header, header.base_offset, self._now_ms)
        self.producers.map_end_offset = max(self.producers.map_end_offset, header.next_offset)


def _check_crc_in_pieces(file: File, position: int, header: BatchHeader) -> None:
    end = position + header.size_bytes
    at, computed = position + CRC_START, 0
    while at < end:
        piece = file.pread(min(_READ_BYTES, end - at), at)
        if not piece:
            break
        computed = crc32c(piece, computed)
        at += len(piece)
    if at < end or computed != header.crc:
        raise CorruptMessage(
            f"record batch at position {position}: its CRC field (at {position + CRC_POSITION}) is "
            f"0x{header.crc:08x}, its bytes give 0x{computed:08x}"
        )


def load_log(
    files: OpenFiles,
    directory: str,
    config: TopicConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    sync: bool = True,
    on_segment: Callable[[str], None] | None = None,
) -> LoadedLog:
    """Open the log in ``directory``, recovering it unless ``clean``.

    ``recovery_point`` and ``log_start_offset`` are the checkpoints' values, 0 when they have none. ``on_segment`` is
    told each segment that is about to be scanned. With ``sync`` what was recovered is on the disk when this
    returns; without, the caller sees to it before the recovery point is used. Raises OSError when the disk fails.
    """
    fs = files.fs
    found = _sort_entries(files, directory)
    bases = sorted(found.logs)
    if not bases:
        base = max(log_start_offset, 0)
        active = ActiveSegment(files, directory, base, 0, now_ms)
        segments = Segments(files, directory, [], active)
        epochs, producers = LeaderEpochs(fs, f"{directory}/{LEADER_EPOCH_FILE}"), ProducerState()
        producers.map_end_offset = base
        for offset in found.snapshots:
            fs.unlink(f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}")
        return LoadedLog(segments, epochs, producers, base, base, base, -1, 0, 0)

    epochs, epochs_lost = _load_epochs(files, directory)
    known_epochs = epochs.entries
    first_unsound = _first_to_recover(found, bases, clean=clean, recovery_point=recovery_point)
    sealed = [_sealed(files, directory, found, base) for base in bases[: min(first_unsound, len(bases) - 1)]]

    if first_unsound == len(bases):
        active = _open_active(files, directory, found, bases[-1], now_ms)
        try:
            last = active.load_tail()
        except CorruptMessage as error:
            logger.warning("%s: not what a clean stop leaves: %s; recovering", directory, error)
            first_unsound = len(bases) - 1
        else:
            end = last.next_offset if last else active.base_offset
            producers = load_newest_snapshot(fs, directory, found.snapshots, end)
            segments = Segments(files, directory, sealed, active)
            scan = _Scan(epochs, producers, config, 0, now_ms)
            # Without any snapshot the log comes from a broker that kept none; a clean stop says nothing is missing.
            if found.snapshots and producers.map_end_offset < end:
                _replay(segments, scan, producers.map_end_offset)
            if epochs_lost:
                _replay(segments, scan, segments.first.base_offset)
                epochs.write()
            producers.map_end_offset = end
            if len(found.snapshots) > len(bases):
                _drop_snapshots(files, directory, bases, producers.snapshot_offset, end)
            append_time = last.max_timestamp if last and last.attributes & LOG_APPEND_TIME_BIT else -1
            start = max(log_start_offset, bases[0])
            return LoadedLog(segments, epochs, producers, start, end, end, append_time, 0, 0)

    first_base = bases[first_unsound]
    producers = load_newest_snapshot(
        fs, directory, found.snapshots, first_base if not clean else max(first_base, recovery_point)
    )
    scan = _Scan(epochs, producers, config, recovery_point, now_ms)
    if sealed and (epochs_lost or producers.map_end_offset < first_base):
        before = Segments(files, directory, sealed[:-1], _as_active(files, directory, sealed[-1], now_ms))
        _replay(before, scan, bases[0] if epochs_lost else producers.map_end_offset)
    # What the file says of the segments to scan may be older or newer than they are; they say it themselves.
    epochs.truncate_from_end(first_base, write=False)
    scan.next_offset = first_base
    scan.leader_epoch = max(scan.leader_epoch, epochs.epoch_at(first_base - 1))
    recovered: list[ActiveSegment] = []
    reason: str | None = None
    for number in range(first_unsound, len(bases)):
        segment = ActiveSegment(files, directory, bases[number], found.logs[bases[number]], now_ms)
        if reason is None and not scan.may_follow(bases[number]):
            reason = f"the next segment begins at {bases[number]}"
            logger.warning("%s: %s; the log ends at offset %d", recovered[-1].log_path, reason, scan.next_offset)
        if reason is not None:
            segment.remove()
            continue
        if recovered:
            # As a roll does, so that the next crash need not replay from further back.
            producers.map_end_offset = scan.next_offset
            producers.write_snapshot(fs, directory)
        if on_segment is not None:
            on_segment(segment.log_path)
        reason = scan.recover(segment)
        recovered.append(segment)
        if reason is not None:
            logger.warning("%s: %s; the log ends at offset %d", segment.log_path, reason, scan.next_offset)
            if scan.next_offset < recovery_point:
                logger.error(
                    "%s: offsets %d to %d were on the disk and are lost",
                    directory,
                    scan.next_offset,
                    recovery_point - 1,
                )
    for segment in recovered[:-1]:
        sealed.append(segment.seal())
    active = recovered[-1]
    end = scan.next_offset
    epochs.truncate_from_end(end, write=False)
    epochs.truncate_from_start(max(log_start_offset, bases[0]), write=False)
    segments = Segments(files, directory, sealed, active)
    start = max(log_start_offset, bases[0])
    if start > end:
        # Records were deleted up to an offset that the crash has taken away; nothing below it may come back.
        segments.start_anew(start, now_ms)
        recovered = [segments.active]
        end = start
        epochs.truncate_from_end(0, write=False)
        producers.clear()
    if epochs_lost or epochs.entries != known_epochs:
        epochs.write(sync=sync)
    producers.map_end_offset = end
    _drop_snapshots(files, directory, bases, producers.snapshot_offset, end)
    if sync:
        _sync_recovered(files, directory, recovered)
    return LoadedLog(
        segments,
        epochs,
        producers,
        start,
        end,
        end,
        scan.last_append_time_ms,
        len(recovered),
        scan.cut_bytes,
    )


def _sort_entries(files: OpenFiles, directory: str) -> _Files:
    """List the directory and remove what an interrupted write has left in it."""
    fs = files.fs
    found = _Files({}, {}, {}, [])
    for entry in fs.entries(directory):
        stem, dot, kind = entry.name.rpartition(".")
        suffix = dot + kind
        if entry.is_directory:
            continue
        if suffix in _TEMPORARY_SUFFIXES:
            fs.unlink(f"{directory}/{entry.name}")
        elif len(stem) == _NAME_DIGITS and stem.isdigit():
            if suffix == LOG_SUFFIX:
                found.logs[int(stem)] = entry.size_bytes
            elif suffix == INDEX_SUFFIX:
                found.indexes[int(stem)] = entry.size_bytes
            elif suffix == TIME_INDEX_SUFFIX:
                found.time_indexes[int(stem)] = entry.size_bytes
            elif suffix == SNAPSHOT_SUFFIX:
                found.snapshots.append(int(stem))
    for sizes, suffix in ((found.indexes, INDEX_SUFFIX), (found.time_indexes, TIME_INDEX_SUFFIX)):
        for base in sizes.keys() - found.logs.keys():
            fs.unlink(f"{directory}/{base:020d}{suffix}")
    return found


def _load_epochs(files: OpenFiles, directory: str) -> tuple[LeaderEpochs, bool]:
    path = f"{directory}/{LEADER_EPOCH_FILE}"
    try:
        return LeaderEpochs.load(files.fs, path), False
    except CheckpointError as error:
        logger.warning("%s; reading the leader epochs from the log", error)
        return LeaderEpochs(files.fs, path), True


def _first_to_recover(found: _Files, bases: list[int], *, clean: bool, recovery_point: int) -> int:
    """Return the number of the first segment that must be scanned; ``len(bases)`` when none must."""
    for number, base in enumerate(bases):
        active = number == len(bases) - 1
        # When the recovery point is just where the next segment begins, the flush that set it may have come before the
        # roll: the records are on the disk, the indexes written at the roll perhaps not.
        if not clean and (active or bases[number + 1] >= recovery_point):
            return number
        if found.indexes.get(base, 1) % OffsetIndex.ENTRY.size:
            return number
        if found.time_indexes.get(base, 1) % TimeIndex.ENTRY.size:
            return number
    return len(bases)


def _sealed(files: OpenFiles, directory: str, found: _Files, base: int) -> Segment:
    return Segment(
        files,
        directory,
        base,
        found.logs[base],
        index_entries=found.indexes[base] // OffsetIndex.ENTRY.size,
        time_index_entries=found.time_indexes[base] // TimeIndex.ENTRY.size,
    )


def _open_active(files: OpenFiles, directory: str, found: _Files, base: int, now_ms: int) -> ActiveSegment:
    return ActiveSegment(
        files,
        directory,
        base,
        found.logs[base],
        now_ms,
        index_entries=found.indexes[base] // OffsetIndex.ENTRY.size,
        time_index_entries=found.time_indexes[base] // TimeIndex.ENTRY.size,
    )


def _as_active(files: OpenFiles, directory: str, segment: Segment, now_ms: int) -> ActiveSegment:
    return ActiveSegment(
        files,
        directory,
        segment.base_offset,
        segment.size_bytes,
        now_ms,
        index_entries=segment.offset_index.count,
        time_index_entries=segment.time_index.count,
    )


def _replay(segments: Segments, scan: _Scan, from_offset: int) -> None:
    """Take up the batches from ``from_offset`` on by their headers, without checking them again."""
    for segment in segments.from_offset(from_offset):
        found = segment.find(from_offset) if from_offset > segment.base_offset else None
        position = found.position if found else 0 if from_offset <= segment.base_offset else segment.size_bytes
        for batch in segment.headers(position, read_bytes=_READ_BYTES):
            scan.take_up(batch.header)


def rebuild_producers(
    files: OpenFiles, directory: str, segments: Segments, end_offset: int, now_ms: int
) -> ProducerState:
    """Return the producers as of ``end_offset``, where the log has been truncated; removes snapshots beyond it."""
    offsets = [
        int(entry.name[:_NAME_DIGITS])
        for entry in files.fs.entries(directory)
        if entry.name.endswith(SNAPSHOT_SUFFIX) and entry.name[:_NAME_DIGITS].isdigit()
    ]
    producers = load_newest_snapshot(files.fs, directory, offsets, end_offset)
    from_offset = producers.map_end_offset
    for segment in segments.from_offset(from_offset):
        for _, header in segment.headers(0, read_bytes=_READ_BYTES):
            if header.producer_id >= 0 and header.base_offset >= from_offset:
                producers.update(header, header.base_offset, now_ms)
    producers.map_end_offset = end_offset
    return producers


def _drop_snapshots(files: OpenFiles, directory: str, bases: list[int], newest: int, end_offset: int) -> None:
    """Remove the snapshots of what is gone, and those of clean stops but the newest."""
    for entry in files.fs.entries(directory):
        stem, _, kind = entry.name.rpartition(".")
        if "." + kind == SNAPSHOT_SUFFIX and stem.isdigit():
            offset = int(stem)
            if offset > end_offset or (offset < newest and offset not in bases):
                files.fs.unlink(f"{directory}/{entry.name}")


def _sync_recovered(files: OpenFiles, directory: str, recovered: list[ActiveSegment]) -> None:
    for segment in recovered:
        segment.file.sync()
    for segment in recovered[:-1]:
        files.open(segment.offset_index.path).sync()
        files.open(segment.time_index.path).sync()
    files.fs.sync_directory(directory)
