"""Makes Python workers cheap to reuse: the process keeps freed buffers, and the garbage collector skips old objects.

Each record batch allocates some megabytes and frees them before the next batch needs the same amount. By default the C
library returns such blocks to the operating system at once. The operating system then clears every page when the
process touches it again. In a measurement that took half of the CPU time of reading: a page costs more to map than to
fill, on virtual machines in particular. So this module asks the GNU C library to take blocks up to 32 MiB from the
heap, and to keep up to 128 MiB of free heap. Spark ends a worker that has been idle for a minute. With another C
library nothing changes.

After every task Spark's daemon runs the garbage collector over all objects of a worker (``gc.collect()`` in
``pyspark.daemon``), before the worker takes the next task. That takes 19 ms for the modules that a read and a write
need. Objects that exist at the first task stay until the process ends. So this module excludes them from collection
(``gc.freeze()``).
"""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import Final

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# The largest value that glibc accepts on 64-bit machines.
_LARGEST_BLOCK: Final = 32 * 1024 * 1024
_KEPT_BYTES: Final = 128 * 1024 * 1024


@functools.cache
def settle_worker() -> None:
    """Keep freed memory and freeze the existing objects, once in a process."""
    keep_freed_memory()
    gc.freeze()


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed buffers; return whether it accepted that."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
