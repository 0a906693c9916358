"""What a job says of a destination or a source that fails it, and its exit code: each failure is a real one."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import hadoop_load, replay, stream
from spark_kafkalite.jobs.load import load_run
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.crash.small_disk import SmallDisk, why_not
from tests.lab.hdfs import MiniHdfs
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .job_runs import BY_TASKS, failure, load, manifests
from .topics import Topics

pytestmark = [pytest.mark.any_spark]
_IMPATIENT = ("--option", "default.api.timeout.ms=1000")


def one_line(output: str) -> str:
    """Return what was said, which must be one line."""
    assert "Traceback" not in output
    assert len(output.splitlines()) == 1, output
    return output.removesuffix("\n")


def refused(topics: Topics, topic: str, destination: Path | str) -> str:
    given = ("--topic", topic, "--destination", str(destination))
    return one_line(failure(hadoop_load, topics, *given, code=5))


@pytest.fixture
def topic(topics: Topics) -> str:
    made = topics.new()
    topics.fill(made, ["a"])
    return made


def test_a_destination_below_a_file(topics: Topics, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    told = refused(topics, topic, tmp_path / "file" / "below")
    assert f"{tmp_path}/file/below" in told
    assert told.endswith("Not a directory; choose a place below no file")


def test_a_file_system_that_is_down(topics: Topics, topic: str) -> None:
    told = refused(topics, topic, "hdfs://127.0.0.1:1/nobody")
    assert told.startswith("Error: --destination hdfs://127.0.0.1:1/nobody: ConnectException: ")
    assert told.endswith("; check its scheme, host and port, and that its file system is up")
    assert "wiki" not in told


@pytest.mark.parametrize(
    ("destination", "said"),
    [
        ("nosuchscheme://x/y", 'No FileSystem for scheme "nosuchscheme"; check the scheme, or add the jars'),
        ("s3a://x/y", "S3AFileSystem not found; add the jars of its file system to Spark"),
    ],
)
def test_a_file_system_without_its_jar(topics: Topics, topic: str, destination: str, said: str, tmp_path: Path) -> None:
    assert said in refused(topics, topic, destination)
    for place in (
        ("--destination", destination, "--checkpoint", str(tmp_path)),
        ("--destination", str(tmp_path), "--checkpoint", destination),
    ):
        told = one_line(failure(stream, topics, "--topic", topic, *place, code=5))
        assert said in told
        assert destination in told


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    made = SmallDisk(tmp_path / "disk", 4 << 20)
    yield made
    made.unmount()


@pytest.mark.root
@pytest.mark.debian
@pytest.mark.parametrize("way", [(), BY_TASKS], ids=["in the driver", "by tasks"])
def test_a_full_disk(topics: Topics, disk: SmallDisk, way: tuple[str, ...]) -> None:
    topic = topics.new()
    chance = random.Random(1)
    for _ in range(8):
        topics.producer.send(topic, chance.randbytes(800_000), partition=0)
    topics.producer.flush(PATIENCE_S)
    destination = ("--destination", str(disk.path / "d"), "--lease", "1s", *way)
    *before, told = failure(hadoop_load, topics, "--topic", topic, *destination, code=5).splitlines()
    # Before Spark gives up, a renewal of the lease may have met the full disk; a slow host also shows progress.
    assert all(line.startswith(("WARNING: the lease of ", "loading: ")) for line in before), before
    assert "No space left on device" in told
    assert str(disk.path / "d") in told
    assert told.endswith("make room there and run again")
    # What was staged has been dropped, so the next run finds nothing to fence; it needs room for its own.
    subprocess.run(["mount", "-o", "remount,size=40m", str(disk.path)], check=True)
    assert load(topics, topic, disk.path / "d")["records"] == 8
    assert [len(each["files"]) for each in manifests(disk.path / "d")] == [1]


@pytest.mark.root
@pytest.mark.debian
def test_a_read_only_disk(topics: Topics, topic: str, disk: SmallDisk) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
    told = refused(topics, topic, disk.path / "d")
    assert str(disk.path) in told
    assert "Read-only file system; it is mounted read-only" in told


@pytest.mark.hdfs
@pytest.mark.parametrize("way", [(), BY_TASKS], ids=["in the driver", "by tasks"])
def test_an_exceeded_quota_of_hdfs(
    topics: Topics, topic: str, spark: SparkSession, hdfs: MiniHdfs, way: tuple[str, ...]
) -> None:
    """A quota of 1,000 bytes has no room for a block, one of a single name for nothing below the directory."""
    destination = f"{hdfs.uri}/quota/{topic}"
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(destination)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    files.mkdirs(path)
    none, no_change = -1, 2**63 - 1
    for names, size_bytes, exceeded in (
        (no_change, 1000, "DiskSpace quota"),
        (1, none, "NameSpace quota (directories and files)"),
    ):
        files.setQuota(path, names, size_bytes)
        told = failure(hadoop_load, topics, "--topic", topic, "--destination", destination, *way, code=5)
        assert re.search(rf"The {re.escape(exceeded)} of (directory )?/quota/{topic} is exceeded", one_line(told)), told
        assert "raise the quota of that directory (hdfs dfsadmin -setSpaceQuota or -setQuota)" in told
    files.setQuota(path, none, none)
    assert load(topics, topic, destination, *way)["records"] == 1


def test_a_source_that_is_not_there(topics: Topics, topic: str, tmp_path: Path, unused_address: str) -> None:
    place = ["--destination", str(tmp_path)]
    for job, more in ((hadoop_load, []), (replay, ["--from-timestamp", "0"])):
        given = ["--bootstrap-server", unused_address, "--topic", topic, *place, *more, *_IMPATIENT]
        result = CliRunner().invoke(job.main, given)
        assert result.exit_code == 3, result.output
        assert unused_address in one_line(result.output)
        told = failure(job, topics, "--topic", "absent", *place, *more, code=3)
        assert "kafkalite topics list" in one_line(told)


if SOAK:  # A task waits for two minutes.

    def test_a_source_that_goes_away_while_it_is_read_is_not_taken_for_the_destination(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with BrokerProcess(tmp_path / "broker") as broker, Topics(broker.bootstrap, spark, "gone") as topics:
            topic = topics.new()
            topics.fill(topic, ["a"])
            monkeypatch.setattr(load_run, "fault_point", lambda name: broker.kill())
            given = ("--topic", topic, "--destination", str(tmp_path / "d"), *_IMPATIENT)
            told = failure(hadoop_load, topics, *given, code=3)
        # After lines about the progress that there is not.
        assert told.splitlines()[-1].startswith(f"Error: [KAFKALITE_READ_FAILED] {topic}-0[0, 1): no broker answers")
        assert broker.bootstrap in told


def test_the_exit_codes_are_in_every_jobs_help() -> None:
    for job in (hadoop_load, replay, stream):
        result = CliRunner().invoke(job.main, ["--help"])
        assert "6  another run holds the destination" in result.output
        assert "--debug" in result.output


def test_debug_shows_what_is_behind_the_line(topics: Topics, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    told = failure(
        hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path / "file" / "x"), "--debug", code=5
    )
    assert "Traceback (most recent call last)" in told
    assert "NotADirectoryError" in told
    assert told.splitlines()[-1].startswith("Error: ")
