"""The load job and topics that are not as one thinks of them: created again, cut short, and strangely named."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.jobs import hadoop_load, replay
from spark_kafkalite.jobs.copying.topic_copy import TopicCopy
from spark_kafkalite.jobs.load import staging
from spark_kafkalite.manifests.files import files_for
from spark_kafkalite.manifests.manifest import MANIFESTS, ManifestError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark import read_published
from spark_kafkalite.spark.reading.topic_id import topic_id_text

from .job_runs import NEW_YEAR_MS, data_files, failure, load, manifests, values
from .topics import Topics

_COUNTER = itertools.count()


def fill(topics: Topics, topic: str, values: list[str], partition: int = 0) -> None:
    topics.fill(topic, values, partition, timestamp_ms=NEW_YEAR_MS)


def recreate(topics: Topics, topic: str, partitions: int = 1) -> None:
    topics.admin.delete_topics([topic])
    topics.admin.create_topic(topic, partitions)


def topic_id(admin: Admin, topic: str) -> str | None:
    return topic_id_text(admin.describe_topics([topic])[topic].topic_id)


def as_format_1(destination: Path) -> None:
    """Turn a destination's manifests into what version 1 would have written: no ids, no sizes, names as they are."""
    for path in sorted((destination / "_kafkalite" / "manifests").glob("*.json")):
        new = json.loads(path.read_text())
        old = {name: new[name] for name in ("number", "run", "created", "records", "records_without_timestamp")}
        old["next_offsets"] = {topic: each["next_offsets"] for topic, each in new["topics"].items()}
        old["files"] = []
        for file in new["files"]:
            (part,) = file["offsets"]
            name = f"{file['topic']}-{part['partition']}-{part['first']:020d}-{part['last']:020d}.parquet"
            place = "/".join([file["topic"], *file["final"].split("/")[1:-1], name])
            if place != file["final"]:
                (destination / place).parent.mkdir(parents=True, exist_ok=True)
                (destination / file["final"]).rename(destination / place)
            old["files"].append(
                {name: file[name] for name in ("staged", "topic", "records")}
                | {"final": place, "partition": part["partition"]}
                | {"first_offset": part["first"], "last_offset": part["last"]}
            )
        path.write_text(json.dumps({"format": 1, **old}))
    for directory in destination.glob("%*"):
        for left in sorted(directory.rglob("*"), reverse=True):
            # Complete directories had no mark then.
            left.unlink() if left.name == "_SUCCESS" else left.rmdir()
        directory.rmdir()


# Topics created again -----------------------------------------------------------------------------------------------


@pytest.mark.any_spark
def test_a_topic_created_again_and_grown_beyond_the_old_one_is_not_read_on(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    fill(topics, topic, ["old"] * 3)
    load(topics, topic, tmp_path)
    old_id = topic_id(topics.admin, topic)
    recreate(topics, topic)
    fill(topics, topic, ["new"] * 5)
    new_id = topic_id(topics.admin, topic)
    refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), code=4)
    assert (
        f"Error: topic {topic}: the last run loaded the topic with id {old_id}, but its id now is {new_id}" in refused
    )
    assert "--on-recreated-topic earliest" in refused
    assert len(manifests(tmp_path)) == 1

    summary = load(topics, topic, tmp_path, "--on-recreated-topic", "earliest")
    told = {"topic": topic, "earlier_id": old_id, "id": new_id, "earlier_next_offsets": {"0": 3}}
    assert (summary["records"], summary["recreated"]) == (5, [told])
    assert manifests(tmp_path)[-1]["recreated"] == [told]
    state = manifests(tmp_path)[-1]["topics"][topic]
    assert (state["id"], state["earlier_ids"], state["next_offsets"]) == (new_id, [old_id], {"0": 5})
    # The same offsets of the same day as before: nothing takes the place of what was there.
    fill(topics, topic, ["newer"])
    assert load(topics, topic, tmp_path)["recreated"] == []
    assert values(spark, tmp_path) == ["new"] * 5 + ["newer"] + ["old"] * 3


