"""Which part of a log to compact, and when: pure decisions over the sizes, offsets and times of its segments.

A log has a clean part, below the cleaner's checkpoint, in which every key occurs once, and a dirty part behind it.
Compaction reads the keys of the dirty part, and copies clean and dirty part without the records that they replace. Only
whole sealed segments are compacted, all of whose records are committed and old enough (``min.compaction.lag.ms``).

A log is compacted when (:func:`plan_compaction`)

* the dirty part is more than ``min.cleanable.dirty.ratio`` of both, or
* its oldest record is older than ``max.compaction.lag.ms``, or
* the delete horizon of tombstones in the clean part has passed.

Source: kafka.log.LogCleanerManager (grabFilthiestCompactedLog, cleanableOffsets, maxCompactionDelay) and
kafka.log.Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32


class SourceSegment(NamedTuple):
    """A sealed segment. ``max_timestamp_ms`` is -1 when it has no timestamp."""

    base_offset: int
    size_bytes: int
    max_timestamp_ms: int


class CompactionState(NamedTuple):
    """What there is to know of a log before it is compacted.

    ``sealed``: the sealed segments in order, the first one holds ``log_start_offset``. ``committed_end_offset``: the
    last stable offset. ``checkpoint``: where the clean part ends, -1 when the log was never compacted.
    ``oldest_dirty_ms``: timestamp of the dirty part's first record, -1 when not known. ``next_horizon_ms``: when
    tombstones of the clean part may go, -1 when it has none.
    """

    sealed: Sequence[SourceSegment]
    active_base_offset: int
    log_start_offset: int
    committed_end_offset: int
    checkpoint: int = -1
    oldest_dirty_ms: int = -1
    next_horizon_ms: int = -1


class CompactionPlan(NamedTuple):
    """What to compact: ``sources`` hold all that lies below ``until_offset``, from the log start on."""

    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    until_offset: int
    dirty_ratio: float
    # Whether it must happen now, whatever the ratio.
    is_overdue: bool


def first_dirty_offset(state: CompactionState) -> int:
    """Return where the dirty part begins. A checkpoint outside the log, from before a truncation, is ignored."""
    if state.log_start_offset <= state.checkpoint <= state.active_base_offset:
        return state.checkpoint
    return state.log_start_offset


def first_uncleanable_offset(state: CompactionState, min_compaction_lag_ms: int, now_ms: int) -> int:
    """Return the base offset of the first segment that may not be compacted yet."""
    first_dirty = first_dirty_offset(state)
    for number, segment in enumerate(state.sealed):
        end_offset = _end_offset(state.sealed, number, state.active_base_offset)
        if end_offset > state.committed_end_offset:
            return segment.base_offset
        is_young = min_compaction_lag_ms > 0 and segment.max_timestamp_ms > now_ms - min_compaction_lag_ms
        if is_young and end_offset > first_dirty:
            return segment.base_offset
    return state.active_base_offset


def plan_compaction(state: CompactionState, config: TopicConfig, now_ms: int) -> CompactionPlan | None:
    """Return what to compact now, None when the log need not be."""
    first_dirty = first_dirty_offset(state)
    until = first_uncleanable_offset(state, config.min_compaction_lag_ms, now_ms)
    clean_bytes = dirty_bytes = 0
    sources = []
    for number, segment in enumerate(state.sealed):
        if segment.base_offset >= until:
            break
        sources.append(segment)
        if _end_offset(state.sealed, number, state.active_base_offset) <= first_dirty:
            clean_bytes += segment.size_bytes
        else:
            dirty_bytes += segment.size_bytes
    if not sources:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0
    waited_ms = now_ms - state.oldest_dirty_ms if state.oldest_dirty_ms >= 0 else 0
    is_overdue = dirty_bytes > 0 and waited_ms > config.max_compaction_lag_ms
    horizon_passed = 0 <= state.next_horizon_ms <= now_ms
    if not is_overdue and not horizon_passed and (not dirty_bytes or ratio <= config.min_cleanable_dirty_ratio):
        return None
    # With a young segment, or one that is not committed, in the clean part there is no dirty part to compact.
    return CompactionPlan(tuple(sources), min(first_dirty, until), until, ratio, is_overdue or horizon_passed)


def most_urgent(plans: Iterable[CompactionPlan]) -> CompactionPlan | None:
    """Return the plan to carry out first: one that is overdue, else the one with the largest dirty part."""
    return max(plans, key=lambda plan: (plan.is_overdue, plan.dirty_ratio), default=None)


def group_sources(
    sources: Sequence[SourceSegment],
    until_offset: int,
    *,
    segment_bytes: int,
    segment_index_bytes: int,
    index_interval_bytes: int,
) -> list[tuple[SourceSegment, ...]]:
    """Return neighbours that become one segment each: together within the limits of a segment even if nothing goes.

    ``until_offset`` is where the last source ends. A source beyond the limits stays alone.
    """
    groups: list[tuple[SourceSegment, ...]] = []
    group: list[SourceSegment] = []
    group_bytes = group_index_bytes = 0
    for number, source in enumerate(sources):
        index_bytes = _most_index_bytes(source.size_bytes, index_interval_bytes)
        last_offset = _end_offset(sources, number, until_offset) - 1
        if group and (
            group_bytes + source.size_bytes > segment_bytes
            or group_index_bytes + index_bytes > segment_index_bytes
            or last_offset - group[0].base_offset > MAX_INT32
        ):
            groups.append(tuple(group))
            group, group_bytes, group_index_bytes = [], 0, 0
        group.append(source)
        group_bytes += source.size_bytes
        group_index_bytes += index_bytes
    if group:
        groups.append(tuple(group))
    return groups


def _end_offset(segments: Sequence[SourceSegment], number: int, until_offset: int) -> int:
    return segments[number + 1].base_offset if number + 1 < len(segments) else until_offset


def _most_index_bytes(size_bytes: int, index_interval_bytes: int) -> int:
    """Return what the larger index of a segment takes at most: an entry when more than the interval has been written,
    which at least one batch has, and the time index's last one."""
    return (size_bytes // max(index_interval_bytes + 1, HEADER_BYTES) + 1) * TimeIndex.ENTRY.size
