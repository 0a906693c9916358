# The key map and what compaction leaves of a batch: the native twin of ``compact_py``. Included by ``_kernel.pyx``, whose
# rules hold.

cdef extern from *:
    """
    /* BLAKE2b (RFC 7693) with 16 bytes of output and a salt; hashlib's, for tests/twins to compare with. */
    static const uint64_t blake2b_iv[8] = {
        0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
        0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL};
    static const uint8_t blake2b_order[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
    #define BLAKE2B_TURN(x, n) (((x) >> (n)) | ((x) << (64 - (n))))
    #define BLAKE2B_MIX(r, i, a, b, c, d) \\
        a += b + m[blake2b_order[r][2 * i]]; d = BLAKE2B_TURN(d ^ a, 32); c += d; b = BLAKE2B_TURN(b ^ c, 24); \\
        a += b + m[blake2b_order[r][2 * i + 1]]; d = BLAKE2B_TURN(d ^ a, 16); c += d; b = BLAKE2B_TURN(b ^ c, 63);
    #define BLAKE2B_ROUND(r) \\
        BLAKE2B_MIX(r, 0, v0, v4, v8, v12) BLAKE2B_MIX(r, 1, v1, v5, v9, v13) \\
        BLAKE2B_MIX(r, 2, v2, v6, v10, v14) BLAKE2B_MIX(r, 3, v3, v7, v11, v15) \\
        BLAKE2B_MIX(r, 4, v0, v5, v10, v15) BLAKE2B_MIX(r, 5, v1, v6, v11, v12) \\
        BLAKE2B_MIX(r, 6, v2, v7, v8, v13) BLAKE2B_MIX(r, 7, v3, v4, v9, v14)
    static void blake2b_block(uint64_t *h, const uint8_t *block, uint64_t count, uint64_t last) {
        uint64_t m[16], v0 = h[0], v1 = h[1], v2 = h[2], v3 = h[3], v4 = h[4], v5 = h[5], v6 = h[6], v7 = h[7];
        uint64_t v8 = blake2b_iv[0], v9 = blake2b_iv[1], v10 = blake2b_iv[2], v11 = blake2b_iv[3];
        uint64_t v12 = blake2b_iv[4] ^ count, v13 = blake2b_iv[5], v14 = blake2b_iv[6] ^ last, v15 = blake2b_iv[7];
        memcpy(m, block, 128);
        BLAKE2B_ROUND(0) BLAKE2B_ROUND(1) BLAKE2B_ROUND(2) BLAKE2B_ROUND(3) BLAKE2B_ROUND(4) BLAKE2B_ROUND(5)
        BLAKE2B_ROUND(6) BLAKE2B_ROUND(7) BLAKE2B_ROUND(8) BLAKE2B_ROUND(9) BLAKE2B_ROUND(0) BLAKE2B_ROUND(1)
        h[0] ^= v0 ^ v8; h[1] ^= v1 ^ v9; h[2] ^= v2 ^ v10; h[3] ^= v3 ^ v11;
        h[4] ^= v4 ^ v12; h[5] ^= v5 ^ v13; h[6] ^= v6 ^ v14; h[7] ^= v7 ^ v15;
    }
    static void blake2b_start(uint64_t *h, const uint8_t *salt) {
        uint64_t words[2];
        memcpy(words, salt, 16);
        memcpy(h, blake2b_iv, 64);
        h[0] ^= 0x01010000 ^ 16; h[4] ^= words[0]; h[5] ^= words[1];
    }
    static void blake2b_16(const uint64_t *start, const uint8_t *data, uint64_t length, uint64_t *out) {
        uint64_t h[8], done = 0;
        uint8_t block[128];
        memcpy(h, start, 64);
        for (; length - done > 128; done += 128)
            blake2b_block(h, data + done, done + 128, 0);
        memset(block, 0, 128);
        memcpy(block, data + done, length - done);
        blake2b_block(h, block, length, ~0ULL);
        out[0] = h[0]; out[1] = h[1];
    }
    #define prefetch(place) __builtin_prefetch(place)
    """
    void prefetch(const void* place) noexcept nogil
    void blake2b_start(uint64_t* h, const uint8_t* salt) noexcept nogil
    void blake2b_16(const uint64_t* start, const uint8_t* data, uint64_t length, uint64_t* out) noexcept nogil


