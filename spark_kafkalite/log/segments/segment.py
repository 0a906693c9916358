"""One segment: a log file with its two indexes, for reading. The last one also appends (``active_segment``).

Files of a segment, named after its base offset in 20 digits: ``.log`` (record batches back to back, nothing else, byte
for byte as they are sent), ``.index`` and ``.timeindex``. The ``.log`` file always ends at the end of a batch as far as
``size_bytes`` goes; bytes beyond it can only be the remains of a failed write, and nothing reads them.

A sealed segment opens its file when it is read. Its indexes are believed where the log agrees with them, and rebuilt
where it does not.

After a crash: see ``recovery``. Batches inside a segment are found by their headers only; nothing here decodes records
but the two look-ups by time, and those decode one batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.directories.disk import FailureKind, kind_of, text_of
from spark_kafkalite.log.files.fs import File
from spark_kafkalite.log.files.needs_thread import NeedsThread, may_wait
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.index_walk import INTERVAL_BYTES, IndexWalk
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.sending import Sending
from spark_kafkalite.log.segments.sparse_index import IndexUnreadable
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES, BatchHeader

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
# Behind the whole name of a file that is out of use and will be removed.
DELETED_SUFFIX: Final = ".deleted"
# The same of a file that the cleaner has written and that is not part of the log yet.
CLEANED_SUFFIX: Final = ".cleaned"
# The records first: an index without its log is removed by the next start, a log without its index is scanned.
FILE_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)

# One index interval and a header more: what a look-up inside an index gap has to read when batches are small.
LOOK_UP_BYTES: Final = 4096 + HEADER_BYTES
# What a walk over a whole segment reads at once.
_WALK_BYTES: Final = 1 << 20
_rebuilding = threading.Lock()

T = TypeVar("T")
logger = logging.getLogger(__name__)


class SegmentCut(CorruptMessage):
    """A segment's file is shorter than what was written to it."""


class LogSlice(NamedTuple):
    """Whole batches in a file, ready for ``sendfile``. It keeps the file open for as long as it lives."""

    file: File
    position: int
    length: int
    # What was asked for; the first batch may begin below it.
    start_offset: int
    # Where it is counted while it is sent.
    sending: Sending

    def read(self) -> bytes:
        """Return the bytes (for tests, tools and connections that cannot send a file)."""
        return self.file.pread(self.length, self.position)


class Found(NamedTuple):
    """A batch and the position where it starts."""

    position: int
    header: BatchHeader


