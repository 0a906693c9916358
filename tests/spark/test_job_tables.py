"""Loads into Delta tables, on a local disk and on HDFS, as deltalake reads them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import audit, compact, hadoop_load
from spark_kafkalite.jobs.tables.delta_log import DeltaLog
from spark_kafkalite.manifests.files import files_for
from tests.lab.hdfs import MiniHdfs
from tests.seeds import SOAK

from .job_processes import JobProcess
from .job_runs import BY_TASKS, DAY_MS, NEW_YEAR_MS, data_files, days, failure, load, run_alone
from .topics import Topics

pytestmark = [pytest.mark.any_spark]

_COUNTER = itertools.count()


def delta_table(path: Path | str) -> Any:
    """Return a table as deltalake sees it. Only the environment of the newest PySpark has that library."""
    import deltalake

    return deltalake.DeltaTable(str(path))


def values_on_hdfs(spark: SparkSession, uri: str, copy: Path) -> list[str]:
    """Return the values that deltalake reads from a copy of a table, because its own client of HDFS hangs at times."""
    path = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    path(uri).getFileSystem(spark._jsc.hadoopConfiguration()).copyToLocalFile(path(uri), path(f"file://{copy}"))
    return sorted(each.decode() for each in delta_table(copy).to_pyarrow_table()["value"].to_pylist())


def rows(destination: Path | str, topic: str) -> list[dict[str, Any]]:
    """Return the rows that deltalake reads from a topic's table, by offset."""
    table = delta_table(f"{destination}/{topic}").to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def table(version: int, manifest: int, published: bool = True) -> dict[str, Any]:
    return {"version": version, "manifest": manifest, "published": published}


def values(destination: Path | str, topic: str) -> list[str]:
    return sorted(row["value"].decode() for row in rows(destination, topic))


@pytest.mark.parametrize("way", [(), BY_TASKS], ids=["in the driver", "by tasks"])
def test_a_topic_is_a_table_from_its_first_load_on(topics: Topics, tmp_path: Path, way: tuple[str, ...]) -> None:
    topic = days(topics)
    assert load(topics, topic, tmp_path, "--table", "delta", *way)["tables"] == {topic: table(0, 1)}
    topics.fill(topic, ["d"], timestamp_ms=NEW_YEAR_MS, headers=[("h", b"1"), ("h", b"2")], key=b"k")
    # A table stays one, and a run without new records changes nothing.
    assert load(topics, topic, tmp_path, *way)["tables"] == {topic: table(1, 2)}
    assert load(topics, topic, tmp_path)["tables"] == {topic: table(1, 2, published=False)}
    assert values(tmp_path, topic) == ["a", "b", "c", "d"]
    assert [row["day"].isoformat() for row in rows(tmp_path, topic)] == [
        "2013-01-01", "2013-01-02", "2013-01-03", "2013-01-01",
    ]  # fmt: skip
    actions = delta_table(tmp_path / topic).get_add_actions(flatten=True).to_struct_array().to_pylist()
    assert {each["min.timestamp"].isoformat()[:10] for each in actions} == {f"2013-01-0{day}" for day in (1, 2, 3)}
    last = rows(tmp_path, topic)[-1]
    assert (last["key"], last["headers"]) == (b"k", [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}])
    # How Spark reads a day of a table without Delta Lake: docs/warehouse.md.
    of_day = delta_table(tmp_path / topic).file_uris(file_pruning_predicate=[("day", "=", "2013-01-01")])
    frame = topics.spark.read.option("basePath", f"file://{tmp_path / topic}").parquet(*of_day)
    assert sorted((row.value.decode(), str(row.day)) for row in frame.collect()) == [
        ("a", "2013-01-01"), ("d", "2013-01-01"),
    ]  # fmt: skip
    code, audited = _audit(tmp_path)
    assert (code, audited["mismatches"]) == (0, [])


