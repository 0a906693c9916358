"""What becomes of a log, and of its directory, when a write fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import KafkaStorageError, OutOfOrderSequenceNumber
from spark_kafkalite.log.directories.disk import AUTOMATIC, RESERVE_FILE, FailureKind, LogDirectory, kind_of
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch, values_of

KEYS = [TopicPartition("t", number) for number in range(4)]
ID = bytes(range(16))
KIB = 1024
Start = Callable[..., LogManager]


@pytest.fixture
def start(clock: ManualClock) -> Start:
    """Opens and loads a manager: ``start(fs, min_free_bytes=..., reserve_bytes=..., log_dirs=..., **settings)``."""

    def starter(
        fs: MemoryFs,
        *,
        min_free_bytes: int = 0,
        reserve_bytes: int = 0,
        log_dirs: tuple[str, ...] = ("/data",),
        **settings: object,
    ) -> LogManager:
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        manager = LogManager(
            fs,
            log_dirs,
            clock,
            config_of=lambda topic: config,
            min_free_bytes=min_free_bytes,
            reserve_bytes=reserve_bytes,
        )
        manager.open()
        manager.claim(1, "cluster")
        manager.load()
        return manager

    return starter


def append(log: PartitionLog, serial: int, *, size: int = 1000, sequence: int = -1) -> None:
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence} if sequence >= 0 else {}
    data = make_batch([b"%d:" % serial + bytes(size)], **options)
    log.append_as_leader(data, header_of(data), 0)


def serials(log: PartitionLog) -> list[int]:
    found: list[int] = []
    while (piece := log.read(len(found), 1 << 20, log.log_end_offset)) is not None:
        found += [
            int((value or b"").split(b":")[0]) for offset, value in values_of(piece.read()) if offset >= len(found)
        ]
    return found


def fill(log: PartitionLog, first: int = 0) -> int:
    """Append until it is refused; return the next serial."""
    serial = first
    with pytest.raises(KafkaStorageError):
        while True:
            append(log, serial)
            serial += 1
    return serial


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, FailureKind.NO_ROOM),
        (errno.EDQUOT, FailureKind.NO_ROOM),
        (errno.EROFS, FailureKind.NO_ROOM),
        (errno.EMFILE, FailureKind.NO_RESOURCES),
        (errno.ENFILE, FailureKind.NO_RESOURCES),
        (errno.ENOMEM, FailureKind.NO_RESOURCES),
        (errno.EIO, FailureKind.BROKEN),
        (errno.EISDIR, FailureKind.REFUSED),
        (errno.ESPIPE, FailureKind.REFUSED),
        (errno.EEXIST, FailureKind.REFUSED),
        (errno.ENOTDIR, FailureKind.REFUSED),
        (errno.EACCES, FailureKind.REFUSED),
        (0, FailureKind.BROKEN),
    ],
)
def test_kinds(code: int, kind: FailureKind) -> None:
    assert kind_of(OSError(code, "x")) is kind


@pytest.mark.parametrize("written", [None, 1, 60, 500])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_append_that_finds_no_room_leaves_the_log_as_it_was(start: Start, written: int | None, code: int) -> None:
    fs = MemoryFs()
    manager = start(fs)
    log = manager.create(KEYS[0], ID)
    append(log, 0, sequence=0)
    if written is not None and code == errno.ENOSPC:
        fs.fail("pwrite", path_part=".log", written=written)
    fs.fail("pwrite", code, path_part=".log")
    with pytest.raises(KafkaStorageError, match="/data takes no records"):
        append(log, 1, sequence=1)
    assert log.failure is None and log.log_end_offset == 1 and serials(log) == [0]
    assert len(fs.files()[log.segments.active.log_path]) == log.segments.active.size_bytes
    # Refused without touching the disk, until a probe has succeeded.
    operations = fs.operations
    with pytest.raises(KafkaStorageError, match="takes no records"):
        append(log, 1, sequence=1)
    # The batch behind it is none that was skipped: it gets the same answer, and is sent again with it.
    with pytest.raises(KafkaStorageError, match="takes no records"):
        append(log, 2, sequence=2)
    assert fs.operations == operations
    # What is in the log already is acknowledged all the same.
    append(log, 0, sequence=0)
    manager.directories["/data"].probe()
    assert manager.directories["/data"].resume()
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, 2, sequence=2)
    append(log, 1, sequence=1)
    append(log, 1, sequence=1)
    append(log, 2, sequence=2)
    assert serials(log) == [0, 1, 2]
    manager.shutdown()
    again = start(fs)
    assert again.was_clean and serials(again.logs[KEYS[0]]) == [0, 1, 2]


def test_other_errors_take_the_whole_directory_offline_and_no_other(start: Start) -> None:
    fs = MemoryFs()
    manager = start(fs, log_dirs=("/a", "/b"))
    offline: list[str] = []
    manager.on_offline.append(offline.append)
    logs = [manager.create(key, ID) for key in KEYS]
    assert [log.disk.path for log in logs] == ["/a", "/b", "/a", "/b"]
    for log in logs:
        append(log, 0)
    fs.fail("pwrite", errno.EIO, path_part="/a/t-0")
    with pytest.raises(KafkaStorageError, match="Input/output"):
        append(logs[0], 1)
    assert logs[0].failure is not None
    manager.fail_directory("/a", str(logs[0].failure))
    assert offline == ["/a"]
    with pytest.raises(KafkaStorageError):
        append(logs[2], 1)
    append(logs[1], 1)
    # New logs and checkpoints pass it by.
    assert manager.create(TopicPartition("u", 0), ID).disk.path == "/b"
    assert manager.create(TopicPartition("u", 1), ID).disk.path == "/b"
    before = {path: data for path, data in fs.files().items() if path.startswith("/a/")}
    manager.checkpoint(dict.fromkeys(KEYS, 1))
    manager.shutdown()
    assert {path: data for path, data in fs.files().items() if path.startswith("/a/")} == before
    names = fs.files()
    assert "/b/.kafka_cleanshutdown" in names and "/a/.kafka_cleanshutdown" not in names
    again = start(fs, log_dirs=("/a", "/b"))
    assert serials(again.logs[KEYS[0]]) == [0] and serials(again.logs[KEYS[1]]) == [0, 1]


def test_failed_fsync_is_final_whatever_its_number(start: Start) -> None:
    for code in (errno.EIO, errno.ENOSPC, errno.ENOMEM):
        fs = MemoryFs()
        log = start(fs).create(KEYS[0], ID)
        append(log, 0)
        fs.fail("sync", code, path_part=".log")
        with pytest.raises(KafkaStorageError):
            log.flush()
        assert log.failure is not None and log.start_flush() is None


def test_flush_without_descriptors_is_repeated(start: Start) -> None:
    fs = MemoryFs()
    log = start(fs).create(KEYS[0], ID)
    append(log, 0)
    log.local.unsynced.add_path(f"{log.directory}/partition.metadata")
    fs.fail("open", errno.EMFILE, path_part="partition.metadata")
    with pytest.raises(KafkaStorageError, match="at present"):
        log.flush()
    assert log.failure is None and log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 1
    power_cut = fs.crash(CrashMode.POWER)
    assert serials(start(power_cut).logs[KEYS[0]]) == [0]


def test_files_that_are_kept_open_are_given_back_for_want_of_descriptors(start: Start) -> None:
    fs = MemoryFs()
    manager = start(fs, segment_bytes=2500)
    log = manager.create(KEYS[0], ID)
    for serial in range(6):
        append(log, serial)
    assert serials(log) == list(range(6))
    kept = len(manager._files)
    fs.fail("open", errno.EMFILE, path_part="00000000000000000006.log")
    append(log, 6)
    assert kept > 1 and len(manager._files) < kept and serials(log) == list(range(7))


def test_roll_without_descriptors_fails_only_the_request(start: Start) -> None:
    fs = MemoryFs()
    log = start(fs, segment_bytes=2500).create(KEYS[0], ID)
    append(log, 0)
    append(log, 1)
    fs.fail("open", errno.EMFILE, path_part="00000000000000000002.log", times=2)
    with pytest.raises(KafkaStorageError, match="try again"):
        append(log, 2)
    assert log.disk.refusal is None
    append(log, 2)
    assert len(log.segments) == 2 and serials(log) == [0, 1, 2]


def test_records_are_refused_below_the_threshold_and_taken_again_above_it(start: Start) -> None:
    fs = MemoryFs(capacity_bytes=400 * KIB)
    manager = start(fs, min_free_bytes=100 * KIB)
    log = manager.create(KEYS[0], ID)
    count = fill(log)
    free = fs.space("/data").free_bytes
    assert 98 * KIB < free < 102 * KIB
    assert serials(log) == list(range(count))
    directory = manager.directories["/data"]
    assert f"{free} of {400 * KIB} bytes are free" in str(directory.refusal)
    assert "log.dir.min.free.bytes" in str(directory.refusal) and "retention.ms" in str(directory.refusal)
    directory.probe()
    assert not directory.resume()
    fs.capacity_bytes = 500 * KIB
    assert directory.resume()
    assert fill(log, count) > count + 90
    manager.shutdown()
    assert start(fs).was_clean


@pytest.mark.parametrize(("capacity", "threshold"), [(1000 * KIB, 10 * KIB), (1 << 40, 64 * KIB * KIB)])
def test_automatic_threshold_is_the_smaller_of_64_mib_and_one_percent(capacity: int, threshold: int) -> None:
    fs = MemoryFs(capacity_bytes=capacity)
    fs.make_directories("/data")
    directory = LogDirectory(fs, "/data", min_free_bytes=AUTOMATIC)
    directory.look()
    assert abs(capacity - directory.budget_bytes - threshold) < KIB


def test_reserve_lets_small_files_be_written_on_a_full_disk(start: Start) -> None:
    fs = MemoryFs(capacity_bytes=1000 * KIB)
    manager = start(fs, reserve_bytes=1 << 30, segment_bytes=100_000, index_interval_bytes=0)
    directory = manager.directories["/data"]
    assert directory.wants_reserve
    directory.make_reserve()
    assert directory.reserve_bytes == 50 * KIB == len(fs.files()[f"/data/{RESERVE_FILE}"])
    assert not directory.wants_reserve
    logs = [manager.create(key, ID) for key in KEYS]
    counts = [fill(logs[0])]
    for log in logs[1:]:
        with pytest.raises(KafkaStorageError):
            append(log, 0)
    # Somebody else takes what is left.
    fs.make_directories("/other")
    fs.open("/other/file", create=True).allocate(fs.space("/").free_bytes)
    assert fs.space("/").free_bytes == 0
    manager.checkpoint({KEYS[0]: counts[0]})
    assert 0 < directory.reserve_bytes < 50 * KIB
    # The disk is full again before the stop, which leaves it clean, and a start on the full disk serves reads.
    fs.open("/other/file").allocate(len(fs.files()["/other/file"]) + fs.space("/").free_bytes)
    manager.shutdown({KEYS[0]: counts[0]})
    again = start(fs, reserve_bytes=1 << 30, segment_bytes=100_000)
    assert again.was_clean
    assert serials(again.logs[KEYS[0]]) == list(range(counts[0]))
    fs.unlink("/other/file")
    directory = again.directories["/data"]
    directory.resume()
    append(again.logs[KEYS[0]], counts[0])
    left = directory.reserve_bytes
    directory.make_reserve()
    assert 0 < directory.reserve_bytes == left < 50 * KIB  # There is no room for the rest.
    fs.capacity_bytes = 1200 * KIB
    directory.make_reserve()
    assert directory.reserve_bytes == 60 * KIB


def test_crash_on_a_full_disk_is_recovered_on_the_full_disk(start: Start) -> None:
    fs = MemoryFs(capacity_bytes=1000 * KIB)
    manager = start(fs, reserve_bytes=1 << 30, segment_bytes=100_000, index_interval_bytes=0)
    manager.directories["/data"].make_reserve()
    count = fill(manager.create(KEYS[0], ID))
    left = fs.crash(CrashMode.PROCESS)
    left.make_directories("/other")
    left.open("/other/file", create=True).allocate(left.space("/").free_bytes)
    again = start(left, reserve_bytes=1 << 30, segment_bytes=100_000, index_interval_bytes=0)
    assert not again.was_clean and serials(again.logs[KEYS[0]]) == list(range(count))


def test_log_without_room_to_be_recovered_is_opened_when_there_is_room(start: Start) -> None:
    fs = MemoryFs(capacity_bytes=1000 * KIB)
    manager = start(fs, segment_bytes=100_000, index_interval_bytes=0)
    for key in KEYS[1:]:
        append(manager.create(key, ID), 0)
        manager.logs[key].flush()
    count = fill(manager.create(KEYS[0], ID))
    left = fs.crash(CrashMode.PROCESS)
    for path in [path for path in left.files() if path.endswith((".index", ".timeindex"))]:
        left.unlink(path)
    left.make_directories("/other")
    left.open("/other/file", create=True).allocate(left.space("/").free_bytes)
    again = start(left, segment_bytes=100_000, index_interval_bytes=0)
    assert set(again.logs) == set(KEYS[1:]) and again.knows(KEYS[0])
    assert [serials(log) for log in again.logs.values()] == [[0]] * 3
    with pytest.raises(KafkaStorageError, match="t-0"):
        again.create(KEYS[0], ID)
    left.unlink("/other/file")
    assert serials(again.create(KEYS[0], ID)) == list(range(count))


def test_epoch_without_room_can_be_assigned_again_and_does_not_fail_the_log(start: Start) -> None:
    fs = MemoryFs()
    manager = start(fs)
    log = manager.create(KEYS[0], ID)
    append(log, 0)
    fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch-checkpoint")
    with pytest.raises(KafkaStorageError):
        log.assign_leader_epoch(5, sync=True)
    assert log.failure is None and log.epochs.unwritten
    log.assign_leader_epoch(5, sync=True)
    assert not log.epochs.unwritten
    assert b"5 1" in fs.files()[f"{log.directory}/leader-epoch-checkpoint"]


def test_flush_whose_epochs_have_no_room_is_repeated(start: Start) -> None:
    fs = MemoryFs()
    log = start(fs).create(KEYS[0], ID)
    append(log, 0)
    fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch-checkpoint")
    with pytest.raises(KafkaStorageError, match="at present"):
        log.flush()
    assert log.failure is None and log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 1
    assert start(fs.crash(CrashMode.POWER)).logs[KEYS[0]].epochs.entries == [(0, 0)]


def test_new_log_on_a_full_disk_leaves_nothing_behind(start: Start) -> None:
    fs = MemoryFs()
    manager = start(fs)
    fs.fail("create", errno.ENOSPC, path_part="t-0")
    with pytest.raises(KafkaStorageError, match="t-0"):
        manager.create(KEYS[0], ID)
    assert not fs.exists("/data/t-0")
    with pytest.raises(KafkaStorageError, match="takes no records"):
        manager.directories.check_room()


def test_directory_that_cannot_be_opened_is_offline_and_what_may_lie_there_is_not_made_anew(start: Start) -> None:
    fs = MemoryFs()
    manager = start(fs, log_dirs=("/a", "/b"))
    for key in KEYS[:2]:
        append(manager.create(key, ID), 0)
    manager.shutdown()
    fs.fail("open", errno.EACCES, path_part="/b/.lock")
    again = start(fs, log_dirs=("/a", "/b"))
    assert set(again.logs) == {KEYS[0]}
    offline = [directory.offline for directory in again.directories if directory.offline]
    assert offline == [
        f"Permission denied (the broker runs as user id {os.geteuid()}, which must be able to write /b/.lock)"
    ]
    with pytest.raises(KafkaStorageError, match="it may lie in /b"):
        again.directories.check_all_online(KEYS[1])


def test_older_log_of_a_directory_that_was_offline_is_set_aside(clock: ManualClock, start: Start) -> None:
    fs = MemoryFs()
    manager = start(fs, log_dirs=("/a", "/b"))
    append(manager.create(KEYS[0], ID), 0)
    append(manager.create(KEYS[1], ID), 0)
    manager.fail_directory("/b", "broken")
    manager.retiring.delete(KEYS[1])
    newer = bytes(reversed(ID))
    append(manager.create(KEYS[1], newer), 5)
    manager.shutdown()
    config = TopicConfig.from_properties()
    again = LogManager(fs, ("/a", "/b"), clock, config_of=lambda topic: config, topic_id_of=lambda topic: newer)
    again.open()
    again.load()
    assert serials(again.logs[KEYS[1]]) == [5] and again.logs[KEYS[1]].directory == "/a/t-1"
    assert any(entry.name.endswith("-stray") for entry in fs.entries("/b"))
