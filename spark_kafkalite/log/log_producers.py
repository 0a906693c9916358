"""The producers of one log: their present state, and its snapshots next to the log's segments.

What their state means is ``producer_state``'s, what a snapshot's bytes mean ``producer_snapshot``'s. This knows when
the log must be asked for batches that a snapshot has forgotten, and which snapshots a log still needs. OSError comes
out when the disk fails; the log knows what that means for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from spark_kafkalite.errors import CorruptMessage, OutOfOrderSequenceNumber, UnknownProducerId
from spark_kafkalite.log.loading.producers import forget_producers, rebuild_producers
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.producer_snapshot import (
    LARGE_SNAPSHOT_BYTES,
    LARGE_SNAPSHOTS_KEPT,
    snapshot_path,
    write_snapshot,
)
from spark_kafkalite.log.producer_state import ENTRY, BatchMetadata, ProducerStateManager
from spark_kafkalite.log.reader import LogReader
from spark_kafkalite.log.segments.segment import DELETED_SUFFIX
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.layout import BatchHeader

logger = logging.getLogger(__name__)

_WARN_EVERY_S: Final = 60.0


class LogProducers:
    """``state`` is what is known now; another object after each truncation."""

    __slots__ = (
        "_clock",
        "_directory",
        "_files",
        "_large_snapshots",
        "_next_warning_s",
        "_reader",
        "_segments",
        "_topic_partition",
        "state",
    )

    def __init__(
        self,
        host: LogHost,
        directory: str,
        topic_partition: TopicPartition,
        segments: Segments,
        reader: LogReader,
        state: ProducerStateManager,
    ) -> None:
        self.state = state
        self._files = host.files
        self._clock = host.clock
        self._directory = directory
        self._topic_partition = topic_partition
        self._segments = segments
        self._reader = reader
        self._next_warning_s = 0.0
        # Offsets of those that this run has written.
        self._large_snapshots: deque[int] = deque()

    def check(self, header: BatchHeader, log_start_offset: int) -> BatchMetadata | None:
        """Return the batch in the log that ``header`` repeats, None when it is new and in order. Raises what
        ``ProducerStateManager.check`` does, once the log has been asked for earlier batches."""
        try:
            return self.state.check(header)
        except UnknownProducerId as error:
            # Without it the Java client asks again and again.
            error.log_start_offset = log_start_offset
            raise
        except OutOfOrderSequenceNumber:
            if not self.state.forgot_batches(header.producer_id):
                raise
        try:
            self.state.recall(header.producer_id, self._reader.late_batches_of(header.producer_id))
        except (OSError, CorruptMessage):
            # Nothing is recalled then, and the batch is refused as it would have been.
            pass
        return self.state.check(header)

    def tell_of_forgotten(self) -> None:
        """Warn, at most once a minute, that producers were forgotten for want of room."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_warning_s:
            return
        self._next_warning_s = now_s + _WARN_EVERY_S
        logger.warning(
            "%s: %d idle producer ids were forgotten, because more than max.producer.ids.per.partition=%d producers "
            "write to it; one that goes on gets UNKNOWN_PRODUCER_ID and begins again; let programs keep their "
            "producers, or raise the setting",
            self._topic_partition,
            self.state.forgotten,
            self.state.limits.max_ids,
        )
        self.state.forgotten = 0

    def truncate_to(self, end_offset: int) -> None:
        """Know what is known at ``end_offset``, where the segments end by now; snapshots beyond it are removed."""
        limits, now_ms = self.state.limits, self._clock.wall_ms()
        self.state = rebuild_producers(self._files, self._directory, self._segments, end_offset, now_ms, limits)
        self._large_snapshots = deque(offset for offset in self._large_snapshots if offset <= end_offset)

    def truncate_fully(self, start_offset: int) -> None:
        """Forget everything, and remove all snapshots; the log goes on at ``start_offset``."""
        self.state = forget_producers(self._files.fs, self._directory, start_offset, self.state.limits)
        self._large_snapshots.clear()

    # Snapshots ------------------------------------------------------------------------------------------------------

    def write_snapshot(self, end_offset: int) -> str | None:
        """Write a snapshot of the state, which is that at ``end_offset``, and return its path, to be synced by the next
        flush; None when there is one already."""
        self.state.map_end_offset = end_offset
        return write_snapshot(self.state, self._files.fs, self._directory)

    def write_snapshot_anew(self, end_offset: int) -> str | None:
        """Write a snapshot as :meth:`write_snapshot` does, and replace an existing one."""
        self.state.snapshot_offset = min(self.state.snapshot_offset, end_offset - 1)
        return self.write_snapshot(end_offset)

    def drop_large_snapshots(self, recovery_point: int) -> None:
        """Remove large snapshots that a recovery can do without, after one has been written: small segments of many
        producers would have more bytes of snapshots than of records."""
        large = self._large_snapshots
        if len(self.state) * ENTRY.size > LARGE_SNAPSHOT_BYTES:
            large.append(self.state.snapshot_offset)
        scanned_from_offset = self._segments.floor(recovery_point).base_offset
        while len(large) > LARGE_SNAPSHOTS_KEPT and large[1] <= scanned_from_offset:
            path = snapshot_path(self._directory, large.popleft())
            with contextlib.suppress(OSError):
                # One that stays is removed by the next start.
                self._files.fs.unlink(path)

    def retire_snapshots(self, base_offsets: Iterable[int]) -> list[str]:
        """Rename the snapshots of segments that the log has no more, and return the new names, as ``LocalLog.retire``
        does; the newest stays, and those where a segment begins (still, or again)."""
        fs, retired = self._files.fs, []
        for base in base_offsets:
            path = snapshot_path(self._directory, base)
            replaced = self._segments.floor(base).base_offset == base
            if not replaced and base != self.state.snapshot_offset and fs.exists(path):
                fs.rename(path, path + DELETED_SUFFIX)
                retired.append(path + DELETED_SUFFIX)
        return retired