def _audit(destination: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(audit.main, ["--destination", str(destination), "--json"])
    return result.exit_code, json.loads(result.output.strip().splitlines()[-1])


def test_columns_of_values_are_columns_of_the_table(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    as_json = ("--table", "delta", "--value", "json", "--value-schema")
    topics.fill(topic, ['{"id": 1, "tags": [{"k": "a"}]}'], timestamp_ms=NEW_YEAR_MS)
    load(topics, topic, tmp_path, *as_json, "id BIGINT NOT NULL, tags ARRAY<STRUCT<k: STRING>>")
    topics.fill(topic, ['{"id": 2, "tags": [{"k": "b", "v": 7}], "at": "2013-01-01T00:00:00Z"}'])
    load(topics, topic, tmp_path, *as_json, "id BIGINT, tags ARRAY<STRUCT<k: STRING, v: INT>>, at TIMESTAMP")
    found = [row["value"] for row in rows(tmp_path, topic)]
    assert [(each["id"], each["tags"]) for each in found] == [(1, [{"k": "a", "v": None}]), (2, [{"k": "b", "v": 7}])]
    assert found[0]["at"] is None and found[1]["at"].isoformat() == "2013-01-01T00:00:00+00:00"
    assert rows(tmp_path, topic)[0]["timestamp"].timestamp() * 1000 == NEW_YEAR_MS


def test_files_of_a_plain_load_do_not_go_into_a_table_of_another_writer(topics: Topics, tmp_path: Path) -> None:
    """VACUUM of that table would delete them. It is also what is left if the mark of a table is deleted."""
    topic = topics.new()
    topics.fill(topic, ["one"])
    load(topics, topic, tmp_path, "--table", "delta")
    (tmp_path / "_kafkalite/tables" / topic / "table.json").unlink()
    topics.fill(topic, ["two"])
    for dry_run in ([], ["--dry-run"]):
        told = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), *dry_run, code=5)
        assert "is the log of a Delta table that this destination has no mark of" in told
    assert len(data_files(tmp_path)) == 1


def test_what_a_table_cannot_take_is_refused_before_anything_is_loaded(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, ['{"id": 1}'])
    load(topics, topic, tmp_path, "--table", "delta", "--value", "json", "--value-schema", "id BIGINT")
    topics.fill(topic, ['{"id": 2}'])
    given = ["--topic", topic, "--destination", str(tmp_path)]
    same = ["--value", "json", "--value-schema", "id BIGINT"]
    for options, message, code in (
        (["--value", "json", "--value-schema", "id STRING"], "field value.id is bigint in its files and string in", 2),
        (["--value", "json", "--value-schema", "id BIGINT, d INTERVAL DAY"], "which a Delta table without table", 5),
        ([*same, "--format", "orc"], "because a Delta table keeps its format and directories", 2),
        ([*same, "--format", "orc", "--change-layout"], "a Delta table has Parquet only", 5),
        (
            [*same, "--partition-by", "hour", "--change-layout"],
            "its Delta table has the partition columns day, and this run has day and hour",
            5,
        ),
    ):
        for dry_run in ([], ["--dry-run"]):
            assert message in failure(hadoop_load, topics, *given, *options, *dry_run, code=code), options
    told = failure(hadoop_load, topics, *given, "--table", "delta", "--format", "orc", code=2)
    assert "--table delta needs --format parquet, not orc" in told
    assert len(data_files(tmp_path)) == 1
    refused = CliRunner().invoke(compact.main, ["--destination", str(tmp_path), "--topic", topic])
    assert refused.exit_code == 5 and "OPTIMIZE in Spark" in refused.output
    plain = topics.new()
    for value in "ab":
        topics.fill(plain, [value], timestamp_ms=NEW_YEAR_MS)
        load(topics, plain, tmp_path)
    merging = ["--destination", str(tmp_path), "--min-files", "2", "--older-than", "0s"]
    told = CliRunner().invoke(compact.main, [*merging, "--dry-run"])
    assert f"left topics that are Delta tables: {topic}: a Delta table names" in told.output
    merged = run_alone(compact, *merging)
    assert merged["tables"] == [topic] and [each["files"] for each in merged["merges"]] == [2]
    hidden = ["--topic", "_schemas", "--destination", str(tmp_path), "--table", "delta"]
    topics.admin.create_topics(["_schemas"])
    try:
        told = failure(hadoop_load, topics, *hidden, code=5)
        assert "topic _schemas cannot be a Delta table: its directory is %5Fschemas" in told
    finally:
        topics.admin.delete_topics(["_schemas"])


def test_a_table_that_is_gone_stops_a_run_until_it_is_made_again(topics: Topics, tmp_path: Path) -> None:
    topic = days(topics)
    load(topics, topic, tmp_path, "--table", "delta")
    (tmp_path / topic / "_delta_log").rename(tmp_path / "moved")
    topics.fill(topic, ["d"])
    given = ["--topic", topic, "--destination", str(tmp_path)]
    told = failure(hadoop_load, topics, *given, code=5)
    assert "is gone: its log is empty, and manifest 1 was published in it. Nothing was loaded" in told
    assert f"kafkalite jobs run hadoop_load --recover --table-resync --topic {topic}" in told
    assert "is gone" in failure(hadoop_load, topics, *given, "--dry-run", code=5)
    found = run_alone(hadoop_load, *given, "--recover", "--table-resync")
    assert found["tables"] == {topic: table(0, 1)}
    assert load(topics, topic, tmp_path)["tables"] == {topic: table(1, 2)}
    assert values(tmp_path, topic) == ["a", "b", "c", "d"]


