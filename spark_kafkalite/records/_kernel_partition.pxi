# Which partition a key belongs to: the native twin of ``partition_py``. Included by ``_kernel.pyx``, whose rules hold.


cdef uint32_t _murmur2(const uint8_t* data, int64_t length) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28CU ^ <uint32_t>length
    cdef uint32_t k
    cdef int64_t i = 0
    while i + 4 <= length:
        memcpy(&k, data + i, 4)
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        i += 4
    if length & 3:
        k = 0
        memcpy(&k, data + i, length & 3)
        h ^= k
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


def murmur2(data):
    """As ``batch_py.murmur2``."""
    cdef Py_buffer view
    if type(data) is bytes:
        return _murmur2(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _murmur2(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef array _int32_template = array("i")


cdef int _check_partition_count(partition_count) except -1:
    if not 1 <= partition_count <= MAX_INT32:
        raise ValueError(f"partition count {partition_count} is not between 1 and {MAX_INT32}")
    return 0


cdef int _partition_rows(Columns columns, int32_t* out, uint32_t partition_count, int64_t* row, Span* span) noexcept nogil:
    while row[0] < columns.count:
        if _span(&columns._keys, row[0], span) < 0:
            return -1
        if span.length < 0:
            out[row[0]] = -1
        else:
            out[row[0]] = <int32_t>((_murmur2(span.data, span.length) & 0x7FFFFFFF) % partition_count)
        row[0] += 1
    return 0


def partition_by_key(Columns columns not None, partition_count):
    """As ``batch_py.partition_by_key``."""
    cdef array out
    cdef int64_t row = 0
    cdef Span span
    cdef uint32_t number
    cdef int result
    _check_partition_count(partition_count)
    number = partition_count
    out = clone(_int32_template, columns.count, False)
    if columns.count >= NOGIL_ROWS:
        with nogil:
            result = _partition_rows(columns, <int32_t*>out.data.as_ints, number, &row, &span)
    else:
        result = _partition_rows(columns, <int32_t*>out.data.as_ints, number, &row, &span)
    if result < 0:
        raise _span_error("key", row, &span, columns._keys.data.size)
    return out


def group_rows(partitions, partition_count):
    """As ``batch_py.group_rows``."""
    cdef View view
    cdef Memory counts
    cdef Memory places
    cdef int32_t number
    cdef int64_t row, row_count
    cdef const int32_t* numbers
    cdef int32_t** place
    cdef array group
    cdef list groups = []
    _check_partition_count(partition_count)
    number = partition_count
    counts.data = places.data = NULL
    counts.capacity = places.capacity = 0
    view.is_held = False
    try:
        _hold(&view, "partitions", partitions, 0)
        numbers = <const int32_t*>view.data
        row_count = view.size // 4
        if _reserve(&counts, <Py_ssize_t>number * 4) < 0 or _reserve(&places, <Py_ssize_t>number * sizeof(void*)) < 0:
            raise MemoryError()
        memset(counts.data, 0, <Py_ssize_t>number * 4)
        for row in range(row_count):
            if numbers[row] < 0 or numbers[row] >= number:
                raise ValueError(f"partition {numbers[row]} of row {row} is not between 0 and {partition_count - 1}")
            (<int32_t*>counts.data)[numbers[row]] += 1
        place = <int32_t**>places.data
        for row in range(number):
            group = clone(_int32_template, (<int32_t*>counts.data)[row], False)
            groups.append(group)
            place[row] = <int32_t*>group.data.as_ints
        for row in range(row_count):
            place[numbers[row]][0] = <int32_t>row
            place[numbers[row]] += 1
        return groups
    finally:
        _let_go(&view)
        _release(&counts)
        _release(&places)
