"""The checks of single records, in Python: their order decides which error a record gets. Part of ``batch_py``."""

from __future__ import annotations

from typing import NamedTuple

from spark_kafkalite.records import layout
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.layout import MAX_INT64, MIN_INT64, BatchHeader, Fault, Field, record_error


class Parsed(NamedTuple):
    """One record: numbers, and (start, end) positions of its parts in the section; key and value None for null."""

    timestamp: int
    offset_delta: int
    key: tuple[int, int] | None
    value: tuple[int, int] | None
    headers: list[tuple[tuple[int, int], tuple[int, int] | None]]


class Section:
    """Reads the records of one uncompressed section in order, and checks all that the format requires of them."""

    __slots__ = (
        "_base_timestamp",
        "_end",
        "_last_offset_delta",
        "position",
        "view",
        "count",
        "index",
        "previous_delta",
    )

    def __init__(self, view: memoryview, header: BatchHeader) -> None:
        self.view = view
        self.position = 0
        self._end = len(view)
        self._base_timestamp = header.base_timestamp
        self._last_offset_delta = header.last_offset_delta
        self.count = header.record_count
        self.index = 0
        self.previous_delta = -1
        if not 0 <= self.count <= len(view) // layout.MIN_RECORD_BYTES:
            raise record_error(Fault.COUNT, 0, 0, self.count, len(view))

    def next_record(self, keys_required: bool) -> Parsed:
        length = self._varint(Field.RECORD_LENGTH, self._end)
        if not 0 <= length <= self._end - self.position:
            raise self._fault(Fault.LENGTH, Field.RECORD_LENGTH, length, self._end - self.position)
        end = self.position + length
        if self.position >= end:
            raise self._fault(Fault.CUT, Field.ATTRIBUTES)
        self.position += 1
        timestamp_delta = self._varint(Field.TIMESTAMP_DELTA, end, 64)
        timestamp = self._base_timestamp + timestamp_delta
        if not MIN_INT64 <= timestamp <= MAX_INT64:
            raise self._fault(Fault.TIMESTAMP, 0, self._base_timestamp, timestamp_delta)
        offset_delta = self._varint(Field.OFFSET_DELTA, end)
        if offset_delta <= self.previous_delta:
            raise self._fault(Fault.ORDER, 0, offset_delta, self.previous_delta)
        if offset_delta > self._last_offset_delta:
            raise self._fault(Fault.BEYOND, 0, offset_delta, self._last_offset_delta)
        key = self._bytes(Field.KEY_LENGTH, end, nullable=True)
        if key is None and keys_required:
            raise self._fault(Fault.NULL_KEY, 0)
        value = self._bytes(Field.VALUE_LENGTH, end, nullable=True)
        header_count = self._varint(Field.HEADER_COUNT, end)
        if not 0 <= header_count <= (end - self.position) // 2:
            raise self._fault(Fault.LENGTH, Field.HEADER_COUNT, header_count, end - self.position)
        headers = []
        for _ in range(header_count):
            header_key = self._bytes(Field.HEADER_KEY_LENGTH, end, nullable=False)
            assert header_key is not None
            headers.append((header_key, self._bytes(Field.HEADER_VALUE_LENGTH, end, nullable=True)))
        if self.position != end:
            raise self._fault(Fault.RECORD_REST, 0, end - self.position)
        self.previous_delta = offset_delta
        self.index += 1
        return Parsed(timestamp, offset_delta, key, value, headers)

    def check_end(self) -> None:
        if self.position != self._end:
            raise self._fault(Fault.SECTION_REST, 0, self._end - self.position)

    def _bytes(self, field: int, end: int, *, nullable: bool) -> tuple[int, int] | None:
        length = self._varint(field, end)
        if length == -1 and nullable:
            return None
        if not 0 <= length <= end - self.position:
            raise self._fault(Fault.LENGTH, field, length, end - self.position)
        start = self.position
        self.position += length
        return start, self.position

    def _varint(self, field: int, end: int, bits: int = 32) -> int:
        raw = 0
        shift = 0
        while True:
            if self.position >= end:
                raise self._fault(Fault.CUT, field)
            byte = self.view[self.position]
            self.position += 1
            if shift + 7 > bits and byte >> (bits - shift):
                raise self._fault(Fault.OVERLONG, field)
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def _fault(self, fault: int, field: int, first: int = 0, second: int = 0) -> Exception:
        return record_error(fault, field, self.index, first, second)


def walk_records(
    payload: Buffer,
    header: BatchHeader,
    *,
    keys_required: bool = False,
    earliest_timestamp: int = MIN_INT64,
    latest_timestamp: int = MAX_INT64,
) -> int:
    """Read every record of an uncompressed section and return the largest record timestamp; -1 without records.

    Log append time is not considered: the timestamps are the records' own. A timestamp of -1 (none) passes both limits.
    Raises InvalidRecord (code 87) or InvalidTimestamp (code 32), which name the record's index and what is wrong with
    it.
    """
    section = Section(memoryview(payload).cast("B"), header)
    largest = None
    for index in range(section.count):
        timestamp = section.next_record(keys_required).timestamp
        if timestamp != -1:
            if timestamp < earliest_timestamp:
                raise record_error(Fault.TOO_EARLY, 0, index, timestamp, earliest_timestamp)
            if timestamp > latest_timestamp:
                raise record_error(Fault.TOO_LATE, 0, index, timestamp, latest_timestamp)
        largest = timestamp if largest is None else max(largest, timestamp)
    section.check_end()
    return -1 if largest is None else largest
