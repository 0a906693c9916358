"""Checkpoints of manifests over a real directory: what they hold, where folding may stop, and what they cost."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spark_kafkalite.jobs.destination import folding, publish
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.manifest import (
    COMPACT,
    MANIFESTS,
    FilePart,
    LoadedRange,
    LoadedTopic,
    Manifest,
    ManifestError,
    PublishedFile,
    manifest_path,
)
from spark_kafkalite.manifests.manifest_checkpoint import (
    checkpoint_path,
    checkpoint_text,
    published_files,
    read_checkpoint,
)

from .test_publish import ID, Stopped, StoppingFiles

DAY_MS = 86_400_000


def manifest_of(number: int, files: int = 2, **more: object) -> Manifest:
    run = f"r{number}"
    made = tuple(
        PublishedFile(
            f"_kafkalite/staging/{run}/data/{file}",
            f"t/day=2026-01-01/t-{file}-{number:020d}-{number:020d}.parquet",
            "t",
            (FilePart(file, number, number, 1),),
            100,
        )
        for file in range(files)
    )
    topics = {"t": LoadedTopic(ID, {0: number + 1}), "silent": LoadedTopic(None, {0: 3})}
    ranges = (LoadedRange("t", 0, number, number + 1, records=1),)
    manifest = Manifest(number, run, "2026-01-01T00:00:00+00:00", made, topics, files, 0, ranges=ranges)
    return replace(manifest, **more)


def destination(root: Path, count: int) -> LocalFiles:
    (root / MANIFESTS).mkdir(parents=True)
    for number in range(1, count + 1):
        (root / manifest_path(number)).write_text(manifest_of(number).to_json())
    return LocalFiles(root)


def places(files: LocalFiles) -> list[tuple[int, str]]:
    return [(manifest.number, file.final) for manifest, file in published_files(publish.manifests(files))]


def test_a_checkpoint_has_every_published_file_and_nothing_else_of_its_runs(tmp_path: Path) -> None:
    manifests = [manifest_of(number, files) for number, files in ((1, 2), (2, 0), (3, 1))]
    text = checkpoint_text(3, manifests)
    assert json.loads(text.splitlines()[0]) == {"format": 1, "number": 3, "runs": 2, "files": 3}
    found = read_checkpoint(text, "x", 3)
    assert [(each.number, each.run, each.records) for each in found] == [(1, "r1", 2), (3, "r3", 1)]
    for was, each in zip((manifests[0], manifests[2]), found, strict=True):
        assert [replace(file, staged="") for file in each.files] == [replace(file, staged="") for file in was.files]
    assert found[0].topics == {"t": LoadedTopic(ID, {})}
    # And once more, from a checkpoint and a later manifest.
    assert checkpoint_text(4, [*found, manifest_of(4)]) == checkpoint_text(4, [*manifests, manifest_of(4)])


def test_what_a_run_replaced_is_not_in_a_checkpoint_and_a_wrong_count_stays_wrong() -> None:
    gone = manifest_of(1).files[0].final
    manifests = [manifest_of(1, records=7), manifest_of(2, 1, kind=COMPACT, replaced=(gone,))]
    first, second = read_checkpoint(checkpoint_text(2, manifests), "x", 2)
    assert [file.final for file in first.files] == [manifests[0].files[1].final]
    assert (first.records, second.records, second.replaced, second.kind) == (6, 1, (), COMPACT)


def test_manifests_are_folded_every_so_often_and_deleted_when_they_are_old(tmp_path: Path) -> None:
    files = destination(tmp_path, 7)
    before = places(files)
    assert folding.fold(files, every=8) == 0
    assert folding.fold(files, every=7) == 7
    assert len(files.names(MANIFESTS)) == 8
    assert folding.fold(files, every=1) == 0
    for number in range(8, 12):
        (tmp_path / manifest_path(number)).write_text(manifest_of(number).to_json())
    for path in [checkpoint_path(7), *(manifest_path(number) for number in (1, 2, 3, 11))]:
        os.utime(tmp_path / path, (time.time() - 40 * 86_400,) * 2)
    assert folding.fold(files, 30 * DAY_MS, every=4) == 4
    # The newest stays, however old it is: it says where to go on.
    assert [name for name in files.names(MANIFESTS) if name.endswith(".json")] == [
        manifest_path(number).rpartition("/")[2] for number in range(4, 12)
    ]
    assert not files.exists(checkpoint_path(7))
    assert places(files)[:14] == before
    assert len(places(files)) == 22
    newest = publish.newest_manifest(files)
    assert newest is not None
    assert (newest.number, newest.ranges) == (11, manifest_of(11).ranges)


def test_folding_may_stop_anywhere(tmp_path: Path) -> None:
    stopped = 0
    while True:
        root = tmp_path / str(stopped)
        files = destination(root, 5)
        before = places(files)
        stopping = StoppingFiles(root, stopped)
        try:
            folding.fold(stopping, 0, every=5)
        except Stopped:
            assert places(files) == before, f"stopped before change {stopped}"
            stopped += 1
            (root / manifest_path(6)).write_text(manifest_of(6).to_json())
            folding.fold(files, 0, every=1)
            assert places(files) == [*before, *((6, file.final) for file in manifest_of(6).files)]
            assert files.names(MANIFESTS) == [f"{6:020d}.checkpoint.jsonl", f"{6:020d}.json"]
            continue
        break
    # The checkpoint, and four manifests.
    assert stopped == 5


def test_a_run_with_files_still_to_be_moved_is_not_folded(tmp_path: Path) -> None:
    files = destination(tmp_path, 3)
    files.write_new("_kafkalite/staging/r3/data/0", "rows")
    assert folding.fold(files, 0, every=1) == 0
    files.delete("_kafkalite/staging/r3")
    assert folding.fold(files, 0, every=1) == 3


class FoldedMeanwhile(LocalFiles):
    """A directory whose manifests are folded and deleted between its listing and the first reading."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.folded = False

    def read(self, path: str) -> str:
        if not self.folded:
            self.folded = True
            assert folding.fold(LocalFiles(self._root), 0, every=1) == 3
        return super().read(path)


