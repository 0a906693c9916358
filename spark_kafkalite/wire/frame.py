"""Frames: where a stream of bytes is cut into requests and responses, and nowhere else. No sockets, no clocks.

A frame is its length, an int32, big endian, and as many bytes. That is so in Kafka's protocol and in ZooKeeper's, so
brokers, clients and the served registry all cut their streams here. A length is a peer's word: outside the allowed
ones it raises :class:`FrameSizeError`, and memory is touched only as the bytes arrive that it promises.

A receiver with its own memory uses :class:`FrameReader`: frames are views of the bytes where they arrived, and only a
frame that was cut off is copied. A receiver that is given bytes, and takes frames from them later, uses
:class:`FrameBuffer`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Final

from spark_kafkalite.errors import FrameError

Buffer = bytes | bytearray | memoryview
# What frames lie in; with a view's ``obj`` it can be used again.
Memory = bytearray | mmap.mmap

LENGTH: Final = struct.Struct(">i")
# Room that a scratch has in front of what is received, for the first bytes of a length that was cut off.
HEAD_BYTES: Final = 4
# After a frame that is this large the next one is expected to be as large, and what is received of that beside the end
# of the present one would have to be copied: little is.
_LARGE_BYTES: Final = 256 * 1024
_BESIDE_A_LARGE_ONE: Final = 64 * 1024
# Below this a bytearray is cheaper than a mapping.
_MAPPED_FROM_BYTES: Final = 32 * 1024


class FrameSizeError(FrameError):
    """A frame announces a length that is not allowed: the peer speaks another protocol, or is broken."""

    def __init__(self, size_bytes: int, max_frame_bytes: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes; 1 to {max_frame_bytes} are allowed")
        self.size_bytes = size_bytes


def framed(payload: bytes) -> bytes:
    """Return the frame that holds ``payload``."""
    return LENGTH.pack(len(payload)) + payload


def lend_memory(size_bytes: int) -> memoryview:
    """Return writable memory for a frame that takes room only as it is filled. Raises MemoryError, OSError.

    A peer may announce 100 MiB and send nothing: an anonymous private mapping costs nothing until it is touched.
    """
    if size_bytes < _MAPPED_FROM_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class FrameReader:
    """The frames of one stream, cut where they arrive.

    In turn: receive into :meth:`room`, report the number of bytes with :meth:`received`, take frames with
    :meth:`next_frame` until there is none, then :meth:`keep_rest`. From then on the scratch is free for other readers,
    and the reader holds only the frame that is cut off. A caller that must stop before calls :meth:`stash`, which
    copies the rest, and later goes on with :meth:`next_frame`. A frame is valid until something is received again, or
    until its own memory is used again.
    """

    __slots__ = (
        "_data",
        "_head",
        "_position",
        "_room",
        "_scratch",
        "filled_bytes",
        "left_bytes",
        "max_frame_bytes",
        "partial",
        "stashed_bytes",
    )

    def __init__(self, max_frame_bytes: int, scratch: memoryview) -> None:
        """``scratch`` is where bytes are received; readers may share one. HEAD_BYTES of it stay free in front."""
        self.max_frame_bytes = max_frame_bytes
        self._scratch = scratch
        self._room = (scratch[HEAD_BYTES:],)
        # The lent memory of the frame that is being received, and how much of it is here.
        self.partial: memoryview | None = None
        self.filled_bytes = 0
        # The first bytes of a length that was cut off.
        self._head = b""
        # What was received and is not taken yet: so many bytes from a position on.
        self._data = scratch
        self._position = 0
        self.left_bytes = 0
        # The size of a copy that ``_data`` is; 0: it is a scratch.
        self.stashed_bytes = 0

    @property
    def is_amid_frame(self) -> bool:
        """Whether a frame has begun to arrive, and not ended."""
        return self.partial is not None or bool(self._head)

    @property
    def held_bytes(self) -> int:
        """Bytes received that lie in memory of this stream's own."""
        return self.filled_bytes + self.stashed_bytes

    def room(self) -> tuple[memoryview] | tuple[memoryview, memoryview]:
        """Return where to receive: one buffer, or one and another for what comes beyond its end."""
        partial = self.partial
        if partial is None:
            return self._room
        beside = self._room[0] if len(partial) < _LARGE_BYTES else self._room[0][:_BESIDE_A_LARGE_ONE]
        return partial[self.filled_bytes :], beside

    def received(self, count: int) -> memoryview | None:
        """Take note of ``count`` bytes received; return the frame in lent memory that they complete."""
        start = HEAD_BYTES
        completed = self.partial
        if completed is not None:
            missing = len(completed) - self.filled_bytes
            if count < missing:
                self.filled_bytes += count
                return None
            self.partial = None
            self.filled_bytes = 0
            count -= missing
        elif self._head:
            start -= len(self._head)
            count += len(self._head)
            self._scratch[start:HEAD_BYTES] = self._head
            self._head = b""
        self._data = self._scratch
        self._position = start
        self.left_bytes = count
        return completed

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame, without its length; None when there is none. Raises FrameSizeError."""
        left_bytes, position = self.left_bytes, self._position
        if left_bytes < 4:
            return None
        size_bytes: int = LENGTH.unpack_from(self._data, position)[0]
        if not 0 < size_bytes <= self.max_frame_bytes:
            raise FrameSizeError(size_bytes, self.max_frame_bytes)
        left_bytes -= 4 + size_bytes
        if left_bytes < 0:
            return None
        self.left_bytes = left_bytes
        self._position = end = position + 4 + size_bytes
        return self._data[position + 4 : end]

    @property
    def announced_bytes(self) -> int:
        """The length of the frame that has begun to arrive, or comes next; 0 when that is not known."""
        if self.partial is not None:
            return len(self.partial)
        return int(LENGTH.unpack_from(self._data, self._position)[0]) if self.left_bytes >= 4 else 0

    def put_back(self, frame: memoryview) -> None:
        """Undo the last :meth:`next_frame`."""
        self._position -= 4 + len(frame)
        self.left_bytes += 4 + len(frame)

    def keep_rest(self, lend: Callable[[int], memoryview]) -> int:
        """Keep the beginning of a frame that has not fully arrived, in memory of its size that ``lend`` gives.

        To be called when there is no whole frame. Returns by how much :attr:`held_bytes` has changed. Raises what
        ``lend`` raises; the stream cannot go on then.
        """
        rest = self._data[self._position : self._position + self.left_bytes]
        held_bytes = 0
        if len(rest) >= 4:
            partial = lend(LENGTH.unpack_from(rest)[0])
            self.filled_bytes = held_bytes = len(rest) - 4
            partial[:held_bytes] = rest[4:]
            self.partial = partial
        elif len(rest):
            self._head = bytes(rest)
        self.left_bytes = 0
        if self.stashed_bytes:
            held_bytes -= self.stashed_bytes
            self.stashed_bytes = 0
            self._data = self._scratch
        return held_bytes

    def rest(self) -> memoryview:
        """Return what was received and is not taken yet, valid until something is received again."""
        return self._data[self._position : self._position + self.left_bytes]

    def stash(self) -> int:
        """Copy what is not taken yet, unless that is done already; return how much was copied."""
        if self.stashed_bytes:
            return 0
        self._data = memoryview(bytearray(self._data[self._position : self._position + self.left_bytes]))
        self._position = 0
        self.stashed_bytes = self.left_bytes
        return self.left_bytes

    def clear(self) -> memoryview | None:
        """Forget everything; return lent memory that was being filled."""
        partial, self.partial = self.partial, None
        self._data = self._scratch
        self._head = b""
        self.left_bytes = self.filled_bytes = self.stashed_bytes = 0
        return partial


class FrameBuffer:
    """The bytes of one stream until they are taken, frame by frame; ``max_frame_bytes`` may change on the way."""

    __slots__ = ("_data", "_position", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._data = bytearray()
        self._position = 0

    def __len__(self) -> int:
        return len(self._data) - self._position

    def feed(self, data: Buffer) -> None:
        """Add bytes that were received."""
        self._data += data

    def peek(self, count: int) -> bytes:
        """Return the first ``count`` bytes, or as many as there are, and leave them."""
        return bytes(self._data[self._position : self._position + count])

    def next_frame(self) -> bytes | None:
        """Take the next whole frame, without its length; None when there is none. Raises FrameSizeError."""
        start = self._position + 4
        left = len(self._data) - start
        if left < 0:
            return None
        size_bytes: int = LENGTH.unpack_from(self._data, self._position)[0]
        if not 0 < size_bytes <= self.max_frame_bytes:
            raise FrameSizeError(size_bytes, self.max_frame_bytes)
        if left < size_bytes:
            return None
        end = start + size_bytes
        frame = bytes(self._data[start:end])
        # To move the rest to the front each time would take as long as the square of how many frames there are.
        if 2 * end >= len(self._data):
            del self._data[:end]
            end = 0
        self._position = end
        return frame

    def clear(self) -> None:
        """Forget everything."""
        self._data.clear()
        self._position = 0
