"""The calls of the operating system that Linux has and macOS lacks, each with a fallback.

Which of the two a name stands for is decided once, at import: on Linux it is the system's own call. The fallbacks are
for clients, Spark and a broker for development. They do the same and cost more:

- ``secret_file``: a named file that only its owner can read, and that is removed at once, in place of memory alone.
- ``open_event``: a pipe.
- ``allocate``: zeros that are written, in place of blocks that are reserved.
- ``sync_data``, ``sync_all``: F_FULLFSYNC, because fsync leaves data in the drive's cache there.
- ``read_ahead``: nothing.
- ``send_file``: read, then write.
- ``lock_whole_file``: one lock in place of two, which would exclude each other there.

Of several threads each call takes what the system's own takes. Errors are OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# Lets what is sent wait a moment for what follows it. A hint only.
MSG_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)
# A read with this flag does not wait for the disk; 0 where the system cannot do so.
NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)

# What is written to an event, and how much of it is read.
EVENT: Final = (1).to_bytes(8, sys.byteorder)

_PIECE_BYTES: Final = 256 * 1024
_CANNOT_SYNC_FULLY: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


@contextmanager
def secret_file(content: bytes) -> Iterator[str]:
    """Give a path from which this process can read the content, for as long as the block runs."""
    if _has_memfd:
        with open(os.memfd_create("secret"), "w+b", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    # Its mode is 0600 from the beginning on.
    descriptor, path = tempfile.mkstemp()
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


_has_memfd = hasattr(os, "memfd_create")


def _event_counter() -> tuple[int, int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    return descriptor, descriptor


def _event_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


# Returns two descriptors, which may be one. The first is readable from the moment EVENT is written to the second until
# as many bytes are read from the first. At most one EVENT is written before that.
open_event: Final[Callable[[], tuple[int, int]]] = _event_counter if hasattr(os, "eventfd") else _event_pipe


def _write_zeros(descriptor: int, offset: int, length: int) -> None:
    position, end = os.fstat(descriptor).st_size, offset + length
    while position < end:
        position += os.pwrite(descriptor, bytes(min(end - position, _PIECE_BYTES)), position)


# (descriptor, offset, length): the file reaches at least to their end afterwards, and has the disk's space for it.
allocate: Final[Callable[[int, int, int], None]] = getattr(os, "posix_fallocate", _write_zeros)


def _sync_fully(descriptor: int) -> None:
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is not None:
        try:
            fcntl.fcntl(descriptor, command)
            return
        except OSError as error:
            # Not every file system has it.
            if error.errno not in _CANNOT_SYNC_FULLY:
                raise
    os.fsync(descriptor)


# The file's content, and what reading it needs; and all of a file, or of a directory.
sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", _sync_fully)
sync_all: Final[Callable[[int], None]] = os.fsync if hasattr(os, "fdatasync") else _sync_fully


def _advise_will_need(descriptor: int, position: int, length: int) -> None:
    os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_WILLNEED)


def _leave_to_the_system(_descriptor: int, _position: int, _length: int) -> None:
    pass


# (descriptor, position, length): asks the system to read a part of a file into its cache, and does not wait for it.
read_ahead: Final[Callable[[int, int, int], None]] = (
    _advise_will_need if hasattr(os, "posix_fadvise") else _leave_to_the_system
)


def _read_and_write(out: int, file: int, position: int, count: int) -> int:
    return os.write(out, os.pread(file, min(count, _PIECE_BYTES), position))


# (socket, file, position, count): returns how many bytes of the file the socket took, 0 at the file's end. macOS has a
# call of this name that takes 0 for "up to the end of the file".
send_file: Final[Callable[[int, int, int, int], int]] = (
    os.sendfile if sys.platform == "linux" and hasattr(os, "sendfile") else _read_and_write
)


def lock_whole_file(descriptor: int) -> None:
    """Lock a file against other descriptors and processes, Java's locks included. OSError where one has it locked.

    On Linux the two kinds of locks do not see each other. On macOS they do, and a process would exclude itself.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if sys.platform != "darwin":
        # What Java takes, and so Apache Kafka in its directories; it excludes other processes only.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
