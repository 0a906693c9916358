"""Rebuilds the indexes of one segment by walking its batches.

A walk may stop where bytes are not in memory, or where the segment ends for now, and goes on from there later. The
segment decides when the new indexes replace the old ones, and which thread does that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Protocol

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.records.layout import BatchHeader

# How often a walk makes an entry: Kafka's default, whatever the topic's is.
INTERVAL_BYTES: Final = 4096
# What it reads at once.
_READ_BYTES: Final = 1 << 20

logger = logging.getLogger(__name__)


class Walked(Protocol):
    """What a walk needs of its segment."""

    files: OpenFiles
    base_offset: int
    size_bytes: int
    offset_index: OffsetIndex
    time_index: TimeIndex

    @property
    def log_path(self) -> str: ...

    def headers(
        self, position: int, until_position: int | None = None, *, read_bytes: int
    ) -> Iterator[tuple[int, BatchHeader]]: ...


class IndexWalk:
    """Indexes that are being rebuilt; one thread at a time."""

    __slots__ = (
        "_interval_bytes",
        "_segment",
        "first_timestamp_ms",
        "last",
        "max_timestamp",
        "offset_index",
        "position",
        "since_index_entry",
        "sound_bytes",
        "time_index",
    )

    def __init__(self, segment: Walked, interval_bytes: int) -> None:
        self._segment = segment
        self._interval_bytes = interval_bytes
        self.offset_index = OffsetIndex(segment.files, segment.offset_index.path, segment.base_offset, 0)
        self.time_index = TimeIndex(segment.files, segment.time_index.path, segment.base_offset, 0)
        # How far it has come.
        self.position = 0
        # Where the last batch ends that can be walked.
        self.sound_bytes = 0
        self.last: BatchHeader | None = None
        self.since_index_entry = 0
        self.first_timestamp_ms = -1
        self.max_timestamp = -1, segment.base_offset

    def go_on(self) -> None:
        """Walk to where the segment ends now. What cannot be walked is left out, once and for all."""
        end = self._segment.size_bytes
        try:
            for position, header in self._segment.headers(self.position, end, read_bytes=_READ_BYTES):
                # As ActiveSegment.take_up does.
                if header.max_timestamp > self.max_timestamp[0]:
                    self.max_timestamp = header.max_timestamp, header.last_offset
                if self.since_index_entry > self._interval_bytes:
                    self.offset_index.append(header.last_offset, position)
                    self.time_index.maybe_append(*self.max_timestamp)
                    self.since_index_entry = 0
                if not position:
                    self.first_timestamp_ms = header.max_timestamp
                self.since_index_entry += header.size_bytes
                self.position = self.sound_bytes = position + header.size_bytes
                self.last = header
        except (CorruptMessage, OSError) as error:
            if isinstance(error, OSError) and kind_of(error) is FailureKind.NO_RESOURCES:
                raise
            logger.error("%s: %s; what follows cannot be read", self._segment.log_path, error)
            self.position = end
