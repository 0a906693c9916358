"""The id of its topic is on the disk before a log has a record; logs without records sync nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.copying import copy_in_turns
from spark_kafkalite.log.files.small_files import read_topic_id
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch, make_stored_batch

KEY = TopicPartition("t", 0)
ID = bytes(range(16))
PATH = "/data/t-0/partition.metadata"


def start(fs: MemoryFs) -> LogManager:
    manager = LogManager(fs, ["/data"], ManualClock(), config_of=lambda topic: TopicConfig.from_properties({}))
    manager.open()
    manager.claim(1, "cluster")
    manager.load()
    return manager


def append(log: PartitionLog) -> None:
    data = make_batch([b"value"])
    log.append_as_leader(data, header_of(data), 0)


def copy(log: PartitionLog) -> None:
    for piece in copy_in_turns(log, make_stored_batch(int(log.log_end_offset), 0)):
        if piece is not None:
            piece.run()


def id_after_power_loss(fs: MemoryFs) -> bytes | None:
    """Return the id that a power loss leaves where the kernel has written the segment by itself."""
    fs.open(f"/data/t-0/{0:020d}.log").sync()
    return read_topic_id(fs.crash(CrashMode.POWER), PATH)


@pytest.mark.parametrize("write", [append, copy])
def test_a_power_loss_that_keeps_records_keeps_the_topic_id(fs: MemoryFs, write: object) -> None:
    log = start(fs).create(KEY, ID)
    assert callable(write)
    write(log)
    assert log.recovery_point == 0, "nothing was flushed"
    assert id_after_power_loss(fs) == ID
    assert start(fs.crash(CrashMode.POWER)).logs[KEY].topic_id == ID


def test_a_log_that_takes_its_id_later_and_one_made_before_a_crash_have_it_before_the_next_record(fs: MemoryFs) -> None:
    manager = start(fs)
    append(manager.create(KEY, None))
    append(manager.create(KEY, ID))
    assert id_after_power_loss(fs) == ID
    other = MemoryFs()
    other.make_directories("/data")
    other.sync_directory("/")
    start(other).create(KEY, ID)
    killed = other.crash(CrashMode.PROCESS)
    append(start(killed).logs[KEY])
    assert id_after_power_loss(killed) == ID


def test_only_a_first_record_syncs(fs: MemoryFs) -> None:
    manager = start(fs)
    fs.fail("sync", errno.EIO, path_part="partition.metadata")
    fs.fail("sync_directory", errno.EIO, path_part="/data")
    logs = [manager.create(TopicPartition("t", number), ID) for number in range(3)]
    assert [log.failure for log in logs] == [None] * 3
    with pytest.raises(KafkaStorageError, match=r"cannot sync partition\.metadata of t-0 in /data/t-0"):
        append(logs[0])
    assert (logs[0].log_end_offset, fs.open(f"/data/t-0/{0:020d}.log").size()) == (0, 0)
    # A failed sync is never tried again.
    with pytest.raises(KafkaStorageError, match=r"cannot sync partition\.metadata"):
        append(logs[0])


def test_without_descriptors_the_record_is_refused_and_the_next_one_syncs(fs: MemoryFs) -> None:
    log = start(fs).create(KEY, ID)
    fs.fail("open", errno.EMFILE, path_part="partition.metadata")
    with pytest.raises(KafkaStorageError, match=r"cannot sync partition\.metadata of t-0 at present"):
        append(log)
    assert log.failure is None and log.log_end_offset == 0
    append(log)
    assert id_after_power_loss(fs) == ID


def test_while_the_disk_does_not_answer_nothing_is_synced(fs: MemoryFs) -> None:
    log = start(fs).create(KEY, ID)
    log.disk.hanging = "fdatasync"
    with pytest.raises(KafkaStorageError, match="does not answer"):
        append(log)
    log.disk.hanging = None
    append(log)
    assert log.log_end_offset == 1


def test_a_thread_syncs_once_and_the_owner_takes_up_the_outcome(fs: MemoryFs) -> None:
    log = start(fs).create(KEY, ID)
    pending = log.readiness.missing()
    assert pending is not None and pending.syncs and log.readiness.missing() is pending
    fs.fail("sync", errno.EIO, path_part="partition.metadata")
    pending.work()
    # Another thread that was asked as well finds it done.
    pending.work()
    assert (log.readiness.missing(), log.failure) == (None, None)
    with pytest.raises(KafkaStorageError, match=r"partition\.metadata"):
        append(log)
    assert log.failure is not None and not log.local.takes_appends


def test_memory_that_runs_out_amid_the_sync_counts_as_a_failed_one(
    fs: MemoryFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = start(fs).create(KEY, ID)

    def no_memory(path: str) -> None:
        raise MemoryError

    monkeypatch.setattr(fs, "sync_directory", no_memory)
    with pytest.raises(KafkaStorageError, match="out of memory"):
        append(log)
    assert log.failure is not None


def test_a_follower_has_a_thread_sync_before_its_first_run(fs: MemoryFs) -> None:
    log = start(fs).create(KEY, ID)
    copying: Iterator[object] = copy_in_turns(log, make_stored_batch(0, 0))
    assert next(copying) is not None and log.log_end_offset == 0
    assert list(copying) == [] and log.log_end_offset == 1


def test_a_stop_in_order_syncs_the_id_of_a_log_without_records(fs: MemoryFs) -> None:
    manager = start(fs)
    manager.create(KEY, ID)
    manager.shutdown()
    again = fs.crash(CrashMode.POWER)
    log = start(again).logs[KEY]
    assert log.topic_id == ID and log.local.takes_appends
