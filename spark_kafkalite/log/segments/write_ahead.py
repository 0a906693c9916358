"""A large batch whose bytes a thread writes to the log file before the batch is appended.

They go behind the segment's end, in pieces, all but the batch's header, so that nothing there counts: readers stop at
the segment's end, and a recovery finds zeros where a header belongs and cuts the file there. Appending the batch writes
the header and moves the end, which is little work for the log's owner.

A caller that changes the end meanwhile (another append, a roll, a truncation, the end of the log's use) calls
:meth:`stop` first. It waits for one piece at most, and cuts off what was written: ``ActiveSegment.cut_back``. The batch
must be written again then.
"""

from __future__ import annotations

import threading
from typing import Final

from spark_kafkalite.log.files.fs import File, write_whole
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES

# A millisecond's work, as long as the kernel takes it without waiting for the disk.
PIECE_BYTES: Final = 1 << 20


class WriteAhead:
    """One batch, and where it is written to. A thread calls :meth:`run`, the log's owner the rest."""

    __slots__ = ("_file", "_lock", "_position", "_written_bytes", "append_time_ms", "batch", "error", "is_stopped")

    def __init__(self, file: File, position: int, batch: bytearray | memoryview, append_time_ms: int) -> None:
        """``append_time_ms``: what is stamped into the batch as LogAppendTime, -1 for nothing."""
        self._file = file
        self._lock = threading.Lock()
        self._position = position
        self._written_bytes = HEADER_BYTES
        self.append_time_ms = append_time_ms
        self.batch = batch
        self.is_stopped = False
        # What the disk said; the append raises it.
        self.error: OSError | None = None

    def run(self) -> None:
        """Write all but the header. In any thread; the append raises the disk's errors."""
        if self.append_time_ms >= 0:
            # Offset and leader epoch are not known yet; the CRC does not cover them.
            kernel.stamp(self.batch, 0, 0, -1, self.append_time_ms)
        try:
            while self.write_piece():
                pass
        except OSError as error:
            self.error = error

    def write_piece(self) -> bool:
        """Write the next piece; return whether there was any, and :meth:`stop` was not called. OSError as it comes."""
        with self._lock:
            start = self._written_bytes
            if self.is_stopped or self.is_written:
                return False
            piece = memoryview(self.batch)[start : start + PIECE_BYTES]
            write_whole(self._file, piece, self._position + start)
            self._written_bytes = start + len(piece)
            return True

    @property
    def is_written(self) -> bool:
        """Whether all but the header is in the file."""
        return self._written_bytes >= len(self.batch)

    def stop(self) -> None:
        """Write nothing any more; what was written is as good as not written."""
        # Said first, for whoever writes may get the lock again and again before one who waits for it.
        self.is_stopped = True
        with self._lock:
            pass
