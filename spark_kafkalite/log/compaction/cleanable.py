"""A log as the cleaner sees it: its state for ``plan.plan_compaction``, and the job that follows from a plan.

Called by the log's owner. What lies on the disk is read only where a topic's settings need it: the first dirty record's
time for ``max.compaction.lag.ms``, the time indexes of dirty segments for ``min.compaction.lag.ms``; a few bytes each.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.log.compaction.clean_job import CleanJob
from spark_kafkalite.log.compaction.plan import CompactionPlan, CompactionState, SourceSegment
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TOPIC_SETTINGS

_NO_LIMIT_MS: Final = TOPIC_SETTINGS["max.compaction.lag.ms"].default


def compaction_state(log: PartitionLog, committed_end_offset: int, next_horizon_ms: int) -> CompactionState:
    """Return what a plan needs of a log. ``committed_end_offset`` is the partition's last stable offset.

    What is not flushed counts as uncommitted: the segments that take the place of others are trusted after a crash.
    Raises OSError and CorruptMessage when the first dirty record cannot be read.
    """
    config, segments = log.config, log.segments
    active = segments.active
    first_dirty = max(log.cleaned_until_offset, log.log_start_offset)
    first = segments.floor(log.log_start_offset)
    sealed = [
        SourceSegment(
            segment.base_offset,
            segment.size_bytes,
            # Only of dirty segments is the age asked for.
            segment.max_timestamp[0] if config.min_compaction_lag_ms and following.base_offset > first_dirty else -1,
        )
        for segment, following in segments.sealed_from(first.base_offset)
    ]
    committed_end_offset = min(committed_end_offset, log.recovery_point)
    open_transaction = log.producers.state.first_open_transaction_offset()
    if open_transaction is not None:
        committed_end_offset = min(committed_end_offset, open_transaction)
    return CompactionState(
        sealed,
        active.base_offset,
        log.log_start_offset,
        committed_end_offset,
        log.cleaned_until_offset or -1,
        _timestamp_at(log, first_dirty) if config.max_compaction_lag_ms < _NO_LIMIT_MS else -1,
        next_horizon_ms,
    )


def _timestamp_at(log: PartitionLog, offset: int) -> int:
    """Return the timestamp of the first batch from ``offset`` on, -1 when there is none or it has none."""
    for segment in log.segments.from_offset(offset):
        if segment is log.segments.active and segment.base_offset >= offset:
            return log.segments.active.first_timestamp_ms
        found = segment.find(offset)
        if found is not None:
            return found.header.max_timestamp
    return -1


def roll_is_due(log: PartitionLog, now_ms: int) -> bool:
    """Return whether a compacted log's active segment, even if nothing is written to it, should be sealed so that its
    records can be compacted: by ``segment.ms``, or because one has passed ``max.compaction.lag.ms``."""
    active, config = log.segments.active, log.config
    if not active.size_bytes:
        return False
    # A time in the future is that of a wrong clock, the broker's or a producer's, and says nothing.
    if abs(now_ms - active.created_ms) > config.segment_ms - active.roll_jitter_ms:
        return True
    since_ms = active.first_timestamp_ms if 0 <= active.first_timestamp_ms <= now_ms else active.created_ms
    return now_ms - since_ms > config.max_compaction_lag_ms


def clean_job(
    log: PartitionLog, plan: CompactionPlan, now_ms: int, dedupe_buffer_bytes: int, max_decompressed_bytes: int
) -> CleanJob:
    """Return the job that carries out a plan."""
    config = log.config
    return CleanJob(
        directory=log.directory,
        sources=plan.sources,
        first_dirty_offset=plan.first_dirty_offset,
        until_offset=plan.until_offset,
        log_start_offset=log.log_start_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        dedupe_buffer_bytes=dedupe_buffer_bytes,
        max_decompressed_bytes=max_decompressed_bytes,
        last_offset_by_producer=log.producers.state.last_offsets(),
    )
