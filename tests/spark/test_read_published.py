"""Destinations with very many files are read by their directories, and give exactly the published ones all the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafkalite.jobs import published
from spark_kafkalite.manifests.manifest import ManifestError
from spark_kafkalite.spark import read_published

from .job_runs import NEW_YEAR_MS, data_files, load
from .topics import Topics

pytestmark = pytest.mark.any_spark


@pytest.fixture
def one_day(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs with a file each in one directory, and more than is named to Spark one by one."""
    monkeypatch.setattr(published, "_NAMED_FILES", 2)
    topic = topics.new()
    for value in "abc":
        topics.fill(topic, [value], timestamp_ms=NEW_YEAR_MS)
        load(topics, topic, tmp_path)
    assert len({Path(file).parent for file in data_files(tmp_path)}) == 1
    return tmp_path


def leaves(frame: DataFrame) -> list[Any]:
    found = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [found.apply(number) for number in range(found.size())]


def roots(frame: DataFrame) -> list[str]:
    """Return the paths that Spark was given."""
    (relation,) = leaves(frame)
    paths = relation.relation().location().rootPaths()
    return [str(paths.apply(number)) for number in range(paths.size())]


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.collect())


def test_many_files_are_read_by_their_directories(spark: SparkSession, one_day: Path) -> None:
    tasks = spark.conf.get(published._LISTING_TASKS)
    frame = read_published(spark, str(one_day), check_counts=True)
    assert [Path(each).name for each in roots(frame)] == ["day=2013-01-01"]
    assert values(frame) == [b"a", b"b", b"c"]
    assert frame.columns == read_published(spark, str(one_day)).columns
    assert spark.conf.get(published._LISTING_TASKS) == tasks


def test_what_is_in_a_directory_and_not_published_is_not_read(spark: SparkSession, one_day: Path) -> None:
    first = one_day / data_files(one_day)[0]
    shutil.copy(first, first.with_name("other.parquet"))
    frame = read_published(spark, str(one_day), check_counts=True)
    assert len(roots(frame)) == 3
    assert values(frame) == [b"a", b"b", b"c"]


def test_what_is_missing_in_a_directory_or_cut_is_named(spark: SparkSession, one_day: Path) -> None:
    first = one_day / data_files(one_day)[0]
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(ManifestError, match=f"has {len(whole) - 1} bytes instead of {len(whole)}"):
        read_published(spark, str(one_day))
    first.unlink()
    with pytest.raises(ManifestError, match=f"{first.name} with 1 records, .* is not there"):
        read_published(spark, str(one_day))


def test_a_path_that_spark_takes_for_a_pattern_is_refused(spark: SparkSession, one_day: Path) -> None:
    # Spark would read both.
    other = one_day.with_name("other*")
    shutil.copytree(one_day, other)
    with pytest.raises(ValueError, match=r"other\*: Spark reads a path with \* as a pattern of several paths; name"):
        read_published(spark, str(other))
