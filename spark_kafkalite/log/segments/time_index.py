"""The sparse index from timestamps to offsets of one segment.

File ``<base offset, 20 digits>.timeindex``: entries of 12 bytes, big endian, no header, no checksum:

=====  =======================================================================================
bytes  field
=====  =======================================================================================
8      the largest timestamp in the segment so far, in milliseconds
4      last offset of the first batch that reached it, relative to the segment's base offset
=====  =======================================================================================

Both columns ascend; timestamps strictly, whatever the times of records do: a producer's, or those of a clock that was
set back. Everything before the batch that an entry names is older than the entry or as old. An entry is added together
with one of the offset index when the largest timestamp has grown, and a last one when the segment rolls or is closed,
so that a sealed segment's largest timestamp is its last entry.
Source: org.apache.kafka.storage.internals.log.TimeIndex.
"""

from __future__ import annotations

import struct

from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.sparse_index import SparseIndex


class TimeIndex(SparseIndex):
    """Largest timestamps so far and the offsets that reached them."""

    ENTRY = struct.Struct(">qi")
    KEY_TYPECODE = "q"

    __slots__ = ("_base_offset",)

    def __init__(self, files: OpenFiles, path: str, base_offset: int, stored_entries: int = 0) -> None:
        super().__init__(files, path, stored_entries)
        self._base_offset = base_offset

    def maybe_append(self, max_timestamp: int, offset: int) -> bool:
        """Add an entry unless the largest timestamp has not grown since the last one."""
        if max_timestamp < 0:
            return False
        last = self.last()
        if last is not None and (max_timestamp <= last[0] or offset - self._base_offset <= last[1]):
            return False
        self.add(max_timestamp, offset - self._base_offset)
        return True

    def entry_before(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry older than ``timestamp_ms``: no record before the offset is at
        or after it. None when there is no such entry."""
        entry = self.floor(timestamp_ms - 1)
        return (entry[0], self._base_offset + entry[1]) if entry else None

    def entry_below(self, offset: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry with an offset below ``offset``; None when there is none."""
        entry = self.floor_by_value(offset - 1 - self._base_offset)
        return (entry[0], self._base_offset + entry[1]) if entry else None

    def last_entry(self) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry."""
        entry = self.last()
        return (entry[0], self._base_offset + entry[1]) if entry else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of offsets at or after ``offset``."""
        self.keep(self._floor_number(offset - 1 - self._base_offset, 1) + 1)
