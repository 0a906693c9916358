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

PySpark 4.0 has Python forget, before every task, what it knows of the files on its path
(``importlib.invalidate_caches()``); 4.2 does so before a worker's first task only. Spark's Python code is in archives
on that path, and so is the jar of spark-core. CPython 3.11.2 then reads the list of an archive again for each
package in it, 16 times. That took 80 to 120 ms of CPU time on a busy host, and the 5,000 entries of the jar take 15 ms.
So this module removes these importers from the cache (``sys.path_importer_cache``) at each task. An import makes a new
one, from the list that Python still has. Newer versions of CPython read the list once, at the next import (gh-103200).
"""

from __future__ import annotations

import functools
import gc
import re
import sys
from typing import Final

from spark_kafkalite.c_memory import Option, set_option

# The largest value that glibc accepts on 64-bit machines.
_LARGEST_BLOCK: Final = 32 * 1024 * 1024
_KEPT_BYTES: Final = 128 * 1024 * 1024
# Files of a Spark distribution, which do not change while it runs. Packages within them have importers of their own.
_SPARK_ARCHIVE: Final = re.compile(r"[/\\](pyspark\.zip|py4j-[^/\\]*\.zip|spark-core_[^/\\]*\.jar)(?:[/\\]|\Z)")


def settle_worker() -> None:
    """Keep freed memory and freeze the existing objects, once in a process. Forget importers, at each task."""
    _settle_once()
    forget_spark_archives()


@functools.cache
def _settle_once() -> None:
    keep_freed_memory()
    gc.freeze()


def forget_spark_archives() -> None:
    """Remove the importers of Spark's own archives from Python's cache; the next import makes those that it needs."""
    for path in list(sys.path_importer_cache):
        if _SPARK_ARCHIVE.search(path):
            sys.path_importer_cache.pop(path, None)


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed buffers; return whether it accepted that."""
    return set_option(Option.MMAP_THRESHOLD, _LARGEST_BLOCK) and set_option(Option.TRIM_THRESHOLD, _KEPT_BYTES)
