"""The operating system's file system, behind the interface of ``fs``."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys
from typing import Final

from spark_kafkalite.log.files.disk_calls import CALLS
from spark_kafkalite.log.files.file_kind import Kind, kind_of_mode, misplaced
from spark_kafkalite.log.files.fs import Entry, Space
from spark_kafkalite.log.files.needs_thread import NotInMemory, patience
from spark_kafkalite.platform_calls import NOWAIT, allocate, lock_whole_file, sync_all, sync_data

_NOWAIT_UNKNOWN: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class OsFile:
    """A descriptor of the operating system's."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def pread(self, length: int, position: int) -> bytes:
        if not patience.waits and NOWAIT:
            data = self._pread_from_memory(length, position)
            if data is not None:
                return data
        data = self._pread(length, position)
        # One system call reads at most 0x7ffff000 bytes and a signal may cut it shorter; both are rare.
        while len(data) < length:
            more = self._pread(length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def _pread(self, length: int, position: int) -> bytes:
        return CALLS.make("pread", self.path, os.pread, self._descriptor, length, position)

    def _pread_from_memory(self, length: int, position: int) -> bytes | None:
        """Return what ``pread`` would, or raise NotInMemory; None where the file system cannot read that way."""
        buffer = bytearray(length)
        try:
            count = os.preadv(self._descriptor, (buffer,), position, NOWAIT)
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
        return CALLS.make("pwrite", self.path, os.pwrite, self._descriptor, data, position)

    def truncate(self, size_bytes: int) -> None:
        CALLS.make("ftruncate", self.path, os.ftruncate, self._descriptor, size_bytes)

    def allocate(self, size_bytes: int) -> None:
        allocate(self._descriptor, 0, size_bytes)

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

    def identity(self) -> str:
        generation = bytearray(8)
        # Numbers of inodes are given again. Where the file system does not tell their generation the number must do.
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._descriptor, _FS_IOC_GETVERSION, generation)
        return f"{os.fstat(self._descriptor).st_ino}.{int.from_bytes(generation, sys.byteorder)}"

    def sync(self) -> None:
        CALLS.make("fdatasync", self.path, sync_data, self._descriptor)

    def start_writeback(self, position: int, length: int) -> None:
        sync_file_range = getattr(_libc(), "sync_file_range", None)
        if sync_file_range is not None:
            place = ctypes.c_int64(position), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE
            CALLS.make("sync_file_range", self.path, lambda: sync_file_range(self._descriptor, *place))

    def __del__(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"OsFile({self.path!r}, descriptor={self._descriptor})"


_SYNC_FILE_RANGE_WRITE = 2
# _IOR('v', 1, long) of linux/fs.h, on machines with 64 bits.
_FS_IOC_GETVERSION = 0x80087601
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


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)


class OsFs:
    """The operating system's file system."""

    calls = CALLS

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        return OsFile(path, CALLS.make("open", path, _open, path, flags))

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
                mode = status.st_mode
                # A log directory has up to hundreds of thousands of files, and hardly anything else.
                kind = Kind.FILE if stat.S_ISREG(mode) else kind_of_mode(mode)
                found.append(Entry(item.name, kind, status.st_size))
        return found

    def modified_ms(self, path: str) -> int:
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1_000_000

    def make_directories(self, path: str) -> bool:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.mkdir(path)
            return True
        is_new = not os.path.lexists(path)
        try:
            os.makedirs(path, exist_ok=True)
            return is_new
        except FileExistsError as error:
            kind = self.kind(path)
            if kind in (None, Kind.DIRECTORY):
                raise  # it is a parent that is no directory
            raise misplaced(path, kind, Kind.DIRECTORY) from error

    def rename(self, source: str, target: str) -> None:
        CALLS.make("rename", target, os.rename, source, target)

    def unlink(self, path: str) -> None:
        CALLS.make("unlink", path, os.unlink, path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        CALLS.make("fsync", path, _sync_directory, path)

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
            lock_whole_file(descriptor)
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
