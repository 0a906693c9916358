"""Finds out what of a segment cannot be read, after a read has failed: for a thread, which waits for the disk.

It checks the batch that was asked for and those behind it, some megabytes at most, by all their bytes and their CRCs.
It always checks whether the file is as long as what was written to it. If a batch's own length is not known any more,
the missing part ends at the next batch in the index. An entry of the index is used only if a batch is found there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.damaged_ranges import Ranges, merged
from spark_kafkalite.log.directories.disk import FailureKind, kind_of, text_of
from spark_kafkalite.log.loading.damage import without_place
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES, BatchHeader

# How much is read at least before a segment counts as sound; the slice of a fetch is no larger, but for large batches.
_LOOKED_AT_BYTES: Final = 8 << 20


class Surveyed(NamedTuple):
    """What of a segment cannot be read, and what is wrong with the first of it."""

    ranges: Ranges
    reason: str


class _FoundBatch(NamedTuple):
    position: int
    header: BatchHeader


def survey(segment: Segment, end_offset: int, offset: int, *, is_whole: bool = False) -> Surveyed:
    """Return what cannot be read of a segment, whose last offset is below ``end_offset``, from the batch of ``offset``
    on; ``is_whole``: to its end, however far that is.

    Raises OSError when there are no descriptors or no memory to find out.
    """
    try:
        size_bytes = segment.file.size()
        left_bytes = min(size_bytes, segment.size_bytes)
    except OSError as error:
        _check_passing(error)
        return Surveyed(((segment.base_offset, end_offset),), text_of(error))
    first = _before(segment, offset, left_bytes)
    looked_at_bytes = left_bytes if is_whole else _LOOKED_AT_BYTES
    ranges, reason = _walk(segment, first, left_bytes, end_offset, offset, looked_at_bytes)
    if size_bytes < segment.size_bytes:
        cut = f"it ends at {size_bytes} bytes, {segment.size_bytes} were written to it"
        start = _readable_end(segment, left_bytes)
        ranges, reason = [*ranges, (start, end_offset)], cut if not reason or ranges[0][0] >= start else reason
    return Surveyed(merged(ranges), reason)


def _walk(
    segment: Segment, first: _FoundBatch | None, left_bytes: int, end_offset: int, offset: int, looked_at_bytes: int
) -> tuple[list[tuple[int, int]], str]:
    """Walk from a batch on, the first one of the segment for None; return the ranges that cannot be read, and why."""
    ranges: list[tuple[int, int]] = []
    why = ""
    position, next_offset = (0, segment.base_offset) if first is None else (first.position, first.header.base_offset)
    until = left_bytes
    has_passed = False
    while position < until:
        header: BatchHeader | None = None
        try:
            header = kernel.read_header(segment.file.pread(HEADER_BYTES, position))
            following_offset = _misplaced_before(segment, position, header, next_offset, end_offset)
            if following_offset is not None:
                why = why or f"its header has the offsets {header.base_offset} to {header.last_offset}"
                ranges.append((next_offset, following_offset))
                has_passed |= following_offset > offset
                position, next_offset = position + header.size_bytes, following_offset
                continue
            if header.base_offset < next_offset or header.last_offset >= end_offset:
                offsets = f"{header.base_offset} to {header.last_offset}"
                header = None
                raise CorruptMessage(f"its header has the offsets {offsets}, {next_offset} or more were expected")
            if not has_passed and header.last_offset >= offset:
                has_passed = True
                until = min(until, position + max(looked_at_bytes, header.size_bytes + 1))
            if position + header.size_bytes > left_bytes:
                # It ends behind the end of the file, or of what can be.
                header = None
                raise CorruptMessage(f"the batch at position {position} ends behind the end of its segment")
            kernel.check_crc(segment.file.pread(header.size_bytes, position), 0, header.size_bytes)
        except (CorruptMessage, OSError) as error:
            if isinstance(error, OSError):
                _check_passing(error)
                reason = text_of(error)
            else:
                reason = without_place(error)
            why = why or f"{reason} at position {position}"
            following = None if header is not None else _behind(segment, position, left_bytes)
            if header is not None:
                ranges.append((header.base_offset, header.next_offset))
            elif following is not None:
                # A look-up finds it by its last offset.
                ranges.append((next_offset, following.header.last_offset))
                position, next_offset = following.position, following.header.base_offset
                until = max(until, min(left_bytes, position + looked_at_bytes)) if not has_passed else until
                continue
            else:
                ranges.append((next_offset, end_offset))
                break
        position += header.size_bytes
        next_offset = header.next_offset
    return ranges, why


def _misplaced_before(
    segment: Segment, position: int, header: BatchHeader, next_offset: int, end_offset: int
) -> int | None:
    """Return where the next batch begins, if the offsets of the batch at a position do not fit between the batches
    before and behind it; None if they may be right. No CRC covers a batch's base offset."""
    if header.base_offset == next_offset and 0 <= header.last_offset_delta < end_offset - next_offset:
        return None
    try:
        following = kernel.read_header(segment.file.pread(HEADER_BYTES, position + header.size_bytes))
    except CorruptMessage:
        return None
    except OSError as error:
        _check_passing(error)
        return None
    is_next_sound = next_offset < following.base_offset <= following.last_offset < end_offset
    fits = next_offset <= header.base_offset <= header.last_offset < following.base_offset
    return following.base_offset if is_next_sound and not fits else None


