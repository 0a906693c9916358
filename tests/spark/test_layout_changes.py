"""A run that changes the schema or the layout of a topic's files never makes a destination unreadable."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_kafkalite.jobs import compact, hadoop_load
from spark_kafkalite.manifests.manifest import ManifestError
from spark_kafkalite.spark import read_published
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .job_runs import DAY_MS, NEW_YEAR_MS, data_files, failure, load, manifests, run_alone
from .topics import Topics

JSON = ("--value", "json", "--value-schema")
HOUR_MS = 3_600_000


def send(topics: Topics, topic: str, *values: str, at_ms: int = NEW_YEAR_MS) -> None:
    for value in values:
        topics.producer.send(topic, value.encode(), timestamp_ms=at_ms)
    topics.producer.flush(PATIENCE_S)


def found(frame: DataFrame) -> list[Any]:
    return [row.value and row.value.asDict(recursive=True) for row in frame.orderBy("offset").collect()]


def as_version_0_2_0(destination: Path) -> None:
    """Take the keys out of the manifests that version 0.2.0 did not write."""
    for path in (destination / "_kafkalite" / "manifests").glob("*.json"):
        document = json.loads(path.read_text())
        for topic in document["topics"].values():
            topic.pop("layout", None)
        path.write_text(json.dumps(document))
    for left in destination.rglob(".*.crc"):
        left.unlink()


@pytest.mark.any_spark
@pytest.mark.parametrize("file_format", ["parquet", *(["orc"] if SOAK else [])])
def test_added_fields_are_null_in_earlier_files(
    topics: Topics, spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    topic = topics.new()
    send(topics, topic, '{"id": 1, "at": [{"x": 1}]}')
    form = ("--format", file_format, *JSON)
    load(topics, topic, tmp_path, *form, "id BIGINT, at ARRAY<STRUCT<x: INT>>")
    send(topics, topic, '{"id": 2, "name": "n", "at": [{"x": 2, "y": "why"}]}')
    load(topics, topic, tmp_path, *form, "name STRING, id BIGINT, at ARRAY<STRUCT<x: INT, y: STRING>>")
    frame = read_published(spark, str(tmp_path), check_counts=True)
    assert found(frame) == [
        {"id": 1, "name": None, "at": [{"x": 1, "y": None}]},
        {"id": 2, "name": "n", "at": [{"x": 2, "y": "why"}]},
    ]
    assert frame.where("value.name is null").count() == 1
    # The schema does not depend on what is selected.
    assert read_published(spark, str(tmp_path), since_run=1).schema == frame.schema
    # An older version has only the layouts of its runs.
    as_version_0_2_0(tmp_path)
    assert found(read_published(spark, str(tmp_path))) == found(frame)
    send(topics, topic, "{}")
    refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), *form, "id BIGINT", code=2)
    assert "fields value.at, value.name of its files would not be in those of this run" in refused
    load(topics, topic, tmp_path, *form, "name STRING, id BIGINT, at ARRAY<STRUCT<x: INT, y: STRING>>, z INT")
    assert found(read_published(spark, str(tmp_path)))[2] == {"id": None, "name": None, "at": None, "z": None}


@pytest.mark.any_spark
def test_a_change_of_a_type_fails_the_run_that_brings_it_before_it_writes(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic, other = topics.new(), topics.new()
    send(topics, topic, '{"id": 1}')
    # It has no files, so it may change.
    load(topics, f"{topic},{other}", tmp_path, *JSON, "id BIGINT, name STRING")
    send(topics, topic, '{"id": "a"}')
    send(topics, other, '{"id": "a"}')
    before = sorted(path for path in tmp_path.rglob("*") if "leases" not in path.parts)
    for given, told in [
        (
            (*JSON, "id STRING, name STRING"),
            "field value.id is bigint in its files and string in this run; a run may only add fields. Its files have "
            "--value json --value-schema 'id BIGINT, name STRING', and this run has --value json --value-schema "
            "'id STRING, name STRING': give a schema that has all fields of the files, or load the topic into a new "
            "destination; nothing was written",
        ),
        ((*JSON, "id BIGINT, name2 STRING"), "field value.name of its files would not be in those of this run; a run"),
        ((), "field value is of --value json in its files and of --value bytes in this run; a run may only"),
        (("--value", "registry", "--dry-run"), "is of --value json in its files and of --value registry in this"),
    ]:
        refused = failure(
            hadoop_load, topics, "--topic", f"{topic},{other}", "--destination", str(tmp_path), *given, code=2
        )
        assert f"topic {topic} in file://{tmp_path}: " in refused
        assert told in refused, refused
        assert "Traceback" not in refused
    assert sorted(path for path in tmp_path.rglob("*") if "leases" not in path.parts) == before
    assert found(read_published(spark, str(tmp_path))) == [{"id": 1, "name": None}]
    load(topics, other, tmp_path, *JSON, "id STRING")
    with pytest.raises(ValueError) as caught:
        read_published(spark, str(tmp_path))
    one, two = f"{topic} (--value json --value-schema 'id BIGINT, name STRING')", f"{other} (--value json"
    assert one in str(caught.value)
    assert two in str(caught.value)
    assert found(read_published(spark, str(tmp_path), topic=other)) == [{"id": "a"}]
    assert found(read_published(spark, str(tmp_path), topic=topic)) == [{"id": 1, "name": None}]


@pytest.mark.any_spark
def test_another_layout_needs_the_option_and_stays_readable(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    send(topics, topic, "a")
    load(topics, topic, tmp_path)
    send(topics, topic, "b", at_ms=NEW_YEAR_MS + 3 * HOUR_MS)
    changed = ("--partition-by", "hour", "--format", "orc", "--time-zone", "Asia/Kolkata")
    for version in ("now", "0.2.0"):
        if version == "0.2.0":
            as_version_0_2_0(tmp_path)
        refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), *changed, code=2)
        assert (
            "its files were written with --format parquet --partition-by day --time-zone UTC, and this run has "
            "--format orc --partition-by hour --time-zone Asia/Kolkata: give --format parquet --partition-by day "
            "--time-zone UTC, or, to write new files with --format orc --partition-by hour --time-zone Asia/Kolkata "
            "and leave the others as they are, --change-layout; nothing was written"
        ) in refused
    load(topics, topic, tmp_path, *changed, "--change-layout")
    # The new layout is that of the topic now.
    send(topics, topic, "c", at_ms=NEW_YEAR_MS + DAY_MS)
    load(topics, topic, tmp_path, *changed)
    send(topics, topic, "d")
    assert "and this run has --format" in failure(
        hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), code=2
    )
    load(topics, topic, tmp_path, "--partition-by", "none", "--change-layout", "--codec", "gzip")
    frame = read_published(spark, str(tmp_path), check_counts=True)
    first = date(2013, 1, 1)
    assert [(bytes(row.value), row.day, row.hour) for row in frame.orderBy("offset").collect()] == [
        (b"a", first, None),
        (b"b", first, 8),
        (b"c", date(2013, 1, 2), 5),
        (b"d", None, None),
    ]


def opened_files(frame: DataFrame) -> int:
    """Return how many files a query opens."""
    jvm_plan = frame._jdf.queryExecution().executedPlan()
    frame.collect()
    files = 0
    leaves = jvm_plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.metrics().contains("numFiles"):
            files += leaf.metrics().apply("numFiles").value()
    return int(files)


@pytest.mark.versions
def test_days_and_runs_are_chosen_by_the_manifests(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic, other = topics.new(), topics.new()
    for day in range(3):
        send(topics, topic, f"t{day}", at_ms=NEW_YEAR_MS + day * DAY_MS)
        send(topics, other, f"o{day}", at_ms=NEW_YEAR_MS + day * DAY_MS)
        load(topics, f"{topic},{other}", tmp_path)
    path = str(tmp_path)

    def values(**given: Any) -> list[str]:
        rows = read_published(spark, path, **given).select("value").collect()
        return sorted(bytes(row.value).decode() for row in rows)

    assert values(days="2013-01-02") == ["o1", "t1"]
    assert values(topic=topic, days=[date(2013, 1, 1), "2013-01-03"]) == ["t0", "t2"]
    runs = [each["run"] for each in manifests(tmp_path)]
    for since in (runs[1], 2, "2", "_kafkalite/manifests/00000000000000000002.json"):
        assert values(topic=topic, since_run=since) == ["t2"]
    assert values(topic=topic, since_run=0, days=["2013-01-01"]) == ["t0"]
    empty = read_published(spark, path, since_run=3)
    assert (empty.count(), empty.schema) == (0, read_published(spark, path).schema)
    assert values(days="2000-01-01") == []
    for given, error, told in [
        (
            {"topic": "absent"},
            FileNotFoundError,
            f"absent here; there are {', '.join(sorted((topic, other)))}",
        ),
        ({"days": "1st"}, ValueError, "days='1st': a day is a date or a text such as 2026-01-31"),
        ({"since_run": 4}, ManifestError, "has no such run, or none of its files since they were merged; its newest"),
    ]:
        with pytest.raises(error) as caught:
            read_published(spark, path, **given)  # type: ignore[arg-type]
        assert told in str(caught.value)
    frame = read_published(spark, path)
    assert frame.columns[-2:] == ["day", "hour"]
    assert opened_files(frame) == 6
    by_day = frame.where("day = '2013-01-02'")
    assert opened_files(by_day) == 2
    assert [Row(**row.asDict()) for row in by_day.groupBy("topic", "day").count().orderBy("topic").collect()] == [
        Row(topic=each, day=date(2013, 1, 2), count=1) for each in sorted((topic, other))
    ]


@pytest.mark.any_spark
def test_a_run_that_a_compaction_has_merged_over_cannot_be_chosen(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    for day, value in [(0, "a"), (0, "b"), (1, "c"), (1, "d")]:
        send(topics, topic, value, at_ms=NEW_YEAR_MS + day * DAY_MS)
        load(topics, topic, tmp_path)
    run_alone(compact, "--destination", str(tmp_path), "--min-files", "2", "--older-than", "0s")
    assert len(data_files(tmp_path)) == 2
    send(topics, topic, "e", at_ms=NEW_YEAR_MS + DAY_MS)
    load(topics, topic, tmp_path)
    path = str(tmp_path)

    def values(**given: Any) -> list[bytes]:
        rows = read_published(spark, path, **given).select("value").collect()
        return sorted(bytes(row.value) for row in rows)

    # Each merged file has records of the runs on one side only.
    assert values(since_run=2) == [b"c", b"d", b"e"]
    assert values(since_run=4) == values(since_run=5) == [b"e"]
    for number, days in ((1, "1 to 2"), (3, "3 to 4")):
        with pytest.raises(ManifestError, match=rf"000005\.json, run .*\) has merged over it: .* of the runs {days};"):
            read_published(spark, path, since_run=number)
    # A selection without the file does not need to know.
    assert values(since_run=1, days="2013-01-02") == [b"c", b"d", b"e"]
