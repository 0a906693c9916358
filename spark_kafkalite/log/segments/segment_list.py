"""The segments of one log in order: which one holds an offset, which comes next, and how a new one begins.

There is always exactly one active segment, the last. ``_bases`` is the sorted list of first offsets in which a look-up
is a binary search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.segments.segment import Segment


class Segments:
    """Sealed segments and the active one."""

    __slots__ = ("_bases", "_directory", "_files", "_sealed", "active")

    def __init__(self, files: OpenFiles, directory: str, sealed: Iterable[Segment], active: ActiveSegment) -> None:
        self._files = files
        self._directory = directory
        self._sealed = list(sealed)
        self.active = active
        self._bases = [segment.base_offset for segment in self]

    def __iter__(self) -> Iterator[Segment]:
        yield from self._sealed
        yield self.active

    def __len__(self) -> int:
        return len(self._sealed) + 1

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._sealed[0] if self._sealed else self.active

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        size_bytes = self.active.size_bytes
        for segment in self._sealed:
            size_bytes += segment.size_bytes
        return size_bytes

    def sizes(self) -> dict[int, int]:
        """Return the bytes of each segment by its base offset."""
        return {segment.base_offset: segment.size_bytes for segment in self}

    def floor(self, offset: int) -> Segment:
        """Return the segment whose range holds ``offset``; the first one for offsets before it."""
        active = self.active
        if offset >= active.base_offset:
            return active
        number = bisect_right(self._bases, offset) - 1
        return self._at(max(number, 0))

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment after this one, None for the active one."""
        number = bisect_right(self._bases, segment.base_offset)
        return self._at(number) if number < len(self._bases) else None

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """Yield the segment that holds ``offset`` and all later ones."""
        for number in range(max(bisect_right(self._bases, offset) - 1, 0), len(self._bases)):
            yield self._at(number)

    def sealed_from(self, base_offset: int) -> Iterator[tuple[Segment, Segment]]:
        """Yield the sealed segments from the one that begins at ``base_offset`` on, each with the one after it."""
        for number in range(bisect_left(self._bases, base_offset), len(self._sealed)):
            yield self._sealed[number], self._at(number + 1)

    def backwards(self) -> Iterator[Segment]:
        """Yield the active segment and then the older ones."""
        yield self.active
        yield from reversed(self._sealed)

    def _at(self, number: int) -> Segment:
        return self.active if number == len(self._sealed) else self._sealed[number]

    def roll(self, base_offset: int, created_ms: int) -> Segment:
        """Seal the active segment, begin a new one at ``base_offset``, and return the sealed one. OSError may come out;
        the active segment is then still the old one."""
        sealed = self.active.seal()
        return self._follow(sealed, self._new_active(base_offset, created_ms))

    def go_on_with(self, active: ActiveSegment) -> Segment:
        """As :meth:`roll`, with a segment that has batches already."""
        return self._follow(self.active.seal(), active)

    def _follow(self, sealed: Segment, active: ActiveSegment) -> Segment:
        self._sealed.append(sealed)
        self.active = active
        self._bases.append(active.base_offset)
        return sealed

    def _new_active(self, base_offset: int, created_ms: int) -> ActiveSegment:
        active = ActiveSegment(self._files, self._directory, base_offset, 0, created_ms)
        # Remains of a roll that failed half-way.
        active.cut_back()
        return active

    def truncate(self, offset: int, created_ms: int) -> None:
        """Remove what lies at or after ``offset``, where a batch begins.

        Files go from the last to the first, so that a crash in between leaves a log without a hole.
        """
        number = max(bisect_left(self._bases, offset + 1) - 1, 0)
        for later in reversed(range(number + 1, len(self._bases))):
            self._at(later).remove()
        keep = self._at(number)
        if keep is not self.active:
            self.active = ActiveSegment(
                self._files,
                self._directory,
                keep.base_offset,
                keep.size_bytes,
                created_ms,
                index_entries=keep.offset_index.count,
                time_index_entries=keep.time_index.count,
            )
            self.active.sending = keep.sending
            del self._sealed[number:]
            del self._bases[number + 1 :]
        found = self.active.find(offset)
        if found is not None:
            self.active.truncate(found.position, offset)
        elif keep is not self.active:
            self.active.load_tail()

    def count_below(self, offset: int) -> int:
        """Return how many segments lie wholly below ``offset``, which the next one begins at or before."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def drop_oldest(self, count: int) -> list[Segment]:
        """Take the ``count`` oldest segments out of the list and return them; their files are the caller's to remove.

        The active segment cannot be among them: ``roll`` first.
        """
        if not 0 <= count <= len(self._sealed):
            raise ValueError(f"cannot drop {count} of {len(self._sealed)} sealed segments in {self._directory}")
        dropped = self._sealed[:count]
        del self._sealed[:count]
        del self._bases[:count]
        return dropped

    def replace(self, sources: Sequence[int], segment: Segment) -> list[Segment]:
        """Put a sealed segment in the place of those that begin at the offsets ``sources``, and return these.

        ValueError unless they are sealed segments that follow each other, and the new one begins where they do.
        """
        number = bisect_left(self._bases, segment.base_offset)
        replaced = self._sealed[number : number + len(sources)]
        if [each.base_offset for each in replaced] != list(sources) or sources[0] != segment.base_offset:
            raise ValueError(f"{self._directory}: {list(sources)} are not sealed segments in a row")
        self._sealed[number : number + len(sources)] = [segment]
        self._bases[number : number + len(sources)] = [segment.base_offset]
        return replaced

    def start_anew(self, base_offset: int, created_ms: int) -> None:
        """Remove every segment and begin an empty one at ``base_offset``."""
        for segment in reversed(list(self)):
            segment.remove()
        self._sealed.clear()
        self.active = self._new_active(base_offset, created_ms)
        self._bases = [base_offset]

    def forget_files(self) -> None:
        """Let go of all open files."""
        for segment in self:
            segment.forget_files()
