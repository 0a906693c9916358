"""When directories of time are complete."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spark_kafkalite.jobs.load.completeness import (
    Directories,
    advanced,
    complete_directories,
    ends_at_ms,
    passed_ms,
    placed,
)
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.manifests.manifest import FilePart, LoadedRange, LoadedTopic, PublishedFile
from spark_kafkalite.model import TopicPartition

HOUR_MS = 3_600_000
GRACE_MS = 600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def file(final: str, partition: int = 0) -> PublishedFile:
    return PublishedFile(f"_kafkalite/staging/r/{final}", final, "t", (FilePart(partition, 0, 9, 10),), 1)


def test_what_was_read_to_its_end_has_passed_the_time_of_asking_less_the_grace() -> None:
    assert passed_ms(None, 10_000, 600, at_end=True, largest_event_ms=None) == 9_400
    assert passed_ms(9_900, 10_000, 600, at_end=True, largest_event_ms=None) == 9_900


def test_what_was_not_read_to_its_end_has_passed_its_largest_event_and_none_of_the_future() -> None:
    assert passed_ms(None, 10_000, 600, at_end=False, largest_event_ms=5_000) == 4_400
    assert passed_ms(None, 10_000, 600, at_end=False, largest_event_ms=4_070_908_800_000) == 9_400
    assert passed_ms(None, 10_000, 600, at_end=False, largest_event_ms=None) is None
    assert passed_ms(7_000, 10_000, 600, at_end=False, largest_event_ms=5_000) == 7_000
    assert passed_ms(None, 10_000, 600, at_end=False, largest_event_ms=599) is None


@pytest.mark.parametrize(
    ("directory", "zone", "end"),
    [
        ("t/day=2026-01-01", "UTC", "2026-01-02T00:00"),
        ("t/day=2026-01-01/hour=23", "UTC", "2026-01-02T00:00"),
        ("t/_late/day=2026-01-01/hour=07", "Asia/Kolkata", "2026-01-01T02:30"),
        ("t/day=2026-01-01", "America/Los_Angeles", "2026-01-02T08:00"),
        # The hour from 2 to 3 comes twice on that day, and the day has 25 hours.
        ("t/day=2026-10-25/hour=02", "Europe/Berlin", "2026-10-25T02:00"),
        ("t/day=2026-10-25/hour=01", "Europe/Berlin", "2026-10-25T00:00"),
        ("t/day=2026-10-25", "Europe/Berlin", "2026-10-25T23:00"),
        # There is no hour from 2 to 3 on that one.
        ("t/day=2026-03-29/hour=01", "Europe/Berlin", "2026-03-29T01:00"),
        ("t/day=2026-03-29", "Europe/Berlin", "2026-03-29T22:00"),
    ],
)
def test_a_directory_ends_when_its_hour_does_on_the_clock_of_its_zone(directory: str, zone: str, end: str) -> None:
    assert ends_at_ms(directory, zone) == ms(end)


@pytest.mark.parametrize(
    "directory", ["t", "t/hour=01", "t/day=2026-01-01/x", "t/day=2026-1-1", "t/day=9999-12-31", "t/day=2026-13-01"]
)
def test_other_directories_have_no_end(directory: str) -> None:
    assert ends_at_ms(directory, "UTC") is None


def test_the_last_partition_to_pass_completes_a_directory() -> None:
    hours = [f"t/day=2026-01-01/hour={hour:02d}" for hour in range(3)]
    begin = ms("2026-01-01T00:00")
    passed = {0: begin + 3 * HOUR_MS, 1: begin + 2 * HOUR_MS}
    assert complete_directories(hours, (0, 1), passed, "UTC") == tuple(hours[:2])
    assert complete_directories(hours, (0, 1, 2), passed, "UTC") == ()


def plan(ended_at: str, next_offsets: dict[int, int], at_end: set[int], before: LoadedTopic | None = None) -> LoadPlan:
    was = LoadedTopic("id", {}) if before is None else before
    topics = {"t": LoadedTopic("id", next_offsets, (), was.passed_ms, was.open_directories)}
    return LoadPlan(
        (), topics, ended_at_ms=ms(ended_at), at_end=frozenset(TopicPartition("t", each) for each in at_end)
    )


def advance(of: LoadPlan, files: tuple[PublishedFile, ...] = (), policy: str = "append", **largest: int) -> Directories:
    ranges = [LoadedRange("t", int(name[1:]), 0, 0, max_timestamp=at) for name, at in largest.items()]
    return advanced(of, ranges, files, policy, GRACE_MS, "UTC")  # type: ignore[arg-type]


def test_a_quiet_partition_holds_nothing_back_and_one_that_is_behind_does() -> None:
    hour = "t/day=2026-01-01/hour=07"
    early = advance(plan("2026-01-01T08:05", {0: 10, 1: 0}, {0, 1}), (file(f"{hour}/a"),))
    assert early.completed == ()
    assert early.topics["t"].open_directories == (hour,)
    # A later run without a record completes it.
    late = advance(plan("2026-01-01T08:10", {0: 10, 1: 0}, {0, 1}, early.topics["t"]))
    assert late.completed == (hour,)
    assert late.topics["t"].open_directories == ()
    # Partition 1 was not read to its end, and its records are of half past seven.
    behind = advance(
        plan("2026-01-01T09:00", {0: 10, 1: 5}, {0}, early.topics["t"]), p0=ms("2099-01-01"), p1=ms("2026-01-01T07:30")
    )
    assert behind.completed == ()
    assert behind.topics["t"].passed_ms[1] == ms("2026-01-01T07:55")


def test_a_new_partition_counts_from_its_first_plan() -> None:
    hour = "t/day=2026-01-01/hour=07"
    open_before = LoadedTopic("id", {0: 10}, (), {0: ms("2026-01-01T07:50")}, (hour,))
    found = advance(plan("2026-01-01T09:00", {0: 10, 1: 3}, {0}, open_before), p1=ms("2026-01-01T06:00"))
    assert found.completed == ()


def test_another_time_than_the_records_reaches_the_beginning_of_the_latest_directory() -> None:
    files = (file("t/day=2025-12-31/hour=20/a", 0), file("t/day=2026-01-01/hour=07/b", 0), file("t/x", 1))
    read = [LoadedRange("t", each, 0, 9, records=9, max_timestamp=ms("2026-01-01T08:59")) for each in range(2)]
    behind = plan("2026-01-01T09:00", {0: 9, 1: 9}, set())
    by_record = advanced(behind, read, files, "append", GRACE_MS, "UTC")
    assert by_record.topics["t"].passed_ms == dict.fromkeys(range(2), ms("2026-01-01T08:49"))
    by_event = advanced(behind, read, files, "append", GRACE_MS, "UTC", by_record_time=False)
    assert by_event.topics["t"].passed_ms == {0: ms("2026-01-01T06:50")}
    only_old = advanced(behind, read, (file("t/day=1969-12-31/a"),), "append", GRACE_MS, "UTC", by_record_time=False)
    assert only_old.topics["t"].passed_ms == {}


@pytest.mark.parametrize("policy", ["append", "late-dir", "reopen"])
def test_late_files_go_where_the_policy_says(policy: str) -> None:
    complete, open_ = "t/day=2026-01-01/hour=06", "t/day=2026-01-01/hour=07"
    files = placed([file(f"{complete}/a"), file(f"{open_}/b")], lambda directory: directory == complete, policy)  # type: ignore[arg-type]
    assert [each.late for each in files] == [True, False]
    late = "t/_late/day=2026-01-01/hour=06/a" if policy == "late-dir" else f"{complete}/a"
    assert [each.final for each in files] == [late, f"{open_}/b"]
    before = LoadedTopic("id", {0: 5}, (), {0: ms("2026-01-01T07:00")}, ())
    found = advance(plan("2026-01-01T07:30", {0: 15}, {0}, before), files, policy)
    assert found.reopened == ((complete,) if policy == "reopen" else ())
    # Opened again, it is complete at once: everybody had passed it before.
    assert found.completed == ((complete,) if policy == "reopen" else ())
    assert found.topics["t"].open_directories == (open_,)
