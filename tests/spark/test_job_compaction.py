"""Merged files hold what the others held, whoever reads them and whenever, in every format that is merged.

``KAFKALITE_SOAK=1`` also merges other formats than Parquet, and kills and pauses compactions.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import Row, SparkSession

from spark_kafkalite.jobs import compact
from spark_kafkalite.jobs.compaction import compaction
from spark_kafkalite.jobs.compaction.merge_planning import Merge, MergeBounds, plan_merges
from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.manifest import Manifest
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.spark import read_published
from tests.seeds import SOAK

from .job_processes import JobProcess, await_stopped, wake
from .job_runs import DAY_MS, NEW_YEAR_MS, data_files, load, manifests, run_alone
from .topics import Topics

pytestmark = pytest.mark.any_spark

NOW = ("--min-files", "2", "--older-than", "0s")


def load_twice(topics: Topics, destination: Path, *arguments: str) -> str:
    """Load two partitions over two days in two runs: two files in each day."""
    topic = topics.new(2)
    for part in range(2):
        for partition in (1, 0):
            for day in range(2):
                values = [f"{part}{partition}{day}{number}" for number in range(3)]
                times = {"timestamp_ms": NEW_YEAR_MS + day * DAY_MS + part}
                topics.fill(topic, values, partition, key=b"k", headers=[("h", b"1")], **times)
        load(topics, topic, destination, *arguments)
    return topic


def rows(spark: SparkSession, destination: Path) -> list[Row]:
    return sorted(read_published(spark, str(destination)).collect(), key=lambda row: (row.partition, row.offset))


def test_merged_files_hold_the_same_records_in_order(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = load_twice(topics, tmp_path)
    before, olds = rows(spark, tmp_path), data_files(tmp_path)
    assert (len(before), len(olds)) == (24, 4)
    waiting = run_alone(compact, "--destination", str(tmp_path), "--min-files", "2", "--older-than", "1h")
    assert (waiting["merges"], waiting["waiting"]) == (
        [],
        [f"{topic}/day=2013-01-01", f"{topic}/day=2013-01-02"],
    )
    summary = run_alone(compact, "--destination", str(tmp_path), *NOW)
    assert (summary["replaced_files"], summary["records"], len(summary["manifests"])) == (4, 24, 1)
    merged = data_files(tmp_path)
    name = manifests(tmp_path)[-1]["run"]
    assert merged == [f"{topic}/day=2013-01-0{day}/{topic}-compact-{name}-{day}.parquet" for day in (1, 2)]
    assert rows(spark, tmp_path) == before
    places = pq.read_table(tmp_path / merged[0], columns=["partition", "offset"], partitioning=None).to_pylist()
    assert len(places) == 12
    assert places == sorted(places, key=lambda each: (each["partition"], each["offset"]))
    # What was merged is kept, and plain readers do not find it.
    assert sorted(str(p.relative_to(tmp_path / f"_kafkalite/replaced/{name}"))
                  for p in (tmp_path / "_kafkalite/replaced").rglob("*.parquet")) == olds  # fmt: skip
    assert spark.read.parquet(str(tmp_path / topic)).count() == 24
    # The next load goes on, and what it adds can be merged with what was merged.
    topics.fill(topic, ["new"], 0, timestamp_ms=NEW_YEAR_MS)
    assert load(topics, topic, tmp_path)["records"] == 1
    again = run_alone(compact, "--destination", str(tmp_path), *NOW, "--keep-replaced", "0s")
    assert (again["replaced_files"], again["records"], len(again["deleted_runs"])) == (2, 13, 2)
    assert len(rows(spark, tmp_path)) == 25
    assert read_published(spark, str(tmp_path), check_counts=True).count() == 25


class DyingFiles(LocalFiles):
    """A directory whose owner dies before its n-th move of a file."""

    def __init__(self, root: Path, moves: int) -> None:
        super().__init__(root)
        self.moves_left = moves

    def rename_new(self, source: str, target: str) -> None:
        if self.moves_left == 0:
            raise KeyboardInterrupt
        self.moves_left -= 1
        super().rename_new(source, target)


def planned(files: LocalFiles) -> tuple[tuple[Merge, ...], Manifest]:
    newest = publish.recover(files).newest
    assert newest is not None
    published = published_files(publish.manifests(files))
    return plan_merges(published, MergeBounds(2), lambda *_: True).merges, newest


def test_readers_see_all_records_wherever_the_swap_stops(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = load_twice(topics, tmp_path)
    before = rows(spark, tmp_path)
    merges, newest = planned(LocalFiles(tmp_path))
    files = DyingFiles(tmp_path, 0)
    with pytest.raises(KeyboardInterrupt):
        compaction.compact(spark, files, merges, newest)
    # Four old files leave, then two merged ones come.
    for moves in (0, 2, 2, 1):
        files.moves_left = moves
        with pytest.raises(KeyboardInterrupt):
            publish.recover(files)
        assert rows(spark, tmp_path) == before, f"after {moves} more moves"
        listed = list((tmp_path / topic).rglob("*.parquet"))
        offsets = [(row.partition, row.offset) for path in listed for row in spark.read.parquet(str(path)).collect()]
        assert len(offsets) == len(set(offsets))
    publish.recover(LocalFiles(tmp_path))
    assert rows(spark, tmp_path) == before
    assert len(data_files(tmp_path)) == 2


if SOAK:

    def test_orc_is_merged(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
        topic = load_twice(topics, tmp_path, "--partition-by", "none", "--format", "orc")
        before = rows(spark, tmp_path)
        assert run_alone(compact, "--destination", str(tmp_path), "--topic", topic, *NOW)["records"] == 24
        (merged,) = (path.name for path in (tmp_path / topic).iterdir() if path.name.startswith(topic))
        assert merged.endswith("-1.orc")
        assert rows(spark, tmp_path) == before

    def test_files_with_a_record_twice_are_not_merged(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
        load_twice(topics, tmp_path)
        merges, newest = planned(LocalFiles(tmp_path))
        first = tmp_path / merges[0].files[0].final
        table = pq.read_table(first, partitioning=None, coerce_int96_timestamp_unit="us")
        # As many records, and the first and last are the same.
        doubled = table.take([0, 0, *range(2, table.num_rows)])
        pq.write_table(doubled, first)
        for left in tmp_path.rglob(".*.crc"):
            left.unlink()
        result = CliRunner().invoke(compact.main, ["--destination", str(tmp_path), *NOW])
        assert result.exit_code == 4
        assert "so some occur twice; nothing was merged" in result.output
        assert "Traceback" not in result.output
        assert publish.newest_manifest(LocalFiles(tmp_path)) == newest

    # Four files leave and two come.
    @pytest.mark.parametrize(
        ("fault", "is_committed"),
        [
            ("compaction:kill:1", False),
            ("staged:kill", False),
            ("manifest:kill", True),
            ("compaction:kill:2", True),
            ("compaction:kill:5", True),
            ("moved-one:kill:1", True),
            ("moved-one:kill:2", True),
        ],
    )
    def test_a_compaction_that_is_killed_is_completed_or_dropped(
        topics: Topics, spark: SparkSession, tmp_path: Path, fault: str, is_committed: bool
    ) -> None:
        destination = tmp_path / "d"
        topic = load_twice(topics, destination)
        before = rows(spark, destination)
        with JobProcess(
            tmp_path, "compact", "--destination", str(destination), *NOW, "--lease", "1s", fault=fault
        ) as killed:
            assert killed.wait() == -9, killed.process.tail()
        # Nobody has recovered it yet.
        assert rows(spark, destination) == before
        assert (manifests(destination)[-1]["kind"] == "compact") is is_committed
        assert load(topics, topic, destination)["records"] == 0
        assert rows(spark, destination) == before
        assert len(data_files(destination)) == (2 if is_committed else 4)
        again = run_alone(compact, "--destination", str(destination), *NOW)
        assert again["replaced_files"] == (0 if is_committed else 4)
        assert rows(spark, destination) == before
        assert spark.read.parquet(str(destination / topic)).count() == len(before)

    @pytest.mark.parametrize(
        ("fault", "code"),
        [("compaction:stop:1", 6), ("staged:stop", 6), ("compaction:stop:3", 0), ("moved-one:stop", 0)],
    )
    def test_a_compaction_that_was_paused_for_too_long_ends_as_its_manifest_says(
        topics: Topics, spark: SparkSession, tmp_path: Path, fault: str, code: int
    ) -> None:
        destination = tmp_path / "d"
        load_twice(topics, destination)
        before = rows(spark, destination)
        with JobProcess(
            tmp_path, "compact", "--destination", str(destination), *NOW, "--lease", "1s", fault=fault
        ) as paused:
            pid = await_stopped(destination, paused)
            taken_over = run_alone(compact, "--destination", str(destination), *NOW)
            assert taken_over["replaced_files"] == (4 if code else 0)
            assert rows(spark, destination) == before
            wake(pid)
            assert paused.wait() == code, paused.process.tail()
        assert rows(spark, destination) == before
        assert len(data_files(destination)) == 2
