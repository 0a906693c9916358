"""Where a segment goes on behind damage: its later batches that are sound, as segments of their own.

The sound batches behind a damaged one are copied to new segments, and the damaged one is cut. What is missing is then a
hole between two segments, which every start finds again. Each byte is copied once; a new file has its bytes and its
name on the disk before the old one is cut, the last one first, so that a crash in between loses nothing.

The values of records may hold whole batches, such as a backup of a log. So a batch counts only where it lies behind the
end of another one:

- The header of the damaged batch has the offset that was expected, and its length leads to a sound batch.
- Otherwise batches are searched for. They count if they follow each other to the end of the segment, or are more than
  any batch can hold: behind what a value holds come other bytes of its batch. Damaged ones may be among them if their
  headers lead on. There must be room for the batches whose offsets are missing before them.

Nothing is searched for behind an append that the end of the process has interrupted: a batch that the file cuts off,
or one that was written ahead, whose header comes last (``write_ahead``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.epochs import MAX_LEADER_EPOCH
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.loading.torn import BatchSearch, Mapped, copy_bytes, may_have_held, sound_header
from spark_kafkalite.log.segments.segment import LOG_SUFFIX
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, BatchHeader

# As many as damaged ranges are kept of a log; what lies behind is set aside.
MOST_RUNS: Final = 64


class SoundRun(NamedTuple):
    """Sound batches of a segment that follow each other, from one position to another."""

    base_offset: int
    position: int
    end_position: int


class FittingBatches(NamedTuple):
    """What batches behind damage must fit.

    ``base_offset``: the segment's; ``until_offset``: where the next one begins. ``leader_epoch``: that of the last
    sound batch; ``epoch_at``: the epoch that the file of leader epochs has for an offset. ``most_batch_bytes``: the
    largest batch (``max.message.bytes``). ``has_gaps``: a cleaner may have left offsets out.
    """

    base_offset: int
    until_offset: int
    leader_epoch: int
    epoch_at: Callable[[int], int]
    most_batch_bytes: int
    has_gaps: bool


def split_off(fs: Fs, directory: str, base_offset: int, runs: list[SoundRun]) -> dict[int, int]:
    """Copy runs of a segment to segments of their own; return the size of each by its base offset. The last one gets
    all that is left of the segment. OSError when the disk fails; segments that were made by then do no harm."""
    source = fs.open(f"{directory}/{base_offset:020d}{LOG_SUFFIX}")
    sizes: dict[int, int] = {}
    for run in reversed(runs):
        path = f"{directory}/{run.base_offset:020d}{LOG_SUFFIX}"
        file = fs.open(path + ".tmp", create=True)
        file.truncate(0)
        sizes[run.base_offset] = copy_bytes(source, run.position, run.end_position, file, 0)
        file.sync()
        fs.rename(path + ".tmp", path)
        fs.sync_directory(directory)
    return dict(sorted(sizes.items()))


def find_runs(fs: Fs, path: str, position: int, next_offset: int, bounds: FittingBatches) -> list[SoundRun]:
    """Return where a segment goes on behind the damage at ``position``, where ``next_offset`` was expected. The last
    run reaches to the end of the file, whatever lies there. Empty when nothing that is sound follows."""
    with Mapped(fs.open(path), position) as view:
        runs = _Finder(view, bounds).runs(position, next_offset)
        return [*runs[:-1], runs[-1]._replace(end_position=len(view))] if runs else runs


class _Finder:
    """Looks through one segment."""

    def __init__(self, view: memoryview, bounds: FittingBatches) -> None:
        self._view = view
        self._bounds = bounds
        self._leader_epoch = bounds.leader_epoch

    def runs(self, position: int, next_offset: int) -> list[SoundRun]:
        found: list[SoundRun] = []
        search = BatchSearch(self._view, position, next_offset)
        while len(found) < MOST_RUNS and not self._is_interrupted(position, next_offset):
            start = self._start_behind(search, position, next_offset)
            if start is None:
                break
            run, next_offset = self._run(*start)
            found.append(run)
            position = run.end_position
        return found

    def _start_behind(self, search: BatchSearch, position: int, next_offset: int) -> tuple[int, BatchHeader] | None:
        """Return the first sound batch behind damage, as far as one is certain."""
        first, expected = position, next_offset
        # By the lengths in the headers of damaged batches, as far as they lead.
        while (header := self._damaged(position, expected)) is not None:
            position, expected = position + header.size_bytes, header.next_offset
            following = self._sound(position, next_offset + 1)
            if following is not None:
                fits = following.base_offset == expected or self._bounds.has_gaps
                # Its last offset may be what is damaged.
                fits = fits or may_have_held(position - first, following.base_offset - next_offset)
                return (position, following) if fits else None
        # No value of theirs is searched.
        position += position == first
        while (found := search.find(position, next_offset + 1)) is not None:
            position, header = found
            if self._sound(position, next_offset + 1) is None:
                position += header.size_bytes
                continue
            end_position = self._end_of_chain(position, header.base_offset)
            is_of_no_value = end_position == len(self._view) or end_position - position > self._bounds.most_batch_bytes
            if is_of_no_value and may_have_held(position - first, header.base_offset - next_offset):
                return position, header
            position = end_position
        return None

    def _damaged(self, position: int, expected: int) -> BatchHeader | None:
        """Return the header of a damaged batch with the offset that was expected, else None."""
        if position >= len(self._view):
            return None
        try:
            header = kernel.read_header(self._view, position)
        except CorruptMessage:
            return None
        is_expected = header.base_offset == expected or (self._bounds.has_gaps and header.base_offset > expected)
        return header if is_expected and header.last_offset_delta >= 0 and not self._is_beyond(header) else None

    def _run(self, position: int, header: BatchHeader) -> tuple[SoundRun, int]:
        """Return the batches that follow each other from a sound one on, and the offset behind them."""
        start = position
        following: BatchHeader | None = header
        while following is not None:
            self._leader_epoch = following.partition_leader_epoch
            position, next_offset = position + following.size_bytes, following.next_offset
            following = self._sound(position, next_offset)
            if following is not None and following.base_offset > next_offset and not self._bounds.has_gaps:
                following = None
        return SoundRun(header.base_offset, start, position), next_offset

    def _sound(self, position: int, least_offset: int) -> BatchHeader | None:
        """Return the header of the batch at a place, None unless it is sound and fits here."""
        if position >= len(self._view):
            return None
        try:
            header = sound_header(self._view, position)
        except CorruptMessage:
            return None
        epoch = header.partition_leader_epoch
        if header.base_offset < least_offset or self._is_beyond(header):
            return None
        least_epoch = max(self._leader_epoch, self._bounds.epoch_at(header.base_offset))
        return header if least_epoch <= epoch <= MAX_LEADER_EPOCH else None

    def _is_beyond(self, header: BatchHeader) -> bool:
        bounds = self._bounds
        return header.last_offset >= bounds.until_offset or header.last_offset - bounds.base_offset > MAX_INT32

    def _end_of_chain(self, position: int, next_offset: int) -> int:
        """Return where batches end that follow each other, sound ones and damaged ones whose headers lead on."""
        epoch = self._leader_epoch
        while position < len(self._view):
            if self._sound(position, next_offset) is not None:
                run, next_offset = self._run(position, kernel.read_header(self._view, position))
                position = run.end_position
            elif (header := self._damaged(position, next_offset)) is not None:
                position, next_offset = position + header.size_bytes, header.next_offset
            else:
                break
        self._leader_epoch = epoch
        return min(position, len(self._view))

    def _is_interrupted(self, position: int, next_offset: int) -> bool:
        """Return whether an append was interrupted here: the file ends in the batch, or has all of it except its
        header."""
        view = self._view
        left_bytes = len(view) - position
        if left_bytes <= HEADER_BYTES:
            return True
        if not any(view[position : position + HEADER_BYTES]):
            return view[position + HEADER_BYTES] != 0
        try:
            header = kernel.read_header(view, position)
        except CorruptMessage:
            return False
        return header.base_offset == next_offset and header.size_bytes > left_bytes