def test_checkpoints_come_every_ten_commits(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    for number in range(10):
        topics.fill(topic, [str(number)])
        found = load(topics, topic, tmp_path, "--table", "delta")
    assert found["not_checkpointed"] == {}
    log = tmp_path / topic / "_delta_log"
    assert [path.name for path in log.glob("*.checkpoint.parquet")] == [f"{9:020d}.checkpoint.parquet"]
    for path in log.glob("*.json"):
        path.unlink()
    topics.fill(topic, ["10"])
    load(topics, topic, tmp_path)
    assert values(tmp_path, topic) == sorted(str(number) for number in range(11))


PLACES = ["table-begun", "staged", "manifest", "moved-one", "table-commit", "table-committed"]


@pytest.mark.parametrize("place", PLACES if SOAK else ["table-commit"])
def test_a_killed_load_leaves_each_record_in_the_table_once(topics: Topics, tmp_path: Path, place: str) -> None:
    topic, destination = topics.new(2), tmp_path / "d"
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(destination)]
    for number in range(2):
        for day in range(2):
            topics.fill(topic, [f"{number}-{day}"], number, timestamp_ms=NEW_YEAR_MS + day * DAY_MS)
        with JobProcess(
            tmp_path, "hadoop_load", *given, "--table", "delta", "--lease", "1s", fault=f"{place}:kill"
        ) as job:
            assert job.wait() == -9, job.process.tail()
    run_alone(hadoop_load, *given, "--recover")
    load(topics, topic, destination, "--table", "delta")
    assert values(destination, topic) == ["0-0", "0-1", "1-0", "1-1"]
    assert _audit(destination)[0] == 0


# HDFS -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["host", "name service"])
def hdfs_root(
    request: pytest.FixtureRequest, spark: SparkSession, hdfs: MiniHdfs
) -> Iterator[tuple[str, dict[str, str]]]:
    """The URI of an HDFS, by its host or by a name service whose first name node is down; and deltalake's settings."""
    if request.param == "host":
        yield hdfs.uri, {}
        return
    name = f"tables{next(_COUNTER)}"
    provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    settings = {
        "dfs.nameservices": name,
        f"dfs.ha.namenodes.{name}": "nn1,nn2",
        f"dfs.namenode.rpc-address.{name}.nn1": "127.0.0.1:1",
        f"dfs.namenode.rpc-address.{name}.nn2": urlsplit(hdfs.uri).netloc,
        f"dfs.client.failover.proxy.provider.{name}": provider,
    }
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in settings.items():
        configuration.set(key, value)
    yield f"hdfs://{name}", settings
    for key in settings:
        configuration.unset(key)


@pytest.mark.hdfs
def test_a_table_on_hdfs(
    topics: Topics, spark: SparkSession, hdfs_root: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    root, settings = hdfs_root
    destination, topic = f"{root}/tables/{next(_COUNTER)}", days(topics)
    # The tenth commit brings a checkpoint.
    loads = 10 if settings or SOAK else 2
    for number in range(loads):
        found = load(topics, topic, destination, "--table", "delta")
        topics.fill(topic, [f"v{number}"])
    assert found["tables"] == {topic: table(loads - 1, loads)}
    # deltalake hangs at some openings of a table on HDFS; its deadline ends that, and the load is right all the same.
    problem = found["not_checkpointed"].get(topic, "")
    assert not problem or "deltalake did not write it within" in problem
    state = DeltaLog(files_for(spark, destination), topic).read()
    checkpoint = 9 if loads == 10 and not problem else None
    assert state is not None and (state.version, state.checkpoint_version) == (loads - 1, checkpoint)
    assert values_on_hdfs(spark, f"{destination}/{topic}", tmp_path / "loaded") == sorted(
        ["a", "b", "c", *(f"v{number}" for number in range(loads - 1))]
    )
    again = run_alone(hadoop_load, "--topic", topic, "--destination", destination, "--recover", "--table-resync")
    assert again["tables"] == {topic: table(0, loads)}
    assert load(topics, topic, destination)["tables"] == {topic: table(1, loads + 1)}
    assert len(values_on_hdfs(spark, f"{destination}/{topic}", tmp_path / "again")) == 3 + loads
