"""How the event loop asks a log without waiting for the disk: what would wait raises ``NeedsThread`` instead.

The broker's loop asks logs inside :func:`without_waiting`. What cannot be done there without waiting for the disk, or
without long work, raises :class:`NeedsThread`: another thread calls its ``work``, and the loop asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import File

# What a miss reads besides: one window of the kernel's own reading ahead, and small files (indexes) to their end, since
# a look-up in them goes to and fro.
_WINDOW_BYTES: Final = 128 * 1024
_READ_WHOLE_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024


class NeedsThread(Exception):
    """A thread that may wait has to do some ``work``; then the same is asked again. Not an error: nothing has failed.

    ``goes_on``: asked again, it will get further than this time.
    """

    goes_on = False
    # Whether the work is a sync of files, for which there are threads of their own.
    syncs = False
    # Takes up an error of the work, for the same to meet it when it is asked again.
    on_error: Callable[[OSError | CorruptMessage], None] | None = None

    def work(self) -> None:
        """Do it, in a thread that may wait."""
        raise NotImplementedError

    def run(self) -> None:
        """Do it, and have an error taken up where that is wanted."""
        try:
            self.work()
        except (OSError, CorruptMessage) as error:
            if self.on_error is None:
                raise
            self.on_error(error)


class NotInMemory(NeedsThread):
    """A read found that it would have to wait for the disk. ``window_bytes``: how much ``work`` reads at least."""

    window_bytes = _WINDOW_BYTES

    def __init__(self, file: File, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at {position} of {file.path} are not in memory")
        self._file = file
        self._position = position
        self._length = length

    def work(self) -> None:
        """Read the bytes, and some around them, so that they are in memory."""
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
    """Whether the reads of each thread may wait for the disk; files ask it."""

    waits = True


patience = _Patience()


class _WithoutWaiting:
    """The one context manager that ``without_waiting`` gives; a generator would cost a fetch ten times as much."""

    __slots__ = ()

    def __enter__(self) -> None:
        patience.waits = False

    def __exit__(self, *_: object) -> None:
        patience.waits = True


_without_waiting = _WithoutWaiting()


def may_wait() -> bool:
    """Return whether reads of this thread may wait for the disk."""
    return patience.waits


def without_waiting() -> _WithoutWaiting:
    """Have reads of this thread raise NeedsThread instead of waiting for the disk, until the ``with`` ends."""
    return _without_waiting
