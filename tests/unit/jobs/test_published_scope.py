from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from spark_kafkalite.jobs.published_scope import (
    Published,
    PublishedScope,
    labels_of,
    number_of_run,
    of_days,
    of_topic,
    since,
)
from spark_kafkalite.manifests.manifest import COMPACT, FilePart, Manifest, ManifestError, PublishedFile
from spark_kafkalite.manifests.manifest_checkpoint import published_files


def file_at(path: str) -> PublishedFile:
    return PublishedFile("_kafkalite/staging/r/f", path, path.split("/")[0], (FilePart(0, 0, 0, 1),))


def run_of(number: int, *paths: str, replaced: tuple[str, ...] = ()) -> Manifest:
    kind = COMPACT if replaced else "load"
    files = tuple(map(file_at, paths))
    return Manifest(number, f"r{number}", "now", files, {}, len(files), 0, replaced=replaced, kind=kind)


def finals(published: Published) -> list[str]:
    return [file.final for _, file in published]


DAY1, DAY2 = "t/day=2026-01-01", "t/day=2026-01-02/hour=05"
RUNS = [run_of(1, f"{DAY1}/a", "u/day=2026-01-01/a"), run_of(2, f"{DAY1}/b"), run_of(3, f"{DAY2}/c"), run_of(4)]
MERGED = run_of(5, f"{DAY1}/m", replaced=(f"{DAY1}/a", f"{DAY1}/b"))


@pytest.mark.parametrize(
    ("path", "labels"),
    [
        (f"{DAY2}/c", (("day", "2026-01-02"), ("hour", "05"))),
        ("t/_late/day=2026-01-01/a", (("day", "2026-01-01"),)),
        ("t/a", ()),
        # A topic may be called so.
        ("day=2026-01-01/a", ()),
    ],
)
def test_the_time_of_a_file_is_in_its_path(path: str, labels: tuple[tuple[str, str], ...]) -> None:
    assert labels_of(file_at(path)) == labels


def test_files_of_a_topic_and_of_days() -> None:
    published = published_files(RUNS)
    assert finals(of_topic("d", published, "u")) == ["u/day=2026-01-01/a"]
    assert of_topic("d", published, None) == published
    with pytest.raises(FileNotFoundError, match="d: no load run has published records of topic v here; there are t, u"):
        of_topic("d", published, "v")
    scope = PublishedScope.of(None, [date(2026, 1, 2), "2026-01-03"], None)
    assert finals(of_days("d", published, scope.days)) == [f"{DAY2}/c"]
    assert PublishedScope.of(None, date(2026, 1, 2), 3) == PublishedScope(None, frozenset(["2026-01-02"]), "3")
    with pytest.raises(ValueError, match="days=: d has files that are of no day, such as t/x"):
        of_days("d", published_files([*RUNS, run_of(6, "t/x")]), scope.days)
    for wrong in ("2026-1-2", ["day=2026-01-02"], ["2026-01-02", ""]):
        with pytest.raises(ValueError, match="a day is a date or a text such as 2026-01-31"):
            PublishedScope.of(None, wrong, None)


@pytest.mark.parametrize("given", ["r2", "2", "_kafkalite/manifests/00000000000000000002.json"])
def test_a_run_has_a_name_and_a_number(given: str) -> None:
    assert number_of_run("d", given, RUNS) == 2


@pytest.mark.parametrize("given", ["r9", "9", "-1", ""])
def test_a_run_that_there_is_not_is_named(given: str) -> None:
    with pytest.raises(ManifestError, match=rf"since_run='{given}': d has no such run, .* its newest is 4\."):
        number_of_run("d", given, RUNS)


def later(number: int, *runs: Manifest, folded: frozenset[int] = frozenset()) -> list[str]:
    return finals(since("d", published_files(runs), number, runs, folded))


def test_files_of_later_runs() -> None:
    assert later(0, *RUNS) == finals(published_files(RUNS))
    assert later(2, *RUNS) == [f"{DAY2}/c"]
    assert later(3, *RUNS) == later(4, *RUNS) == []


def test_a_merged_file_is_of_the_runs_whose_files_it_replaced() -> None:
    assert later(2, *RUNS, MERGED) == [f"{DAY2}/c"]
    assert later(5, *RUNS, MERGED) == []
    assert later(0, *RUNS, MERGED) == ["u/day=2026-01-01/a", f"{DAY2}/c", f"{DAY1}/m"]
    with pytest.raises(ManifestError, match=r"since_run=1: .*5\.json, run r5\) has merged .* of the runs 1 to 2; "):
        later(1, *RUNS, MERGED)
    # Another merge of the same run does not matter.
    both = replace(
        run_of(5, f"{DAY1}/m", f"{DAY2}/n", replaced=(f"{DAY1}/a", f"{DAY1}/b", f"{DAY2}/c")), run="compaction"
    )
    assert later(2, *RUNS, both) == [f"{DAY2}/n"]
    # What is merged again is of the runs of the first merge.
    again = run_of(7, f"{DAY1}/mm", replaced=(f"{DAY1}/m", f"{DAY1}/x"))
    with pytest.raises(ManifestError, match="of the runs 1 to 6; "):
        later(5, *RUNS, MERGED, run_of(6, f"{DAY1}/x"), again)
    assert later(6, *RUNS, MERGED, run_of(6, f"{DAY1}/x"), again) == []


def test_what_a_checkpoint_does_not_say_is_not_guessed() -> None:
    # The compaction is only in a checkpoint, without what it has replaced.
    folded = replace(MERGED, replaced=())
    with pytest.raises(ManifestError, match="of the runs 1 to 4; "):
        later(2, RUNS[2], folded, folded=frozenset((3, 5)))
    assert later(4, RUNS[2], folded, folded=frozenset((3, 5))) == []
    # The runs whose files it replaced are folded: they are older than the checkpoint.
    assert later(3, RUNS[2], MERGED, folded=frozenset((3,))) == []
