"""The file system as the log uses it: the interface, and reads and writes of small files through it.

Owns the few operations that a log needs, so that tests can put an in-memory file system with faults
(``testing.memory_fs``) in the place of the operating system's (``os_fs``); both pass the same tests. Paths are text.
Failures are OSError with an errno.

Two habits that the rest of the log relies on:

* A :class:`File` is positional: there is no file pointer to share, so one file serves any number of readers.
* A file is closed when its last holder lets go of it. A queued answer holds the file that it will be sent from; the
  segment may be removed or the log closed meanwhile, and the descriptor still cannot be reused under the answer's feet.

A read waits for the disk when its bytes are not in the page cache; for callers that may not wait see ``needs_thread``.

Only regular files are opened, and nothing waits for the other end of a pipe. If a name should be a file's or a
directory's and is of another kind, the error's text names it and what to do (``file_kind``).

What survives a power loss: the bytes of a file after ``sync``, the names in a directory after ``sync_directory``.
Nothing else does, in no order.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import NamedTuple, Protocol

from spark_kafkalite.log.files.disk_calls import DiskCalls
from spark_kafkalite.log.files.file_kind import Kind, misplaced


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

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes from ``position``; fewer only at the end of the file.

        May raise NeedsThread inside ``needs_thread.without_waiting``.
        """

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at ``position`` and return how many bytes were written; fewer than given only when the disk is full."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros."""

    def allocate(self, size_bytes: int) -> None:
        """Make the file at least this long, in blocks that are its own: OSError ENOSPC when there are not enough."""

    def reserve(self, size_bytes: int) -> None:
        """Set blocks aside for the file to grow to this size; its length stays what it is. OSError ENOSPC when there
        are not enough. File systems that cannot do this do nothing."""

    def release_reserve(self) -> None:
        """Release blocks beyond the end of the file."""

    def size(self) -> int:
        """Return the length in bytes."""

    def identity(self) -> str:
        """Return an identity that a copy of the file does not have. It stays over renames, restarts and changes of
        owner, and a file recreated under the name has another one."""

    def sync(self) -> None:
        """Return once the bytes and the length are on the disk. After a failure never call it again: the kernel has
        already marked the pages clean, so a second call would succeed although the data is lost."""

    def start_writeback(self, position: int, length: int) -> None:
        """Ask the kernel to begin writing a range; returns at once, promises nothing."""


class Lock(Protocol):
    """A held lock file."""

    def release(self) -> None: ...


class Fs(Protocol):
    """A file system. ``calls`` are those of it that wait for the disk."""

    @property
    def calls(self) -> DiskCalls: ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing. FileNotFoundError otherwise.

        A symbolic link is not followed: OSError ELOOP. (Those on the way to the file are.) EISDIR for a directory,
        ESPIPE for what else is no regular file; see ``misplaced``.
        """

    def kind(self, path: str) -> Kind | None:
        """Return what stands under this name, None for nothing."""

    def exists(self, path: str) -> bool: ...

    def entries(self, path: str) -> list[Entry]:
        """Return what a directory holds, in no particular order."""

    def modified_ms(self, path: str) -> int:
        """Return when the file was last written, in milliseconds since the epoch."""

    def make_directories(self, path: str) -> bool:
        """Make a directory and its parents; those that exist are fine. Return whether the directory is a new one.

        OSError EEXIST for what is no directory.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing an existing file."""

    def unlink(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are on the disk."""

    def sync_everything(self, path: str) -> None:
        """Return once everything on the file system that holds ``path`` is on the disk."""

    def space(self, path: str) -> Space:
        """Return the room of the file system that holds ``path``."""

    def same_file_system(self, one: str, other: str) -> bool:
        """Return whether two paths lie on the same file system and so share its room."""

    def lock(self, path: str) -> Lock | None:
        """Take an exclusive lock on a file, made when missing; None when another process holds it."""


def read_whole(fs: Fs, path: str) -> bytes:
    """Return a small file's bytes."""
    file = fs.open(path)
    return file.pread(file.size(), 0)


def write_whole(file: File, data: bytes | bytearray | memoryview, position: int = 0) -> None:
    """Write all of ``data`` at ``position``; a short write is OSError ENOSPC."""
    written = file.pwrite(data, position)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"wrote {written} of {len(data)} bytes", file.path)


def replace_file(fs: Fs, path: str, data: bytes | Callable[[File], bytes], *, sync: bool = True) -> None:
    """Replace a file's content by way of ``path.tmp`` and a rename: readers and crashes see the old bytes or the new.

    A function for ``data`` gets the file, which is a new one. With ``sync`` the new bytes are on the disk when this
    returns. Without it a power loss may leave the file empty.
    """
    temporary = path + ".tmp"
    if fs.kind(temporary) not in (None, Kind.FILE, Kind.DIRECTORY):
        fs.unlink(temporary)
    if callable(data) and fs.exists(temporary):
        # Left by a crash; it is to be a new file.
        fs.unlink(temporary)
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        write_whole(file, data(file) if callable(data) else data)
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
