# Records one by one: the native twin of ``section_py``. Included by ``_kernel.pyx``, whose rules hold.


cdef struct Section:
    const uint8_t* p
    const uint8_t* end
    int64_t base_timestamp
    int64_t last_offset_delta
    int64_t count
    int64_t index
    int64_t previous_delta
    # Whether _usual_record may be tried: no key is required, and no short timestamp delta can overflow.
    bint is_usual
    # Result of _long_varint.
    int64_t number
    int fault
    int field
    int64_t first
    int64_t second


cdef struct Parsed:
    int64_t timestamp
    int64_t offset_delta
    # -1 is null.
    int64_t key_length
    int64_t value_length
    int32_t header_count
    const uint8_t* key
    const uint8_t* value
    # The headers' bytes, already checked.
    const uint8_t* headers


cdef int _fault(Section* s, int fault, int field, int64_t first, int64_t second) noexcept nogil:
    s.fault = fault
    s.field = field
    s.first = first
    s.second = second
    return -1


# The functions below take the place to read from and return the place after what they read, NULL on a fault: a place kept
# in the struct would go through memory at every field, which alone halves the speed.


cdef const uint8_t* _long_varint(Section* s, const uint8_t* p, const uint8_t* end, int field, int bits) noexcept nogil:
    """Read a varint of any length into ``s.number``."""
    cdef uint64_t raw = 0
    cdef uint64_t byte
    cdef int shift = 0
    while True:
        if p >= end:
            _fault(s, F_CUT, field, 0, 0)
            return NULL
        byte = p[0]
        p += 1
        if shift + 7 > bits and byte >> (bits - shift):
            _fault(s, F_OVERLONG, field, 0, 0)
            return NULL
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            s.number = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return p
        shift += 7