class Segment:
    """A segment that is not written any more."""

    __slots__ = (
        "_largest_timestamp_ms",
        "_max_timestamp",
        "_path",
        "base_offset",
        "files",
        "offset_index",
        "sending",
        "size_bytes",
        "time_index",
    )

    def __init__(
        self,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        size_bytes: int,
        *,
        index_entries: int = 0,
        time_index_entries: int = 0,
    ) -> None:
        self.files = files
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.sending = Sending()
        self._path = f"{directory}/{base_offset:020d}"
        self.offset_index = OffsetIndex(files, self._path + INDEX_SUFFIX, base_offset, index_entries)
        self.time_index = TimeIndex(files, self._path + TIME_INDEX_SUFFIX, base_offset, time_index_entries)
        # (timestamp, last offset of the batch that reached it); None until it is asked for.
        self._max_timestamp: tuple[int, int] | None = None
        # What was read for retention; None until then.
        self._largest_timestamp_ms: int | None = None

    def take_cleaned_files(self, max_timestamp: tuple[int, int]) -> None:
        """Give files that the cleaner has written the segment's names; before that it cannot be read. Can be repeated
        after an OSError."""
        for suffix in FILE_SUFFIXES:
            path = self._path + suffix
            if self.files.fs.exists(path + CLEANED_SUFFIX):
                self.files.fs.rename(path + CLEANED_SUFFIX, path)
            self.files.forget(path)
        self._max_timestamp = max_timestamp

    @property
    def log_path(self) -> str:
        """Name of the ``.log`` file."""
        return self._path + LOG_SUFFIX

    @property
    def file(self) -> File:
        """The open ``.log`` file."""
        return self.files.open(self._path + LOG_SUFFIX)

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of the first batch that reached it; (-1, base offset) when none."""
        if self._max_timestamp is None:
            last = self._looked_up(lambda: self.time_index.last_entry())
            if self.size_bytes and not (last is not None and self._is_newest(*last)):
                self.rebuild_indexes("its time index does not end with its newest batch")
                last = self.time_index.last_entry()
            self._max_timestamp = last or (-1, self.base_offset)
        return self._max_timestamp

    # Indexes carry no checksum. What they say is believed when the log agrees: an entry that names a batch which is
    # there, with that offset and that time, is a right answer, however the search came to it.

    def _looked_up(self, find: Callable[[], T]) -> T:
        """Return what is found in an index, which is rebuilt where its file cannot be read."""
        try:
            return find()
        except IndexUnreadable as error:
            self.rebuild_indexes(str(error))
            return find()

    def position_before(self, offset: int) -> int:
        """Return a batch start at or before the batch that holds ``offset``; 0 when the index has none."""
        entry = self._looked_up(lambda: self.offset_index.entry_before(offset))
        if entry is not None and not (entry[0] <= offset and self._is_batch(*entry)):
            self.rebuild_indexes(f"its index has a batch with last offset {entry[0]} at {entry[1]}")
            entry = self.offset_index.entry_before(offset)
        return entry[1] if entry else 0

    def boundary_before(self, position: int) -> int:
        """Return the greatest known batch start at or below ``position``; 0 when the index has none."""
        entry = self._looked_up(lambda: self.offset_index.entry_within(position))
        if entry is not None and not (entry[1] <= position and self._is_batch(*entry)):
            self.rebuild_indexes(f"its index has a batch with last offset {entry[0]} at {entry[1]}")
            entry = self.offset_index.entry_within(position)
        return entry[1] if entry else 0

    def offset_before(self, timestamp_ms: int) -> int:
        """Return an offset such that no record before it is at or after ``timestamp_ms``."""
        entry = self._looked_up(lambda: self.time_index.entry_before(timestamp_ms))
        if entry is not None and not (entry[0] < timestamp_ms and self._has_timestamp(*entry)):
            self.rebuild_indexes(f"its time index has timestamp {entry[0]} for offset {entry[1]}")
            entry = self.time_index.entry_before(timestamp_ms)
        return entry[1] if entry else self.base_offset

    def largest_before(self, offset: int) -> tuple[int, int] | None:
        """Return the largest timestamp that the time index has below ``offset``, and the last offset of the first batch
        that reached it; None when it has none. Later batches may be younger."""
        entry = self._looked_up(lambda: self.time_index.entry_below(offset))
        if entry is not None and not (entry[1] < offset and self._has_timestamp(*entry)):
            self.rebuild_indexes(f"its time index has timestamp {entry[0]} for offset {entry[1]}")
            entry = self.time_index.entry_below(offset)
        return entry

    def _is_batch(self, last_offset: int, position: int) -> bool:
        if not 0 <= position <= self.size_bytes - HEADER_BYTES:
            return False
        data = self.file.pread(HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            # Not the index is wrong.
            raise self._cut_at(position + len(data))
        try:
            return bool(kernel.read_header(data, 0).last_offset == last_offset)
        except CorruptMessage:
            return False

    def _cut_at(self, end: int) -> SegmentCut:
        return SegmentCut(f"{self.log_path} ends at {end} bytes, {self.size_bytes} were written to it")

    def check_reaches(self, end: int) -> None:
        """Raise SegmentCut unless the file is as long as this. OSError when it cannot be opened."""
        size_bytes = self.file.size()
        if size_bytes < end:
            raise self._cut_at(size_bytes)

    def _has_timestamp(self, timestamp_ms: int, offset: int) -> bool:
        entry = self._looked_up(lambda: self.offset_index.entry_before(offset))
        position = entry[1] if entry is not None and entry[0] <= offset and self._is_batch(*entry) else 0
        try:
            for found in self.headers(position):
                if found.header.last_offset >= offset:
                    return found.header.max_timestamp == timestamp_ms
        except CorruptMessage:
            pass
        return False

    def _is_newest(self, timestamp_ms: int, offset: int) -> bool:
        """Return whether the batch at ``offset`` is of that time, and none of the last batches is younger."""
        late = self.headers(self.boundary_before(self.size_bytes))
        return self._has_timestamp(timestamp_ms, offset) and all(
            found.header.max_timestamp <= timestamp_ms for found in late
        )

    def rebuild_indexes(self, reason: str) -> BatchHeader | None:
        """Rebuild the indexes from the log, as far as it can be walked; return the last batch's header.

        Raises IndexesDamaged where reads may not wait, for a thread to do it.
        """
        if not may_wait():
            raise IndexesDamaged(self, reason)
        logger.warning("%s: %s; its indexes are rebuilt", self.log_path, reason)
        walk = IndexWalk(self, INTERVAL_BYTES)
        walk.go_on()
        walk.time_index.maybe_append(*walk.max_timestamp)
        for index in (walk.offset_index, walk.time_index):
            self.files.forget(index.path)
            try:
                index.write()
            except OSError as error:
                if kind_of(error) is FailureKind.NO_RESOURCES:
                    raise
                # It stays in memory.
                logger.warning("%s cannot be written: %s", index.path, text_of(error))
        self.offset_index, self.time_index = walk.offset_index, walk.time_index
        self._max_timestamp = walk.max_timestamp
        return walk.last

    def rebuild_in_thread(self, reason: str) -> None:
        """Do what ``rebuild_indexes`` needs a thread for; the look-up that has found the damage is then done again."""
        self.rebuild_indexes(reason)

    @property
    def largest_timestamp_ms(self) -> int | None:
        """The time that retention uses: the largest timestamp, or when the file was last written if no record has one.

        None while that has not been read (``note_largest_timestamp``): asking must not wait for a disk.
        """
        if self._max_timestamp is not None and self._max_timestamp[0] >= 0:
            return self._max_timestamp[0]
        return self._largest_timestamp_ms

    def note_largest_timestamp(self, timestamp_ms: int) -> None:
        """Keep what ``retention.read_largest_timestamps`` has read."""
        self._largest_timestamp_ms = timestamp_ms

    def headers(
        self, position: int, until_position: int | None = None, *, read_bytes: int = LOOK_UP_BYTES
    ) -> Iterator[Found]:
        """Yield the batches from the one that starts at ``position`` on, by reading ``read_bytes`` at a time.

        Raises CorruptMessage where no batch starts or where one runs past the end, SegmentCut where the file ends
        before the segment does.
        """
        end = self.size_bytes if until_position is None else until_position
        file = self.file
        while position < end:
            chunk = file.pread(min(read_bytes, self.size_bytes - position), position)
            at = 0
            while at + HEADER_BYTES <= len(chunk) and position + at < end:
                header = kernel.read_header(chunk, at)
                next_at = at + 12 + header.batch_length
                if position + next_at > self.size_bytes:
                    raise CorruptMessage(
                        f"{self.log_path}: the batch at position {position + at} takes {next_at - at} bytes, "
                        f"the segment ends {self.size_bytes - position - at} bytes after its start"
                    )
                yield Found(position + at, header)
                at = next_at
            if not at:
                if len(chunk) < min(read_bytes, self.size_bytes - position):
                    raise self._cut_at(position + len(chunk))
                raise CorruptMessage(f"{self.log_path}: {len(chunk)} bytes at position {position} are not a batch")
            position += at

    def find(self, offset: int, *, read_bytes: int = LOOK_UP_BYTES) -> Found | None:
        """Return the first batch whose last offset is at or after ``offset``; None when the segment ends before.

        Raises CorruptMessage where the offsets of batches do not follow each other: a batch whose offsets have changed
        would be passed over. Their CRCs do not cover the base offset.
        """
        end_offset = self.base_offset
        found = None
        for each in self.headers(self.position_before(offset), read_bytes=read_bytes):
            header = each.header
            if found is not None:
                if header.base_offset <= found.header.last_offset:
                    raise CorruptMessage(self._out_of_order(found))
                break
            if header.last_offset < header.base_offset or header.base_offset < end_offset:
                raise CorruptMessage(self._out_of_order(each))
            if header.last_offset >= offset:
                found = each
                if header.base_offset <= offset:
                    break
            end_offset = header.next_offset
        return found

    def _out_of_order(self, found: Found) -> str:
        header = found.header
        return (
            f"record batch at position {found.position}: its header has the offsets {header.base_offset} to "
            f"{header.last_offset}, which do not fit those of the batches around it"
        )

    def end_before(self, offset: int) -> int:
        """Return where the batches end that lie wholly below ``offset``, as far as they can be read up to there."""
        # The index may name the batch of ``offset`` itself, which may be unreadable.
        position = self.position_before(offset - 1)
        try:
            # One by one: a read fails as a whole for one bad sector in it.
            end_offset = self.base_offset
            for found in self.headers(position, read_bytes=HEADER_BYTES):
                # One whose base offset has changed may seem to lie below.
                if not end_offset <= found.header.base_offset <= found.header.last_offset < offset:
                    break
                position, end_offset = found.position + found.header.size_bytes, found.header.next_offset
        except CorruptMessage:
            pass
        except OSError as error:
            if kind_of(error) is FailureKind.NO_RESOURCES:
                raise
        return position

    def cut_to_readable(self, offset: int) -> None:
        """Cut the file, in a thread, where the batch of ``offset`` begins, or before it where nothing can be read any
        more. The indexes are not used: they are rebuilt."""
        # A file that is gone is an empty one from here on: what comes next is appended to it.
        file = self.files.open(self.log_path, create=True)
        position, _, _ = self._readable_end(offset)
        file.truncate(position)
        self.size_bytes = position
        self.rebuild_indexes("it is cut where it could not be read")

    def check_readable(self, offset: int) -> None:
        """Check, in a thread, that all batches below ``offset`` that the file has can be walked to. Raises
        CorruptMessage."""
        position, next_offset, error = self._readable_end(offset)
        # What a file lacks at its end, or as a whole, hides nothing.
        if error is not None and not isinstance(error, (SegmentCut, FileNotFoundError)) and next_offset != offset:
            raise CorruptMessage(
                f"{self.log_path} cannot be read from position {position}, offset {next_offset}, to offset {offset}"
            ) from error

    def _readable_end(self, offset: int) -> tuple[int, int, Exception | None]:
        """Return the position and the offset where the batches below ``offset`` end, as far as they can be read one
        after the other, and what has failed there, if anything."""
        position, next_offset = 0, self.base_offset
        failed: Exception | None = None
        # A read fails as a whole for one bad sector in it, so what is before that is read batch by batch.
        for read_bytes in (_WALK_BYTES, HEADER_BYTES):
            try:
                for found in self.headers(position, read_bytes=read_bytes):
                    if found.header.last_offset >= offset:
                        break
                    position, next_offset = found.position + found.header.size_bytes, found.header.next_offset
                return position, next_offset, None
            except (CorruptMessage, OSError) as error:
                logger.debug("%s ends at %d: %s", self.log_path, position, error)
                failed = error
        return position, next_offset, failed

    def boundary_within(
        self, position: int, max_bytes: int, until_position: int, *, read_bytes: int = LOOK_UP_BYTES
    ) -> int:
        """Return the end of some whole batches from ``position`` on that take at most ``max_bytes``.

        It is the greatest batch start that the index knows, or when that is no progress, found by walking. At least
        one batch: the end may lie beyond ``max_bytes`` when already the first batch does.
        """
        limit = position + max_bytes
        if limit >= until_position:
            return until_position
        boundary = self.boundary_before(limit)
        if boundary > position:
            return boundary
        for found in self.headers(position, until_position, read_bytes=read_bytes):
            end = found.position + found.header.size_bytes
            if end > limit:
                return end if found.position == position else found.position
            boundary = end
        return boundary

    def read_batch(self, found: Found) -> bytes:
        """Return a batch's bytes."""
        return self.file.pread(found.header.size_bytes, found.position)

    def remove(self) -> None:
        """Unlink the segment's files, because its records are no longer the log's: what is being sent is called off."""
        self.sending.cut(0)
        for suffix in FILE_SUFFIXES:
            path = self._path + suffix
            self.files.forget(path)
            if self.files.fs.exists(path):
                self.files.fs.unlink(path)

    def retire(self) -> list[str]:
        """Rename the segment's files out of use and return their new names. Slices that are out stay readable."""
        retired = []
        for suffix in FILE_SUFFIXES:
            path = self._path + suffix
            self.files.forget(path)
            if self.files.fs.exists(path):
                target, number = path + DELETED_SUFFIX, 0
                # Cleaned twice within file.delete.delay.ms. Renaming over the other would free it here and now.
                while self.files.fs.exists(target):
                    number += 1
                    target = f"{path}.{number}{DELETED_SUFFIX}"
                self.files.fs.rename(path, target)
                retired.append(target)
        return retired

    def forget_files(self) -> None:
        """Let go of the open files."""
        for suffix in FILE_SUFFIXES:
            self.files.forget(self._path + suffix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.log_path!r}, size_bytes={self.size_bytes})"


class IndexesDamaged(NeedsThread):
    """A look-up found indexes that do not fit the log; ``work`` rebuilds them."""

    def __init__(self, segment: Segment, reason: str) -> None:
        super().__init__(f"{segment.log_path}: {reason}")
        self._segment = segment
        self._damaged = segment.offset_index
        self._reason = reason

    def work(self) -> None:
        with _rebuilding:
            # Unless another look-up has had it done meanwhile.
            if self._segment.offset_index is self._damaged:
                self._segment.rebuild_in_thread(self._reason)
