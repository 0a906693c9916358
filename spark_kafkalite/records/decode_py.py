"""Batches to columns, in Python. Part of ``batch_py``."""

from __future__ import annotations

from array import array

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records import layout
from spark_kafkalite.records.buffers import Buffer, HeaderColumns, with_valid_keys
from spark_kafkalite.records.columns_py import Columns
from spark_kafkalite.records.header_py import bytes_from
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, MAX_INT64, BatchHeader
from spark_kafkalite.records.section_py import Section

# What a row of columns takes beside its bytes: offset, timestamp, its type, two cell offsets. A header: two offsets.
_ROW_BYTES = 28
_HEADER_ROW_BYTES = 8


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

        ``payload`` is the decompressed records section; it may be None when there is no codec, ``buffer`` may be empty
        when it is given. Control batches add no row. The caller checks the CRC.
        Raises InvalidRecord (code 87) or CorruptMessage (code 2); then no row of the batch was added.
        """
        if self.is_full:
            return 0
        if header.base_offset < 0 or header.base_offset > MAX_INT64 - MAX_INT32 - 1:
            raise CorruptMessage(f"record batch: base offset {header.base_offset} is not an offset of a log")
        if header.is_control:
            self._move_to(min(header.base_offset + header.last_offset_delta + 1, until_offset))
            return 0
        section = Section(_section_view(buffer, position, header, payload), header)
        count, size_bytes = self.count, self._size_bytes
        try:
            next_offset = self._add_rows(section, header, first_offset, until_offset)
        except Exception:
            self._truncate(count, size_bytes)
            raise
        self._move_to(next_offset)
        return self.count - count

    def _add_rows(self, section: Section, header: BatchHeader, first_offset: int, until_offset: int) -> int:
        view = section.view
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
        """Return the columns and start again, empty; ``next_offset`` stays."""
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
    available = bytes_from(view, position)
    if header.batch_length < layout.MIN_BATCH_LENGTH:
        raise layout.bad_length(position, header.batch_length)
    if header.size_bytes > available:
        raise layout.cut_batch(position, header.size_bytes, available)
    return view[position + HEADER_BYTES : position + header.size_bytes]
