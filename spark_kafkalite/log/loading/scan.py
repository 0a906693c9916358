"""Walks over the batches of a segment: which are sound, and what is in their headers.

A ``Scan`` goes through the segments of one log in order. It carries the leader epochs and producers of the batches, and
the end of the log so far. From ``trusted_until_offset`` on (the recovery point) a batch must start where the one before
ended, have magic 2 and a sane length, follow in offset and leader epoch, and pass its CRC. Below it only headers are
walked.

A zero-filled, stale or random tail, a cut batch, a batch after a hole, a length that is negative or beyond the file:
all are the same case, and the segment ends there. Sound batches behind that become segments of their own, which are
scanned next (see ``resume``). Nothing is allocated for a length before it was found to lie within the file.

Only compaction makes gaps between batches, so elsewhere a gap is the mark of a foreign batch. Gaps are allowed where
the topic is compacted now. They are also allowed below the offset in the cleaner's checkpoint, whatever the topic's
settings are today. Of gaps between segments the checkpoints know more; see ``recovery``.
"""

from __future__ import annotations

from collections.abc import Callable

from crc32c import crc32c

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.epochs import MAX_LEADER_EPOCH, LeaderEpochs
from spark_kafkalite.log.files.fs import File
from spark_kafkalite.log.loading.behind import Behind
from spark_kafkalite.log.loading.damage import without_place
from spark_kafkalite.log.loading.resume import FittingBatches
from spark_kafkalite.log.markers import marker_in, marker_in_file
from spark_kafkalite.log.producer_state import ProducerStateManager
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.model import NO_LEADER_EPOCH
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import (
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    MAX_INT32,
    BatchHeader,
)

READ_BYTES = 1 << 20
# Larger batches are checked piece by piece, so that a damaged length cannot make the broker swallow a whole segment.
_WHOLE_BATCH_BYTES = 16 << 20
# Gaps are allowed below this: everywhere.
EVERYWHERE = 2**63 - 1

# Is told (path of a segment, bytes of it that were scanned since the last call); may raise to end the scan.
OnBytes = Callable[[str, int], None]