cdef inline const uint8_t* _varint(
    Section* s, const uint8_t* p, const uint8_t* end, int field, int bits, int64_t* out
) noexcept nogil:
    cdef uint64_t raw
    if LIKELY(end - p >= 2):
        raw = p[0]
        if raw < 0x80:
            out[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return p + 1
        if p[1] < 0x80:
            raw = (raw & 0x7F) | (<uint64_t>p[1] << 7)
            out[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return p + 2
    p = _long_varint(s, p, end, field, bits)
    out[0] = s.number
    return p


cdef inline const uint8_t* _cell(
    Section* s, const uint8_t* p, const uint8_t* end, int field, int64_t* length
) noexcept nogil:
    """Read a length, -1 for null; returns where the bytes begin, after checking that they are there."""
    p = _varint(s, p, end, field, 32, length)
    if UNLIKELY(p == NULL):
        return NULL
    if UNLIKELY(length[0] > end - p or length[0] < -1 or (length[0] < 0 and field == HEADER_KEY_LENGTH)):
        _fault(s, F_LENGTH, field, length[0], end - p)
        return NULL
    return p


cdef const uint8_t* _skip_headers(Section* s, const uint8_t* p, const uint8_t* end, Parsed* r) noexcept nogil:
    """Check a record's headers; returns the record's end."""
    cdef int64_t number, i, length
    p = _varint(s, p, end, HEADER_COUNT, 32, &number)
    if p == NULL:
        return NULL
    if number < 0 or number > (end - p) // 2:
        _fault(s, F_LENGTH, HEADER_COUNT, number, end - p)
        return NULL
    r.header_count = <int32_t>number
    r.headers = p
    for i in range(number):
        p = _cell(s, p, end, HEADER_KEY_LENGTH, &length)
        if p == NULL:
            return NULL
        p = _cell(s, p + length, end, HEADER_VALUE_LENGTH, &length)
        if p == NULL:
            return NULL
        p += max(length, 0)
    if p != end:
        _fault(s, F_RECORD_REST, 0, end - p, 0)
        return NULL
    return p


cdef const uint8_t* _any_record(Section* s, const uint8_t* p, Parsed* r, bint keys_required) noexcept nogil:
    """Read and check the record at ``p``, whatever it is like; says what is wrong with it."""
    cdef const uint8_t* end
    cdef int64_t number
    p = _varint(s, p, s.end, RECORD_LENGTH, 32, &number)
    if UNLIKELY(p == NULL):
        return NULL
    if UNLIKELY(number < 0 or number > s.end - p):
        _fault(s, F_LENGTH, RECORD_LENGTH, number, s.end - p)
        return NULL
    end = p + number
    if UNLIKELY(p >= end):
        _fault(s, F_CUT, ATTRIBUTES, 0, 0)
        return NULL
    p = _varint(s, p + 1, end, TIMESTAMP_DELTA, 64, &number)
    if UNLIKELY(p == NULL):
        return NULL
    if UNLIKELY(
        s.base_timestamp > INT64_MAX - number if number >= 0 else s.base_timestamp < INT64_MIN - number
    ):
        _fault(s, F_TIMESTAMP, 0, s.base_timestamp, number)
        return NULL
    r.timestamp = s.base_timestamp + number
    p = _varint(s, p, end, OFFSET_DELTA, 32, &number)
    if UNLIKELY(p == NULL):
        return NULL
    if UNLIKELY(number <= s.previous_delta):
        _fault(s, F_ORDER, 0, number, s.previous_delta)
        return NULL
    if UNLIKELY(number > s.last_offset_delta):
        _fault(s, F_BEYOND, 0, number, s.last_offset_delta)
        return NULL
    r.offset_delta = number
    s.previous_delta = number
    p = _cell(s, p, end, KEY_LENGTH, &r.key_length)
    if UNLIKELY(p == NULL):
        return NULL
    if UNLIKELY(keys_required and r.key_length < 0):
        _fault(s, F_NULL_KEY, 0, 0, 0)
        return NULL
    r.key = p
    p = _cell(s, p + (r.key_length if r.key_length > 0 else 0), end, VALUE_LENGTH, &r.value_length)
    if UNLIKELY(p == NULL):
        return NULL
    r.value = p
    p += r.value_length if r.value_length > 0 else 0
    r.header_count = 0
    r.headers = p
    if LIKELY(end - p == 1 and p[0] == 0):
        # No headers, and the record ends here: nearly every record.
        return end
    return _skip_headers(s, p, end, r)


cdef inline const uint8_t* _short_varint(const uint8_t* p, int64_t* out) noexcept nogil:
    """Read a varint of at most three bytes, which must lie in the section; NULL when it is longer."""
    cdef uint64_t raw = p[0]
    if LIKELY(raw < 0x80):
        p += 1
    elif p[1] < 0x80:
        raw = (raw & 0x7F) | <uint64_t>p[1] << 7
        p += 2
    elif p[2] < 0x80:
        raw = (raw & 0x7F) | <uint64_t>(p[1] & 0x7F) << 7 | <uint64_t>p[2] << 14
        p += 3
    else:
        return NULL
    out[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return p


cdef inline const uint8_t* _usual_record(Section* s, const uint8_t* start, Parsed* r) noexcept nogil:
    """Read the record at ``start`` if it is like nearly all: short varints, no headers, nothing wrong. Else NULL.

    Four varints and the attributes take 13 bytes here, so one check of the room stands for many; that all lengths add up
    to the record's own at the end stands for the others.
    """
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int64_t length, delta
    if UNLIKELY(s.end - start < 16):
        return NULL
    p = _short_varint(start, &length)
    if UNLIKELY(p == NULL or length < 0 or length > s.end - p):
        return NULL
    end = p + length
    p = _short_varint(p + 1, &delta)
    if UNLIKELY(p == NULL):
        return NULL
    r.timestamp = s.base_timestamp + delta
    p = _short_varint(p, &delta)
    if UNLIKELY(p == NULL or delta <= s.previous_delta or delta > s.last_offset_delta):
        return NULL
    r.offset_delta = delta
    p = _short_varint(p, &r.key_length)
    if UNLIKELY(p == NULL):
        return NULL
    r.key = p
    if r.key_length > 0:
        if UNLIKELY(r.key_length > end - p):
            return NULL
        p += r.key_length
    elif UNLIKELY(r.key_length < -1):
        return NULL
    if UNLIKELY(s.end - p < 3):
        return NULL
    p = _short_varint(p, &r.value_length)
    if UNLIKELY(p == NULL or r.value_length < -1):
        return NULL
    r.value = p
    length = r.value_length if r.value_length > 0 else 0
    # Also says that end lies behind everything read before, and that the value lies in the record.
    if UNLIKELY(end - p - length != 1 or (end - 1)[0] != 0):
        return NULL
    r.header_count = 0
    r.headers = p
    s.previous_delta = delta
    return end


cdef inline const uint8_t* _next_record(Section* s, const uint8_t* p, Parsed* r, bint keys_required) noexcept nogil:
    """Read and check the record at ``p``."""
    cdef const uint8_t* end
    cdef Parsed any
    if LIKELY(s.is_usual):
        end = _usual_record(s, p, r)
        if LIKELY(end != NULL):
            return end
    # Into a struct of its own: a struct whose address is given away is kept in memory, not in registers.
    end = _any_record(s, p, &any, keys_required)
    r[0] = any
    return end


cdef inline int32_t _checked_varint(const uint8_t** p) noexcept nogil:
    """Read a varint of at most 32 bits that has been checked."""
    cdef uint32_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        byte = p[0][0]
        p[0] += 1
        raw |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return <int32_t>(raw >> 1) ^ -<int32_t>(raw & 1)
        shift += 7


cdef int _open_section(Section* s, const uint8_t* p, Py_ssize_t size, header) except -1:
    s.p = p
    s.end = p + size
    s.base_timestamp = _header_field(header, 7)
    s.last_offset_delta = _header_field(header, 6)
    s.count = _header_field(header, 12)
    s.index = 0
    s.previous_delta = -1
    s.is_usual = INT64_MIN + (1 << 24) < s.base_timestamp < INT64_MAX - (1 << 24)
    s.fault = 0
    s.field = 0
    if s.count < 0 or s.count > size // MIN_RECORD_BYTES:
        raise record_error(F_COUNT, 0, 0, s.count, size)
    return 0


cdef object _section_error(Section* s):
    if s.fault == F_NO_MEMORY:
        return MemoryError()
    return record_error(s.fault, s.field, s.index, s.first, s.second)


cdef int _walk(
    Section* s, bint keys_required, int64_t earliest, int64_t latest, int64_t* largest
) noexcept nogil:
    cdef Parsed r
    cdef int64_t i
    cdef int64_t top = INT64_MIN
    cdef const uint8_t* p = s.p
    for i in range(s.count):
        p = _next_record(s, p, &r, keys_required)
        if UNLIKELY(p == NULL):
            s.index = i
            return -1
        if UNLIKELY((r.timestamp < earliest or r.timestamp > latest) and r.timestamp != -1):
            s.index = i
            if r.timestamp < earliest:
                return _fault(s, F_TOO_EARLY, 0, r.timestamp, earliest)
            return _fault(s, F_TOO_LATE, 0, r.timestamp, latest)
        if r.timestamp > top:
            top = r.timestamp
    s.index = s.count
    if p != s.end:
        return _fault(s, F_SECTION_REST, 0, s.end - p, 0)
    largest[0] = top if s.count else -1
    return 0


def walk_records(
    payload,
    header,
    *,
    bint keys_required=False,
    int64_t earliest_timestamp=INT64_MIN,
    int64_t latest_timestamp=INT64_MAX,
):
    """As ``batch_py.walk_records``."""
    cdef Py_buffer view
    cdef Section s
    cdef int64_t largest = -1
    cdef int result
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _open_section(&s, <const uint8_t*>view.buf, view.len, header)
        s.is_usual = s.is_usual and not keys_required
        if view.len >= NOGIL_BYTES:
            with nogil:
                result = _walk(&s, keys_required, earliest_timestamp, latest_timestamp, &largest)
        else:
            result = _walk(&s, keys_required, earliest_timestamp, latest_timestamp, &largest)
        if result < 0:
            raise _section_error(&s)
        return largest
    finally:
        PyBuffer_Release(&view)
