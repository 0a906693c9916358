"""Files of a Hadoop file system that are open for writing or reading, through the driver's JVM.

Source: org.apache.hadoop.fs.FSDataOutputStream and FSDataInputStream.
"""

from __future__ import annotations

import io
import os
from typing import Any, Final

# Py4J sends the bytes of a call as one text, and each call that answers with many takes some 40 ms.
CALL_BYTES: Final = 4 << 20


class HadoopFile:
    """A new file of a Hadoop file system."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        for begin in range(0, len(data), CALL_BYTES):
            self._stream.write(bytearray(data[begin : begin + CALL_BYTES]))

    def close(self) -> None:
        try:
            self._stream.hsync()
        finally:
            self._stream.close()


class HadoopReader(io.RawIOBase):
    """A file of a Hadoop file system, read from where it is asked for."""

    def __init__(self, stream: Any, io_utils: Any, size_bytes: int) -> None:
        self._stream = stream
        self._io = io_utils
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readall(self) -> bytes:
        # The interpreter's own reads in pieces of 8 kB.
        pieces = []
        while piece := self.read(CALL_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        count = max(0, min(len(view), self._size_bytes - self._at, CALL_BYTES))
        if count:
            self._stream.seek(self._at)
            view[:count] = self._io.toByteArray(self._stream, count)
            self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