cdef struct Slot:
    uint64_t digest[2]
    # The key's last offset plus one; 0 is an empty slot.
    int64_t end_offset


cdef struct KeySlots:
    Slot* slots
    uint64_t slot_count
    int64_t capacity
    int64_t count
    # BLAKE2b's state after the salt.
    uint64_t start[8]


cdef struct Wanted:
    # A record whose key is looked up a little later, when its slot has come into the cache.
    Slot* slot
    uint64_t digest[2]
    int64_t offset
    int64_t index
    int64_t size
    int64_t timestamp
    bint is_tombstone


cdef enum:
    # How many slots are fetched from memory at once; one after the other they take twice as long as the hashes.
    WANTED_AT_ONCE = 16


cdef inline void _want(const KeySlots* keys, const Parsed* r, Wanted* wanted) noexcept nogil:
    """Hash a record's key and begin to fetch its slot."""
    blake2b_16(keys.start, r.key, r.key_length, wanted.digest)
    wanted.slot = keys.slots + wanted.digest[0] % keys.slot_count
    prefetch(wanted.slot)


cdef inline Slot* _found(const KeySlots* keys, const Wanted* wanted) noexcept nogil:
    """Return a key's slot, or the empty one where it belongs; one is always empty."""
    cdef Slot* slot = wanted.slot
    while slot.end_offset and (slot.digest[0] != wanted.digest[0] or slot.digest[1] != wanted.digest[1]):
        slot += 1
        if slot == keys.slots + keys.slot_count:
            slot = keys.slots
    return slot


cdef int _put_records(
    KeySlots* keys, Section* s, int64_t base_offset, int64_t first_offset, int64_t* next_offset
) noexcept nogil:
    cdef Parsed r
    cdef Slot* slot
    cdef Wanted[WANTED_AT_ONCE] wanted
    cdef int64_t i = 0
    cdef int n, k
    cdef const uint8_t* p = s.p
    while i < s.count and p != NULL:
        n = 0
        while n < WANTED_AT_ONCE and i < s.count:
            p = _next_record(s, p, &r, False)
            if UNLIKELY(p == NULL):
                # What came before it counts, and may even fill the map first.
                break
            i += 1
            wanted[n].offset = base_offset + r.offset_delta
            if r.key_length >= 0 and wanted[n].offset >= first_offset:
                _want(keys, &r, &wanted[n])
                n += 1
        for k in range(n):
            slot = _found(keys, &wanted[k])
            if slot.end_offset == 0:
                if keys.count == keys.capacity:
                    next_offset[0] = wanted[k].offset
                    return 0
                slot.digest[0] = wanted[k].digest[0]
                slot.digest[1] = wanted[k].digest[1]
                keys.count += 1
            slot.end_offset = wanted[k].offset + 1
    s.index = i
    if p == NULL:
        return -1
    if p != s.end:
        return _fault(s, F_SECTION_REST, 0, s.end - p, 0)
    next_offset[0] = base_offset + s.last_offset_delta + 1
    return 0


cdef struct Kept:
    # A byte for each record: whether it stays.
    uint8_t* flags
    int64_t count
    int64_t size
    int64_t tombstones
    int64_t earliest
    int64_t largest


cdef inline void _keep(Kept* kept, const Wanted* record) noexcept nogil:
    kept.flags[record.index] = 1
    kept.size += record.size
    if not kept.count or record.timestamp > kept.largest:
        kept.largest = record.timestamp
    if record.timestamp < kept.earliest:
        kept.earliest = record.timestamp
    kept.tombstones += record.is_tombstone
    kept.count += 1


