"""Columns of records: made from lists, cut from Arrow arrays, or decoded from fetched bytes.

The class itself comes from the kernel, because ``Record`` objects look into it (see ``batch_py.Columns`` for what it
holds). This module has what needs no speed of its own: :func:`columns_from_rows` for callers with Python lists, and
:func:`add_batch`, which consumers and the Spark source call for each fetched batch. No pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from spark_kafkalite.errors import SerializationError
from spark_kafkalite.model import Headers
from spark_kafkalite.records.buffers import Buffer, HeaderColumns, as_int32, as_int64, bit_at, shift_bitmap
from spark_kafkalite.records.compression import decompress
from spark_kafkalite.records.kernel import ColumnBuilder, Columns, check_crc
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, MAX_INT64, BatchHeader

__all__ = [
    "Buffer",
    "ColumnBuilder",
    "Columns",
    "HeaderColumns",
    "add_batch",
    "as_int32",
    "as_int64",
    "bit_at",
    "columns_from_rows",
    "shift_bitmap",
]

# What a fetched batch may decompress to: the broker's own bound (max.decompressed.batch.bytes) may have been raised,
# and brokers other than ours have none, so a reader takes whatever int32 offsets can hold unless told otherwise.
DEFAULT_MAX_DECOMPRESSED_BYTES = MAX_INT32


def batch_payload(
    buffer: Buffer, position: int, header: BatchHeader, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """Return the uncompressed records section of the batch at ``position``: a view, or a new buffer when it has a
    codec.

    Raises InvalidRecord beyond ``max_bytes``, CorruptMessage when the codec cannot read it.
    """
    section = memoryview(buffer).cast("B")[position + HEADER_BYTES : position + header.size_bytes]
    return decompress(header.codec, section, max_bytes) if header.codec else section


def add_batch(
    builder: ColumnBuilder,
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    first_offset: int = 0,
    until_offset: int = MAX_INT64,
    verify_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> int:
    """Check one fetched batch's CRC, decompress it and add its records; returns how many rows were added.

    As ``ColumnBuilder.add_batch``. A caller that may stop in the middle of large compressed batches keeps the payload
    instead (:func:`batch_payload`), so that it is decompressed once.
    """
    if verify_crc:
        check_crc(buffer, position, header.size_bytes)
    payload = None
    if header.codec and not header.is_control:
        payload = batch_payload(buffer, position, header, max_decompressed_bytes)
    return builder.add_batch(buffer, position, header, payload, first_offset, until_offset)


class _CellWriter:
    """One variable-length column, filled from Python objects."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.offsets = array("i", [0])
        self.data = bytearray()
        self._valid: list[bool] = []

    def append(self, cell: Buffer | None) -> None:
        if cell is not None:
            try:
                view = memoryview(cell).cast("B")
            except (TypeError, BufferError):
                raise SerializationError(
                    f"{self._what} of row {len(self._valid)} is {type(cell).__name__}, must be bytes-like and "
                    "contiguous, or None"
                ) from None
            if len(self.data) + len(view) > MAX_INT32:
                raise SerializationError(f"{self._what}s of one set of columns take more than {MAX_INT32} bytes")
            self.data += view
        self.offsets.append(len(self.data))
        self._valid.append(cell is not None)

    @property
    def validity(self) -> bytes | None:
        return bitmap(self._valid)


def bitmap(valid: Sequence[bool]) -> bytes | None:
    """Return the validity bitmap of rows, None when all are valid."""
    if all(valid):
        return None
    return int("".join("1" if each else "0" for each in reversed(valid)), 2).to_bytes((len(valid) + 7) // 8, "little")


def columns_from_rows(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None = None,
    timestamps_ms: Iterable[int | None] | None = None,
    headers: Iterable[Headers | None] | None = None,
) -> Columns:
    """Return columns ready for encoding; the iterables have a member per record, and None stands for none at all.

    Raises SerializationError when a key, value or header is not bytes-like, ValueError when the lengths differ.
    """
    value_cells = _CellWriter("value")
    for value in values:
        value_cells.append(value)
    count = len(value_cells.offsets) - 1
    key_cells = _CellWriter("key")
    for key in keys if keys is not None else ():
        key_cells.append(key)
    if keys is not None and len(key_cells.offsets) != count + 1:
        raise ValueError(f"there are {len(key_cells.offsets) - 1} keys for {count} values")
    timestamps = None
    if timestamps_ms is not None:
        timestamps = array("q", [-1 if each is None else each for each in timestamps_ms])
        if len(timestamps) != count:
            raise ValueError(f"there are {len(timestamps)} timestamps for {count} values")
    return Columns(
        count,
        timestamps=None if timestamps is None else memoryview(timestamps),
        key_offsets=None if keys is None else memoryview(key_cells.offsets),
        key_data=key_cells.data,
        key_validity=None if keys is None else key_cells.validity,
        value_offsets=memoryview(value_cells.offsets),
        value_data=value_cells.data,
        value_validity=value_cells.validity,
        headers=None if headers is None else _header_columns(headers, count),
    )


def _header_columns(rows: Iterable[Headers | None], count: int) -> HeaderColumns:
    list_offsets = array("i", [0])
    valid = []
    names, cells = _CellWriter("header key"), _CellWriter("header value")
    for row in rows:
        for name, cell in row or ():
            if not isinstance(name, str):
                raise SerializationError(f"header key of row {len(valid)} is {type(name).__name__}, must be str")
            names.append(name.encode())
            cells.append(cell)
        list_offsets.append(len(names.offsets) - 1)
        valid.append(bool(row))
    if len(valid) != count:
        raise ValueError(f"there are {len(valid)} rows of headers for {count} values")
    return HeaderColumns(
        memoryview(list_offsets),
        bitmap(valid),
        memoryview(names.offsets),
        names.data,
        memoryview(cells.offsets),
        cells.data,
        cells.validity,
    )
