"""What the load job accounts for, bounds and marks: offsets, files, backlogs, complete and late directories."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.jobs.load import load_run, load_source
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark import read_published
from tests.patience import PATIENCE_S

from .job_runs import BY_TASKS, data_files, failure, load, manifests, values
from .topics import Topics

pytestmark = [pytest.mark.any_spark]

NEW_YEAR = datetime(2013, 1, 1, tzinfo=UTC)


def ms(hour: int, minute: int = 0) -> int:
    return int(NEW_YEAR.replace(hour=hour, minute=minute).timestamp() * 1000)


class DroppingReader(load_source.LoadReader):
    """A reader that loses the first record of every task."""

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = super()._rows(partition)
        yield next(batches).slice(1)
        yield from batches


class DroppingSource(load_source.LoadSource):
    """What makes one."""

    reader_type = DroppingReader


@pytest.mark.parametrize("way", [(), BY_TASKS], ids=["in the driver", "by tasks"])
def test_a_record_that_the_reader_drops_is_seen(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    topic = topics.new()
    topics.fill(topic, range(10))
    monkeypatch.setattr(load_source, "LoadSource", DroppingSource)
    # Spark's workers do not have this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), *way)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert (
        f"{topic}-0: offsets 0 to 9 were planned, which are 10; accounted for are 9 records (10 in the log)" in refused
    )
    assert "1 are missing; nothing was published" in refused
    assert (manifests(tmp_path), data_files(tmp_path)) == ([], [])
    # The run has dropped what it had staged.
    assert list((tmp_path / "_kafkalite" / "staging").iterdir()) == []


def test_every_offset_of_a_range_is_accounted_for(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(2)
    topics.fill(topic, ["x"] * 6, 0, key=b"k", timestamp_ms=ms(7))
    topics.fill(topic, ["y"] * 3, 1, timestamp_ms=ms(9))
    topics.admin.delete_records({TopicPartition(topic, 0): 2})
    load(topics, topic, tmp_path)
    topics.fill(topic, ["z"] * 4, 0, timestamp_ms=ms(8))
    topics.admin.delete_records({TopicPartition(topic, 0): 8})
    load(topics, topic, tmp_path, "--on-out-of-range", "earliest")
    first, second = (manifest["ranges"] for manifest in manifests(tmp_path))
    none = {"lost": 0, "control": 0, "aborted": 0, "removed": 0, "quarantined": 0, "late": 0}
    assert first == [
        {"topic": topic, "partition": 0, "start": 2, "next_offset": 6, "records": 4, "size_bytes": 8}
        | none
        | {"min_timestamp": ms(7), "max_timestamp": ms(7)},
        {"topic": topic, "partition": 1, "start": 0, "next_offset": 3, "records": 3, "size_bytes": 3}
        | none
        | {"min_timestamp": ms(9), "max_timestamp": ms(9)},
    ]
    (second_range,) = second
    assert {name: second_range[name] for name in ("start", "next_offset", "lost", "records")} == {
        "start": 6,
        "next_offset": 10,
        "lost": 2,
        "records": 2,
    }


def test_small_partitions_share_a_file_and_large_ones_are_cut(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new(3)
    for partition in range(3):
        topics.fill(topic, [f"{partition}-{number}" for number in range(20)], partition, timestamp_ms=ms(7))
    load(topics, topic, tmp_path / "shared")
    (manifest,) = manifests(tmp_path / "shared")
    (file,) = manifest["files"]
    assert file["final"] == f"{topic}/day=2013-01-01/{topic}-load-{manifest['run']}-0-1.parquet"
    assert [(each["partition"], each["first"], each["last"], each["rows"]) for each in file["offsets"]] == [
        (partition, 0, 19, 20) for partition in range(3)
    ]
    load(topics, topic, tmp_path / "cut", "--file-size", "100")
    assert len(data_files(tmp_path / "cut")) > 3
    assert values(spark, tmp_path / "cut") == values(spark, tmp_path / "shared")


def test_orc_holds_the_same_records(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new(2)
    topics.fill(topic, [b"\x00\xff".decode("latin-1"), "b"], 0, timestamp_ms=ms(7), headers=[("h", b"\x01")])
    topics.fill(topic, ["c"], 1, timestamp_ms=ms(7))
    load(topics, topic, tmp_path / "parquet")
    load(topics, topic, tmp_path / "other", "--format", "orc", "--codec", "zlib")
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    wanted, found = (
        read_published(spark, str(tmp_path / name), check_counts=True).select(columns).orderBy("partition", "offset")
        for name in ("parquet", "other")
    )
    assert found.collect() == wanted.collect()


def test_a_backlog_is_worked_off_in_bounded_runs(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new(2)
    for partition in range(2):
        topics.fill(topic, [f"{partition}-{number}" for number in range(30)], partition, timestamp_ms=ms(7))
    first = load(topics, topic, tmp_path, "--max-records", "20")
    assert (first["records"], first["more"], first["completed"]) == (20, True, [])
    # In rounds: of a run that is bounded by time, one at least.
    second = load(topics, topic, tmp_path, "--max-bytes", "300", "--max-minutes", "0")
    assert 0 < second["records"] < 40
    assert second["more"]
    last = load(topics, topic, tmp_path)
    assert (last["more"], last["completed"]) == (False, [f"{topic}/day=2013-01-01"])
    assert values(spark, tmp_path) == sorted(f"{partition}-{number}" for partition in range(2) for number in range(30))


def test_late_records_go_where_they_are_told(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new()
    day = f"{topic}/day=2013-01-01"
    arguments = ("--partition-by", "hour")
    topics.fill(topic, ["early"], timestamp_ms=ms(7))
    assert load(topics, topic, tmp_path, *arguments)["completed"] == [f"{day}/hour=07"]
    assert (tmp_path / day / "hour=07" / "_SUCCESS").exists()
    topics.fill(topic, ["late"], timestamp_ms=ms(7, 30))
    summary = load(topics, topic, tmp_path, *arguments, "--late", "late-dir")
    assert (summary["late_records"], summary["completed"]) == (1, [])
    assert [str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob(f"{topic}/_late/**/*.parquet")] == [
        f"{topic}/_late/day=2013-01-01/hour=07"
    ]
    assert manifests(tmp_path)[-1]["ranges"][0]["late"] == 1
    topics.fill(topic, ["later"], timestamp_ms=ms(7, 45))
    assert load(topics, topic, tmp_path, *arguments)["late_records"] == 1
    topics.fill(topic, ["last"], timestamp_ms=ms(7, 50))
    load(topics, topic, tmp_path, *arguments, "--late", "reopen")
    assert manifests(tmp_path)[-1]["reopened"] == manifests(tmp_path)[-1]["completed"] == [f"{day}/hour=07"]
    assert values(spark, tmp_path) == ["early", "last", "late", "later"]


def test_what_is_loaded_in_the_driver_is_what_tasks_load(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new(3)
    topics.fill(topic, ["a", "b"], 0, timestamp_ms=ms(7), headers=[("h", b"1"), ("n", None)], key=b"k")
    topics.fill(topic, ["c"], 0, timestamp_ms=ms(9))
    topics.producer.send(topic, None, key=b"t", partition=1, timestamp_ms=ms(7)).result(PATIENCE_S)
    topics.fill(topic, ["x" * 3000] * 20, 2, timestamp_ms=ms(8))
    asked = ("--partition-by", "hour", "--time-zone", "Asia/Kolkata", "--codec", "zstd", "--file-size", "30k")
    for name, way in (("driver", ()), ("tasks", BY_TASKS)):
        load(topics, topic, tmp_path / name, *asked, *way)
    ours, tasks = (manifests(tmp_path / name)[0] for name in ("driver", "tasks"))
    assert [ours["ranges"], ours["records"], ours["layout"]] == [tasks["ranges"], tasks["records"], tasks["layout"]]
    files = [
        [(file["final"].replace(each["run"], "RUN"), file["offsets"]) for file in each["files"]]
        for each in (ours, tasks)
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 4
    for file in ours["files"]:
        path = tmp_path / "driver" / file["final"]
        assert path.stat().st_size == file["size_bytes"]
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    frames = [read_published(spark, str(tmp_path / name), check_counts=True) for name in ("driver", "tasks")]
    assert frames[0].schema == frames[1].schema
    rows = [frame.orderBy("partition", "offset").collect() for frame in frames]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 24


def test_a_run_loads_what_its_plan_names_which_is_written_down_before_it_reads(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new()
    topics.fill(topic, ["a", "b"], timestamp_ms=ms(7))
    plans: list[Any] = []

    def more_comes(point: str) -> None:
        (written,) = (tmp_path / "_kafkalite" / "staging").glob("*/plan.json")
        plans.append(json.loads(written.read_text())["ranges"])
        topics.fill(topic, ["c"], timestamp_ms=ms(7))

    monkeypatch.setattr(load_run, "fault_point", more_comes)
    assert load(topics, topic, tmp_path)["records"] == 2
    assert load(topics, topic, tmp_path)["records"] == 1
    assert [[(each["start"], each["until"]) for each in ranges] for ranges in plans] == [[(0, 2)], [(2, 3)]]
    assert [each["ranges"][0]["next_offset"] for each in manifests(tmp_path)] == [2, 3]


def test_the_same_records_make_the_same_files_whenever_they_are_loaded(topics: Topics, tmp_path: Path) -> None:
    """Also where a run before has failed: files are made by offsets and record times, by no clock."""
    topic = topics.new(2)
    for hour in (7, 8, 9):
        # Larger than a file may be, in however many batches they are sent.
        topics.fill(topic, [f"{number} {hour}" + "-" * 100 for number in range(30)], 0, timestamp_ms=ms(hour))
    topics.fill(topic, ["y"] * 3, 1, timestamp_ms=ms(7))
    found = []
    for name in ("first", "second"):
        load(topics, topic, tmp_path / name, "--partition-by", "hour", "--file-size", "1k")
        files = {path: (tmp_path / name / path).read_bytes() for path in data_files(tmp_path / name)}
        found.append(files)
    assert found[0] == found[1]
    assert len(found[0]) > 4


def test_a_topic_that_goes_quiet_leaves_no_file_unfinished(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    """Loaders that end a file with the next record of it kept the last ones of a quiet topic in temporary files."""
    topic = topics.new()
    topics.fill(topic, ["last"], timestamp_ms=int(time.time() * 1000))
    load(topics, topic, tmp_path, "--partition-by", "hour")
    assert values(spark, tmp_path) == ["last"]
    found = sorted(path.name for path in (tmp_path / topic).rglob("*") if path.is_file())
    assert found == [f"{topic}-0-{0:020d}-{0:020d}.parquet"]
    assert list((tmp_path / "_kafkalite" / "staging").iterdir()) == []


def test_an_hour_that_is_not_over_is_not_complete(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(message_timestamp_after_max_ms=str(2**62))
    topics.fill(topic, ["now"])
    topics.fill(topic, ["in 2099"], timestamp_ms=int(datetime(2099, 1, 1, tzinfo=UTC).timestamp() * 1000))
    summary = load(topics, topic, tmp_path, "--partition-by", "hour", "--grace", "1h")
    assert summary["completed"] == []
    assert len(manifests(tmp_path)[-1]["topics"][topic]["open_directories"]) == 2


def test_topics_of_a_pattern_are_loaded_each_with_its_own_options(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    plain, orc = topics.new(name="many-plain"), topics.new(name="many-orc")
    for topic in (plain, orc):
        topics.fill(topic, [topic], timestamp_ms=ms(7))
    config = tmp_path / "topics.toml"
    config.write_text('[topics.".*-orc"]\nformat = "orc"\npartition-by = "none"\n')
    pattern = f"{plain.removesuffix('many-plain').rpartition('-')[0].rpartition('-')[0]}-.*-many-.*"
    arguments = ("--topic-pattern", pattern, "--topic-config", str(config))
    summary = load(topics, "", tmp_path / "to", *arguments)
    assert summary["records"] == 2
    assert values(spark, tmp_path / "to") == sorted([plain, orc])
    finals = {file["topic"]: file["final"] for file in manifests(tmp_path / "to")[0]["files"]}
    assert finals[orc].endswith(".orc")
    assert finals[orc].count("/") == 1
    assert "/day=2013-01-01/" in finals[plain]
    # What is new and matches is found by the next run.
    third = topics.new(name="many-more")
    topics.fill(third, ["third"], timestamp_ms=ms(7))
    assert load(topics, "", tmp_path / "to", *arguments)["records"] == 1


def test_a_dry_run_says_what_it_would_do_and_does_nothing(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, ["a", "b"])
    asked = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(tmp_path), "--dry-run"]
    result = CliRunner().invoke(hadoop_load.main, asked)
    assert result.exit_code == 0, result.output
    assert f"{topic}-0[0, 2): 2 offsets\nwould load 2 offsets, about " in result.output
    plan = json.loads(CliRunner().invoke(hadoop_load.main, [*asked, "--json"]).output.splitlines()[-1])
    assert plan["ranges"] == [{"topic": topic, "partition": 0, "start": 0, "until": 2}]
    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_run_are_written_for_a_node_exporter(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, ["a", "b"])
    file = tmp_path / "load.prom"
    load(topics, topic, tmp_path / "to", "--metrics-file", str(file))
    assert f'kafkalite_load_records{{destination="{tmp_path}/to"}} 2\n' in file.read_text()
    assert f'kafkalite_load_success{{destination="{tmp_path}/to"}} 1\n' in file.read_text()
    failure(
        hadoop_load, topics, "--topic", "no-such-topic", "--destination", f"{tmp_path}/to", "--metrics-file", str(file)
    )
    assert f'kafkalite_load_success{{destination="{tmp_path}/to"}} 0\n' in file.read_text()
    assert "kafkalite_load_records" not in file.read_text()


def test_settings_of_parquets_are_left_to_sparks_writer(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    """As those of encryption: what Arrow writes does not know them."""
    topic = topics.new()
    topics.fill(topic, ["a", "b"], timestamp_ms=ms(7))
    load(topics, topic, tmp_path / "arrow")
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set("parquet.block.size", "1048576")
    try:
        load(topics, topic, tmp_path / "spark")
    finally:
        configuration.unset("parquet.block.size")
    made = [
        pq.ParquetFile(tmp_path / name / data_files(tmp_path / name)[0]).metadata.created_by
        for name in ("arrow", "spark")
    ]
    assert ["arrow" in each for each in made] == [True, False], made
    arrow, own = (read_published(spark, str(tmp_path / name)) for name in ("arrow", "spark"))
    assert arrow.schema == own.schema
    assert arrow.orderBy("offset").collect() == own.orderBy("offset").collect()
