"""The files of a cleaning: sources, read in whole batches, and the ``.cleaned`` files.

Every piece of I/O is announced to ``on_bytes``, which may wait or raise. What goes wrong in a source is raised with its
file and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from spark_kafkalite.errors import CorruptMessage, InvalidRecord
from spark_kafkalite.log.compaction.clean_job import CleanedGroup, CleanJob, UncleanableLog
from spark_kafkalite.log.compaction.plan import SourceSegment
from spark_kafkalite.log.files.fs import File, Fs, write_whole
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading.damage import without_place
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import MAX_INT32, BatchHeader

# What is read or written before ``on_bytes`` is called again.
_PIECE_BYTES: Final = 1 << 20
_WRITEBACK_BYTES: Final = 8 << 20


class CleanerSource:
    """The ``.log`` file of one source, read in pieces and handed out in whole batches."""

    def __init__(self, fs: Fs, directory: str, segment: SourceSegment, on_bytes: Callable[[int], None]) -> None:
        self._path = f"{directory}/{segment.base_offset:020d}{LOG_SUFFIX}"
        self._file = fs.open(self._path)
        self._base_offset = segment.base_offset
        self._size_bytes = segment.size_bytes
        self._on_bytes = on_bytes
        self._window_position = 0

    def windows(self) -> Iterator[tuple[int, memoryview, list[BatchHeader]]]:
        """Yield (position, bytes, headers) of whole batches in order, about 1 MiB of them at a time.

        Raises UncleanableLog where no batch begins, or where one runs past the end or back in offsets.
        """
        position, next_offset = 0, self._base_offset
        while position < self._size_bytes:
            self._window_position = position
            window = self._read(position, min(_PIECE_BYTES, self._size_bytes - position))
            headers = _sound_headers(window)
            if not headers:
                with self.naming(0):
                    size_bytes = kernel.read_header(window).size_bytes
                    if size_bytes > self._size_bytes - position:
                        raise CorruptMessage(f"a batch of {size_bytes} bytes, {self._size_bytes - position} are left")
                window = self._read(position, size_bytes)
                headers = kernel.scan_headers(window)
            at = 0
            for header in headers:
                if header.base_offset < next_offset or header.last_offset_delta < 0:
                    with self.naming(at, header.base_offset):
                        raise CorruptMessage(
                            f"a batch with offsets {header.base_offset} to {header.last_offset}, "
                            f"{next_offset} was expected"
                        )
                next_offset = header.next_offset
                at += header.size_bytes
            yield position, memoryview(window)[:at], headers
            position += at

    def pieces(self, position: int, until_position: int) -> Iterator[bytes]:
        """Yield the bytes of a range."""
        while position < until_position:
            piece = self._read(position, min(_PIECE_BYTES, until_position - position))
            yield piece
            position += len(piece)

    def naming(self, at: int, offset: int = -1) -> NamedPlace:
        """Return a context whose errors name the place of a batch, which is ``at`` in the window: the file, the
        position, and the base offset where that is known."""
        return NamedPlace(self._path, self._window_position + at, offset)

    def _read(self, position: int, length: int) -> bytes:
        pieces = []
        while length:
            piece = self._file.pread(min(length, _PIECE_BYTES), position)
            if not piece:
                raise UncleanableLog(f"{self._path}: it ends at position {position}, not at {self._size_bytes}")
            self._on_bytes(len(piece))
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _sound_headers(window: bytes) -> list[BatchHeader]:
    """Return the headers of the whole batches in a piece of a file, as far as they are such."""
    try:
        return kernel.scan_headers(window)
    except CorruptMessage:
        # Those before the damaged one: the next piece then begins with it, and its error can say where that is.
        headers: list[BatchHeader] = []
        at = 0
        while True:
            try:
                header = kernel.read_header(window, at)
            except CorruptMessage:
                return headers
            headers.append(header)
            at += header.size_bytes


class NamedPlace:
    """Turns an error about a batch into UncleanableLog with file and position."""

    __slots__ = ("_offset", "_path", "_position")

    def __init__(self, path: str, position: int, offset: int) -> None:
        self._path = path
        self._position = position
        self._offset = offset

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptMessage | InvalidRecord):
            batch = f"position {self._position}" + (f", offset {self._offset}" if self._offset >= 0 else "")
            raise UncleanableLog(f"{self._path}: {batch}: {without_place(error)}") from error


class CleanedOutput:
    """One ``.cleaned`` segment being written: made when its first bytes come, indexed as an active segment is."""

    def __init__(self, fs: Fs, job: CleanJob, base_offset: int, on_bytes: Callable[[int], None]) -> None:
        stem = f"{job.directory}/{base_offset:020d}"
        self._fs = fs
        self._on_bytes = on_bytes
        self._base_offset = base_offset
        self._log_path = stem + LOG_SUFFIX + CLEANED_SUFFIX
        self._files = OpenFiles(fs)
        self._offset_index = OffsetIndex(self._files, stem + INDEX_SUFFIX + CLEANED_SUFFIX, base_offset)
        self._time_index = TimeIndex(self._files, stem + TIME_INDEX_SUFFIX + CLEANED_SUFFIX, base_offset)
        self._index_interval_bytes = job.index_interval_bytes
        self._file: File | None = None
        self._written_bytes = 0
        self._written_back_bytes = 0
        # Of the batches taken up, which are written a little later.
        self._size_bytes = 0
        self._since_index_entry = 0
        self._max_timestamp = (-1, base_offset)

    def take_up(self, header: BatchHeader) -> None:
        """Count the next batch of the file, as ``ActiveSegment.take_up`` does."""
        if self._size_bytes + header.size_bytes > MAX_INT32:
            # Only where batches were packed better than we pack them.
            raise UncleanableLog(f"{self._log_path}: its batches take more than {MAX_INT32} bytes")
        if header.max_timestamp > self._max_timestamp[0]:
            self._max_timestamp = header.max_timestamp, header.last_offset
        if self._since_index_entry > self._index_interval_bytes:
            self._offset_index.append(header.last_offset, self._size_bytes)
            self._time_index.maybe_append(*self._max_timestamp)
            self._since_index_entry = 0
        self._since_index_entry += header.size_bytes
        self._size_bytes += header.size_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, a piece at a time."""
        file = self._open()
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            write_whole(file, piece, self._written_bytes)
            self._written_bytes += len(piece)
            self._on_bytes(len(piece))
        # Else the sync at the end has all of it to write, and holds up every other one meanwhile.
        if self._written_bytes - self._written_back_bytes >= _WRITEBACK_BYTES:
            file.start_writeback(self._written_back_bytes, self._written_bytes - self._written_back_bytes)
            self._written_back_bytes = self._written_bytes

    def finish(self, sources: tuple[int, ...]) -> CleanedGroup:
        """Put everything on the disk, and return what it is."""
        file = self._open()
        assert self._written_bytes == self._size_bytes
        self._time_index.maybe_append(*self._max_timestamp)
        self._offset_index.write()
        self._time_index.write()
        for path in (self._offset_index.path, self._time_index.path):
            self._files.open(path).sync()
        file.sync()
        timestamp, offset = self._max_timestamp
        group = CleanedGroup(
            self._base_offset,
            sources,
            self._size_bytes,
            self._offset_index.count,
            self._time_index.count,
            timestamp,
            offset,
        )
        self._let_go()
        return group

    def remove(self) -> None:
        """Unlink whatever of it there is."""
        self._let_go()
        for path in (self._log_path, self._offset_index.path, self._time_index.path):
            try:
                if self._fs.exists(path):
                    self._fs.unlink(path)
            except OSError:  # recovery removes it; what is being said already matters more
                pass

    def _open(self) -> File:
        if self._file is None:
            self._file = self._fs.open(self._log_path, create=True)
            self._file.truncate(0)
        return self._file

    def _let_go(self) -> None:
        self._file = None
        self._files.forget(self._offset_index.path)
        self._files.forget(self._time_index.path)
