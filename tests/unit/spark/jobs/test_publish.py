"""Publishing over a real directory, stopped after each of its operations."""

from pathlib import Path

import pytest

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.jobs import publish
from spark_kafkalite.spark.jobs.files import LocalFiles
from spark_kafkalite.spark.jobs.manifest import (
    Manifest,
    ManifestError,
    PublishedFile,
    file_name,
    manifest_numbers,
    read_manifest,
    staging_path,
)
from spark_kafkalite.spark.jobs.planning import OffsetRange, Plan
from spark_kafkalite.spark.jobs.staging import AuditError, Staged, audit

P0 = TopicPartition("t", 0)


class Stopped(Exception):
    pass


class StoppingFiles(LocalFiles):
    """A directory whose owner dies before its n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self.changes_left = changes

    def _change(self) -> None:
        if self.changes_left == 0:
            raise Stopped
        self.changes_left -= 1

    def write_new(self, path: str, text: str) -> None:
        self._change()
        super().write_new(path, text)

    def rename_new(self, source: str, target: str) -> None:
        self._change()
        super().rename_new(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)


def load(files: LocalFiles, run: str, start: int, until: int) -> Manifest:
    """One run as the job does it, with plain files in place of Spark's."""
    recovery = publish.recover(files)
    plan = Plan((OffsetRange(P0, start, until),))
    publish.write_plan(files, run, plan)
    staged = []
    for first in range(start, until, 2):
        path = f"{staging_path(run)}/data/{first}"
        files.write_new(path, f"offsets from {first} by {run}")
        staged.append(PublishedFile(path, f"t/{file_name('t', 0, first, first + 1)}", "t", 0, first, first + 1, 2))
    return publish.commit(files, run, plan, Staged(tuple(staged), until - start, 0), recovery.newest)


def published(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "t").glob("*")) if (root / "t").exists() else []


def test_runs_add_up(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert load(files, "r1", 0, 4).number == 1
    second = load(files, "r2", 4, 6)
    assert second.number == 2
    assert second.next_offsets == {P0: 6}
    assert published(tmp_path) == [file_name("t", 0, first, first + 1) for first in (0, 2, 4)]
    assert files.names("_kafkalite/staging") == []


def test_a_run_stopped_anywhere_is_wholly_there_or_not_at_all_after_the_next(tmp_path: Path) -> None:
    changes = 0
    finished = False
    while not finished:
        root = tmp_path / str(changes)
        load(LocalFiles(root), "r1", 0, 4)
        stopping = StoppingFiles(root, changes)
        try:
            load(stopping, "r2", 4, 10)
            finished = True
        except Stopped:
            pass
        before_recovery = published(root)
        recovered = publish.recover(LocalFiles(root)).newest
        assert recovered is not None
        whole = [file_name("t", 0, first, first + 1) for first in range(0, 10, 2)]
        assert published(root) == (whole if recovered.number == 2 else whole[:2]), f"stopped before change {changes}"
        if recovered.number == 1:
            assert before_recovery == whole[:2], "uncommitted files outside _kafkalite"
        assert LocalFiles(root).names("_kafkalite/staging") == []
        changes += 1
    # plan, three data files, manifest, three moves, deleting the staging directory
    assert changes == 10


def test_recovery_itself_may_be_stopped_and_done_again(tmp_path: Path) -> None:
    committed_unmoved = 5  # the plan, three data files and the manifest
    with pytest.raises(Stopped):
        load(StoppingFiles(tmp_path, committed_unmoved), "r1", 0, 6)
    for changes in range(4):
        with pytest.raises(Stopped):
            publish.recover(StoppingFiles(tmp_path, min(changes, 1)))
    publish.recover(LocalFiles(tmp_path))
    assert published(tmp_path) == [file_name("t", 0, first, first + 1) for first in (0, 2, 4)]
    assert publish.recover(LocalFiles(tmp_path)).moved == 0


def test_two_runs_at_once_publish_only_one(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    plan = Plan((OffsetRange(P0, 0, 2),))
    publish.commit(files, "r1", plan, Staged((), 0, 0), None)
    with pytest.raises(ManifestError, match="another run published manifest 1"):
        publish.commit(files, "r2", plan, Staged((), 0, 0), None)


def test_a_published_file_that_somebody_deleted_is_named(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    lost = PublishedFile("_kafkalite/staging/r1/data/0", "t/x.parquet", "t", 0, 0, 1, 2)
    with pytest.raises(ManifestError, match=r"names t/x\.parquet, which is neither there nor at _kafkalite"):
        publish.commit(files, "r1", Plan((OffsetRange(P0, 0, 2),)), Staged((lost,), 2, 0), None)


def test_manifest_round_trip() -> None:
    file = PublishedFile("s/1", "t/1", "t", 3, 5, 9, 4)
    manifest = Manifest(7, "r", "2026-01-01T00:00:00+00:00", (file,), {TopicPartition("t", 3): 10}, 4, 1)
    assert read_manifest(manifest.to_json(), "x") == manifest


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "number": 1, "files": 3}'])
def test_what_is_no_manifest_is_refused_by_name(text: str) -> None:
    with pytest.raises(ManifestError, match=r"m\.json"):
        read_manifest(text, "m.json")


def test_manifest_of_a_newer_format_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"m\.json: format 2 is not 1"):
        read_manifest('{"format": 2}', "m.json")


def test_manifest_numbers_ignore_other_files() -> None:
    assert manifest_numbers(
        [".00001.json.tmp", "00000000000000000010.json", "00000000000000000002.json", "x.json"]
    ) == [2, 10]


@pytest.mark.parametrize(
    ("first", "last", "records"),
    [(0, 3, 5), (0, 4, 4), (5, 5, 1)],
    ids=["more records than offsets", "beyond the range", "outside the range"],
)
def test_audit_refuses_files_that_were_not_planned(first: int, last: int, records: int) -> None:
    plan = Plan((OffsetRange(P0, 0, 4),))
    with pytest.raises(AuditError, match="t-0"):
        audit(plan, (PublishedFile("s", "f", "t", 0, first, last, records),))
    audit(plan, (PublishedFile("s", "f", "t", 0, 0, 3, 3),))
