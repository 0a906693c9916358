# Records to batches: the native twin of ``encode_py``. Included by ``_kernel.pyx``, whose rules hold.


cdef inline int _varint_size(int64_t number) noexcept nogil:
    return (bits_of((<uint64_t>number << 1) ^ <uint64_t>(number >> 63)) + 6) // 7


cdef inline uint8_t* _put_varint(uint8_t* p, int64_t number) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while rest >= 0x80:
        p[0] = <uint8_t>(rest & 0x7F) | 0x80
        rest >>= 7
        p += 1
    p[0] = <uint8_t>rest
    return p + 1


cdef inline int64_t _cell_size(int64_t length) noexcept nogil:
    return 1 if length < 0 else _varint_size(length) + length


cdef inline uint8_t* _put_cell(uint8_t* p, const uint8_t* data, int64_t length, const uint8_t* end) noexcept nogil:
    """Write a length and the bytes; there must be slack behind what is written, ``end`` is that of the source."""
    p = _put_varint(p, length)
    if length > 0:
        _copy(p, data, length, end)
        p += length
    return p


cdef struct Held:
    # A bytes-like argument: -1 is null.
    const uint8_t* data
    Py_ssize_t length
    Py_buffer buffer
    bint is_held


cdef int _hold_bytes(Held* held, str what, obj) except -1:
    held.is_held = False
    held.length = -1
    held.data = NULL
    if obj is None:
        return 0
    if type(obj) is bytes:
        held.data = <const uint8_t*>PyBytes_AS_STRING(obj)
        held.length = PyBytes_GET_SIZE(obj)
        return 0
    try:
        PyObject_GetBuffer(obj, &held.buffer, PyBUF_SIMPLE)
    except (TypeError, BufferError):
        raise SerializationError(
            f"{what} is {type(obj).__name__}, must be bytes-like and contiguous, or None"
        ) from None
    held.is_held = True
    held.data = <const uint8_t*>held.buffer.buf
    held.length = held.buffer.len
    return 0


cdef int64_t _timestamp(timestamp_ms) except? -2:
    try:
        number = operator.index(timestamp_ms)
    except TypeError:
        raise SerializationError(
            f"timestamp is {type(timestamp_ms).__name__}, must be int (milliseconds since the epoch)"
        ) from None
    if not -1 <= number < INT64_MAX:
        raise SerializationError(layout.timestamp_problem(number))
    return number


cdef object _encoded_headers(headers):
    """Return the bytes of a record's header count and headers."""
    cdef Held value
    cdef list pieces
    cdef bytes name
    cdef uint8_t number[16]
    if not isinstance(headers, (list, tuple)):
        raise SerializationError(
            f"headers is {type(headers).__name__}, must be a list or tuple of (str, bytes or None) pairs, or None"
        )
    pieces = [_varint_bytes(len(headers))]
    for i, pair in enumerate(headers):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise SerializationError(f"header {i} is not a (str, bytes or None) pair")
        key, cell = pair
        if not isinstance(key, str):
            raise SerializationError(f"key of header {i} is {type(key).__name__}, must be str")
        try:
            name = (<str>key).encode()
        except UnicodeEncodeError:
            raise SerializationError(f"key of header {i} cannot be encoded as UTF-8") from None
        pieces.append(_varint_bytes(len(name)))
        pieces.append(name)
        _hold_bytes(&value, f"value of header {i}", cell)
        try:
            pieces.append(_varint_bytes(value.length))
            if value.length > 0:
                pieces.append(PyBytes_FromStringAndSize(<const char*>value.data, value.length))
        finally:
            if value.is_held:
                PyBuffer_Release(&value.buffer)
    return b"".join(pieces)


cdef bytes _varint_bytes(int64_t number):
    cdef uint8_t place[10]
    cdef uint8_t* end = _put_varint(place, number)
    return PyBytes_FromStringAndSize(<const char*>place, end - place)


