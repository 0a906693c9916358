"""Which batches of a fetch a read_committed consumer may see: the filter of aborted transactions.

With a Fetch answer the broker lists the aborted transactions that overlap it (producer id, first offset). A
transactional batch of such a producer is hidden from that offset on until the producer's abort marker. Control batches,
the markers themselves, are never records, in either isolation.

A control record's key is int16 version, int16 type (0 abort, 1 commit).
Source: KIP-98; org.apache.kafka.clients.consumer.internals.CompletedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records.layout import HEADER_BYTES, BatchHeader

_ABORT: Final = 0


class AbortedTransactions:
    """The transactions that one Fetch answer names as aborted, walked along its batches in order."""

    def __init__(self, aborted: Iterable[tuple[int, int]] | None) -> None:
        """``aborted``: (producer id, first offset) pairs, in any order; None when the broker sent none."""
        self._coming = sorted(((first, producer) for producer, first in aborted or ()), reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: memoryview, position: int, header: BatchHeader) -> bool:
        """Whether the batch at ``position`` holds nothing visible. To be asked for every batch, in order of offsets.

        Raises CorruptMessage when a control record cannot be read.
        """
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            if header.record_count and control_type(buffer, position, header) == _ABORT:
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def control_type(buffer: memoryview, position: int, header: BatchHeader) -> int:
    """Return the type of a control batch's record. Raises CorruptMessage."""
    at = position + HEADER_BYTES
    end = min(position + header.size_bytes, len(buffer))
    # Record length, attributes, timestamp delta, offset delta, key length; all but the attributes are varints.
    try:
        at = _skip_varint(buffer, at, end) + 1
        at = _skip_varint(buffer, _skip_varint(buffer, at, end), end)
        key_at = _skip_varint(buffer, at, end)
    except IndexError:
        key_at = end
    if key_at + 4 > end:
        raise CorruptMessage(f"the control batch at offset {header.base_offset} ends inside its record's key")
    return int.from_bytes(buffer[key_at + 2 : key_at + 4], "big", signed=True)


def _skip_varint(buffer: memoryview, at: int, end: int) -> int:
    while at < end:
        at += 1
        if buffer[at - 1] < 0x80:
            return at
    raise IndexError(at)
