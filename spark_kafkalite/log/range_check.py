"""Checksums of ranges of a log, from the bytes on the disk, and what is wrong with a range whose checksum differs.

Two replicas of a log have the same batches in the same bytes, but not in segments that begin at the same offsets. So a
range is named by offsets, and contains the batches that have offsets of it. The functions: :func:`next_range` finds
where a range of about so many bytes ends, by a segment's index. For whole ranges, :func:`sum_of` reads the bytes
without separating batches. For ranges that differ, :func:`faults_of` reads each batch and checks its CRC.

All of it reads the disk: for threads. The segments are those of the log when the work began (:func:`snapshot`, which
belongs to the log's owner); retention and truncations may take them away meanwhile, so what is found counts only if the
log still is what it was.

A range is (start, end), the end exclusive. OSError comes out as it comes from the disk (:func:`is_damage`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.segment import Found, Segment
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import DELETE_HORIZON_BIT, HEADER_BYTES, BatchHeader

Range = tuple[int, int]

_READ_BYTES: Final = 256 * 1024
# Of each kind that are told apart; the last one stands for all that follow.
MOST_FAULTS: Final = 64


class Snapshot(NamedTuple):
    """The segments from an offset on, each with the offset at which the next one begins; the last one's ends where the
    log did."""

    segments: Sequence[tuple[Segment, int]]

    def end_of_first(self, until_offset: int) -> int:
        """Return where the first segment's part of a range ends."""
        return min(self.segments[0][1], until_offset)


class RangeSum(NamedTuple):
    """The bytes of the batches of a range: how many, and the CRC-32C of all of them."""

    size_bytes: int
    checksum: int


class RangeFaults(NamedTuple):
    """What is wrong with the batches of a range. ``damaged``: those that cannot be read, or fail their CRC.

    ``missing``: offsets that no batch has, or a batch without records. ``is_compacted``: some batch has lost records to
    compaction, or has a delete horizon. ``epochs``: the lowest and the highest leader epoch; -1: none.
    """

    damaged: tuple[Range, ...] = ()
    missing: tuple[Range, ...] = ()
    is_compacted: bool = False
    epochs: tuple[int, int] = (-1, -1)


def snapshot(log: PartitionLog, start_offset: int, until_offset: int) -> Snapshot:
    """Return the segments that hold offsets of a range, for a thread. Called by the log's owner."""
    segments: list[Segment] = []
    for segment in log.segments.from_offset(start_offset):
        if segments and segment.base_offset >= until_offset:
            break
        segments.append(segment)
    following = log.segments.after(segments[-1])
    end_offset = int(log.log_end_offset) if following is None else following.base_offset
    ends = [*(after.base_offset for _, after in pairwise(segments)), end_offset]
    return Snapshot(list(zip(segments, ends, strict=True)))


def next_range(found: Snapshot, start_offset: int, until_offset: int, max_bytes: int) -> int:
    """Return where a range from ``start_offset`` on ends: behind whole batches of the first segment that take at most
    ``max_bytes``, or one batch, and not behind ``until_offset``; ``start_offset`` when there is nothing.

    Raises CorruptMessage where the headers cannot be followed.
    """
    segment, _ = found.segments[0]
    until_offset = found.end_of_first(until_offset)
    first = segment.find(start_offset)
    if first is None:
        # Nothing more is in the segment, also of what should be.
        return max(until_offset, start_offset)
    position = segment.boundary_within(first.position, max_bytes, segment.size_bytes)
    if position < segment.size_bytes:
        end_offset = int(kernel.read_header(segment.file.pread(HEADER_BYTES, position)).base_offset)
        if end_offset <= until_offset:
            return end_offset
    # Not looked up earlier: damage there would hide what lies before it.
    beyond = segment.find(until_offset)
    if beyond is None:
        return max(until_offset, start_offset)
    return max(min(beyond.header.base_offset, until_offset), start_offset)


