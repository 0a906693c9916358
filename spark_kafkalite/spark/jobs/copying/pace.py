"""The pace of a task that must not write more than so many bytes a second: it waits before each piece of its rows.

Bytes are those of keys, values and headers as the task holds them, before compression. Nothing is held back to be sent
later: while the task waits, its fetcher has at most its read-ahead in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

# A piece is what may go out in this time, so that brokers see an even stream and not a burst for each fetch.
_PIECE_S: Final = 0.1
_COUNTED: Final = ("key", "value", "headers")


class Pace:
    """Of one task, from its first row on."""

    def __init__(
        self,
        bytes_per_second: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``bytes_per_second`` is above 0."""
        self._bytes_per_second = bytes_per_second
        self._now_s = now_s
        self._sleep = sleep
        self._due_s = now_s()

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows in pieces of about 0.1 s, at least one row, each when it is due."""
        if not batch.num_rows:
            return
        size_bytes = counted_bytes(batch)
        rows = max(1, int(batch.num_rows * self._bytes_per_second * _PIECE_S / max(1, size_bytes)))
        for first in range(0, batch.num_rows, rows):
            piece = batch.slice(first, rows)
            now_s = self._now_s()
            if self._due_s > now_s:
                self._sleep(self._due_s - now_s)
            # What was not used while there was nothing to send is not made up for.
            self._due_s = max(self._due_s, now_s) + counted_bytes(piece) / self._bytes_per_second
            yield piece


def counted_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch that count: its keys, values and headers, with Arrow's own of a few bytes a row."""
    return sum(batch.column(name).nbytes for name in _COUNTED if batch.schema.get_field_index(name) >= 0)
