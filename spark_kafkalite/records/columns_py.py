"""Columns of records and how a row is looked up in them, in Python. Part of ``batch_py``."""

from __future__ import annotations

from spark_kafkalite.model import Headers, Record
from spark_kafkalite.records.buffers import Buffer, HeaderColumns, as_int32, as_int64, bit_at
from spark_kafkalite.records.layout import MAX_INT32


class Columns:
    """Rows of records as buffers in Arrow's layout; decoding makes them, encoding takes them.

    ``offsets`` int64[n], ``timestamps`` int64[n] in ms (None, or -1 in a row: no timestamp), ``timestamp_types``
    int32[n], ``key_offsets`` and ``value_offsets`` int32[n+1] (None: every row is null). ``*_validity`` bitmaps (None:
    no row is null), ``headers`` (None: not decoded, or no row has any). ``next_offset``: the first offset after
    everything that was decoded, also where that had no row. Buffers are kept, not copied.
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
        """Return 0 (create time) or 1 (log append time), -1 when the columns do not have it."""
        self._check_row(row)
        return -1 if self.timestamp_types is None else int(as_int32(self.timestamp_types)[row])

    def key_at(self, row: int) -> bytes | None:
        """Return a copy of the row's key."""
        self._check_row(row)
        return cell_at("key", row, self.key_offsets, self.key_data, self.key_validity)

    def value_at(self, row: int) -> bytes | None:
        """Return a copy of the row's value."""
        self._check_row(row)
        return cell_at("value", row, self.value_offsets, self.value_data, self.value_validity)

    def headers_at(self, row: int) -> Headers:
        """Return the row's headers in order, empty when it has none."""
        self._check_row(row)
        headers = self.headers
        if headers is None or not bit_at(headers.list_validity, row):
            return []
        first, until = cell_range("headers", row, headers.list_offsets, header_row_count(headers))
        return [
            (
                _header_key(headers, i),
                cell_at("header value", i, headers.value_offsets, headers.value_data, headers.value_validity),
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


def _header_key(headers: HeaderColumns, number: int) -> str:
    key = cell_at("header key", number, headers.key_offsets, headers.key_data, None) or b""
    return key.decode("utf-8", "replace")


def _check_room(name: str, buffer: Buffer | None, needed: int) -> None:
    if buffer is None:
        return
    size = memoryview(buffer).cast("B").nbytes
    if size < needed:
        raise ValueError(f"{name} has {size} bytes, the rows need {needed}")


def header_row_count(headers: HeaderColumns) -> int:
    """Return how many headers all of the header buffers can hold."""
    rows = min(len(as_int32(headers.key_offsets)), len(as_int32(headers.value_offsets))) - 1
    if headers.value_validity is not None:
        rows = min(rows, 8 * memoryview(headers.value_validity).nbytes)
    return max(rows, 0)


def cell_range(name: str, row: int, offsets: Buffer, limit: int) -> tuple[int, int]:
    numbers = as_int32(offsets)
    start, end = numbers[row], numbers[row + 1]
    if not 0 <= start <= end <= limit:
        raise ValueError(f"{name} offsets {start} to {end} of row {row} are not within the {limit} that there are")
    return start, end


def cell_at(name: str, row: int, offsets: Buffer | None, data: Buffer, validity: Buffer | None) -> bytes | None:
    if offsets is None or not bit_at(validity, row):
        return None
    view = memoryview(data).cast("B")
    start, end = cell_range(name, row, offsets, len(view))
    return bytes(view[start:end])
