"""Chooses the twin of the kernel: the native one where it is built, else the Python one, with a warning.

All modules import the kernel's functions from here; no other module knows that there are two. The warning is logged
once in a process, when the kernel is first imported. ``fallback_warning()`` returns its text, so that a Spark driver
can log it for its executors too. Setting the environment variable ``KAFKALITE_PURE_PYTHON=1`` chooses the Python twin
on purpose, for tests and comparisons.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Final

from spark_kafkalite.version import reinstall_command

# Measured by bench/kernel.py: appending one record at the low end, walking batches at the high end.
_SLOW_DOWN: Final = "30 to 500 times slower"


def _native_is_wanted() -> bool:
    return os.environ.get("KAFKALITE_PURE_PYTHON", "") in ("", "0")


def _native_is_usable() -> bool:
    if not _native_is_wanted():
        return False
    try:
        from spark_kafkalite.records import _kernel
    except ImportError:
        return False
    return _kernel.IS_NATIVE


def fallback_warning() -> str | None:
    """Return the warning for a process that runs on the Python twin, None on the native one."""
    if IS_NATIVE:
        return None
    return (
        f"spark-kafkalite runs without its native kernel: records are read and written by Python, {_SLOW_DOWN}. "
        f"Install a wheel that has the kernel ({reinstall_command()}), or a C compiler and then the source again."
    )


if TYPE_CHECKING or _native_is_usable():
    from spark_kafkalite.records._kernel import (
        IS_NATIVE,
        ColumnBuilder,
        Columns,
        KeyMap,
        OpenBatch,
        check_crc,
        encode_columns,
        group_rows,
        murmur2,
        partition_by_key,
        read_header,
        scan_headers,
        stamp,
        walk_records,
    )
else:
    from spark_kafkalite.records.batch_py import (
        IS_NATIVE,
        ColumnBuilder,
        Columns,
        KeyMap,
        OpenBatch,
        check_crc,
        encode_columns,
        group_rows,
        murmur2,
        partition_by_key,
        read_header,
        scan_headers,
        stamp,
        walk_records,
    )

    warnings.warn(str(fallback_warning()), RuntimeWarning, stacklevel=2)

__all__ = [
    "IS_NATIVE",
    "ColumnBuilder",
    "Columns",
    "KeyMap",
    "OpenBatch",
    "check_crc",
    "encode_columns",
    "fallback_warning",
    "group_rows",
    "murmur2",
    "partition_by_key",
    "read_header",
    "scan_headers",
    "stamp",
    "walk_records",
]
