"""Logs that stay closed because as many are open as may be."""

from __future__ import annotations

import pytest

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.unopened import LogLimit
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch

ID = bytes(range(16))
FIRST, SECOND = TopicPartition("A", 0), TopicPartition("t", 0)
# After "A" and before "t" in the order of names.
INTERNAL = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)


def start(fs: MemoryFs, most: int | None = None) -> LogManager:
    config = TopicConfig.from_properties()
    limit = None if most is None else LogLimit(most, f"room for {most}", "raise it")
    clock = ManualClock()
    manager = LogManager(fs, ("/data",), clock, config_of=lambda topic: config, log_limit=limit)
    manager.open()
    manager.claim(1, "cluster")
    manager.load()
    return manager


def append(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        data = make_batch([b"x"])
        log.append_as_leader(data, header_of(data), 0)


def delete_unopened(manager: LogManager, key: TopicPartition, topic_id: bytes) -> None:
    job = manager.retiring.start_deletion((), {key: topic_id})
    job.run()
    assert not manager.retiring.finish(job)


@pytest.fixture
def fs() -> MemoryFs:
    """A log directory with three logs of five records each; the first two of "t" are deleted. The stop was clean."""
    fs = MemoryFs()
    manager = start(fs)
    for key in (FIRST, SECOND, INTERNAL):
        append(manager.create(key, ID), 5)
    job = manager.log_starts.promise({manager.logs[SECOND]: 2})
    job.run()
    assert not manager.log_starts.finish(job)
    manager.shutdown(dict.fromkeys(manager.logs, 5))
    return fs


def test_a_start_opens_as_many_as_may_be_internal_topics_first(fs: MemoryFs, caplog: pytest.LogCaptureFixture) -> None:
    manager = start(fs, 2)
    assert set(manager.logs) == {INTERNAL, FIRST}
    assert manager.knows(SECOND)
    assert "1 of 3 logs stay closed, the first of them /data/t-0: room for 2" in caplog.text
    with pytest.raises(KafkaStorageError, match="the log of t-0 stays closed: room for 2"):
        manager.create(SECOND, ID)


def test_what_checkpoints_say_of_a_closed_log_is_kept(fs: MemoryFs) -> None:
    manager = start(fs, 2)
    append(manager.logs[FIRST], 1)
    manager.checkpoint(dict.fromkeys(manager.logs, 5))
    again = start(fs.crash(CrashMode.POWER))
    log = again.logs[SECOND]
    assert (log.log_start_offset, log.recovery_point, log.log_end_offset) == (2, 5, 5)
    assert again.high_watermark(SECOND) == 5


def test_a_closed_log_is_opened_when_another_is_deleted(fs: MemoryFs) -> None:
    manager = start(fs, 2)
    manager.retiring.delete(FIRST)
    assert manager.create(SECOND, ID).log_start_offset == 2
    manager.shutdown()
    assert set(start(fs).logs) == {SECOND, INTERNAL}


def test_no_new_log_is_made_beyond_the_limit(fs: MemoryFs) -> None:
    manager = start(fs, 3)
    with pytest.raises(KafkaStorageError, match="room for 3"):
        manager.create(TopicPartition("u", 0), ID)
    assert not fs.exists("/data/u-0")


def test_a_closed_log_goes_with_its_topic_and_that_of_another_topic_is_kept(fs: MemoryFs) -> None:
    manager = start(fs, 2)
    delete_unopened(manager, SECOND, ID)
    assert not fs.exists("/data/t-0") and not manager.knows(SECOND)
    assert next(entry.name for entry in fs.entries("/data") if entry.name.startswith("t-0.")).endswith("-delete")
    manager.shutdown()
    again = start(fs, 1)
    delete_unopened(again, FIRST, bytes(16))
    assert any(entry.name.startswith("A-0.") and entry.name.endswith("-stray") for entry in fs.entries("/data"))


def test_a_closed_log_is_set_aside_whichever_topic_it_is_of(fs: MemoryFs) -> None:
    manager = start(fs, 2)
    job = manager.retiring.start_setting_aside((), [SECOND])
    job.run()
    assert not manager.retiring.finish(job)
    assert not manager.knows(SECOND)
    assert any(entry.name.startswith("t-0.") and entry.name.endswith("-stray") for entry in fs.entries("/data"))


def test_a_warning_comes_once_before_the_limit_is_reached(caplog: pytest.LogCaptureFixture) -> None:
    manager = start(MemoryFs(), 20)
    for number in range(20):
        assert caplog.text.count("cannot host more than 20") == (number >= 16)
        manager.create(TopicPartition("t", number), ID)
    assert "this broker hosts 16 partitions, and cannot host more than 20" in caplog.text
    assert caplog.text.count("cannot host more than 20") == 1
