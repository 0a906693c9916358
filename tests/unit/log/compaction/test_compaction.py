from __future__ import annotations

import pytest

from spark_kafkalite.log.compaction.plan import (
    CompactionPlan,
    CompactionState,
    SourceSegment,
    first_dirty_offset,
    first_uncleanable_offset,
    group_sources,
    most_urgent,
    plan_compaction,
)
from spark_kafkalite.log.topic_config import TopicConfig

NOW_MS = 1_700_000_000_000
SEGMENTS = tuple(SourceSegment(base, 100, NOW_MS - 1000 + base) for base in (0, 10, 20, 30))
STATE = CompactionState(SEGMENTS, active_base_offset=40, log_start_offset=0, committed_end_offset=50)


def config(**settings: object) -> TopicConfig:
    return TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})


@pytest.mark.parametrize(("checkpoint", "expected"), [(-1, 5), (4, 5), (5, 5), (20, 20), (40, 40), (41, 5), (2**40, 5)])
def test_dirty_part_begins_at_the_checkpoint_where_the_log_has_it(checkpoint: int, expected: int) -> None:
    assert first_dirty_offset(STATE._replace(log_start_offset=5, checkpoint=checkpoint)) == expected


@pytest.mark.parametrize(
    ("committed", "checkpoint", "lag_ms", "expected"),
    [
        (50, -1, 0, 40),
        (40, -1, 0, 40),
        (39, -1, 0, 30),
        (0, -1, 0, 0),
        (50, -1, 980, 30),
        (50, -1, 981, 20),
        (50, -1, 10_000, 0),
        # What is clean already is not young any more.
        (50, 20, 10_000, 20),
        (50, 25, 10_000, 20),
        (50, 40, 10_000, 40),
    ],
)
def test_first_uncleanable_offset(committed: int, checkpoint: int, lag_ms: int, expected: int) -> None:
    state = STATE._replace(committed_end_offset=committed, checkpoint=checkpoint)
    assert first_uncleanable_offset(state, lag_ms, NOW_MS) == expected


def test_dirty_ratio_decides() -> None:
    plan = plan_compaction(STATE._replace(checkpoint=10), config(), NOW_MS)
    assert plan == CompactionPlan(SEGMENTS, 10, 40, 0.75, False)
    assert plan_compaction(STATE._replace(checkpoint=20), config(), NOW_MS) is None
    assert plan_compaction(STATE._replace(checkpoint=20), config(min_cleanable_dirty_ratio=0.4), NOW_MS) is not None
    assert plan_compaction(STATE._replace(checkpoint=40), config(min_cleanable_dirty_ratio=0), NOW_MS) is None
    assert plan_compaction(STATE._replace(sealed=()), config(min_cleanable_dirty_ratio=0), NOW_MS) is None


def test_segment_that_holds_the_checkpoint_is_dirty() -> None:
    plan = plan_compaction(STATE._replace(checkpoint=15), config(), NOW_MS)
    assert plan is not None and plan.dirty_ratio == 0.75 and plan.first_dirty_offset == 15


def test_oldest_dirty_record_may_not_wait_for_longer_than_the_lag() -> None:
    state = STATE._replace(checkpoint=30, oldest_dirty_ms=NOW_MS - 500)
    assert plan_compaction(state, config(max_compaction_lag_ms=500), NOW_MS) is None
    plan = plan_compaction(state, config(max_compaction_lag_ms=499), NOW_MS)
    assert plan is not None and plan.is_overdue
    assert plan_compaction(state._replace(checkpoint=40), config(max_compaction_lag_ms=499), NOW_MS) is None
    assert plan_compaction(state._replace(oldest_dirty_ms=-1), config(max_compaction_lag_ms=499), NOW_MS) is None


def test_horizon_that_has_passed_asks_for_a_cleaning_of_the_clean_part() -> None:
    state = STATE._replace(checkpoint=40, next_horizon_ms=NOW_MS)
    assert plan_compaction(state, config(), NOW_MS - 1) is None
    assert plan_compaction(state, config(), NOW_MS) == CompactionPlan(SEGMENTS, 40, 40, 0.0, True)


def test_overdue_log_comes_first_then_the_dirtiest() -> None:
    plans = [CompactionPlan((), 0, 1, ratio, overdue) for ratio, overdue in ((0.9, False), (0.1, True), (0.2, True))]
    assert most_urgent(plans) == plans[2]
    assert most_urgent(plans[:1]) == plans[0]
    assert most_urgent([]) is None


def groups(*, until: int = 40, size: int = 2**30, index: int = 2**20, interval: int = 4096) -> list[list[int]]:
    found = group_sources(SEGMENTS, until, segment_bytes=size, segment_index_bytes=index, index_interval_bytes=interval)
    assert tuple(source for group in found for source in group) == SEGMENTS
    return [[source.base_offset for source in group] for group in found]


def test_groups_stay_within_the_limits_of_a_segment() -> None:
    assert groups() == [[0, 10, 20, 30]]
    assert groups(size=300) == [[0, 10, 20], [30]]
    assert groups(size=299) == [[0, 10], [20, 30]]
    assert groups(size=1) == [[0], [10], [20], [30]]
    assert groups(index=24) == [[0, 10], [20, 30]]
    # With an entry for every batch, two of which may be in 100 bytes.
    assert groups(index=48, interval=0) == [[0, 10], [20, 30]]
    assert groups(until=2**31) == [[0, 10, 20, 30]]
    assert groups(until=2**31 + 1) == [[0, 10, 20], [30]]
