"""What is cut off a log and kept in ``.torn`` files: whole batches behind damage, and what they prove.

What is cut off a segment goes to ``NAME.log.torn`` next to it; a segment of which nothing can stay gets that suffix as
a whole. No broker reads these files; they are deleted with the log's directory. A name that is taken gets a number
behind it.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from typing import Final

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import File, Fs, write_whole
from spark_kafkalite.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_INT32,
    MIN_BATCH_LENGTH,
    BatchHeader,
)

TORN_SUFFIX: Final = ".torn"
_PIECE_BYTES: Final = 1 << 20
ANYTHING: Final = re.compile(rb"[^\0]")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
# Of the bytes that are looked through for batches, how often each may be checked in vain: values of records may be made
# so that they look like any number of large batches. What is no batch at the first glance counts as so many bytes.
_MOST_VAIN_CHECKS: Final = 8
_GLANCE_BYTES: Final = 128
# So many may be checked in any case, some tenths of a second: a few kilobytes are looked through, whatever they are.
_LEAST_VAIN_BYTES: Final = 32 << 20


def is_unfinished(fs: Fs, path: str, position: int) -> bool:
    """Return whether what lies from ``position`` on may be an append that the end of the process has interrupted.

    The bytes of an append are written in order: the file ends within the batch. Of one that is written ahead
    (``write_ahead``) the header comes last: it is zero, and some of what follows is not. All else is damage, or what a
    power cut leaves.
    """
    with Mapped(fs.open(path), position) as view:
        left_bytes = len(view) - position
        if left_bytes < HEADER_BYTES:
            return True
        if not any(view[position : position + HEADER_BYTES]):
            return ANYTHING.search(view, position) is not None
        try:
            return kernel.read_header(view, position).size_bytes > left_bytes
        except CorruptMessage:
            return False


def keep_end(fs: Fs, path: str, position: int) -> str:
    """Copy a file's bytes from ``position`` on to a file next to it, whose name is returned. The copy is synced."""
    return keep_pieces(fs, path, [(position, fs.open(path).size())])


def keep_pieces(fs: Fs, path: str, pieces: Iterable[tuple[int, int]]) -> str:
    """As :func:`keep_end`, for pieces of the file, (start, end) each, one behind the other."""
    kept = _free_name(fs, path + TORN_SUFFIX)
    torn = fs.open(kept, create=True)
    written = 0
    for start, end in pieces:
        written += copy_bytes(fs.open(path), start, end, torn, written)
    torn.sync()
    return kept


def copy_bytes(source: File, start: int, end: int, target: File, position: int) -> int:
    """Copy bytes of a file to a position of another one, and return how many."""
    for at in range(start, end, _PIECE_BYTES):
        write_whole(target, source.pread(min(_PIECE_BYTES, end - at), at), position + at - start)
    return end - start


def set_segment_aside(fs: Fs, directory: str, base_offset: int) -> str:
    """Rename a segment, and remove its indexes; return its new name."""
    path = f"{directory}/{base_offset:020d}{LOG_SUFFIX}"
    kept = _free_name(fs, path + TORN_SUFFIX)
    fs.rename(path, kept)
    remove_indexes(fs, directory, base_offset)
    return kept


def remove_indexes(fs: Fs, directory: str, base_offset: int) -> None:
    """Remove a segment's indexes, as far as there are any."""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path = f"{directory}/{base_offset:020d}{suffix}"
        if fs.exists(path):
            fs.unlink(path)


class Mapped:
    """A file's bytes as a view: mapped where there is a descriptor, read where there is none.

    A sector that cannot be read is an OSError of a read, but ends the process (SIGBUS) when a mapped page needs it. So
    the bytes from a position on are read first, piece by piece. Only these may be used. The kernel may drop them
    from its cache before that, and read again what could be read a moment ago.
    """

    def __init__(self, file: File, position: int = 0) -> None:
        self._file = file
        self._position = position
        self._map: mmap.mmap | None = None

    def __enter__(self) -> memoryview:
        """Return the view. Raises OSError when the bytes cannot be read."""
        size = self._file.size()
        try:
            descriptor = self._file.fileno()
        except OSError:
            descriptor = -1
        if descriptor < 0 or not size:
            self._view = memoryview(self._file.pread(size, 0))
        else:
            for at in range(self._position, size, _PIECE_BYTES):
                self._file.pread(min(_PIECE_BYTES, size - at), at)
            self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            self._view = memoryview(self._map)
        return self._view

    def __exit__(self, *_: object) -> None:
        self._view.release()
        if self._map is not None:
            self._map.close()


