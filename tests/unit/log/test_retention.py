"""The rules as a table, and the reading of timestamps that they ask for."""

from __future__ import annotations

import errno

import pytest

from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.retention import (
    Reason,
    RetentionPlan,
    RetentionRules,
    SegmentFacts,
    TimestampSource,
    plan_retention,
    read_largest_timestamps,
    segment_facts,
)
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import header_of, make_batch
from tests.unit.log.conftest import LogOpener

NOW = 1_000_000
LOG_START, SIZE, TIME = Reason.LOG_START, Reason.SIZE, Reason.TIME


def rules(
    *, policy: str = "delete", ms: int = -1, size: int = -1, start: int = 0, until: int = 1000, now_ms: int = NOW
) -> RetentionRules:
    config = TopicConfig.from_properties(
        {"cleanup.policy": policy, "retention.ms": str(ms), "retention.bytes": str(size)}
    )
    return RetentionRules.of(config, log_start_offset=start, until_offset=until, now_ms=now_ms)


def segments(*ages_ms: int | None, size: int = 100, active_size: int | None = None) -> list[SegmentFacts]:
    """Segments of ten offsets each, with these ages; the last one is active."""
    facts = [
        SegmentFacts(10 * number, size, None if age is None else NOW - age, is_active=number == len(ages_ms))
        for number, age in enumerate(ages_ms, start=1)
    ]
    if active_size is not None:
        facts[-1] = facts[-1]._replace(size_bytes=active_size)
    return facts


def plan(facts: list[SegmentFacts], asked: RetentionRules) -> RetentionPlan:
    return plan_retention(iter(facts), sum(each.size_bytes for each in facts), asked)


@pytest.mark.parametrize(
    ("facts", "asked", "reasons", "new_start"),
    [
        # Time
        (segments(500, 400, 50, 0), rules(ms=100), [TIME, TIME], 20),
        (segments(101, 0), rules(ms=100), [TIME], 10),
        (segments(100, 0), rules(ms=100), [], None),
        (segments(1, 0), rules(ms=0), [TIME], 10),
        (segments(500, 400), rules(ms=-1), [], None),
        (segments(500, 50, 500, 0), rules(ms=100), [TIME], 10),
        # A record from the future keeps its segment and all later ones.
        (segments(500, -5000, 500, 0), rules(ms=100), [TIME], 10),
        (segments(-5000, 500, 0), rules(ms=100), [], None),
        # Size: the log stays up to one segment above the limit, never below.
        (segments(0, 0, 0, 0), rules(size=400), [], None),
        (segments(0, 0, 0, 0), rules(size=301), [], None),
        (segments(0, 0, 0, 0), rules(size=300), [SIZE], 10),
        (segments(0, 0, 0, 0), rules(size=299), [SIZE], 10),
        (segments(0, 0, 0, 0), rules(size=150), [SIZE, SIZE], 20),
        (segments(0, 0, active_size=0), rules(size=0), [SIZE], 10),
        # Both: what size leaves, time may take, and the other way round.
        (segments(500, 500, 500, 0), rules(ms=100, size=300), [SIZE, TIME, TIME], 30),
        (segments(500, 0, 0, 0), rules(ms=100, size=250), [SIZE], 10),
        # Log start, for every policy.
        (segments(0, 0, 0), rules(start=20), [LOG_START, LOG_START], 20),
        (segments(0, 0, 0), rules(start=19), [LOG_START], 10),
        (segments(0, 0, 0), rules(start=9), [], None),
        (segments(0, 0, 0), rules(start=20, policy="compact"), [LOG_START, LOG_START], 20),
        (segments(500, 500, 500), rules(ms=1, size=0, policy="compact"), [], None),
        (segments(500, 500, 0), rules(ms=100, policy="compact,delete"), [TIME, TIME], 20),
        (segments(-9, 500, 0), rules(ms=100, start=10), [LOG_START, TIME], 20),
        # Never beyond what is committed or shown.
        (segments(500, 500, 500, 500), rules(ms=100, until=29), [TIME, TIME], 20),
        (segments(500, 500, 500, 500), rules(size=0, until=9), [], None),
        (segments(0, 0, 0), rules(start=20, until=10), [LOG_START], 10),
    ],
)
def test_what_goes(
    facts: list[SegmentFacts], asked: RetentionRules, reasons: list[Reason], new_start: int | None
) -> None:
    assert plan(facts, asked) == RetentionPlan(tuple(reasons), new_start, False, False)


@pytest.mark.parametrize(
    ("facts", "asked", "goes"),
    [
        (segments(500, 500), rules(ms=100), True),
        (segments(500, 500), rules(size=0), True),
        # Not all committed, or empty already, or only hidden by DeleteRecords.
        (segments(500, 500), rules(ms=100, until=19), False),
        (segments(500, 500, active_size=0), rules(ms=100), False),
        (segments(0, 0), rules(start=20), False),
    ],
)
def test_active_segment_goes_when_all_of_it_expired(
    facts: list[SegmentFacts], asked: RetentionRules, goes: bool
) -> None:
    found = plan(facts, asked)
    assert found.includes_active == goes
    assert found.log_start_offset == (20 if goes else 10)


