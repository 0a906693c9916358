"""What an audit takes, and which differences it tells."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spark_kafkalite.jobs.auditing.audit_source import RangeCount
from spark_kafkalite.jobs.auditing.recounting import (
    TASK_OFFSETS,
    AuditedRun,
    Findings,
    LogCount,
    RecountScope,
    audited_runs,
    compare_file,
    compare_merged,
    compare_range,
    counting_tasks,
    directories_of,
    readable,
    why_another_topic,
)
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.jobs.load.load_source import RangeAccount
from spark_kafkalite.manifests.manifest import (
    COMPACT,
    FilePart,
    LoadedRange,
    LoadedTopic,
    LostRange,
    Manifest,
    PublishedFile,
    RecreatedTopic,
)
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

ID, OTHER = "AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg"
P0 = TopicPartition("t", 0)
LATE = "_late/day=2026-01-02/hour=00"


def file_of(directory: str, first: int, records: int = 2, name: str = "x", topic: str = "t") -> PublishedFile:
    parts = (FilePart(0, first, first + records - 1, records),)
    return PublishedFile(f"_kafkalite/staging/r/{name}", f"{topic}/{directory}/{name}.parquet", topic, parts, 10)


def manifest_of(number: int, *files: PublishedFile, **more: object) -> Manifest:
    begins = (number - 1) * 4
    manifest = Manifest(
        number,
        f"r{number}",
        "2026-01-01T00:00:00+00:00",
        files,
        {"t": LoadedTopic(ID, {0: begins + 4})},
        sum(file.records for file in files),
        0,
        ranges=(LoadedRange("t", 0, begins, begins + 4, records=4),),
        layout={"partition_by": "hour", "time_zone": "UTC"},
    )
    return replace(manifest, **more)


def two_runs() -> list[Manifest]:
    return [
        manifest_of(1, file_of("day=2026-01-01/hour=00", 0, name="a"), file_of("day=2026-01-01/hour=01", 2, name="b")),
        manifest_of(2, file_of("day=2026-01-01/hour=01", 4, name="c"), file_of(LATE, 6, name="d")),
    ]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (RecountScope(), [["a", "b"], ["c", "d"]]),
        (RecountScope(topics=frozenset({"u"})), []),
        (RecountScope(run="r1"), [["a", "b"]]),
        (RecountScope(run="2"), [["c", "d"]]),
        (RecountScope(directory="day=2026-01-01/hour=01"), [["b"], ["c"]]),
        (RecountScope(directory="day=2026-01-02"), [["d"]]),
        (RecountScope(directory="day=2026-01-01/hour=0"), []),
        (RecountScope(from_ms=ms("2026-01-01T01:00")), [["b"], ["c", "d"]]),
        (RecountScope(to_ms=ms("2026-01-01T01:00")), [["a"]]),
        (RecountScope(from_ms=ms("2026-01-01T01:59"), to_ms=ms("2026-01-01T03:00")), [["b"], ["c"]]),
    ],
)
def test_what_is_selected(selection: RecountScope, names: list[list[str]]) -> None:
    runs = audited_runs(two_runs(), frozenset(), selection)
    assert [[file.staged.rpartition("/")[2] for file in run.standing] for run in runs] == names
    # Of a run that is taken the whole range is, and all its files are compared with the log.
    assert all(len(run.files) == 2 and len(run.ranges or ()) == 1 for run in runs)


def test_a_compaction_is_taken_with_what_it_replaced_also_in_a_chain() -> None:
    first, second = two_runs()
    merged = file_of("day=2026-01-01/hour=01", 2, 4, "m")
    third = manifest_of(3, merged, ranges=(), kind=COMPACT, replaced=(first.files[1].final, second.files[0].final))
    again = file_of("day=2026-01-01/hour=01", 2, 4, "n")
    elsewhere = file_of("day=2026-01-02/hour=00", 6, 2, "o")
    fourth = manifest_of(4, again, elsewhere, ranges=(), kind=COMPACT, replaced=(merged.final, second.files[1].final))
    manifests = [first, second, third, fourth]
    runs = audited_runs(manifests, frozenset(), RecountScope(run="r1"))
    assert [(run.manifest.number, len(run.standing)) for run in runs] == [(1, 1), (3, 0), (4, 1)]
    assert list(compare_merged(manifests, runs)) == []
    less = replace(merged, parts=(FilePart(0, 2, 5, 3),))
    manifests[2] = replace(third, files=(less,))
    (line, *_) = compare_merged(manifests, audited_runs(manifests, frozenset(), RecountScope()))
    assert line == "run r3 (manifest 3) replaced 4 records of t-0 in t/day=2026-01-01/hour=01 by 3"


def test_a_run_whose_manifest_is_only_in_a_checkpoint_has_no_ranges() -> None:
    (run, other) = audited_runs(two_runs(), frozenset({1}), RecountScope())
    assert (run.ranges, len(other.ranges or ())) == (None, 1)


def test_ranges_of_older_formats_are_between_two_manifests() -> None:
    old = {"ranges": (), "layout": {}}
    first = manifest_of(1, file_of("day=2026-01-01", 1, name="a"), **old)
    second = manifest_of(2, file_of("day=2026-01-01", 5, name="b"), **old)
    lost = manifest_of(3, file_of("day=2026-01-01", 11, 1, name="c"), **old, lost=(LostRange("t", 0, 8, 10),))
    again = manifest_of(
        4, file_of("day=2026-01-01", 3, name="d"), **old, recreated=(RecreatedTopic("t", ID, OTHER, {}),)
    )
    runs = audited_runs(
        [first, second, lost, replace(again, topics={"t": LoadedTopic(OTHER, {0: 6})})], frozenset(), RecountScope()
    )
    found = [each for run in runs for each in run.ranges or ()]
    assert [(each.start, each.next_offset, each.records) for each in found] == [
        (1, 4, 2),
        (4, 8, 2),
        (10, 12, 1),
        (3, 6, 2),
    ]
    assert not any(run.is_accounted for run in runs)


def test_files_are_told_with_the_numbers_of_both_sides() -> None:
    manifest, (file, _) = two_runs()[0], two_runs()[0].files
    assert list(compare_file(manifest, file, 10, [FilePart(0, 0, 1, 2)])) == []
    assert list(compare_file(manifest, file, 10, None)) == []
    (gone,) = compare_file(manifest, file, None, None)
    assert gone.endswith("(run r1) with 2 records, is not there")
    (size, other) = compare_file(manifest, file, 9, [FilePart(0, 0, 0, 1)])
    assert size.endswith("with 10 bytes, has 9")
    assert other.endswith("it has 1 records at offsets 0 to 0, the manifest 2 records at offsets 0 to 1")
    (unreadable,) = compare_file(manifest, file, 10, "no footer")
    assert unreadable.endswith("with 2 records, cannot be read: no footer")


def run_of(manifest: Manifest, **more: object) -> AuditedRun:
    return replace(AuditedRun(manifest, "t", manifest.files, manifest.files, manifest.ranges), **more)


def quarter(text: str) -> int:
    return ms(text) // 900_000


def log_of(records: int, quarters: dict[int, int], **counts: int) -> LogCount:
    return LogCount(Counter(records=records, **counts), quarters)


def test_the_log_is_compared_by_count_and_by_directory() -> None:
    run = run_of(two_runs()[0])
    ((each),) = run.ranges or ()
    right = {quarter("2026-01-01T00:45"): 2, quarter("2026-01-01T01:00"): 2}
    assert list(compare_range(run, each, log_of(4, right), False)) == []
    wrong = {quarter("2026-01-01T00:45"): 3, quarter("2026-01-01T02:00"): 2}
    where = "t-0, offsets 0 to 3, run r1 (manifest 1): "
    assert list(compare_range(run, each, log_of(5, wrong), False)) == [
        f"{where}the log has 5 records, the manifest 4",
        f"{where}of day=2026-01-01/hour=00 the log has 3 records, the files by the manifest 2",
        f"{where}of day=2026-01-01/hour=01 the log has 0 records, the files by the manifest 2",
        f"{where}of day=2026-01-01/hour=02 the log has 2 records, the files by the manifest 0",
    ]
    # By another event time than the record's, only the count can be compared.
    by_header = run_of(replace(run.manifest, layout={"event_time": "header:t"}))
    assert list(compare_range(by_header, each, log_of(4, wrong), False)) == []
    assert list(compare_range(run, replace(each, quarantined=1), log_of(4, wrong), False)) == []


def test_a_compacted_log_may_hold_less_but_not_more() -> None:
    run = run_of(two_runs()[0])
    (each,) = run.ranges or ()
    assert list(compare_range(run, each, log_of(1, {}, removed=3), True)) == []
    assert list(compare_range(run, each, log_of(5, {}), True)) == [
        "t-0, offsets 0 to 3, run r1 (manifest 1): the log has 5 records, the manifest 4"
    ]
    assert len(list(compare_range(run, each, log_of(3, {}, aborted=1), False))) == 4


def test_directories_go_by_the_run_s_zone() -> None:
    manifest = replace(two_runs()[0], layout={"time_zone": "UTC", "t:time_zone": "Asia/Kolkata", "u:time_zone": "x"})
    found = directories_of({quarter("2025-12-31T18:15"): 1, quarter("2025-12-31T18:30"): 2}, run_of(manifest))
    assert found == {"day=2025-12-31/hour=23": 1, "day=2026-01-01/hour=00": 2}
    assert directories_of({-1: 1}, run_of(replace(manifest, layout={}))) == {"day=1969-12-31/hour=23": 1}


def test_ranges_that_the_log_no_longer_holds_are_told() -> None:
    run = run_of(
        two_runs()[0], ranges=(LoadedRange("t", 0, 0, 4, lost=2, records=2), LoadedRange("t", 1, 5, 7, lost=2))
    )
    findings = Findings()
    assert readable(run, {P0: LogBounds(2, 9)}, findings) == list(run.ranges or ())[:1]
    assert (findings.mismatches, findings.not_compared) == ([], [])
    assert readable(run, {P0: LogBounds(3, 9)}, findings) == []
    assert findings.not_compared == ["run r1 (manifest 1), t-0: offsets 2 to 3 with the log, which begins at 3 by now"]
    assert readable(run, {P0: LogBounds(0, 3)}, findings) == []
    assert findings.mismatches == ["t-0: run r1 (manifest 1) read up to offset 4, but the log ends at 3"]


def test_long_ranges_are_counted_in_pieces_and_short_ones_together() -> None:
    long, short = LoadedRange("t", 0, 0, TASK_OFFSETS * 2 + 5, lost=5), LoadedRange("t", 1, 7, 9)
    tasks = counting_tasks([long, short])
    assert [[(each.start_offset, each.end_offset) for each in task] for task in tasks] == [
        [(5, TASK_OFFSETS + 5)],
        [(TASK_OFFSETS + 5, TASK_OFFSETS * 2 + 5)],
        [(7, 9)],
    ]
    assert [len(task) for task in counting_tasks([short, replace(short, partition=2)])] == [2]
    counted = {
        piece: RangeCount(
            RangeAccount(*piece.topic_partition, piece.start_offset, piece.end_offset, 3, 1, 0, 0, 0, 0, 0), {7: 3}
        )
        for task in tasks
        for piece in task
    }
    assert LogCount.of(long, counted) == LogCount({"records": 6, "control": 2, "aborted": 0, "removed": 0}, {7: 6})
    del counted[OffsetRange(P0, 5, TASK_OFFSETS + 5)]
    with pytest.raises(AuditError, match="was to be counted, and was not"):
        LogCount.of(long, counted)


@pytest.mark.parametrize(
    ("known", "latest", "found", "said"),
    [
        (ID, LoadedTopic(ID, {}), ID, None),
        (ID, LoadedTopic(OTHER, {}, (ID,)), OTHER, f"created again since: it had id {ID}, and has {OTHER}"),
        (None, LoadedTopic(ID, {}), ID, None),
        (None, LoadedTopic(ID, {}, (None,)), ID, "its earlier id is not known"),
        (None, LoadedTopic(None, {}), ID, None),
        (ID, LoadedTopic(ID, {}), None, None),
    ],
)
def test_another_topic_of_the_same_name_is_not_compared(
    known: str | None, latest: LoadedTopic, found: str | None, said: str | None
) -> None:
    run = run_of(manifest_of(1, topics={"t": LoadedTopic(known, {})}))
    reason = why_another_topic(run, manifest_of(2, topics={"t": latest}), found)
    assert (reason is None) if said is None else (reason is not None and said in reason)
