"""Tables that contradict their marks stop a run, and are made again from the manifests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.manifests.manifest import COMPACT, Manifest

from .table_runs import Destination, committed, mark_of, resync, rows, stopped_everywhere

deltalake = pytest.importorskip("deltalake")


def change_mark(root: Path, **changed: Any) -> None:
    (root / "_kafkalite/tables/t/table.json").write_text(json.dumps(mark_of(root) | changed))


def gone(root: Path) -> None:
    subprocess.run(["rm", "-r", str(root / "t/_delta_log")], check=True)


def made_again(root: Path) -> None:
    gone(root)
    deltalake.write_deltalake(str(root / "t"), pa.table({"offset": pa.array([1], pa.int64())}))


def expired(root: Path) -> None:
    for path in (root / "t/_delta_log").glob("*.json"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if '"txn"' not in line))


def older(root: Path) -> None:
    sorted((root / "t/_delta_log").glob("*.json"))[-1].unlink()


def manifests_restored(root: Path) -> None:
    change_mark(root, published=1)
    (root / f"_kafkalite/manifests/{2:020d}.json").unlink()


def feature(root: Path) -> None:
    (root / f"t/_delta_log/{2:020d}.json").write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
        '"writerFeatures":["deletionVectors"]}}\n'
    )


def hole(root: Path) -> None:
    (root / f"t/_delta_log/{0:020d}.json").unlink()


def damaged(root: Path) -> None:
    (root / f"t/_delta_log/{1:020d}.json").write_text('{"commitInfo":{}}\n{"txn":')


def missing_file(root: Path) -> None:
    """Lose a file that a dead run has published, and not yet committed to the table."""
    older(root)
    change_mark(root, published=1, checked=1)
    sorted((root / "t/day=2013-01-01").glob("*.parquet"))[-1].unlink()


def cut_file(root: Path) -> None:
    missing = sorted((root / "t/day=2013-01-01").glob("*.parquet"))[-1]
    text = missing.read_bytes()
    missing_file(root)
    missing.write_bytes(text[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (gone, "is gone: its log is empty, and manifest 2 was published in it"),
        (made_again, "has id .*: it was made again"),
        (expired, r"has no transaction of this destination any more.*transactions have expired"),
        (older, "has manifest 1 as its last transaction, but manifest 2 was published in it"),
        (manifests_restored, "has manifest 2 as its last transaction, but the newest manifest is 1"),
        (feature, "asks for the table feature deletionVectors, which this program does not know"),
        (hole, r"0{20}\.json is not there, and no complete checkpoint replaces it"),
        (damaged, r"1\.json is damaged: line 2 is not a JSON object"),
        (missing_file, "with 2 records, published by .*, is not there"),
        (cut_file, "published by .*, has .* bytes instead of"),
    ],
)
def test_a_table_that_contradicts_its_mark_stops_the_run(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2})
    destination.load({"t": 2})
    change(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(TableError, match=message):
        destination.load({"t": 2})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_numbers_that_restored_manifests_take_again_are_published(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "d")
    destination.load({"t": 2})
    # The mark of a destination whose later manifests had no files of the topic, and are gone.
    change_mark(tmp_path / "d", checked=5)
    destination.load({"t": 0})
    copies = stopped_everywhere(tmp_path / "d", lambda each: each.load({"t": 2}))
    for copy in copies:
        Destination(copy).load({"t": 0})
        assert rows(copy) == committed(copy, "t")


def test_a_plain_load_does_not_go_into_a_table_of_another_writer(tmp_path: Path) -> None:
    root = tmp_path / "no%table"
    root.mkdir()
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"offset": pa.array([1], pa.int64())}))
    (tmp_path / "t").rename(root / "%5Ft")
    tables = Destination(root).tables()
    tables.check_plain(["_u", "v"])
    with pytest.raises(TableError, match=r"log of a Delta table that this destination has no mark of"):
        tables.check_plain(["_u", "_t", "v"])


def test_a_table_without_a_mark_is_not_taken_over(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"offset": pa.array([1], pa.int64())}))
    with pytest.raises(TableError, match=r"log of a Delta table that this destination has no mark of"):
        Destination(tmp_path).load({"t": 2})


def test_a_restore_and_an_optimize_by_others_load_nothing_again(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    for _ in range(3):
        destination.load({"t": 2})
    deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
    destination.load({"t": 1})
    assert rows(tmp_path) == list(range(7))
    deltalake.DeltaTable(str(tmp_path / "t")).restore(1)
    assert destination.load({"t": 0}) is None
    assert rows(tmp_path) == [0, 1, 2, 3]
    destination.load({"t": 1})
    assert rows(tmp_path) == [0, 1, 2, 3, 7]


def test_a_compaction_by_a_version_without_tables_is_refused(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    manifest = destination.load({"t": 2})
    assert manifest is not None
    compaction = Manifest(2, "c", manifest.created, manifest.files, manifest.topics, 2, 0, kind=COMPACT)
    destination.files.write_new(compaction.path, compaction.to_json())
    with pytest.raises(TableError, match="is a compaction of topic t"):
        destination.load({"t": 1})


# Made again -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [gone, made_again, expired, older, feature, hole, damaged])
def test_a_resync_makes_the_table_again_wherever_it_dies(tmp_path: Path, change: Callable[[Path], None]) -> None:
    root = tmp_path / "d"
    destination = Destination(root)
    destination.load({"t": 2})
    destination.load({"t": 2})
    old = mark_of(root)["table_id"]
    change(root)
    for copy in stopped_everywhere(root, resync):
        resync(Destination(copy))
        assert rows(copy) == [0, 1, 2, 3]
        assert mark_of(copy)["table_id"] != old
        Destination(copy).load({"t": 1})
        assert rows(copy) == list(range(5))


def test_any_run_goes_on_with_a_resync_of_a_table_that_can_be_read(tmp_path: Path) -> None:
    root = tmp_path / "d"
    Destination(root).load({"t": 2})
    copies = stopped_everywhere(root, resync)
    assert len(copies) >= 4
    for copy in copies:
        Destination(copy).load({"t": 1})
        assert rows(copy) == [0, 1, 2]


def test_a_resync_refuses_where_files_of_the_manifests_are_gone(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    for _ in range(3):
        destination.load({"t": 2})
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(TableError, match=r"cannot be written from its manifests: .*is not there; .*and VACUUM"):
        resync(destination)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    destination.load({"t": 1})
    assert rows(tmp_path) == list(range(7))


def test_a_resync_of_what_is_no_table_is_refused(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2}, table=False)
    with pytest.raises(TableError, match="topic t is not a Delta table"):
        resync(destination)
