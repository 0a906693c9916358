from __future__ import annotations

import pytest

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


def test_missing_file_is_not_remembered(fs: MemoryFs) -> None:
    files = OpenFiles(fs)
    with pytest.raises(FileNotFoundError):
        files.open("/data/a")
    assert len(files) == 0
