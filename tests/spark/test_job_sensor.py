"""``hadoop_load --sensor``: whether a load has anything to do; and loads that start no Spark because they have not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_kafkalite.cli.jobs import script_path
from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.model import TopicPartition
from tests.lab.hdfs import MiniHdfs, hadoop_xml
from tests.patience import PATIENCE_S
from tests.pool.names import own_numbers

from .class_archive import java_environment
from .job_runs import NEW_YEAR_MS, failure, load
from .topics import Topics

pytestmark = [pytest.mark.any_spark]

NOTHING: Mapping[str, Any] = {"waiting": {}, "unfinished": None, "completed": [], "unmatched": []}
_COUNTER = own_numbers()


def sensed(topics: Topics, topic: str, destination: Path | str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the printed line of a sensor in this process."""
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(destination), "--sensor"]
    result = CliRunner().invoke(hadoop_load.main, [*given, *arguments])
    return result.exit_code, json.loads(result.stdout)


def started(topics: Topics, topic: str, destination: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Return the exit code and the output of a load in a process of its own, without options for Spark."""
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", destination, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HADOOP_", "PYSPARK_SUB"))}
    done = subprocess.run(
        [sys.executable, "-m", "spark_kafkalite.cli", "jobs", "run", "hadoop_load", *given],
        env={**environment, **java_environment(), **variables},
        capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def everything_in(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in directory.rglob("*"))


def test_records_that_wait_are_counted_by_topic_until_they_are_loaded(topics: Topics, tmp_path: Path) -> None:
    one, two = topics.new(2), topics.new()
    topics.fill(one, "abc", 0, timestamp_ms=NEW_YEAR_MS)
    topics.fill(one, "d", 1, timestamp_ms=NEW_YEAR_MS)
    topics.fill(two, "e", timestamp_ms=NEW_YEAR_MS)
    both, destination = f"{one},{two}", tmp_path / "loads"
    assert sensed(topics, both, destination) == (0, {**NOTHING, "waiting": {one: 4, two: 1}})
    assert not destination.exists()
    load(topics, both, destination)
    before = everything_in(destination)
    assert sensed(topics, both, destination) == (7, NOTHING)
    topics.fill(two, "f")
    assert sensed(topics, both, destination) == (0, {**NOTHING, "waiting": {two: 1}})
    assert sensed(topics, one, destination) == (7, NOTHING)
    assert everything_in(destination) == before


def test_a_sensor_checks_tables_as_the_run_does(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, "a", timestamp_ms=NEW_YEAR_MS)
    delta = ("--table", "delta")
    assert sensed(topics, topic, tmp_path, *delta)[0] == 0
    load(topics, topic, tmp_path, *delta)
    assert sensed(topics, topic, tmp_path) == (7, NOTHING)
    topics.fill(topic, "b", timestamp_ms=NEW_YEAR_MS)
    run = load(topics, topic, tmp_path)
    log, mark = tmp_path / topic / "_delta_log", tmp_path / "_kafkalite" / "tables" / topic / "table.json"
    # As a run leaves it that dies before its commit to the table.
    (commit, known) = log / f"{1:020d}.json", mark.read_text()
    commit.unlink()
    mark.write_text(json.dumps(json.loads(known) | {"published": 1, "checked": 1}))
    before = everything_in(tmp_path)
    (newest,) = (json.loads((tmp_path / each).read_text())["run"] for each in run["manifests"])
    assert sensed(topics, topic, tmp_path) == (0, {**NOTHING, "unfinished": newest})
    assert everything_in(tmp_path) == before
    mark.write_text(known)
    given = ("--topic", topic, "--destination", str(tmp_path))
    for options in ((), delta):
        (sensor, load_itself) = (
            failure(hadoop_load, topics, *given, *options, *way, code=5) for way in (["--sensor"], [])
        )
        assert sensor == load_itself
        assert "has manifest 1 as its last transaction, but manifest 2 was published in it" in sensor
    mark.unlink()
    topics.fill(topic, "c")
    refused = failure(hadoop_load, topics, *given, "--sensor", code=5)
    assert "is the log of a Delta table that this destination has no mark of" in refused


def test_a_run_that_committed_and_did_not_end_is_work(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, "a", timestamp_ms=NEW_YEAR_MS)
    load(topics, topic, tmp_path)
    (manifest,) = (tmp_path / "_kafkalite" / "manifests").glob("*.json")
    run = json.loads(manifest.read_text())["run"]
    (tmp_path / "_kafkalite" / "staging" / run).mkdir(parents=True)
    assert sensed(topics, topic, tmp_path) == (0, {**NOTHING, "unfinished": run})
    load(topics, topic, tmp_path)
    assert sensed(topics, topic, tmp_path) == (7, NOTHING)


def test_a_directory_that_becomes_complete_without_new_records_is_work(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, "a", timestamp_ms=NEW_YEAR_MS)
    # With a grace of a hundred years, the day is not over.
    assert load(topics, topic, tmp_path, "--grace", "36500d")["completed"] == []
    assert sensed(topics, topic, tmp_path, "--grace", "36500d") == (7, NOTHING)
    day = f"{topic}/day=2013-01-01"
    assert sensed(topics, topic, tmp_path) == (0, {**NOTHING, "completed": [day]})
    assert load(topics, topic, tmp_path)["completed"] == [day]
    assert sensed(topics, topic, tmp_path) == (7, NOTHING)


def test_where_a_load_would_fail_the_sensor_does(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, "abc", timestamp_ms=NEW_YEAR_MS)
    given = ("--topic", topic, "--destination", str(tmp_path), "--sensor")
    for other in ("--dry-run", "--recover"):
        assert f"does nothing that {other} asks for" in failure(hadoop_load, topics, *given, other, code=2)
    load(topics, topic, tmp_path)
    topics.fill(topic, "d")
    topics.admin.delete_records({TopicPartition(topic, 0): 4})
    assert "1 offsets were deleted before they were loaded" in failure(hadoop_load, topics, *given, code=4)
    missing = failure(hadoop_load, topics, "--topic", "none", "--destination", str(tmp_path), "--sensor", code=3)
    assert "no such topic: none" in missing


def test_what_has_nothing_to_load_starts_no_java(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, "a", timestamp_ms=NEW_YEAR_MS)
    destination = f"file://{tmp_path}/loads"
    no_java = {"JAVA_HOME": str(tmp_path / "no java")}
    code, printed, _ = started(topics, topic, destination, "--sensor", **no_java)
    assert (code, json.loads(printed)["waiting"]) == (0, {topic: 1})
    # A load that has something to do needs Java: there really is none.
    assert started(topics, topic, destination, **no_java)[0] == 1
    load(topics, topic, destination)
    assert started(topics, topic, destination, "--sensor", **no_java)[:2] == (7, json.dumps(NOTHING) + "\n")
    code, printed, said = started(topics, topic, destination, "--json", **no_java)
    assert (code, json.loads(printed)["records"]) == (0, 0), said
    code, _, said = started(topics, topic, "hdfs://127.0.0.1:1/loads", "--sensor", **no_java)
    assert (code, f"{tmp_path}/no java/bin/java does not start" in said, "set JAVA_HOME" in said) == (1, True, True)


@pytest.mark.hdfs
@pytest.mark.parametrize("way", ["its address", "the default file system", "spark-defaults.conf", "spark-submit"])
def test_a_destination_in_hdfs(topics: Topics, hdfs: MiniHdfs, tmp_path: Path, way: str) -> None:
    topic = topics.new()
    topics.fill(topic, "ab", timestamp_ms=NEW_YEAR_MS)
    path = f"/sensor/{next(_COUNTER)}"
    (tmp_path / "core-site.xml").write_text(hadoop_xml({"fs.defaultFS": hdfs.uri}))
    (tmp_path / "spark-defaults.conf").write_text(f"spark.hadoop.fs.defaultFS {hdfs.uri}\n")
    submitted = {"PYSPARK_SUBMIT_ARGS": f"--conf spark.hadoop.fs.defaultFS={hdfs.uri} pyspark-shell"}
    destination, variables = {
        "its address": (hdfs.uri + path, {}),
        "the default file system": (path, {"HADOOP_CONF_DIR": str(tmp_path)}),
        "spark-defaults.conf": (path, {"SPARK_CONF_DIR": str(tmp_path)}),
        "spark-submit": (path, submitted),
    }[way]
    if way == "spark-defaults.conf":
        (tmp_path / "core-site.xml").unlink()
    if way == "its address":
        code, printed, said = started(topics, topic, destination, "--sensor", **variables)
        assert (code, printed) == (0, json.dumps({**NOTHING, "waiting": {topic: 2}}) + "\n"), said
    load(topics, topic, hdfs.uri + path)
    code, printed, said = started(topics, topic, destination, "--sensor", **variables)
    assert (code, printed) == (7, json.dumps(NOTHING) + "\n"), said


def test_by_spark_submit(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, "ab", timestamp_ms=NEW_YEAR_MS)
    load(topics, topic, tmp_path)
    submit = [str(Path(sys.executable).with_name("spark-submit")), str(script_path("hadoop_load"))]
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(tmp_path), "--sensor"]
    done = subprocess.run(
        [*submit, *given],
        env=os.environ | java_environment(), capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, json.loads(done.stdout.splitlines()[-1])) == (7, NOTHING), done.stderr
