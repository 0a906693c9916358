"""The memory that requests may take before they are served, over all connections.

Counted are bytes of requests that have not fully arrived, of complete ones that wait for their connection's turn, and
of those that a handler keeps while a thread works on them. A connection asks :meth:`RequestMemory.may_read` before
every read and pauses when the answer is no, so the limit is passed by at most one read.

Several half-arrived large requests can fill the memory so that none of them ever completes. The first connection that
is refused may therefore pass the limit until its request is complete, one connection at a time: together the requests
never take more than the limit and one request.

A request of up to ``_KEPT_BYTES`` arrives in one of a few buffers that are kept for the next one: memory that is
touched for the first time costs more than all else that is done with a request (a page fault for every 4 KiB, and the
unmapping). They are lent for as long as the request's memory is valid, so nothing of one request is seen by another.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol

from spark_kafkalite.wire.frame import lend_memory

# Smaller ones are cheap to make, and would hold a buffer that is many times as large.
_KEPT_FROM_BYTES = 32 * 1024
# The largest batch that Apache Kafka takes unless told otherwise, and room for the request around it.
_KEPT_BYTES = 1024 * 1024 + 64 * 1024
# As many as are being received at once by brokers that are short of cores; what is kept is never given back.
_MOST_KEPT = 4


class FrameBuffers:
    """Lends the memory for requests that arrive in pieces."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def lend(self, size_bytes: int) -> memoryview:
        """Return a writable buffer of ``size_bytes`` that takes new memory only as it is filled.

        What earlier requests left in it is still there. Raises MemoryError, OSError.
        """
        if not _KEPT_FROM_BYTES <= size_bytes <= _KEPT_BYTES:
            return lend_memory(size_bytes)
        return (memoryview(self._kept.pop()) if self._kept else lend_memory(_KEPT_BYTES))[:size_bytes]

    def take_back(self, buffer: memoryview) -> None:
        """Take a buffer that was lent; whoever had it does not look into it any more."""
        mapping = buffer.obj
        if isinstance(mapping, mmap.mmap) and len(mapping) == _KEPT_BYTES and len(self._kept) < _MOST_KEPT:
            self._kept.append(mapping)


class KeptMemory:
    """Memory of a request with several holders, given back when the last one has released it."""

    __slots__ = ("_give_back", "_holders")

    def __init__(self, give_back: Callable[[], None]) -> None:
        """One who has it releases it."""
        self._give_back = give_back
        self._holders = 1

    def hold(self) -> None:
        """Have it for one more, who releases it."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._give_back()


class PausedConnection(Protocol):
    """A connection that paused for want of memory."""

    def memory_available(self) -> None:
        """Read again; called once for every pause."""
        ...


class RequestMemory:
    """The count, its limit, and who waits for it to fall."""

    __slots__ = ("_exempt", "_limit_bytes", "_waiting", "buffers", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[PausedConnection, None] = {}
        self._exempt: PausedConnection | None = None
        self.buffers = FrameBuffers()
        self.used_bytes = 0

    def may_read(self, reader: PausedConnection) -> bool:
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

    def request_complete(self, reader: PausedConnection) -> None:
        """Note that ``reader`` has its whole request: it may not pass the limit any longer, but the next one may."""
        if reader is self._exempt:
            self._pass_exemption_on()

    def forget(self, reader: PausedConnection) -> None:
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
