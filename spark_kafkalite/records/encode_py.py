"""Records to batches, one by one and from columns, in Python. Part of ``batch_py``."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

from spark_kafkalite.errors import SerializationError
from spark_kafkalite.model import Headers
from spark_kafkalite.records import layout
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.buffers import Buffer, as_int32, bit_at
from spark_kafkalite.records.columns_py import Columns, cell_at, cell_range, header_row_count
from spark_kafkalite.records.layout import HEADER_BYTES


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint_size(number: int) -> int:
    return max(1, (_zigzag(number).bit_length() + 6) // 7)


def put_varint(out: bytearray, number: int) -> None:
    rest = _zigzag(number)
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _put_bytes(out: bytearray, cell: Buffer | None) -> None:
    if cell is None:
        put_varint(out, -1)
    else:
        put_varint(out, len(cell))
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
    put_varint(out, body_size)
    out.append(0)
    put_varint(out, timestamp_delta)
    put_varint(out, offset_delta)
    _put_bytes(out, key)
    _put_bytes(out, value)
    put_varint(out, len(headers))
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
    first, until = cell_range("headers", row, headers.list_offsets, header_row_count(headers))
    return [
        (
            cell_at("header key", i, headers.key_offsets, headers.key_data, None) or b"",
            cell_at("header value", i, headers.value_offsets, headers.value_data, headers.value_validity),
        )
        for i in range(first, until)
    ]
