"""``preallocate=true``: blocks are set aside, files stay as long as their records."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from tests.lab.batches import header_of, make_batch

SEGMENT_BYTES = 4 << 20


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fs = OsFs()
    file = fs.open(str(tmp_path / "probe"), create=True)
    file.reserve(1 << 20)
    if not allocated_bytes(tmp_path / "probe"):
        pytest.skip(f"the file system of {tmp_path} cannot set blocks aside")
    return tmp_path / "t-0"


def new_log(directory: Path) -> PartitionLog:
    config = TopicConfig.from_properties({"preallocate": "true", "segment.bytes": str(SEGMENT_BYTES)})
    host = LogHost.alone(OpenFiles(OsFs()), str(directory.parent), SYSTEM_CLOCK)
    return PartitionLog.create(host, str(directory), TopicPartition("t", 0), bytes(16), config)


def append(log: PartitionLog) -> None:
    batch = make_batch(1)
    log.append_as_leader(batch, header_of(batch), 0)


def test_segments_set_blocks_aside_and_give_them_back(directory: Path) -> None:
    log = new_log(directory)
    append(log)
    first = directory / "00000000000000000000.log"
    assert allocated_bytes(first) >= SEGMENT_BYTES
    assert first.stat().st_size == log.size_bytes < 1000
    log.roll()
    append(log)
    assert allocated_bytes(first) < 64 * 1024
    assert first.stat().st_size == log.size_bytes / 2
    assert allocated_bytes(directory / "00000000000000000001.log") >= SEGMENT_BYTES


def test_log_goes_on_where_there_is_no_room_for_so_much(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: OsFile, __: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(OsFile, "reserve", full)
    log = new_log(directory)
    append(log)
    assert log.failure is None and log.log_end_offset == 1
    assert "preallocate=true" in caplog.text
