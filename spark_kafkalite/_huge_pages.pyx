# cython: language_level=3
"""Arenas for the interpreter that lie in huge pages; ``huge_pages`` says what for."""

from libc.stddef cimport size_t
from libc.stdint cimport uintptr_t
from libc.stdlib cimport realloc

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


cdef struct Page:
    char *begin
    # Which of its two arenas are in use.
    int taken


# The allocator of before, and the pages that are in use. All of this happens under the GIL, of one interpreter.
cdef PyObjectArenaAllocator _before
cdef bint _is_used = False
cdef Page *_pages = NULL
cdef size_t _count = 0
cdef size_t _room = 0
# How many pages have an arena to give. One that comes back stays with the other: given to the system alone it would
# only end the huge page, whose memory nobody gets before both are gone.
cdef size_t _halves = 0


cdef char *_mapped_page() noexcept nogil:
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


cdef void *_arena_of_new_page() noexcept nogil:
    global _pages, _room, _count, _halves
    cdef Page *pages
    cdef char *page
    if _count == _room:
        pages = <Page *> realloc(_pages, (2 * _room + 16) * sizeof(Page))
        if pages == NULL:
            return NULL
        _pages = pages
        _room = 2 * _room + 16
    page = _mapped_page()
    if page != NULL:
        _pages[_count].begin = page
        _pages[_count].taken = 1
        _count += 1
        _halves += 1
    return page


cdef void *_alloc(void *ctx, size_t size) noexcept nogil:
    global _halves
    cdef size_t number
    cdef void *arena
    if size == ARENA_BYTES:
        if _halves:
            # From the last: nearly always that is it.
            for number in range(_count, 0, -1):
                if _pages[number - 1].taken != 3:
                    arena = _pages[number - 1].begin + (0 if _pages[number - 1].taken == 2 else ARENA_BYTES)
                    _pages[number - 1].taken = 3
                    _halves -= 1
                    return arena
        arena = _arena_of_new_page()
        if arena != NULL:
            return arena
    return _before.alloc(_before.ctx, size)


cdef void _free(void *ctx, void *arena, size_t size) noexcept nogil:
    global _count, _halves
    cdef size_t number, within = <uintptr_t> arena % PAGE_BYTES
    cdef char *page = <char *> arena - within
    if size == ARENA_BYTES:
        for number in range(_count, 0, -1):
            if _pages[number - 1].begin == page:
                _pages[number - 1].taken &= 1 if within else 2
                if _pages[number - 1].taken:
                    _halves += 1
                else:
                    _halves -= 1
                    _count -= 1
                    _pages[number - 1] = _pages[_count]
                    munmap(page, PAGE_BYTES)
                return
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
