from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from spark_kafkalite.log.files.small_files import read_offsets
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.batches import header_of, make_batch
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FILE = "/data/log-start-offset-checkpoint"
Opener = Callable[..., LogManager]


@pytest.fixture
def open_manager(fs: MemoryFs, clock: ManualClock) -> Opener:
    def opener(on: MemoryFs | None = None) -> LogManager:
        config = TopicConfig.from_properties({"segment.bytes": "100"})
        manager = LogManager(on or fs, ["/data"], clock, config_of=lambda topic: config)
        manager.open()
        manager.load()
        return manager

    return opener


def filled(manager: LogManager, key: TopicPartition, count: int = 5) -> PartitionLog:
    log = manager.create(key, bytes(16))
    for _ in range(count):
        data = make_batch(1)
        log.append_as_leader(data, header_of(data), 0)
    log.flush()
    return log


def test_start_is_on_the_disk_before_it_is_in_force(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    job = manager.log_starts.promise({log: 3, other: 2})
    assert (log.log_start_offset, fs.exists(FILE)) == (0, False)
    job.run()
    assert (log.log_start_offset, read_offsets(fs.crash(CrashMode.POWER), FILE)) == (0, {T0: 3, T1: 2})
    assert manager.log_starts.finish(job) == {}
    assert (log.log_start_offset, other.log_start_offset) == (3, 2)


def test_checkpoints_meanwhile_keep_what_is_promised(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    first = manager.log_starts.promise({log: 3})
    second = manager.log_starts.promise({log: 2, other: 1})
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {T0: 3, T1: 1}
    before = fs.operations
    first.run()
    second.run()
    assert fs.operations == before
    manager.log_starts.finish(second)
    assert log.log_start_offset == 2
    manager.checkpoint()
    assert read_offsets(fs, FILE)[T0] == 3
    manager.log_starts.finish(first)
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {T0: 3, T1: 1}


def test_what_cannot_be_written_does_not_hold(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    fs.fail("rename", errno.ENOSPC, path_part=FILE)
    job = manager.log_starts.promise({log: 3})
    job.run()
    failed = manager.log_starts.finish(job)
    assert "the log start offset 3 cannot be written" in str(failed[log])
    assert log.log_start_offset == 0
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {}
    again = manager.log_starts.promise({log: 2})
    again.run()
    assert manager.log_starts.finish(again) == {}
    assert log.log_start_offset == 2


def test_logs_that_change_meanwhile_are_left_alone(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    job = manager.log_starts.promise({log: 3, other: 5})
    job.run()
    manager.retiring.delete(T0)
    truncate_to(other, 4)
    new = filled(manager, T0)
    assert manager.log_starts.finish(job) == {}
    assert (log.log_start_offset, other.log_start_offset, new.log_start_offset) == (0, 0, 0)
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {}


@pytest.mark.parametrize("mode", [CrashMode.PROCESS, CrashMode.POWER])
@pytest.mark.parametrize(("fully", "to"), [(True, 2), (True, 0), (True, 9), (False, 3), (False, 1)])
def test_truncation_to_another_start_loses_no_record_that_comes_after_it(
    open_manager: Opener, fs: MemoryFs, fully: bool, to: int, mode: CrashMode
) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    job = manager.log_starts.promise({log: 4, other: 2})
    job.run()
    manager.log_starts.finish(job)
    if fully:
        truncate_fully(log, to)
    else:
        truncate_to(log, to)
    assert (log.log_start_offset, log.log_end_offset) == (to, to)
    assert read_offsets(fs.crash(CrashMode.POWER), FILE) == {T1: 2, **({T0: to} if to else {})}
    filled(manager, T0, 8)
    again = open_manager(fs.crash(mode)).logs
    assert (again[T0].log_start_offset, again[T0].log_end_offset) == (to, to + 8)
    assert (again[T1].log_start_offset, again[T1].log_end_offset) == (2, 5)


@pytest.mark.parametrize("written", ["before", "after", "never"])
def test_truncation_takes_a_promise_back(open_manager: Opener, fs: MemoryFs, written: str) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    job = manager.log_starts.promise({log: 4})
    if written == "before":
        job.run()
    truncate_to(log, 2)
    if written == "after":
        job.run()
    filled(manager, T0, 6)
    later = manager.log_starts.promise({log: 3})
    manager.log_starts.finish(job)
    assert log.log_start_offset == 0
    later.run()
    left = open_manager(fs.crash(CrashMode.POWER)).logs[T0]
    assert (left.log_start_offset, left.log_end_offset) == (3, 8)
    manager.log_starts.finish(later)
    assert log.log_start_offset == 3


def test_removed_segments_do_not_come_back_in_a_power_cut(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    manager.checkpoint()
    job = manager.log_starts.promise({log: 3})
    job.run()
    manager.log_starts.finish(job)
    assert log.hidden_segments == 3
    assert log.drop_hidden(2)
    assert (log.hidden_segments, log.segments.first.base_offset) == (1, 2)
    left = fs.crash(CrashMode.POWER)
    assert left.exists("/data/t-0/00000000000000000000.log")
    again = open_manager(left).logs[T0]
    assert (again.log_start_offset, again.log_end_offset, again.segments.first.base_offset) == (3, 5, 3)
    assert not left.exists("/data/t-0/00000000000000000000.log")


def test_what_is_not_flushed_is_not_removed(open_manager: Opener) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    for _ in range(2):
        data = make_batch(1)
        log.append_as_leader(data, header_of(data), 0)
    assert log.advance_log_start(7)
    # Nor a segment that ends just there, while what begins behind it is unsynced.
    assert (log.recovery_point, log.hidden_segments) == (5, 4)
    log.flush()
    assert log.hidden_segments == 6


def test_high_watermarks_are_on_the_disk_before_a_start_is(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    job = manager.log_starts.promise({log: 4})
    fs.fail("rename", errno.EIO, path_part="/data/log-start")
    job.run()
    assert read_offsets(fs, "/data/replication-offset-checkpoint") == {T0: 4}
    assert log in manager.log_starts.finish(job)
    manager.checkpoint()
    assert read_offsets(fs, "/data/replication-offset-checkpoint") == {T0: 4}, "and do not go back"


def test_start_is_in_force_though_a_power_loss_has_taken_the_records_below(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0, 1)
    for _ in range(4):
        data = make_batch(1)
        log.append_as_leader(data, header_of(data), 0)
    job = manager.log_starts.promise({log: 4})
    job.run()
    again = open_manager(fs.crash(CrashMode.POWER)).logs[T0]
    assert (again.log_start_offset, again.log_end_offset) == (4, 4)
