"""SIGTERM, by which YARN and Airflow end a job: it releases its lease, and drops what it has staged where that is safe.

The soak also ends one after its commit, one while Spark's tasks write, and one of spark-submit.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.patience import PATIENCE_S

from .job_processes import JobProcess, await_stopped, lease_of, wait_for_job, wake
from .job_runs import BY_TASKS, days, load, manifests, values
from .topics import Topics

pytestmark = [pytest.mark.any_spark]


def staged(destination: Path) -> list[str]:
    return [path.name for path in (destination / "_kafkalite" / "staging").iterdir()]


def arguments(topics: Topics, topic: str, destination: Path) -> list[str]:
    return ["--bootstrap-server", topics.bootstrap, "--topic", topic, "--destination", str(destination)]


@pytest.mark.parametrize("point", ["staging", pytest.param("manifest", marks=pytest.mark.soak)])
def test_a_load_that_is_told_to_end_lets_go_and_the_next_goes_on(
    topics: Topics, spark: SparkSession, tmp_path: Path, point: str
) -> None:
    topic, destination = days(topics), tmp_path / "d"
    with JobProcess(tmp_path, "hadoop_load", *arguments(topics, topic, destination), fault=f"{point}:stop") as job:
        pid = await_stopped(destination, job)
        assert len(staged(destination)) == 1
        os.kill(pid, signal.SIGTERM)
        wake(pid)
        assert job.wait() == 143, job.process.tail()
        assert "stopped by SIGTERM; run again to go on" in job.said[-1]
        assert "Traceback" not in "\n".join(job.said)
    committed = point == "manifest"
    # What is committed has moves to do, which the next run finds by it.
    assert len(staged(destination)) == committed
    assert lease_of(destination)["released"]
    after = load(topics, topic, destination, "--wait", "0")
    assert (after["recovered_files"], after["records"]) == ((3, 0) if committed else (0, 3))
    # No fence: there was nothing to take from anybody.
    assert [len(each["files"]) for each in manifests(destination)] == [3]
    assert values(spark, destination) == ["a", "b", "c"]


@pytest.mark.soak
@pytest.mark.parametrize("submitted", [False, True], ids=["in this process", "by spark-submit"])
def test_a_load_is_told_to_end_while_tasks_write(
    topics: Topics, spark: SparkSession, tmp_path: Path, submitted: bool
) -> None:
    """To a spark-submit the signal comes as to its group, as YARN and shells send it."""
    topic, destination = topics.new(4), tmp_path / "d"
    chance = random.Random(5)
    for number in range(200):
        topics.producer.send(topic, chance.randbytes(500_000), partition=number % 4)
    topics.producer.flush(PATIENCE_S)
    given = [*arguments(topics, topic, destination), "--file-size", "8m", *BY_TASKS]
    with JobProcess(tmp_path, "hadoop_load", *given, submitted=submitted) as job:

        def writes() -> bool:
            return any((destination / "_kafkalite" / "staging").glob("*/data-0/_temporary/0/_temporary/*"))

        wait_for_job(job, writes, "writing in its tasks")
        if submitted:
            os.killpg(job.process.pid, signal.SIGTERM)
        else:
            job.process.signal(signal.SIGTERM)
        assert job.wait() == 143, job.process.tail()
    assert manifests(destination) == []
    # A task that ends late, as on a slow host, may leave files in staging: the next run deletes them.
    assert lease_of(destination)["released"]
    assert load(topics, topic, destination, "--wait", "0")["records"] == 200
