"""Checks published Parquet files before a table names them, and reads their times from their footers.

A table's log is taken at its word by readers: a file that is missing, or has another length, fails every later read. So
each file is looked up once, and its footer read: its last bytes, whatever its size.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_kafkalite.jobs.tables.delta_actions import TableFile
from spark_kafkalite.jobs.tables.table_errors import TableError, some_of
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import Manifest, PublishedFile

# Enough for the footer of a file of 256 MB.
_TAIL_BYTES: Final = 64 << 10
# A footer's length, and the four characters that end the file.
_ENDING_BYTES: Final = 8
_MAGIC: Final = b"PAR1"
# On HDFS a footer takes some round trips.
_AT_ONCE: Final = 8
_TO_MICROSECONDS: Final = {"milliseconds": (1000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1000)}

Published = tuple[Manifest, PublishedFile]


def table_files(files: Files, published: Sequence[Published]) -> list[TableFile]:
    """Return the files as a table adds them, in their order.

    Raises TableError naming the files that are not there, or are not what their manifests name.
    """
    problems: list[str] = []
    found: list[TableFile] = []
    with ThreadPoolExecutor(min(_AT_ONCE, len(published) or 1)) as pool:
        for each in pool.map(lambda one: _table_file(files, *one), published):
            if isinstance(each, str):
                problems.append(each)
            else:
                found.append(each)
    if problems:
        raise TableError(
            f"{files.root}: a table cannot be written from its manifests: {some_of(problems)}; restore the files from "
            "a copy (OPTIMIZE and VACUUM of the table may have deleted them), or load into another destination"
        )
    return found


def _table_file(files: Files, manifest: Manifest, file: PublishedFile) -> TableFile | str:
    """Return a file with what its footer states, or what is wrong with it."""
    named = f"{file.final} with {file.records} records, published by {manifest.path} (run {manifest.run})"
    try:
        size_bytes, tail = files.tail(file.final, _TAIL_BYTES)
    except FileNotFoundError:
        return f"{named}, is not there"
    if file.size_bytes not in (None, size_bytes):
        return f"{named}, has {size_bytes} bytes instead of {file.size_bytes}"
    footer_bytes = int.from_bytes(tail[-_ENDING_BYTES : -len(_MAGIC)], "little") + _ENDING_BYTES
    if not tail.endswith(_MAGIC) or footer_bytes > size_bytes:
        return f"{named}, is not Parquet"
    if footer_bytes > len(tail):
        _, tail = files.tail(file.final, footer_bytes)
    try:
        metadata = pq.read_metadata(pa.PythonFile(_Tail(size_bytes, tail), mode="r"))
    except (pa.ArrowInvalid, OSError) as error:
        return f"{named}, has a footer that cannot be read: {str(error).splitlines()[0]}"
    if metadata.num_rows != file.records:
        return f"{named}, has {metadata.num_rows} records"
    written_ms = int(datetime.fromisoformat(manifest.created).timestamp() * 1000)
    return TableFile(file, size_bytes, written_ms, *_times_us(metadata))


def _times_us(metadata: Any) -> tuple[int | None, int | None]:
    """Return the smallest and largest ``timestamp`` of a file, None where its footer does not have both."""
    at = next((at for at in range(metadata.num_columns) if metadata.schema.column(at).path == "timestamp"), None)
    if at is None or metadata.schema.column(at).physical_type != "INT64":
        return None, None
    kind = json.loads(metadata.schema.column(at).logical_type.to_json())
    if kind.get("Type") != "Timestamp" or kind.get("timeUnit") not in _TO_MICROSECONDS:
        return None, None
    factor, divisor = _TO_MICROSECONDS[kind["timeUnit"]]
    least, most = [], []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_min_max or statistics.null_count:
            return None, None
        least.append(statistics.min_raw * factor // divisor)
        most.append(-(-statistics.max_raw * factor // divisor))
    return min(least, default=None), max(most, default=None)


class _Tail(io.RawIOBase):
    """A file of which only the end can be read."""

    def __init__(self, size_bytes: int, tail: bytes) -> None:
        self._size_bytes = size_bytes
        self._tail = tail
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        begin = self._at - (self._size_bytes - len(self._tail))
        if begin < 0:
            raise OSError(f"byte {self._at} is before the end that was read")
        view = memoryview(buffer)
        piece = self._tail[begin : begin + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
