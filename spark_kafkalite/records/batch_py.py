"""The kernel in Python: the reference that the native twin is held to, and what runs where no compiler was.

Owns everything that touches the bytes of a record batch: reading and checking headers, walking records, decoding them
to columns, encoding them one by one or from columns, stamping what a broker owns, and Kafka's key hash.
``_kernel.pyx`` has the same names, signatures, results, exceptions and texts; tests/twins holds the two together.
Import through ``records.kernel``, which picks one.

Order of checks is part of the contract, because the first fault found names the error. Nothing read from a batch is
trusted: every length is checked against the bytes left before it is used, and no room is made that the bytes at hand
do not justify. Layout: see ``layout``. Columns: see ``buffers``.
"""

from __future__ import annotations

import operator
from array import array
from typing import Any, NamedTuple, TypeAlias

from crc32c import crc32c

from spark_kafkalite.errors import CorruptMessage, SerializationError
from spark_kafkalite.model import Headers, Record
from spark_kafkalite.records import layout
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.buffers import (
    Buffer,
    HeaderColumns,
    as_int32,
    as_int64,
    bit_at,
    with_valid_keys,
)
from spark_kafkalite.records.layout import (
    HEADER_BYTES,
    MAX_INT32,
    MAX_INT64,
    MIN_INT64,
    BatchHeader,
    Fault,
    Field,
    record_error,
)

IS_NATIVE = False

# What a row of columns takes beside its bytes: offset, timestamp, timestamp type, key and value offset. A header: two
# offsets.
_ROW_BYTES = 28
_HEADER_ROW_BYTES = 8


