"""What the offset index and the time index share: a sorted list of fixed-size entries, mostly on disk.

Entries that came since the file was last written are held in arrays; the others are read from the file when a look-up
needs them, so that an index costs memory only for what is new. ``write`` brings the file up to date; it is called when
a segment rolls, at a clean stop, and when more than ``SPILL_ENTRIES`` are held. Nothing is preallocated or mapped:
a full disk is then an error of a call and not a signal.

The files carry no checksum. After an unclean stop the index of every segment that may have changed is rebuilt from the
log, so a torn index is never read.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import ClassVar

from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.fs import File, write_whole
from spark_kafkalite.log.files.open_files import OpenFiles

# 32 KiB of offset index, which is 16 MiB of log or more.
SPILL_ENTRIES = 4096
# How many entries the last step of a look-up reads at once.
_BLOCK_ENTRIES = 16


class SparseIndex:
    """Pairs (key, value) in ascending order of key; keys and values in the file's own units (relative offsets)."""

    ENTRY: ClassVar[struct.Struct]
    KEY_TYPECODE: ClassVar[str]

    __slots__ = ("_changed", "_files", "_keys", "_stored", "_values", "path", "spills")

    def __init__(self, files: OpenFiles, path: str, stored_entries: int) -> None:
        self.path = path
        # Whether what is held in memory goes to the file when it is much.
        self.spills = True
        self._files = files
        self._stored = stored_entries
        # Whether the file lacks something, or may be missing.
        self._changed = not stored_entries
        self._keys: array[int] = array(self.KEY_TYPECODE)
        self._values: array[int] = array("i")

    @property
    def count(self) -> int:
        """How many entries there are, on disk and in memory."""
        return self._stored + len(self._keys)

    def entry(self, number: int) -> tuple[int, int]:
        """Return the entry at ``number``, counted from 0."""
        if number >= self._stored:
            return self._keys[number - self._stored], self._values[number - self._stored]
        size = self.ENTRY.size
        key, value = self.ENTRY.unpack(self._file().pread(size, number * size))
        return key, value

    def last(self) -> tuple[int, int] | None:
        """Return the last entry, None when there is none."""
        if self._keys:
            return self._keys[-1], self._values[-1]
        return self.entry(self._stored - 1) if self._stored else None

    def add(self, key: int, value: int) -> None:
        """Append an entry; ``key`` is above the last one's (the caller sees to it)."""
        self._keys.append(key)
        self._values.append(value)
        self._changed = True
        if len(self._keys) > SPILL_ENTRIES and self.spills:
            try:
                self.write()
            except OSError as error:
                # The batch is in the log already; what the file lacks stays in memory until there is room for it.
                if kind_of(error) is FailureKind.BROKEN:
                    raise

    def floor(self, key: int) -> tuple[int, int] | None:
        """Return the last entry whose key is at most ``key``, None when there is none."""
        number = self._floor_number(key, 0)
        return self.entry(number) if number >= 0 else None

    def floor_by_value(self, value: int) -> tuple[int, int] | None:
        """Return the last entry whose value is at most ``value``, None when there is none. Values ascend too."""
        number = self._floor_number(value, 1)
        return self.entry(number) if number >= 0 else None

    def _floor_number(self, wanted: int, column: int) -> int:
        held = self._values if column else self._keys
        if held and held[0] <= wanted:
            return self._stored + bisect_right(held, wanted) - 1
        low, high = 0, self._stored
        # Halve by single entries until one block is left, then read it whole: about ten reads for a 1 GiB segment.
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self.entry(middle)[column] <= wanted:
                low = middle
            else:
                high = middle
        if low == high:
            return -1
        size = self.ENTRY.size
        block = self._file().pread((high - low) * size, low * size)
        column_values = [pair[column] for pair in self.ENTRY.iter_unpack(block)]
        return low + bisect_right(column_values, wanted) - 1

    def write(self) -> bool:
        """Put what is held in memory into the file, which is complete afterwards; return whether it was not."""
        if not self._changed:
            return False
        size = self.ENTRY.size
        file = self._files.open(self.path, create=True)
        if file.size() != self._stored * size:
            file.truncate(self._stored * size)
        if self._keys:
            data = b"".join(map(self.ENTRY.pack, self._keys, self._values))
            write_whole(file, data, self._stored * size)
            self._stored += len(self._keys)
            del self._keys[:]
            del self._values[:]
        self._changed = False
        return True

    def keep(self, count: int) -> None:
        """Drop every entry from number ``count`` on."""
        if count >= self.count:
            return
        held = max(0, count - self._stored)
        del self._keys[held:]
        del self._values[held:]
        if count < self._stored:
            self._file().truncate(count * self.ENTRY.size)
            self._stored = count

    def clear(self) -> None:
        """Drop every entry, also when the file is missing or is not trusted."""
        del self._keys[:]
        del self._values[:]
        self._stored = 0
        self._changed = True

    def _file(self) -> File:
        return self._files.open(self.path)
