from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import ConfigError, KafkaStorageError
from spark_kafkalite.log.files.fs import replace_file
from spark_kafkalite.log.loading.loader import LoadInterrupted, survey, topic_partition_of
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch

ID = bytes(range(16))
LOG_DIRS = ["/one", "/two"]
KEYS = [TopicPartition("t", number) for number in range(6)]
Opener = Callable[..., LogManager]


@pytest.fixture
def open_manager(clock: ManualClock) -> Opener:
    """Locks the directories of a manager that is not loaded yet: ``open_manager(fs)``."""

    def opener(fs: MemoryFs) -> LogManager:
        config = TopicConfig.from_properties({"segment.bytes": "300"})
        manager = LogManager(fs, LOG_DIRS, clock, config_of=lambda topic: config)
        manager.open()
        return manager

    return opener


@pytest.fixture
def crashed(fs: MemoryFs, open_manager: Opener) -> MemoryFs:
    """Two directories with six logs that a killed process has left."""
    manager = open_manager(fs)
    manager.load()
    for number, key in enumerate(KEYS):
        log = manager.create(key, ID)
        for _ in range(10 + number):
            batch = make_batch(2)
            log.append_as_leader(batch, header_of(batch), 0)
    return fs.crash(CrashMode.PROCESS)


def ends(manager: LogManager) -> dict[TopicPartition, int]:
    return {key: log.log_end_offset for key, log in manager.logs.items()}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_logs_are_recovered_in_threads(crashed: MemoryFs, open_manager: Opener, threads: int) -> None:
    manager = open_manager(crashed)
    names = set()
    open_found = manager._opening.open
    manager._opening.open = lambda *a, **k: (names.add(threading.current_thread().name), open_found(*a, **k))  # type: ignore
    manager.load(threads)
    assert ends(manager) == {key: 2 * (10 + number) for number, key in enumerate(KEYS)}
    assert not manager.was_clean
    assert all(name.startswith("kafkalite-recovery") for name in names)


def test_failure_in_a_thread_takes_its_directory_offline_and_names_the_log(
    crashed: MemoryFs, open_manager: Opener
) -> None:
    crashed.fail("pread", path_part="t-3/")
    crashed.fail("create", path_part="/two/.kafkalite-probe")
    manager = open_manager(crashed)
    manager.load(2)
    offline = [directory for directory in manager.directories if directory.offline is not None]
    assert [directory.path for directory in offline] == ["/two"]
    assert "t-3" in str(offline[0].offline)
    assert all((log.failure is None) == (log.disk.path == "/one") for log in manager.logs.values())


def test_no_directory_left_is_an_error_that_names_all(crashed: MemoryFs, open_manager: Opener) -> None:
    for path in ("/one/", "/two/"):
        crashed.fail("pread", path_part=path)
        crashed.fail("create", path_part=f"{path}.kafkalite-probe")
    with pytest.raises(KafkaStorageError, match=r"/one.*/two"):
        open_manager(crashed).load(2)


@pytest.mark.parametrize("after_bytes", [0, 1, 2000, 5000])
def test_interrupted_load_changes_nothing_for_the_next(
    crashed: MemoryFs, open_manager: Opener, after_bytes: int
) -> None:
    manager = open_manager(crashed)
    scanned = 0
    on_bytes = manager._loading.on_bytes

    def interrupt(path: str, count: int) -> None:
        nonlocal scanned
        scanned += count
        if scanned >= after_bytes:
            manager.interrupt_load()
        on_bytes(path, count)

    manager._loading.on_bytes = interrupt  # type: ignore[method-assign]
    if not after_bytes:
        manager.interrupt_load()
    with pytest.raises(LoadInterrupted):
        manager.load()
    manager.abandon()
    for mode in CrashMode.PROCESS, CrashMode.PROCESS:
        again = open_manager(crashed.crash(mode))
        again.load()
        assert not again.was_clean
        assert ends(again) == {key: 2 * (10 + number) for number, key in enumerate(KEYS)}


def test_progress_is_logged_every_few_seconds(
    crashed: MemoryFs, open_manager: Opener, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager(crashed)
    on_bytes = manager._loading.on_bytes

    def slow(path: str, count: int) -> None:
        clock.advance(ms=400)
        on_bytes(path, count)

    manager._loading.on_bytes = slow  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "spark_kafkalite.log"):
        manager.logs.clear()
        manager.load()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loading logs")]
    segments = sum(log.recovered_segments for log in manager.logs.values())
    assert len(lines) == int(segments * 0.4 / 5)
    assert " of 6 logs, " in lines[0]
    assert "MB scanned in" in lines[0]
    assert "now at /" in lines[0]
    assert "the last stop was not clean: 6 of 6 logs" in caplog.text


def test_the_marker_is_taken_before_anything_is_loaded(fs: MemoryFs, open_manager: Opener) -> None:
    manager = open_manager(fs)
    manager.load()
    manager.create(KEYS[0], ID)
    manager.shutdown()
    assert survey(fs, "/one").clean
    left = fs.crash(CrashMode.POWER)
    assert not left.exists("/one/.kafka_cleanshutdown")
    assert not survey(left, "/one").clean
    assert survey(left, "/two").clean


def test_what_is_no_log_is_left_alone(fs: MemoryFs, open_manager: Opener) -> None:
    strangers = ["t-0.ab-stray", "t-0.ab-future", "t-01", "notes", "-1", "lost+found"]
    for name in [*strangers, "t-0.cd-delete", "t-3"]:
        fs.make_directories(f"/one/{name}")
        replace_file(fs, f"/one/{name}/file", b"x")
    manager = open_manager(fs)
    manager.load()
    assert list(manager.logs) == [TopicPartition("t", 3)]
    job = manager.due_deletions()
    assert job is not None
    assert job.directories == ["/one/t-0.cd-delete"]
    job.run()
    names = {entry.name for entry in fs.entries("/one")}
    assert names >= {*strangers, "t-3"}
    assert "t-0.cd-delete" not in names


def test_one_partition_in_two_directories_is_refused(fs: MemoryFs, open_manager: Opener) -> None:
    for log_dir in LOG_DIRS:
        fs.make_directories(f"{log_dir}/t-0")
    with pytest.raises(ConfigError, match="/one/t-0 and in /two/t-0"):
        open_manager(fs).load()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("t-0", TopicPartition("t", 0)),
        ("a-b.c_d-12", TopicPartition("a-b.c_d", 12)),
        ("t-007", None),
        ("t", None),
        ("t-", None),
        ("t-0.0123-delete", None),
        ("t-0.0123-stray", None),
        ("..-0", None),
    ],
)
def test_names_of_directories(name: str, key: TopicPartition | None) -> None:
    assert topic_partition_of(name) == key