@cython.final
cdef class OpenBatch:
    """As ``batch_py.OpenBatch``."""

    cdef Memory _memory
    cdef Py_ssize_t _size
    cdef int64_t _max_bytes
    cdef readonly int64_t base_timestamp, max_timestamp
    cdef readonly Py_ssize_t count

    def __init__(self, max_bytes):
        self._max_bytes = max(min(max_bytes, INT64_MAX), INT64_MIN)
        self._size = HEADER_BYTES
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __dealloc__(self):
        _release(&self._memory)

    @property
    def size_bytes(self):
        """As ``batch_py.OpenBatch.size_bytes``."""
        return self._size

    def append(self, timestamp_ms, key, value, headers=None):
        """As ``batch_py.OpenBatch.append``."""
        cdef int64_t timestamp = _timestamp(timestamp_ms)
        cdef Held held_key, held_value
        held_value.is_held = False
        _hold_bytes(&held_key, "key", key)
        try:
            _hold_bytes(&held_value, "value", value)
            return self._append(timestamp, &held_key, &held_value, headers)
        finally:
            if held_key.is_held:
                PyBuffer_Release(&held_key.buffer)
            if held_value.is_held:
                PyBuffer_Release(&held_value.buffer)

    cdef object _append(self, int64_t timestamp, Held* key, Held* value, headers):
        cdef bytes encoded = None
        cdef int64_t headers_size = 1
        cdef int64_t delta, body_size, size_bytes
        cdef uint8_t* p
        if headers is not None:
            encoded = _encoded_headers(headers)
            headers_size = PyBytes_GET_SIZE(encoded)
        delta = timestamp - self.base_timestamp if self.count else 0
        body_size = (
            1
            + _varint_size(delta)
            + _varint_size(self.count)
            + _cell_size(key.length)
            + _cell_size(value.length)
            + headers_size
        )
        size_bytes = self._size + _varint_size(body_size) + body_size
        if size_bytes > self._max_bytes and self.count:
            return -1
        if size_bytes > MAX_INT32:
            if self.count:
                return -1
            raise layout.too_large(size_bytes)
        if self._memory.capacity == 0 and _reserve(&self._memory, 512) < 0:
            raise MemoryError()
        if _reserve(&self._memory, size_bytes) < 0:
            raise MemoryError()
        p = _put_varint(self._memory.data + self._size, body_size)
        p[0] = 0
        p = _put_varint(p + 1, delta)
        p = _put_varint(p, self.count)
        # Objects of others have no slack behind them: their own end is where the copy may read to.
        p = _put_cell(p, key.data, key.length, key.data + max(key.length, 0))
        p = _put_cell(p, value.data, value.length, value.data + max(value.length, 0))
        if encoded is None:
            p[0] = 0
        else:
            memcpy(p, PyBytes_AS_STRING(encoded), headers_size)
        if self.count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self._size = size_bytes
        self.count += 1
        return self.count - 1

    def build(
        self,
        codec=0,
        level=None,
        *,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        transactional=False,
    ):
        """As ``batch_py.OpenBatch.build``."""
        if self.count == 0:
            raise ValueError("a batch without records cannot be built")
        memset(self._memory.data, 0, HEADER_BYTES)
        return assemble(
            PyByteArray_FromStringAndSize(<const char*>self._memory.data, self._size),
            SectionFacts(self.count, self.base_timestamp, self.max_timestamp),
            codec,
            level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )


cdef enum:
    E_ROW = 1
    E_TIMESTAMP = 2
    E_KEY = 3
    E_VALUE = 4
    E_HEADERS = 5
    E_HEADER_KEY = 6
    E_HEADER_VALUE = 7
    E_TOO_LARGE = 8
    E_CHANGED = 9
    E_GROW = 10


cdef struct Encoder:
    const int32_t* selection
    int64_t first
    int64_t until
    int64_t index
    int64_t max_bytes
    int64_t now_ms
    int64_t base
    int64_t largest
    # What is written, and how much room there is.
    uint8_t* data
    int64_t size
    int64_t capacity
    # The row, span and number that an error names, or the room that is needed.
    int64_t row
    Span span
    int64_t number


cdef int _encode_rows(Columns columns, Encoder* e) noexcept nogil:
    """Write rows until a limit; returns 0, or one of the codes above. May be called again after E_GROW."""
    cdef int64_t row, timestamp, delta, body_size, size_bytes, i
    cdef Span key, value, headers, name, cell
    cdef int64_t headers_size
    cdef uint8_t* p
    cdef uint8_t* record_end
    cdef const uint8_t* key_end = columns._keys.data.data + columns._keys.data.size
    cdef const uint8_t* value_end = columns._values.data.data + columns._values.data.size
    while e.index < e.until:
        row = e.index if e.selection == NULL else e.selection[e.index]
        e.row = row
        if UNLIKELY(row < 0 or row >= columns.count):
            return E_ROW
        timestamp = (<const int64_t*>columns._timestamps.data)[row] if columns._timestamps.is_held else -1
        if UNLIKELY(timestamp < -1 or timestamp == INT64_MAX):
            e.number = timestamp
            return E_TIMESTAMP
        if timestamp == -1:
            timestamp = e.now_ms
        if e.index == e.first:
            e.base = timestamp
        if UNLIKELY(_span(&columns._keys, row, &key) < 0):
            e.span = key
            return E_KEY
        if UNLIKELY(_span(&columns._values, row, &value) < 0):
            e.span = value
            return E_VALUE
        if UNLIKELY(_header_span(columns, row, &headers) < 0):
            e.span = headers
            return E_HEADERS
        headers_size = _varint_size(headers.end - headers.start)
        for i in range(headers.start, headers.end):
            if UNLIKELY(_span(&columns._header_keys, i, &name) < 0):
                e.row = i
                e.span = name
                return E_HEADER_KEY
            if UNLIKELY(_span(&columns._header_values, i, &cell) < 0):
                e.row = i
                e.span = cell
                return E_HEADER_VALUE
            headers_size += _cell_size(max(name.length, 0)) + _cell_size(cell.length)
        delta = timestamp - e.base
        body_size = (
            1
            + _varint_size(delta)
            + _varint_size(e.index - e.first)
            + _cell_size(key.length)
            + _cell_size(value.length)
            + headers_size
        )
        size_bytes = e.size + _varint_size(body_size) + body_size
        if UNLIKELY(e.index > e.first and (size_bytes > e.max_bytes or size_bytes > MAX_INT32)):
            return 0
        if UNLIKELY(size_bytes > MAX_INT32):
            e.number = size_bytes
            return E_TOO_LARGE
        if UNLIKELY(size_bytes > e.capacity):
            e.number = size_bytes
            return E_GROW
        record_end = e.data + size_bytes
        p = _put_varint(e.data + e.size, body_size)
        p[0] = 0
        p = _put_varint(p + 1, delta)
        p = _put_varint(p, e.index - e.first)
        p = _put_cell(p, key.data, key.length, key_end)
        p = _put_cell(p, value.data, value.length, value_end)
        p = _put_varint(p, headers.end - headers.start)
        for i in range(headers.start, headers.end):
            # Spans are read again here: buffers that another thread changes meanwhile must not lead beyond the record.
            if _span(&columns._header_keys, i, &name) < 0 or _span(&columns._header_values, i, &cell) < 0:
                return E_CHANGED
            if p + _cell_size(max(name.length, 0)) + _cell_size(cell.length) > record_end:
                return E_CHANGED
            p = _put_varint(p, max(name.length, 0))
            if name.length > 0:
                memcpy(p, name.data, name.length)
                p += name.length
            p = _put_varint(p, cell.length)
            if cell.length > 0:
                memcpy(p, cell.data, cell.length)
                p += cell.length
        if p != record_end:
            return E_CHANGED
        e.size = size_bytes
        if timestamp > e.largest:
            e.largest = timestamp
        e.index += 1
    return 0


