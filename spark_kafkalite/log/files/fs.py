"""The file system as the log uses it: a protocol, and the operating system's implementation.

Owns the few operations that a log needs, so that tests can put an in-memory file system with faults underneath
(``testing.memory_fs``; both pass ``testing.contracts``). Paths are text. Failures are OSError with an errno.

Two habits that the rest of the log relies on:

* A :class:`File` is positional: there is no file pointer to share, so one file serves any number of readers.
* A file is closed when its last holder lets go of it. A queued answer holds the file that it will be sent from; the
  segment may be removed or the log closed meanwhile, and the descriptor still cannot be reused under the answer's feet.

A read waits for the disk when its bytes are not in the page cache. Who may not wait (the broker's loop) reads inside
:func:`without_waiting`: what is not in memory raises NotInMemory then, whose ``load`` another thread calls.

Only regular files are opened, and nothing waits for the other end of a pipe: a name that should be a file's or a
directory's and is of another kind is an error whose text says so, and what to do (``file_kind``).

What survives a power loss: the bytes of a file after ``sync``, the names in a directory after ``sync_directory``.
Nothing else does, in no order.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import threading
from typing import Final, NamedTuple, Protocol

from spark_kafkalite.log.files.file_kind import Kind, kind_of_mode, misplaced

# What a miss reads besides: one window of the kernel's own reading ahead, and small files (indexes) to their end, since
# a look-up in them goes to and fro.
_WINDOW_BYTES: Final = 128 * 1024
_READ_WHOLE_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_NOWAIT_UNKNOWN: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Entry(NamedTuple):
    """One name in a directory. ``size_bytes`` is 0 for directories. A symbolic link is no directory, whatever it is a
    link to."""

    name: str
    kind: Kind
    size_bytes: int

    @property
    def is_directory(self) -> bool:
        return self.kind is Kind.DIRECTORY


class Space(NamedTuple):
    """A file system's room, as far as this process may use it."""

    free_bytes: int
    total_bytes: int


