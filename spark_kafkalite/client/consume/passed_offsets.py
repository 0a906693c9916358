"""Counts the offsets of fetched batches that hold no record for their reader, by why they hold none.

A reader that must account for every offset (the load job's audit) compares the records it got with the log's count. So
nothing here is a difference between offsets and decoded rows: a batch's header has the number of its records. Where a
range cuts a batch in two, the records' own offsets are counted. A record that gets lost on its way to the reader is
then missing in the sum of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.layout import BatchHeader


@dataclass(slots=True)
class PassedOffsets:
    """Offsets without a record, and the records, as the batches' headers count them.

    ``control`` are markers of transactions, ``aborted`` records of aborted transactions, ``removed`` offsets that no
    batch holds a record for: compaction has removed it, or an idempotent producer's retry never had it. ``present`` are
    the records to be delivered.
    """

    present: int = 0
    control: int = 0
    aborted: int = 0
    removed: int = 0

    def count_batch(
        self, header: BatchHeader, first_offset: int, until_offset: int, aborted: bool, payload: Callable[[], Buffer]
    ) -> None:
        """Count one batch's part in [first_offset, until_offset), and the offsets between ``first_offset`` and it.

        ``payload`` returns its uncompressed records; called only for a part of a batch that has gaps.
        """
        begin = max(header.base_offset, first_offset)
        end = min(header.next_offset, until_offset)
        self.removed += min(begin, until_offset) - first_offset
        if end <= begin:
            return
        whole = header.last_offset_delta + 1
        if end - begin == whole:
            held = header.record_count
        elif header.record_count == whole:
            held = end - begin
        else:
            held = records_between(payload(), header, begin, end)
        self.removed += end - begin - held
        if header.is_control:
            self.control += held
        elif aborted:
            self.aborted += held
        else:
            self.present += held


def records_between(payload: Buffer, header: BatchHeader, begin: int, end: int) -> int:
    """Return how many records of a batch have an offset in [begin, end). Raises CorruptMessage.

    ``payload`` holds the records, uncompressed: of each its length, attributes, timestamp delta, offset delta and the
    rest. Source: org.apache.kafka.common.record.internal.DefaultRecord.
    """
    view = memoryview(payload).cast("B")
    found = at = 0
    try:
        for _ in range(header.record_count):
            length, at = _varint(view, at)
            following = at + length
            _, at = _varint(view, at + 1)
            delta, _ = _varint(view, at)
            found += begin <= header.base_offset + delta < end
            at = following
    except IndexError:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} ends before its {header.record_count} records do"
        ) from None
    return found


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a zigzag number and where it ends. Raises IndexError at the end of the view."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
