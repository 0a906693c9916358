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

import mmap
import operator
from os import urandom

from crc32c import crc32c as _crc32c

from spark_kafkalite.errors import CorruptMessage, SerializationError
from spark_kafkalite.model import Record
from spark_kafkalite.records import layout
from spark_kafkalite.records.assemble import RetainedRecords, SectionFacts, assemble
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

include "_kernel_header.pxi"
include "_kernel_section.pxi"
include "_kernel_columns.pxi"
include "_kernel_decode.pxi"
include "_kernel_encode.pxi"
include "_kernel_partition.pxi"
include "_kernel_compact.pxi"
