"""Two load jobs over one destination: one that was paused for too long wakes up, or one that was killed does not.

``KAFKALITE_SOAK=1`` pauses one at every point.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import hadoop_load, replay
from spark_kafkalite.jobs.destination.lease import Holder, lease_path
from spark_kafkalite.jobs.program.faults import VARIABLE, forget_passed
from spark_kafkalite.manifests.files import LocalFiles
from tests.seeds import SOAK

from .job_processes import JobProcess, await_stopped, lease_of, wake
from .job_runs import DAY_MS, NEW_YEAR_MS, data_files, days, failure, load, manifests, values
from .topics import Topics

pytestmark = [pytest.mark.any_spark]


def arguments(topics: Topics, topic: str, destination: Path, *more: str) -> list[str]:
    given = ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(destination)]
    return [*given, "--lease", "1s", *more, "--json"]


def check_once(topics: Topics, topic: str, spark: SparkSession, destination: Path) -> None:
    """Check that the files hold what the topic does, each record once, and that nothing is left to do."""
    assert load(topics, topic, destination)["records"] == 0
    assert values(spark, destination) == sorted(topics.values(topic))
    plain = spark.read.parquet(*(str(destination / file) for file in data_files(destination)))
    assert sorted(row.value.decode() for row in plain.collect()) == sorted(topics.values(topic))


def test_a_run_that_was_paused_before_its_manifest_ends_with_code_6(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic, destination = days(topics), tmp_path / "d"
    given = arguments(topics, topic, destination)
    with JobProcess(tmp_path, "hadoop_load", *given, fault="staged:stop", submitted=True) as paused:
        pid = await_stopped(destination, paused)
        run = lease_of(destination)["run"]
        taken_over = load(topics, topic, destination)
        assert (taken_over["discarded_runs"], taken_over["records"]) == ([run], 3)
        # The fence, then the load.
        assert [len(each["files"]) for each in manifests(destination)] == [0, 3]
        wake(pid)
        assert paused.wait() == 6
        told = [line for line in paused.said if line.startswith("Error: ")]
        assert len(told) == 1, paused.said
        assert f"another run took over and made manifest 1 while this one ({run}) was working" in told[0]
        assert "Traceback" not in "\n".join(paused.said)
    check_once(topics, topic, spark, destination)


if SOAK:

    @pytest.mark.parametrize("point", ["planned", "staging", "staged", "manifest", "moved-one", "recovery"])
    def test_a_run_that_was_paused_anywhere_publishes_nothing_twice(
        topics: Topics, spark: SparkSession, tmp_path: Path, point: str
    ) -> None:
        topic, destination = days(topics), tmp_path / "d"
        given = arguments(topics, topic, destination)
        if point == "recovery":
            with JobProcess(tmp_path, "hadoop_load", *given, fault="planned:kill") as killed:
                assert killed.wait() == -9
        with JobProcess(tmp_path, "hadoop_load", *given, fault=f"{point}:stop") as paused:
            pid = await_stopped(destination, paused)
            taken_over = load(topics, topic, destination)
            committed = point in ("manifest", "moved-one")
            assert taken_over["records"] == (0 if committed else 3)
            assert taken_over["recovered_files"] == {"manifest": 3, "moved-one": 2}.get(point, 0)
            wake(pid)
            assert paused.wait() == (0 if committed else 6), paused.process.tail()
        check_once(topics, topic, spark, destination)


@pytest.mark.parametrize("job", [hadoop_load, replay], ids=["hadoop_load", "replay"])
def test_who_holds_the_destination_is_told_in_one_line_and_by_code_6(topics: Topics, tmp_path: Path, job: Any) -> None:
    topic = days(topics)
    holder = Holder("r1", "h", 7, "u", "2026-01-01T00:00:00+00:00", 60_000)
    LocalFiles(tmp_path).write_new(lease_path(1), json.dumps(asdict(holder)))
    given = ("--topic", topic, "--destination", str(tmp_path), "--wait", "0")
    if job is replay:
        given += ("--from-offsets", '{"0": 0}')
    told = failure(job, topics, *given, code=6)
    assert len(told.splitlines()) == 1, told
    assert f"Error: file://{tmp_path}: run r1 (host h, pid 7, user u, since 2026-01-01T00:00:00+00:00) holds" in told
    assert not (tmp_path / "_kafkalite" / "staging").exists()


def test_a_run_that_failed_at_any_point_is_completed_or_dropped_by_the_next(
    topics: Topics, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new()
    for number, point in enumerate(["planned", "staging", "staged", "manifest", "moved-one", "recovery"]):
        for day in range(2):
            topics.fill(topic, [f"{number}-{day}"], timestamp_ms=NEW_YEAR_MS + (number + day) * DAY_MS)
        if point == "recovery":
            LocalFiles(tmp_path).write_new("_kafkalite/staging/dead/data/half-written", "x")
        forget_passed()
        monkeypatch.setenv(VARIABLE, f"{point}:raise")
        told = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), code=1)
        assert told.splitlines() == [
            f"Error: FaultInjected: {VARIABLE} asks for an error at {point}; --debug shows where"
        ]
        monkeypatch.delenv(VARIABLE)
        # It has released its lease, so this does not wait.
        after = load(topics, topic, tmp_path, "--wait", "0")
        assert after["records"] == (0 if point in ("manifest", "moved-one") else 2)
        assert after["recovered_files"] == {"manifest": 2, "moved-one": 1}.get(point, 0)
        assert len(after["discarded_runs"]) == (point not in ("manifest", "moved-one"))
    check_once(topics, topic, spark, tmp_path)