def test_clock_set_back_deletes_nothing_and_set_forward_what_is_then_too_old() -> None:
    clock = ManualClock(wall_ms=NOW)
    facts = segments(500, 50, 0)
    assert plan(facts, rules(ms=100, now_ms=clock.wall_ms())).log_start_offset == 10
    clock.jump_wall(-100_000)
    assert plan(facts, rules(ms=100, now_ms=clock.wall_ms())).log_start_offset is None
    clock.jump_wall(200_000)
    assert plan(facts, rules(ms=100, now_ms=clock.wall_ms())).log_start_offset == 30


def test_unknown_timestamp_is_asked_for_only_where_it_decides() -> None:
    unknown = segments(None, None, 0)
    assert plan(unknown, rules(ms=100)) == RetentionPlan((), None, False, True)
    assert plan(unknown, rules(ms=-1)) == RetentionPlan((), None, False, False)
    assert plan(unknown, rules(ms=100, start=10)) == RetentionPlan((LOG_START,), 10, False, True)
    assert plan(unknown, rules(ms=100, until=5)) == RetentionPlan((), None, False, False)
    assert plan(unknown, rules(ms=100, policy="compact")) == RetentionPlan((), None, False, False)


# Facts of a real log


def append(log: PartitionLog, timestamp_ms: int) -> None:
    data = make_batch(1, timestamp_ms=timestamp_ms)
    log.append_as_leader(data, header_of(data), 0)


def test_facts_of_a_log(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100)
    for timestamp_ms in (5000, 7000, 6000):
        append(log, timestamp_ms)
    size = log.segments.first.size_bytes
    assert list(segment_facts(log.segments, log.log_end_offset)) == [
        SegmentFacts(1, size, 5000),
        SegmentFacts(2, size, 7000),
        SegmentFacts(3, size, 6000, is_active=True),
    ]


def test_an_active_segment_is_as_old_as_its_largest_timestamp(open_log: LogOpener) -> None:
    log = open_log()
    for timestamp_ms in (5000, 7000, 6000):
        append(log, timestamp_ms)
    facts = list(segment_facts(log.segments, log.log_end_offset))
    assert facts == [SegmentFacts(3, log.segments.active.size_bytes, 7000, is_active=True)]
    # By its first timestamp it would be rolled, although it stays.
    assert plan(facts, rules(ms=100, now_ms=7100)) == RetentionPlan((), None, False, False)
    assert plan(facts, rules(ms=100, now_ms=7101)) == RetentionPlan((TIME,), 3, True, False)


def test_timestamps_after_a_start_are_read_when_needed(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for timestamp_ms in (5000, 7000, -1, 9000, 6000, 1000):
        append(log, timestamp_ms)
    log.close()
    log = open_log(segment_bytes=100)
    *sealed, _ = log.segments
    assert [each.largest_timestamp_ms for each in sealed] == [None] * 5
    sources = [TimestampSource.of(each) for each in sealed]
    written_ms = fs.modified_ms(sealed[2].log_path)
    assert read_largest_timestamps(fs, sources, 2**62) == [5000, 7000, written_ms, 9000, 6000]
    # Up to the first that is young enough.
    assert read_largest_timestamps(fs, sources, 6000) == [5000, 7000]
    for segment, timestamp_ms in zip(sealed, read_largest_timestamps(fs, sources, 2**62), strict=True):
        segment.note_largest_timestamp(timestamp_ms)
    assert [each.largest_timestamp_ms for each in log.segments] == [5000, 7000, written_ms, 9000, 6000, 1000]


def test_records_without_timestamps_go_by_the_time_of_the_file(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log, -1)
    assert log.segments.active.largest_timestamp_ms == fs.modified_ms(log.segments.active.log_path)


def test_reading_timestamps_meets_what_happens_meanwhile(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for timestamp_ms in (5000, 7000, 8000, 9000):
        append(log, timestamp_ms)
    sources = [TimestampSource.of(each) for each in log.segments][:-1]
    sealed = list(log.segments)[:-1]
    fs.unlink(sealed[1].time_index.path)
    assert read_largest_timestamps(fs, sources, 2**62) == [5000, 7000, 8000], "its index is made anew from the log"
    log.retire(log.segments.drop_oldest(2))
    assert read_largest_timestamps(fs, sources, 2**62) == []
    fs.fail("pread", errno.EIO, path_part=sealed[2].log_path)
    with pytest.raises(OSError, match="Input/output"):
        read_largest_timestamps(fs, sources[2:], 2**62)


def test_a_damaged_time_index_does_not_make_a_segment_old(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for timestamp_ms in (5000, 7000):
        append(log, timestamp_ms)
    first = log.segments.first
    fs.open(first.time_index.path).pwrite(bytes(8), 0)
    assert read_largest_timestamps(fs, [TimestampSource.of(first)], 2**62) == [5000]


def test_reading_a_timestamp_leaves_alone_what_the_cleaner_has_put_in_its_place(
    open_log: LogOpener, fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(segment_bytes=1000)
    append(log, 5000)
    append(log, 7000)
    log.roll()
    first = log.segments.first
    source = TimestampSource.of(first)
    # The last of the new batches ends beyond the size that the source was asked of.
    cleaned = make_batch(1, timestamp_ms=5000) + make_batch([b"much longer"], timestamp_ms=9000)
    assert len(cleaned) > source.size_bytes
    contents = {first.log_path: cleaned, first.offset_index.path: b"", first.time_index.path: bytes(12)}
    for path, content in contents.items():
        file = fs.open(path)
        file.truncate(0)
        file.pwrite(content, 0)
    source.read(fs)
    assert {path: fs.open(path).pread(1000, 0) for path in contents} == contents
    assert caplog.text == ""
