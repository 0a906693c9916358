# Columns and their memory: the native twin of ``columns_py``. Included by ``_kernel.pyx``, whose rules hold.


cdef uint8_t _nothing[SLACK]


@cython.final
@cython.no_gc
cdef class _Block:
    """Memory of ours as a read-only buffer of bytes, int32 or int64 numbers."""

    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t item_count
    cdef Py_ssize_t item_size
    cdef char* item_format

    def __dealloc__(self):
        _keep_warm(self.data, self.capacity)

    def __len__(self):
        return self.item_count

    def __getbuffer__(self, Py_buffer* view, int flags):
        if flags & PyBUF_WRITABLE:
            view.obj = None
            raise BufferError("decoded columns are read-only")
        view.buf = self.data if self.data != NULL else _nothing
        view.obj = self
        view.len = self.item_count * self.item_size
        view.itemsize = self.item_size
        view.readonly = 1
        view.ndim = 1
        view.format = self.item_format if flags & PyBUF_FORMAT else NULL
        view.shape = &self.item_count if flags & PyBUF_ND else NULL
        view.strides = &self.item_size if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL


# The first touch of fresh memory costs more than decoding into it (on virtual machines ten times more), and what the C
# library keeps of freed blocks depends on their order. So a few large blocks are kept for the next columns; the GIL guards
# them.
cdef enum:
    WARM_BLOCKS = 32
    SMALLEST_WARM_BYTES = 32768
    MOST_WARM_BYTES = 67108864

cdef uint8_t* _warm_data[WARM_BLOCKS]
cdef Py_ssize_t _warm_capacity[WARM_BLOCKS]
cdef Py_ssize_t _warm_bytes = 0


cdef void _keep_warm(uint8_t* data, Py_ssize_t capacity) noexcept:
    """Take over a block that is no longer needed: keep it when there is room among the warm ones, else free it."""
    global _warm_bytes
    cdef int i
    if data != NULL and capacity >= SMALLEST_WARM_BYTES and _warm_bytes + capacity <= MOST_WARM_BYTES:
        for i in range(WARM_BLOCKS):
            if _warm_data[i] == NULL:
                _warm_data[i] = data
                _warm_capacity[i] = capacity
                _warm_bytes += capacity
                return
    free(data)


cdef uint8_t* _take_warm(Py_ssize_t needed, Py_ssize_t* capacity) noexcept:
    """Return the smallest warm block of at least ``needed`` bytes that is not far too large, NULL when there is none."""
    global _warm_bytes
    cdef int i
    cdef int best = -1
    cdef uint8_t* data
    for i in range(WARM_BLOCKS):
        if _warm_data[i] != NULL and needed <= _warm_capacity[i] <= 8 * needed:
            if best < 0 or _warm_capacity[i] < _warm_capacity[best]:
                best = i
    if best < 0:
        return NULL
    data = _warm_data[best]
    capacity[0] = _warm_capacity[best]
    _warm_data[best] = NULL
    _warm_bytes -= capacity[0]
    return data


cdef struct Memory:
    uint8_t* data
    Py_ssize_t capacity


cdef inline int _reserve(Memory* memory, Py_ssize_t needed) noexcept nogil:
    """Make room for ``needed`` bytes and the slack; at least doubles."""
    cdef uint8_t* data
    cdef Py_ssize_t capacity
    if needed <= memory.capacity:
        return 0
    capacity = max(needed, 2 * memory.capacity)
    data = <uint8_t*>realloc(memory.data, capacity + SLACK)
    if data == NULL:
        return -1
    memory.data = data
    memory.capacity = capacity
    return 0


cdef int _reserve_warm(Memory* memory, Py_ssize_t needed) noexcept:
    """Make room as ``_reserve`` does, in a warm block where one fits."""
    cdef Py_ssize_t capacity
    cdef uint8_t* data
    if needed <= memory.capacity:
        return 0
    if needed >= SMALLEST_WARM_BYTES:
        data = _take_warm(max(needed, 2 * memory.capacity), &capacity)
        if data != NULL:
            if memory.capacity:
                memcpy(data, memory.data, memory.capacity)
            _release(memory)
            memory.data = data
            memory.capacity = capacity
            return 0
    return _reserve(memory, needed)


cdef void _release(Memory* memory) noexcept:
    _keep_warm(memory.data, memory.capacity)
    memory.data = NULL
    memory.capacity = 0


