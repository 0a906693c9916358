"""What an audit finds in a table that others have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.tables.table_audit import TableFindings, compare_tables
from spark_kafkalite.manifests.files import LocalFiles

from .table_runs import Destination

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def destination(tmp_path: Path) -> Destination:
    made = Destination(tmp_path)
    for _ in range(3):
        made.load({"t": 2, "u": 1})
    return made


def audited(destination: Destination, *topics: str) -> TableFindings:
    files = LocalFiles(destination.root)
    return compare_tables(files, publish.manifests(files), topics)


def test_a_table_as_it_was_published_agrees(destination: Destination) -> None:
    assert audited(destination) == TableFindings(["t", "u"])
    assert audited(destination, "u") == TableFindings(["u"])


def test_optimize_and_vacuum_keep_the_records(destination: Destination) -> None:
    table = deltalake.DeltaTable(str(destination.root / "t"))
    table.optimize.compact()
    found = audited(destination, "t")
    assert (found.mismatches, found.gone) == ([], set())
    assert found.not_compared == [
        "Delta table of topic t: 3 of the 3 published files are no longer in it, and 1 other files are, by OPTIMIZE "
        "(version 3); they have the same 6 records"
    ]
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(audited(destination, "t").gone) == 3


def test_a_restore_is_a_mismatch_with_both_numbers(destination: Destination) -> None:
    deltalake.DeltaTable(str(destination.root / "t")).restore(1)
    assert audited(destination, "t").mismatches == [
        "Delta table of topic t has 4 records, and its manifests 6: 1 of the 3 published files are no longer in it, "
        "and 0 other files are, by RESTORE (version 3)"
    ]


def test_a_table_that_a_dead_run_left_behind(destination: Destination) -> None:
    log = destination.root / "t/_delta_log"
    (log / f"{2:020d}.json").unlink()
    mark = destination.root / "_kafkalite/tables/t/table.json"
    mark.write_text(mark.read_text().replace('"published": 3', '"published": 2'))
    (line, counted) = audited(destination, "t").mismatches
    assert line.startswith("Delta table of topic t: it lacks _kafkalite/manifests/00000000000000000003.json; the next")
    assert "has 4 records, and its manifests 6" in counted


def test_a_table_that_is_gone_and_a_size_that_differs(destination: Destination) -> None:
    for path in (destination.root / "t/_delta_log").glob("*"):
        path.unlink()
    commit = destination.root / "u/_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace('"size":', '"size":1'))
    (gone, size) = audited(destination).mismatches
    assert "the Delta table of topic t is gone" in gone
    assert "Delta table of topic u: u/day=2013-01-01/u-0-" in size and "by its manifest" in size
