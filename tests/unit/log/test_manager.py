from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import ConfigError, InconsistentClusterId, KafkaStorageError, UnknownTopicOrPartition
from spark_kafkalite.log.files.fs import read_whole, replace_file
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.retention import TimestampSource
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFile, MemoryFs, SimulatedCrash
from tests.lab.batches import header_of, make_batch, make_stored_batch

T0 = TopicPartition("t", 0)
ID = bytes(range(16))
Starter = Callable[..., LogManager]


@pytest.fixture
def start(fs: MemoryFs, clock: ManualClock) -> Starter:
    """Opens and loads a manager: ``start(on=fs, log_dirs=..., **topic settings)``."""

    def starter(on: MemoryFs | None = None, log_dirs: tuple[str, ...] = ("/data",), **settings: object) -> LogManager:
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        manager = LogManager(on or fs, log_dirs, clock, config_of=lambda topic: config)
        manager.open()
        manager.claim(1, "cluster")
        manager.load()
        return manager

    return starter


def append(log: PartitionLog, count: int = 1) -> None:
    data = make_batch(count)
    log.append_as_leader(data, header_of(data), 0)


def test_logs_come_back_after_a_clean_stop(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    append(manager.create(T0, ID), 3)
    append(manager.create(TopicPartition("a-b.c_d", 12), ID), 2)
    manager.shutdown({T0: 2})
    manager.shutdown()
    assert fs.exists("/data/.kafka_cleanshutdown")
    again = start()
    assert again.was_clean
    assert not fs.exists("/data/.kafka_cleanshutdown")
    assert {key: log.log_end_offset for key, log in again.logs.items()} == {T0: 3, TopicPartition("a-b.c_d", 12): 2}
    assert all(log.topic_id == ID and log.recovery_point == log.log_end_offset for log in again.logs.values())
    assert (again.high_watermark(T0), again.high_watermark(TopicPartition("a-b.c_d", 12))) == (2, None)


def test_stop_without_power_afterwards_is_still_clean(start: Starter, fs: MemoryFs) -> None:
    manager = start(index_interval_bytes=100)
    log = manager.create(T0, ID)
    for _ in range(50):
        append(log)
    manager.shutdown()
    again = start(on=fs.crash(CrashMode.POWER), index_interval_bytes=100)
    assert again.was_clean
    found = again.logs[T0]
    assert (found.log_end_offset, found.recovered_segments) == (50, 0)
    assert found.segments.active.offset_index.count == log.segments.active.offset_index.count


def test_crash_while_loading_counts_as_a_crash(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    append(manager.create(T0, ID))
    manager.shutdown()
    second = start()
    second.abandon()
    third = start(on=fs.crash(CrashMode.POWER))
    assert not third.was_clean
    assert third.logs[T0].recovered_segments == 1


def test_empty_directory_is_clean(start: Starter) -> None:
    assert start().was_clean


def test_failed_log_leaves_no_clean_marker(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    log = manager.create(T0, ID)
    append(log)
    fs.fail("sync", path_part=".log")
    manager.shutdown()
    assert log.failure is not None
    assert not fs.exists("/data/.kafka_cleanshutdown")
    assert start().logs[T0].recovered_segments == 1


def test_directory_in_use_is_an_error(start: Starter) -> None:
    start()
    with pytest.raises(ConfigError, match="in use by another broker"):
        start()


def test_stop_lets_go_of_the_directory(start: Starter) -> None:
    start().shutdown()
    start().abandon()
    start()


def test_directory_of_another_broker_or_cluster_is_refused(start: Starter, fs: MemoryFs, clock: ManualClock) -> None:
    start().shutdown()
    other = LogManager(fs, ["/data"], clock, config_of=lambda topic: TopicConfig.from_properties())
    other.open()
    with pytest.raises(ConfigError, match="belongs to broker 1, this is broker 2"):
        other.claim(2, "cluster")
    with pytest.raises(InconsistentClusterId, match="holds data of cluster cluster"):
        other.claim(1, "another")


def test_only_a_directory_that_was_nobodys_before_is_given_back(
    start: Starter, fs: MemoryFs, clock: ManualClock
) -> None:
    def claimed(broker_id: int, cluster: str = "cluster") -> LogManager:
        manager = LogManager(fs, ["/data"], clock, config_of=lambda topic: TopicConfig.from_properties())
        manager.open()
        manager.claim(broker_id, cluster)
        return manager

    new = claimed(2, "another")
    new.directories.withdraw_claim()
    new.abandon()
    claimed(1).abandon()
    old = claimed(1)
    old.directories.withdraw_claim()
    old.abandon()
    with pytest.raises(ConfigError, match="belongs to broker 1, this is broker 2"):
        claimed(2)


def test_directory_of_apache_kafka_is_refused_and_left_as_it_is(start: Starter, fs: MemoryFs) -> None:
    fs.make_directories("/data/t-0")
    replace_file(fs, "/data/meta.properties", b"#\n#Sat Nov 21\ncluster.id=abc\nnode.id=1\nversion=1\n")
    with pytest.raises(ConfigError, match="/data belongs to a node of Apache Kafka"):
        start()
    assert sorted(entry.name for entry in fs.entries("/data")) == [".lock", "meta.properties", "t-0"]
    assert fs.lock("/data/.lock") is not None


def test_directory_that_cannot_be_made_is_an_error(fs: MemoryFs, clock: ManualClock) -> None:
    fs.open("/file", create=True)
    manager = LogManager(fs, ["/file/logs"], clock, config_of=lambda topic: TopicConfig.from_properties())
    with pytest.raises(ConfigError, match="/file/logs"):
        manager.open()
    with pytest.raises(ConfigError, match=r"log\.dirs is empty"):
        LogManager(fs, [], clock, config_of=lambda topic: TopicConfig.from_properties())


def test_new_logs_go_to_the_emptiest_directory(start: Starter) -> None:
    manager = start(log_dirs=("/data/a", "/data/b"))
    directories = [manager.create(TopicPartition("t", number), ID).directory for number in range(4)]
    assert [directory[:7] for directory in directories] == ["/data/a", "/data/b", "/data/a", "/data/b"]


def test_partition_in_two_directories_is_an_error(start: Starter, fs: MemoryFs) -> None:
    fs.make_directories("/data/a/t-0")
    fs.make_directories("/data/b/t-0")
    with pytest.raises(ConfigError, match="t-0 lies in"):
        start(log_dirs=("/data/a", "/data/b"))


@pytest.mark.parametrize(
    ("there", "current", "kept"),
    [
        ({"a": b"1", "b": b"2"}, b"2", ["b"]),
        # Made again twice while a directory was offline.
        ({"a": b"1", "b": b"2"}, b"3", []),
        ({"a": b"1", "b": b"2"}, None, []),
        ({"a": b"1", "b": b"2", "c": b"3"}, b"3", ["c"]),
        ({"a": b"1", "b": b"2", "c": b"3"}, None, ["c"]),
        ({"a": b"1", "b": b"1"}, b"1", None),
        ({"a": b"1", "b": b"1"}, None, None),
        ({"a": b"1", "b": None}, None, None),
    ],
)
def test_logs_of_older_topics_in_other_directories_are_set_aside(
    fs: MemoryFs, clock: ManualClock, there: dict[str, bytes | None], current: bytes | None, kept: list[str] | None
) -> None:
    config = TopicConfig.from_properties()

    def manager(directories: list[str]) -> LogManager:
        topic_id = None if current is None else current * 16
        found = LogManager(fs, directories, clock, config_of=lambda _: config, topic_id_of=lambda _: topic_id)
        found.open()
        return found

    for name, digit in there.items():
        alone = LogManager(fs, [f"/data/{name}"], clock, config_of=lambda _: config)
        alone.open()
        alone.load()
        alone.create(T0, None if digit is None else digit * 16)
        alone.shutdown()
    started = manager([f"/data/{name}" for name in there])
    if kept is None:
        with pytest.raises(ConfigError, match="t-0 lies in"):
            started.load()
        return
    started.load()
    assert [log.directory for log in started.logs.values()] == [f"/data/{name}/t-0" for name in kept]
    for name in there.keys() - set(kept):
        assert [entry.name for entry in fs.entries(f"/data/{name}") if entry.name.endswith("-stray")]


def test_other_names_are_left_alone(start: Starter, fs: MemoryFs) -> None:
    for name in ("_registry", "t-x", "t-00", "notes-", "t-0.abc-stray", "lost+found", "b!d-0"):
        fs.make_directories(f"/data/{name}")
    manager = start()
    assert not manager.logs
    assert len(fs.entries("/data")) >= 7


def test_creating_again_gives_the_same_log(start: Starter) -> None:
    manager = start()
    log = manager.create(T0, ID)
    assert manager.create(T0, ID) is log
    assert manager.get(T0) is log
    assert manager.get(TopicPartition("t", 1)) is None
    with pytest.raises(ConfigError, match="older topic of the same name"):
        manager.create(T0, bytes(16))


def test_log_without_topic_id_takes_the_one_it_is_given(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    manager.create(T0, None)
    manager.create(T0, ID)
    manager.shutdown()
    assert start().logs[T0].topic_id == ID


def test_new_log_is_a_directory_and_two_files(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    before = fs.operations
    manager.create(T0, ID)
    # The directory, the two files, and what one of them holds; nothing is written twice, or renamed.
    assert fs.operations - before == 4
    assert [path.rpartition("/")[2] for path in sorted(fs.files()) if "/t-0/" in path] == [
        "00000000000000000000.log",
        "partition.metadata",
    ]


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_log_whose_making_was_cut_short_is_made_again(start: Starter, fs: MemoryFs, step: int) -> None:
    manager = start()
    fs.stop_at(fs.operations + step)
    with pytest.raises(SimulatedCrash):
        manager.create(T0, ID)
    again = start(fs.crash(CrashMode.PROCESS))
    assert again.create(T0, ID).log_end_offset == 0
    again.shutdown()


def test_illegal_topic_name_never_becomes_a_path(start: Starter) -> None:
    with pytest.raises(ConfigError):
        start().create(TopicPartition("../x", 0), ID)


def test_deleted_log_goes_after_its_delay(start: Starter, fs: MemoryFs, clock: ManualClock) -> None:
    manager = start(file_delete_delay_ms=1000)
    log = manager.create(T0, ID)
    append(log)
    piece = log.read(0, 100, 1)
    manager.retiring.delete(T0)
    assert manager.get(T0) is None
    assert not manager.due_flushes()
    names = [entry.name for entry in fs.entries("/data") if entry.is_directory]
    assert len(names) == 1
    assert names[0].startswith("t-0.")
    assert names[0].endswith("-delete")
    manager.create(T0, bytes(16))
    assert manager.due_deletions() is None
    assert fs.exists(f"/data/{names[0]}")
    clock.advance(ms=1000)
    job = manager.due_deletions()
    assert job is not None
    job.run()
    assert manager.due_deletions() is None
    assert not fs.exists(f"/data/{names[0]}")
    assert fs.exists("/data/t-0")
    assert piece is not None
    assert len(piece.read()) == len(make_batch(1))
    with pytest.raises(UnknownTopicOrPartition):
        manager.retiring.delete(TopicPartition("t", 5))


def test_retired_segments_go_after_their_delay(start: Starter, fs: MemoryFs, clock: ManualClock) -> None:
    manager = start(file_delete_delay_ms=1000, segment_bytes=100)
    log = manager.create(T0, ID)
    for _ in range(3):
        append(log)
    piece = log.read(0, 100, 1)
    retired = log.retire(log.segments.drop_oldest(2))
    manager.delete_files(log, retired)
    assert {path for path in fs.files() if path.endswith(".deleted")} == set(retired)
    assert manager.due_deletions() is None
    clock.advance(ms=1000)
    job = manager.due_deletions()
    assert job is not None
    fs.unlink(retired[0])
    job.run()
    assert not [path for path in fs.files() if path.endswith(".deleted")]
    assert piece is not None
    assert len(piece.read()) == len(make_batch(1))


def test_removal_that_fails_leaves_the_rest_to_be_removed(
    start: Starter, fs: MemoryFs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(file_delete_delay_ms=0, segment_bytes=100)
    log = manager.create(T0, ID)
    for _ in range(3):
        append(log)
    retired = log.retire(log.segments.drop_oldest(2))
    manager.delete_files(log, retired)
    fs.fail("unlink", path_part=retired[0])
    job = manager.due_deletions()
    assert job is not None
    job.run()
    assert [path for path in fs.files() if path.endswith(".deleted")] == retired[:1]
    assert retired[0] in caplog.text
    manager.abandon()
    start()
    assert not fs.exists(retired[0])


def test_new_log_of_an_old_name_reads_its_own_files(start: Starter) -> None:
    manager = start(segment_bytes=100)
    log = manager.create(T0, ID)
    for _ in range(3):
        append(log, 1)
    assert log.read(0, 1000, 3) is not None
    manager.retiring.delete(T0)
    new = manager.create(T0, bytes(16))
    assert new.log_end_offset == 0
    append(new)
    append(new)
    piece = new.read(0, 1000, 2)
    assert piece is not None
    assert header_of(piece.read()).base_offset == 0


def test_deleted_logs_are_removed_at_the_next_start(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    manager.create(T0, ID)
    manager.retiring.delete(T0)
    manager.shutdown()
    job = start().due_deletions()
    assert job is not None
    job.run()
    assert not [entry for entry in fs.entries("/data") if entry.is_directory]


def test_longest_topic_name_can_be_deleted(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    key = TopicPartition("x" * 249, 0)
    manager.create(key, ID)
    manager.retiring.delete(key)
    assert max(len(entry.name) for entry in fs.entries("/data")) <= 255


def test_log_set_aside_keeps_its_files(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    append(manager.create(T0, ID))
    directory = manager.retiring.set_aside(T0)
    assert directory.endswith("-stray")
    assert read_whole(fs, f"{directory}/00000000000000000000.log")
    manager.shutdown()
    assert not start().logs


def test_due_flushes_are_those_that_settings_or_rolls_ask_for(start: Starter, clock: ManualClock) -> None:
    manager = start(flush_ms=500, segment_bytes=300)
    first, second = manager.create(T0, ID), manager.create(TopicPartition("t", 1), ID)
    append(first)
    clock.advance(ms=100)
    append(second)
    assert manager.due_flushes() == []
    clock.advance(ms=400)
    assert manager.due_flushes() == [first]
    first.flush()
    assert manager.due_flushes() == []
    assert first not in manager.dirty
    for _ in range(5):
        append(second)
    assert manager.due_flushes() == [second], "a segment rolled"
    append(first)
    assert first in manager.dirty


def test_flush_under_way_is_not_due(start: Starter) -> None:
    manager = start(flush_messages=1)
    log = manager.create(T0, ID)
    append(log)
    job = log.start_flush()
    assert job is not None
    assert manager.due_flushes() == []
    job.run()
    log.finish_flush(job)


def test_checkpoints_hold_what_recovery_needs(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    log = manager.create(T0, ID)
    append(log, 5)
    log.flush()
    append(log)
    log.advance_log_start(2)
    manager.checkpoint({T0: 4, TopicPartition("elsewhere", 0): 9})
    assert read_whole(fs, "/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 5\n"
    assert read_whole(fs, "/data/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
    assert read_whole(fs, "/data/replication-offset-checkpoint") == b"0\n1\nt 0 4\n"
    manager.abandon()
    again = start()
    assert (again.logs[T0].log_start_offset, again.high_watermark(T0)) == (2, 4)


def test_damaged_checkpoint_means_a_longer_scan(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    append(manager.create(T0, ID), 5)
    manager.checkpoint()
    manager.abandon()
    replace_file(fs, "/data/recovery-point-offset-checkpoint", b"\0\0\0")
    assert start().logs[T0].log_end_offset == 5


def test_emptied_partition_metadata_does_not_stop_the_start(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    append(manager.create(T0, ID))
    manager.abandon()
    replace_file(fs, "/data/t-0/partition.metadata", b"")
    again = start()
    assert again.logs[T0].topic_id is None
    assert again.create(T0, ID).topic_id == ID


def test_disk_errors_name_the_directory(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    fs.fail("create", errno.ENOSPC, path_part="t-0")
    with pytest.raises(KafkaStorageError, match="/data/t-0"):
        manager.create(T0, ID)
    assert manager.directories["/data"].resume()
    append(manager.create(T0, ID))
    manager.abandon()
    fs.fail("entries", path_part="t-0")
    fs.fail("create", path_part="probe")
    with pytest.raises(KafkaStorageError, match="/data/t-0"):
        start()


def test_a_log_that_cannot_be_read_on_a_disk_that_can_be_written_is_refused_alone(
    start: Starter, fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad sector."""
    manager = start()
    other = TopicPartition("u", 0)
    for key in (T0, other):
        append(manager.create(key, ID))
    manager.abandon()
    fs.fail("entries", path_part="t-0")
    manager = start()
    assert set(manager.logs) == {other}
    assert "t-0 is not served: cannot open the log /data/t-0: Input/output error" in caplog.text
    # It is tried again, and the disk can read it by now.
    assert manager.create(T0, ID).log_end_offset == 1


def test_changed_settings_reach_every_log(fs: MemoryFs, clock: ManualClock) -> None:
    settings: dict[str, object] = {}
    manager = LogManager(fs, ["/data"], clock, config_of=lambda topic: TopicConfig.from_properties(settings))
    manager.open()
    manager.load()
    log = manager.create(T0, ID)
    settings["segment.bytes"] = 100
    manager.update_configs()
    assert log.config.segment_bytes == 100


def test_after_a_clean_stop_no_index_is_read(start: Starter, fs: MemoryFs) -> None:
    settings = {"segment_bytes": 500, "index_interval_bytes": 100}
    manager = start(**settings)
    log = manager.create(T0, ID)
    for _ in range(30):
        append(log)
    manager.shutdown()
    fs.fail("open", path_part="index", times=1000)
    again = start(**settings)
    assert (again.logs[T0].log_end_offset, again.logs[T0].recovery_point) == (30, 30)
    again.shutdown()
    assert fs.exists("/data/.kafka_cleanshutdown")


def test_fast_start_reads_the_tail_at_the_first_append(start: Starter, fs: MemoryFs) -> None:
    manager = start(message_timestamp_type="LogAppendTime")
    append(manager.create(T0, ID), 3)
    manager.shutdown()
    log = start(message_timestamp_type="LogAppendTime").logs[T0]
    assert log.segments.active.unread_until_offset == 3
    append(log)
    assert log.segments.active.unread_until_offset == -1
    assert log.offset_of_max_timestamp(4) is not None
    assert log.segments.active.first_timestamp_ms > 0


def test_log_that_is_longer_than_the_broker_left_it_takes_no_appends(start: Starter, fs: MemoryFs) -> None:
    """Alone: the other logs of its directory go on, and the next start recovers it."""
    manager = start()
    append(manager.create(T0, ID))
    append(manager.create(TopicPartition("u", 0), ID))
    manager.shutdown()
    file = fs.open("/data/t-0/00000000000000000000.log")
    file.pwrite(make_stored_batch(1, 0), file.size())
    manager = start()
    with pytest.raises(KafkaStorageError, match="ends at offset 2, and ended at 1"):
        append(manager.logs[T0])
    assert manager.logs[T0].local.is_damaged
    append(manager.logs[TopicPartition("u", 0)])
    manager.shutdown()
    assert not fs.exists("/data/.kafka_cleanshutdown"), "the next start must recover it"
    assert start().logs[T0].log_end_offset == 2


def test_epoch_of_an_idle_leader_is_not_written(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    log = manager.create(T0, ID)
    log.assign_leader_epoch(4, sync=False)
    log.flush()
    assert not fs.exists("/data/t-0/leader-epoch-checkpoint")
    data = make_batch()
    log.append_as_leader(data, header_of(data), 4)
    log.flush()
    assert read_whole(fs, "/data/t-0/leader-epoch-checkpoint") == b"0\n1\n4 0\n"
    assert fs.crash(CrashMode.POWER).exists("/data/t-0/leader-epoch-checkpoint")
    log.assign_leader_epoch(5, sync=False)
    manager.shutdown()
    assert read_whole(fs, "/data/t-0/leader-epoch-checkpoint") == b"0\n1\n4 0\n"


def test_epoch_with_records_is_written_although_a_later_one_has_none(start: Starter) -> None:
    manager = start()
    log = manager.create(T0, ID)
    for epoch in (4, 5):
        log.assign_leader_epoch(epoch, sync=False)
        data = make_batch()
        log.append_as_leader(data, header_of(data), epoch)
        log.flush() if epoch == 4 else log.assign_leader_epoch(6, sync=False)
    manager.shutdown()
    # After a clean stop nothing is looked through again, so the file alone knows of epoch 5.
    again = start().logs[T0]
    assert again.epochs.entries[:2] == [(4, 0), (5, 1)]
    assert again.end_offset_for_epoch(5) == (5, 2)


def test_stop_after_a_recovery_of_many_logs_syncs_them_at_once(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    for number in range(100):
        append(manager.create(TopicPartition("t", number), ID))
    left = fs.crash(CrashMode.PROCESS)
    recovered = start(on=left)
    before = left.operations
    syncs = []
    sync = MemoryFile.sync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFile, "sync", lambda self: (syncs.append(self.path), sync(self)))
        recovered.shutdown()
    assert len([path for path in syncs if path.endswith((".index", ".snapshot"))]) == 0, "each log was synced alone"
    assert left.operations - before < 1500
    after = start(on=left.crash(CrashMode.POWER))
    assert after.was_clean
    assert {log.log_end_offset for log in after.logs.values()} == {1}


def test_age_of_an_active_segment_is_not_guessed_before_its_tail_is_read(start: Starter, fs: MemoryFs) -> None:
    manager = start()
    append(manager.create(T0, ID))
    newest = manager.logs[T0].segments.active.max_timestamp[0]
    manager.shutdown()
    active = start().logs[T0].segments.active
    assert active.unread_until_offset == 1
    assert active.largest_timestamp_ms is None
    active.note_largest_timestamp(TimestampSource.of(active).read(fs))
    assert active.largest_timestamp_ms == newest
