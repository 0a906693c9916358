"""Which batches of a fetch a read_committed consumer may see: the filter of aborted transactions.

With a Fetch answer the broker lists the aborted transactions that overlap it (producer id, first offset). A
transactional batch of such a producer is hidden from that offset on until the producer's abort marker. Control batches,
the markers themselves, are never records, in either isolation.

Source: KIP-98; org.apache.kafka.clients.consumer.internals.CompletedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.records.control import ABORT, control_type
from spark_kafkalite.records.layout import BatchHeader


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
            if header.record_count and control_type(buffer, position, header) == ABORT:
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
