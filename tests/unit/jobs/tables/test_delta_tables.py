"""Tables of a local destination: as other programs read them, after a death before every change, and after theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_kafkalite.jobs.destination import folding, publish
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.tables import table_checkpoints
from spark_kafkalite.jobs.tables.delta_log import DeltaLog, Listing
from spark_kafkalite.jobs.tables.delta_tables import DeltaTables
from spark_kafkalite.jobs.tables.table_checkpoints import write_checkpoint
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_mark import table_topics
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .table_runs import Destination, columns_of, committed, mark_of, resync, rows, stopped_everywhere

deltalake = pytest.importorskip("deltalake")


def test_each_manifest_is_a_commit_that_deltalake_reads(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 4}, days=2)
    destination.load({"t": 3, "u": 1})
    assert rows(tmp_path) == list(range(7)) and rows(tmp_path, "u") == [0]
    assert (len(destination.log("t")), len(destination.log("u"))) == (2, 1)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert table.metadata().configuration == {"delta.appendOnly": "true", "delta.checkpointInterval": "10"}
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    mark = json.loads((tmp_path / "_kafkalite/tables/t/table.json").read_text())
    assert (table.metadata().id, mark["published"]) == (mark["table_id"], 2)
    assert table.transaction_version(mark["app_id"]) == 2
    newest = table.history(1)[0]
    assert newest["userMetadata"].startswith("kafkalite manifest 2, run ")
    assert newest["kafkalite"]["manifests"][0]["next_offsets"] == {"0": 7}


def test_readers_prune_by_day_and_by_statistics(tmp_path: Path) -> None:
    Destination(tmp_path).load({"t": 4}, days=2)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert len(table.file_uris(file_pruning_predicate=[("day", "=", "2013-01-02")])) == 1
    assert table.to_pyarrow_dataset(file_pruning_predicate=[("day", "=", "2013-01-02")]).count_rows() == 2
    actions = table.get_add_actions(flatten=True).to_struct_array().to_pylist()
    first, second = sorted(actions, key=lambda each: each["path"])
    assert (first["num_records"], first["min.offset"], second["max.offset"]) == (2, 0, 3)
    assert first["max.timestamp"].isoformat() == "2013-01-01T00:00:00.001000+00:00"
    assert second["min.timestamp"].isoformat() == "2013-01-02T00:00:00.002000+00:00"


def test_polars_reads_a_table(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    Destination(tmp_path).load({"t": 4}, days=2)
    frame = polars.read_delta(str(tmp_path / "t"))
    assert sorted(frame["offset"].to_list()) == [0, 1, 2, 3]
    assert sorted({day.isoformat() for day in frame["day"].to_list()}) == ["2013-01-01", "2013-01-02"]


@pytest.mark.parametrize("partition_by", ["none", "hour"])
def test_other_directories_are_other_partition_columns(tmp_path: Path, partition_by: str) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2}, layout={"partition_by": partition_by})
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert table.metadata().partition_columns == ([] if partition_by == "none" else ["day", "hour"])
    assert rows(tmp_path) == [0, 1]
    with pytest.raises(TableError, match=r"partition columns .*, and this run has day"):
        destination.load({"t": 1})


def test_a_file_with_a_cut_name_is_read(tmp_path: Path) -> None:
    topic = "t" * 220
    Destination(tmp_path).load({topic: 2})
    assert any("%" in path.name for path in tmp_path.rglob("*.parquet"))
    assert rows(tmp_path, topic) == [0, 1]


@pytest.mark.parametrize("topic", ["_schemas", ".hidden", "t" * 256])
def test_a_topic_whose_directory_has_a_percent_sign_is_refused(tmp_path: Path, topic: str) -> None:
    with pytest.raises(TableError, match=f"topic {topic} cannot be a Delta table: its directory is .*%"):
        Destination(tmp_path).load({topic: 1})
    assert not (tmp_path / "_kafkalite" / "tables").exists()


# Schemas --------------------------------------------------------------------------------------------------------------


def test_new_columns_grow_the_schema_in_the_commit_of_their_files(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    for schema, row in (
        ("id long", {"id": 1}),
        ("id long, name string", {"id": 2, "name": "b"}),
        ("id long", {"id": 3}),
    ):
        destination.load({"t": 1}, layout={"value": "json", "value_schema": schema}, rows={"t": [row]})
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    found = sorted(table.to_pyarrow_table()["value"].to_pylist(), key=lambda one: one["id"])
    assert found == [{"id": 1, "name": None}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]
    assert table.version() == 2
    texts = [(tmp_path / "t/_delta_log" / name).read_text() for name in destination.log("t")]
    assert [text.count('{"metaData"') for text in texts] == [1, 1, 0]


def test_a_changed_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 1}, layout={"value": "json", "value_schema": "id long"}, rows={"t": [{"id": 1}]})
    before = destination.log("t")
    with pytest.raises(TableError, match=r"topic t: column value\.id is long in the table and string in this run"):
        destination.load({"t": 1}, layout={"value": "json", "value_schema": "id string"})
    assert publish.newest_number(destination.files) == 1
    assert (destination.log("t"), destination.files.names("_kafkalite/staging")) == (before, [])


# Deaths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["first-load", "later-load"])
def test_the_next_run_completes_a_run_that_died_before_any_of_its_changes(tmp_path: Path, first: bool) -> None:
    root = tmp_path / "d"
    root.mkdir()
    if not first:
        Destination(root).load({"t": 2, "u": 1})
    copies = stopped_everywhere(root, lambda destination: destination.load({"t": 4, "u": 2}, days=2))
    assert len(copies) > 10
    behind = 0
    for copy in copies:
        had = committed(copy, "t")
        behind += bool(had) and (not (copy / "t/_delta_log").exists() or rows(copy) != had)
        destination = Destination(copy)
        destination.load({"t": 0, "u": 0})
        assert (rows(copy) if had else []) == had == committed(copy, "t")
        destination.load({"t": 1})
        for topic in "tu":
            assert rows(copy, topic) == committed(copy, topic) if committed(copy, topic) else True
    # Those that died between their manifest and their commit, at any of the moves in between.
    assert behind >= 4


def test_a_destination_that_was_loaded_without_tables_gets_one_with_all_its_files(tmp_path: Path) -> None:
    root = tmp_path / "d"
    destination = Destination(root)
    for _ in range(3):
        destination.load({"t": 2}, table=False)
    assert table_topics(destination.files) == []
    copies = stopped_everywhere(root, lambda each: each.load({"t": 0}))
    for copy in copies:
        Destination(copy).load({"t": 0})
        assert rows(copy) == list(range(6))
        assert len(Destination(copy).log("t")) == 1
        Destination(copy).load({"t": 1}, table=False)
        assert rows(copy) == list(range(7))


def test_manifests_that_only_their_checkpoint_has_are_published(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    for _ in range(3):
        destination.load({"t": 2}, table=False)
    assert folding.fold(destination.files, 0, every=3) == 3
    destination.load({"t": 1})
    assert rows(tmp_path) == list(range(7))


def test_a_run_that_was_paused_before_its_commit_adds_nothing_twice(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2})
    paused = destination.tables()
    paused.recover(1)
    manifest = destination.load({"t": 2})
    assert manifest is not None
    destination.load({"t": 2})
    paused.publish(manifest)
    assert rows(tmp_path) == list(range(6)) and len(destination.log("t")) == 3
    destination.load({"t": 1})
    assert rows(tmp_path) == list(range(7))


def test_a_run_that_was_paused_before_its_first_mark_leaves_the_table_of_another(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    paused = destination.tables()
    paused.recover(0)
    manifest = destination.load({"t": 2})
    assert manifest is not None
    before = mark_of(tmp_path)
    paused.begin({"t"}, manifest.files)
    paused.publish(manifest)
    assert mark_of(tmp_path) == before
    destination.load({"t": 1})
    assert rows(tmp_path) == [0, 1, 2]


def test_a_run_that_was_paused_while_the_table_was_made_again_leaves_it_alone(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    for _ in range(3):
        destination.load({"t": 2})
    paused = destination.tables()
    paused.recover(3)
    manifest = destination.load({"t": 2})
    assert manifest is not None
    resync(destination)
    with pytest.raises(DestinationHeld, match="made the Delta table of topic t again"):
        paused.publish(manifest)
    destination.load({"t": 1})
    assert rows(tmp_path) == list(range(9))


OTHER_WRITER = """
import sys
import deltalake
for number in range(40):
    table = deltalake.DeltaTable(sys.argv[1])
    table.alter.set_table_properties({"delta.logRetentionDuration": f"interval {number + 1} days"})