cdef _Block _take(Memory* memory, Py_ssize_t item_count, Py_ssize_t item_size):
    """Hand the memory over to a block, cut to its size."""
    cdef _Block block = _Block.__new__(_Block)
    cdef Py_ssize_t size = item_count * item_size
    cdef uint8_t* smaller
    # Only much waste is given back: what was reserved and never written takes no memory.
    if size == 0:
        _release(memory)
    elif memory.capacity > 4 * size + 65536:
        smaller = <uint8_t*>realloc(memory.data, size + SLACK)
        if smaller != NULL:
            memory.data = smaller
            memory.capacity = size
    block.data = memory.data
    block.capacity = memory.capacity
    block.item_count = item_count
    block.item_size = item_size
    block.item_format = b"B" if item_size == 1 else (b"i" if item_size == 4 else b"q")
    memory.data = NULL
    memory.capacity = 0
    return block


cdef inline void _copy(uint8_t* target, const uint8_t* source, Py_ssize_t size, const uint8_t* source_end) noexcept nogil:
    """Copy; up to 32 bytes behind the target's end may be written, so there must be that much room."""
    cdef Py_ssize_t done = 0
    if size <= 256 and source + size + 32 <= source_end:
        while done < size:
            memcpy(target + done, source + done, 32)
            done += 32
    else:
        memcpy(target, source, size)


cdef struct View:
    const uint8_t* data
    Py_ssize_t size
    Py_buffer buffer
    bint is_held


cdef int _hold(View* view, str name, obj, Py_ssize_t needed) except -1:
    view.is_held = False
    view.data = NULL
    view.size = 0
    if obj is None:
        return 0
    PyObject_GetBuffer(obj, &view.buffer, PyBUF_SIMPLE)
    view.is_held = True
    view.data = <const uint8_t*>view.buffer.buf
    view.size = view.buffer.len
    if view.size < needed:
        raise ValueError(f"{name} has {view.size} bytes, the rows need {needed}")
    return 0


cdef inline void _let_go(View* view):
    if view.is_held:
        view.is_held = False
        PyBuffer_Release(&view.buffer)


cdef struct Cells:
    # A variable-length column: int32 offsets, bytes, bitmap. Without offsets every row is null.
    View offsets
    View data
    View validity


cdef struct Span:
    # A cell, or with length -1 null; on failure start and end are the offsets that are wrong.
    const uint8_t* data
    int64_t length
    int64_t start
    int64_t end


cdef inline bint _bit(const View* bitmap, int64_t row) noexcept nogil:
    return not bitmap.is_held or bitmap.data[row >> 3] >> (row & 7) & 1


cdef inline int _span(const Cells* cells, int64_t row, Span* span) noexcept nogil:
    cdef const int32_t* offsets
    if not cells.offsets.is_held or not _bit(&cells.validity, row):
        span.length = -1
        return 0
    offsets = <const int32_t*>cells.offsets.data
    span.start = offsets[row]
    span.end = offsets[row + 1]
    if UNLIKELY(span.start < 0 or span.end < span.start or span.end > cells.data.size):
        return -1
    span.data = cells.data.data + span.start
    span.length = span.end - span.start
    return 0


cdef object _span_error(str name, int64_t row, Span* span, int64_t limit):
    return ValueError(
        f"{name} offsets {span.start} to {span.end} of row {row} are not within the {limit} that there are"
    )


cdef object _cell_at(str name, const Cells* cells, int64_t row):
    cdef Span span
    if _span(cells, row, &span) < 0:
        raise _span_error(name, row, &span, cells.data.size)
    if span.length < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>span.data, span.length)


