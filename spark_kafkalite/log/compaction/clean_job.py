"""A cleaning job and its result, as plain values that travel to the child process and back.

Also the error that is the cleaner's own.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.compaction.plan import SourceSegment


class UncleanableLog(KafkaliteError):
    """A source cannot be cleaned; the message names the file, the position, and what is wrong there."""


class CleanJob(NamedTuple):
    """One cleaning, in plain values.

    ``sources``: sealed segments from the log start on, in order. ``first_dirty_offset``: the cleaner's checkpoint.
    ``until_offset``: where the last source ends; nothing from it on is touched. ``last_offset_by_producer``: the last
    offset of each active producer id.
    """

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    until_offset: int
    log_start_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    dedupe_buffer_bytes: int
    max_decompressed_bytes: int
    last_offset_by_producer: dict[int, int]


class CleanedGroup(NamedTuple):
    """A segment that was written, and the base offsets of the ``sources`` that it stands for.

    ``max_timestamp_ms`` is -1 and ``offset_of_max_timestamp`` the base offset when it has no timestamp.
    """

    base_offset: int
    sources: tuple[int, ...]
    size_bytes: int
    index_entries: int
    time_index_entries: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int


class CleanResult(NamedTuple):
    """What a cleaning did. Below ``end_offset`` everything is clean once the groups are in place, in their order.

    Sources in no group are clean, or beyond ``end_offset``, as they are. ``next_horizon_ms``: when the first tombstones
    below ``end_offset`` may go, -1 when there are none.
    """

    groups: tuple[CleanedGroup, ...]
    end_offset: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
    next_horizon_ms: int
