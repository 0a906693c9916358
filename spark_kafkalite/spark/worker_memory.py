"""Keeps freed buffers in a Python worker's process, so that record batches do not page-fault anew.

Each record batch takes some megabytes and gives them back before the next one needs the same again. The C library's
default returns such blocks to the system at once, and the system clears every page when it is touched anew: measured,
that was half of the CPU time of reading (a page costs more to map, on a virtual machine in particular, than to fill).
So blocks up to 32 MiB come from the heap, and up to 128 MiB of free heap stay with the process, which Spark ends when
it has been idle for a minute. Only the GNU C library is asked; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Final

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# The largest that glibc takes on 64-bit machines.
_LARGEST_BLOCK: Final = 32 * 1024 * 1024
_KEPT_BYTES: Final = 128 * 1024 * 1024


@functools.cache
def keep_freed_memory() -> bool:
    """Ask for it, once in a process; returns whether the C library agreed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
