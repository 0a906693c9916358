from __future__ import annotations

import pytest

from spark_kafkalite.log.files.fs import File
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.testing.memory_fs import MemoryFs


def test_least_recently_used_file_goes_first(fs: MemoryFs) -> None:
    files = OpenFiles(fs, capacity=2)
    first = files.open("/data/a", create=True)
    second = files.open("/data/b", create=True)
    assert files.open("/data/a") is first
    files.open("/data/c", create=True)
    assert len(files) == 2
    assert files.open("/data/a") is first
    assert files.open("/data/b") is not second


def test_forgotten_name_may_stand_for_another_file(fs: MemoryFs) -> None:
    files = OpenFiles(fs)
    old = files.open("/data/a", create=True)
    old.pwrite(b"old", 0)
    fs.unlink("/data/a")
    files.forget("/data/a")
    files.forget("/data/a")
    assert files.open("/data/a", create=True).size() == 0
    assert old.pread(3, 0) == b"old"


def test_a_file_that_loses_its_name_while_it_is_opened_is_not_remembered(
    fs: MemoryFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread opens a segment's file while another gives the name to the cleaned one."""
    files = OpenFiles(fs)
    files.open("/data/a", create=True).pwrite(b"old", 0)
    files.forget("/data/a")
    fs.open("/data/a.cleaned", create=True).pwrite(b"cleaned", 0)
    opens = fs.open

    def open_then_rename(path: str, *, create: bool = False) -> File:
        file = opens(path, create=create)
        fs.rename("/data/a", "/data/a.deleted")
        fs.rename("/data/a.cleaned", "/data/a")
        files.forget("/data/a")
        return file

    monkeypatch.setattr(fs, "open", open_then_rename)
    assert files.open("/data/a").pread(9, 0) == b"old"
    monkeypatch.setattr(fs, "open", opens)
    assert files.open("/data/a").pread(9, 0) == b"cleaned"


def test_missing_file_is_not_remembered(fs: MemoryFs) -> None:
    files = OpenFiles(fs)
    with pytest.raises(FileNotFoundError):
        files.open("/data/a")
    assert len(files) == 0
