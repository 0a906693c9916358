"""Cuts a stream of bytes into frames: an int32 length, then that many bytes.

Sans-IO: whoever owns the socket asks for ``writable()``, receives into it, reports with ``received()`` how much came,
and takes frames with ``next_frame()`` until it gives None. Nothing here waits or knows about sockets.

Who owns the memory. A frame is a writable memoryview of its content, without the length. It stays valid as long as
anybody holds it: the reader never writes again to bytes that it has handed out, so a produced batch can be stamped in
place and written to disk from here. Small frames that arrive together share a block, which lives until the last of its
frames is dropped; a frame that does not fit into a block has a buffer of its own, no larger than itself.

How much memory. None between frames (an idle connection owns no buffer), ``BLOCK_BYTES`` while small frames arrive, and
for a large frame at most about twice what has arrived of it: its buffer doubles as bytes come in, so that a length
alone costs nothing. ``held_bytes`` says how much it is now, for whoever bounds the sum over all connections.

A length that is negative, zero or above the limit raises ``FrameError`` at once, before any of the frame is taken in;
the stream cannot be followed any further after that, and every later call raises it again.
"""

from __future__ import annotations

import struct
from typing import Final

from spark_kafkalite.errors import FrameError

Buffer = bytes | bytearray | memoryview

LENGTH_BYTES: Final = 4
# Holds dozens of control requests or a typical produce request of 16 KiB (Kafka's default batch.size) in one receive.
BLOCK_BYTES: Final = 64 * 1024

_LENGTH: Final = struct.Struct(">i")


class FrameReader:
    """Frames out of one stream. ``limit_name`` is the setting that an error names."""

    __slots__ = (
        "_block",
        "_end",
        "_failure",
        "_large",
        "_large_bytes",
        "_large_end",
        "_start",
        "limit_name",
        "max_frame_bytes",
    )

    def __init__(self, max_frame_bytes: int, limit_name: str = "socket.request.max.bytes") -> None:
        self.max_frame_bytes = max_frame_bytes
        self.limit_name = limit_name
        self._failure: str | None = None
        # The block, and the part of it that has arrived but is not yet in a frame: [_start, _end).
        self._block: bytearray | None = None
        self._start = 0
        self._end = 0
        # A frame too large for a block: what has arrived of it is [0, _large_end), its whole length is _large_bytes.
        self._large: bytearray | None = None
        self._large_end = 0
        self._large_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The size of the buffers that the reader itself holds; frames that were handed out are not among them."""
        block = len(self._block) if self._block is not None else 0
        return block + (len(self._large) if self._large is not None else 0)

    @property
    def in_frame(self) -> bool:
        """Whether a part of a frame has arrived: the peer has not finished what it began to say."""
        return self._large is not None or self._end > self._start

    def writable(self) -> memoryview:
        """Return where the next bytes belong; never empty. Say with ``received`` how many came, then drop it."""
        self._check()
        large = self._large
        if large is not None:
            if self._large_end == len(large):
                # Doubling: at most twice what has arrived, and each byte is moved about once.
                grown = bytearray(min(self._large_bytes, 2 * len(large)))
                grown[: self._large_end] = memoryview(large)[: self._large_end]
                self._large = large = grown
            return memoryview(large)[self._large_end :]
        block = self._block
        if block is None:
            self._block = block = bytearray(BLOCK_BYTES)
        elif self._end == len(block):
            block = self._move_to_new_block(block)
        return memoryview(block)[self._end :]

    def received(self, count: int) -> None:
        """Take in ``count`` bytes that were put at the start of the last ``writable``."""
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame's content, or None when more bytes are needed. Raises FrameError."""
        self._check()
        if self._large is not None:
            if self._large_end < self._large_bytes:
                return None
            frame = memoryview(self._large)
            self._large = None
            return frame
        block, start = self._block, self._start
        if block is None:
            return None
        available = self._end - start
        if available < LENGTH_BYTES:
            if available == 0:
                self._drop_block()
            return None
        (length,) = _LENGTH.unpack_from(block, start)
        if length <= 0 or length > self.max_frame_bytes:
            self._fail(length)
        start += LENGTH_BYTES
        until = start + length
        if until <= self._end:
            self._start = until
            return memoryview(block)[start:until]
        if length + LENGTH_BYTES > BLOCK_BYTES:
            self._begin_large(block, start, length)
        elif until > len(block):
            self._move_to_new_block(block)
        return None

    def feed(self, data: Buffer) -> list[memoryview]:
        """Take in bytes that are already in memory and return the frames that they complete."""
        data = memoryview(data)
        frames = []
        while len(data):
            room = self.writable()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.received(count)
            data = data[count:]
            while (frame := self.next_frame()) is not None:
                frames.append(frame)
        return frames

    def _begin_large(self, block: bytearray, start: int, length: int) -> None:
        """Give the frame whose content begins at ``start`` a buffer of its own, with what has arrived of it."""
        arrived = self._end - start
        self._large = bytearray(min(length, max(BLOCK_BYTES, 2 * arrived)))
        self._large[:arrived] = memoryview(block)[start : self._end]
        self._large_end = arrived
        self._large_bytes = length
        self._drop_block()

    def _move_to_new_block(self, block: bytearray) -> bytearray:
        """Begin a new block with the unfinished frame at the end of this one, where older frames may still lie."""
        rest = self._end - self._start
        fresh = bytearray(BLOCK_BYTES)
        fresh[:rest] = memoryview(block)[self._start : self._end]
        self._block = fresh
        self._start, self._end = 0, rest
        return fresh

    def _drop_block(self) -> None:
        """Let go of the block; frames that lie in it keep it alive."""
        self._block = None
        self._start = self._end = 0

    def _fail(self, length: int) -> None:
        if length > self.max_frame_bytes:
            self._failure = (
                f"a frame claims {length} bytes, {self.limit_name} allows {self.max_frame_bytes}: "
                "raise that setting, or send less at once"
            )
        else:
            self._failure = f"a frame claims {length} bytes, the least is 1: the peer does not speak this protocol"
        self._drop_block()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise FrameError(self._failure)

    def __repr__(self) -> str:
        if self._large is not None:
            return f"FrameReader({self._large_end} of {self._large_bytes} bytes of a frame)"
        return f"FrameReader({self._end - self._start} bytes waiting)"