def test_a_reader_sees_all_while_manifests_are_folded_and_deleted(tmp_path: Path) -> None:
    before = places(destination(tmp_path, 3))
    assert places(FoldedMeanwhile(tmp_path)) == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace('"run":"r3"', '"run":"r3'), r"line 4 is damaged: it is not JSON"),
        (lambda text: text[:-40], r"it does not end after the 3 lines"),
        (lambda text: text[: text.index("\n", 100) + 1], r"it does not end after the 3 lines that its first"),
        (lambda text: text + text.splitlines()[-1], r"it does not end after the 3 lines"),
        (lambda text: text.replace('"runs": 3', '"runs": -3'), r"its first line does not give format, number, runs"),
        (lambda text: text.replace('"files": 6', '"files": 5'), r"it holds 6 files, and its first line counts 5"),
        (lambda text: text.replace('"number": 3, "runs"', '"number": 4, "runs"'), r"number is 4, not the 3 of"),
        (lambda text: text.replace('"number":2,"run"', '"number":1,"run"'), r"not in the order of their numbers"),
        (lambda text: text.replace('"records":1,', '"records":"1",', 1), r'line 2 is not .*records is "1"'),
        (lambda text: text.replace('{"format": 1', '{"format": 2', 1), r"format 2 is not 1: a newer version wrote it"),
        (lambda text: "x" + text, r"its first line is not JSON"),
    ],
)  # fmt: skip
def test_damage_of_a_checkpoint_is_told(tmp_path: Path, damage: object, said: str) -> None:
    files = destination(tmp_path, 3)
    folding.fold(files, every=1)
    path = tmp_path / checkpoint_path(3)
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(ManifestError, match=f"{files.root}/{checkpoint_path(3)}.*{said}"):
        publish.manifests(files)


@pytest.mark.parametrize("missing", [1, 2, 5, 6])
def test_a_manifest_that_is_missing_is_told_unless_a_checkpoint_stands_in_for_it(tmp_path: Path, missing: int) -> None:
    files = destination(tmp_path, 3)
    folding.fold(files, every=1)
    for number in range(4, 7):
        (tmp_path / manifest_path(number)).write_text(manifest_of(number).to_json())
    (tmp_path / manifest_path(missing)).unlink()
    if missing == 5:
        for read in (publish.manifests, publish.newest_manifest):
            with pytest.raises(ManifestError, match=f"{manifest_path(5)} is not there, and no checkpoint"):
                read(files)
    else:
        assert len(places(files)) == (10 if missing == 6 else 12)


def test_the_newest_manifest_must_be_there_beside_its_checkpoint(tmp_path: Path) -> None:
    files = destination(tmp_path, 3)
    folding.fold(files, every=1)
    (tmp_path / manifest_path(3)).unlink()
    for read in (publish.manifests, publish.newest_manifest):
        with pytest.raises(ManifestError, match=f"{manifest_path(3)} is not there"):
            read(files)


class CountedFiles(LocalFiles):
    """A directory whose reads are noted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_names: list[str] = []

    def read(self, path: str) -> str:
        self.read_names.append(path.rpartition("/")[2])
        return super().read(path)


def test_a_run_reads_one_manifest_and_a_reader_a_checkpoint_and_what_came_after_it(tmp_path: Path) -> None:
    destination(tmp_path, 40)
    assert folding.fold(LocalFiles(tmp_path), every=1) == 40
    for number in range(41, 44):
        (tmp_path / manifest_path(number)).write_text(manifest_of(number).to_json())
    files = CountedFiles(tmp_path)
    assert publish.newest_manifest(files) == manifest_of(43)
    assert files.read_names == [f"{43:020d}.json"]
    files.read_names.clear()
    assert len(places(files)) == 86
    assert files.read_names == [f"{40:020d}.checkpoint.jsonl", *(f"{number:020d}.json" for number in (41, 42, 43))]


@pytest.mark.soak
def test_ten_thousand_runs_cost_a_reader_seconds_and_a_run_nothing(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    (tmp_path / MANIFESTS).mkdir(parents=True)
    manifests = [manifest_of(number, 10) for number in range(1, 10_100)]
    (tmp_path / checkpoint_path(10_000)).write_text(checkpoint_text(10_000, manifests[:10_000]))
    for number in range(1, 10_000):  # Not yet old enough to be deleted.
        (tmp_path / manifest_path(number)).touch()
    for manifest in manifests[9_999:]:
        (tmp_path / manifest.path).write_text(manifest.to_json())
    begun_s = time.process_time()
    newest = publish.newest_manifest(files)
    planned_s = time.process_time() - begun_s
    found = published_files(publish.manifests(files))
    listed_s = time.process_time() - begun_s
    assert newest == manifests[-1]
    assert len(found) == 100_990
    # Seen: 0.02 s and 2.5 s.
    assert planned_s < 0.5
    assert listed_s < 12
