"""The file system of the operating system and the one in memory keep the same promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.contracts import FsContract


class TestOsFs(FsContract):
    @pytest.fixture
    def fs(self) -> Fs:
        return OsFs()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)

    def test_files_have_descriptors(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        assert file.fileno() >= 0


class TestMemoryFs(FsContract):
    @pytest.fixture
    def fs(self) -> Fs:
        return MemoryFs()

    @pytest.fixture
    def root(self, fs: Fs) -> str:
        fs.make_directories("/data")
        return "/data"
