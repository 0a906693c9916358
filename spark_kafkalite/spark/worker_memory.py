"""Makes a Python worker's process cheap to reuse: freed buffers stay with it, and what it has loaded is not looked
through again.

Each record batch takes some megabytes and gives them back before the next one needs the same again. The C library's
default returns such blocks to the system at once, and the system clears every page when it is touched anew: measured,
that was half of the CPU time of reading (a page costs more to map, on a virtual machine in particular, than to fill).
So blocks up to 32 MiB come from the heap, and up to 128 MiB of free heap stay with the process, which Spark ends when
it has been idle for a minute. Only the GNU C library is asked; elsewhere nothing happens.

Spark's daemon has the collector look at every object of a worker after every task (``gc.collect()`` in
``pyspark.daemon``), before the worker takes the next one: 19 ms for the modules that a read and a write need. What is
there at the first task stays until the process ends, so it is taken out of the collector's sight.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import Final

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# The largest that glibc takes on 64-bit machines.
_LARGEST_BLOCK: Final = 32 * 1024 * 1024
_KEPT_BYTES: Final = 128 * 1024 * 1024


@functools.cache
def settle_worker() -> None:
    """Do both, once in a process."""
    keep_freed_memory()
    gc.freeze()


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed buffers; returns whether it agreed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