class File(Protocol):
    """An open file, for reading and writing at positions."""

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """Return the descriptor, for ``sendfile``."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes from ``position``; fewer only at the end of the file.

        May raise NotInMemory inside ``without_waiting``.
        """
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at ``position`` and return how many bytes were written; fewer than given only when the disk is full."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros."""
        ...

    def allocate(self, size_bytes: int) -> None:
        """Make the file at least this long, in blocks that are its own: OSError ENOSPC when there are not enough."""
        ...

    def reserve(self, size_bytes: int) -> None:
        """Set blocks aside for the file to grow to this size; its length stays what it is. OSError ENOSPC when there
        are not enough. File systems that cannot do this do nothing."""
        ...

    def release_reserve(self) -> None:
        """Give back blocks beyond the end of the file."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def sync(self) -> None:
        """Return once the bytes and the length are on the disk. After a failure never call it again: the kernel has
        already marked the pages clean, so a second call would succeed although the data is lost."""
        ...

    def start_writeback(self, position: int, length: int) -> None:
        """Ask the kernel to begin writing a range; returns at once, promises nothing."""
        ...


class Lock(Protocol):
    """A held lock file."""

    def release(self) -> None: ...


class Fs(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing. FileNotFoundError otherwise.

        A symbolic link is not followed: OSError ELOOP. (Those on the way to the file are.) EISDIR for a directory,
        ESPIPE for what else is no regular file; see ``misplaced``.
        """
        ...

    def kind(self, path: str) -> Kind | None:
        """Return what stands under this name, None for nothing."""
        ...

    def exists(self, path: str) -> bool: ...

    def entries(self, path: str) -> list[Entry]:
        """Return what a directory holds, in no particular order."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when the file was last written, in milliseconds since the epoch."""
        ...

    def make_directories(self, path: str) -> None:
        """Make a directory and its parents; those that exist are fine. OSError EEXIST for what is no directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing an existing file."""
        ...

    def unlink(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are on the disk."""
        ...

    def sync_everything(self, path: str) -> None:
        """Return once everything on the file system that holds ``path`` is on the disk."""
        ...

    def space(self, path: str) -> Space:
        """Return the room of the file system that holds ``path``."""
        ...

    def same_file_system(self, one: str, other: str) -> bool:
        """Return whether two paths lie on the same file system and so share its room."""
        ...

    def lock(self, path: str) -> Lock | None:
        """Take an exclusive lock on a file, made when missing; None when another process holds it."""
        ...


class NotInMemory(Exception):
    """A read without waiting found that it would have to wait. Not an OSError: nothing has failed.

    ``window_bytes``: how much ``load`` reads at least. ``goes_on``: the same look-up, begun anew, will get further.
    """

    window_bytes = _WINDOW_BYTES
    goes_on = False

    def __init__(self, file: File, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at {position} of {file.path} are not in memory")
        self._file = file
        self._position = position
        self._length = length

    def load(self) -> None:
        """Read the bytes, and some around them, so that they are in memory; for a thread that may wait."""
        position, end = self._position, self._position + max(self._length, self.window_bytes)
        size_bytes = self._file.size()
        if size_bytes <= _READ_WHOLE_BYTES:
            position, end = 0, size_bytes
        while position < end:
            count = len(self._file.pread(min(end - position, _PIECE_BYTES), position))
            if not count:
                break
            position += count


class _Patience(threading.local):
    """Whether reads of this thread may wait for the disk."""

    waits = True


_patience = _Patience()


class _WithoutWaiting:
    """The one context manager that ``without_waiting`` gives; a generator would cost a fetch ten times as much."""

    __slots__ = ()

    def __enter__(self) -> None:
        _patience.waits = False

    def __exit__(self, *_: object) -> None:
        _patience.waits = True


_without_waiting = _WithoutWaiting()


def may_wait() -> bool:
    """Return whether reads of this thread may wait for the disk."""
    return _patience.waits


def without_waiting() -> _WithoutWaiting:
    """Have reads of this thread raise NotInMemory instead of waiting for the disk, until the ``with`` ends."""
    return _without_waiting


class OsFile:
    """A descriptor of the operating system's."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def pread(self, length: int, position: int) -> bytes:
        if not _patience.waits and _NOWAIT:
            data = self._pread_from_memory(length, position)
            if data is not None:
                return data
        data = os.pread(self._descriptor, length, position)
        # One system call reads at most 0x7ffff000 bytes and a signal may cut it shorter; both are rare.
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def _pread_from_memory(self, length: int, position: int) -> bytes | None:
        """Return what ``pread`` would, or raise NotInMemory; None where the file system cannot tell."""
        buffer = bytearray(length)
        try:
            count = os.preadv(self._descriptor, (buffer,), position, _NOWAIT)
        except BlockingIOError:
            raise NotInMemory(self, position, length) from None
        except OSError as error:
            if error.errno in _NOWAIT_UNKNOWN:
                return None
            raise
        if count < length and position + count < self.size():
            raise NotInMemory(self, position, length)
        return bytes(memoryview(buffer)[:count])

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def allocate(self, size_bytes: int) -> None:
        os.posix_fallocate(self._descriptor, 0, size_bytes)

    def reserve(self, size_bytes: int) -> None:
        fallocate = getattr(_libc(), "fallocate64", None)
        if fallocate is None:
            return
        size = ctypes.c_int64(size_bytes)
        if fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), size):
            number = ctypes.get_errno()
            if number not in _CANNOT_RESERVE:
                raise OSError(number, os.strerror(number), self.path)

    def release_reserve(self) -> None:
        status = os.fstat(self._descriptor)
        if status.st_blocks * _STAT_BLOCK_BYTES >= status.st_size + status.st_blksize:
            # Cutting a file at its end frees what lies behind it.
            os.ftruncate(self._descriptor, status.st_size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def start_writeback(self, position: int, length: int) -> None:
        sync_file_range = getattr(_libc(), "sync_file_range", None)
        if sync_file_range is not None:
            sync_file_range(self._descriptor, ctypes.c_int64(position), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)

    def __del__(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"OsFile({self.path!r}, descriptor={self._descriptor})"


_SYNC_FILE_RANGE_WRITE = 2
_FALLOC_FL_KEEP_SIZE = 1
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_STAT_BLOCK_BYTES = 512
_loaded_libc: ctypes.CDLL | None = None


def _libc() -> ctypes.CDLL:
    global _loaded_libc
    if _loaded_libc is None:
        _loaded_libc = ctypes.CDLL(None, use_errno=True)
    return _loaded_libc


class OsLock:
    """An advisory lock that the kernel drops when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsFs:
    """The operating system's file system."""

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        return OsFile(path, _open(path, flags))

    def kind(self, path: str) -> Kind | None:
        try:
            return kind_of_mode(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def entries(self, path: str) -> list[Entry]:
        found = []
        with os.scandir(path) as listing:
            for item in listing:
                if item.is_dir(follow_symlinks=False):
                    found.append(Entry(item.name, Kind.DIRECTORY, 0))
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found.append(Entry(item.name, kind_of_mode(status.st_mode), status.st_size))
        return found

    def modified_ms(self, path: str) -> int:
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1_000_000

    def make_directories(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError as error:
            kind = self.kind(path)
            if kind in (None, Kind.DIRECTORY):
                raise  # it is a parent that is no directory
            raise misplaced(path, kind, Kind.DIRECTORY) from error

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_everything(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syncfs = getattr(_libc(), "syncfs", None)
            if syncfs is None:
                os.sync()
            elif syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def same_file_system(self, one: str, other: str) -> bool:
        return os.stat(one).st_dev == os.stat(other).st_dev

    def lock(self, path: str) -> OsLock | None:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # What Java takes, and so Apache Kafka in its directories; it excludes other processes only.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        return OsLock(descriptor)


def _open(path: str, flags: int) -> int:
    """Open a regular file. ``misplaced`` for what is none; nothing waits for the other end of a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            raise
        raise misplaced(path, kind_of_mode(os.lstat(path).st_mode)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise misplaced(path, kind_of_mode(mode))


def read_whole(fs: Fs, path: str) -> bytes:
    """Return a small file's bytes."""
    file = fs.open(path)
    return file.pread(file.size(), 0)


def write_whole(file: File, data: bytes | bytearray | memoryview, position: int = 0) -> None:
    """Write all of ``data`` at ``position``; a short write is OSError ENOSPC."""
    written = file.pwrite(data, position)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"wrote {written} of {len(data)} bytes", file.path)


def replace_file(fs: Fs, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a file's content by way of ``path.tmp`` and a rename: readers and crashes see the old bytes or the new.

    With ``sync`` the new bytes are on the disk when this returns. Without it a power loss may leave the file empty.
    """
    temporary = path + ".tmp"
    if fs.kind(temporary) not in (None, Kind.FILE, Kind.DIRECTORY):
        fs.unlink(temporary)
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        write_whole(file, data)
        if sync:
            file.sync()
        fs.rename(temporary, path)
    except OSError as error:
        # On a full disk it would keep the room that the next attempt needs.
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        if error.errno == errno.EISDIR:
            raise misplaced(path, Kind.DIRECTORY) from error
        raise
    if sync:
        fs.sync_directory(path.rpartition("/")[0] or ".")


def remove_tree(fs: Fs, path: str) -> None:
    """Remove a directory and all it holds; of a symbolic link, and of those in it, the link."""
    if fs.kind(path) is Kind.LINK:
        fs.unlink(path)
        return
    for entry in fs.entries(path):
        child = f"{path}/{entry.name}"
        if entry.is_directory:
            remove_tree(fs, child)
        else:
            fs.unlink(child)
    fs.remove_directory(path)
