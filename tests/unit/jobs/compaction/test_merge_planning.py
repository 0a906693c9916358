"""Which files are merged, and what is no true copy of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafkalite.jobs.compaction.merge_planning import (
    Merge,
    MergeBounds,
    PartFacts,
    Published,
    check_merged,
    plan_merges,
    rounds,
)
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.manifests.manifest import COMPACT, FilePart, LoadedTopic, Manifest, PublishedFile

BOUNDS = MergeBounds(min_files=2, file_bytes=100)


def file_of(final: str, size_bytes: int = 10, first: int = 0, partition: int = 0) -> PublishedFile:
    return PublishedFile("_kafkalite/staging/r/x", final, "t", (FilePart(partition, first, first + 4, 5),), size_bytes)


def run_of(
    *files: PublishedFile, created: str = "2026-01-01", kind: str = "load", ids: int = 0, **layout: str
) -> Published:
    topics = {"t": LoadedTopic(None, {}, (None,) * ids)}
    manifest = Manifest(1, "r", created, files, topics, 0, 0, layout=layout, kind=kind)
    return [(manifest, file) for file in files]


def finals(published: Published, bounds: MergeBounds = BOUNDS) -> list[list[str]]:
    return [[file.final for file in each.files] for each in plan_merges(published, bounds, lambda *_: True).merges]


def test_small_files_of_a_directory_become_one_up_to_the_target() -> None:
    files = [file_of(f"t/a/{number}.parquet", 40, number * 5) for number in range(5)]
    assert finals(run_of(*reversed(files))) == [["t/a/0.parquet", "t/a/1.parquet"], ["t/a/2.parquet", "t/a/3.parquet"]]
    assert finals(run_of(*files), MergeBounds(6, 100)) == []
    large = file_of("t/a/large.parquet", 50)
    assert finals(run_of(files[0], large)) == []


@pytest.mark.parametrize(
    "other",
    [
        run_of(file_of("t/b/2.parquet")),
        run_of(file_of("t/a/2.orc")),
        run_of(file_of("t/a/2.parquet"), codec="zstd"),
        run_of(file_of("t/a/2.parquet"), ids=1),
        run_of(file_of("t/a/t-compact-c-1-recreated1.parquet"), kind=COMPACT),
        run_of(replace(file_of("t/a/2.parquet"), topic="u")),
    ],
    ids=["directory", "format", "codec", "recreated", "merged of recreated", "topic"],
)
def test_what_is_of_different_kinds_is_not_merged(other: Published) -> None:
    assert finals([*run_of(file_of("t/a/1.parquet")), *other]) == []


def test_merged_files_of_a_recreated_topic_merge_with_its_own() -> None:
    merged = run_of(file_of("t/a/t-compact-c-1-recreated1.parquet"), kind=COMPACT, ids=3)
    loaded = run_of(file_of("t/a/t-0-1-2-recreated1.parquet", first=9), ids=1)
    (merge,) = plan_merges([*merged, *loaded], BOUNDS, lambda *_: True).merges
    assert (merge.recreations, len(merge.files)) == (1, 2)


def test_directories_that_are_not_settled_wait_and_are_named() -> None:
    published = [
        *run_of(file_of("t/a/1.parquet"), created="2026-01-02"),
        *run_of(file_of("t/a/2.parquet"), file_of("t/b/1.parquet"), file_of("t/b/2.parquet")),
    ]
    asked = []

    def is_settled(directory: str, created: str) -> bool:
        asked.append((directory, created))
        return directory == "t/b"

    plan = plan_merges(published, BOUNDS, is_settled)
    assert ([each.directory for each in plan.merges], plan.waiting) == (["t/b"], ("t/a",))
    assert asked == [("t/a", "2026-01-02"), ("t/b", "2026-01-01")]


def test_formats_that_spark_does_not_read_by_itself_are_counted() -> None:
    files = [file_of(f"t/a/{number}.{ending}") for number in (1, 2) for ending in ("avro", "txt", "json", "json.gz")]
    plan = plan_merges(run_of(*files), BOUNDS, lambda *_: True)
    assert (len(plan.merges), plan.unreadable) == (1, 4)
    assert plan_merges(run_of(*files, value="json"), BOUNDS, lambda *_: True).unreadable == 8


def test_a_round_has_one_layout_and_a_bound() -> None:
    files = (file_of("t/a/1.parquet", 30), file_of("t/a/2.parquet", 30))
    merges = [Merge("t", f"t/{each}", 0, "parquet", layout, files) for each in "abc" for layout in ((), (("a", "b"),))]
    assert [[each.directory for each in merge] for merge in rounds(merges, 120)] == [
        ["t/a", "t/b"], ["t/c"], ["t/a", "t/b"], ["t/c"],
    ]  # fmt: skip


MERGE = Merge("t", "t/a", 0, "parquet", (), (file_of("t/a/1.parquet"), file_of("t/a/2.parquet", first=7)))
RIGHT = {0: PartFacts(0, 11, 10, 10, 77)}


def test_a_true_copy_passes() -> None:
    check_merged(MERGE, RIGHT, RIGHT)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (RIGHT, {0: PartFacts(0, 11, 9, 9, 78)}, r"they have 10 records at offsets 0 to 11, .* has 9 records at"),
        (RIGHT, {0: PartFacts(0, 11, 10, 10, 78)}, r"has 10 records at offsets 0 to 11 with other content; nothing"),
        (RIGHT, {}, r"they have 10 records at offsets 0 to 11, and what was merged from them has nothing"),
        (RIGHT, {**RIGHT, 1: PartFacts(0, 0, 1, 1, 1)}, r"they have nothing, and what was merged from them has 1 rec"),
        ({0: PartFacts(0, 11, 9, 9, 1)}, RIGHT, r"manifests have 10 records .*, the files have 9 records at offsets"),
        ({0: PartFacts(0, 11, 10, 9, 77)}, RIGHT, r"10 records have 9 different offsets, so some occur twice"),
    ],
)  # fmt: skip
def test_what_is_no_true_copy_is_refused(before: dict[int, PartFacts], after: dict[int, PartFacts], said: str) -> None:
    with pytest.raises(AuditError, match=r"t/a: 2 files of topic t, partition .*" + said):
        check_merged(MERGE, before, after)
