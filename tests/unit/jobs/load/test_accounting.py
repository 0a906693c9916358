"""Files and accounts must make up the plan, offset for offset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafkalite.jobs.load.accounting import AuditError, check_accounts, check_holes, with_late
from spark_kafkalite.jobs.load.load_source import RangeAccount, tasks_from_json, tasks_json
from spark_kafkalite.jobs.load.planning import LoadPlan, PlanError
from spark_kafkalite.manifests.manifest import FilePart, LoadedRange, LostRange, PublishedFile
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PLAN = LoadPlan(
    (OffsetRange(P0, 5, 25), OffsetRange(P1, 0, 3)),
    lost=(LostRange("t", 0, 2, 5),),
    tasks=((OffsetRange(P0, 5, 15),), (OffsetRange(P0, 15, 25), OffsetRange(P1, 0, 3))),
)
ACCOUNTS = (
    RangeAccount("t", 0, 5, 15, 8, 1, 0, 1, 80, 1_000, 2_000),
    RangeAccount("t", 0, 15, 25, 4, 0, 6, 0, 40, 500, 900),
    RangeAccount("t", 1, 0, 3, 3, 0, 0, 0, 30, None, None),
)
FILES = (
    PublishedFile("s/1", "t/1", "t", (FilePart(0, 5, 14, 8),), 1),
    PublishedFile("s/2", "t/2", "t", (FilePart(0, 15, 24, 4), FilePart(1, 0, 2, 3)), 1, late=True),
)


def test_a_plan_is_accounted_for_by_partition() -> None:
    ranges = check_accounts(PLAN, ACCOUNTS, FILES)
    assert ranges == (
        LoadedRange("t", 0, 2, 25, 3, 1, 6, 1, 12, 0, 0, 120, 500, 2_000),
        LoadedRange("t", 1, 0, 3, records=3, size_bytes=30),
    )
    assert [each.late for each in with_late(ranges, FILES)] == [4, 3]


def test_records_outside_of_the_time_range_are_accounted_for() -> None:
    accounts = (replace(ACCOUNTS[0], outside=2), *ACCOUNTS[1:])
    files = (replace(FILES[0], parts=(FilePart(0, 5, 14, 6),)), FILES[1])
    ranges = check_accounts(PLAN, accounts, files)
    assert [(each.records, each.outside) for each in ranges] == [(10, 2), (3, 0)]
    assert [each.document().get("outside") for each in ranges] == [2, None]


def test_records_held_back_are_records() -> None:
    files = (FILES[0], replace(FILES[1], parts=(FilePart(0, 15, 24, 4), FilePart(1, 0, 2, 1))))
    ranges = check_accounts(PLAN, ACCOUNTS, files, {P1: 2})
    assert (ranges[1].records, ranges[1].quarantined) == (3, 2)


@pytest.mark.parametrize(("rows", "told"), [(7, "1 are missing"), (9, "1 too many")])
def test_a_record_that_the_reader_drops_or_doubles_is_seen(rows: int, told: str) -> None:
    files = (replace(FILES[0], parts=(FilePart(0, 5, 14, rows),)), FILES[1])
    with pytest.raises(AuditError, match=rf"t-0: offsets 2 to 24 were planned, which are 23; .*: {told}; nothing was"):
        check_accounts(PLAN, ACCOUNTS, files)


@pytest.mark.parametrize(
    ("accounts", "told"),
    [
        (ACCOUNTS[:2], r"t-1\[0, 3\) was planned and not read"),
        ((*ACCOUNTS, ACCOUNTS[0]), "from 5 to 14 was read twice"),
        ((*ACCOUNTS, replace(ACCOUNTS[0], start=4)), "from 4 to 14 was not planned"),
    ],
)
def test_every_planned_range_has_one_account(accounts: tuple[RangeAccount, ...], told: str) -> None:
    with pytest.raises(AuditError, match=told):
        check_accounts(PLAN, accounts, FILES)


@pytest.mark.parametrize("part", [FilePart(0, 4, 14, 8), FilePart(0, 5, 25, 8), FilePart(7, 0, 1, 2)])
def test_files_hold_nothing_that_was_not_planned(part: FilePart) -> None:
    with pytest.raises(AuditError, match=rf"s/1 holds offsets {part.first_offset} to {part.last_offset} of t-"):
        check_accounts(PLAN, ACCOUNTS, (replace(FILES[0], parts=(part,)), FILES[1]))


def test_a_hole_is_an_error_but_where_compaction_or_transactions_make_them() -> None:
    hole = LoadedRange("t", 0, 0, 10, removed=2, records=8)
    with pytest.raises(PlanError, match=r"t-0: 2 of the offsets from 0 to 9 are not in the log.*--on-hole accept"):
        check_holes([hole], ["other"])
    check_holes([hole], ["t"])
    check_holes([replace(hole, control=1, records=7)], [])
    check_holes([replace(hole, removed=0, records=10)], [])


def test_tasks_go_to_the_source_as_text() -> None:
    assert tasks_from_json(tasks_json(PLAN.tasks)) == PLAN.tasks
    assert RangeAccount.from_json(ACCOUNTS[2].to_json()) == ACCOUNTS[2]
