# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernel in C: the native twin of ``batch_py``, which is the reference and says what each function does.

Same names, signatures, results, exceptions and texts; tests/twins holds the two together. What is here that is not there:
bounds by pointer, buffers of our own, and the GIL let go while much is decoded or encoded.

Rules for reading this file. A pointer into a batch moves only after the bytes up to its new place have been checked
against the end of what it lies in. Functions that run without the GIL raise nothing: they return a code and leave the fault
and its two numbers in their struct. Room is made from the bytes at hand (a record takes at least seven), never from a count
that a batch announces. Where bytes are copied in pieces of 32, both sides have that much room behind the copy's end.
"""

cimport cython
from cpython.array cimport array, clone
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE
from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

import operator

from crc32c import crc32c as _crc32c

from spark_kafkalite.errors import CorruptMessage, SerializationError
from spark_kafkalite.model import Record
from spark_kafkalite.records import layout
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.buffers import HeaderColumns, with_valid_keys
from spark_kafkalite.records.layout import BatchHeader, record_error

cdef extern from *:
    """
    static inline uint16_t load_be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline uint32_t load_be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t load_be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void store_be16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
    static inline void store_be32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void store_be64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    static inline int bits_of(uint64_t v) { return 64 - __builtin_clzll(v | 1); }
    #define LIKELY(x) __builtin_expect(!!(x), 1)
    #define UNLIKELY(x) __builtin_expect(!!(x), 0)
    #if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the kernel is written for little-endian machines; without it the Python twin runs"
    #endif
    """
    uint16_t load_be16(const uint8_t* p) noexcept nogil
    uint32_t load_be32(const uint8_t* p) noexcept nogil
    uint64_t load_be64(const uint8_t* p) noexcept nogil
    void store_be16(uint8_t* p, uint16_t v) noexcept nogil
    void store_be32(uint8_t* p, uint32_t v) noexcept nogil
    void store_be64(uint8_t* p, uint64_t v) noexcept nogil
    int bits_of(uint64_t v) noexcept nogil
    bint LIKELY(bint x) noexcept nogil
    bint UNLIKELY(bint x) noexcept nogil

IS_NATIVE = True

cdef enum:
    HEADER_BYTES = 61
    LOG_OVERHEAD = 12
    MIN_BATCH_LENGTH = 49
    MAX_INT32 = 2147483647
    MIN_RECORD_BYTES = 7
    ROW_BYTES = 28
    HEADER_ROW_BYTES = 8
    # Below this much work another thread gains nothing from the GIL, and getting it back may take 5 ms.
    NOGIL_BYTES = 65536
    NOGIL_ROWS = 1024
    # What room may be made for batches that are only expected: beyond it a batch that lies about the others costs nothing.
    EXPECTED_ROWS = 2097152
    EXPECTED_BYTES = 67108864
    # Room behind buffers of ours, for copies in pieces.
    SLACK = 64

# Numbers of layout.Fault and layout.Field.
cdef enum:
    F_CUT = 1
    F_OVERLONG = 2
    F_LENGTH = 3
    F_ORDER = 4
    F_BEYOND = 5
    F_RECORD_REST = 6
    F_SECTION_REST = 7
    F_COUNT = 8
    F_NULL_KEY = 9
    F_TIMESTAMP = 10
    F_TOO_EARLY = 11
    F_TOO_LATE = 12
    F_NO_MEMORY = 100

cdef enum:
    RECORD_LENGTH = 0
    ATTRIBUTES = 1
    TIMESTAMP_DELTA = 2
    OFFSET_DELTA = 3
    KEY_LENGTH = 4
    VALUE_LENGTH = 5
    HEADER_COUNT = 6
    HEADER_KEY_LENGTH = 7
    HEADER_VALUE_LENGTH = 8

cdef object _tuple_new = tuple.__new__


# Headers --------------------------------------------------------------------------------------------------------------


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


# Walking records ------------------------------------------------------------------------------------------------------


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


# Columns --------------------------------------------------------------------------------------------------------------


cdef uint8_t _nothing[SLACK]


@cython.final
@cython.no_gc
cdef class _Block:
    """Memory of ours as a read-only buffer of bytes, int32 or int64 numbers."""

    cdef uint8_t* data
    cdef Py_ssize_t item_count
    cdef Py_ssize_t item_size
    cdef char* item_format

    def __dealloc__(self):
        free(self.data)

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


cdef inline void _release(Memory* memory) noexcept nogil:
    free(memory.data)
    memory.data = NULL
    memory.capacity = 0


cdef _Block _take(Memory* memory, Py_ssize_t item_count, Py_ssize_t item_size):
    """Hand the memory over to a block, cut to its size."""
    cdef _Block block = _Block.__new__(_Block)
    cdef Py_ssize_t size = item_count * item_size
    cdef uint8_t* smaller
    # Only much waste is given back: what was reserved and never written takes no memory, and a block that is freed at the
    # size at which the next one is asked for is used again warm (the first touch of fresh pages costs more than decoding).
    if size == 0:
        _release(memory)
    elif memory.capacity > 4 * size + 65536:
        smaller = <uint8_t*>realloc(memory.data, size + SLACK)
        if smaller != NULL:
            memory.data = smaller
    block.data = memory.data
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


# Decoding to columns --------------------------------------------------------------------------------------------------


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


cdef void _free_cells(GrowingCells* cells) noexcept nogil:
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

    cdef int _reserve_batches(self, int64_t record_count, Py_ssize_t size, double expected) noexcept nogil:
        """Make room for a batch, and for as many like it as are expected within the limits."""
        cdef double rows = min(min(record_count * expected, <double>(self._max_rows - self._count)), EXPECTED_ROWS)
        cdef double part = min(rows / max(record_count, 1) + 1, expected)
        cdef double room = min(min(size * part, <double>self._max_bytes), EXPECTED_BYTES)
        if self._reserve_rows(self._count + <Py_ssize_t>max(rows, min(record_count, self._max_rows - self._count))) < 0:
            return -1
        # No record takes more than its bytes; what is never written is never touched.
        if _reserve(&self._keys.data, self._keys.size + max(<Py_ssize_t>room, size)) < 0:
            return -1
        return _reserve(&self._values.data, self._values.size + max(<Py_ssize_t>room, size))

    cdef int _reserve_rows(self, Py_ssize_t rows) noexcept nogil:
        if rows <= self._row_capacity:
            return 0
        rows = max(rows, 2 * self._row_capacity)
        if (
            _reserve(&self._offsets, 8 * rows) < 0
            or _reserve(&self._timestamps, 8 * rows) < 0
            or _reserve(&self._timestamp_types, 4 * rows) < 0
            or _reserve(&self._keys.offsets, 4 * (rows + 1)) < 0
            or _reserve(&self._values.offsets, 4 * (rows + 1)) < 0
            or (self._with_headers and _reserve(&self._list_offsets, 4 * (rows + 1)) < 0)
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


# Encoding -------------------------------------------------------------------------------------------------------------


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


# Choosing partitions --------------------------------------------------------------------------------------------------


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