# Headers --------------------------------------------------------------------------------------------------------------


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position``; the rest of the batch need not be there.

    Raises CorruptMessage (code 2) when the header is cut, the magic is not 2, or the length is none that a batch can
    have.
    """
    view = memoryview(buffer).cast("B")
    available = _available(view, position)
    if available < HEADER_BYTES:
        raise layout.too_short(position, available)
    header = BatchHeader._make(layout.HEADER_STRUCT.unpack_from(view, position))
    if header.magic != layout.MAGIC:
        raise layout.bad_magic(position, header.magic)
    _check_length(position, header.batch_length)
    return header


def scan_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> list[BatchHeader]:
    """Return the headers of the whole batches between ``position`` and ``end``; a batch that is cut off ends the list.

    Raises CorruptMessage (code 2) at a header that no batch can have.
    """
    view = memoryview(buffer).cast("B")
    available = _available(view, position)
    if end is not None:
        if end < position or end > len(view):
            raise ValueError(f"end {end} is not between position {position} and the buffer's size {len(view)}")
        available = end - position
    headers = []
    while available >= layout.LOG_OVERHEAD:
        # Magic first: the lengths of older versions would only give a confusing error.
        if available > layout.MAGIC_POSITION:
            magic = int.from_bytes(view[position + 16 : position + 17], "big", signed=True)
            if magic != layout.MAGIC:
                raise layout.bad_magic(position, magic)
        batch_length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        _check_length(position, batch_length)
        size_bytes = layout.LOG_OVERHEAD + batch_length
        if size_bytes > available:
            break
        headers.append(BatchHeader._make(layout.HEADER_STRUCT.unpack_from(view, position)))
        position += size_bytes
        available -= size_bytes
    return headers


def check_crc(buffer: Buffer, position: int, size_bytes: int) -> None:
    """Compare the CRC field of the batch at ``position`` with its bytes.

    Raises CorruptMessage (code 2) when they differ, or when the buffer ends before the batch does.
    """
    view = memoryview(buffer).cast("B")
    available = _available(view, position)
    if size_bytes < HEADER_BYTES:
        raise layout.bad_length(position, size_bytes - layout.LOG_OVERHEAD)
    if size_bytes > available:
        raise layout.cut_batch(position, size_bytes, available)
    stored = int.from_bytes(view[position + layout.CRC_POSITION : position + layout.CRC_START], "big")
    computed = crc32c(view[position + layout.CRC_START : position + size_bytes])
    if stored != computed:
        raise layout.bad_crc(position, stored, computed)


def stamp(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
) -> None:
    """Write in place what a broker owns: base offset and leader epoch, and with a time the log append time.

    The CRC covers only the latter, so it is computed anew only then.
    Raises CorruptMessage (code 2) when the batch is cut, TypeError when the buffer cannot be written.
    """
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise TypeError("the batch to stamp must be in a writable buffer")
    header = read_header(view, position)
    available = len(view) - position
    if header.size_bytes > available:
        raise layout.cut_batch(position, header.size_bytes, available)
    view[position : position + 8] = base_offset.to_bytes(8, "big", signed=True)
    view[position + 12 : position + 16] = leader_epoch.to_bytes(4, "big", signed=True)
    if log_append_time_ms is not None:
        attributes = (header.attributes | layout.LOG_APPEND_TIME_BIT) & 0xFFFF
        view[position + 21 : position + 23] = attributes.to_bytes(2, "big")
        view[position + 35 : position + 43] = log_append_time_ms.to_bytes(8, "big", signed=True)
        crc = crc32c(view[position + layout.CRC_START : position + header.size_bytes])
        view[position + 17 : position + 21] = crc.to_bytes(4, "big")


def _available(view: memoryview, position: int) -> int:
    if position < 0 or position > len(view):
        raise ValueError(f"position {position} is not between 0 and the buffer's size {len(view)}")
    return len(view) - position


def _check_length(position: int, batch_length: int) -> None:
    if not layout.MIN_BATCH_LENGTH <= batch_length <= layout.MAX_BATCH_BYTES - layout.LOG_OVERHEAD:
        raise layout.bad_length(position, batch_length)


# Walking records ------------------------------------------------------------------------------------------------------


class _Parsed(NamedTuple):
    """One record: numbers, and (start, end) positions of its parts in the section; key and value None for null."""

    timestamp: int
    offset_delta: int
    key: tuple[int, int] | None
    value: tuple[int, int] | None
    headers: list[tuple[tuple[int, int], tuple[int, int] | None]]


class _Section:
    """Reads the records of one uncompressed section in order, checking everything that the format says about them."""

    __slots__ = (
        "_base_timestamp",
        "_end",
        "_last_offset_delta",
        "_position",
        "_view",
        "count",
        "index",
        "previous_delta",
    )

    def __init__(self, view: memoryview, header: BatchHeader) -> None:
        self._view = view
        self._position = 0
        self._end = len(view)
        self._base_timestamp = header.base_timestamp
        self._last_offset_delta = header.last_offset_delta
        self.count = header.record_count
        self.index = 0
        self.previous_delta = -1
        if not 0 <= self.count <= len(view) // layout.MIN_RECORD_BYTES:
            raise record_error(Fault.COUNT, 0, 0, self.count, len(view))

    def next_record(self, keys_required: bool) -> _Parsed:
        length = self._varint(Field.RECORD_LENGTH, self._end)
        if not 0 <= length <= self._end - self._position:
            raise self._fault(Fault.LENGTH, Field.RECORD_LENGTH, length, self._end - self._position)
        end = self._position + length
        if self._position >= end:
            raise self._fault(Fault.CUT, Field.ATTRIBUTES)
        self._position += 1
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
        if not 0 <= header_count <= (end - self._position) // 2:
            raise self._fault(Fault.LENGTH, Field.HEADER_COUNT, header_count, end - self._position)
        headers = []
        for _ in range(header_count):
            header_key = self._bytes(Field.HEADER_KEY_LENGTH, end, nullable=False)
            assert header_key is not None
            headers.append((header_key, self._bytes(Field.HEADER_VALUE_LENGTH, end, nullable=True)))
        if self._position != end:
            raise self._fault(Fault.RECORD_REST, 0, end - self._position)
        self.previous_delta = offset_delta
        self.index += 1
        return _Parsed(timestamp, offset_delta, key, value, headers)

    def check_end(self) -> None:
        if self._position != self._end:
            raise self._fault(Fault.SECTION_REST, 0, self._end - self._position)

    def _bytes(self, field: int, end: int, *, nullable: bool) -> tuple[int, int] | None:
        length = self._varint(field, end)
        if length == -1 and nullable:
            return None
        if not 0 <= length <= end - self._position:
            raise self._fault(Fault.LENGTH, field, length, end - self._position)
        start = self._position
        self._position += length
        return start, self._position

    def _varint(self, field: int, end: int, bits: int = 32) -> int:
        raw = 0
        shift = 0
        while True:
            if self._position >= end:
                raise self._fault(Fault.CUT, field)
            byte = self._view[self._position]
            self._position += 1
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

    Log append time is not looked at: the timestamps are the records' own. A timestamp of -1 (none) passes both limits.
    Raises InvalidRecord (code 87) or InvalidTimestamp (code 32), which name the record's index and what is wrong with
    it.
    """
    section = _Section(memoryview(payload).cast("B"), header)
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