class Scan:
    """What is carried from one segment to the next."""

    def __init__(
        self,
        epochs: LeaderEpochs,
        producers: ProducerStateManager,
        index_interval_bytes: int,
        now_ms: int,
        *,
        trusted_until_offset: int = 0,
        gaps_until_offset: int = 0,
        on_bytes: OnBytes | None = None,
        behind: Behind | None = None,
        known_epoch_at: Callable[[int], int] = lambda _: NO_LEADER_EPOCH,
        most_batch_bytes: int = MAX_INT32,
    ) -> None:
        """``behind`` keeps what is cut off. ``known_epoch_at``: which leader epoch the log's file had for an offset.
        ``most_batch_bytes``: the topic's ``max.message.bytes``."""
        self.epochs = epochs
        self.producers = producers
        self.trusted_until_offset = trusted_until_offset
        self.next_offset = 0
        self.leader_epoch = -1
        self.cut_bytes = 0
        # Whether something was cut off that was no append under way.
        self.found_damage = False
        self._index_interval_bytes = index_interval_bytes
        # What the log's file says: it is written no later than the first flush of a record of an epoch.
        self._known_epochs = frozenset(epoch for epoch, _ in epochs.entries)
        self._gaps_until_offset = gaps_until_offset
        self._now_ms = now_ms
        self._on_bytes = on_bytes
        self._behind = behind
        self._known_epoch_at = known_epoch_at
        self._most_batch_bytes = most_batch_bytes
        # The segments, size by base offset, that the last one was split into.
        self.split: dict[int, int] = {}

    def may_follow(self, base_offset: int) -> bool:
        """Return whether a segment may come next: not one that was truncated before the crash and came back, nor one
        before which another is missing."""
        return base_offset == self.next_offset or self.next_offset < base_offset <= self._gaps_until_offset

    def begins_soundly(self, segment: ActiveSegment, least_epoch: int) -> bool:
        """Return whether a segment's first batch is sound, later than what was scanned, wherever that ended, and of no
        lower leader epoch than ``least_epoch`` and what was scanned. Reads that batch."""
        file, end_offset = segment.file, self.next_offset
        if segment.base_offset < end_offset:
            return False
        # The batch has to begin where the segment's name says.
        self.next_offset = segment.base_offset
        try:
            header = kernel.read_header(file.pread(HEADER_BYTES, 0))
            if header.partition_leader_epoch < max(least_epoch, self.leader_epoch):
                return False
            if self._fault(header, segment.base_offset, file.size()) is not None:
                return False
            _check_crc_in_pieces(file, 0, header)
            return header.partition_leader_epoch == self.leader_epoch or self._epoch_fault(header, file, 0) is None
        except CorruptMessage:
            return False
        finally:
            self.next_offset = end_offset

    def recover(self, segment: ActiveSegment, until_offset: int = EVERYWHERE) -> str | None:
        """Take up a segment's sound batches, cut the rest off, and return what was wrong; None when all is sound.

        The sound batches behind the damage are in the segments of ``split`` then. ``until_offset``: where the next
        segment begins.
        """
        file, base_offset = segment.file, segment.base_offset
        file_size = file.size()
        segment.reset()
        reason = None
        self.next_offset = max(self.next_offset, base_offset)
        position = window_position = reported = 0
        window = b""
        while position < file_size and reason is None:
            at = position - window_position
            if at + HEADER_BYTES > len(window):
                reported = self._report(segment, reported, position)
                window, window_position, at = file.pread(READ_BYTES, position), position, 0
            try:
                header = kernel.read_header(window, at)
                reason = self._fault(header, base_offset, file_size - position)
                if reason is None and header.last_offset >= self.trusted_until_offset:
                    size = header.size_bytes
                    if at + size > len(window) and size <= _WHOLE_BATCH_BYTES:
                        window, window_position, at = file.pread(max(size, READ_BYTES), position), position, 0
                    if at + size <= len(window):
                        kernel.check_crc(window, at, size)
                    else:
                        _check_crc_in_pieces(file, position, header)
                if reason is None and header.partition_leader_epoch > self.leader_epoch:
                    reason = self._epoch_fault(header, file, position)
            except CorruptMessage as error:
                reason = without_place(error)
            if reason is None:
                self._take_up(header, file, position, window, at)
                segment.take_up(
                    position, header.size_bytes, header.last_offset, header.max_timestamp, self._index_interval_bytes
                )
                position += header.size_bytes
        self._report(segment, reported, file_size)
        self.split = {}
        if reason is not None:
            self.split = self.split_at(segment, position, self.next_offset, until_offset)
            self.cut_bytes += file_size - position - sum(self.split.values())
            is_unfinished = self._behind is not None and self._behind.is_unfinished(segment.log_path, position)
            self.found_damage |= not is_unfinished or bool(self.split)
            segment.cut_back()
            reason = f"cut at position {position} ({file_size - position} bytes): {reason}"
        return reason

    def split_at(self, segment: ActiveSegment, position: int, next_offset: int, until_offset: int) -> dict[int, int]:
        """Make segments of the sound batches behind the damage at a position, where ``next_offset`` was expected, and
        keep the rest of what is to be cut there. Return their sizes by their base offsets."""
        if self._behind is None:
            return {}
        has_gaps = next_offset < self._gaps_until_offset
        bounds = FittingBatches(
            segment.base_offset, until_offset, self.leader_epoch, self._known_epoch_at, self._most_batch_bytes, has_gaps
        )
        return self._behind.split(segment.base_offset, position, next_offset, bounds)

    def _report(self, segment: ActiveSegment, reported: int, position: int) -> int:
        if self._on_bytes is not None and position > reported:
            self._on_bytes(segment.log_path, position - reported)
        return position

    def _fault(self, header: BatchHeader, base_offset: int, bytes_left: int) -> str | None:
        if header.size_bytes > bytes_left:
            return f"a batch of {header.size_bytes} bytes, {bytes_left} are left"
        if header.last_offset_delta < 0:
            return f"a batch with last offset delta {header.last_offset_delta}"
        if header.base_offset < self.next_offset or header.last_offset - base_offset > MAX_INT32:
            return f"a batch with base offset {header.base_offset}, {self.next_offset} was expected"
        if header.last_offset >= self.trusted_until_offset:
            if not self.may_follow(header.base_offset):
                return f"a batch with base offset {header.base_offset}, {self.next_offset} was expected"
            if header.partition_leader_epoch < self.leader_epoch:
                return f"a batch of leader epoch {header.partition_leader_epoch} after one of {self.leader_epoch}"
        return None

    def _epoch_fault(self, header: BatchHeader, file: File, position: int) -> str | None:
        """Return what is wrong with the epoch of a batch that begins one. The CRC does not cover it, so a bit in it may
        have flipped: then the log's file does not know it, and the next batches are of lower ones, which fit what comes
        before. Where only the next one is lower, the bit has flipped there."""
        epoch = header.partition_leader_epoch
        if epoch in self._known_epochs or epoch > MAX_LEADER_EPOCH:
            return None
        following = _header_after(header, file, position)
        if following is None or not self.leader_epoch <= following.partition_leader_epoch < epoch:
            return None
        third = _header_after(following, file, position + header.size_bytes)
        if third is not None and third.partition_leader_epoch >= epoch:
            return None
        return f"a batch of leader epoch {epoch} before one of {following.partition_leader_epoch}"

    def _take_up(self, header: BatchHeader, file: File, position: int, window: bytes = b"", at: int = 0) -> None:
        """Take up a sound batch, which begins at ``position`` of the file and at ``at`` of the window."""
        self.next_offset = header.next_offset
        # Its CRC does not cover a batch's epoch, so one that no election has come to is passed by.
        if self.leader_epoch < header.partition_leader_epoch <= MAX_LEADER_EPOCH:
            self.leader_epoch = header.partition_leader_epoch
            self.epochs.note(header.partition_leader_epoch, header.base_offset)
        if header.producer_id >= 0 and header.last_offset >= self.producers.map_end_offset:
            if at + header.size_bytes <= len(window):
                marker = marker_in(window, at, header)
            else:
                marker = marker_in_file(file, position, header)
            self.producers.update(header, header.base_offset, self._now_ms, marker)
        self.producers.map_end_offset = max(self.producers.map_end_offset, header.next_offset)

    def replay(self, segments: Segments, from_offset: int) -> None:
        """Take up the batches from ``from_offset`` on by their headers, without checking them again."""
        for segment in segments.from_offset(from_offset):
            found = segment.find(from_offset) if from_offset > segment.base_offset else None
            position = found.position if found else 0 if from_offset <= segment.base_offset else segment.size_bytes
            for batch in segment.headers(position, read_bytes=READ_BYTES):
                self._take_up(batch.header, segment.file, batch.position)


def _header_after(header: BatchHeader, file: File, position: int) -> BatchHeader | None:
    """Return the header behind a batch that begins at ``position``; None where no batch follows that fits."""
    try:
        found = kernel.read_header(file.pread(HEADER_BYTES, position + header.size_bytes), 0)
    except CorruptMessage:
        return None
    return found if found.base_offset == header.next_offset else None


def _check_crc_in_pieces(file: File, position: int, header: BatchHeader) -> None:
    end = position + header.size_bytes
    at, computed = position + CRC_START, 0
    while at < end:
        piece = file.pread(min(READ_BYTES, end - at), at)
        if not piece:
            break
        computed = crc32c(piece, computed)
        at += len(piece)
    if at < end or computed != header.crc:
        raise CorruptMessage(
            f"record batch at position {position}: its CRC field (at {position + CRC_POSITION}) is "
            f"0x{header.crc:08x}, its bytes give 0x{computed:08x}"
        )
