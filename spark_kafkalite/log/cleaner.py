"""The copy that compaction makes of a log's sealed segments: the last record of each key, offsets unchanged.

Reads ``.log`` files, writes ``BASE.log.cleaned`` with ``BASE.index.cleaned`` and ``BASE.timeindex.cleaned`` beside them
(the formats of ``segment``, BASE is the first source's), syncs them, and renames nothing: the broker checks and swaps.
It runs in a child process, knows no broker and no event loop, and leaves nothing behind when it fails. A crash leaves
``.cleaned`` files, which recovery removes.

Two passes. The first puts the last offset of each key of the dirty part into a key map (``records.kernel.KeyMap``) of
bounded size. When the map is full, what came before the first key without room is cleaned, at whatever record that is,
and the rest is dirty still: there is always progress. The second copies batch by batch (:class:`_BatchFilter`):

* A batch of which every record stays is copied byte for byte; one of which some go keeps everything but the records,
  their count, the largest timestamp and the CRC (``records.assemble.reassemble``).
* A batch of which none stays goes, with two exceptions. The last one of a producer that is still active goes on saying,
  without records, what the producer's last sequence was. The last one before ``until_offset`` goes on saying that
  there is nothing up to there: a reader that waits for what comes next would else never learn that its position has
  moved on.
* A tombstone that is cleaned for the first time sets its batch's delete horizon, now + ``delete.retention.ms``; once
  that has passed it goes, in a cleaning that finds it in the clean part. There the values that it deletes are known to
  be gone; elsewhere a crash between two swaps could bring one back.
* Transaction markers stay. Records of transactions go when there is a later value outside of any transaction, replace
  nothing and lose no tombstones: which of them were aborted is not known here.
* Records below the log start go.

Groups must be swapped in the order given, each on the disk before the next: a later group may lack what an earlier one
still has a value for. Memory: the key map, a few MiB, and the largest batch, compressed and not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage, InvalidRecord, KafkaliteError
from spark_kafkalite.log.compaction import SourceSegment, group_sources
from spark_kafkalite.log.fs import File, Fs, write_whole
from spark_kafkalite.log.offset_index import OffsetIndex
from spark_kafkalite.log.open_files import OpenFiles
from spark_kafkalite.log.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from spark_kafkalite.log.time_index import TimeIndex
from spark_kafkalite.records import kernel
from spark_kafkalite.records.assemble import RetainedRecords, reassemble
from spark_kafkalite.records.columns import batch_payload
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, MAX_INT64, BatchHeader

__all__ = [
    "CLEANED_SUFFIX",
    "CleanJob",
    "CleanResult",
    "CleanedGroup",
    "CleaningAborted",
    "SourceSegment",
    "UncleanableLog",
    "clean",
]

# What is read or written before ``on_bytes`` is called again.
_PIECE_BYTES: Final = 1 << 20
_WRITEBACK_BYTES: Final = 8 << 20
_PLACE_IN_PIECE: Final = re.compile(r"^record batch at position \d+: ")
# A slot of the key map, and how many of ten it uses.
_SLOT_BYTES: Final = 24
_LOAD_TENTHS: Final = 9


class CleaningAborted(KafkaliteError):
    """The caller's ``on_bytes`` wants the cleaning to end; nothing is left of it."""


class UncleanableLog(KafkaliteError):
    """A source cannot be cleaned; the message names the file, the position, and what is wrong there."""


class CleanJob(NamedTuple):
    """One cleaning, in plain values.

    ``sources``: sealed segments from the log start on, in order. ``first_dirty_offset``: the cleaner's checkpoint.
    ``until_offset``: where the last source ends; nothing from it on is touched. ``last_offset_by_producer``: the last
    offset of each active producer id.
    """

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    until_offset: int
    log_start_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    dedupe_buffer_bytes: int
    max_decompressed_bytes: int
    last_offset_by_producer: dict[int, int]


class CleanedGroup(NamedTuple):
    """A segment that was written, and the base offsets of the ``sources`` that it stands for.

    ``max_timestamp_ms`` is -1 and ``offset_of_max_timestamp`` the base offset when it has no timestamp.
    """

    base_offset: int
    sources: tuple[int, ...]
    size_bytes: int
    index_entries: int
    time_index_entries: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int


