from __future__ import annotations

import errno

import pytest

from spark_kafkalite.log.fs import read_whole, replace_file, write_whole
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
