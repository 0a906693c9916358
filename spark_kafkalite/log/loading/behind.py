"""What lies behind the place where a recovery ends a segment: it goes on in other segments, or is kept in ``.torn``."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.loading.resume import FittingBatches, find_runs, split_off
from spark_kafkalite.log.loading.torn import (
    ANYTHING,
    Mapped,
    is_unfinished,
    keep_end,
    keep_pieces,
    may_have_held,
    set_segment_aside,
    sound_batches,
)
from spark_kafkalite.log.segments.segment import LOG_SUFFIX
from spark_kafkalite.printable import first_of

_SHOWN: Final = 5


class Behind:
    """What lies behind the place where a recovery ends a log: kept, unless it is nothing or the rest of one batch.

    What looks like batches so often that not all of it can be checked is kept, too.

    Whole batches prove that their offsets have been given, where those fit: what is missing before and between them may
    have been in the bytes that are no batch. Bytes that have no room for a batch have had no offsets.
    """

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        # Up to where offsets are proven to have been given; 0 when nothing lay behind.
        self.given_until = 0
        # The names of the files that were kept.
        self.kept: list[str] = []

    def passed(self) -> str:
        """Return the names of the files that were kept, "" for none, and forget them: a sound segment follows. It
        proves more than they do, and nothing before it has later offsets."""
        shown, self.kept, self.given_until = str(self), [], 0
        return shown

    def is_unfinished(self, path: str, position: int) -> bool:
        """As the function of this name."""
        return is_unfinished(self._fs, path, position)

    def split(self, base_offset: int, position: int, next_offset: int, bounds: FittingBatches) -> dict[int, int]:
        """Make segments of the sound batches behind the damage at a position, and keep the rest of what is going to be
        cut there. Return the sizes of the segments, by their base offsets."""
        path = f"{self._directory}/{base_offset:020d}{LOG_SUFFIX}"
        runs = find_runs(self._fs, path, position, next_offset, bounds)
        if runs:
            starts = [run.position for run in runs]
            pieces = zip([position, *(run.end_position for run in runs[:-1])], starts, strict=True)
            self.kept.append(keep_pieces(self._fs, path, pieces).rpartition("/")[2])
            return split_off(self._fs, self._directory, base_offset, runs)
        with Mapped(self._fs.open(path), position) as view:
            has_batches = self._look(view, position, next_offset)
        if has_batches:
            self.kept.append(keep_end(self._fs, path, position).rpartition("/")[2])
        return {}

    def set_aside(self, base_offset: int, next_offset: int) -> bool:
        """Set a segment aside behind the log's end, ``next_offset``; False when there is nothing in it."""
        path = f"{self._directory}/{base_offset:020d}{LOG_SUFFIX}"
        with Mapped(self._fs.open(path)) as view:
            self._look(view, 0, max(base_offset, next_offset))
            if ANYTHING.search(view) is None:
                return False
        self.kept.append(set_segment_aside(self._fs, self._directory, base_offset).rpartition("/")[2])
        return True

    def _look(self, view: memoryview, position: int, next_offset: int) -> bool:
        """Return whether there are, or may be, whole batches from ``position`` on, and note what they prove."""
        sound, is_complete = sound_batches(view, position, next_offset)
        other_bytes = len(view) - position - sum(header.size_bytes for header in sound)
        if sound:
            end = sound[-1].next_offset
            missing = end - next_offset - sum(header.next_offset - header.base_offset for header in sound)
            if may_have_held(other_bytes, missing):
                self.given_until = max(self.given_until, end)
        return bool(sound) or not is_complete

    def __str__(self) -> str:
        return first_of(self.kept, _SHOWN, "files")
