"""Logs on a file system in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs

DIRECTORY = "/data/t-0"
LogOpener = Callable[..., PartitionLog]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fs() -> MemoryFs:
    fs = MemoryFs()
    fs.make_directories("/data")
    fs.sync_directory("/")
    return fs


@pytest.fixture
def open_log(fs: MemoryFs, clock: ManualClock) -> LogOpener:
    """Opens the log at DIRECTORY, making it when it is missing: ``open_log(clean=True, on=fs, **topic settings)``."""

    def opener(
        *,
        clean: bool = True,
        recovery_point: int = 0,
        start: int = 0,
        cleaned_until_offset: int = 0,
        high_watermark: int = 0,
        last_record_epoch: int = NO_LEADER_EPOCH,
        points_are_known: bool = False,
        on: MemoryFs | None = None,
        **settings: object,
    ) -> PartitionLog:
        files = OpenFiles(on or fs)
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        key = TopicPartition("t", 0)
        host = LogHost.alone(files, "/data", clock)
        if not files.fs.exists(DIRECTORY):
            return PartitionLog.create(host, DIRECTORY, key, bytes(range(16)), config)
        last_run = LastRun(
            clean,
            recovery_point,
            start,
            cleaned_until_offset,
            high_watermark,
            last_record_epoch=last_record_epoch,
            points_are_known=points_are_known,
        )
        return PartitionLog.open(host, DIRECTORY, key, bytes(range(16)), config, last_run)

    return opener
