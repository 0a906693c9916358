"""Every file beside the segments is deleted, cut, emptied and flipped, after a clean stop and after a crash.

Whatever happens to them, no record is lost, look-ups by offset and time are right, and the log goes on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from spark_kafkalite.log.files.needs_thread import without_waiting
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.segment import IndexesDamaged
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch, values_of
from tests.seeds import SEED, SOAK

KEY = TopicPartition("t", 0)
ID = bytes(range(16))
CONFIG = TopicConfig.from_properties({"segment.bytes": "1500", "index.interval.bytes": "150"})
RECORDS = 60
STEP_MS = 10
# Every fifth batch is older than the one before it, as from a second producer.
TIMES = [1_700_000_000_000 + STEP_MS * (number if number % 5 else max(0, number - 3)) for number in range(RECORDS)]
Damage = Callable[[MemoryFs, str, random.Random], None]


def start(fs: MemoryFs) -> LogManager:
    manager = LogManager(fs, ["/data"], ManualClock(), config_of=lambda topic: CONFIG)
    manager.open()
    manager.claim(1, "cluster")
    manager.load()
    return manager


def filled(*, clean: bool) -> MemoryFs:
    """A log directory with one log of several segments, left by a clean stop or by a crash after a flush."""
    fs = MemoryFs()
    manager = start(fs)
    log = manager.create(KEY, ID)
    for number in range(RECORDS):
        batch = make_batch(
            [b"value %d" % number],
            timestamp_ms=TIMES[number],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
        )
        log.append_as_leader(batch, header_of(batch), number // 20)
    if clean:
        manager.shutdown({KEY: RECORDS})
        return fs.crash(CrashMode.POWER)
    log.flush()
    manager.checkpoint({KEY: RECORDS})
    log.write_small_files()
    return fs.crash(CrashMode.PROCESS)


def delete(fs: MemoryFs, path: str, chance: random.Random) -> None:
    fs.unlink(path)


def empty(fs: MemoryFs, path: str, chance: random.Random) -> None:
    fs.open(path).truncate(0)


def cut(fs: MemoryFs, path: str, chance: random.Random) -> None:
    file = fs.open(path)
    file.truncate(chance.randrange(file.size()) if file.size() else 0)


def flip(fs: MemoryFs, path: str, chance: random.Random) -> None:
    file = fs.open(path)
    if file.size():
        position = chance.randrange(file.size())
        file.pwrite(bytes([file.pread(1, position)[0] ^ (1 << chance.randrange(8))]), position)


def zero(fs: MemoryFs, path: str, chance: random.Random) -> None:
    file = fs.open(path)
    file.pwrite(bytes(file.size()), 0)


def lengthen(fs: MemoryFs, path: str, chance: random.Random) -> None:
    file = fs.open(path)
    file.pwrite(chance.randbytes(24), file.size())


# Of each file that is cut or flipped somewhere.
TRIES = 20 if SOAK else 2
DAMAGES: list[Damage] = [delete, empty, cut, flip, zero, lengthen]
SMALL_FILES = [
    "/data/t-0/leader-epoch-checkpoint",
    "/data/t-0/partition.metadata",
    "/data/recovery-point-offset-checkpoint",
    "/data/log-start-offset-checkpoint",
    "/data/kafkalite-log-starts",
    "/data/replication-offset-checkpoint",
]


def check(manager: LogManager, what: str) -> None:
    log = manager.logs[KEY]
    assert (log.log_start_offset, log.log_end_offset) == (0, RECORDS), what
    assert log.failure is None
    for offset in range(RECORDS):
        piece = log.read(offset, 1, RECORDS)
        assert piece is not None
        assert values_of(piece.read()) == [(offset, b"value %d" % offset)], f"{what}: read of {offset}"
    for offset in range(0, RECORDS, 7):
        piece = log.read(offset, 500, RECORDS)
        assert piece is not None
        assert [each for each, _ in values_of(piece.read())][:3] == list(range(offset, min(offset + 3, RECORDS)))[
            : len(values_of(piece.read()))
        ]
    check_times(log, what)
    # A flipped digit in the file of epochs gives another number, which only the leader's log could contradict.
    assert ("flip" in what and "epoch" in what) or log.epochs.entries == [(0, 0), (1, 20), (2, 40)], what
    repeated = make_batch(1, producer_id=7, producer_epoch=0, base_sequence=RECORDS - 1)
    assert log.append_as_leader(repeated, header_of(repeated), 2).duplicate, what
    for number in range(RECORDS, RECORDS + 20):
        batch = make_batch([b"value %d" % number], producer_id=7, producer_epoch=0, base_sequence=number)
        assert log.append_as_leader(batch, header_of(batch), 3).base_offset == number, what
    log.flush()
    piece = log.read(RECORDS, 1, RECORDS + 20)
    assert piece is not None
    assert values_of(piece.read()) == [(RECORDS, b"value %d" % RECORDS)]


def check_times(log: PartitionLog, what: str) -> None:
    for time_ms in range(TIMES[0] - STEP_MS, TIMES[-1] + 2 * STEP_MS, STEP_MS // 2):
        right = next((offset for offset, at in enumerate(TIMES) if at >= time_ms), None)
        found = log.offset_for_timestamp(time_ms, RECORDS)
        assert (found.offset if found else None) == right, f"{what}: {time_ms - TIMES[0]} ms after the first"
    newest = log.offset_of_max_timestamp(RECORDS)
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (TIMES.index(max(TIMES)), max(TIMES)), what


def try_damage(damage: Damage, path: str, seed: int, *, clean: bool) -> None:
    fs = filled(clean=clean)
    if not fs.exists(path):
        return
    what = f"{damage.__name__} {path}, seed {seed}"
    damage(fs, path, random.Random(seed))
    manager = start(fs)
    check(manager, what)
    manager.shutdown()
    again = start(fs)
    assert again.was_clean
    log = again.logs[KEY]
    assert log.log_end_offset == RECORDS + 20, what
    check_times(log, what + ", started once more")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", SMALL_FILES)
def test_small_file(path: str, damage: Damage, clean: bool) -> None:
    for seed in range(SEED, SEED + TRIES) if damage in (cut, flip) else (0,):
        try_damage(damage, path, seed, clean=clean)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_file_of_a_segment(suffix: str, damage: Damage, clean: bool) -> None:
    paths = sorted(path for path in filled(clean=clean).files() if path.endswith(suffix))
    assert len(paths) >= 3
    for path in paths:
        for seed in range(SEED, SEED + TRIES) if damage in (cut, flip) else (0,):
            try_damage(damage, path, seed, clean=clean)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "-checkpoint"])
def test_all_of_a_kind_are_gone(suffix: str, clean: bool) -> None:
    fs = filled(clean=clean)
    for path in fs.files():
        if path.endswith(suffix):
            fs.unlink(path)
    check(start(fs), f"no {suffix}")


def test_after_a_clean_stop_no_index_is_read() -> None:
    fs = filled(clean=True)
    fs.fail("open", path_part="index", times=1000)
    manager = start(fs)
    log = manager.logs[KEY]
    assert (log.log_end_offset, log.recovery_point) == (RECORDS, RECORDS)
    assert log.segments.active.unread_until_offset == RECORDS
    manager.shutdown()
    assert fs.exists("/data/.kafka_cleanshutdown")


def test_where_nobody_may_wait_a_thread_makes_indexes_anew() -> None:
    fs = filled(clean=True)
    zero(fs, "/data/t-0/00000000000000000000.timeindex", random.Random(0))
    log = start(fs).logs[KEY]
    with without_waiting(), pytest.raises(IndexesDamaged, match="time index") as raised:
        log.offset_for_timestamp(TIMES[3], RECORDS)
    thread = threading.Thread(target=raised.value.work)
    thread.start()
    thread.join()
    made = log.segments.first.offset_index
    raised.value.work()
    assert log.segments.first.offset_index is made, "once is enough"
    with without_waiting():
        check_times(log, "rebuilt in a thread")