class CleanResult(NamedTuple):
    """What a cleaning did. Below ``end_offset`` everything is clean once the groups are in place, in their order.

    Sources in no group are clean, or beyond ``end_offset``, as they are. ``next_horizon_ms``: when the first tombstones
    below ``end_offset`` may go, -1 when there are none.
    """

    groups: tuple[CleanedGroup, ...]
    end_offset: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
    next_horizon_ms: int


def clean(fs: Fs, job: CleanJob, on_bytes: Callable[[int], None]) -> CleanResult:
    """Write the cleaned segments of a job and return what they are; everything is synced then but the directory.

    ``on_bytes`` gets the number of bytes of every piece of I/O, at most 1 MiB each, and may wait or raise. Whatever is
    raised, the files that were written are gone then.
    Raises UncleanableLog, OSError, and what ``on_bytes`` raises.
    """
    return _Cleaning(fs, job, on_bytes).run()


class _Cleaning:
    """One run of a job."""

    def __init__(self, fs: Fs, job: CleanJob, on_bytes: Callable[[int], None]) -> None:
        self._fs = fs
        self._job = job
        self._on_bytes = on_bytes
        self._outputs: list[_Output] = []
        # A map as large as the dirty part may need, where that is less than it may be.
        dirty_offsets = max(job.until_offset - job.first_dirty_offset, 0)
        wanted_bytes = (dirty_offsets * 10 // _LOAD_TENTHS + 2) * _SLOT_BYTES
        self._key_map = kernel.KeyMap(min(job.dedupe_buffer_bytes, wanted_bytes))

    def run(self) -> CleanResult:
        job = self._job
        try:
            end_offset, mapped_bytes = self._map_keys()
            batches = _BatchFilter(job, self._key_map, end_offset)
            # A source that lies wholly behind what the map covers has nothing that could go.
            sources = [source for source in job.sources if source.base_offset < end_offset]
            later = [source.base_offset for source in job.sources[len(sources) :]]
            groups = []
            bytes_read = bytes_written = 0
            for group in group_sources(
                sources,
                later[0] if later else job.until_offset,
                segment_bytes=min(job.segment_bytes, MAX_INT32),
                segment_index_bytes=job.segment_index_bytes,
                index_interval_bytes=job.index_interval_bytes,
            ):
                bytes_read += sum(source.size_bytes for source in group)
                cleaned = self._copy(group, batches)
                if cleaned is not None:
                    groups.append(cleaned)
                    bytes_written += cleaned.size_bytes
        except BaseException:
            for output in self._outputs:
                output.remove()
            raise
        return CleanResult(
            tuple(groups),
            end_offset,
            batches.records_read,
            batches.records_kept,
            mapped_bytes + bytes_read,
            bytes_written,
            batches.next_horizon_ms,
        )

    def _map_keys(self) -> tuple[int, int]:
        """Put the keys of the dirty part into the map; return until which offset they are in, and what was read."""
        job = self._job
        bytes_read = 0
        for number, segment in enumerate(job.sources):
            next_base = job.sources[number + 1].base_offset if number + 1 < len(job.sources) else job.until_offset
            if next_base <= job.first_dirty_offset:
                continue
            source = _Source(self._fs, job.directory, segment, self._on_bytes)
            bytes_read += segment.size_bytes
            for _, window, headers in source.windows():
                at = 0
                for header in headers:
                    if header.next_offset > job.first_dirty_offset and _has_final_keys(header):
                        with source.naming(at):
                            kernel.check_crc(window, at, header.size_bytes)
                            payload = batch_payload(window, at, header, job.max_decompressed_bytes)
                            end_offset = self._key_map.put_records(payload, header, job.first_dirty_offset)
                        if end_offset < header.next_offset:
                            return end_offset, bytes_read
                    at += header.size_bytes
        return job.until_offset, bytes_read

    def _copy(self, group: tuple[SourceSegment, ...], batches: _BatchFilter) -> CleanedGroup | None:
        """Write one segment from some; None when it would be the one that there is."""
        job = self._job
        output = _Output(self._fs, job, group[0].base_offset, self._on_bytes)
        self._outputs.append(output)
        for segment in group:
            source = _Source(self._fs, job.directory, segment, self._on_bytes)
            # As long as nothing changes nothing is written: most of a clean segment's copies would be thrown away.
            is_unchanged = len(group) == 1
            for position, window, headers in source.windows():
                pieces: list[memoryview] = []
                at = run_start = 0
                for header in headers:
                    with source.naming(at):
                        replaced = batches.replacement(window, at, header)
                    size_bytes = header.size_bytes
                    if replaced is None:
                        output.take_up(header)
                    else:
                        pieces.append(window[run_start:at])
                        run_start = at + size_bytes
                        if replaced:
                            output.take_up(kernel.read_header(replaced))
                            pieces.append(memoryview(replaced))
                    at += size_bytes
                if is_unchanged and not pieces:
                    continue
                if is_unchanged:
                    is_unchanged = False
                    for before in source.pieces(0, position):
                        output.write(before)
                pieces.append(window[run_start:at])
                output.write(b"".join(pieces))
            if is_unchanged:
                output.remove()
                return None
        return output.finish(tuple(segment.base_offset for segment in group))


def _has_final_keys(header: BatchHeader) -> bool:
    """Return whether a batch's records replace earlier ones: not markers, nor what may have been aborted."""
    return not header.is_control and not header.is_transactional and header.record_count > 0


class _BatchFilter:
    """Decides what becomes of a batch, and counts."""

    def __init__(self, job: CleanJob, key_map: kernel.KeyMap, end_offset: int) -> None:
        self._job = job
        self._key_map = key_map
        self._end_offset = end_offset
        self._new_horizon_ms = min(job.now_ms + job.delete_retention_ms, MAX_INT64)
        self.records_read = 0
        self.records_kept = 0
        self.next_horizon_ms = -1

    def replacement(self, window: memoryview, at: int, header: BatchHeader) -> bytearray | None:
        """Return the batch that stands for this one, empty when it goes, None when it stays as it is.

        Raises CorruptMessage, InvalidRecord.
        """
        job = self._job
        kernel.check_crc(window, at, header.size_bytes)
        self.records_read += header.record_count
        self.records_kept += header.record_count
        if header.base_offset >= self._end_offset or header.is_control:
            return None
        if not header.record_count:
            return None if self._stays_empty(header) else bytearray()
        if header.next_offset <= job.log_start_offset:
            retained = RetainedRecords(0, 0, -1, False, bytearray(HEADER_BYTES))
        else:
            retained = self._filter(window, at, header)
        self.records_kept += retained.record_count - header.record_count
        if retained.buffer is None:
            return None
        if not retained.record_count and not self._stays_empty(header):
            return bytearray()
        return reassemble(header, retained, self._new_horizon_ms)

    def _filter(self, window: memoryview, at: int, header: BatchHeader) -> RetainedRecords:
        horizon_ms = header.delete_horizon_ms
        tombstones_until_offset, new_horizon_ms = 0, -1
        if not header.is_transactional:
            if 0 <= horizon_ms <= self._job.now_ms:
                tombstones_until_offset = self._job.first_dirty_offset
            elif horizon_ms < 0 and header.next_offset <= self._end_offset:
                new_horizon_ms = self._new_horizon_ms
        retained = self._key_map.filter_records(
            batch_payload(window, at, header, self._job.max_decompressed_bytes),
            header,
            self._job.log_start_offset,
            self._end_offset,
            tombstones_until_offset=tombstones_until_offset,
            delete_horizon_ms=new_horizon_ms,
        )
        if retained.has_new_horizon:
            self._note_horizon(new_horizon_ms)
        elif horizon_ms >= 0 and retained.tombstone_count and not header.is_transactional:
            self._note_horizon(horizon_ms)
        return retained

    def _note_horizon(self, horizon_ms: int) -> None:
        self.next_horizon_ms = horizon_ms if self.next_horizon_ms < 0 else min(self.next_horizon_ms, horizon_ms)

    def _stays_empty(self, header: BatchHeader) -> bool:
        job = self._job
        if header.next_offset == job.until_offset:
            return True
        return header.producer_id >= 0 and job.last_offset_by_producer.get(header.producer_id) == header.last_offset


class _Source:
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
                    with self.naming(at):
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

    def naming(self, at: int) -> _Naming:
        """Return a context in which what is wrong with a batch, ``at`` in the window, is said of file and position."""
        return _Naming(self._path, self._window_position + at)

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


class _Naming:
    """Turns what is said of a batch into UncleanableLog with file and position."""

    __slots__ = ("_path", "_position")

    def __init__(self, path: str, position: int) -> None:
        self._path = path
        self._position = position

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptMessage | InvalidRecord):
            # What the kernel says of a place is the place in the piece that was read.
            reason = _PLACE_IN_PIECE.sub("", str(error), 1)
            raise UncleanableLog(f"{self._path}: position {self._position}: {reason}") from error


class _Output:
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
        """Put everything on the disk, and say what it is."""
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
