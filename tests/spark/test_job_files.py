"""One suite for both implementations of the jobs' file seam: the local file system and a real HDFS."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_kafkalite.jobs.destination import lease
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.manifests.files import FileExists, Files, HadoopFiles, LocalFiles, files_for
from tests.patience import wait_until

_COUNTER = itertools.count()


@pytest.fixture(params=["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    if request.param == "local":
        made = files_for(spark, str(tmp_path / "with space"))
        assert isinstance(made, LocalFiles)
        return made
    cluster = request.getfixturevalue("hdfs")
    made = files_for(spark, f"{cluster.uri}/contract/{next(_COUNTER)} x/")
    assert isinstance(made, HadoopFiles)
    return made


def test_nothing_is_there_at_first(files: Files) -> None:
    assert files.names("a") == []
    assert not files.exists("a/b")
    files.delete("a/b")
    with pytest.raises(FileNotFoundError):
        files.read("a/b")


def test_written_text_is_read_back(files: Files) -> None:
    files.write_new("a/b.json", "grüße\n")
    assert files.read("a/b.json") == "grüße\n"
    assert files.names("a") == ["b.json"]
    assert files.exists("a/b.json")
    assert files.exists("a")
    assert files.size_bytes("a/b.json") == len("grüße\n".encode())
    assert files.size_bytes("a/c.json") is None


def test_bytes_are_appended_and_read_back(files: Files) -> None:
    small = files.create("a/small")
    small.write(b"few")
    small.close()
    with files.open("a/small") as opened:
        assert (opened.seek(1), opened.read(), opened.read()) == (1, b"ew", b"")
    data = [bytes(range(256)), b"", b"\r\n\x00", b"x" * (9 << 20)]
    made = files.create("a/b/c.parquet")
    for each in data:
        made.write(each)
    made.close()
    whole = b"".join(data)
    with files.open("a/b/c.parquet") as opened:
        assert opened.read() == whole
        assert opened.read() == b""
        for begin, count in ((0, 4), (200, 70), (len(whole) - 5, 5), (3 << 20, 2 << 20)):
            opened.seek(begin)
            assert opened.read(count) == whole[begin : begin + count]
        assert opened.seek(-3, os.SEEK_END) == len(whole) - 3
        assert opened.read(10) == b"xxx"
    with pytest.raises(FileNotFoundError):
        files.open("a/b/d.parquet")
    with pytest.raises((FileExistsError, Py4JJavaError), match="exists"):
        files.create("a/b/c.parquet")


def test_a_file_is_never_replaced(files: Files) -> None:
    files.write_new("a/b", "first")
    with pytest.raises(FileExists):
        files.write_new("a/b", "second")
    assert files.names("a") == ["b"]
    files.write_new("a/c", "third")
    with pytest.raises(FileExists):
        files.rename_new("a/c", "a/b")
    assert files.read("a/b") == "first"
    assert files.read("a/c") == "third"


def test_a_replaced_file_has_the_new_text_and_a_later_time(files: Files) -> None:
    files.write_new("a/b", "first")
    written_ms = files.modified_ms("a/b")
    assert written_ms is not None
    files.replace("a/b", "grüße")
    assert (files.read("a/b"), files.names("a")) == ("grüße", ["b"])
    assert (files.modified_ms("a/b") or 0) >= written_ms
    assert files.modified_ms("a/c") is None


def test_what_lies_beside_has_the_name_and_a_suffix(files: Files) -> None:
    copy = files.beside(".copy")
    assert copy.root == f"{files.root}.copy"
    copy.write_new("a/b", "text")
    assert copy.read("a/b") == "text"
    assert not files.exists("a/b")


def test_rename_moves_into_a_new_directory(files: Files) -> None:
    files.write_new("a/b", "text")
    files.rename_new("a/b", "c/day=2013-01-01/d")
    assert files.names("a") == []
    assert files.read("c/day=2013-01-01/d") == "text"
    # Also where the target is there: that it was moved before must not look as if it could not be moved.
    for target in ("c/e", "c/day=2013-01-01/d"):
        with pytest.raises(FileNotFoundError):
            files.rename_new("a/b", target)


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_the_longest_names_are_taken_and_longer_ones_fail(files: Files, kind: str) -> None:
    longest = "x" * files.name_max_bytes
    files.write_new("a", "text")
    files.rename_new("a", f"{longest}/b" if kind == "directory" else f"b/{longest}")
    files.write_new("a", "text")
    with pytest.raises((OSError, Py4JJavaError)):
        files.rename_new("a", f"{longest}x/b" if kind == "directory" else f"b/{longest}x")


def test_delete_takes_a_directory_with_all_it_holds(files: Files) -> None:
    files.write_new("a/b/c", "1")
    files.write_new("a/d", "2")
    files.delete("a/d")
    assert files.names("a") == ["b"]
    files.delete("a")
    assert not files.exists("a")


@pytest.mark.versions
def test_spark_writes_where_the_seam_looks(files: Files, spark: SparkSession) -> None:
    spark.range(3).coalesce(1).write.parquet(f"{files.root}/numbers")
    assert any(name.endswith(".parquet") for name in files.names("numbers"))


def test_the_default_file_system_decides_about_a_path_without_scheme(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(files_for(spark, str(tmp_path)), LocalFiles)
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    before = configuration.get("fs.defaultFS", "file:///")
    configuration.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        assert isinstance(files_for(spark, f"file://{tmp_path}"), LocalFiles)
        assert isinstance(files_for(spark, "/data"), HadoopFiles)
    finally:
        configuration.set("fs.defaultFS", before)


def test_a_lease_is_renewed_by_a_thread_beside_the_calls_of_the_run(files: Files, spark: SparkSession) -> None:
    said: list[str] = []
    # Long enough that a host that stands still for some seconds does not end it.
    with lease.held(files, "r1", lease_ms=6000, wait_ms=None, say=said.append) as held:
        path = lease.lease_path(held.number)
        times = set()

        def renewed_twice() -> bool:
            times.add(files.modified_ms(path))
            assert spark.range(3).count() == 3
            return len(times) == 3

        wait_until(renewed_twice, "two renewals of the lease", poll_s=0.5)
        with pytest.raises(DestinationHeld), lease.held(files, "r2", lease_ms=6000, wait_ms=0, say=said.append):
            raise AssertionError("r2 holds it")
        assert files.names(lease.LEASES) == [path.rpartition("/")[2]]
    # Released, and the clock's file is gone.
    with lease.held(files, "r3", lease_ms=60_000, wait_ms=0, say=said.append) as third:
        assert third.number == held.number + 1
        assert files.names(lease.LEASES) == [lease.lease_path(third.number).rpartition("/")[2]]
    assert said == []


def test_a_lease_that_is_not_renewed_ends_by_the_clock_of_the_file_system(files: Files) -> None:
    dead = asdict(lease.Holder.of_this_process("dead", 400))
    files.write_new(lease.lease_path(1), json.dumps(dead))
    written_ms = files.modified_ms(lease.lease_path(1)) or 0
    with lease.held(files, "r1", lease_ms=60_000, wait_ms=None, say=[].append) as held:
        assert held.number == 2
        assert (files.modified_ms(lease.lease_path(2)) or 0) >= written_ms + 400


def test_the_end_of_a_file_is_read(files: Files) -> None:
    made = files.create("a/b")
    made.write(b"0123456789")
    made.close()
    assert files.tail("a/b", 4) == (10, b"6789")
    assert files.tail("a/b", 100) == (10, b"0123456789")
    with pytest.raises(FileNotFoundError):
        files.tail("a/c", 4)


def test_a_directory_moves_with_all_it_holds(files: Files) -> None:
    files.write_new("a/b/c", "text")
    files.move_directory("a/b", "x/y/z")
    assert (files.names("a"), files.read("x/y/z/c")) == ([], "text")
    with pytest.raises(FileNotFoundError):
        files.move_directory("a/b", "x/y/w")
