# Batches to columns: the native twin of ``decode_py``. Included by ``_kernel.pyx``, whose rules hold.


cdef struct Bits:
    # A validity bitmap in the making; it comes into being with the first null.
    uint8_t* data
    Py_ssize_t capacity


cdef int _first_null(Bits* bits, Py_ssize_t row, Py_ssize_t row_capacity) noexcept nogil:
    """Make room for the bits of ``row_capacity`` rows and set those before ``row`` if there was no bitmap yet."""
    cdef Py_ssize_t capacity = row_capacity // 8 + 1
    cdef uint8_t* data
    if capacity <= bits.capacity:
        return 0
    data = <uint8_t*>realloc(bits.data, capacity + SLACK)
    if data == NULL:
        return -1
    memset(data + bits.capacity, 0, capacity + SLACK - bits.capacity)
    if bits.capacity == 0:
        memset(data, 0xFF, row >> 3)
        data[row >> 3] = <uint8_t>((1 << (row & 7)) - 1)
    bits.data = data
    bits.capacity = capacity
    return 0


cdef inline int _set_bit(Bits* bits, Py_ssize_t row, bint is_valid, Py_ssize_t row_capacity) noexcept nogil:
    if LIKELY(is_valid and bits.capacity == 0):
        return 0
    if UNLIKELY(row >> 3 >= bits.capacity) and _first_null(bits, row, row_capacity) < 0:
        return -1
    if is_valid:
        bits.data[row >> 3] |= <uint8_t>(1 << (row & 7))
    return 0


cdef void _truncate_bits(Bits* bits, Py_ssize_t row_count, bint existed) noexcept nogil:
    if not existed:
        free(bits.data)
        bits.data = NULL
        bits.capacity = 0
    elif bits.capacity:
        memset(bits.data + (row_count >> 3) + 1, 0, max(bits.capacity - (row_count >> 3) - 1, 0))
        bits.data[row_count >> 3] &= <uint8_t>((1 << (row_count & 7)) - 1)