cdef int _choose_records(
    const KeySlots* keys,
    Section* s,
    int64_t base_offset,
    int64_t first_offset,
    int64_t until_offset,
    int64_t tombstones_until_offset,
    Kept* kept,
) noexcept nogil:
    cdef Parsed r
    cdef Wanted[WANTED_AT_ONCE] wanted
    cdef Wanted* record
    cdef int64_t i = 0
    cdef int n, k
    cdef const uint8_t* start
    cdef const uint8_t* p = s.p
    while i < s.count:
        n = 0
        while n < WANTED_AT_ONCE and i < s.count:
            start = p
            p = _next_record(s, p, &r, False)
            if UNLIKELY(p == NULL):
                s.index = i
                return -1
            record = &wanted[n]
            record.offset = base_offset + r.offset_delta
            record.index = i
            record.size = p - start
            record.timestamp = r.timestamp
            record.is_tombstone = r.key_length >= 0 and r.value_length < 0
            kept.flags[i] = 0
            i += 1
            if record.offset < first_offset:
                continue
            if record.offset >= until_offset:
                _keep(kept, record)
            elif r.key_length >= 0 and not (record.is_tombstone and record.offset < tombstones_until_offset):
                _want(keys, &r, record)
                n += 1
        for k in range(n):
            if _found(keys, &wanted[k]).end_offset <= wanted[k].offset + 1:
                _keep(kept, &wanted[k])
    s.index = s.count
    if p != s.end:
        return _fault(s, F_SECTION_REST, 0, s.end - p, 0)
    return 0


cdef inline const uint8_t* _after_varint(const uint8_t* p) noexcept nogil:
    while p[0] >= 0x80:
        p += 1
    return p + 1


cdef uint8_t* _put_with_delta(uint8_t* out, const uint8_t* record, const uint8_t* end, int64_t delta) noexcept nogil:
    """Write a record, which has been checked, with another timestamp delta."""
    cdef const uint8_t* attributes = _after_varint(record)
    cdef const uint8_t* rest = _after_varint(attributes + 1)
    out = _put_varint(out, 1 + _varint_size(delta) + (end - rest))
    out[0] = attributes[0]
    out = _put_varint(out + 1, delta)
    memcpy(out, rest, end - rest)
    return out + (end - rest)


cdef uint8_t* _put_kept(Section* s, const Kept* kept, bint has_horizon, int64_t horizon_ms, uint8_t* out) noexcept nogil:
    """Write the records that stay, as they are or for another base timestamp; returns where they end."""
    cdef Parsed r
    cdef int64_t i
    cdef const uint8_t* start
    cdef const uint8_t* p = s.p
    # Where records that go together begin, NULL between such runs.
    cdef const uint8_t* run = NULL
    s.previous_delta = -1
    for i in range(s.count):
        start = p
        p = _next_record(s, p, &r, False)
        if has_horizon:
            if kept.flags[i]:
                out = _put_with_delta(out, start, p, r.timestamp - horizon_ms)
        elif kept.flags[i]:
            run = start if run == NULL else run
        elif run != NULL:
            memcpy(out, run, start - run)
            out += start - run
            run = NULL
    if run != NULL:
        memcpy(out, run, p - run)
        out += p - run
    return out