@pytest.mark.any_spark
def test_what_a_topic_created_again_has_lost_before_its_load_is_told(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    fill(topics, topic, ["old"])
    load(topics, topic, tmp_path)
    recreate(topics, topic)
    fill(topics, topic, ["new"] * 5)
    topics.admin.delete_records({TopicPartition(topic, 0): 3})
    lost = [{"topic": topic, "partition": 0, "start": 0, "until": 3, "offsets": 3}]
    summary = load(topics, topic, tmp_path, "--on-recreated-topic", "earliest")
    assert (summary["records"], summary["lost"], summary["lost_offsets"]) == (2, lost, 3)
    assert manifests(tmp_path)[-1]["lost"] == lost
    assert load(topics, topic, tmp_path)["lost"] == []


def test_a_topic_created_again_with_the_same_offsets_takes_no_old_file_s_name(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    for value in ("first", "second", "third"):
        fill(topics, topic, [value])
        load(topics, topic, tmp_path, "--on-recreated-topic", "earliest")
        recreate(topics, topic)
    assert values(spark, tmp_path) == ["first", "second", "third"]
    name = f"{topic}/day=2013-01-01/{topic}-0-{0:020d}-{0:020d}"
    assert data_files(tmp_path) == [f"{name}{suffix}.parquet" for suffix in ("-recreated1", "-recreated2", "")]


@pytest.mark.any_spark
@pytest.mark.parametrize("job", [hadoop_load, replay], ids=["hadoop_load", "replay"])
def test_a_topic_created_again_while_it_is_loaded_publishes_nothing(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any
) -> None:
    topic = topics.new()
    fill(topics, topic, ["old"] * 3)
    stage = staging.stage

    def stage_another_topic(*arguments: Any) -> staging.Staged:
        recreate(topics, topic)
        fill(topics, topic, ["new"] * 5)
        return stage(*arguments)

    monkeypatch.setattr(staging, "stage", stage_another_topic)
    arguments = ["--topic", topic, "--destination", str(tmp_path)]
    if job is replay:
        arguments += ["--from-offsets", '{"0": 1}']
    refused = failure(job, topics, *arguments)
    assert "deleted and created again meanwhile; nothing was published; run again" in refused
    assert manifests(tmp_path) == []
    assert data_files(tmp_path) == []


@pytest.mark.any_spark
def test_a_replay_into_a_topic_says_when_its_source_was_created_again_meanwhile(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = topics.new(), topics.new()
    fill(topics, source, ["old"] * 3)
    read_and_write = TopicCopy.run

    def read_another_topic(*arguments: Any) -> Any:
        recreate(topics, source)
        fill(topics, source, ["new"] * 5)
        return read_and_write(*arguments)

    monkeypatch.setattr(TopicCopy, "run", read_another_topic)
    refused = failure(replay, topics, "--topic", source, "--from-offsets", '{"0": 1}', "--to-topic", target)
    assert f"meanwhile; what was written to topic {target} is not what was asked" in refused


@pytest.mark.any_spark
def test_format_1_takes_the_id_of_the_next_run_and_says_so(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new()
    fill(topics, topic, ["a", "b"])
    load(topics, topic, tmp_path)
    as_format_1(tmp_path)
    found = topic_id(topics.admin, topic)
    output = run_for_text(topics, topic, tmp_path)
    assert f"topic {topic}: the manifests do not name the id of the topic that was loaded" in output
    assert f"with id {found}, is taken for it" in output
    # Nothing new, but from now on the id is known.
    assert [each["format"] for each in manifests(tmp_path)] == [1, 3]
    assert manifests(tmp_path)[-1]["adopted_ids"] == [topic]
    assert "is taken for it" not in run_for_text(topics, topic, tmp_path)
    recreate(topics, topic)
    fill(topics, topic, ["c"] * 4)
    assert "--on-recreated-topic" in failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path))
    assert values(spark, tmp_path) == ["a", "b"]


def run_for_text(topics: Topics, topic: str, destination: Path, *arguments: str) -> str:
    from click.testing import CliRunner

    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(destination), *arguments]
    result = CliRunner().invoke(hadoop_load.main, given)
    assert result.exit_code == 0, result.output
    return result.output


# Records lost -------------------------------------------------------------------------------------------------------


@pytest.mark.any_spark
def test_what_was_lost_stands_in_the_manifest(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new(3)
    for partition in range(3):
        fill(topics, topic, ["a", "b"], partition)
    load(topics, topic, tmp_path)
    for partition in range(3):
        fill(topics, topic, ["c", "d", "e"], partition)
    topics.admin.delete_records({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 5})
    refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path))
    assert f"{topic}-0: the last run ended at offset 2, but the log now starts at 4: 2 offsets" in refused
    output = run_for_text(topics, topic, tmp_path, "--on-out-of-range", "earliest")
    assert f"WARNING: {topic}-0: 2 offsets, 2 to 3, were deleted from the log before they were loaded" in output
    assert f"WARNING: {topic}-1: 3 offsets, 2 to 4, were deleted" in output
    assert manifests(tmp_path)[-1]["lost"] == [
        {"topic": topic, "partition": 0, "start": 2, "until": 4, "offsets": 2},
        {"topic": topic, "partition": 1, "start": 2, "until": 5, "offsets": 3},
    ]
    # Told once, also for the partition of which nothing was left.
    assert load(topics, topic, tmp_path)["lost"] == []
    assert values(spark, tmp_path) == sorted(["a", "b"] * 3 + ["e"] + ["c", "d", "e"])