def _header(segment: Segment, position: int, next_offset: int) -> BatchHeader:
    header = kernel.read_header(segment.file.pread(HEADER_BYTES, position))
    if header.base_offset < next_offset:
        raise CorruptMessage(f"it begins with offset {header.base_offset}, {next_offset} or more was expected")
    return header


def _before(segment: Segment, offset: int, left_bytes: int) -> _FoundBatch | None:
    """Return an existing batch before ``offset`` by the index; None for the first of the segment."""
    try:
        entry = segment.offset_index.entry_before(offset)
    except (CorruptMessage, OSError):
        return None
    return _at(segment, entry, left_bytes)


def _behind(segment: Segment, position: int, left_bytes: int) -> _FoundBatch | None:
    """Return the first existing batch behind a position by the index."""
    index = segment.offset_index
    try:
        low, high = 0, index.count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if index.entry(middle)[1] <= position else (low, middle)
        for number in range(low, index.count):
            relative, found = index.entry(number)
            batch = _at(segment, (segment.base_offset + relative, found), left_bytes)
            if batch is not None:
                return batch
    except (CorruptMessage, OSError):
        pass
    return None


def _at(segment: Segment, entry: tuple[int, int] | None, left_bytes: int) -> _FoundBatch | None:
    if entry is None or not 0 <= entry[1] <= left_bytes - HEADER_BYTES:
        return None
    try:
        header = kernel.read_header(segment.file.pread(HEADER_BYTES, entry[1]))
    except CorruptMessage:
        return None
    except OSError as error:
        _check_passing(error)
        return None
    return _FoundBatch(entry[1], header) if header.last_offset == entry[0] else None


def _readable_end(segment: Segment, left_bytes: int) -> int:
    """Return the offset behind the last batch that lies wholly in the first ``left_bytes``, by headers."""
    try:
        entry = segment.offset_index.entry_within(left_bytes)
    except (CorruptMessage, OSError):
        entry = None
    first = _at(segment, entry, left_bytes)
    position, next_offset = (0, segment.base_offset) if first is None else (first.position, first.header.base_offset)
    try:
        while position + HEADER_BYTES <= left_bytes:
            header = _header(segment, position, next_offset)
            position += header.size_bytes
            if position > left_bytes:
                break
            next_offset = header.next_offset
    except CorruptMessage:
        pass
    except OSError as error:
        _check_passing(error)
    return next_offset


def _check_passing(error: OSError) -> None:
    if kind_of(error) is FailureKind.NO_RESOURCES:
        raise error
