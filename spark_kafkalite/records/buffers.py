"""Plain buffers in Arrow's memory layout: the columns of headers, and repairs that both twins of the kernel share.

A variable-length column is ``offsets`` int32[n+1] and ``data``; a validity bitmap has a bit per row, least significant
first, 1 for a value and 0 for null, and is None when nothing is null. Everything here satisfies the buffer protocol, so
``pyarrow.py_buffer`` wraps it without a copy. No pyarrow here: a broker imports this.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

# Stands for every contiguous object of the buffer protocol: Python 3.11 has no name for them (PEP 688 came later).
Buffer: TypeAlias = "bytes | bytearray | memoryview | array[int]"


class HeaderColumns(NamedTuple):
    """Headers of n records, m headers in all, as Arrow's ``list<struct<key: utf8, value: binary>>`` lays them out.

    ``list_offsets`` int32[n+1], ``list_validity`` of n rows (a record without headers is null, as in Spark's source),
    ``key_offsets`` and ``value_offsets`` int32[m+1]; keys are never null and always valid UTF-8.
    """

    list_offsets: Buffer
    list_validity: Buffer | None
    key_offsets: Buffer
    key_data: Buffer
    value_offsets: Buffer
    value_data: Buffer
    value_validity: Buffer | None


def as_int32(buffer: Buffer) -> memoryview:
    """Return a view of the buffer's whole int32 numbers."""
    view = memoryview(buffer).cast("B")
    return view[: len(view) // 4 * 4].cast("i")


def as_int64(buffer: Buffer) -> memoryview:
    """Return a view of the buffer's whole int64 numbers."""
    view = memoryview(buffer).cast("B")
    return view[: len(view) // 8 * 8].cast("q")


def bit_at(bitmap: Buffer | None, row: int) -> bool:
    """Return whether the row holds a value."""
    return bitmap is None or bool(memoryview(bitmap).cast("B")[row >> 3] >> (row & 7) & 1)


def shift_bitmap(bitmap: Buffer | None, first_row: int, row_count: int) -> bytes | None:
    """Return the bitmap of ``row_count`` rows from ``first_row`` on, moved to bit 0, as slices of Arrow arrays need."""
    if bitmap is None:
        return None
    last_byte = (first_row + row_count + 7) // 8
    number = int.from_bytes(memoryview(bitmap).cast("B")[first_row // 8 : last_byte], "little") >> (first_row % 8)
    return (number & ((1 << row_count) - 1)).to_bytes((row_count + 7) // 8, "little")


def with_valid_keys(headers: HeaderColumns) -> HeaderColumns:
    """Return the headers with every byte sequence in a key that is not UTF-8 replaced by U+FFFD.

    The protocol requires keys in UTF-8, but no broker checks it, and readers of an Arrow string column rely on it.
    Kafka's Java client replaces in the same way. Returns its argument when there is nothing to replace, which is nearly
    always.
    """
    data = bytes(headers.key_data)
    offsets = as_int32(headers.key_offsets)
    keys = [data[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]
    repaired = [key.decode("utf-8", "replace").encode() for key in keys]
    if repaired == keys:
        return headers
    new_offsets = array("i", [0])
    position = 0
    for key in repaired:
        position += len(key)
        new_offsets.append(position)
    return headers._replace(key_offsets=memoryview(new_offsets), key_data=b"".join(repaired))
