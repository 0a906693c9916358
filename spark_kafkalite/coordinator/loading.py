"""What a log leaves of its records: the last committed one of each key, and those of transactions that are open.

Most records are overtaken by later ones, and need not be decoded. Those of a transaction count once its marker commits
it, each from its own place in the log (``open_transactions``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from spark_kafkalite.coordinator.open_transactions import OpenTransactions, ProducerIdAndEpoch
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.control import Marker, read_marker
from spark_kafkalite.records.kernel import ColumnBuilder, Columns
from spark_kafkalite.records.layout import BatchHeader

# Records that are looked at in one piece of work of the loop: about a millisecond. As many batches are read at once.
_AT_ONCE: Final = 1000


class RecordReplay:
    """Takes a log batch by batch. ``skipped`` counts what could not be read, by the reason."""

    def __init__(self, canonical_key: Callable[[bytes], bytes]) -> None:
        # Of the last committed record of each key. Two dictionaries of plain objects, because tuples by the hundred
        # thousand are work for the collector.
        self._values: dict[bytes, bytes] = {}
        self._offsets: dict[bytes, int] = {}
        self.open: OpenTransactions[bytes, bytes] = OpenTransactions()
        self.skipped: Counter[str] = Counter()
        self._canonical_key = canonical_key
        self._builder = ColumnBuilder(False)
        # Of the rows that the builder has: up to which of them a batch goes, whose transaction they belong to, and the
        # marker behind them. Rows of one kind are one run.
        self._runs: list[tuple[int, ProducerIdAndEpoch | None, Marker | None]] = []

    def add(self, header: BatchHeader, batch: memoryview) -> bool:
        """Read a batch; return whether ``take`` is due. Raises CorruptMessage when it is damaged."""
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch) if header.is_transactional else None
        marker = None
        if header.is_control:
            try:
                marker = read_marker(batch, 0, header)
            except CorruptMessage as error:
                self.skipped[f"{error}, and its transaction stays open"] += 1
            if marker is None:
                return False
        add_batch(self._builder, batch, 0, header)
        runs, count = self._runs, self._builder.count
        if marker is None and runs and runs[-1][1] == producer and runs[-1][2] is None:
            runs[-1] = count, producer, None
        else:
            runs.append((count, producer, marker))
        return count >= _AT_ONCE or len(runs) >= _AT_ONCE

    def take(self) -> Iterator[None]:
        """Keep what counts of the batches that were read, in pieces."""
        runs, self._runs = self._runs, []
        columns = self._builder.finish()
        row = 0
        for end_row, producer, marker in runs:
            for first in range(row, end_row, _AT_ONCE):
                self._take_rows(columns, first, min(first + _AT_ONCE, end_row), producer)
                if end_row - first > _AT_ONCE:
                    yield
            row = end_row
            if marker is not None and producer is not None:
                for key, value, offset in self.open.end(producer.producer_id, commits=marker.commits):
                    self._keep(key, value, offset)
        yield

    def _take_rows(self, columns: Columns, first: int, end: int, producer: ProducerIdAndEpoch | None) -> None:
        """Take rows over; a tombstone removes a key, and a record without a key is skipped."""
        canonical_key, key_at, value_at, offset_at = (
            self._canonical_key,
            columns.key_at,
            columns.value_at,
            columns.offset_at,
        )
        values, offsets, transactions = self._values, self._offsets, self.open
        is_any_open = bool(transactions.producers_of)
        for row in range(first, end):
            key = key_at(row)
            if key is None:
                continue
            key = canonical_key(key)
            value, offset = value_at(row), offset_at(row)
            if producer is not None:
                transactions.add(producer, key, value, offset)
                continue
            if is_any_open:
                transactions.overtake(key, offset)
            if value is not None:
                values[key] = value
                offsets[key] = offset
            elif values.pop(key, None) is not None:
                del offsets[key]

    def _keep(self, key: bytes, value: bytes | None, offset: int) -> None:
        if value is not None:
            self._values[key] = value
            self._offsets[key] = offset
        elif self._values.pop(key, None) is not None:
            del self._offsets[key]

    def left(self, at_once: int) -> Iterator[tuple[ProducerIdAndEpoch | None, list[tuple[bytes, bytes | None, int]]]]:
        """Give what is left as (key, value, offset), so many at once, with whose open transaction they belong to:
        committed records first, then each transaction's in the order of the log."""
        offsets, committed = self._offsets, iter(self._values.items())
        while values := list(islice(committed, at_once)):
            yield None, [(key, value, offsets[key]) for key, value in values]
        for producer, pending in self.open:
            for first in range(0, len(pending), at_once):
                yield producer, pending[first : first + at_once]