cdef object _take_bits(Bits* bits, Py_ssize_t row_count):
    cdef Memory memory
    if bits.capacity == 0:
        return None
    memory.data = bits.data
    memory.capacity = bits.capacity
    bits.data = NULL
    bits.capacity = 0
    return _take(&memory, (row_count + 7) // 8, 1)


cdef struct GrowingCells:
    Memory offsets
    Memory data
    Bits bits
    Py_ssize_t size


cdef void _free_cells(GrowingCells* cells) noexcept:
    _release(&cells.offsets)
    _release(&cells.data)
    free(cells.bits.data)
    cells.bits.data = NULL
    cells.bits.capacity = 0
    cells.size = 0


@cython.final
cdef class ColumnBuilder:
    """As ``batch_py.ColumnBuilder``."""

    cdef readonly int64_t next_offset
    cdef Py_ssize_t _count, _header_count, _row_capacity
    cdef int64_t _size_bytes, _max_rows, _max_bytes
    cdef bint _with_headers, _stopped
    cdef bint _has_wide_keys
    cdef Memory _offsets, _timestamps, _timestamp_types, _list_offsets
    cdef Bits _list_bits
    cdef GrowingCells _keys, _values, _header_keys, _header_values

    def __init__(self, with_headers=True, max_rows=MAX_INT32 - 1, max_bytes=MAX_INT32):
        if not 1 <= max_rows < MAX_INT32:
            raise ValueError(f"max_rows {max_rows} is not between 1 and {MAX_INT32 - 1}")
        if not 1 <= max_bytes <= MAX_INT32:
            raise ValueError(f"max_bytes {max_bytes} is not between 1 and {MAX_INT32}")
        self._with_headers = bool(with_headers)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.next_offset = 0

    def __dealloc__(self):
        self._free()

    cdef void _free(self) noexcept:
        _release(&self._offsets)
        _release(&self._timestamps)
        _release(&self._timestamp_types)
        _release(&self._list_offsets)
        free(self._list_bits.data)
        self._list_bits.data = NULL
        self._list_bits.capacity = 0
        _free_cells(&self._keys)
        _free_cells(&self._values)
        _free_cells(&self._header_keys)
        _free_cells(&self._header_values)

    @property
    def count(self):
        """As ``batch_py.ColumnBuilder.count``."""
        return self._count

    @property
    def size_bytes(self):
        """As ``batch_py.ColumnBuilder.size_bytes``."""
        return self._size_bytes

    cdef inline bint _is_full(self) noexcept:
        return self._stopped or self._count >= self._max_rows or self._size_bytes >= self._max_bytes

    @property
    def is_full(self):
        """As ``batch_py.ColumnBuilder.is_full``."""
        return self._is_full()

    def add_batch(
        self, buffer, Py_ssize_t position, header, payload=None, int64_t first_offset=0, int64_t until_offset=INT64_MAX
    ):
        """As ``batch_py.ColumnBuilder.add_batch``."""
        cdef Py_buffer view, payload_view
        cdef Py_ssize_t available, size_bytes
        cdef double expected
        cdef int64_t base_offset = _header_field(header, 0)
        cdef int64_t last_offset_delta = _header_field(header, 6)
        cdef int64_t batch_length = _header_field(header, 1)
        cdef int64_t attributes = _header_field(header, 5)
        cdef const uint8_t* section
        if self._is_full():
            return 0
        if base_offset < 0 or base_offset > INT64_MAX - MAX_INT32 - 1:
            raise CorruptMessage(f"record batch: base offset {base_offset} is not an offset of a log")
        if attributes & 0x20:
            self._move_to(min(base_offset + last_offset_delta + 1, until_offset))
            return 0
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            # Whoever adds a batch of a fetched buffer adds those behind it too: room is made for all at once, because
            # growing step by step copies everything once more.
            expected = max((view.len - position) / <double>max(LOG_OVERHEAD + batch_length, HEADER_BYTES), 1)
            if payload is not None:
                PyObject_GetBuffer(payload, &payload_view, PyBUF_SIMPLE)
                try:
                    return self._add_section(
                        <const uint8_t*>payload_view.buf, payload_view.len, header, first_offset, until_offset, expected
                    )
                finally:
                    PyBuffer_Release(&payload_view)
            if attributes & 0x07:
                raise ValueError(f"the batch has codec {attributes & 7}: its decompressed records section must be given")
            available = _available(&view, position)
            if batch_length < MIN_BATCH_LENGTH:
                raise layout.bad_length(position, batch_length)
            size_bytes = LOG_OVERHEAD + batch_length
            if size_bytes > available:
                raise layout.cut_batch(position, size_bytes, available)
            section = <const uint8_t*>view.buf + position + HEADER_BYTES
            return self._add_section(section, size_bytes - HEADER_BYTES, header, first_offset, until_offset, expected)
        finally:
            PyBuffer_Release(&view)

    cdef object _add_section(
        self, const uint8_t* p, Py_ssize_t size, header, int64_t first_offset, int64_t until_offset, double expected
    ):
        cdef Section s
        cdef int64_t base_offset = _header_field(header, 0)
        cdef int64_t max_timestamp = _header_field(header, 8)
        cdef bint is_append_time = (_header_field(header, 5) & 0x08) != 0
        cdef int64_t next_offset = 0
        cdef int result
        # What is put back when a record turns out bad.
        cdef Py_ssize_t count = self._count
        cdef Py_ssize_t header_count = self._header_count
        cdef int64_t size_bytes = self._size_bytes
        cdef Py_ssize_t key_size = self._keys.size, value_size = self._values.size
        cdef Py_ssize_t header_key_size = self._header_keys.size, header_value_size = self._header_values.size
        cdef bint key_bits = self._keys.bits.capacity > 0, value_bits = self._values.bits.capacity > 0
        cdef bint list_bits = self._list_bits.capacity > 0, header_bits = self._header_values.bits.capacity > 0
        cdef bint has_wide_keys = self._has_wide_keys
        _open_section(&s, p, size, header)
        if self._reserve_batches(s.count, size, expected) < 0:
            raise MemoryError()
        if size >= NOGIL_BYTES:
            with nogil:
                result = self._add_rows(
                    &s, base_offset, max_timestamp, is_append_time, first_offset, until_offset, &next_offset
                )
        else:
            result = self._add_rows(
                &s, base_offset, max_timestamp, is_append_time, first_offset, until_offset, &next_offset
            )
        if result < 0:
            self._count = count
            self._header_count = header_count
            self._size_bytes = size_bytes
            self._keys.size = key_size
            self._values.size = value_size
            self._header_keys.size = header_key_size
            self._header_values.size = header_value_size
            self._has_wide_keys = has_wide_keys
            _truncate_bits(&self._keys.bits, count, key_bits)
            _truncate_bits(&self._values.bits, count, value_bits)
            _truncate_bits(&self._list_bits, count, list_bits)
            _truncate_bits(&self._header_values.bits, header_count, header_bits)
            raise _section_error(&s)
        self._move_to(next_offset)
        return self._count - count

    cdef inline void _move_to(self, int64_t next_offset) noexcept:
        if next_offset > self.next_offset:
            self.next_offset = next_offset

    cdef int _reserve_batches(self, int64_t record_count, Py_ssize_t size, double expected) noexcept:
        """Make room for a batch, and for as many like it as are expected within the limits."""
        cdef double rows = min(min(record_count * expected, <double>(self._max_rows - self._count)), EXPECTED_ROWS)
        cdef double part = min(rows / max(record_count, 1) + 1, expected)
        cdef double room = min(min(size * part, <double>self._max_bytes), EXPECTED_BYTES)
        if self._reserve_rows(self._count + <Py_ssize_t>max(rows, min(record_count, self._max_rows - self._count))) < 0:
            return -1
        # No record takes more than its bytes; what is never written is never touched. Keys are usually small or absent.
        if _reserve_warm(&self._keys.data, self._keys.size + size) < 0:
            return -1
        return _reserve_warm(&self._values.data, self._values.size + max(<Py_ssize_t>room, size))

    cdef int _reserve_rows(self, Py_ssize_t rows) noexcept:
        if rows <= self._row_capacity:
            return 0
        rows = max(rows, 2 * self._row_capacity)
        if (
            _reserve_warm(&self._offsets, 8 * rows) < 0
            or _reserve_warm(&self._timestamps, 8 * rows) < 0
            or _reserve_warm(&self._timestamp_types, 4 * rows) < 0
            or _reserve_warm(&self._keys.offsets, 4 * (rows + 1)) < 0
            or _reserve_warm(&self._values.offsets, 4 * (rows + 1)) < 0
            or (self._with_headers and _reserve_warm(&self._list_offsets, 4 * (rows + 1)) < 0)
        ):
            return -1
        self._row_capacity = rows
        return 0

    cdef int _add_rows(
        self,
        Section* s,
        int64_t base_offset,
        int64_t max_timestamp,
        bint is_append_time,
        int64_t first_offset,
        int64_t until_offset,
        int64_t* next_offset,
    ) noexcept nogil:
        cdef Parsed r
        cdef const uint8_t* p = s.p
        cdef int64_t i, offset, row_size
        cdef int64_t total = self._size_bytes
        cdef bint with_headers = self._with_headers
        cdef Py_ssize_t count = self._count
        cdef Py_ssize_t key_size = self._keys.size, value_size = self._values.size
        cdef int64_t* offsets
        cdef int64_t* timestamps
        cdef int32_t* types
        cdef int32_t* key_offsets
        cdef int32_t* value_offsets
        cdef uint8_t* key_data
        cdef uint8_t* value_data
        offsets = <int64_t*>self._offsets.data
        timestamps = <int64_t*>self._timestamps.data
        types = <int32_t*>self._timestamp_types.data
        key_offsets = <int32_t*>self._keys.offsets.data
        value_offsets = <int32_t*>self._values.offsets.data
        key_data = self._keys.data.data
        value_data = self._values.data.data
        next_offset[0] = -1
        for i in range(s.count):
            p = _next_record(s, p, &r, False)
            if UNLIKELY(p == NULL):
                s.index = i
                return -1
            offset = base_offset + r.offset_delta
            if UNLIKELY(offset < first_offset):
                continue
            if UNLIKELY(offset >= until_offset):
                next_offset[0] = until_offset
                break
            row_size = ROW_BYTES
            if r.key_length > 0:
                row_size += r.key_length
            if r.value_length > 0:
                row_size += r.value_length
            if r.header_count and with_headers:
                row_size += _headers_size(r.headers, r.header_count)
            if UNLIKELY(
                count and (count >= self._max_rows or total + row_size > self._max_bytes)
            ):
                self._stopped = True
                next_offset[0] = offset
                break
            if with_headers and self._add_headers(r.headers, r.header_count, count) < 0:
                return _fault(s, F_NO_MEMORY, 0, 0, 0)
            offsets[count] = offset
            timestamps[count] = max_timestamp if is_append_time else r.timestamp
            types[count] = is_append_time
            key_offsets[count] = <int32_t>key_size
            value_offsets[count] = <int32_t>value_size
            if UNLIKELY(
                _set_bit(&self._keys.bits, count, r.key_length >= 0, self._row_capacity) < 0
                or _set_bit(&self._values.bits, count, r.value_length >= 0, self._row_capacity) < 0
            ):
                return _fault(s, F_NO_MEMORY, 0, 0, 0)
            if r.key_length > 0:
                _copy(key_data + key_size, r.key, r.key_length, s.end)
                key_size += r.key_length
            if r.value_length > 0:
                _copy(value_data + value_size, r.value, r.value_length, s.end)
                value_size += r.value_length
            total += row_size
            count += 1
        else:
            s.index = s.count
            if p != s.end:
                return _fault(s, F_SECTION_REST, 0, s.end - p, 0)
            next_offset[0] = min(base_offset + s.last_offset_delta + 1, until_offset)
        self._count = count
        self._size_bytes = total
        self._keys.size = key_size
        self._values.size = value_size
        return 0

    cdef int _add_headers(self, const uint8_t* p, int32_t header_count, Py_ssize_t row) noexcept nogil:
        cdef int32_t i, length
        cdef Py_ssize_t number = self._header_count
        cdef Py_ssize_t k
        (<int32_t*>self._list_offsets.data)[row] = <int32_t>number
        if _set_bit(&self._list_bits, row, header_count > 0, self._row_capacity) < 0:
            return -1
        if header_count == 0:
            return 0
        if (
            _reserve(&self._header_keys.offsets, 4 * (number + header_count + 1)) < 0
            or _reserve(&self._header_values.offsets, 4 * (number + header_count + 1)) < 0
        ):
            return -1
        for i in range(header_count):
            length = _checked_varint(&p)
            if _reserve(&self._header_keys.data, self._header_keys.size + length) < 0:
                return -1
            (<int32_t*>self._header_keys.offsets.data)[number] = <int32_t>self._header_keys.size
            for k in range(length):
                if p[k] >= 0x80:
                    self._has_wide_keys = True
            if length:
                memcpy(self._header_keys.data.data + self._header_keys.size, p, length)
            self._header_keys.size += length
            p += length
            length = _checked_varint(&p)
            (<int32_t*>self._header_values.offsets.data)[number] = <int32_t>self._header_values.size
            # As many bits as the offsets have room for.
            if _set_bit(
                &self._header_values.bits, number, length >= 0, self._header_values.offsets.capacity // 4
            ) < 0:
                return -1
            if length > 0:
                if _reserve(&self._header_values.data, self._header_values.size + length) < 0:
                    return -1
                memcpy(self._header_values.data.data + self._header_values.size, p, length)
                self._header_values.size += length
                p += length
            number += 1
        self._header_count = number
        return 0

    def finish(self):
        """As ``batch_py.ColumnBuilder.finish``."""
        cdef Py_ssize_t count = self._count
        cdef Py_ssize_t header_count = self._header_count
        headers = None
        if self._reserve_rows(1) < 0:
            raise MemoryError()
        (<int32_t*>self._keys.offsets.data)[count] = <int32_t>self._keys.size
        (<int32_t*>self._values.offsets.data)[count] = <int32_t>self._values.size
        if self._with_headers:
            if _reserve(&self._header_keys.offsets, 4) < 0 or _reserve(&self._header_values.offsets, 4) < 0:
                raise MemoryError()
            (<int32_t*>self._list_offsets.data)[count] = <int32_t>header_count
            (<int32_t*>self._header_keys.offsets.data)[header_count] = <int32_t>self._header_keys.size
            (<int32_t*>self._header_values.offsets.data)[header_count] = <int32_t>self._header_values.size
            headers = HeaderColumns(
                _take(&self._list_offsets, count + 1, 4),
                _take_bits(&self._list_bits, count),
                _take(&self._header_keys.offsets, header_count + 1, 4),
                _take(&self._header_keys.data, self._header_keys.size, 1),
                _take(&self._header_values.offsets, header_count + 1, 4),
                _take(&self._header_values.data, self._header_values.size, 1),
                _take_bits(&self._header_values.bits, header_count),
            )
            if self._has_wide_keys:
                headers = with_valid_keys(headers)
        columns = Columns(
            count,
            offsets=_take(&self._offsets, count, 8),
            timestamps=_take(&self._timestamps, count, 8),
            timestamp_types=_take(&self._timestamp_types, count, 4),
            key_offsets=_take(&self._keys.offsets, count + 1, 4),
            key_data=_take(&self._keys.data, self._keys.size, 1),
            key_validity=_take_bits(&self._keys.bits, count),
            value_offsets=_take(&self._values.offsets, count + 1, 4),
            value_data=_take(&self._values.data, self._values.size, 1),
            value_validity=_take_bits(&self._values.bits, count),
            headers=headers,
            next_offset=self.next_offset,
        )
        self._free()
        self._count = 0
        self._header_count = 0
        self._row_capacity = 0
        self._size_bytes = 0
        self._stopped = False
        self._has_wide_keys = False
        return columns


cdef int64_t _headers_size(const uint8_t* p, int64_t header_count) noexcept nogil:
    """Return what the columns take for the headers of a record that has been checked."""
    cdef int64_t i
    cdef int32_t length
    cdef int64_t size = header_count * HEADER_ROW_BYTES
    for i in range(2 * header_count):
        length = _checked_varint(&p)
        if length > 0:
            p += length
            size += length
    return size
