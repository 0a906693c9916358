"""The last segment of a log, which takes the appends.

It holds its file open. New entries of its indexes stay in memory; they are written when the segment rolls and at a
clean stop. After a fast start its end is known and its tail has not been read yet (``unread_until_offset``). The first
caller that needs the tail, for rolling, indexes or look-ups by time, reads it.

Indexes that do not fit the log are rebuilt by walking all of it (``index_walk``). Where the loop may not wait, a thread
does so while appends go on. The loop then walks the few new batches and takes the result over in one go.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import File, write_whole
from spark_kafkalite.log.files.needs_thread import NeedsThread, may_wait
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.index_walk import INTERVAL_BYTES, IndexWalk
from spark_kafkalite.log.segments.segment import IndexesDamaged, Segment
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import NO_LEADER_EPOCH
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, BatchHeader

# Entries that a thread may make, about: the loop writes them to the files when they come to SPILL_ENTRIES.
_REBUILT_ENTRIES: Final = 32768
# What the loop walks by itself of what was appended during a rebuild: some milliseconds' work.
_WALKED_IN_THE_LOOP_BYTES: Final = 256 << 10

logger = logging.getLogger(__name__)


class EndLost(CorruptMessage):
    """The whole batches of a segment end earlier than they did when the broker stopped: at ``end_offset`` and
    ``position``, the last one of ``leader_epoch`` (-1: there is none). The file may go on there, damaged."""

    def __init__(self, text: str, end_offset: int, position: int, leader_epoch: int) -> None:
        super().__init__(text)
        self.end_offset = end_offset
        self.position = position
        self.leader_epoch = leader_epoch


class ActiveSegment(Segment):
    """The last segment of a log, which appends go to."""

    __slots__ = (
        "_ahead",
        "_file",
        "_index_bytes",
        "_offset_of_max_timestamp",
        "_since_index_entry",
        "_timestamp_so_far",
        "_walked",
        "created_ms",
        "first_timestamp_ms",
        "roll_jitter_ms",
        "sound_bytes",
        "unread_until_offset",
    )

    def __init__(
        self,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        size_bytes: int,
        created_ms: int,
        *,
        index_entries: int = 0,
        time_index_entries: int = 0,
    ) -> None:
        super().__init__(
            files,
            directory,
            base_offset,
            size_bytes,
            index_entries=index_entries,
            time_index_entries=time_index_entries,
        )
        self._file = files.open_apart(self.log_path, create=True)
        # What is being written, or was, behind the end; None nearly always.
        self._ahead: WriteAhead | None = None
        self._since_index_entry = 0
        # What the larger of the two indexes takes; the time index never has more entries, but for its last one.
        self._index_bytes = index_entries * TimeIndex.ENTRY.size
        self._timestamp_so_far = -1
        self._offset_of_max_timestamp = base_offset
        # Up to where the last walk over the batches has come.
        self.sound_bytes = size_bytes
        # Up to one walk over the log that a thread has done; whoever takes it out owns it.
        self._walked: list[IndexWalk] = []
        self.created_ms = created_ms
        # Largest timestamp of the first batch; -1 while there is none. Rolling by time counts from it.
        self.first_timestamp_ms = -1
        self.roll_jitter_ms = 0
        # Where the segment ends, after a clean stop, while what ``load_tail`` finds out is not known yet; else -1.
        self.unread_until_offset = -1

    @property
    def file(self) -> File:
        return self._file

    @property
    def max_timestamp(self) -> tuple[int, int]:
        if self.unread_until_offset >= 0:
            self.read_tail()
        return self._timestamp_so_far, self._offset_of_max_timestamp

    @property
    def largest_timestamp_ms(self) -> int | None:
        if self.unread_until_offset >= 0:
            return super().largest_timestamp_ms
        # The file is open, so the system knows its times without reading the disk.
        return self._timestamp_so_far if self._timestamp_so_far >= 0 else self.files.fs.modified_ms(self.log_path)

    def append(
        self,
        data: bytes | bytearray | memoryview,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> None:
        """Write one batch at the end.

        On a failed or short write nothing has changed in memory and OSError is raised; the file may be longer than
        ``size_bytes`` then, which ``cut_back`` undoes.
        """
        position = self.size_bytes
        size = len(data)
        self._write(data, position)
        self.take_up(position, size, last_offset, max_timestamp, index_interval_bytes)

    def append_run(self, data: memoryview, headers: Sequence[BatchHeader], index_interval_bytes: int) -> None:
        """Write several batches, whose headers these are, at the end; else as :meth:`append`."""
        position = self.size_bytes
        self._write(data, position)
        for header in headers:
            size = header.size_bytes
            self.take_up(position, size, header.last_offset, header.max_timestamp, index_interval_bytes)
            position += size

    def _write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if self._ahead is not None:
            data = self._unwritten(self._ahead, data)
        if self._file.pwrite(data, position) != len(data):
            # The disk is full; the second write says so with its own error number.
            write_whole(self._file, data, position)

    def take_up(
        self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Count a batch that is in the file."""
        if max_timestamp > self._timestamp_so_far:
            self._timestamp_so_far = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._since_index_entry > index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._timestamp_so_far, self._offset_of_max_timestamp)
            self._since_index_entry = 0
            self._index_bytes += TimeIndex.ENTRY.size
        if not position:
            self.first_timestamp_ms = max_timestamp
        self._since_index_entry += size
        self.size_bytes = position + size

    def _unwritten(self, ahead: WriteAhead, batch: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """Return what of a batch is not in the file yet: its header, if it is the one that was written ahead."""
        if ahead.batch is batch:
            if ahead.error is not None:
                raise ahead.error
            if ahead.is_written:
                self._ahead = None
                return batch[:HEADER_BYTES]
        self.cut_back()
        return batch

    def write_ahead(self, batch: bytearray | memoryview, append_time_ms: int) -> WriteAhead:
        """Return what a thread runs before ``append`` is called with the same batch object; see ``write_ahead``."""
        self.drop_ahead()
        self._ahead = WriteAhead(self._file, self.size_bytes, batch, append_time_ms)
        return self._ahead

    def holds(self, ahead: WriteAhead) -> bool:
        """Return whether what was written ahead lies where the next batch goes."""
        return self._ahead is ahead and not ahead.is_stopped

    def drop_ahead(self) -> None:
        """Have nothing behind the end of the segment, because the end is about to change, or is to be relied on."""
        if self._ahead is not None:
            self.cut_back()

    def cut_back(self) -> None:
        """Cut off what lies behind the segment's end, if anything: the remains of a failed write, or of one ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()
        if self._file.size() != self.size_bytes:
            self._file.truncate(self.size_bytes)

    def forget_files(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        super().forget_files()

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, config: TopicConfig, clock: Clock) -> bool:
        """Return whether a batch belongs into a new segment. Source: LogSegment.shouldRoll."""
        if last_offset - self.base_offset > MAX_INT32:
            return True
        if not self.size_bytes:
            return False
        if self.size_bytes + size > config.segment_bytes or self._index_bytes >= config.segment_index_bytes:
            return True
        if self.first_timestamp_ms >= 0 and max_timestamp >= 0:
            waited_ms = max_timestamp - self.first_timestamp_ms
        else:
            # Created in the future, by a clock that was put right since: as good as long ago.
            waited_ms = abs(clock.wall_ms() - self.created_ms)
        return waited_ms > config.segment_ms - self.roll_jitter_ms

    def preallocate(self, size_bytes: int) -> None:
        """Set blocks aside for the segment to grow to this size. A disk without room for so much is no error: it may
        have room for the next records, and otherwise the append fails."""
        try:
            self._file.reserve(size_bytes)
        except OSError as error:
            logger.warning(
                "cannot set %d bytes aside for %s (preallocate=true): %s; it grows with its records",
                size_bytes, self.log_path, error.strerror or error,
            )  # fmt: skip

    def write_indexes(self) -> bool:
        """Bring the index files up to date, the time index with its last entry; return whether they were not."""
        if self.unread_until_offset >= 0:
            return False
        self.time_index.maybe_append(self._timestamp_so_far, self._offset_of_max_timestamp)
        wrote_offsets = self.offset_index.write()
        return self.time_index.write() or wrote_offsets

    def seal(self) -> Segment:
        """Write the indexes and return the segment as one that only reads."""
        self.drop_ahead()
        self.write_indexes()
        sealed = Segment(
            self.files,
            self._path.rpartition("/")[0],
            self.base_offset,
            self.size_bytes,
            index_entries=self.offset_index.count,
            time_index_entries=self.time_index.count,
        )
        sealed._max_timestamp = self.max_timestamp
        sealed.sending = self.sending
        return sealed

    def load_tail(self) -> BatchHeader | None:
        """Take up what the index files do not have: walk the batches from the last index entry to the end.

        Returns the last batch's header, None when the segment is empty. Raises CorruptMessage when index and log do
        not fit together, after which the segment must be recovered.
        """
        entry = self.offset_index.last_entry()
        timestamp, offset = self.time_index.last_entry() or (-1, self.base_offset)
        position = entry[1] if entry else 0
        if not 0 <= position <= self.size_bytes:
            raise CorruptMessage(f"{self.log_path}: its index points to {position}, it ends at {self.size_bytes}")
        if timestamp >= 0 and not self._has_timestamp(timestamp, offset):
            raise CorruptMessage(f"{self.log_path}: its time index has timestamp {timestamp} for offset {offset}")
        last: BatchHeader | None = None
        for found in self.headers(position):
            last = found.header
            if entry and found.position == position and last.last_offset != entry[0]:
                raise CorruptMessage(
                    f"{self.log_path}: its index has offset {entry[0]} at {position}, the log has {last.last_offset}"
                )
            if last.max_timestamp > timestamp:
                timestamp, offset = last.max_timestamp, last.last_offset
        self.sound_bytes = self.size_bytes
        self._timestamp_so_far, self._offset_of_max_timestamp = timestamp, offset
        self._since_index_entry = self.size_bytes - position
        if self.size_bytes:
            first = next(self.headers(0, 1, read_bytes=HEADER_BYTES))
            self.first_timestamp_ms = first.header.max_timestamp
        return last

    def read_tail(self) -> BatchHeader | None:
        """Do the ``load_tail`` that a fast start has put off, and rebuild the indexes where they do not fit the log.

        What lies behind the last whole batch is cut off if no offsets are missing: the next one will be written there.
        Raises EndLost when the log ends before the offset that the clean stop recorded, CorruptMessage when it ends
        after it.
        """
        try:
            last = self.load_tail()
        except CorruptMessage as error:
            last = self.rebuild_indexes(self._reason_of(error))
        lost = self._lost(last, self.sound_bytes)
        if lost is not None:
            raise lost
        self.cut_unsound()
        self.unread_until_offset = -1
        return last

    def lost_end(self) -> EndLost | None:
        """Return what :meth:`read_tail` is going to raise, by what a thread has walked for it."""
        walk = self._walked[-1] if self._walked else None
        lost = None if walk is None else self._lost(walk.last, walk.sound_bytes)
        return lost if isinstance(lost, EndLost) else None

    def _lost(self, last: BatchHeader | None, position: int) -> CorruptMessage | None:
        """Return what is wrong with a last batch that ends at a position, compared with what the clean stop has
        recorded."""
        end, epoch = (last.next_offset, last.partition_leader_epoch) if last else (self.base_offset, NO_LEADER_EPOCH)
        text = f"{self.log_path} ends at offset {end}, and ended at {self.unread_until_offset} when the broker stopped"
        if end > self.unread_until_offset:
            return CorruptMessage(text)
        return EndLost(text, end, position, epoch) if end < self.unread_until_offset else None

    def cut_unsound(self) -> None:
        """Cut off what lies behind the last batch that could be walked."""
        if self.sound_bytes < self.size_bytes:
            cut_bytes = self.size_bytes - self.sound_bytes
            logger.warning("%s: cut at position %d (%d bytes)", self.log_path, self.sound_bytes, cut_bytes)
            self.sending.cut(self.sound_bytes)
            self._file.truncate(self.sound_bytes)
            self.size_bytes = self.sound_bytes

    def _reason_of(self, error: CorruptMessage) -> str:
        """Return what ``load_tail`` has raised without the segment's path, which lines begin with."""
        return str(error).removeprefix(f"{self.log_path}: ")

    def rebuild_indexes(self, reason: str) -> BatchHeader | None:
        walk = self._take_walk()
        if not may_wait() and (walk is None or self.size_bytes - walk.position > _WALKED_IN_THE_LOOP_BYTES):
            if walk is not None:
                self._walked.append(walk)
            raise IndexesDamaged(self, reason)
        if walk is None:
            logger.warning("%s: %s; its indexes are rebuilt", self.log_path, reason)
            walk = IndexWalk(self, INTERVAL_BYTES)
        try:
            walk.go_on()
        except NeedsThread:
            self._walked.append(walk)
            raise
        self.sound_bytes = walk.sound_bytes
        self.offset_index, self.time_index = walk.offset_index, walk.time_index
        self.offset_index.spills = self.time_index.spills = True
        self._index_bytes = self.offset_index.count * TimeIndex.ENTRY.size
        self._since_index_entry = walk.since_index_entry
        self._timestamp_so_far, self._offset_of_max_timestamp = walk.max_timestamp
        self.first_timestamp_ms = walk.first_timestamp_ms
        return walk.last

    def rebuild_in_thread(self, reason: str) -> None:
        walked, walk = self._walked, self._take_walk()
        if walk is None:
            logger.warning("%s: %s; its indexes are rebuilt in a thread", self.log_path, reason)
            walk = IndexWalk(self, max(INTERVAL_BYTES, self.size_bytes // _REBUILT_ENTRIES))
            # The files are the loop's.
            walk.offset_index.spills = walk.time_index.spills = False
        walk.go_on()
        # Into the list of before, which a truncation has thrown away.
        walked.append(walk)

    def _take_walk(self) -> IndexWalk | None:
        try:
            return self._walked.pop()
        except IndexError:
            return None

    def reset(self) -> None:
        """Forget what is known of the file, for recovery to ``take_up`` its batches again."""
        self.offset_index.clear()
        self.time_index.clear()
        self.size_bytes = 0
        self.first_timestamp_ms = -1
        self._since_index_entry = 0
        self._index_bytes = 0
        self._timestamp_so_far = -1
        self._offset_of_max_timestamp = self.base_offset

    def truncate(self, position: int, offset: int) -> None:
        """Cut the file at a batch start; ``offset`` is the first one that is gone."""
        self.drop_ahead()
        self.sending.cut(position)
        self._file.truncate(position)
        self.size_bytes = position
        self._walked = []
        self.offset_index.truncate_to(position)
        self.time_index.truncate_to(offset)
        self._index_bytes = self.offset_index.count * TimeIndex.ENTRY.size
        try:
            self.load_tail()
        except CorruptMessage as error:
            self.rebuild_indexes(self._reason_of(error))
