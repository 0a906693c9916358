from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.file_kind import Kind
from spark_kafkalite.log.files.fs import read_whole, replace_file, write_whole
from spark_kafkalite.log.files.needs_thread import NotInMemory, without_waiting
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs


def test_short_write_is_reported_as_a_full_disk(fs: MemoryFs) -> None:
    fs.fail("pwrite", written=2)
    with pytest.raises(OSError) as caught:
        write_whole(fs.open("/data/a", create=True), b"hello")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_directory"])
def test_failed_replacement_keeps_a_whole_file(fs: MemoryFs, operation: str) -> None:
    replace_file(fs, "/data/a", b"old")
    fs.fail(operation)
    with pytest.raises(OSError):
        replace_file(fs, "/data/a", b"new")
    assert read_whole(fs, "/data/a") in (b"old", b"new")


def test_replacement_survives_a_power_loss(fs: MemoryFs) -> None:
    fs.sync_directory("/")
    replace_file(fs, "/data/a", b"new")
    assert read_whole(fs.crash(CrashMode.POWER), "/data/a") == b"new"


def test_a_lock_excludes_programs_in_java_too(tmp_path: Path) -> None:
    """Apache Kafka locks its directories as Java does, which flock() does not see."""
    path = tmp_path / ".lock"
    take = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    hold = f"{take}; print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert OsFs().lock(str(path)) is None
        holder.communicate("\n")
    lock = OsFs().lock(str(path))
    assert lock is not None
    assert subprocess.run([sys.executable, "-c", take, path], capture_output=True).returncode == 1
    lock.release()
    assert subprocess.run([sys.executable, "-c", take, path], capture_output=True).returncode == 0


def put_out_of_memory(file: OsFile, position: int) -> NotInMemory:
    """Have the kernel forget a file, and return what a read then says."""
    for _ in range(500):
        # It is advice: a page that another processor has just had to do with stays.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with without_waiting():
            try:
                file.pread(100, position)
            except NotInMemory as found:
                return found
        time.sleep(0.01)
    pytest.skip("this file system keeps everything in memory, or cannot tell")


def test_a_read_without_waiting_says_what_is_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(bytes(8 << 20))
    file = OsFs().open(str(path))
    file.sync()
    missing = put_out_of_memory(file, 6 << 20)
    assert len(file.pread(10, 0)) == 10  # outside it waits
    missing.work()
    assert file.pread(1, (8 << 20) - 1) == b"\0"
    with without_waiting():
        assert file.pread(100, 6 << 20) == bytes(100)
        assert file.pread(100, (8 << 20) - 10) == bytes(10)
        assert file.pread(100, 9 << 20) == b""
    small = tmp_path / "index"
    small.write_bytes(bytes(1 << 20))
    file = OsFs().open(str(small))
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    NotInMemory(file, 500_000, 8).work()
    with without_waiting():
        assert len(file.pread(1 << 20, 0)) == 1 << 20  # small files are read to their end


@pytest.mark.parametrize("kind", [Kind.PIPE, Kind.SOCKET, Kind.DEVICE, Kind.LINK, Kind.DIRECTORY])
def test_what_is_no_regular_file_is_not_opened_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "/dev/null" if kind is Kind.DEVICE else "it"
    if kind is Kind.PIPE:
        os.mkfifo(path)
    elif kind is Kind.SOCKET:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path)
    elif kind is Kind.LINK:
        os.symlink("nowhere", path)
    elif kind is Kind.DIRECTORY:
        os.mkdir(path)
    fs = OsFs()
    assert fs.kind(path) is kind
    for open_it in (lambda: fs.open(path), lambda: fs.open(path, create=True), lambda: fs.lock(path)):
        with pytest.raises(OSError, match=f"{path} is a {kind.value}.* put the file in its place") as caught:
            open_it()
        assert kind_of(caught.value) is FailureKind.REFUSED
    if kind is not Kind.DEVICE:
        assert [(entry.name, entry.kind) for entry in fs.entries(".")] == [("it", kind)]
    if kind in (Kind.PIPE, Kind.SOCKET, Kind.LINK):
        with pytest.raises(FileExistsError, match=f"{path} is a {kind.value}.* put the directory in its place"):
            fs.make_directories(path)
