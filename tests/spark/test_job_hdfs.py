"""The load job on a real HDFS of several processes, parts of which are killed while it works: with KAFKALITE_SOAK=1."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.manifests.files import HadoopFiles, files_for
from spark_kafkalite.manifests.manifest import STAGING
from spark_kafkalite.spark import read_published
from tests.lab import hdfs
from tests.lab.hdfs_processes import HdfsProcesses
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .job_processes import JobProcess, is_stopped, wait_for_job, wake
from .job_runs import BY_TASKS
from .topics import Topics

pytestmark = [pytest.mark.any_spark, pytest.mark.hdfs, pytest.mark.timeout(900)]

RECORDS, PARTITIONS, RECORD_BYTES = 60, 2, 500_000
NOT_A_SUPERUSER = "somebody"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HdfsProcesses]:
    if (reason := hdfs.available()) is not None:
        pytest.skip(reason)
    with HdfsProcesses(tmp_path / "hdfs") as running:
        yield running


@pytest.fixture
def topic(topics: Topics) -> str:
    """Enough bytes that a load of them can be met in the middle."""
    made = topics.new(PARTITIONS)
    chance = random.Random(7)
    for number in range(RECORDS):
        value, key = chance.randbytes(RECORD_BYTES), str(number).encode()
        topics.producer.send(made, value, key=key, partition=number % PARTITIONS)
    topics.producer.flush(PATIENCE_S)
    return made


class Loads:
    """Loads of a topic into a destination on an HDFS, in processes of their own."""

    def __init__(self, topics: Topics, topic: str, cluster: HdfsProcesses, directory: Path) -> None:
        self.topics = topics
        self.topic = topic
        self.cluster = cluster
        self.directory = directory
        self.destination = f"{cluster.uri}/loads"

    def start(self, *more: str, fault: str = "", **variables: str) -> JobProcess:
        given = ("--bootstrap-server", self.topics.bootstrap, "--topic", self.topic)
        return JobProcess(
            self.directory, "hadoop_load", *given, "--destination", self.destination, "--lease", "3s", "--json",
            *BY_TASKS, *more, fault=fault, conf={"spark.hadoop.dfs.replication": str(self.cluster.nodes)}, **variables,
        )  # fmt: skip

    def files(self) -> HadoopFiles:
        found = files_for(self.topics.spark, self.destination)
        assert isinstance(found, HadoopFiles)
        return found

    def await_stage(self, job: JobProcess) -> None:
        """Wait until Spark writes its files."""
        files = self.files()

        def seen() -> bool:
            runs = files.names(STAGING)
            return bool(runs) and files.exists(f"{STAGING}/{runs[0]}/data-0/_temporary/0")

        wait_for_job(job, seen, "writing its files")

    def check_once(self) -> None:
        rows = read_published(self.topics.spark, self.destination, check_counts=True).select("key").collect()
        assert sorted(int(row.key) for row in rows) == list(range(RECORDS))


@pytest.fixture
def loads(topics: Topics, topic: str, cluster: HdfsProcesses, tmp_path: Path) -> Loads:
    return Loads(topics, topic, cluster, tmp_path)


if SOAK:

    def test_a_data_node_is_killed_in_a_load(loads: Loads) -> None:
        with loads.start() as job:
            loads.await_stage(job)
            loads.cluster.kill_data_node(0)
            code = job.wait(600)
            print(f"exit code {code}: {job.said[-1]}")
            assert code in (0, 5), job.process.tail()
        if code:
            with loads.start() as job:
                assert job.wait(600) == 0, job.process.tail()
        loads.check_once()

    @pytest.mark.parametrize("when", ["stage", "staged"])
    def test_the_name_node_is_restarted_in_a_load(loads: Loads, when: str) -> None:
        with loads.start(fault="staged:stop" if when == "staged" else "") as job:
            loads.await_stage(job)
            if when == "staged":
                wait_for_job(job, lambda: is_stopped(job.process.pid), "stopped before its manifest")
            loads.cluster.stop_name_node()
            if when == "staged":
                wake(job.process.pid)
            loads.cluster.start_name_node()
            code = job.wait(600)
            print(f"exit code {code}: {job.said[-1]}")
            assert code in (0, 5), job.process.tail()
        if code:
            with loads.start() as job:
                assert job.wait(600) == 0, job.process.tail()
        loads.check_once()

    def test_two_loaders_start_at_once(loads: Loads) -> None:
        with loads.start("--wait", "300") as first, loads.start("--wait", "300") as second:
            results = [each.result() for each in (first, second)]
        assert sorted(each["records"] for each in results) == [0, RECORDS]
        loads.check_once()

    def test_two_loaders_start_at_once_and_one_does_not_wait(loads: Loads) -> None:
        with loads.start("--wait", "0") as first, loads.start("--wait", "0") as second:
            codes = sorted((first.wait(600), second.wait(600)))
            said = first.said + second.said
        # The later one may have begun when the other had ended.
        assert codes in ([0, 6], [0, 0]), said
        print(codes, [line for line in said if "holds the destination" in line])
        loads.check_once()

    def test_hdfs_goes_away_in_the_stage_and_comes_back(loads: Loads) -> None:
        with loads.start() as job:
            loads.await_stage(job)
            loads.cluster.stop_name_node()
            assert job.wait(800) == 5, job.process.tail()
            print([line for line in job.said if "kafkalite: " in line])
            assert "Traceback" not in "\n".join(job.said)
        loads.cluster.start_name_node()
        with loads.start() as job:
            assert job.result()["records"] == RECORDS
        loads.check_once()

    def test_another_user_may_not_write_there(loads: Loads) -> None:
        with loads.start(HADOOP_USER_NAME=NOT_A_SUPERUSER) as job:
            assert job.wait(300) == 5
            told = [line for line in job.said if line.startswith("kafkalite: ")]
        assert len(told) == 1
        assert f"Permission denied: user={NOT_A_SUPERUSER}" in told[0]
        assert told[0].endswith("run as a user with write permission there, or change its permissions")
