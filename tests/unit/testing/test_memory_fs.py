"""What a crash and a fault leave; that it is a file system at all is checked by the contract suite."""

from __future__ import annotations

import errno
import random

import pytest

from spark_kafkalite.log.files.fs import write_whole
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash


@pytest.fixture
def fs() -> MemoryFs:
    """``/d/a`` holds "abcdef" of which "abc" is synced; ``/d/new`` is synced, its name is not."""
    fs = MemoryFs()
    fs.make_directories("/d")
    fs.sync_directory("/")
    write_whole(fs.open("/d/a", create=True), b"abc")
    fs.open("/d/a").sync()
    fs.sync_directory("/d")
    write_whole(fs.open("/d/a"), b"def", 3)
    write_whole(fs.open("/d/new", create=True), b"x")
    fs.open("/d/new").sync()
    return fs


def test_process_crash_keeps_everything(fs: MemoryFs) -> None:
    assert fs.crash(CrashMode.PROCESS).files() == {"/d/a": b"abcdef", "/d/new": b"x"}


def test_power_loss_keeps_what_was_synced(fs: MemoryFs) -> None:
    assert fs.crash(CrashMode.POWER).files() == {"/d/a": b"abc"}


def test_power_loss_empties_a_file_whose_name_alone_was_synced(fs: MemoryFs) -> None:
    write_whole(fs.open("/d/b", create=True), b"y")
    fs.sync_directory("/d")
    assert fs.crash(CrashMode.POWER).files()["/d/b"] == b""


def test_power_loss_undoes_renames_and_removals_that_were_not_synced(fs: MemoryFs) -> None:
    fs.rename("/d/a", "/d/b")
    assert fs.crash(CrashMode.POWER).files() == {"/d/a": b"abc"}
    fs.unlink("/d/b")
    assert fs.crash(CrashMode.POWER).files() == {"/d/a": b"abc"}
    fs.sync_directory("/d")
    assert fs.crash(CrashMode.POWER).files() == {"/d/new": b"x"}


def test_torn_power_loss_leaves_many_things_but_always_what_was_synced(fs: MemoryFs) -> None:
    chance = random.Random(3)
    found = [fs.crash(CrashMode.POWER_TORN, chance).files() for _ in range(300)]
    contents = {files["/d/a"] for files in found}
    assert all(content.startswith(b"abc") for content in contents)
    assert {b"abc", b"abcd", b"abcde", b"abcdef", b"abc\0\0\0"} <= contents
    assert any("/d/new" in files for files in found)
    assert any("/d/new" not in files for files in found)
    with pytest.raises(ValueError, match="chance"):
        fs.crash(CrashMode.POWER_TORN)


def test_crashed_state_is_a_copy(fs: MemoryFs) -> None:
    after = fs.crash(CrashMode.PROCESS)
    write_whole(after.open("/d/a"), b"ZZZ")
    assert fs.files()["/d/a"] == b"abcdef"


def test_stop_leaves_half_a_write_and_nothing_works_afterwards(fs: MemoryFs) -> None:
    fs.stop_at(fs.operations + 1)
    with pytest.raises(SimulatedCrash):
        fs.open("/d/a").pwrite(b"1234", 6)
    with pytest.raises(SimulatedCrash):
        fs.open("/d/a").pwrite(b"1234", 0)
    with pytest.raises(SimulatedCrash):
        fs.unlink("/d/a")
    assert fs.crash(CrashMode.PROCESS).files()["/d/a"] == b"abcdef12"


def test_chosen_operations_fail_as_often_as_asked(fs: MemoryFs) -> None:
    fs.fail("pwrite", errno.EIO, path_part="/a", skip=1, times=1)
    file = fs.open("/d/a")
    file.pwrite(b"1", 0)
    fs.open("/d/new").pwrite(b"1", 0)
    with pytest.raises(OSError) as caught:
        file.pwrite(b"2", 0)
    assert caught.value.errno == errno.EIO
    file.pwrite(b"3", 0)
    assert fs.files()["/d/a"] == b"3bcdef"


def test_failed_sync_loses_the_writes_although_the_next_succeeds(fs: MemoryFs) -> None:
    fs.fail("sync")
    file = fs.open("/d/a")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert fs.files()["/d/a"] == b"abcdef"
    assert fs.crash(CrashMode.POWER).files()["/d/a"] == b"abc"


def test_full_disk_cuts_writes_short_and_then_refuses_them(fs: MemoryFs) -> None:
    fs.capacity_bytes = 9
    file = fs.open("/d/a")
    assert file.pwrite(b"ghij", 6) == 2
    with pytest.raises(OSError) as caught:
        file.pwrite(b"k", 8)
    assert caught.value.errno == errno.ENOSPC
    assert file.pwrite(b"AB", 0) == 2, "what has room already is not refused"
