"""The exchange of merged files for others over a real directory, stopped before each of its changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spark_kafkalite.jobs.compaction import compaction
from spark_kafkalite.jobs.compaction.merge_planning import Merge
from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.manifest import (
    COMPACT,
    FilePart,
    Manifest,
    ManifestError,
    PublishedFile,
    staging_path,
)
from spark_kafkalite.manifests.manifest_checkpoint import published_files

from ..destination.test_publish import P0, Stopped, StoppingFiles, load


def compact(files: LocalFiles, run: str = "c1") -> Manifest:
    """Merge all published files into one, as the job does, with plain files in place of Spark's."""
    newest = publish.recover(files).newest
    assert newest is not None
    olds = tuple(file for _, file in published_files(publish.manifests(files)))
    merge = Merge("t", "t", 0, "parquet", (), olds)
    staged = f"{staging_path(run)}/data/merged"
    files.write_new(staged, ",".join(files.read(file.final) for file in olds))
    parts = (FilePart(0, olds[0].parts[0].first_offset, olds[-1].parts[0].last_offset, sum(f.records for f in olds)),)
    made = PublishedFile(staged, f"t/t-compact-{run}-1.parquet", "t", parts)
    return compaction.commit(files, run, [merge], (made,), newest)


def listed(root: Path) -> set[str]:
    """Return what a plain listing shows: the first offsets of all files, and fails where one is shown twice."""
    found = [offset for path in (root / "t").glob("*") for offset in path.read_text().split(",")]
    assert len(found) == len(set(found)), "a record is seen twice"
    return set(found)


def test_a_compaction_stopped_anywhere_is_wholly_there_or_not_at_all_after_recovery(tmp_path: Path) -> None:
    changes = 0
    finished = False
    while not finished:
        root = tmp_path / str(changes)
        files = LocalFiles(root)
        load(files, "r1", 0, 4)
        load(files, "r2", 4, 6)
        before = listed(root)
        olds = sorted(path.name for path in (root / "t").iterdir())
        try:
            compact(StoppingFiles(root, changes))
            finished = True
        except Stopped:
            pass
        newest = publish.newest_manifest(files)
        assert newest is not None
        is_committed = newest.kind == COMPACT
        seen = listed(root)
        assert seen <= before
        # Before the commit nothing has moved.
        assert is_committed or seen == before, f"stopped before change {changes}"
        recovered = publish.recover(files).newest
        assert recovered is not None
        assert (recovered.kind == COMPACT) is is_committed
        assert listed(root) == before
        names = sorted(path.name for path in (root / "t").iterdir())
        assert names == (["t-compact-c1-1.parquet"] if is_committed else olds)
        assert [file.final for _, file in published_files(publish.manifests(files))] == [f"t/{name}" for name in names]
        assert files.names("_kafkalite/staging") == []
        assert (files.names("_kafkalite/replaced/c1/t") == olds) is is_committed
        # The next load goes on where the one before the compaction ended.
        assert recovered.next_offsets == {P0: 6}
        load(files, "r3", 6, 8)
        assert len(listed(root)) == len(before) + 1
        changes += 1
    # The staged file, the manifest, three moves away, one move, and deleting the staging directory.
    assert changes == 8


def test_recovery_of_a_compaction_may_be_stopped_and_done_again(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    load(files, "r1", 0, 6)
    before = listed(tmp_path)
    with pytest.raises(Stopped):
        compact(StoppingFiles(tmp_path, 2))
    for changes in range(5):
        with pytest.raises(Stopped):
            publish.recover(StoppingFiles(tmp_path, min(changes, 1)))
    publish.recover(files)
    assert listed(tmp_path) == before
    assert files.names("t") == ["t-compact-c1-1.parquet"]


def test_a_replaced_file_that_somebody_deleted_meanwhile_holds_nothing_up(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    load(files, "r1", 0, 4)
    with pytest.raises(Stopped):
        compact(StoppingFiles(tmp_path, 2))
    next((tmp_path / "t").iterdir()).unlink()
    publish.recover(files)
    assert files.names("t") == ["t-compact-c1-1.parquet"]


def test_another_file_in_the_place_of_one_that_was_moved_away_is_not_taken(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    load(files, "r1", 0, 4)
    (first, _) = files.names("t")
    with pytest.raises(Stopped):
        compact(StoppingFiles(tmp_path, 3))
    (tmp_path / "t" / first).write_text("somebody's")
    with pytest.raises(ManifestError, match=rf"\(run c1\) replaces t/{first}, which was moved away, but .* another"):
        publish.recover(files)
    assert files.read(f"t/{first}") == "somebody's"
    (tmp_path / "t" / first).unlink()
    publish.recover(files)
    assert files.names("t") == ["t-compact-c1-1.parquet"]


def test_a_load_that_commits_first_wins(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    load(files, "r1", 0, 4)

    class LoadedMeanwhile(LocalFiles):
        def write_new(self, path: str, text: str) -> None:
            super().write_new(path, text)
            if path.endswith("/merged"):
                newest = publish.newest_manifest(files)
                assert newest is not None
                files.write_new(f"_kafkalite/manifests/{2:020d}.json", other(newest).to_json())

    def other(newest: Manifest) -> Manifest:
        return Manifest(2, "r2", "now", (), newest.topics, 0, 0)

    with pytest.raises(DestinationHeld, match="another run took over and made manifest 2"):
        compact(LoadedMeanwhile(tmp_path))
    assert len(files.names("t")) == 2


def test_replaced_files_are_deleted_after_their_time(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    load(files, "r1", 0, 4)
    compact(files)
    load(files, "r2", 4, 6)
    compact(files, "c2")
    assert compaction.drop_replaced(files, 60_000) == ()
    os.utime(tmp_path / "_kafkalite" / "replaced" / "c1", (time.time() - 100,) * 2)
    assert compaction.drop_replaced(files, 60_000) == ("c1",)
    assert files.names("_kafkalite/replaced") == ["c2"]
    assert files.names("_kafkalite") == ["manifests", "replaced", "staging"]
