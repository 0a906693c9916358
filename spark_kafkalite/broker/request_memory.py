"""The memory that requests may take before they are served, all connections together.

Counted are bytes of requests that have not fully arrived, of complete ones that wait for their connection's turn, and
of those that a handler keeps while a thread works on them. A connection asks :meth:`RequestMemory.may_read` before
every read and pauses when the answer is no, so the limit is passed by at most one read.

Several half-arrived large requests can fill the memory so that none of them ever completes. The first connection that
is refused may therefore pass the limit until its request is complete, one connection at a time: together the requests
never take more than the limit and one request.
"""

from __future__ import annotations

import mmap
from typing import Protocol

# Below this a bytearray is cheaper than a mapping.
_MAPPED_FROM_BYTES = 32 * 1024


def new_frame_buffer(size_bytes: int) -> memoryview:
    """Return a writable buffer for a request of ``size_bytes`` that takes memory only as it is filled.

    A peer may announce 100 MiB and send nothing: an anonymous private mapping costs nothing until it is touched.
    """
    if size_bytes < _MAPPED_FROM_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Reader(Protocol):
    """A connection that paused for want of memory."""

    def memory_available(self) -> None:
        """Read again; called once for every pause."""
        ...


class RequestMemory:
    """The count, its limit, and who waits for it to fall."""

    __slots__ = ("_exempt", "_limit_bytes", "_waiting", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[Reader, None] = {}
        self._exempt: Reader | None = None
        self.used_bytes = 0

    def may_read(self, reader: Reader) -> bool:
        """Return whether ``reader`` may read now; if not it is called back when it may."""
        if self.used_bytes < self._limit_bytes or reader is self._exempt:
            return True
        if self._exempt is None:
            self._exempt = reader
            return True
        self._waiting[reader] = None
        return False

    def take(self, size_bytes: int) -> None:
        """Count bytes that have arrived; never fails, because they are already there."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop counting bytes; wakes the waiting connections when that brings the count below the limit."""
        self.used_bytes -= size_bytes
        if self._waiting and self.used_bytes < self._limit_bytes:
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.memory_available()

    def request_complete(self, reader: Reader) -> None:
        """Note that ``reader`` has its whole request: it may not pass the limit any longer, but the next one may."""
        if reader is self._exempt:
            self._pass_exemption_on()

    def forget(self, reader: Reader) -> None:
        """Forget a closed connection."""
        self._waiting.pop(reader, None)
        if reader is self._exempt:
            self._pass_exemption_on()

    def _pass_exemption_on(self) -> None:
        self._exempt = None
        if self._waiting and self.used_bytes >= self._limit_bytes:
            self._exempt = next(iter(self._waiting))
            del self._waiting[self._exempt]
            self._exempt.memory_available()
