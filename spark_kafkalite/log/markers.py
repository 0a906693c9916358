"""Transaction markers as a log's files hold them, for the state of its producers.

A leader has refused what is wrong before it wrote. A follower, a recovery and a truncation take the log as it is, so a
marker that cannot be read is none here: its producer's transaction ends, its coordinator's epoch stays unknown.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import File
from spark_kafkalite.records.control import Marker, read_marker
from spark_kafkalite.records.layout import CONTROL_BIT, BatchHeader

# What is read of a control batch at most: a marker takes 78 bytes.
_MOST_BYTES: Final = 256


def marker_in(buffer: memoryview | bytes | bytearray, position: int, header: BatchHeader) -> Marker | None:
    """Return the marker in the batch at ``position``, None when it is no control batch or its record is no marker."""
    if not header.attributes & CONTROL_BIT:
        return None
    try:
        return read_marker(buffer, position, header)
    except CorruptMessage:
        return None


def marker_in_file(file: File, position: int, header: BatchHeader) -> Marker | None:
    """Return as :meth:`marker_in` does for a batch of a file, which is read for control batches alone."""
    if not header.attributes & CONTROL_BIT:
        return None
    return marker_in(file.pread(min(header.size_bytes, _MOST_BYTES), position), 0, header)
