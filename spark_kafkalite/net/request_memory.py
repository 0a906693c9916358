"""Limits the memory of requests that are not served yet, over all connections.

The count includes the bytes of three kinds of requests: incomplete ones, complete ones that wait for their connection's
turn, and those that a handler keeps while a thread works on them. A connection calls :meth:`RequestMemory.may_read`
before every read, and pauses if the result is false. So the requests exceed the limit by at most one read.

Several large incomplete requests could fill the memory so that none of them ever completes. Therefore the first refused
connection may exceed the limit until its request is complete, one connection at a time. So all requests together never
take more than the limit and one request. A connection that stops reading for another reason lets the next one go on, as
one does whose client is over its quota.

A few buffers for requests of up to ``_KEPT_BYTES`` are kept and used again. The reason is that new memory costs more
than all other work for a request: a page fault for every 4 KiB, and the unmapping. A request owns its buffer for as
long as its memory is valid, so no request sees another one's data.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol

from spark_kafkalite.wire.frame import lend_memory

# Smaller requests need only cheap memory, and a kept buffer would be many times as large.
_KEPT_FROM_BYTES = 32 * 1024
# The largest batch that Apache Kafka accepts by default, and room for the request around it.
_KEPT_BYTES = 1024 * 1024 + 64 * 1024
# As many requests as a broker with few cores receives at once. The broker never releases kept buffers.
_MOST_KEPT = 4


class FrameBuffers:
    """Provides the memory for requests that arrive in pieces."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def lend(self, size_bytes: int) -> memoryview:
        """Return a writable buffer of ``size_bytes``. It takes new memory only as it is filled.

        It may still contain data of earlier requests. Raises MemoryError, OSError.
        """
        if not _KEPT_FROM_BYTES <= size_bytes <= _KEPT_BYTES:
            return lend_memory(size_bytes)
        return (memoryview(self._kept.pop()) if self._kept else lend_memory(_KEPT_BYTES))[:size_bytes]

    def take_back(self, buffer: memoryview) -> None:
        """Take a buffer of :meth:`lend` back. The caller must not use it any more."""
        mapping = buffer.obj
        if isinstance(mapping, mmap.mmap) and len(mapping) == _KEPT_BYTES and len(self._kept) < _MOST_KEPT:
            self._kept.append(mapping)


class KeptMemory:
    """Memory of a request with several holders. It is released when the last holder releases it."""

    __slots__ = ("_give_back", "_holders")

    def __init__(self, give_back: Callable[[], None]) -> None:
        """Begin with one holder, which must call :meth:`release`. ``give_back`` releases the memory."""
        self._give_back = give_back
        self._holders = 1

    def hold(self) -> None:
        """Add a holder, which must call :meth:`release`."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._give_back()


class PausedConnection(Protocol):
    """A connection that has paused because of the limit."""

    def memory_available(self) -> None:
        """Resume reading. Called once for every pause."""
        ...


class RequestMemory:
    """The count of bytes, its limit, and the connections that wait for the count to fall."""

    __slots__ = ("_exempt", "_is_passing", "_limit_bytes", "_waiting", "buffers", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[PausedConnection, None] = {}
        self._exempt: PausedConnection | None = None
        self._is_passing = False
        self.buffers = FrameBuffers()
        self.used_bytes = 0

    def may_read(self, reader: PausedConnection) -> bool:
        """Return whether ``reader`` may read now. If not, its ``memory_available`` is called when it may."""
        if self.used_bytes < self._limit_bytes or reader is self._exempt:
            return True
        if self._exempt is None:
            self._exempt = reader
            return True
        self._waiting[reader] = None
        return False

    def take(self, size_bytes: int) -> None:
        """Count bytes that have arrived. This never fails, because the memory is already in use."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Subtract released bytes; wake the waiting connections if the count falls below the limit."""
        self.used_bytes -= size_bytes
        if self._waiting and self.used_bytes < self._limit_bytes:
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.memory_available()

    def request_complete(self, reader: PausedConnection) -> None:
        """Note that the request of ``reader`` is complete. It may not exceed the limit any more; the next one may."""
        if reader is self._exempt:
            self._pass_exemption_on()

    def stopped_reading(self, reader: PausedConnection) -> None:
        """Note that ``reader`` is not read for another reason. Others go on; when it is read again it asks again."""
        self._waiting.pop(reader, None)
        if reader is self._exempt:
            self._pass_exemption_on()

    def hinders(self, reader: PausedConnection) -> bool:
        """Return whether others wait until the request of ``reader`` is complete."""
        return reader is self._exempt and bool(self._waiting)

    def forget(self, reader: PausedConnection) -> None:
        """Remove a closed connection."""
        self._waiting.pop(reader, None)
        if reader is self._exempt:
            self._pass_exemption_on()

    def _pass_exemption_on(self) -> None:
        self._exempt = None
        if self._is_passing:
            # From within the loop below, which goes on.
            return
        self._is_passing = True
        try:
            while self._exempt is None and self._waiting and self.used_bytes >= self._limit_bytes:
                self._exempt = next(iter(self._waiting))
                del self._waiting[self._exempt]
                self._exempt.memory_available()
        finally:
            self._is_passing = False