@cython.final
cdef class KeyMap:
    """As ``batch_py.KeyMap``."""

    cdef KeySlots _keys
    cdef Py_buffer _memory

    def __cinit__(self, Py_ssize_t buffer_bytes, salt=None):
        cdef bytes seed
        cdef int64_t slots = buffer_bytes // <Py_ssize_t>sizeof(Slot)
        if slots < 2:
            raise ValueError(f"a key map of {buffer_bytes} bytes holds no key: it takes at least {2 * sizeof(Slot)}")
        seed = urandom(16) if salt is None else bytes(salt)
        if len(seed) != 16:
            raise ValueError(f"the salt has {len(seed)} bytes, not 16")
        # Zeros from the system cost memory only where a key comes to lie; small pages, touched all over, would take longer than
        # all else that is done for a key.
        memory = mmap.mmap(-1, slots * sizeof(Slot), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a system without huge pages
                pass
        PyObject_GetBuffer(memory, &self._memory, PyBUF_WRITABLE)
        self._keys.slots = <Slot*>self._memory.buf
        self._keys.slot_count = slots
        self._keys.capacity = slots * 9 // 10
        self._keys.count = 0
        blake2b_start(self._keys.start, <const uint8_t*>PyBytes_AS_STRING(seed))

    def __dealloc__(self):
        if self._keys.slots != NULL:
            PyBuffer_Release(&self._memory)

    @property
    def capacity(self):
        return self._keys.capacity

    @property
    def count(self):
        return self._keys.count

    def digest(self, key):
        """As ``batch_py.KeyMap.digest``."""
        cdef Py_buffer view
        cdef uint64_t digest[2]
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        blake2b_16(self._keys.start, <const uint8_t*>view.buf, view.len, digest)
        PyBuffer_Release(&view)
        return PyBytes_FromStringAndSize(<const char*>digest, sizeof(digest))

    def offset_of(self, key):
        """As ``batch_py.KeyMap.offset_of``."""
        cdef Parsed r
        cdef Wanted wanted
        cdef Py_buffer view
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        r.key, r.key_length = <const uint8_t*>view.buf, view.len
        _want(&self._keys, &r, &wanted)
        PyBuffer_Release(&view)
        return _found(&self._keys, &wanted).end_offset - 1

    def put_records(self, payload, header, int64_t first_offset=0):
        """As ``batch_py.KeyMap.put_records``."""
        cdef Py_buffer view
        cdef Section s
        cdef int64_t next_offset = 0
        cdef int64_t base_offset = _checked_base_offset(header)
        cdef int result
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            _open_section(&s, <const uint8_t*>view.buf, view.len, header)
            if view.len >= NOGIL_BYTES:
                with nogil:
                    result = _put_records(&self._keys, &s, base_offset, first_offset, &next_offset)
            else:
                result = _put_records(&self._keys, &s, base_offset, first_offset, &next_offset)
            if result < 0:
                raise _section_error(&s)
            return next_offset
        finally:
            PyBuffer_Release(&view)

    def filter_records(
        self,
        payload,
        header,
        int64_t first_offset=0,
        int64_t until_offset=INT64_MAX,
        *,
        int64_t tombstones_until_offset=0,
        int64_t delete_horizon_ms=-1,
    ):
        """As ``batch_py.KeyMap.filter_records``."""
        cdef Py_buffer view
        cdef Section s
        cdef Kept kept
        cdef bint has_horizon
        cdef uint8_t* out
        cdef uint8_t* end
        cdef int result
        cdef object buffer
        cdef int64_t base_offset = _checked_base_offset(header)
        memset(&kept, 0, sizeof(kept))
        kept.earliest = INT64_MAX
        kept.largest = -1
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            _open_section(&s, <const uint8_t*>view.buf, view.len, header)
            kept.flags = <uint8_t*>malloc(s.count + 1)
            if kept.flags == NULL:
                raise MemoryError()
            if view.len >= NOGIL_BYTES:
                with nogil:
                    result = _choose_records(
                        &self._keys, &s, base_offset, first_offset, until_offset, tombstones_until_offset, &kept
                    )
            else:
                result = _choose_records(
                    &self._keys, &s, base_offset, first_offset, until_offset, tombstones_until_offset, &kept
                )
            if result < 0:
                raise _section_error(&s)
            has_horizon = (
                delete_horizon_ms >= 0 and kept.tombstones > 0 and kept.earliest >= INT64_MIN + delete_horizon_ms
            )
            if kept.count == s.count and not has_horizon:
                return RetainedRecords(kept.count, kept.tombstones, kept.largest, False, None)
            # A delta may grow by nine bytes, and with it the record's length by four at most.
            buffer = PyByteArray_FromStringAndSize(
                NULL, HEADER_BYTES + kept.size + (13 * kept.count if has_horizon else 0)
            )
            out = <uint8_t*>PyByteArray_AS_STRING(buffer)
            memset(out, 0, HEADER_BYTES)
            end = _put_kept(&s, &kept, has_horizon, delete_horizon_ms, out + HEADER_BYTES)
            PyByteArray_Resize(buffer, end - out)
            if end - out > MAX_INT32:
                raise layout.too_large(end - out)
            return RetainedRecords(kept.count, kept.tombstones, kept.largest, bool(has_horizon), buffer)
        finally:
            free(kept.flags)
            PyBuffer_Release(&view)


cdef int64_t _checked_base_offset(header) except -1:
    cdef int64_t base_offset = _header_field(header, 0)
    if base_offset < 0 or base_offset > INT64_MAX - MAX_INT32 - 1:
        raise CorruptMessage(f"record batch: base offset {base_offset} is not an offset of a log")
    return base_offset
