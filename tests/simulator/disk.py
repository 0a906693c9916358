"""A simulated broker's disk that is damaged, answers reads with errors, hangs, and is copied and put back.

What is done to it is on the disk at once, under the hands of a process that has its files open. Faults of reads belong
to a file, not to its name: one that is written anew is sound. Nobody but the broker meets them: what the simulation
itself reads comes from :meth:`Disk.content`.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFile, MemoryFs, _Directory, _Inode, _walk


@dataclass(slots=True)
class ReadFault:
    """What reads of a file meet: EIO, or less than there is. ``times`` None: for ever; ``at``: only there."""

    times: int | None
    is_short: bool = False
    at: int | None = None


class _DiskFile(MemoryFile):
    """An open file of a Disk."""

    _fs: Disk

    def pread(self, length: int, position: int) -> bytes:
        data = super().pread(length, position)
        fault = self._fs.read_faults.get(self._inode.number)
        if fault is None or fault.times == 0 or not data:
            return data
        if fault.at is not None and not position <= fault.at < position + length:
            return data
        if fault.times is not None:
            fault.times -= 1
        if fault.is_short:
            return data[: len(data) // 2]
        raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        self._fs.on_write("pwrite", self.path)
        written = super().pwrite(data, position)
        fault = self._fs.read_faults.get(self._inode.number)
        if fault is not None and fault.at is not None and position <= fault.at < position + written:
            # A disk puts another sector in the place of a bad one when it is written.
            del self._fs.read_faults[self._inode.number]
        return written

    def sync(self) -> None:
        self._fs.on_write("fdatasync", self.path)
        super().sync()


class Disk(MemoryFs):
    """See the module's text."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        # By the number of the file's inode.
        self.read_faults: dict[int, ReadFault] = {}
        # Called before each write of the broker's, with its name and the file's: it may find that the disk hangs.
        self.on_write: Callable[[str, str], None] = lambda name, path: None

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        return _DiskFile(self, path, super().open(path, create=create)._inode)

    def crash(self, mode: CrashMode, chance: random.Random | None = None) -> Disk:
        after = super().crash(mode, chance)
        assert isinstance(after, Disk)
        after.read_faults = {number: fault for number, fault in self.read_faults.items() if fault.times is None}
        return after

    def lose_power(self, chance: random.Random) -> None:
        """Have any of the writes that were not flushed reach the disk; a crash then loses the others."""
        for _, node in [("", self._root), *_walk(self._root, "")]:
            kept = [each for each in node.pending if chance.random() < 0.5]
            node.pending[:] = kept  # type: ignore[assignment]
            node.sync()

    # Files, past all faults -----------------------------------------------------------------------------------------

    def paths(self, part: str) -> list[str]:
        """Return the files whose path has this in it, in order."""
        found = (path for path, node in _walk(self._root, "") if isinstance(node, _Inode) and part in path)
        return sorted(found)

    def directories(self, below: str) -> list[str]:
        """Return the directories in one, by name; none when it is not there."""
        if not self.exists(below):
            return []
        return sorted(name for name, node in self._directory(below).names.items() if isinstance(node, _Directory))

    def files_in(self, directory: str, ending: str) -> list[str]:
        """Return the names of a directory's files that end so, in order; none when it is not there."""
        if not self.exists(directory):
            return []
        names = self._directory(directory).names
        return sorted(name for name, node in names.items() if name.endswith(ending) and isinstance(node, _Inode))

    def content(self, path: str) -> bytes:
        """Return a file's bytes."""
        return bytes(self._inode(path).content)

    def bad_places(self, path: str) -> list[int]:
        """Return where a file can never be read."""
        fault = self.read_faults.get(self._inode(path).number)
        return [] if fault is None or fault.times is not None or fault.at is None else [fault.at]

    def put(self, path: str, data: bytes) -> None:
        """Have a file be this, on the disk, for those too who have it open. One that is missing is made."""
        if not self.exists(path):
            self.make_directories(path.rpartition("/")[0])
            super().open(path, create=True)
        inode = self._inode(path)
        inode.content[:] = data
        inode.on_disk[:] = data
        inode.pending.clear()

    def take(self, path: str) -> None:
        """Have a file be gone from its directory."""
        parent, name = self._parent(path)
        for names in (parent.names, parent.on_disk):
            names.pop(name, None)

    def fail_reads(self, path: str, fault: ReadFault) -> None:
        """Have reads of a file fail."""
        self.read_faults[self._inode(path).number] = fault

    def copy(self, part: str) -> dict[str, bytes]:
        """Return the files whose path has this in it, as they are now."""
        return {path: self.content(path) for path in self.paths(part)}

    def _inode(self, path: str) -> _Inode:
        node = self._node(path)
        assert isinstance(node, _Inode)
        return node
