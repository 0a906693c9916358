"""What readers pass over in one log: offsets that every replica has lost, in whose place they get empty batches.

What is missing at the end of a segment an empty batch spans for good: followers copy that the offsets are lost, and no
later start misses them. What cannot be read between other batches keeps its place in the file. An empty batch in a file
of its own stands for it until the log is closed. If a later run finds the damage again, the followers have that batch,
and the log is healed from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from spark_kafkalite.log.damaged_ranges import Ranges, without
from spark_kafkalite.log.directories.disk import text_of
from spark_kafkalite.log.files.fs import File, Fs, write_whole
from spark_kafkalite.log.segments.segment import LogSlice, Segment, SegmentCut
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.log.segments.sending import Sending
from spark_kafkalite.records.assemble import empty_batch
from spark_kafkalite.records.layout import MAX_INT32

logger = logging.getLogger(__name__)

# A start removes files of this name.
_SUFFIX: Final = ".passed-over.tmp"


class Filler(NamedTuple):
    """An empty batch for the offsets from ``start`` to ``end``, exclusive, in a file of its own."""

    start: int
    end: int
    file: File
    size_bytes: int

    def slice(self, offset: int) -> LogSlice:
        """Return the batch for a reader of ``offset``, which it stands for."""
        return LogSlice(self.file, 0, self.size_bytes, offset, Sending())


class PassedOver:
    """See the module's text. Lives in the loop, but for :meth:`prepare`, which is for a thread."""

    __slots__ = ("_directory", "_fillers", "_fs", "_segments")

    def __init__(self, fs: Fs, directory: str, segments: Segments) -> None:
        self._fs = fs
        self._directory = directory
        self._segments = segments
        self._fillers: tuple[Filler, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no offset has an empty batch in a file of its own."""
        return not self._fillers

    def prepare(self, ranges: Ranges, epoch_at: Callable[[int], int]) -> list[Filler]:
        """Write the empty batches for these ranges, in a thread, and return those in files of their own, for
        :meth:`add`. Their leader epochs are what ``epoch_at`` gives for their first offsets."""
        found: list[Filler] = []
        for start, end in ranges:
            for segment in list(self._segments.from_offset(start)):
                following = self._segments.after(segment)
                if segment.base_offset >= end:
                    break
                # What lies in the next segment gets a batch there.
                first, behind = max(start, segment.base_offset), end if following is None else following.base_offset
                until = min(behind, end)
                try:
                    if following is None or not self._span(segment, first, until, epoch_at(first)):
                        found += self._filler(first, until, epoch_at(first))
                except OSError as error:
                    logger.warning(
                        "%s: what is missing from offset %d on cannot be passed over: %s",
                        segment.log_path,
                        first,
                        text_of(error),
                    )
        return found

    def add(self, fillers: Iterable[Filler]) -> None:
        """Have readers get these in the place of what they stand for, once that is damage no more."""
        self._fillers += tuple(fillers)

    def _span(self, segment: Segment, start: int, end: int, leader_epoch: int) -> bool:
        """End a sealed segment with an empty batch, if that is where what is left of it ends; return whether it is."""
        try:
            segment.check_reaches(segment.size_bytes)
        except SegmentCut:
            segment.size_bytes = segment.end_before(start)
        except FileNotFoundError:
            segment.size_bytes = 0
            self._fs.open(segment.log_path, create=True)
        position = segment.size_bytes
        if not start < end <= start + MAX_INT32 or segment.end_before(start) != position:
            return False
        filler = empty_batch(start, end - 1, leader_epoch)
        file = segment.file
        file.truncate(position)
        write_whole(file, filler, position)
        file.sync()
        segment.size_bytes = position + len(filler)
        return True

    def _filler(self, start: int, end: int, leader_epoch: int) -> list[Filler]:
        if not start < end <= start + MAX_INT32:
            return []
        batch = empty_batch(start, end - 1, leader_epoch)
        file = self._fs.open(f"{self._directory}/{start:020d}{_SUFFIX}", create=True)
        file.truncate(0)
        write_whole(file, batch, 0)
        return [Filler(start, end, file, len(batch))]

    def left_of(self, ranges: Ranges) -> Ranges:
        """Return the parts of these ranges that are not passed over."""
        return without(ranges, [(each.start, each.end) for each in self._fillers])

    def limit(self, start_offset: int, until_offset: int) -> int:
        """Return up to where the log's own files may be read from an offset that is not passed over."""
        return min([until_offset, *(each.start for each in self._fillers if each.start > start_offset)])

    def at(self, offset: int) -> Filler | None:
        """Return the empty batch that stands for an offset, None where there is none."""
        return next((each for each in self._fillers if each.start <= offset < each.end), None)

    def keep(self, start_offset: int, end_offset: int) -> None:
        """Forget what ends outside of this part of the log, because the offsets there no longer exist."""
        self._fillers = tuple(each for each in self._fillers if start_offset < each.end <= end_offset)
