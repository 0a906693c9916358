"""Runs of the jobs in the session of the tests, and what lies in their destinations afterwards."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.spark import read_published

from .topics import Topics

# Has a load of few records take the way of one with many.
BY_TASKS = ("--driver-bytes", "0")
NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


def days(topics: Topics) -> str:
    """Return a topic that a run loads into three files."""
    topic = topics.new()
    for day, value in enumerate("abc"):
        topics.fill(topic, [value], timestamp_ms=NEW_YEAR_MS + day * DAY_MS)
    return topic


def run(job: Any, topics: Topics, *arguments: str) -> dict[str, Any]:
    return run_alone(job, "--bootstrap-server", topics.bootstrap, *arguments)


def run_alone(job: Any, *arguments: str) -> dict[str, Any]:
    """Run a job that needs no broker."""
    result = CliRunner().invoke(job.main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.output.strip().splitlines()[-1])
    return document


def failure(job: Any, topics: Topics, *arguments: str, code: int | None = None) -> str:
    """Run a job that fails; return what it says. ``code`` is the exit code, None when it is not the matter."""
    result = CliRunner().invoke(job.main, ["--bootstrap-server", topics.bootstrap, *arguments])
    assert result.exit_code == code if code is not None else result.exit_code > 0, result.output
    return result.output


def load(topics: Topics, topic: str, destination: Path | str, *arguments: str) -> dict[str, Any]:
    return run(hadoop_load, topics, "--topic", topic, "--destination", str(destination), *arguments)


def data_files(destination: Path) -> list[str]:
    found = (path.relative_to(destination) for path in destination.rglob("*.parquet"))
    return sorted(str(path) for path in found if path.parts[0] != "_kafkalite")


def values(spark: SparkSession, destination: Path | str) -> list[str]:
    return sorted(row.value.decode() for row in read_published(spark, str(destination)).collect())


def manifests(destination: Path) -> list[dict[str, Any]]:
    """Return the documents of all manifests, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((destination / "_kafkalite" / "manifests").glob("*.json"))]
