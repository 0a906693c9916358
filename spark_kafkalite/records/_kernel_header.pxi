# Headers of batches: the native twin of ``header_py``. Included by ``_kernel.pyx``, whose rules hold.


cdef inline Py_ssize_t _available(Py_buffer* view, Py_ssize_t position) except -1:
    if position < 0 or position > view.len:
        raise ValueError(f"position {position} is not between 0 and the buffer's size {view.len}")
    return view.len - position


cdef inline object _header_at(const uint8_t* p):
    return _tuple_new(BatchHeader, (
        <int64_t>load_be64(p),
        <int32_t>load_be32(p + 8),
        <int32_t>load_be32(p + 12),
        <int8_t>p[16],
        load_be32(p + 17),
        <int16_t>load_be16(p + 21),
        <int32_t>load_be32(p + 23),
        <int64_t>load_be64(p + 27),
        <int64_t>load_be64(p + 35),
        <int64_t>load_be64(p + 43),
        <int16_t>load_be16(p + 51),
        <int32_t>load_be32(p + 53),
        <int32_t>load_be32(p + 57),
    ))


cdef inline int64_t _header_field(header, Py_ssize_t number) except? -2:
    """Return a field of a BatchHeader; by number, which takes a tenth of what an attribute of a named tuple takes."""
    if not isinstance(header, tuple) or PyTuple_GET_SIZE(header) != 13:
        raise TypeError("header must be a BatchHeader")
    return <object>PyTuple_GET_ITEM(header, number)


cdef inline int _check_length(Py_ssize_t position, int64_t batch_length) except -1:
    if batch_length < MIN_BATCH_LENGTH or batch_length > MAX_INT32 - LOG_OVERHEAD:
        raise layout.bad_length(position, batch_length)
    return 0


cdef object _read_header(Py_buffer* view, Py_ssize_t position):
    cdef Py_ssize_t available = _available(view, position)
    cdef const uint8_t* p = <const uint8_t*>view.buf + position
    if available < HEADER_BYTES:
        raise layout.too_short(position, available)
    if <int8_t>p[16] != 2:
        raise layout.bad_magic(position, <int8_t>p[16])
    _check_length(position, <int32_t>load_be32(p + 8))
    return _header_at(p)


def read_header(buffer, Py_ssize_t position=0):
    """As ``batch_py.read_header``."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        return _read_header(&view, position)
    finally:
        PyBuffer_Release(&view)


def scan_headers(buffer, Py_ssize_t position=0, end=None):
    """As ``batch_py.scan_headers``."""
    cdef Py_buffer view
    cdef Py_ssize_t available, until
    cdef int64_t batch_length
    cdef const uint8_t* p
    cdef list headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        available = _available(&view, position)
        if end is not None:
            until = end
            if until < position or until > view.len:
                raise ValueError(f"end {end} is not between position {position} and the buffer's size {view.len}")
            available = until - position
        while available >= LOG_OVERHEAD:
            p = <const uint8_t*>view.buf + position
            if available > 16 and <int8_t>p[16] != 2:
                raise layout.bad_magic(position, <int8_t>p[16])
            batch_length = <int32_t>load_be32(p + 8)
            _check_length(position, batch_length)
            if LOG_OVERHEAD + batch_length > available:
                break
            headers.append(_header_at(p))
            position += LOG_OVERHEAD + batch_length
            available -= LOG_OVERHEAD + batch_length
        return headers
    finally:
        PyBuffer_Release(&view)


def check_crc(buffer, Py_ssize_t position, Py_ssize_t size_bytes):
    """As ``batch_py.check_crc``."""
    cdef Py_buffer view
    cdef Py_ssize_t available
    cdef uint32_t stored, computed
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        available = _available(&view, position)
        if size_bytes < HEADER_BYTES:
            raise layout.bad_length(position, size_bytes - LOG_OVERHEAD)
        if size_bytes > available:
            raise layout.cut_batch(position, size_bytes, available)
        stored = load_be32(<const uint8_t*>view.buf + position + 17)
    finally:
        PyBuffer_Release(&view)
    computed = _crc32c(memoryview(buffer).cast("B")[position + 21 : position + size_bytes])
    if stored != computed:
        raise layout.bad_crc(position, stored, computed)


def stamp(buffer, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch, log_append_time_ms=None):
    """As ``batch_py.stamp``."""
    cdef Py_buffer view
    cdef Py_ssize_t available, size_bytes
    cdef uint8_t* p
    try:
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    except (BufferError, TypeError):
        raise TypeError("the batch to stamp must be in a writable buffer") from None
    try:
        available = _available(&view, position)
        p = <uint8_t*>view.buf + position
        _read_header(&view, position)
        size_bytes = LOG_OVERHEAD + <Py_ssize_t><int32_t>load_be32(p + 8)
        if size_bytes > available:
            raise layout.cut_batch(position, size_bytes, available)
        if log_append_time_ms is not None:
            store_be64(p + 35, <uint64_t><int64_t>log_append_time_ms)
            store_be16(p + 21, load_be16(p + 21) | 0x08)
            store_be32(p + 17, _crc32c(memoryview(buffer).cast("B")[position + 21 : position + size_bytes]))
        store_be64(p, <uint64_t>base_offset)
        store_be32(p + 12, <uint32_t>leader_epoch)
    finally:
        PyBuffer_Release(&view)