# Columns --------------------------------------------------------------------------------------------------------------


class Columns:
    """Rows of records as buffers in Arrow's layout; decoding makes them, encoding takes them.

    ``offsets`` int64[n], ``timestamps`` int64[n] in ms (None, or -1 in a row: no timestamp), ``timestamp_types``
    int32[n], ``key_offsets`` and ``value_offsets`` int32[n+1] (None: every row is null), ``*_validity`` bitmaps
    (None: no row is null), ``headers`` (None: not decoded, or no row has any). ``next_offset``: the first offset
    after everything that was decoded, also where that had no row. Buffers are kept, not copied.
    """

    __slots__ = (
        "count",
        "headers",
        "key_data",
        "key_offsets",
        "key_validity",
        "next_offset",
        "offsets",
        "timestamp_types",
        "timestamps",
        "value_data",
        "value_offsets",
        "value_validity",
    )

    def __init__(
        self,
        count: int,
        *,
        offsets: Buffer | None = None,
        timestamps: Buffer | None = None,
        timestamp_types: Buffer | None = None,
        key_offsets: Buffer | None = None,
        key_data: Buffer = b"",
        key_validity: Buffer | None = None,
        value_offsets: Buffer | None = None,
        value_data: Buffer = b"",
        value_validity: Buffer | None = None,
        headers: HeaderColumns | None = None,
        next_offset: int = 0,
    ) -> None:
        if not 0 <= count < MAX_INT32:
            raise ValueError(f"row count {count} is not between 0 and {MAX_INT32 - 1}")
        _check_room("offsets", offsets, 8 * count)
        _check_room("timestamps", timestamps, 8 * count)
        _check_room("timestamp_types", timestamp_types, 4 * count)
        _check_room("key_offsets", key_offsets, 4 * count + 4)
        _check_room("key_data", key_data, 0)
        _check_room("key_validity", key_validity, (count + 7) // 8)
        _check_room("value_offsets", value_offsets, 4 * count + 4)
        _check_room("value_data", value_data, 0)
        _check_room("value_validity", value_validity, (count + 7) // 8)
        if headers is not None:
            _check_room("headers.list_offsets", headers.list_offsets, 4 * count + 4)
            _check_room("headers.list_validity", headers.list_validity, (count + 7) // 8)
            for name in ("key_offsets", "key_data", "value_offsets", "value_data", "value_validity"):
                _check_room(f"headers.{name}", getattr(headers, name), 0)
        self.count = count
        self.offsets = offsets
        self.timestamps = timestamps
        self.timestamp_types = timestamp_types
        self.key_offsets = key_offsets
        self.key_data = key_data
        self.key_validity = key_validity
        self.value_offsets = value_offsets
        self.value_data = value_data
        self.value_validity = value_validity
        self.headers = headers
        self.next_offset = next_offset

    def __len__(self) -> int:
        return self.count

    def offset_at(self, row: int) -> int:
        """Return the row's offset, -1 when the columns have none."""
        self._check_row(row)
        return -1 if self.offsets is None else int(as_int64(self.offsets)[row])

    def timestamp_at(self, row: int) -> int:
        """Return the row's timestamp in ms, -1 when it has none."""
        self._check_row(row)
        return -1 if self.timestamps is None else int(as_int64(self.timestamps)[row])

    def timestamp_type_at(self, row: int) -> int:
        """Return 0 (create time) or 1 (log append time), -1 when the columns do not say."""
        self._check_row(row)
        return -1 if self.timestamp_types is None else int(as_int32(self.timestamp_types)[row])

    def key_at(self, row: int) -> bytes | None:
        """Return a copy of the row's key."""
        self._check_row(row)
        return _cell("key", row, self.key_offsets, self.key_data, self.key_validity)

    def value_at(self, row: int) -> bytes | None:
        """Return a copy of the row's value."""
        self._check_row(row)
        return _cell("value", row, self.value_offsets, self.value_data, self.value_validity)

    def headers_at(self, row: int) -> Headers:
        """Return the row's headers in order, empty when it has none."""
        self._check_row(row)
        headers = self.headers
        if headers is None or not bit_at(headers.list_validity, row):
            return []
        first, until = _range("headers", row, headers.list_offsets, _header_row_count(headers))
        return [
            (
                (_cell("header key", i, headers.key_offsets, headers.key_data, None) or b"").decode("utf-8", "replace"),
                _cell("header value", i, headers.value_offsets, headers.value_data, headers.value_validity),
            )
            for i in range(first, until)
        ]

    def records(self, topic: str, partition: int, first_row: int, until_row: int) -> list[Record]:
        """Return the rows as records; they keep these columns alive."""
        if not 0 <= first_row <= until_row <= self.count:
            raise IndexError(f"rows {first_row} to {until_row} are not within the {self.count} rows")
        return [Record(self, row, topic, partition) for row in range(first_row, until_row)]

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} is not within the {self.count} rows")


def _check_room(name: str, buffer: Buffer | None, needed: int) -> None:
    if buffer is None:
        return
    size = memoryview(buffer).cast("B").nbytes
    if size < needed:
        raise ValueError(f"{name} has {size} bytes, the rows need {needed}")


def _header_row_count(headers: HeaderColumns) -> int:
    """Return how many headers all of the header buffers can hold."""
    rows = min(len(as_int32(headers.key_offsets)), len(as_int32(headers.value_offsets))) - 1
    if headers.value_validity is not None:
        rows = min(rows, 8 * memoryview(headers.value_validity).nbytes)
    return max(rows, 0)


def _range(name: str, row: int, offsets: Buffer, limit: int) -> tuple[int, int]:
    numbers = as_int32(offsets)
    start, end = numbers[row], numbers[row + 1]
    if not 0 <= start <= end <= limit:
        raise ValueError(f"{name} offsets {start} to {end} of row {row} are not within the {limit} that there are")
    return start, end


def _cell(name: str, row: int, offsets: Buffer | None, data: Buffer, validity: Buffer | None) -> bytes | None:
    if offsets is None or not bit_at(validity, row):
        return None
    view = memoryview(data).cast("B")
    start, end = _range(name, row, offsets, len(view))
    return bytes(view[start:end])


# Decoding to columns --------------------------------------------------------------------------------------------------


class _Bytes:
    """One growing variable-length column. Its validity bitmap comes into being with the first null."""

    __slots__ = ("data", "offsets", "validity")

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.validity: list[bool] = []

    def append(self, cell: memoryview | None) -> None:
        if cell is not None:
            self.data += cell
        self.offsets.append(len(self.data))
        self.validity.append(cell is not None)

    def truncate(self, count: int) -> None:
        del self.offsets[count + 1 :]
        del self.data[self.offsets[-1] :]
        del self.validity[count:]


def _bitmap(validity: list[bool]) -> bytes | None:
    if all(validity):
        return None
    number = sum(1 << row for row, is_valid in enumerate(validity) if is_valid)
    return number.to_bytes((len(validity) + 7) // 8, "little")


class ColumnBuilder:
    """Decodes batches, one after the other, into one set of columns, up to a number of rows or bytes.

    It takes what fits and stops in the middle of a batch: ``next_offset`` is then the offset of the first record it did
    not take, for the next builder's ``first_offset``, and ``is_full`` is true; a full builder takes nothing more. The
    first row always fits. ``size_bytes`` counts keys, values, header keys and values, 28 bytes a row and 8 a header,
    and ``max_bytes`` is at most 2^31-1, so that no int32 offset can overflow.
    """

    __slots__ = (
        "_header_keys",
        "_header_values",
        "_keys",
        "_list_offsets",
        "_max_bytes",
        "_max_rows",
        "_offsets",
        "_size_bytes",
        "_stopped",
        "_timestamp_types",
        "_timestamps",
        "_values",
        "_with_headers",
        "next_offset",
    )

    def __init__(self, with_headers: bool = True, max_rows: int = MAX_INT32 - 1, max_bytes: int = MAX_INT32) -> None:
        if not 1 <= max_rows < MAX_INT32:
            raise ValueError(f"max_rows {max_rows} is not between 1 and {MAX_INT32 - 1}")
        if not 1 <= max_bytes <= MAX_INT32:
            raise ValueError(f"max_bytes {max_bytes} is not between 1 and {MAX_INT32}")
        self._with_headers = bool(with_headers)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.next_offset = 0
        self._clear()

    def _clear(self) -> None:
        self._offsets = array("q")
        self._timestamps = array("q")
        self._timestamp_types = array("i")
        self._keys = _Bytes()
        self._values = _Bytes()
        self._list_offsets = array("i", [0])
        self._header_keys = _Bytes()
        self._header_values = _Bytes()
        self._size_bytes = 0
        self._stopped = False

    @property
    def count(self) -> int:
        """Rows taken so far."""
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """Bytes that the columns take so far, as ``max_bytes`` counts them."""
        return self._size_bytes

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached, so that nothing more is taken."""
        return self._stopped or self.count >= self._max_rows or self._size_bytes >= self._max_bytes

    def add_batch(
        self,
        buffer: Buffer,
        position: int,
        header: BatchHeader,
        payload: Buffer | None = None,
        first_offset: int = 0,
        until_offset: int = MAX_INT64,
    ) -> int:
        """Add the batch's records from ``first_offset`` to before ``until_offset`` and return how many were added.

        ``payload`` is the decompressed records section; it may be None when there is no codec, ``buffer`` may be
        empty when it is given. Control batches add no row. The CRC is the caller's to check.
        Raises InvalidRecord (code 87) or CorruptMessage (code 2), and then has added nothing of the batch.
        """
        if self.is_full:
            return 0
        if header.base_offset < 0 or header.base_offset > MAX_INT64 - MAX_INT32 - 1:
            raise CorruptMessage(f"record batch: base offset {header.base_offset} is not an offset of a log")
        if header.is_control:
            self._move_to(min(header.base_offset + header.last_offset_delta + 1, until_offset))
            return 0
        section = _Section(_section_view(buffer, position, header, payload), header)
        count, size_bytes = self.count, self._size_bytes
        try:
            next_offset = self._add_rows(section, header, first_offset, until_offset)
        except Exception:
            self._truncate(count, size_bytes)
            raise
        self._move_to(next_offset)
        return self.count - count

    def _add_rows(self, section: _Section, header: BatchHeader, first_offset: int, until_offset: int) -> int:
        view = section._view
        is_append_time = bool(header.attributes & layout.LOG_APPEND_TIME_BIT)
        for _ in range(section.count):
            record = section.next_record(False)
            offset = header.base_offset + record.offset_delta
            if offset < first_offset:
                continue
            if offset >= until_offset:
                return until_offset
            size = _ROW_BYTES + sum(end - start for start, end in filter(None, (record.key, record.value)))
            if self._with_headers:
                size += sum(
                    _HEADER_ROW_BYTES + key[1] - key[0] + (value[1] - value[0] if value else 0)
                    for key, value in record.headers
                )
            if self.count and (self.count >= self._max_rows or self._size_bytes + size > self._max_bytes):
                self._stopped = True
                return offset
            self._offsets.append(offset)
            self._timestamps.append(header.max_timestamp if is_append_time else record.timestamp)
            self._timestamp_types.append(int(is_append_time))
            self._keys.append(record.key and view[record.key[0] : record.key[1]])
            self._values.append(record.value and view[record.value[0] : record.value[1]])
            self._size_bytes += size
            if self._with_headers:
                for key, value in record.headers:
                    self._header_keys.append(view[key[0] : key[1]])
                    self._header_values.append(value and view[value[0] : value[1]])
                self._list_offsets.append(len(self._header_keys.validity))
        section.check_end()
        return min(header.base_offset + header.last_offset_delta + 1, until_offset)

    def _move_to(self, next_offset: int) -> None:
        self.next_offset = max(self.next_offset, next_offset)

    def _truncate(self, count: int, size_bytes: int) -> None:
        del self._offsets[count:], self._timestamps[count:], self._timestamp_types[count:]
        self._keys.truncate(count)
        self._values.truncate(count)
        if self._with_headers:
            del self._list_offsets[count + 1 :]
            self._header_keys.truncate(self._list_offsets[-1])
            self._header_values.truncate(self._list_offsets[-1])
        self._size_bytes = size_bytes

    def finish(self) -> Columns:
        """Return the columns and start anew, empty; ``next_offset`` stays."""
        headers = None
        if self._with_headers:
            list_validity = [a != b for a, b in zip(self._list_offsets, self._list_offsets[1:], strict=False)]
            headers = HeaderColumns(
                memoryview(self._list_offsets),
                _bitmap(list_validity),
                memoryview(self._header_keys.offsets),
                self._header_keys.data,
                memoryview(self._header_values.offsets),
                self._header_values.data,
                _bitmap(self._header_values.validity),
            )
            if not self._header_keys.data.isascii():
                headers = with_valid_keys(headers)
        columns = Columns(
            self.count,
            offsets=memoryview(self._offsets),
            timestamps=memoryview(self._timestamps),
            timestamp_types=memoryview(self._timestamp_types),
            key_offsets=memoryview(self._keys.offsets),
            key_data=self._keys.data,
            key_validity=_bitmap(self._keys.validity),
            value_offsets=memoryview(self._values.offsets),
            value_data=self._values.data,
            value_validity=_bitmap(self._values.validity),
            headers=headers,
            next_offset=self.next_offset,
        )
        self._clear()
        return columns


def _section_view(buffer: Buffer, position: int, header: BatchHeader, payload: Buffer | None) -> memoryview:
    if payload is not None:
        return memoryview(payload).cast("B")
    if header.codec:
        raise ValueError(f"the batch has codec {header.codec}: its decompressed records section must be given")
    view = memoryview(buffer).cast("B")
    available = _available(view, position)
    if header.batch_length < layout.MIN_BATCH_LENGTH:
        raise layout.bad_length(position, header.batch_length)
    if header.size_bytes > available:
        raise layout.cut_batch(position, header.size_bytes, available)
    return view[position + HEADER_BYTES : position + header.size_bytes]


# Encoding -------------------------------------------------------------------------------------------------------------


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint_size(number: int) -> int:
    return max(1, (_zigzag(number).bit_length() + 6) // 7)


def _put_varint(out: bytearray, number: int) -> None:
    rest = _zigzag(number)
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _put_bytes(out: bytearray, cell: Buffer | None) -> None:
    if cell is None:
        _put_varint(out, -1)
    else:
        _put_varint(out, len(cell))
        out += cell


def _bytes_size(cell: Buffer | None) -> int:
    return 1 if cell is None else _varint_size(len(cell)) + len(cell)


_EncodedHeaders: TypeAlias = "list[tuple[bytes, Buffer | None]]"


def _body_size(
    timestamp_delta: int, offset_delta: int, key: Buffer | None, value: Buffer | None, headers: _EncodedHeaders
) -> int:
    return (
        1
        + _varint_size(timestamp_delta)
        + _varint_size(offset_delta)
        + _bytes_size(key)
        + _bytes_size(value)
        + _varint_size(len(headers))
        + sum(_bytes_size(name) + _bytes_size(cell) for name, cell in headers)
    )


def _put_record(
    out: bytearray,
    body_size: int,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: _EncodedHeaders,
) -> None:
    _put_varint(out, body_size)
    out.append(0)
    _put_varint(out, timestamp_delta)
    _put_varint(out, offset_delta)
    _put_bytes(out, key)
    _put_bytes(out, value)
    _put_varint(out, len(headers))
    for name, cell in headers:
        _put_bytes(out, name)
        _put_bytes(out, cell)


def _checked_bytes(what: str, data: Any) -> Buffer | None:
    if data is None or type(data) is bytes:
        return data
    try:
        return memoryview(data).cast("B")
    except (TypeError, BufferError):
        raise SerializationError(
            f"{what} is {type(data).__name__}, must be bytes-like and contiguous, or None"
        ) from None


def _checked_timestamp(timestamp_ms: Any) -> int:
    try:
        number = operator.index(timestamp_ms)
    except TypeError:
        raise SerializationError(
            f"timestamp is {type(timestamp_ms).__name__}, must be int (milliseconds since the epoch)"
        ) from None
    if not -1 <= number <= layout.MAX_TIMESTAMP:
        raise SerializationError(layout.timestamp_problem(number))
    return number


def _checked_headers(headers: Any) -> _EncodedHeaders:
    if headers is None:
        return []
    if not isinstance(headers, (list, tuple)):
        raise SerializationError(
            f"headers is {type(headers).__name__}, must be a list or tuple of (str, bytes or None) pairs, or None"
        )
    checked: _EncodedHeaders = []
    for i, pair in enumerate(headers):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise SerializationError(f"header {i} is not a (str, bytes or None) pair")
        name, cell = pair
        if not isinstance(name, str):
            raise SerializationError(f"key of header {i} is {type(name).__name__}, must be str")
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise SerializationError(f"key of header {i} cannot be encoded as UTF-8") from None
        checked.append((encoded, _checked_bytes(f"value of header {i}", cell)))
    return checked


class OpenBatch:
    """A batch under construction, record by record: the producer's per-record path.

    ``size_bytes`` is exactly what ``build`` returns without a codec. Timestamps may go down as well as up.
    """

    __slots__ = ("_base_timestamp", "_buffer", "_max_bytes", "_max_timestamp", "count")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray(HEADER_BYTES)
        self._base_timestamp = -1
        self._max_timestamp = -1
        self.count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch, header included, before compression."""
        return len(self._buffer)

    @property
    def base_timestamp(self) -> int:
        """Timestamp of the first record, -1 without one."""
        return self._base_timestamp

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp so far, -1 without one."""
        return self._max_timestamp

    def append(
        self, timestamp_ms: int, key: Buffer | None, value: Buffer | None, headers: Headers | None = None
    ) -> int:
        """Append a record and return its index, or return -1 when it would take the batch past ``max_bytes``.

        The first record always fits. ``timestamp_ms`` -1 is none.
        Raises SerializationError when a part is not what the format can hold; nothing is appended then.
        """
        timestamp = _checked_timestamp(timestamp_ms)
        key = _checked_bytes("key", key)
        value = _checked_bytes("value", value)
        encoded = _checked_headers(headers)
        delta = timestamp - self._base_timestamp if self.count else 0
        body_size = _body_size(delta, self.count, key, value, encoded)
        size_bytes = len(self._buffer) + _varint_size(body_size) + body_size
        if size_bytes > self._max_bytes and self.count:
            return -1
        if size_bytes > layout.MAX_BATCH_BYTES:
            if self.count:
                return -1
            raise layout.too_large(size_bytes)
        _put_record(self._buffer, body_size, delta, self.count, key, value, encoded)
        if self.count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        else:
            self._max_timestamp = max(self._max_timestamp, timestamp)
        self.count += 1
        return self.count - 1

    def build(
        self,
        codec: int = 0,
        level: int | None = None,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray:
        """Return the whole batch, compressed with ``codec``; may be called again.

        Raises ValueError without a record.
        """
        if self.count == 0:
            raise ValueError("a batch without records cannot be built")
        return assemble(
            bytearray(self._buffer),
            SectionFacts(self.count, self._base_timestamp, self._max_timestamp),
            codec,
            level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )


def encode_columns(
    columns: Columns, rows: Buffer | None, first: int, until: int, max_bytes: int, *, now_ms: int
) -> tuple[bytearray, SectionFacts, int]:
    """Encode rows into one batch and return (buffer, facts, next): what ``assemble`` needs, and where to go on.

    ``rows``: int32 row numbers, in the order in which they are to be written, or None for the rows themselves;
    ``first`` and ``until`` are positions in ``rows``, or row numbers. Stops before the row that would take the batch
    past ``max_bytes`` (uncompressed, header included); the first always fits. ``buffer`` has the header's bytes free
    and is exactly as long as the uncompressed batch. A row without a timestamp gets ``now_ms``.
    Raises SerializationError when a row cannot be written, ValueError when the buffers contradict each other.
    """
    selection = None if rows is None else as_int32(rows)
    limit = columns.count if selection is None else len(selection)
    if not 0 <= first < until <= limit:
        raise ValueError(f"rows {first} to {until} are not at least one row within the {limit} given")
    if not -1 <= now_ms <= layout.MAX_TIMESTAMP:
        raise ValueError(layout.timestamp_problem(now_ms))
    out = bytearray(HEADER_BYTES)
    base = largest = -1
    index = first
    while index < until:
        row = index if selection is None else selection[index]
        if not 0 <= row < columns.count:
            raise ValueError(f"row {row} is not within the {columns.count} rows")
        timestamp = columns.timestamp_at(row)
        if not -1 <= timestamp <= layout.MAX_TIMESTAMP:
            raise SerializationError(f"row {row}: {layout.timestamp_problem(timestamp)}")
        if timestamp == -1:
            timestamp = now_ms
        if index == first:
            base = timestamp
        key, value = columns.key_at(row), columns.value_at(row)
        headers = _encoded_headers_at(columns, row)
        delta, offset_delta = timestamp - base, index - first
        body_size = _body_size(delta, offset_delta, key, value, headers)
        size_bytes = len(out) + _varint_size(body_size) + body_size
        if index > first and (size_bytes > max_bytes or size_bytes > layout.MAX_BATCH_BYTES):
            break
        if size_bytes > layout.MAX_BATCH_BYTES:
            raise layout.too_large(size_bytes)
        _put_record(out, body_size, delta, offset_delta, key, value, headers)
        largest = max(largest, timestamp)
        index += 1
    return out, SectionFacts(index - first, base, largest), index


def _encoded_headers_at(columns: Columns, row: int) -> _EncodedHeaders:
    headers = columns.headers
    if headers is None or not bit_at(headers.list_validity, row):
        return []
    first, until = _range("headers", row, headers.list_offsets, _header_row_count(headers))
    return [
        (
            _cell("header key", i, headers.key_offsets, headers.key_data, None) or b"",
            _cell("header value", i, headers.value_offsets, headers.value_data, headers.value_validity),
        )
        for i in range(first, until)
    ]


# Choosing partitions --------------------------------------------------------------------------------------------------


def murmur2(data: Buffer) -> int:
    """Return Kafka's 32-bit hash of a key, unsigned; the partitioner masks it with 0x7fffffff.

    Source: org.apache.kafka.common.utils.Utils.murmur2.
    """
    view = memoryview(data).cast("B")
    length = len(view)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ length) & mask
    for position in range(0, length - 3, 4):
        k = int.from_bytes(view[position : position + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = view[length & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_by_key(columns: Columns, partition_count: int) -> array[int]:
    """Return int32[n]: the partition that Kafka's partitioner gives each row's key, -1 where there is no key."""
    if not 1 <= partition_count <= MAX_INT32:
        raise ValueError(f"partition count {partition_count} is not between 1 and {MAX_INT32}")
    partitions = array("i")
    for row in range(columns.count):
        key = columns.key_at(row)
        partitions.append(-1 if key is None else (murmur2(key) & MAX_INT32) % partition_count)
    return partitions


def group_rows(partitions: Buffer, partition_count: int) -> list[array[int]]:
    """Return the int32 numbers of each partition's rows, in order; ``partitions``: int32[n], a number for each row."""
    if not 1 <= partition_count <= MAX_INT32:
        raise ValueError(f"partition count {partition_count} is not between 1 and {MAX_INT32}")
    groups = [array("i") for _ in range(partition_count)]
    for row, partition in enumerate(as_int32(partitions)):
        if not 0 <= partition < partition_count:
            raise ValueError(f"partition {partition} of row {row} is not between 0 and {partition_count - 1}")
        groups[partition].append(row)
    return groups
