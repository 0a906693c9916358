"""The requests that one connection has received and not yet served, and the memory that they take.

Memory of its own has a request that arrives in several reads, one that a handler keeps while a thread works on it, and
what may not be served yet. All of it is counted (``request_memory``) from when its bytes arrive until it is released.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.wire.frame import FrameReader

_READ_RATE_BYTES_PER_S = 64 * 1024


class Incoming:
    """Of one connection; ``frames`` cuts its stream."""

    __slots__ = ("_counted_bytes", "_memory", "_own_frame", "begun_s", "frames")

    def __init__(self, frames: FrameReader, memory: RequestMemory) -> None:
        self.frames = frames
        self._memory = memory
        # What the memory counts of this connection.
        self._counted_bytes = 0
        # The lent buffer in which the request lies that is being served, until somebody keeps it.
        self._own_frame: memoryview | None = None
        # When the request began to arrive of which some is here; 0.0: there is none.
        self.begun_s = 0.0

    def received(self, count: int) -> memoryview | None:
        """Take note of bytes of a request that arrives in pieces; return it once it is whole, for :meth:`served`."""
        missing_bytes = self.frames.announced_bytes - self.frames.filled_bytes
        self._count(min(count, missing_bytes))
        self._own_frame = self.frames.received(count)
        return self._own_frame

    def move_to(self, memory: RequestMemory) -> None:
        """Have all that is held counted by another memory."""
        counted_bytes = self._counted_bytes
        self._count(-counted_bytes)
        self._memory = memory
        self._count(counted_bytes)

    def _count(self, more_bytes: int) -> None:
        self._counted_bytes += more_bytes
        if more_bytes >= 0:
            self._memory.take(more_bytes)
        else:
            self._memory.give_back(-more_bytes)

    def served(self, frame: memoryview) -> None:
        """Release the memory of a request that arrived in pieces, unless a handler keeps it."""
        if self._own_frame is not None:
            self._own_frame = None
            self._give_back(frame)

    def keep(self, frame: memoryview) -> tuple[memoryview, Callable[[], None]]:
        """Return memory with the request being served that stays as it is until the returned function is called.

        That is the request's own buffer where it has one, else a copy.
        """
        if frame is self._own_frame:
            self._own_frame = None
            kept = frame
        else:
            kept = memoryview(bytearray(frame))
            self._count(len(kept))
        return kept, lambda: self._give_back(kept)

    def keep_rest(self, now_s: float) -> None:
        """Keep the beginning of a request that has not fully arrived. Raises MemoryError, OSError."""
        more_bytes = self.frames.keep_rest(self._memory.buffers.lend)
        if self.begun_s == 0.0 and self.frames.is_amid_frame:
            self.begun_s = now_s
        if more_bytes:
            self._count(more_bytes)

    def stash(self) -> None:
        """Keep received requests that may not be served yet."""
        self._count(self.frames.stash())

    def slowness(self, now_s: float, read_timeout_s: float) -> str | None:
        """Return why the request of which some is here has taken too long, or None."""
        filled_bytes = self.frames.filled_bytes
        waited_s = now_s - self.begun_s
        if waited_s <= read_timeout_s + filled_bytes / _READ_RATE_BYTES_PER_S:
            return None
        return (
            f"sent {filled_bytes} of {self.frames.announced_bytes or 4} bytes of a request in {waited_s:.0f} s "
            "(request.read.timeout.ms)"
        )

    def close(self) -> None:
        """Give back everything."""
        held_bytes = self.frames.held_bytes
        partial = self.frames.clear()
        self._count(-held_bytes)
        if partial is not None:
            self._memory.buffers.take_back(partial)

    def _give_back(self, frame: memoryview) -> None:
        self._count(-len(frame))
        self._memory.buffers.take_back(frame)