def sum_of(found: Snapshot, start_offset: int, end_offset: int) -> RangeSum:
    """Return the sum of the batches that have offsets of a range. Raises CorruptMessage where headers cannot be
    followed, or bytes are missing."""
    size_bytes, checksum = 0, 0
    for segment, _ in _within(found, end_offset):
        first = segment.find(start_offset)
        if first is None:
            continue
        position, limit = first.position, segment.size_bytes
        last = segment.find(end_offset)
        if last is not None:
            # One that begins before the end belongs to the range, and makes it another one than its like.
            limit = last.position + (last.header.size_bytes if last.header.base_offset < end_offset else 0)
        while position < limit:
            data = segment.file.pread(min(_READ_BYTES, limit - position), position)
            if not data:
                raise CorruptMessage(f"{segment.log_path}: the file ends at {position}, before {limit}")
            checksum = crc32c(data, checksum)
            position += len(data)
            size_bytes += len(data)
    return RangeSum(size_bytes, checksum)


def faults_of(found: Snapshot, start_offset: int, end_offset: int) -> RangeFaults:
    """Read each batch of a range, and return what is wrong with them."""
    damaged: list[Range] = []
    missing: list[Range] = []
    epochs: list[int] = []
    is_compacted = False
    expected = start_offset
    for segment, next_base_offset in _within(found, end_offset):
        try:
            for header, is_sound in _batches(segment, expected, end_offset):
                if header.base_offset > expected:
                    missing.append((expected, header.base_offset))
                next_offset = header.next_offset
                if not is_sound:
                    damaged.append((max(header.base_offset, start_offset), next_offset))
                elif not header.record_count:
                    missing.append((max(header.base_offset, start_offset), next_offset))
                if is_sound:
                    epochs.append(header.partition_leader_epoch)
                    is_compacted |= 0 < header.record_count < next_offset - header.base_offset
                    is_compacted |= bool(header.attributes & DELETE_HORIZON_BIT)
                expected = next_offset
        except (CorruptMessage, OSError) as error:
            if not is_damage(error):
                raise
            # What follows in this segment nobody can find.
            damaged.append((expected, max(next_base_offset, expected)))
            expected = max(next_base_offset, expected)
    if expected < end_offset:
        missing.append((expected, end_offset))
    return RangeFaults(
        _few(damaged, start_offset, end_offset),
        _few(missing, start_offset, end_offset),
        is_compacted,
        (min(epochs), max(epochs)) if epochs else (-1, -1),
    )


def _batches(segment: Segment, start_offset: int, end_offset: int) -> Iterator[tuple[BatchHeader, bool]]:
    """Yield the batches of a segment that have offsets of a range, and whether each has its CRC."""
    first = segment.find(start_offset)
    if first is None:
        return
    expected = first.header.base_offset
    for found in segment.headers(first.position, read_bytes=_READ_BYTES):
        header = found.header
        if header.base_offset >= end_offset:
            return
        if header.base_offset < expected:
            raise CorruptMessage(f"{segment.log_path}: the offsets go back at position {found.position}")
        expected = header.next_offset
        yield header, _is_sound(segment, found)


def _is_sound(segment: Segment, found: Found) -> bool:
    size_bytes = found.header.size_bytes
    try:
        data = segment.read_batch(found)
        if len(data) == size_bytes:
            kernel.check_crc(data, 0, size_bytes)
        return len(data) == size_bytes
    except (CorruptMessage, OSError) as error:
        if not is_damage(error):
            raise
        return False


def is_damage(error: CorruptMessage | OSError) -> bool:
    """Return whether the error of a read comes from the log, not from a passing want of descriptors or memory."""
    return isinstance(error, CorruptMessage) or kind_of(error) is FailureKind.BROKEN


def _within(found: Snapshot, end_offset: int) -> list[tuple[Segment, int]]:
    return [each for each in found.segments if each[0].base_offset < end_offset]


def _few(ranges: Sequence[Range], start_offset: int, end_offset: int) -> tuple[Range, ...]:
    """Return the parts of ranges, which ascend, that lie in a range, joined where they touch."""
    few: list[Range] = []
    for start, end in ranges:
        start, end = max(start, start_offset), min(end, end_offset)
        if start >= end:
            continue
        if few and (start <= few[-1][1] or len(few) == MOST_FAULTS):
            few[-1] = few[-1][0], max(few[-1][1], end)
        else:
            few.append((start, end))
    return tuple(few)
