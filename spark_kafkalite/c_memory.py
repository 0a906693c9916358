"""Options of the C library's memory allocation (glibc's mallopt(3))."""

from __future__ import annotations

import ctypes
import enum


class Option(enum.IntEnum):
    """glibc's M_ constants."""

    TRIM_THRESHOLD = -1
    """Bytes: an arena whose free end has more returns it to the system."""
    MMAP_THRESHOLD = -3
    """Bytes: a block of at least so many is returned to the system when it is freed."""
    ARENA_MAX = -8
    """How many arenas all threads share; by itself glibc makes up to eight for each processor."""


def set_option(option: Option, value: int) -> bool:
    """Set an option of this process; return whether the C library accepted it. Others than glibc do not."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(option, value))
