"""A file system in memory for tests: it loses unsynced data in a crash, fills up, and fails where a test asks for it.

It has the interface of ``log.files.os_fs.OsFs``, and both pass the same tests. Tests use it to check how a log reacts
to disk failures.

Each file has two contents: the one that readers see, and the one on the disk. It also keeps the writes between the two.
Each directory keeps its names in the same way. ``sync`` applies a file's writes to the disk, ``sync_directory`` applies
a directory's changes of names. ``crash`` returns the file system as the next start would find it:

==============  =====================================================================================================
CrashMode       what is left
==============  =====================================================================================================
PROCESS         all written data: only the process died
POWER           only synced data; a file is empty if its name was synced and its bytes never were
POWER_TORN      synced data and a part of the rest. Of each file the first writes remain, up to a random one that is
                cut anywhere, sometimes with zeros or garbage up to the length. Of each directory a random
                subset of the changes remains
==============  =====================================================================================================

The file system counts its changing operations. After ``stop_at(n)`` the n-th one and all later ones fail with
SimulatedCrash; if the n-th one is a write, half of it is done. SimulatedCrash is a BaseException, so no handler of
errors catches it. ``fail`` makes chosen operations raise an OSError. ``capacity_bytes`` limits the space for writes.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from spark_kafkalite.log.files.disk_calls import DiskCalls
from spark_kafkalite.log.files.file_kind import Kind, misplaced
from spark_kafkalite.log.files.fs import Entry, Space

# The space that a file system without capacity_bytes reports.
_ENDLESS_BYTES = 1 << 50


class SimulatedCrash(BaseException):
    """The process ends here."""


class CrashMode(Enum):
    """What a crash leaves; see the module."""

    PROCESS = "process"
    POWER = "power"
    POWER_TORN = "power torn"


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


@dataclass(slots=True)
class _Cut:
    size_bytes: int

    def apply(self, content: bytearray) -> None:
        del content[self.size_bytes :]
        content.extend(bytes(self.size_bytes - len(content)))


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    on_disk: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Cut] = field(default_factory=list)
    modified_ms: int = 0
    number: int = 0

    def change(self, operation: _Write | _Cut) -> None:
        operation.apply(self.content)
        self.pending.append(operation)

    def sync(self) -> None:
        for operation in self.pending:
            operation.apply(self.on_disk)
        self.pending.clear()


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, _Inode | _Directory] = field(default_factory=dict)
    on_disk: dict[str, _Inode | _Directory] = field(default_factory=dict)
    # Each change is the names it takes away and those it gives; a rename does both at once.
    pending: list[tuple[tuple[str, ...], dict[str, _Inode | _Directory]]] = field(default_factory=list)

    def change(self, removed: tuple[str, ...], added: dict[str, _Inode | _Directory]) -> None:
        _rename(self.names, removed, added)
        self.pending.append((removed, added))

    def sync(self) -> None:
        for removed, added in self.pending:
            _rename(self.on_disk, removed, added)
        self.pending.clear()


def _rename(
    names: dict[str, _Inode | _Directory], removed: tuple[str, ...], added: dict[str, _Inode | _Directory]
) -> None:
    for name in removed:
        names.pop(name, None)
    names.update(added)


@dataclass(slots=True)
class _Fault:
    operation: str
    path_part: str
    error: int
    skip: int
    times: int
    written: int | None


class MemoryFile:
    """A file of a MemoryFs."""

    def __init__(self, fs: MemoryFs, path: str, inode: _Inode) -> None:
        self._fs = fs
        self.path = path
        self._inode = inode

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a file in memory has no descriptor", self.path)

    def pread(self, length: int, position: int) -> bytes:
        self._fs._check("pread", self.path)
        return bytes(self._inode.content[position : position + length])

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        piece = bytes(data)
        room = self._fs._room()
        limit = len(piece)
        if room is not None:
            limit = min(limit, max(0, len(self._inode.content) - position) + room)
        try:
            written = self._fs._before("pwrite", self.path)
        except SimulatedCrash:
            if self._fs.stopped_in_this_operation:
                self._inode.change(_Write(position, piece[: limit // 2]))
            raise
        if written is not None:
            limit = min(limit, written)
        if limit == 0 and piece:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._inode.change(_Write(position, piece[:limit]))
        self._fs._touch(self._inode)
        return limit

    def truncate(self, size_bytes: int) -> None:
        self._fs._before("truncate", self.path)
        self._inode.change(_Cut(size_bytes))
        self._fs._touch(self._inode)

    def allocate(self, size_bytes: int) -> None:
        room = self._fs._room()
        missing = size_bytes - len(self._inode.content)
        self._fs._before("allocate", self.path)
        if room is not None and missing > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if missing > 0:
            self.truncate(size_bytes)

    def reserve(self, size_bytes: int) -> None:
        room = self._fs._room()
        if room is not None and size_bytes - len(self._inode.content) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def release_reserve(self) -> None:
        pass

    def size(self) -> int:
        return len(self._inode.content)

    def identity(self) -> str:
        return str(self._inode.number)

    def sync(self) -> None:
        try:
            self._fs._before("sync", self.path)
        except OSError:
            # As Linux: the pages that could not be written count as clean from now on.
            self._inode.pending.clear()
            raise
        self._inode.sync()

    def start_writeback(self, position: int, length: int) -> None:
        pass

    def __repr__(self) -> str:
        return f"MemoryFile({self.path!r}, size={self.size()})"


class MemoryLock:
    """A lock in memory."""

    def __init__(self, fs: MemoryFs, path: str) -> None:
        self._fs = fs
        self._path = path

    def release(self) -> None:
        self._fs._locked.discard(self._path)


class MemoryFs:
    """A file system in memory. Its root directory exists."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        # How many bytes all files together may hold; None is no limit. May be changed at any time.
        self.capacity_bytes = capacity_bytes
        # How many changing operations have been asked for.
        self.operations = 0
        # Nothing waits here.
        self.calls = DiskCalls()
        self._root = _Directory()
        self._inodes = 0
        self._stop_at: int | None = None
        self._faults: list[_Fault] = []
        self._locked: set[str] = set()
        self._now_ms = 1_700_000_000_000

    # What tests use -------------------------------------------------------------------------------------------------

    def stop_at(self, operation_number: int) -> None:
        """Crash in the changing operation with this number, counted from 1 over the file system's life."""
        self._stop_at = operation_number

    @property
    def stopped_in_this_operation(self) -> bool:
        """Whether the latest operation is the one to crash in, and not one after it."""
        return self.operations == self._stop_at

    def fail(
        self,
        operation: str,
        error: int = errno.EIO,
        *,
        path_part: str = "",
        skip: int = 0,
        times: int = 1,
        written: int | None = None,
    ) -> None:
        """Let ``times`` calls of ``operation`` fail (a method's name), after ``skip`` that succeed.

        Only calls on paths that contain ``path_part`` count. ``written`` makes ``pwrite`` short instead of failing.
        """
        self._faults.append(_Fault(operation, path_part, error, skip, times, written))

    def crash(self, mode: CrashMode, chance: random.Random | None = None) -> MemoryFs:
        """Return what the next start finds; this file system stays as it is."""
        if mode is CrashMode.POWER_TORN and chance is None:
            raise ValueError("POWER_TORN needs a source of chance")
        after = type(self)(capacity_bytes=self.capacity_bytes)
        after._inodes = self._inodes
        known: dict[int, _Inode | _Directory] = {}
        after._root = _left_directory(self._root, mode, chance or random.Random(0), known)
        return after

    def files(self) -> dict[str, bytes]:
        """Return every file's path and content."""
        return {path: bytes(node.content) for path, node in _walk(self._root, "") if isinstance(node, _Inode)}

    # The file system ------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self._check("open", path)
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if node is None:
            if not create:
                raise _os_error(errno.ENOENT, path)
            self._before("create", path)
            self._inodes += 1
            node = _Inode(modified_ms=self._now_ms, number=self._inodes)
            parent.change((), {name: node})
        if isinstance(node, _Directory):
            raise misplaced(path, Kind.DIRECTORY)
        return MemoryFile(self, path, node)

    def kind(self, path: str) -> Kind | None:
        try:
            return _kind(self._node(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def entries(self, path: str) -> list[Entry]:
        self._check("entries", path)
        return [
            Entry(name, _kind(node), 0 if isinstance(node, _Directory) else len(node.content))
            for name, node in self._directory(path).names.items()
        ]

    def modified_ms(self, path: str) -> int:
        node = self._node(path)
        return node.modified_ms if isinstance(node, _Inode) else 0

    def make_directories(self, path: str) -> bool:
        directory = self._root
        is_new = False
        for name in _parts(path):
            node = directory.names.get(name)
            is_new = node is None
            if node is None:
                self._before("make_directories", path)
                node = _Directory()
                directory.change((), {name: node})
            if not isinstance(node, _Directory):
                raise misplaced(path, Kind.FILE, Kind.DIRECTORY)
            directory = node
        return is_new

    def rename(self, source: str, target: str) -> None:
        from_directory, from_name = self._parent(source)
        to_directory, to_name = self._parent(target)
        node = from_directory.names.get(from_name)
        if node is None:
            raise _os_error(errno.ENOENT, source)
        replaced = to_directory.names.get(to_name)
        if isinstance(replaced, _Directory):
            if isinstance(node, _Inode):
                raise _os_error(errno.EISDIR, target)
            if replaced.names:
                raise _os_error(errno.ENOTEMPTY, target)
        elif replaced is not None and isinstance(node, _Directory):
            raise _os_error(errno.ENOTDIR, target)
        self._before("rename", target)
        if from_directory is to_directory:
            from_directory.change((from_name,), {to_name: node})
        else:
            to_directory.change((), {to_name: node})
            from_directory.change((from_name,), {})

    def unlink(self, path: str) -> None:
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, _Directory):
            raise _os_error(errno.EISDIR, path)
        self._before("unlink", path)
        parent.change((name,), {})

    def remove_directory(self, path: str) -> None:
        directory = self._directory(path)
        if directory.names:
            raise _os_error(errno.ENOTEMPTY, path)
        self._before("remove_directory", path)
        parent, name = self._parent(path)
        parent.change((name,), {})

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._before("sync_directory", path)
        directory.sync()

    def sync_everything(self, path: str) -> None:
        self._node(path)
        self._before("sync_everything", path)
        self._root.sync()
        for _, node in _walk(self._root, ""):
            node.sync()

    def space(self, path: str) -> Space:
        self._node(path)
        room = self._room()
        if room is None:
            return Space(_ENDLESS_BYTES, _ENDLESS_BYTES)
        return Space(room, self.capacity_bytes or 0)

    def same_file_system(self, one: str, other: str) -> bool:
        return True

    def lock(self, path: str) -> MemoryLock | None:
        if path in self._locked:
            return None
        self.open(path, create=True)
        self._locked.add(path)
        return MemoryLock(self, path)

    # Inside ---------------------------------------------------------------------------------------------------------

    def _before(self, operation: str, path: str) -> int | None:
        """Count a changing operation, crash or fail in it; return how much of a write may happen, None for all."""
        self.operations += 1
        if self._stop_at is not None and self.operations >= self._stop_at:
            raise SimulatedCrash(f"operation {self.operations}: {operation} of {path}")
        return self._check(operation, path)

    def _check(self, operation: str, path: str) -> int | None:
        for fault in self._faults:
            if fault.operation != operation or fault.path_part not in path or fault.times <= 0:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.written is not None:
                return fault.written
            raise _os_error(fault.error, path)
        return None

    def _room(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        used = sum(len(node.content) for _, node in _walk(self._root, "") if isinstance(node, _Inode))
        return max(0, self.capacity_bytes - used)

    def _touch(self, inode: _Inode) -> None:
        self._now_ms += 1
        inode.modified_ms = self._now_ms

    def _node(self, path: str) -> _Inode | _Directory:
        node: _Inode | _Directory = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory):
                raise _os_error(errno.ENOTDIR, path)
            if name not in node.names:
                raise _os_error(errno.ENOENT, path)
            node = node.names[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parts = _parts(path)
        return self._directory("/".join(parts[:-1])), parts[-1]


def _kind(node: _Inode | _Directory) -> Kind:
    return Kind.DIRECTORY if isinstance(node, _Directory) else Kind.FILE


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _walk(directory: _Directory, prefix: str) -> Iterator[tuple[str, _Inode | _Directory]]:
    for name, node in directory.names.items():
        yield f"{prefix}/{name}", node
        if isinstance(node, _Directory):
            yield from _walk(node, f"{prefix}/{name}")


def _left_directory(
    directory: _Directory, mode: CrashMode, chance: random.Random, known: dict[int, _Inode | _Directory]
) -> _Directory:
    names = dict(directory.names) if mode is CrashMode.PROCESS else dict(directory.on_disk)
    if mode is CrashMode.POWER_TORN:
        for removed, added in directory.pending:
            if chance.random() < 0.5:
                _rename(names, removed, added)
    left = _Directory()
    for name, node in names.items():
        if id(node) not in known:
            if isinstance(node, _Directory):
                known[id(node)] = _left_directory(node, mode, chance, known)
            else:
                known[id(node)] = _left_file(node, mode, chance)
        left.names[name] = known[id(node)]
    left.on_disk = dict(left.names)
    return left


def _left_file(inode: _Inode, mode: CrashMode, chance: random.Random) -> _Inode:
    if mode is CrashMode.PROCESS:
        content = bytearray(inode.content)
    else:
        content = bytearray(inode.on_disk)
        if mode is CrashMode.POWER_TORN and inode.pending:
            whole = chance.randrange(len(inode.pending) + 1)
            for operation in inode.pending[:whole]:
                operation.apply(content)
            if whole < len(inode.pending):
                torn = inode.pending[whole]
                if isinstance(torn, _Write):
                    _Write(torn.position, torn.data[: chance.randrange(len(torn.data) + 1)]).apply(content)
            missing = len(inode.content) - len(content)
            if missing > 0:
                kind = chance.randrange(4)
                if kind == 0:
                    content.extend(bytes(missing))
                elif kind == 1:
                    content.extend(chance.randbytes(missing))
    return _Inode(content, bytearray(content), [], inode.modified_ms, inode.number)
