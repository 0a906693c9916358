"""What the cleaner learns of a log before it is cleaned."""

from __future__ import annotations

import pytest

from spark_kafkalite.log.compaction.cleanable import clean_job, compaction_state, roll_is_due
from spark_kafkalite.log.compaction.plan import plan_compaction
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import header_of, make_batch

_DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def config_of(**settings: str) -> TopicConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return TopicConfig.from_properties({"cleanup.policy": "compact", "segment.bytes": "300"} | named)


@pytest.fixture
def log(clock: ManualClock) -> PartitionLog:
    """Five segments, the last of them active, of three records each."""
    manager = LogManager(MemoryFs(), ["/d"], clock, config_of=lambda _: config_of())
    manager.open()
    manager.load()
    log = manager.create(TopicPartition("t", 0), None)
    for number in range(5):
        batch = make_batch(
            [b"x" * 60] * 3,
            timestamp_ms=clock.wall_ms(),
            key=b"k",
            producer_id=7,
            producer_epoch=0,
            base_sequence=number * 3,
        )
        log.append_as_leader(batch, header_of(batch), 0)
        clock.advance(ms=1000)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9, 12]
    return log


def cleanable_until(log: PartitionLog, clock: ManualClock, committed: int = 15) -> int:
    plan = plan_compaction(compaction_state(log, committed, -1), log.config, clock.wall_ms())
    return plan.until_offset if plan is not None else 0


def test_what_is_not_flushed_or_not_committed_is_not_cleaned(log: PartitionLog, clock: ManualClock) -> None:
    assert cleanable_until(log, clock) == 0
    log.flush()
    assert cleanable_until(log, clock) == 12
    assert cleanable_until(log, clock, committed=8) == 6
    log.producers.state._open_transactions[7] = 4
    assert cleanable_until(log, clock) == 3


def test_young_records_are_not_cleaned(log: PartitionLog, clock: ManualClock) -> None:
    log.flush()
    log.update_config(config_of(min_compaction_lag_ms="2500"))
    # The segments are 5, 4, 3, 2 and 1 seconds old.
    assert cleanable_until(log, clock) == 9


def test_old_records_are_cleaned_whatever_the_dirty_ratio(log: PartitionLog, clock: ManualClock) -> None:
    log.flush()
    log.cleaned_until_offset = 9
    log.update_config(config_of(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="2100"))
    assert compaction_state(log, 15, -1).oldest_dirty_ms == clock.wall_ms() - 2000
    assert cleanable_until(log, clock) == 0
    clock.advance(ms=200)
    assert cleanable_until(log, clock) == 12


def test_job_names_segments_from_the_log_start_on_and_active_producers(log: PartitionLog, clock: ManualClock) -> None:
    log.flush()
    log.cleaned_until_offset = 6
    log.advance_log_start(4)
    state = compaction_state(log, 15, -1)
    plan = plan_compaction(state, log.config, clock.wall_ms())
    assert plan is not None
    job = clean_job(log, plan, clock.wall_ms(), 1000, 2000)
    assert [source.base_offset for source in job.sources] == [3, 6, 9]
    assert (job.log_start_offset, job.first_dirty_offset, job.until_offset) == (4, 6, 12)
    assert job.last_offset_by_producer == {7: 14}


def test_a_quiet_active_segment_is_rolled_by_its_age_and_by_its_records(log: PartitionLog, clock: ManualClock) -> None:
    assert not roll_is_due(log, clock.wall_ms())
    log.update_config(config_of(segment_ms="900"))
    assert roll_is_due(log, clock.wall_ms())
    log.update_config(config_of(max_compaction_lag_ms="900"))
    assert roll_is_due(log, clock.wall_ms())
    log.roll()
    clock.advance(ms=5000)
    assert not roll_is_due(log, clock.wall_ms())


def test_times_in_the_future_put_no_roll_off(log: PartitionLog, clock: ManualClock) -> None:
    log.roll()
    batch = make_batch(1, timestamp_ms=clock.wall_ms() + _DAY_MS)
    log.append_as_leader(batch, header_of(batch), 0)
    log.update_config(config_of(segment_ms="900", max_compaction_lag_ms="500"))
    clock.advance(ms=600)
    assert roll_is_due(log, clock.wall_ms())
    log.update_config(config_of(segment_ms="900"))
    # The segment was begun by a clock that was ahead.
    clock.jump_wall(-_DAY_MS)
    assert roll_is_due(log, clock.wall_ms())


@pytest.mark.parametrize("sources", [[3, 9], [3, 6, 9, 12], [6, 9]])
def test_only_sealed_neighbours_are_replaced(log: PartitionLog, sources: list[int]) -> None:
    new = Segment(log.segments.first.files, log.directory, 3, 0)
    with pytest.raises(ValueError, match="not sealed segments in a row"):
        log.segments.replace(sources, new)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9, 12]
