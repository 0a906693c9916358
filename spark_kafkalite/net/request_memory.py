"""Limits the memory of requests that are not served yet, over all connections.

The count includes the bytes of three kinds of requests: incomplete ones, complete ones that wait for their connection's
turn, and those that a handler keeps while a thread works on them. A connection calls :meth:`RequestMemory.may_read`
before every read, and pauses if the result is false. So the requests exceed the limit by at most one read.

Several large incomplete requests could fill the memory so that none of them ever completes. Therefore the first refused
connection may exceed the limit until its request is complete, one connection at a time. So all requests together never
take more than the limit and one request. A connection that stops reading for another reason lets the next one go on, as
one does whose client is over its quota.

One client with many connections must not fill the memory for all others. So each client, a user or an address, has a
share (:class:`MemoryShares`). A share is a limit of the same kind below that of the whole memory, with an exempt
connection of its own: what waits for the share waits for that client's own requests.

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
# A client's share is this part of the whole. With its exempt request a client leaves room for others, if no request is
# larger than half of the memory.
_SHARE = 2
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


class RequestMemory:
    """The count of bytes, its limit, and the connections that wait for the count to fall."""

    __slots__ = ("_exempt", "_is_passing", "_waiting", "_whole", "buffers", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, whole: RequestMemory | None = None) -> None:
        """``whole`` is the memory of which this is a share."""
        self.limit_bytes = limit_bytes
        self._whole = whole
        self._waiting: dict[PausedConnection, None] = {}
        self._exempt: PausedConnection | None = None
        self._is_passing = False
        self.buffers: FrameBuffers = FrameBuffers() if whole is None else whole.buffers
        self.used_bytes = 0

    def may_read(self, reader: PausedConnection) -> bool:
        """Return whether ``reader`` may read now. If not, its ``memory_available`` is called when it may."""
        if self.used_bytes >= self.limit_bytes and reader is not self._exempt:
            if self._whole is not None and reader is self._whole._exempt:
                # All others wait for it: if it waited for one of them, none would go on.
                return True
            if self._exempt is not None:
                self._waiting[reader] = None
                return False
            self._exempt = reader
        whole = self._whole
        return whole is None or whole.used_bytes < whole.limit_bytes or whole.may_read(reader)

    def take(self, size_bytes: int) -> None:
        """Count bytes that have arrived. This never fails, because the memory is already in use."""
        self.used_bytes += size_bytes
        if self._whole is not None:
            self._whole.take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Subtract released bytes; wake the waiting connections if the count falls below the limit."""
        self.used_bytes -= size_bytes
        if self._whole is not None:
            self._whole.give_back(size_bytes)
        if self._waiting and self.used_bytes < self.limit_bytes:
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.memory_available()

    def request_complete(self, reader: PausedConnection) -> None:
        """Note that the request of ``reader`` is complete. It may not exceed the limit any more; the next one may."""
        if self._whole is not None:
            self._whole.request_complete(reader)
        if reader is self._exempt:
            self._pass_exemption_on()

    def stopped_reading(self, reader: PausedConnection) -> None:
        """Note that ``reader`` is not read for another reason. Others go on; when it is read again it asks again."""
        self._waiting.pop(reader, None)
        if self._whole is not None:
            self._whole.stopped_reading(reader)
        if reader is self._exempt:
            self._pass_exemption_on()

    def hinders(self, reader: PausedConnection) -> bool:
        """Return whether others wait until the request of ``reader`` is complete, and it is read."""
        if self._whole is None:
            return reader is self._exempt and bool(self._waiting)
        is_read = reader not in self._whole._waiting
        return self._whole.hinders(reader) or (is_read and reader is self._exempt and bool(self._waiting))

    def forget(self, reader: PausedConnection) -> None:
        """Remove a closed connection."""
        self.stopped_reading(reader)

    def _pass_exemption_on(self) -> None:
        self._exempt = None
        if self._is_passing:
            # From within the loop below, which goes on.
            return
        self._is_passing = True
        try:
            while self._exempt is None and self._waiting and self.used_bytes >= self.limit_bytes:
                self._exempt = next(iter(self._waiting))
                del self._waiting[self._exempt]
                self._exempt.memory_available()
        finally:
            self._is_passing = False


class MemoryShares:
    """The shares of clients in a memory, each as long as the client has connections."""

    def __init__(self, whole: RequestMemory) -> None:
        self._whole = whole
        # With the number of connections, by client.
        self._shares: dict[str, tuple[RequestMemory, int]] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def enter(self, client: str) -> RequestMemory:
        """Return the share of a client for one more connection, which has to :meth:`leave` it."""
        share, count = self._shares.get(client) or (RequestMemory(self._whole.limit_bytes // _SHARE, self._whole), 0)
        self._shares[client] = share, count + 1
        return share

    def leave(self, client: str) -> None:
        """Take note that a connection of a client uses its share no longer."""
        share, count = self._shares.pop(client)
        if count > 1:
            self._shares[client] = share, count - 1
