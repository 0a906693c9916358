"""Damaged indexes of the segment that appends go to: a thread makes them anew, the loop goes on with both."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_kafkalite.log.files.needs_thread import NeedsThread, without_waiting
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.readiness import EndDamaged
from spark_kafkalite.log.segments import active_segment, index_walk
from spark_kafkalite.log.segments.segment import IndexesDamaged
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch, values_of

KEY = TopicPartition("t", 0)
BATCHES = 3000
BASE_MS = 1_700_000_000_000
INDEX = f"/data/t-0/{0:020d}.index"
TIME_INDEX = f"/data/t-0/{0:020d}.timeindex"


def start(fs: MemoryFs) -> LogManager:
    config = TopicConfig.from_properties({"index.interval.bytes": "1000"})
    manager = LogManager(fs, ["/data"], ManualClock(), config_of=lambda topic: config)
    manager.open()
    manager.load()
    return manager


def append(log: PartitionLog, count: int = 1, size: int = 100) -> None:
    for _ in range(count):
        offset = int(log.log_end_offset)
        batch = make_batch([b"%d:" % offset + bytes(size)], timestamp_ms=BASE_MS + offset)
        log.append_as_leader(batch, header_of(batch), 0)


@pytest.fixture(scope="module")
def stopped() -> MemoryFs:
    fs = MemoryFs()
    manager = start(fs)
    append(manager.create(KEY, bytes(range(16))), BATCHES)
    manager.shutdown()
    return fs


@pytest.fixture(params=[INDEX, TIME_INDEX])
def damaged(stopped: MemoryFs, request: pytest.FixtureRequest) -> Iterator[PartitionLog]:
    fs = stopped.crash(CrashMode.PROCESS)
    file = fs.open(request.param)
    # Every entry says what the log does not.
    file.pwrite(b"\x00\x00\x00\x07" * (file.size() // 4), 0)
    manager = start(fs)
    assert manager.was_clean
    yield manager.logs[KEY]
    manager.shutdown()
    again = start(fs.crash(CrashMode.POWER)).logs[KEY]
    assert again.log_end_offset == manager.logs[KEY].log_end_offset
    check(again)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How many bytes each thread has walked for a rebuild."""
    by_thread: dict[int, int] = {}
    go_on = index_walk.IndexWalk.go_on

    def counted(self: index_walk.IndexWalk) -> None:
        before = self.position
        go_on(self)
        thread = threading.get_ident()
        by_thread[thread] = by_thread.get(thread, 0) + self.position - before

    monkeypatch.setattr(index_walk.IndexWalk, "go_on", counted)
    return by_thread


def load(missing: NeedsThread) -> None:
    thread = threading.Thread(target=missing.work)
    thread.start()
    thread.join()


def look_up(log: PartitionLog, offset: int) -> int:
    """Look an offset and its time up as the loop does; return how often a thread was needed."""
    for needed in range(10):
        try:
            with without_waiting():
                piece = log.read(offset, 1, log.log_end_offset)
                found = log.offset_for_timestamp(BASE_MS + offset, log.log_end_offset)
        except NeedsThread as missing:
            load(missing)
            continue
        assert piece is not None and values_of(piece.read())[0][0] == offset
        assert found is not None and found.offset == offset
        return needed
    pytest.fail("the look-up never came to its end")


def check(log: PartitionLog) -> None:
    for offset in range(0, log.log_end_offset, 97):
        look_up(log, offset)


def test_look_ups_walk_next_to_nothing_in_the_loop(damaged: PartitionLog, walked: dict[int, int]) -> None:
    assert look_up(damaged, 1000) >= 1
    append(damaged, 50)
    check(damaged)
    # What was there has been walked, by a thread.
    assert sum(walked.values()) >= BATCHES * 100
    assert walked.get(threading.get_ident(), 0) <= active_segment._WALKED_IN_THE_LOOP_BYTES


def test_appends_go_on_while_a_thread_walks(stopped: MemoryFs, walked: dict[int, int]) -> None:
    fs = stopped.crash(CrashMode.PROCESS)
    log = start(fs).logs[KEY]
    append(log, 10)
    file = fs.open(INDEX)
    file.pwrite(b"\x00\x00\x00\x07" * (file.size() // 4), 0)
    with without_waiting(), pytest.raises(IndexesDamaged) as raised:
        log.read(1000, 1, BATCHES)
    append(log, 10)
    load(raised.value)
    # More than the loop walks by itself: the thread is asked once more.
    append(log, 20, size=30_000)
    assert look_up(log, 1000) == 1
    append(log, 30)
    check(log)
    assert walked.get(threading.get_ident(), 0) <= active_segment._WALKED_IN_THE_LOOP_BYTES
    assert log.segments.active.max_timestamp == (BASE_MS + log.log_end_offset - 1, log.log_end_offset - 1)


def test_walk_over_what_is_truncated_does_not_count(stopped: MemoryFs) -> None:
    fs = stopped.crash(CrashMode.PROCESS)
    log = start(fs).logs[KEY]
    append(log)
    file = fs.open(INDEX)
    file.pwrite(b"\x00\x00\x00\x07" * (file.size() // 4), 0)
    with without_waiting(), pytest.raises(IndexesDamaged) as raised:
        log.read(1000, 1, BATCHES)
    load(raised.value)
    truncate_to(log, 500)
    append(log, 700, size=77)
    check(log)


def test_first_append_asks_for_a_thread(damaged: PartitionLog, walked: dict[int, int]) -> None:
    missing = damaged.readiness.missing()
    assert isinstance(missing, EndDamaged)
    load(missing)
    assert damaged.readiness.missing() is None
    append(damaged, 10)
    check(damaged)
    assert walked.get(threading.get_ident(), 0) <= active_segment._WALKED_IN_THE_LOOP_BYTES


def test_append_that_does_not_ask_rebuilds_by_itself(damaged: PartitionLog) -> None:
    append(damaged, 10)
    check(damaged)


def test_log_that_ends_elsewhere_is_the_appends_to_tell_of(stopped: MemoryFs, caplog: pytest.LogCaptureFixture) -> None:
    fs = stopped.crash(CrashMode.PROCESS)
    log = start(fs).logs[KEY]
    fs.open(f"/data/t-0/{0:020d}.log").pwrite(bytes(300), log.segments.active.size_bytes - 300)
    while (missing := log.readiness.missing()) is not None:
        load(missing)
    append(log)
    assert "cut at position" in caplog.text and "2999 to 2999 (" in caplog.text
    assert log.damaged_ranges == ((2999, 3000),)
    log.local.known_damage.accept()
    piece = log.read(2999, 1 << 20, log.log_end_offset)
    assert piece is not None
    assert [header.base_offset for header in scan_headers(piece.read()) if header.record_count] == [3000]