"""


def test_another_writer_commits_all_the_time(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2})
    other = subprocess.Popen([sys.executable, "-c", OTHER_WRITER, str(tmp_path / "t")])
    for _ in range(20):
        destination.load({"t": 2})
    assert other.wait(PATIENCE_S) == 0
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert rows(tmp_path) == list(range(42))
    assert (table.version(), table.transaction_version(mark_of(tmp_path)["app_id"])) == (60, 21)
    assert table.metadata().configuration["delta.logRetentionDuration"] == "interval 40 days"


def test_another_writer_takes_the_version_in_between(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2})
    tables = destination.tables()
    tables.recover(1)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 7 days"})
    table.alter.add_columns([deltalake.Field("note", "string", nullable=True)])
    manifest = destination.load({"t": 2}, layout={})
    assert manifest is not None
    tables.publish(manifest)
    found = deltalake.DeltaTable(str(tmp_path / "t"))
    assert rows(tmp_path) == [0, 1, 2, 3]
    # What the other has changed stays.
    assert "note" in [field.name for field in found.schema().fields]
    assert found.metadata().configuration["delta.logRetentionDuration"] == "interval 7 days"


# The log --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
def test_the_state_is_read_from_a_checkpoint_and_the_commits_after_it(tmp_path: Path, parts: int) -> None:
    destination = Destination(tmp_path)
    for _ in range(4):
        destination.load({"t": 2})
    assert write_checkpoint(destination.files, "t") is None
    log = tmp_path / "t/_delta_log"
    if parts > 1:
        whole = log / f"{3:020d}.checkpoint.parquet"
        table = pq.read_table(whole)
        at = [0, 2, 4, table.num_rows]
        for part in range(parts):
            name = f"{3:020d}.checkpoint.{part + 1:010d}.{parts:010d}.parquet"
            pq.write_table(table.slice(at[part], at[part + 1] - at[part]), log / name)
        whole.unlink()
        # One that lacks a part does not count.
        pq.write_table(table, log / f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet")
    for name in destination.log("t"):
        (log / name).unlink()
    state = DeltaLog(destination.files, "t").read()
    assert state is not None and (state.version, state.checkpoint_version) == (3, 3)
    assert state.transactions == {mark_of(tmp_path)["app_id"]: 4}
    if parts > 1:
        return
    destination.load({"t": 2}, layout={"value": "bytes"})
    assert rows(tmp_path) == list(range(10))
    assert len(DeltaLog(destination.files, "t").read_files()[0]) == 5


def test_a_checkpoint_that_does_not_come_in_time_is_a_reason(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 2})
    assert write_checkpoint(destination.files, "t", deadlines_s=(0.0, 0.0)) == (
        "deltalake did not write it within 0 s nor within 0 s"
    )
    problem = write_checkpoint(destination.files, "u")
    assert problem is not None and problem.startswith("deltalake: ")


def test_a_due_checkpoint_that_is_not_written_is_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = Destination(tmp_path)
    monkeypatch.setattr(table_checkpoints, "find_spec", lambda _: None)
    for count, due in ((9, False), (1, True)):
        for _ in range(count):
            destination.load({"t": 1})
        tables = destination.tables()
        tables.recover(publish.newest_number(destination.files))
        summary: dict[str, Any] = {"tables": {}, "not_checkpointed": {}}
        table_checkpoints.add_tables(summary, destination.files, tables)
        assert list(summary["not_checkpointed"]) == (["t"] if due else [])
    assert summary["tables"] == {"t": {"version": 9, "manifest": 10, "published": False}}
    assert summary["not_checkpointed"]["t"] == (
        "10 commits after its last one: deltalake writes them, and is not installed: pip install 'deltalake>=1.6'"
    )


def test_a_listing_takes_complete_checkpoints_only() -> None:
    names = [f"{n:020d}.json" for n in range(5)]
    assert Listing.of(names).to_read == (0, 1, 2, 3, 4)
    names += [f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet", "_last_checkpoint", f".{4:020d}.json.tmp"]
    assert Listing.of(names).checkpoint is None
    names.append(f"{2:020d}.checkpoint.{2:010d}.{2:010d}.parquet")
    assert (Listing.of(names).checkpoint, Listing.of(names).to_read, len(Listing.of(names).parts)) == (2, (3, 4), 2)
    assert Listing.of([f"{2:020d}.checkpoint.parquet"]).version == 2
    assert Listing.of([]).version is None


COMMITTER = """
import sys
from pathlib import Path
from typing import Any
from tests.unit.jobs.tables.table_runs import Destination
Destination(Path(sys.argv[1])).load({"t": 200}, days=20)
"""


@pytest.mark.parametrize("kills", [30 if SOAK else 3])
def test_a_process_killed_at_any_moment_leaves_a_whole_table(tmp_path: Path, kills: int) -> None:
    import random

    from tests.paths import PROJECT
    from tests.seeds import SEED

    chance = random.Random(SEED)
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", COMMITTER, str(tmp_path)], cwd=PROJECT)
        try:
            child.wait(chance.uniform(0.3, 3.0))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    destination = Destination(tmp_path)
    destination.load({"t": 1})
    assert rows(tmp_path) == committed(tmp_path, "t")


def test_the_tables_of_a_destination_are_its_marks(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    destination.load({"t": 1, "u": 1})
    (tmp_path / "_kafkalite/tables/v").mkdir()
    assert table_topics(destination.files) == ["t", "u"]
    assert DeltaTables(destination.files, columns_of).tables == {}