def sound_header(view: memoryview, position: int) -> BatchHeader:
    """Return the header of the batch at a position. Raises CorruptMessage unless all of the batch is sound."""
    header = kernel.read_header(view, position)
    left = len(view) - position
    if header.size_bytes > left:
        raise CorruptMessage(f"a batch of {header.size_bytes} bytes, {left} are left")
    if header.last_offset_delta < 0:
        raise CorruptMessage(f"a batch with last offset delta {header.last_offset_delta}")
    kernel.check_crc(view, position, header.size_bytes)
    return header


def may_have_held(size_bytes: int, offsets: int) -> bool:
    """Return whether batches in so many bytes may have had so many offsets, all of which lie in one segment.

    One header has room for all of them, and no record needs bytes of its own: a compressed batch of 100,000 records may
    have 400 bytes, a batch that compaction has emptied 61.
    """
    return not offsets or size_bytes >= HEADER_BYTES


def sound_batches(view: memoryview, position: int, next_offset: int) -> tuple[list[BatchHeader], bool]:
    """Return the headers of sound batches of this segment wherever they lie from ``position`` on, and whether that is
    certain: with false where there may be more, because too much looks like batches and is none."""
    search = BatchSearch(view, position, next_offset)
    found: list[BatchHeader] = []
    while (batch := search.find(position, next_offset)) is not None:
        position, header = batch
        found.append(header)
        next_offset = header.next_offset
        position += header.size_bytes
    return found, search.is_complete


class BatchSearch:
    """Searches a segment's bytes for sound batches that nothing points to.

    The bytes may be gigabytes with any content, for instance of the byte that is a batch's magic. So a header is
    searched for by its magic and the first half of its base offset, in one expression, and too much that looks like
    batches in vain ends the search.
    """

    def __init__(self, view: memoryview, position: int, next_offset: int) -> None:
        """From ``position`` on, for batches from ``next_offset`` on that fit into one segment."""
        self._view = view
        self._last = next_offset + MAX_INT32
        halves = {re.escape(offset.to_bytes(8, "big")[:4]) for offset in (next_offset, self._last)}
        # The magic comes first, for the sake of speed, and what is before it afterwards.
        self._candidates = re.compile(rb"\x02(?<=(?:%b).{12}\x02)" % b"|".join(halves), re.DOTALL)
        self._vain_bytes = max(_LEAST_VAIN_BYTES, _MOST_VAIN_CHECKS * (len(view) - position))
        # Whether there is nothing more where nothing more was found.
        self.is_complete = True

    def find(self, position: int, next_offset: int) -> tuple[int, BatchHeader] | None:
        """Return the position and the header of the first sound batch from ``position`` and ``next_offset`` on; None
        when there is none, or too much has looked like one."""
        view = self._view
        while True:
            position = _next_candidate(self._candidates, view, position)
            left = len(view) - position
            if left < HEADER_BYTES:
                return None
            if self._vain_bytes < 0:
                self.is_complete = False
                return None
            base_offset, length = _OFFSET_AND_LENGTH.unpack_from(view, position)
            if not next_offset <= base_offset <= self._last or not MIN_BATCH_LENGTH <= length <= left - LOG_OVERHEAD:
                self._vain_bytes -= _GLANCE_BYTES
                position += 1
                continue
            try:
                return position, sound_header(view, position)
            except CorruptMessage:
                self._vain_bytes -= LOG_OVERHEAD + length
                position += 1


def _next_candidate(candidates: re.Pattern[bytes], view: memoryview, position: int) -> int:
    """Return from where on there may be a batch; the end if there is none. An expression keeps other threads waiting
    while it is searched for, so that is done piece by piece."""
    for start in range(position + MAGIC_POSITION, len(view), _PIECE_BYTES):
        magic = candidates.search(view, start, start + _PIECE_BYTES)
        if magic is not None:
            return magic.start() - MAGIC_POSITION
    return len(view)


def _free_name(fs: Fs, path: str) -> str:
    """Return ``path``, or with a number behind it when an earlier repair has taken it."""
    number, name = 0, path
    while fs.exists(name):
        number += 1
        name = f"{path}.{number}"
    return name