@cython.final
cdef class Columns:
    """As ``batch_py.Columns``."""

    cdef readonly Py_ssize_t count
    cdef readonly object offsets, timestamps, timestamp_types
    cdef readonly object key_offsets, key_data, key_validity
    cdef readonly object value_offsets, value_data, value_validity
    cdef readonly object headers, next_offset
    cdef View _offsets, _timestamps, _timestamp_types
    cdef Cells _keys, _values
    cdef View _list_offsets, _list_validity
    cdef Cells _header_keys, _header_values
    cdef int64_t _header_rows
    cdef bint _has_headers

    def __init__(
        self,
        Py_ssize_t count,
        *,
        offsets=None,
        timestamps=None,
        timestamp_types=None,
        key_offsets=None,
        key_data=b"",
        key_validity=None,
        value_offsets=None,
        value_data=b"",
        value_validity=None,
        headers=None,
        next_offset=0,
    ):
        if self.offsets is not None or self.key_data is not None:
            raise TypeError("columns are made once")
        if count < 0 or count >= MAX_INT32:
            raise ValueError(f"row count {count} is not between 0 and {MAX_INT32 - 1}")
        _hold(&self._offsets, "offsets", offsets, 8 * count)
        _hold(&self._timestamps, "timestamps", timestamps, 8 * count)
        _hold(&self._timestamp_types, "timestamp_types", timestamp_types, 4 * count)
        _hold(&self._keys.offsets, "key_offsets", key_offsets, 4 * count + 4)
        _hold(&self._keys.data, "key_data", key_data, 0)
        _hold(&self._keys.validity, "key_validity", key_validity, (count + 7) // 8)
        _hold(&self._values.offsets, "value_offsets", value_offsets, 4 * count + 4)
        _hold(&self._values.data, "value_data", value_data, 0)
        _hold(&self._values.validity, "value_validity", value_validity, (count + 7) // 8)
        if headers is not None:
            _hold(&self._list_offsets, "headers.list_offsets", headers.list_offsets, 4 * count + 4)
            _hold(&self._list_validity, "headers.list_validity", headers.list_validity, (count + 7) // 8)
            _hold(&self._header_keys.offsets, "headers.key_offsets", headers.key_offsets, 0)
            _hold(&self._header_keys.data, "headers.key_data", headers.key_data, 0)
            _hold(&self._header_values.offsets, "headers.value_offsets", headers.value_offsets, 0)
            _hold(&self._header_values.data, "headers.value_data", headers.value_data, 0)
            _hold(&self._header_values.validity, "headers.value_validity", headers.value_validity, 0)
            # How many headers all of the header buffers can hold.
            self._header_rows = min(self._header_keys.offsets.size // 4, self._header_values.offsets.size // 4) - 1
            if self._header_values.validity.is_held:
                self._header_rows = min(self._header_rows, 8 * self._header_values.validity.size)
            self._header_rows = max(self._header_rows, 0)
            self._has_headers = True
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

    def __dealloc__(self):
        _let_go(&self._offsets)
        _let_go(&self._timestamps)
        _let_go(&self._timestamp_types)
        _let_go(&self._keys.offsets)
        _let_go(&self._keys.data)
        _let_go(&self._keys.validity)
        _let_go(&self._values.offsets)
        _let_go(&self._values.data)
        _let_go(&self._values.validity)
        _let_go(&self._list_offsets)
        _let_go(&self._list_validity)
        _let_go(&self._header_keys.offsets)
        _let_go(&self._header_keys.data)
        _let_go(&self._header_values.offsets)
        _let_go(&self._header_values.data)
        _let_go(&self._header_values.validity)

    def __len__(self):
        return self.count

    cdef inline int _check_row(self, Py_ssize_t row) except -1:
        if row < 0 or row >= self.count:
            raise IndexError(f"row {row} is not within the {self.count} rows")
        return 0

    def offset_at(self, Py_ssize_t row):
        """As ``batch_py.Columns.offset_at``."""
        self._check_row(row)
        return (<const int64_t*>self._offsets.data)[row] if self._offsets.is_held else -1

    def timestamp_at(self, Py_ssize_t row):
        """As ``batch_py.Columns.timestamp_at``."""
        self._check_row(row)
        return (<const int64_t*>self._timestamps.data)[row] if self._timestamps.is_held else -1

    def timestamp_type_at(self, Py_ssize_t row):
        """As ``batch_py.Columns.timestamp_type_at``."""
        self._check_row(row)
        return (<const int32_t*>self._timestamp_types.data)[row] if self._timestamp_types.is_held else -1

    def key_at(self, Py_ssize_t row):
        """As ``batch_py.Columns.key_at``."""
        self._check_row(row)
        return _cell_at("key", &self._keys, row)

    def value_at(self, Py_ssize_t row):
        """As ``batch_py.Columns.value_at``."""
        self._check_row(row)
        return _cell_at("value", &self._values, row)

    def headers_at(self, Py_ssize_t row):
        """As ``batch_py.Columns.headers_at``."""
        cdef Span span
        cdef int64_t i
        cdef list headers = []
        self._check_row(row)
        if _header_span(self, row, &span) < 0:
            raise _span_error("headers", row, &span, self._header_rows)
        for i in range(span.start, span.end):
            headers.append((
                (<bytes>_cell_at("header key", &self._header_keys, i)).decode("utf-8", "replace"),
                _cell_at("header value", &self._header_values, i),
            ))
        return headers

    def records(self, topic, partition, Py_ssize_t first_row, Py_ssize_t until_row):
        """As ``batch_py.Columns.records``."""
        cdef Py_ssize_t row
        if first_row < 0 or until_row < first_row or until_row > self.count:
            raise IndexError(f"rows {first_row} to {until_row} are not within the {self.count} rows")
        return [Record(self, row, topic, partition) for row in range(first_row, until_row)]


cdef inline int _header_span(Columns columns, int64_t row, Span* span) noexcept nogil:
    """Find the row's headers: numbers start to before end."""
    cdef const int32_t* offsets
    span.start = 0
    span.end = 0
    if not columns._has_headers or not _bit(&columns._list_validity, row):
        return 0
    offsets = <const int32_t*>columns._list_offsets.data
    span.start = offsets[row]
    span.end = offsets[row + 1]
    if span.start < 0 or span.end < span.start or span.end > columns._header_rows:
        return -1
    return 0
