"""The jobs on the session of the tests; what spark-submit adds is the demo's to show."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import audit, hadoop_load, replay, stream
from spark_kafkalite.jobs.copying import time_counts
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark import read_published

from .job_runs import BY_TASKS, DAY_MS, NEW_YEAR_MS, data_files, failure, load, manifests, run, values
from .topics import Topics


@pytest.mark.parametrize(
    "way", [(), pytest.param(BY_TASKS, marks=pytest.mark.versions)], ids=["in the driver", "by tasks"]
)
def test_load_is_incremental_and_repeating_it_changes_nothing(
    topics: Topics, spark: SparkSession, tmp_path: Path, way: tuple[str, ...]
) -> None:
    topic = topics.new(2)
    topics.fill(topic, ["a", "b", "c"], 0, timestamp_ms=NEW_YEAR_MS, headers=[("h", b"1")], key=b"k")
    topics.fill(topic, ["d"], 1, timestamp_ms=NEW_YEAR_MS + DAY_MS)
    first = load(topics, topic, tmp_path, *way)
    assert (first["records"], first["files"]) == (4, 2)
    assert data_files(tmp_path) == [
        f"{topic}/day=2013-01-01/{topic}-0-{0:020d}-{2:020d}.parquet",
        f"{topic}/day=2013-01-02/{topic}-1-{0:020d}-{0:020d}.parquet",
    ]
    assert load(topics, topic, tmp_path, *way)["records"] == 0
    topics.fill(topic, ["e"], 0, timestamp_ms=NEW_YEAR_MS)
    assert load(topics, topic, tmp_path, *way)["records"] == 1
    assert values(spark, tmp_path) == ["a", "b", "c", "d", "e"]
    published = read_published(spark, str(tmp_path))
    assert published.columns[-2:] == ["day", "hour"]
    assert published.drop("day", "hour").schema == topics.read(topic, includeHeaders="true").schema
    row = published.where("value = X'61'").first()
    assert row is not None
    assert (bytes(row.key), row.offset, [(h.key, bytes(h.value)) for h in row.headers]) == (b"k", 0, [("h", b"1")])


def test_load_by_hour_of_several_topics(topics: Topics, tmp_path: Path) -> None:
    one, two = topics.new(), topics.new()
    topics.fill(one, ["a"], timestamp_ms=NEW_YEAR_MS + 5 * 3_600_000)
    topics.fill(two, ["b"], timestamp_ms=NEW_YEAR_MS)
    load(topics, f"{one},{two}", tmp_path, "--partition-by", "hour")
    assert data_files(tmp_path) == [
        f"{one}/day=2013-01-01/hour=05/{one}-0-{0:020d}-{0:020d}.parquet",
        f"{two}/day=2013-01-01/hour=00/{two}-0-{0:020d}-{0:020d}.parquet",
    ]


@pytest.mark.any_spark
def test_an_unfinished_run_is_dropped_and_its_records_are_loaded(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    topics.fill(topic, ["a"], timestamp_ms=NEW_YEAR_MS)
    LocalFiles(tmp_path).write_new("_kafkalite/staging/dead/data/half-written", "x")
    summary = load(topics, topic, tmp_path)
    assert (summary["discarded_runs"], summary["records"]) == (["dead"], 1)
    assert values(spark, tmp_path) == ["a"]


@pytest.mark.any_spark
def test_recover_finishes_a_committed_run_and_loads_nothing(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    topics.fill(topic, ["a"], timestamp_ms=NEW_YEAR_MS)
    load(topics, topic, tmp_path)
    # As a crash right after the commit leaves it: the file still staged.
    (manifest_path,) = (tmp_path / "_kafkalite" / "manifests").glob("*.json")
    (file,) = json.loads(manifest_path.read_text())["files"]
    staged = tmp_path / file["staged"]
    staged.parent.mkdir(parents=True)
    (tmp_path / file["final"]).rename(staged)
    topics.fill(topic, ["b"], timestamp_ms=NEW_YEAR_MS)
    with pytest.raises(FileNotFoundError):
        read_published(spark, str(tmp_path))
    summary = load(topics, topic, tmp_path, "--recover")
    assert (summary["recovered_files"], summary["records"], summary["discarded_runs"]) == (1, 0, [])
    assert values(spark, tmp_path) == ["a"]


@pytest.mark.any_spark
def test_load_says_what_is_wrong_in_one_line(topics: Topics, tmp_path: Path) -> None:
    output = failure(hadoop_load, topics, "--topic", "absent", "--destination", str(tmp_path))
    assert "absent" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_replay_into_files_from_a_time(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new()
    for day, value in enumerate("abc"):
        topics.fill(topic, [value], timestamp_ms=NEW_YEAR_MS + day * DAY_MS)
    arguments = ("--topic", topic, "--from-timestamp", "2013-01-02T00:00:00Z", "--to-timestamp", "2013-01-03")
    assert run(replay, topics, *arguments, "--destination", str(tmp_path / "out"))["records"] == 1
    assert values(spark, tmp_path / "out") == ["b"]
    again = failure(replay, topics, *arguments, "--destination", str(tmp_path / "out"))
    assert "already holds published files" in again


def out_of_order(topics: Topics) -> str:
    """Return a topic of which one record of January 2nd is late, and one of the 1st is among those of the 2nd."""
    topic = topics.new()
    for day, value in ((0, "a"), (1, "b"), (0, "late a"), (1, "c"), (2, "d"), (1, "late b"), (2, "e")):
        topics.fill(topic, [value], timestamp_ms=NEW_YEAR_MS + day * DAY_MS)
    return topic


SECOND_OF_JANUARY = ("--from-timestamp", "2013-01-02", "--to-timestamp", "2013-01-03")


def test_an_exact_time_range_has_all_of_its_records_and_no_others(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    source, target = out_of_order(topics), topics.new()
    arguments = ("--topic", source, *SECOND_OF_JANUARY)
    exact = (*arguments, "--exact-time")
    assert run(replay, topics, *exact, "--to-topic", target)["records"] == 3
    assert topics.values(target) == ["b", "c", "late b"]
    assert run(replay, topics, *exact, "--destination", str(tmp_path / "exact"))["records"] == 3
    assert values(spark, tmp_path / "exact") == ["b", "c", "late b"]
    (found,) = manifests(tmp_path / "exact")[-1]["ranges"]
    assert (found["start"], found["next_offset"], found["records"], found["outside"]) == (1, 7, 3, 3)
    audited = run(audit, topics, "--destination", str(tmp_path / "exact"))
    assert (audited["mismatches"], audited["not_compared"]) == ([], [])
    assert run(replay, topics, *arguments, "--to-topic", target)["records"] == 3
    assert topics.values(target)[3:] == ["b", "late a", "c"]


def test_a_replay_by_time_says_how_many_records_are_not_of_its_range(topics: Topics, tmp_path: Path) -> None:
    source = out_of_order(topics)
    arguments = ("--topic", source, *SECOND_OF_JANUARY, "--destination", str(tmp_path / "out"))
    shown = run(replay, topics, *arguments, "--dry-run")
    numbers = ("records_in_time", "records_outside", "records_behind", "counted")
    assert [shown[name] for name in numbers] == [2, 1, 1, True]
    exact = run(replay, topics, *arguments, "--dry-run", "--exact-time")
    assert [exact[name] for name in numbers] == [3, 3, 0, True]
    result = CliRunner().invoke(replay.main, ["--bootstrap-server", topics.bootstrap, *arguments])
    assert (
        "1 of these 3 records are outside of the time range, and 1 records of the range lie behind them; see "
        "--exact-time"
    ) in result.stderr


def test_a_large_log_is_estimated_from_pieces_of_it(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = out_of_order(topics)
    arguments = ("--topic", source, *SECOND_OF_JANUARY, "--destination", str(tmp_path / "out"), "--dry-run")
    monkeypatch.setattr(time_counts, "COUNTED_BYTES", 1)
    shown = run(replay, topics, *arguments)
    # There are as many pieces as records, so the estimate is right.
    assert [shown[name] for name in ("records_in_time", "records_outside", "records_behind", "counted")] == [
        2,
        1,
        1,
        False,
    ]
    said = CliRunner().invoke(replay.main, ["--bootstrap-server", topics.bootstrap, *arguments]).output
    assert "about 1 of these about 3 records are outside of the time range, and about 1 records of the range" in said


def test_replay_into_a_topic_keeps_records_and_partitions(topics: Topics) -> None:
    source, target = topics.new(2), topics.new(2)
    topics.fill(source, ["a", "b"], 0, timestamp_ms=NEW_YEAR_MS, headers=[("h", b"1")])
    topics.fill(source, ["c"], 1, timestamp_ms=NEW_YEAR_MS + 7)
    offsets = json.dumps({"0": 1, "1": 0})
    assert run(replay, topics, "--topic", source, "--from-offsets", offsets, "--to-topic", target)["records"] == 2
    rows = topics.read(target, includeHeaders="true").orderBy("partition").collect()
    assert [(row.partition, bytes(row.value)) for row in rows] == [(0, b"b"), (1, b"c")]
    assert [int(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000) for row in rows] == [NEW_YEAR_MS, NEW_YEAR_MS + 7]
    assert rows[0].headers[0].key == "h"
    # As its help says: a topic has no commit that would tell a second run from the first.
    run(replay, topics, "--topic", source, "--from-offsets", offsets, "--to-topic", target)
    assert topics.values(target) == ["b", "b", "c", "c"]


@pytest.mark.any_spark
def test_replay_of_offsets_that_are_not_there_fails(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, ["a"])
    arguments = ("--topic", topic, "--from-offsets", '{"0": 5}', "--destination", str(tmp_path))
    assert "--from-offsets 5 is not in the log, which holds offsets 0 to 1" in failure(replay, topics, *arguments)


@pytest.mark.any_spark
def test_replay_of_offsets_that_leave_a_partition_out_fails(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(2)
    for partition in range(2):
        topics.fill(topic, ["a", "b"], partition)
    arguments = ("--topic", topic, "--destination", str(tmp_path), "--from-offsets")
    assert f"it lacks {topic}-0; add each" in failure(replay, topics, *arguments, '{"1": 1}')
    assert run(replay, topics, *arguments, '{"0": -2, "1": 1}')["records"] == 3


@pytest.mark.any_spark
def test_replay_of_nothing_says_so(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, ["a"], timestamp_ms=NEW_YEAR_MS)
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(tmp_path)]
    result = CliRunner().invoke(replay.main, [*given, "--from-timestamp", "2036-01-01"])
    assert result.exit_code == 0
    assert f"topic {topic} holds no record of 2036-01-01T00:00:00.000+00:00 or later" in result.output


@pytest.mark.any_spark
def test_settings_of_the_reading_client_are_taken_without_a_warning(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, ["a"])
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(tmp_path)]
    result = CliRunner().invoke(hadoop_load.main, [*given, "--option", "fetch.max.bytes=1000000"])
    # A slow host also shows progress.
    said = [line for line in result.output.splitlines() if not line.startswith("loading: ")]
    assert (result.exit_code, len(said)) == (0, 1), result.output
    target = topics.new()
    arguments = ("--topic", topic, "--from-offsets", '{"0": 0}', "--to-topic", target)
    run(replay, topics, *arguments, "--option", "fetch.max.bytes=1000000", "--option", "linger.ms=1")
    assert topics.values(target) == ["a"]


@pytest.mark.versions
def test_stream_goes_on_where_its_checkpoint_stands(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    source, target = topics.new(), topics.new()
    checkpoint, files = str(tmp_path / "ckpt"), str(tmp_path / "files")
    topics.fill(source, ["a", "b"])
    for extra in ([], ["c"], []):
        topics.fill(source, extra)
        for sink in (
            # A batch for each record.
            ["--to-topic", target, "--checkpoint", checkpoint, "--max-offsets-per-trigger", "1"],
            ["--destination", files, "--checkpoint", files + "c"],
        ):
            arguments = ["--bootstrap-server", topics.bootstrap, "--topic", source, *sink]
            result = CliRunner().invoke(stream.main, arguments)
            assert result.exit_code == 0, result.output
    assert topics.values(target) == ["a", "b", "c"]
    assert sorted(row.value.decode() for row in spark.read.parquet(files).collect()) == ["a", "b", "c"]


@pytest.mark.any_spark
def test_stream_does_not_read_on_in_a_topic_that_was_created_again(topics: Topics, tmp_path: Path) -> None:
    source, target = topics.new(), topics.new()
    topics.fill(source, ["a", "b"])
    arguments = ("--topic", source, "--to-topic", target, "--checkpoint", str(tmp_path))
    given = ["--bootstrap-server", topics.bootstrap, *arguments]
    assert CliRunner().invoke(stream.main, given).exit_code == 0
    # A checkpoint of an older version, which did not remember the id.
    (remembered,) = (tmp_path / "_kafkalite" / "topic_ids").iterdir()
    remembered.unlink()
    again = CliRunner().invoke(stream.main, given)
    assert again.exit_code == 0
    assert f"topic {source}: the checkpoint does not name the id" in again.output
    topics.admin.delete_topics([source])
    topics.admin.create_topic(source, 1)
    topics.fill(source, ["c", "d", "e"])
    refused = failure(stream, topics, *arguments)
    assert "it was deleted and created again" in refused.splitlines()[-1]
    assert "give another --checkpoint" in refused.splitlines()[-1]
    assert topics.values(target) == ["a", "b"]


def test_stream_names_a_record_that_its_target_refuses_or_puts_it_aside(topics: Topics, tmp_path: Path) -> None:
    source = topics.new()
    target, aside = topics.new(1, "target", max_message_bytes="10000"), topics.new(1, "aside")
    topics.fill(source, ["a", "x" * 20_000, "b"])
    arguments = ("--topic", source, "--to-topic", target, "--checkpoint", str(tmp_path))
    output = failure(stream, topics, *arguments, code=5)
    assert f"the record at offset 1 of {source}-0 is rejected" in output.splitlines()[-1]
    assert "run it again" not in output
    topics.admin.delete_records({TopicPartition(target, 0): -1})
    given = ["--bootstrap-server", topics.bootstrap, *arguments, "--quarantine-topic", aside]
    result = CliRunner().invoke(stream.main, given)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"records that topic {target} refused, now in topic {aside}: 1"
    assert (topics.values(target), topics.values(aside)) == (["a", "b"], ["x" * 20_000])


def test_stream_reports_the_connectors_own_line(topics: Topics, tmp_path: Path) -> None:
    output = failure(stream, topics, "--topic", "absent", "--to-topic", "x", "--checkpoint", str(tmp_path), code=3)
    assert "KAFKALITE_TOPIC_NOT_FOUND" in output.splitlines()[-1]
