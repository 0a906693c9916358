# cython: language_level=3
"""Arenas for the interpreter that lie in huge pages; ``huge_pages`` says what for."""

from libc.stddef cimport size_t
from libc.stdint cimport uintptr_t

cdef extern from "Python.h" nogil:
    ctypedef struct PyObjectArenaAllocator:
        void *ctx
        void *(*alloc)(void *ctx, size_t size) noexcept nogil
        void (*free)(void *ctx, void *arena, size_t size) noexcept nogil
    void PyObject_GetArenaAllocator(PyObjectArenaAllocator *allocator)
    void PyObject_SetArenaAllocator(PyObjectArenaAllocator *allocator)

cdef extern from "<sys/mman.h>" nogil:
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MADV_HUGEPAGE
    void *MAP_FAILED
    void *mmap(void *address, size_t length, int protection, int flags, int file, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)

# What the interpreter asks for at a time. It asks for smaller pieces, too (its stack's): those are left as they are.
cdef size_t ARENA_BYTES = 1 << 20
cdef size_t PAGE_BYTES = 2 << 20

# The allocator of before, and the arena that is left of the last huge page. All of this happens under the GIL.
cdef PyObjectArenaAllocator _before
cdef bint _is_used = False
cdef char *_left = NULL


cdef char *_page() noexcept nogil:
    """Return a huge page, as the system gives one; NULL where there is no memory."""
    cdef char *mapped = <char *> mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if mapped == MAP_FAILED:
        return NULL
    # It has to lie at a multiple of its size; what was mapped besides goes back.
    cdef size_t before = (PAGE_BYTES - <uintptr_t> mapped % PAGE_BYTES) % PAGE_BYTES
    cdef char *page = mapped + before
    if before:
        munmap(mapped, before)
    munmap(page + PAGE_BYTES, PAGE_BYTES - before)
    # Refused where the system has no huge pages. Then it is memory like any other.
    madvise(page, PAGE_BYTES, MADV_HUGEPAGE)
    return page


cdef void *_alloc(void *ctx, size_t size) noexcept nogil:
    global _left
    cdef char *arena
    if size == ARENA_BYTES:
        arena = _left
        if arena != NULL:
            _left = NULL
            return arena
        arena = _page()
        if arena != NULL:
            _left = arena + ARENA_BYTES
            return arena
    return _before.alloc(_before.ctx, size)


cdef void _free(void *ctx, void *arena, size_t size) noexcept nogil:
    # The interpreter's own arenas are mapped, too, and are given back in the same way.
    _before.free(_before.ctx, arena, size)


def use() -> None:
    """Have the arenas that the interpreter asks for from now on lie in huge pages."""
    global _is_used
    cdef PyObjectArenaAllocator ours
    if _is_used:
        return
    _is_used = True
    PyObject_GetArenaAllocator(&_before)
    ours.ctx = NULL
    ours.alloc = _alloc
    ours.free = _free
    PyObject_SetArenaAllocator(&ours)