cdef object _encode_error(Columns columns, Encoder* e, int code):
    if code == E_ROW:
        return ValueError(f"row {e.row} is not within the {columns.count} rows")
    if code == E_TIMESTAMP:
        return SerializationError(f"row {e.row}: {layout.timestamp_problem(e.number)}")
    if code == E_KEY:
        return _span_error("key", e.row, &e.span, columns._keys.data.size)
    if code == E_VALUE:
        return _span_error("value", e.row, &e.span, columns._values.data.size)
    if code == E_HEADERS:
        return _span_error("headers", e.row, &e.span, columns._header_rows)
    if code == E_HEADER_KEY:
        return _span_error("header key", e.row, &e.span, columns._header_keys.data.size)
    if code == E_HEADER_VALUE:
        return _span_error("header value", e.row, &e.span, columns._header_values.data.size)
    if code == E_TOO_LARGE:
        return layout.too_large(e.number)
    return ValueError(f"row {e.row}: the columns were changed while they were encoded")


def encode_columns(Columns columns not None, rows, Py_ssize_t first, Py_ssize_t until, max_bytes, *, now_ms):
    """As ``batch_py.encode_columns``."""
    cdef Encoder e
    cdef View selection
    cdef Py_ssize_t limit = columns.count
    cdef int64_t estimate
    cdef int code
    cdef bytearray out
    selection.is_held = False
    try:
        e.selection = NULL
        if rows is not None:
            _hold(&selection, "rows", rows, 0)
            e.selection = <const int32_t*>selection.data
            limit = selection.size // 4
        if first < 0 or until <= first or until > limit:
            raise ValueError(f"rows {first} to {until} are not at least one row within the {limit} given")
        if not -1 <= now_ms < INT64_MAX:
            raise ValueError(layout.timestamp_problem(now_ms))
        e.first = first
        e.until = until
        e.index = first
        e.max_bytes = max(min(max_bytes, INT64_MAX), INT64_MIN)
        e.now_ms = now_ms
        e.base = -1
        e.largest = -1
        e.size = HEADER_BYTES
        # As many bytes as these rows take of the columns on average, or the limit; too little only costs another round.
        estimate = columns._keys.data.size + columns._values.data.size
        if columns._has_headers:
            estimate += columns._header_keys.data.size + columns._header_values.data.size
        estimate = <int64_t>(<double>estimate * (until - first) / max(columns.count, 1)) + 24 * (until - first) + 256
        e.capacity = max(min(min(estimate, e.max_bytes), MAX_INT32), HEADER_BYTES + 128)
        out = PyByteArray_FromStringAndSize(NULL, e.capacity + SLACK)
        while True:
            e.data = <uint8_t*>PyByteArray_AS_STRING(out)
            if until - e.index >= NOGIL_ROWS:
                with nogil:
                    code = _encode_rows(columns, &e)
            else:
                code = _encode_rows(columns, &e)
            if code != E_GROW:
                break
            e.capacity = max(e.number, min(2 * e.capacity, MAX_INT32))
            PyByteArray_Resize(out, e.capacity + SLACK)
        if code:
            raise _encode_error(columns, &e, code)
        PyByteArray_Resize(out, e.size)
        memset(PyByteArray_AS_STRING(out), 0, HEADER_BYTES)
        return out, SectionFacts(e.index - e.first, e.base, e.largest), e.index
    finally:
        _let_go(&selection)