# Names --------------------------------------------------------------------------------------------------------------

LONG = "x" * 248
NAMES = {
    "_schemas": "%5Fschemas",
    "5Fschemas": "5Fschemas",
    ".hidden": "%2Ehidden",
    "_kafkalite": "%5Fkafkalite",
    "_metadata": "%5Fmetadata",
    "a._COPYING_": "a._COPYING%5F",
    "2013-01-01": "2013-01-01",
    "Case": "Case",
    "case": "case",
    LONG + "y": LONG + "y",
    LONG + "z": LONG + "z",
    "_" * 249: "%5F" + "_" * 248,
}


@pytest.fixture(params=["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "with space")
    return f"{request.getfixturevalue('hdfs').uri}/topics/{next(_COUNTER)} x"


@pytest.fixture
def named_topics(topics: Topics) -> Any:
    topics.admin.create_topics(list(NAMES))
    yield topics
    topics.admin.delete_topics(list(NAMES))


def published_sum(spark: SparkSession, destination: str) -> int:
    files = files_for(spark, destination)
    return sum(json.loads(files.read(f"{MANIFESTS}/{name}"))["records"] for name in files.names(MANIFESTS))


def test_every_legal_name_is_loaded_and_counted(named_topics: Topics, spark: SparkSession, destination: str) -> None:
    for name in NAMES:
        fill(named_topics, name, [name])
    alone = f"{destination}/alone"
    load(named_topics, "_kafkalite", alone)
    assert values(spark, alone) == ["_kafkalite"]
    beside = f"{destination}/beside"
    assert load(named_topics, ",".join(NAMES), beside)["records"] == len(NAMES)
    fill(named_topics, "_schemas", ["more", "and more"])
    load(named_topics, ",".join(NAMES), beside, "--partition-by", "none", "--change-layout")
    assert values(spark, beside) == sorted([*NAMES, "more", "and more"])
    rows = read_published(spark, beside, check_counts=True)
    assert rows.count() == published_sum(spark, beside) == len(NAMES) + 2
    assert {row.topic for row in rows.select("topic").distinct().collect()} == set(NAMES)
    files = files_for(spark, beside)
    assert files.names("") == sorted([*NAMES.values(), "_kafkalite"])
    assert files.names("_kafkalite") == ["leases", "manifests", "staging"]
    # A plain listing sees them all, too.
    plain = spark.read.option("recursiveFileLookup", "true").parquet(beside)
    assert plain.count() == len(NAMES) + 2


@pytest.mark.versions
def test_what_an_older_version_hid_is_read_and_counted(
    named_topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    short = [name for name in NAMES if len(name) < 100]
    for name in short:
        fill(named_topics, name, [name])
    for by in ("day", "none"):
        load(named_topics, ",".join(short), tmp_path / by, "--partition-by", by)
        as_format_1(tmp_path / by)
        assert (tmp_path / by / "_schemas").is_dir()
    fill(named_topics, "_schemas", ["more"])
    # By a reader,
    assert values(spark, tmp_path / "day") == sorted(short)
    # and by the next run.
    summary = load(named_topics, ",".join(short), tmp_path / "none", "--partition-by", "none")
    assert (summary["records"], summary["renamed_files"]) == (1, 5)
    assert values(spark, tmp_path / "none") == sorted([*short, "more"])
    for by in ("day", "none"):
        assert read_published(spark, str(tmp_path / by), check_counts=True).count() == published_sum(
            spark, str(tmp_path / by)
        )
        assert not (tmp_path / by / "_schemas").exists()
        assert not (tmp_path / by / "_kafkalite" / "day=2013-01-01").exists()


def test_a_reader_that_cannot_rename_what_was_hidden_says_who_can(spark: SparkSession, tmp_path: Path) -> None:
    name = f"_x-0-{0:020d}-{0:020d}.parquet"
    (tmp_path / "_x").mkdir()
    (tmp_path / "_x" / name).write_text("never read")
    (tmp_path / "%5Fx").write_text("in the way, as a right that is missing would be")
    manifest = {
        "format": 1,
        "number": 1,
        "run": "old",
        "created": "2026-01-01T00:00:00Z",
        "records": 1,
        "records_without_timestamp": 0,
        "next_offsets": {"_x": {"0": 1}},
        "files": [
            {
                "staged": "_kafkalite/staging/old/x",
                "final": f"_x/{name}",
                "topic": "_x",
                "partition": 0,
                "first_offset": 0,
                "last_offset": 0,
                "records": 1,
            }
        ],
    }
    path = tmp_path / "_kafkalite" / "manifests" / f"{1:020d}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=r"such as _x names .* Run 'kafkalite jobs run hadoop_load --rec"):
        read_published(spark, str(tmp_path))


# Reading what was published -----------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 3], ids=["format 1", "format 3"])
def two_runs(request: pytest.FixtureRequest, topics: Topics, tmp_path: Path) -> list[dict[str, Any]]:
    """Two runs' manifests: one record, and then three."""
    topic = topics.new()
    for some in (["a"], ["b", "c", "d"]):
        fill(topics, topic, some)
        load(topics, topic, tmp_path)
    if request.param == 1:
        as_format_1(tmp_path)
    return manifests(tmp_path)


def test_a_published_file_that_is_missing_is_named_with_its_run(
    two_runs: list[dict[str, Any]], spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = two_runs[1]["files"]
    (tmp_path / file["final"]).unlink()
    named = (
        f"{file['final']} with 3 records, published by _kafkalite/manifests/{2:020d}.json (run {two_runs[1]['run']})"
    )
    with pytest.raises(ManifestError) as caught:
        read_published(spark, str(tmp_path))
    assert f"{named}: is not there: restore it" in str(caught.value)
    with caplog.at_level(logging.WARNING, "spark_kafkalite.spark"):
        assert [bytes(row.value) for row in read_published(spark, str(tmp_path), on_missing="warn").collect()] == [b"a"]
    assert named in caplog.text


@pytest.mark.any_spark
def test_a_published_file_that_was_cut_is_named_with_its_run(
    two_runs: list[dict[str, Any]], spark: SparkSession, tmp_path: Path
) -> None:
    # Format 1 does not say how long a file was, so that only an empty one shows.
    size = 100 if two_runs[0]["format"] == 3 else 0
    # Spark leaves out empty files without a word, and needs one file that is whole.
    for run_of_file, manifest in enumerate(two_runs):
        (file,) = manifest["files"]
        path = tmp_path / file["final"]
        path.write_bytes(path.read_bytes()[:size])
        wrong = rf"\(run {two_runs[0]['run']}\), has {size} bytes.*not what was published"
        with pytest.raises(ManifestError, match=wrong) as caught:
            read_published(spark, str(tmp_path))
        assert (two_runs[1]["run"] in str(caught.value)) == (run_of_file == 1)


@pytest.mark.any_spark
def test_a_published_file_with_other_records_is_named_with_its_run(
    two_runs: list[dict[str, Any]], spark: SparkSession, tmp_path: Path
) -> None:
    (one,), (three,) = two_runs[0]["files"], two_runs[1]["files"]
    (tmp_path / three["final"]).write_bytes((tmp_path / one["final"]).read_bytes())
    wrong = rf"{three['final']} has 1 records, and 3 were published by .* \(run {two_runs[1]['run']}\)"
    if two_runs[0]["format"] == 3:
        wrong = rf"\(run {two_runs[1]['run']}\), has \d+ bytes instead of {three['size_bytes']}"
    with pytest.raises(ManifestError, match=wrong):
        read_published(spark, str(tmp_path), check_counts=True)


@pytest.mark.any_spark
def test_a_manifest_that_contradicts_itself_is_named(
    two_runs: list[dict[str, Any]], spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "_kafkalite" / "manifests" / f"{1:020d}.json"
    path.write_text(json.dumps(two_runs[0] | {"records": 7}))
    with pytest.raises(ManifestError, match=rf"\(run {two_runs[0]['run']}\) counts 7 records, but its files 1"):
        read_published(spark, str(tmp_path))
