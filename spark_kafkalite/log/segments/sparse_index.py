"""What the offset index and the time index share: a sorted list of fixed-size entries, mostly on disk.

Entries that came since the file was last written are held in arrays; the others are read from the file when a look-up
needs them, so that an index costs memory only for what is new. ``write`` brings the file up to date; it is called when
a segment rolls, at a clean stop, and when more than ``SPILL_ENTRIES`` are held. Nothing is preallocated or mapped:
a full disk is then an error of a call and not a signal.

An index that cannot be read, or is shorter than it was, is IndexUnreadable: its segment rebuilds it from the log. The
files carry no checksum. After an unclean stop the index of every segment that may have changed is rebuilt from the log,
so a torn index is never read.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import ClassVar

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.directories.disk import FailureKind, kind_of, text_of
from spark_kafkalite.log.files.fs import File, write_whole
from spark_kafkalite.log.files.needs_thread import NeedsThread, NotInMemory
from spark_kafkalite.log.files.open_files import OpenFiles

# 32 KiB of offset index, which is 16 MiB of log or more.
SPILL_ENTRIES = 4096
# How many entries the last step of a look-up reads at once.
_BLOCK_ENTRIES = 16


class IndexUnreadable(CorruptMessage):
    """The file of an index is gone, shorter than it was, or not readable. What it held is in the log, too."""


class _IndexNotInMemory(NeedsThread):
    """Entries of an index are to be read from the disk."""

    def __init__(self, index: SparseIndex, missing: NotInMemory) -> None:
        super().__init__(str(missing))
        self._index = index
        self._missing = missing

    def work(self) -> None:
        try:
            self._missing.work()
        except OSError as error:
            if kind_of(error) is FailureKind.NO_RESOURCES:
                raise
            self._index.cannot_be_read()


class SparseIndex:
    """Pairs (key, value) in ascending order of key; keys and values in the file's own units (relative offsets)."""

    ENTRY: ClassVar[struct.Struct]
    KEY_TYPECODE: ClassVar[str]

    __slots__ = (
        "_changed",
        "_files",
        "_is_unreadable",
        "_keys",
        "_last_stored",
        "_stored",
        "_values",
        "path",
        "spills",
    )

    def __init__(self, files: OpenFiles, path: str, stored_entries: int) -> None:
        self.path = path
        # Whether what is held in memory goes to the file when it is much.
        self.spills = True
        self._files = files
        # Whether a thread has found that the file cannot be read.
        self._is_unreadable = False
        self._stored = stored_entries
        # The last entry of the file, once it was read or written: an append asks for it after its batch is in the log,
        # and must not fail because the file was damaged meanwhile.
        self._last_stored: tuple[int, int] | None = None
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
        key, value = self.ENTRY.unpack(self._read(number, 1))
        return key, value

    def last(self) -> tuple[int, int] | None:
        """Return the last entry, None when there is none."""
        if self._keys:
            return self._keys[-1], self._values[-1]
        if self._last_stored is None and self._stored:
            self._last_stored = self.entry(self._stored - 1)
        return self._last_stored

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
        block = self._read(low, high - low)
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
            self._last_stored = self._keys[-1], self._values[-1]
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
            self._stored, self._last_stored = count, None

    def clear(self) -> None:
        """Drop every entry, also when the file is missing or is not trusted."""
        del self._keys[:]
        del self._values[:]
        self._stored, self._last_stored = 0, None
        self._changed = True

    def _file(self) -> File:
        return self._files.open(self.path)

    def cannot_be_read(self) -> None:
        """Have each look-up fail because the file cannot be read; a thread has found that."""
        self._is_unreadable = True

    def _read(self, number: int, count: int) -> bytes:
        """Return the bytes of entries. Raises IndexUnreadable; OSError for want of descriptors or memory."""
        size = self.ENTRY.size
        if self._is_unreadable:
            raise IndexUnreadable(f"{self.path} cannot be read")
        try:
            data = self._file().pread(count * size, number * size)
        except NotInMemory as missing:
            raise _IndexNotInMemory(self, missing) from None
        except OSError as error:
            if kind_of(error) is FailureKind.NO_RESOURCES:
                raise
            raise IndexUnreadable(f"{self.path} cannot be read: {text_of(error)}") from error
        if len(data) < count * size:
            raise IndexUnreadable(
                f"{self.path} ends at {number * size + len(data)} bytes, it had {self._stored * size}"
            )
        return data
