"""The sparse index from offsets to byte positions of one segment.

File ``<base offset, 20 digits>.index``: entries of 8 bytes, big endian, no header, no checksum:

=====  ===================================================================
bytes  field
=====  ===================================================================
4      last offset of a batch, relative to the segment's base offset
4      position of the first byte of that batch in the ``.log`` file
=====  ===================================================================

An entry is added for a batch when more than ``index.interval.bytes`` were appended since the entry before; the first
batch of a segment needs none. Look up: the last entry at or below the offset, then walk the batches from there.
Source: org.apache.kafka.storage.internals.log.OffsetIndex.
"""

from __future__ import annotations

import struct

from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.sparse_index import SparseIndex


class OffsetIndex(SparseIndex):
    """Last offsets of batches and the positions where those batches start."""

    ENTRY = struct.Struct(">ii")
    KEY_TYPECODE = "i"

    __slots__ = ("_base_offset",)

    def __init__(self, files: OpenFiles, path: str, base_offset: int, stored_entries: int = 0) -> None:
        super().__init__(files, path, stored_entries)
        self._base_offset = base_offset

    def append(self, last_offset: int, position: int) -> None:
        """Add the batch that starts at ``position`` and ends with ``last_offset``."""
        self.add(last_offset - self._base_offset, position)

    def entry_before(self, offset: int) -> tuple[int, int] | None:
        """Return (last offset, position) of the last batch known to end at or before ``offset``; None when none is."""
        entry = self.floor(offset - self._base_offset)
        return (self._base_offset + entry[0], entry[1]) if entry else None

    def entry_within(self, position: int) -> tuple[int, int] | None:
        """Return (last offset, position) of the last batch known to start at or below ``position``."""
        entry = self.floor_by_value(position)
        return (self._base_offset + entry[0], entry[1]) if entry else None

    def last_entry(self) -> tuple[int, int] | None:
        """Return (last offset, position) of the last entry."""
        entry = self.last()
        return (self._base_offset + entry[0], entry[1]) if entry else None

    def truncate_to(self, position: int) -> None:
        """Drop the entries of batches that start at or after ``position``."""
        self.keep(self._floor_number(position - 1, 1) + 1)
