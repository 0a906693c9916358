"""Loads and compactions that are killed at every place where it matters: the files hold the log, each record once.

``make test`` kills one, and test_job_lease.py fails runs at every place without a process of their own. The soak kills
fifteen at each place.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import compact
from spark_kafkalite.spark import read_published
from tests.seeds import SEED

from .job_processes import JobProcess
from .job_runs import BY_TASKS, DAY_MS, NEW_YEAR_MS, load, run_alone
from .topics import Topics

pytestmark = [pytest.mark.any_spark]

KILLS = 15
# The place, and how often a run over three days passes it at most.
PLACES = {
    "planned": 1,
    "staging": 1,
    "staged": 1,
    "manifest": 1,
    "moved-one": 3,
    "recovery": 2,
    "compaction": 1,
}


class Destination:
    """A topic, what was sent to it, and a directory that is to hold the same."""

    def __init__(self, topics: Topics, spark: SparkSession, directory: Path) -> None:
        self.topics = topics
        self.spark = spark
        self.directory = directory
        self.topic = topics.new(2)
        self.sent: list[str] = []

    def send(self, chance: random.Random) -> None:
        """Send some records of three days to both partitions."""
        for day in range(3):
            for partition in range(2):
                values = [f"{len(self.sent)}-{number}" for number in range(chance.randrange(1, 4))]
                self.topics.fill(self.topic, values, partition, timestamp_ms=NEW_YEAR_MS + day * DAY_MS)
                self.sent += values

    def arguments(self) -> list[str]:
        given = ["--destination", str(self.directory), "--lease", "1s"]
        return ["--bootstrap-server", self.topics.bootstrap, "--topic", self.topic, *given]

    def kill(self, job: str, fault: str, chance: random.Random) -> None:
        """Run a job that is killed, or comes to its end because it does not pass the place so often."""
        if job == "hadoop_load":
            arguments = [*self.arguments(), *chance.choice([(), BY_TASKS])]
        else:
            arguments = [*self.arguments()[4:], "--min-files", "2"]
        with JobProcess(self.directory.parent, job, *arguments, fault=fault) as process:
            assert process.wait() in (-9, 0), process.process.tail()

    def check(self) -> None:
        """Load what is left, and hold the files against what was sent: by the manifests, and by a plain listing."""
        load(self.topics, self.topic, self.directory)
        published = read_published(self.spark, str(self.directory), check_counts=True)
        plain = self.spark.read.parquet(f"{self.directory}/{self.topic}")
        for frame in (published, plain):
            assert sorted(row.value.decode() for row in frame.select("value").collect()) == sorted(self.sent)
        assert not list((self.directory / "_kafkalite" / "staging").glob("*"))


def kill_at(destination: Destination, place: str, chance: random.Random) -> None:
    """Kill one run at a place that it has reached."""
    destination.send(chance)
    fault = f"{place}:kill:{chance.randrange(PLACES[place]) + 1}"
    if place == "compaction":
        load(destination.topics, destination.topic, destination.directory)
        # Before it is staged, before its manifest, or in its moves.
        destination.kill("compact", chance.choice([fault, "staged:kill", "manifest:kill", "moved-one:kill"]), chance)
        destination.check()
        run_alone(compact, "--destination", str(destination.directory), "--min-files", "2")
        return
    if place == "recovery":
        destination.kill("hadoop_load", chance.choice(["staging:kill", "staged:kill"]), chance)
    destination.kill("hadoop_load", fault, chance)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", PLACES)
def test_jobs_killed_anywhere_leave_each_record_once(
    topics: Topics, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    print(f"KAFKALITE_SEED={SEED}")
    chance = random.Random(f"{SEED} {place}")
    destination = Destination(topics, spark, tmp_path / "d")
    for _ in range(KILLS):
        kill_at(destination, place, chance)
        destination.check()


def test_a_load_killed_in_its_moves_leaves_each_record_once(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    destination = Destination(topics, spark, tmp_path / "d")
    kill_at(destination, "moved-one", random.Random("moved-one"))
    destination.check()
