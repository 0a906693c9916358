"""Whether a range of a log file is in the page cache, and how a thread reads it in when it is not.

``sendfile`` on bytes that are not in the page cache blocks until the disk has read them, and the whole broker with it.
What was written lately is in the cache and is not asked about. Anything else is probed with ``preadv(RWF_NOWAIT)``,
which fails instead of waiting; after a miss a thread reads the range once, which leaves it in the cache.

Finding the range comes before, and reads indexes and batch headers. That is done inside
``needs_thread.without_waiting``: what needs a thread a thread does, and the look-up begins again, as often as it takes
and MOST_LOOK_UPS at most.

The probe is a guess in both directions (the kernel may drop a page right after it), so it samples the range instead of
reading it: the cost of being wrong is a short stall, not a wrong answer.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from spark_kafkalite.log.files.disk_calls import CALLS
from spark_kafkalite.log.files.needs_thread import NeedsThread, without_waiting
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.net import io_threads
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.platform_calls import NOWAIT, read_ahead
from spark_kafkalite.slices import Work

T = TypeVar("T")

# The kernel reads ahead in windows of 128 KiB by default, so a cached page rarely has uncached neighbours nearer by.
_SAMPLE_EVERY_BYTES = 128 * 1024
_PIECE_BYTES = 256 * 1024
# Behind a range that had to be read the disk is asked for as much again, for the request that goes on from there; not
# for more, because there may be none.
_MOST_AHEAD_BYTES = 4 * 1024 * 1024
# A look-up reads two indexes and two stretches of headers. That the kernel drops them as fast as they are read happens
# when memory is very short; reading in the loop is then the lesser evil.
MOST_LOOK_UPS = 16
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)

_probe = bytearray(1)
_works = NOWAIT != 0


def look_up(io: IoThreads, loop: asyncio.AbstractEventLoop, find: Callable[[], T]) -> Work[T]:
    """Return what ``find`` finds in a log; what needs a thread is done by a thread, and ``find`` is called again."""
    misses = 0
    while misses < MOST_LOOK_UPS:
        try:
            with without_waiting():
                return find()
        except NeedsThread as missing:
            misses += not missing.goes_on
            # Without its frames, which would hold it in turn.
            works = (missing.with_traceback(None),)
        yield from in_thread(io, loop, works)
    return find()


def in_thread(io: IoThreads, loop: asyncio.AbstractEventLoop, works: Sequence[NeedsThread]) -> Work[None]:
    """Have a thread do what look-ups in logs need one for, one after the other."""

    def work() -> None:
        for one in works:
            one.run()

    yield from io_threads.in_thread(io, loop, work, Lane.READ)


def is_cached(piece: LogSlice) -> bool:
    """Return whether all of a slice is probably in the page cache."""
    return _is_cached(piece)


def _is_cached(piece: LogSlice) -> bool:
    global _works
    if not _works:
        return True
    end = piece.position + piece.length
    descriptor = piece.file.fileno()
    try:
        for position in range(piece.position, end, _SAMPLE_EVERY_BYTES):
            os.preadv(descriptor, (_probe,), position, NOWAIT)
        if not os.preadv(descriptor, (_probe,), end - 1, NOWAIT):
            # The file ends before.
            return False
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            # This file system (or system) cannot tell: files in memory have nothing to wait for anyway.
            _works = False
            return True
        # A thread finds out what is wrong.
        return False
    return True


def read_into_cache(piece: LogSlice) -> None:
    """Read a slice from the disk, to have it in the page cache; for a thread. OSError where it cannot be read, also
    because the file ends before it."""
    buffer = memoryview(bytearray(min(piece.length, _PIECE_BYTES)))
    position, end = piece.position, piece.position + piece.length
    descriptor = piece.file.fileno()
    # All at once, so that the disk gets large requests; the loop below waits for them.
    ahead_bytes = min(piece.length, _MOST_AHEAD_BYTES)
    read_ahead(descriptor, position, piece.length + ahead_bytes)
    while position < end:
        buffers = (buffer[: min(end - position, _PIECE_BYTES)],)
        count = CALLS.make("preadv", piece.file.path, os.preadv, descriptor, buffers, position)
        if count == 0:
            raise OSError(errno.EIO, f"the file ends at {position} bytes, {end} were written to it", piece.file.path)
        position += count
