from __future__ import annotations

import pytest

from spark_kafkalite.log.files.fs import read_whole
from spark_kafkalite.log.loading.repair import Cut, plan_repair, repair
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash
from tests.lab.batches import end_of, header_of, make_batch, make_stored_batch, values_of

KEY = TopicPartition("t", 0)
LOG = "/data/t-0"
CONFIG = TopicConfig.from_properties({"segment.bytes": "300", "index.interval.bytes": "100"})
SIZE = len(make_batch([b"value 00", b"value 00"]))
MARKER = "/data/.kafka_cleanshutdown"


def start(fs: MemoryFs) -> LogManager:
    manager = LogManager(fs, ["/data"], ManualClock(), config_of=lambda topic: CONFIG)
    manager.open()
    manager.load()
    return manager


@pytest.fixture
def stopped(fs: MemoryFs) -> MemoryFs:
    """A log of three segments of three batches of two records each, and a fourth of one, after a clean stop."""
    manager = start(fs)
    log = manager.create(KEY, bytes(range(16)))
    for number in range(10):
        batch = make_batch([b"value %02d" % number] * 2)
        log.append_as_leader(batch, header_of(batch), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12, 18]
    manager.shutdown()
    return fs


def path(base: int) -> str:
    return f"{LOG}/{base:020d}.log"


def planned(fs: MemoryFs) -> Cut:
    cut = plan_repair(fs, LOG)
    assert cut is not None
    return cut


def opened(fs: MemoryFs) -> PartitionLog:
    manager = start(fs)
    assert not manager.was_clean
    return manager.logs[KEY]


def offsets(log: PartitionLog) -> list[int]:
    found: list[int] = []
    position = 0
    # As the leader of the only replica does.
    log.local.known_damage.accept()
    while (piece := log.read(position, 1 << 20, log.log_end_offset)) is not None:
        found += [offset for offset, _ in values_of(piece.read())]
        position = end_of(piece.read())
    return found


def test_sound_log_needs_none(stopped: MemoryFs) -> None:
    before = stopped.operations
    assert plan_repair(stopped, LOG) is None
    assert stopped.operations == before


@pytest.mark.parametrize("left", [1, 60, SIZE - 1])
def test_torn_tail_is_cut_and_kept(stopped: MemoryFs, left: int) -> None:
    file = stopped.open(path(12))
    stopped.unlink(path(18))
    file.truncate(2 * SIZE + left)
    torn = file.pread(left, 2 * SIZE)
    cut = planned(stopped)
    assert (cut.base_offset, cut.position, cut.cut_bytes, cut.end_offset) == (12, 2 * SIZE, left, 16)
    assert (cut.sound_batches, cut.sound_offsets, cut.later_segments) == (0, None, ())
    assert stopped.exists(MARKER), "planning changes nothing"
    assert repair(stopped, cut) == [path(12) + ".torn"]
    assert read_whole(stopped, path(12) + ".torn") == torn
    assert not stopped.exists(MARKER)
    assert plan_repair(stopped, LOG) is None
    left_over = stopped.crash(CrashMode.POWER)
    assert read_whole(left_over, path(12) + ".torn") == torn
    log = opened(left_over)
    assert offsets(log) == list(range(16))
    batch = make_batch(1)
    assert log.append_as_leader(batch, header_of(batch), 1).base_offset == 20, (
        "offsets that were given are not given again"
    )
    assert left_over.exists(path(12) + ".torn"), "a start leaves it alone"


def test_damage_in_the_middle_is_told_from_a_torn_tail(stopped: MemoryFs) -> None:
    stopped.open(path(6)).pwrite(b"\xff", SIZE + 70)
    cut = planned(stopped)
    assert (cut.base_offset, cut.position, cut.end_offset) == (6, SIZE, 8)
    assert (cut.sound_batches, cut.sound_records, cut.sound_offsets) == (5, 10, (10, 19))
    assert cut.later_segments == (12, 18)
    whole = [read_whole(stopped, path(base)) for base in (12, 18)]
    assert repair(stopped, cut) == [path(base) + ".torn" for base in (6, 12, 18)]
    assert [read_whole(stopped, path(base) + ".torn") for base in (12, 18)] == whole
    assert offsets(opened(stopped)) == list(range(8))


def test_sound_batches_behind_garbage_are_found(stopped: MemoryFs) -> None:
    stopped.unlink(path(18))
    file = stopped.open(path(12))
    end = file.size()
    garbage = bytes(range(256)) * 2 + b"\2" * 100
    file.pwrite(garbage + bytes(make_stored_batch(30, 0, 3)), end)
    cut = planned(stopped)
    assert (cut.position, cut.sound_batches, cut.sound_records, cut.sound_offsets) == (end, 1, 3, (30, 32))


def test_gaps_of_compaction_are_no_damage(stopped: MemoryFs) -> None:
    stopped.unlink(path(6))
    assert plan_repair(stopped, LOG) is None


def test_segment_that_overlaps_the_one_before_is_damage(stopped: MemoryFs) -> None:
    stopped.rename(path(12), f"{LOG}/{9:020d}.log")
    cut = planned(stopped)
    assert (cut.base_offset, cut.position) == (9, 0)
    assert "begins at offset 9, the one before ends at 12" in cut.reason


def test_indexes_of_the_cut_segment_are_made_anew(stopped: MemoryFs) -> None:
    stopped.open(path(12)).pwrite(b"\xff", 2 * SIZE + 70)
    repair(stopped, planned(stopped))
    log = opened(stopped)
    cut = next(each for each in log.segments if each.base_offset == 12)
    assert cut.offset_index.last_entry() == (15, SIZE) or cut.offset_index.count == 0


def test_a_second_repair_keeps_what_the_first_has_kept(stopped: MemoryFs) -> None:
    for flipped in 2, 1:
        stopped.open(path(0)).pwrite(b"\xff", flipped * SIZE + 70)
        repair(stopped, planned(stopped))
    names = [entry.name for entry in stopped.entries(LOG) if ".torn" in entry.name]
    assert sorted(name.rpartition(".log")[2] for name in names if name.startswith("0" * 20)) == [".torn", ".torn.1"]


def test_power_cut_in_a_repair_loses_nothing(stopped: MemoryFs) -> None:
    """Whatever is there afterwards, every batch that was cut is in the log or in a side file."""
    stopped.open(path(6)).pwrite(b"\xff", SIZE + 70)
    stopped.sync_everything("/")
    for stop_at in range(1, 100):
        fs = stopped.crash(CrashMode.PROCESS)
        cut = planned(fs)
        fs.stop_at(stop_at)
        try:
            repair(fs, cut)
        except SimulatedCrash:
            pass
        else:
            assert stop_at > 10
            return
        left = fs.crash(CrashMode.POWER)
        everything = b"".join(data for name, data in left.files().items() if ".log" in name)
        for number in range(10):
            assert b"value %02d" % number in everything, f"stopped at {stop_at}"
    pytest.fail("the repair never came to its end")
