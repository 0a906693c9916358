"""A cleaning is stopped after every operation of its disk; the log opened then is the old one or the cleaned one.

Each run fills a compacted log at random, takes the cleaning once without a crash to see both states, and then stops it
in every operation from the cleaner's first file to the end of the swap, in each way that a crash can leave a disk, some
of them a second time while the next start recovers. What is opened must hold the records before or those after, never
some of both; every offset must lead to the right batch; and cleaning it (again) must give the records after.
The soak makes 100 runs, with other seeds.
"""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.compaction.clean_job import CleanResult
from spark_kafkalite.log.compaction.cleanable import clean_job, compaction_state
from spark_kafkalite.log.compaction.cleaner import clean
from spark_kafkalite.log.compaction.plan import plan_compaction
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.producer_snapshot import encode
from spark_kafkalite.log.segments import swap as swap_module
from spark_kafkalite.log.segments.segment import DELETED_SUFFIX
from spark_kafkalite.log.segments.swap import Swap
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash
from tests.lab.batches import header_of
from tests.seeds import SEED, SOAK

KEY = TopicPartition("t", 0)
# The runs of `make test` are chosen, not drawn.
SEEDS = range(SEED * 1_000, SEED * 1_000 + 100) if SOAK else range(2)
# Each way that a crash can leave a disk is met once; all with all in the soak.
CASES = [(seed, mode) for seed in SEEDS for mode in CrashMode if SOAK or (mode is CrashMode.POWER_TORN) == (seed == 0)]

Records = dict[int, tuple[bytes | None, bytes | None]]


def config_of(policy: str = "compact") -> TopicConfig:
    return TopicConfig.from_properties(
        {
            "cleanup.policy": policy,
            "segment.bytes": "700",
            "index.interval.bytes": "150",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1000",
        }
    )


def start(fs: MemoryFs, clock: ManualClock, policy: str = "compact") -> LogManager:
    manager = LogManager(fs, ["/data"], clock, config_of=lambda _: config_of(policy))
    manager.open()
    manager.load()
    return manager


def append(log: PartitionLog, clock: ManualClock, chance: random.Random, sequences: dict[int, int]) -> None:
    batch = kernel.OpenBatch(1 << 20)
    count = chance.randrange(1, 5)
    for _ in range(count):
        key = b"key-%d" % chance.randrange(8)
        value = None if chance.random() < 0.2 else b"v" * chance.randrange(1, 60)
        batch.append(clock.wall_ms(), key, value, [])
    producer = chance.choice([-1, 1, 2])
    sequence = sequences.get(producer, 0) if producer >= 0 else -1
    data = bytearray(
        batch.build(producer_id=producer, producer_epoch=0 if producer >= 0 else -1, base_sequence=sequence)
    )
    sequences[producer] = sequence + count
    log.append_as_leader(data, header_of(data), 3)
    clock.advance(ms=chance.randrange(20))


def fill(log: PartitionLog, clock: ManualClock, chance: random.Random, batches: int) -> None:
    sequences = {
        producer_id: entry.last_sequence + 1
        for producer_id, entry in log.producers.state.producers.items()
        if entry.batches
    }
    for _ in range(batches):
        append(log, clock, chance, sequences)
    log.flush()


def run_cleaning(fs: MemoryFs, log: PartitionLog, clock: ManualClock, next_horizon_ms: int = -1) -> CleanResult:
    state = compaction_state(log, log.log_end_offset, next_horizon_ms)
    plan = plan_compaction(state, log.config, clock.wall_ms())
    assert plan is not None
    return clean(fs, clean_job(log, plan, clock.wall_ms(), 1 << 20, 1 << 20), lambda _: None)


def compact(
    manager: LogManager, fs: MemoryFs, log: PartitionLog, clock: ManualClock, next_horizon_ms: int = -1
) -> CleanResult:
    result = run_cleaning(fs, log, clock, next_horizon_ms)
    swap = Swap(fs, log, result.groups, result.end_offset)
    assert swap.commit()
    swap.apply()
    swap.sync_names()
    manager.checkpoints.cleaned_offsets(log).write()
    swap.forget()
    return result


def records_of(log: PartitionLog) -> Records:
    """Read the log as a consumer does, from the start to the end."""
    found: Records = {}
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        piece = log.read(offset, 400, log.log_end_offset)
        assert piece is not None, f"a reader stays at {offset} for ever, the log ends at {log.log_end_offset}"
        data = piece.read()
        position = 0
        for header in kernel.scan_headers(data):
            builder = kernel.ColumnBuilder(False)
            add_batch(builder, data, position, header)
            columns = builder.finish()
            for row in range(columns.count):
                found[columns.offset_at(row)] = (columns.key_at(row), columns.value_at(row))
            position += header.size_bytes
            assert header.next_offset > offset
            offset = header.next_offset
    return found


def prepared(seed: int) -> tuple[MemoryFs, LogManager, ManualClock]:
    """A log that was cleaned once, then written to again, some of whose tombstones may go now."""
    chance = random.Random(seed)
    fs, clock = MemoryFs(), ManualClock()
    manager = start(fs, clock)
    log = manager.create(KEY, bytes(range(16)))
    fill(log, clock, chance, 24)
    compact(manager, fs, log, clock)
    clock.advance(ms=2000)
    fill(log, clock, chance, 16)
    manager.checkpoint()
    return fs, manager, clock


def check_sound(log: PartitionLog, records: Records) -> None:
    """Every offset leads to the first record at or after it, by offset and by time."""
    offsets = sorted(records)
    for offset in range(int(log.log_start_offset), int(log.log_end_offset)):
        piece = log.read(offset, 1, log.log_end_offset)
        following = next((each for each in offsets if each >= offset), None)
        if piece is None:
            assert following is None
        elif following is not None:
            assert header_of(piece.read()).next_offset > offset
            assert header_of(piece.read()).base_offset <= following
    newest = log.offset_of_max_timestamp(log.log_end_offset)
    assert newest is not None
    first = log.offset_for_timestamp(newest.timestamp_ms, log.log_end_offset)
    assert first is not None and first.offset == newest.offset
    assert log.offset_for_timestamp(0, log.log_end_offset).offset == offsets[0]  # type: ignore[union-attr]
    assert log.offset_for_timestamp(newest.timestamp_ms + 1, log.log_end_offset) is None


def reopened(fs: MemoryFs, clock: ManualClock, policy: str = "compact") -> tuple[LogManager, PartitionLog]:
    manager = start(fs, clock, policy)
    log = manager.get(KEY)
    assert log is not None
    return manager, log


@pytest.mark.parametrize(("seed", "mode"), CASES)
def test_a_crash_leaves_the_old_log_or_the_cleaned_one(seed: int, mode: CrashMode) -> None:
    fs, manager, clock = prepared(seed)
    log = manager.logs[KEY]
    before, end_offset, producers = records_of(log), log.log_end_offset, encode(log.producers.state)
    first_operation = fs.operations + 1
    assert compact(manager, fs, log, clock).groups
    last_operation = fs.operations
    after = records_of(log)
    assert after != before
    check_sound(log, after)

    seen = set()
    for number in range(first_operation, last_operation + 1):
        chance = random.Random(seed * 1000 + number)
        fs, manager, clock = prepared(seed)
        fs.stop_at(number)
        with pytest.raises(SimulatedCrash):
            compact(manager, fs, manager.logs[KEY], clock)
        left = fs.crash(mode, chance)
        if chance.random() < 0.4:
            # The start that follows crashes, too.
            left.stop_at(left.operations + chance.randrange(1, 25))
            try:
                start(left, clock)
            except SimulatedCrash:
                pass
            left = left.crash(mode, chance)
        manager, log = reopened(left, clock, chance.choice(["compact", "compact", "delete"]))
        where = f"seed {seed}, stopped in operation {number}, {mode}"
        assert log.log_end_offset == end_offset, where
        found = records_of(log)
        assert found in (before, after), where
        seen.add(found == after)
        check_sound(log, found)
        assert encode(log.producers.state)[6:10] == producers[6:10], where
        assert not [name for name in left.files() if name.endswith((".cleaned", "cleaner-swap", DELETED_SUFFIX))], where
        # It goes on: what is there can be cleaned, which changes nothing that has been cleaned already.
        log.update_config(config_of())
        if found == before:
            compact(manager, left, log, clock)
            assert records_of(log) == after, where
        fill(log, clock, chance, 3)
        survivors = records_of(log)
        manager.shutdown()
        manager, log = reopened(left.crash(CrashMode.POWER), clock, "delete")
        assert records_of(log) == survivors, where
        assert manager.was_clean
    assert seen == {True, False}


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("mode", CrashMode)
def test_reader_comes_to_the_end_of_a_log_of_which_nothing_is_left(mode: CrashMode, checkpointed: bool) -> None:
    fs, clock = MemoryFs(), ManualClock()
    manager = start(fs, clock)
    log = manager.create(KEY, bytes(range(16)))
    for value in (b"v", None):
        batch = kernel.OpenBatch(1 << 20)
        batch.append(clock.wall_ms(), b"key", value, [])
        data = bytearray(batch.build())
        log.append_as_leader(data, header_of(data), 3)
    log.roll()
    log.flush()
    horizon_ms = compact(manager, fs, log, clock).next_horizon_ms
    assert records_of(log) == {1: (b"key", None)}
    clock.advance(ms=2000)
    assert compact(manager, fs, log, clock, horizon_ms).records_kept == 0
    if checkpointed:
        manager.checkpoint()
    assert (records_of(log), log.log_end_offset) == ({}, 2)
    manager, log = reopened(fs.crash(mode, random.Random(1)), clock)
    assert (records_of(log), log.log_end_offset) == ({}, 2)
    fill(log, clock, random.Random(1), 1)
    assert min(records_of(log)) == 2


def test_checkpoints_that_a_crash_took_do_not_make_gaps_a_fault() -> None:
    fs, manager, clock = prepared(1)
    log = manager.logs[KEY]
    compact(manager, fs, log, clock)
    after, end_offset = records_of(log), log.log_end_offset
    manager.abandon()
    fs.unlink("/data/recovery-point-offset-checkpoint")
    # The topic is not compacted any more: only the cleaner's checkpoint says that gaps are right.
    _, log = reopened(fs, clock, "delete")
    assert records_of(log) == after
    assert log.log_end_offset == end_offset
    assert log.recovered_segments > 1


def test_truncation_calls_off_a_swap_that_is_not_committed() -> None:
    fs, manager, clock = prepared(2)
    log = manager.logs[KEY]
    result = run_cleaning(fs, log, clock)
    swap = Swap(fs, log, result.groups, result.end_offset)
    log.swap = swap
    before = records_of(log)
    cut = log.log_end_offset - 10
    truncate_to(log, cut)
    assert not swap.commit()
    assert records_of(log) == {offset: each for offset, each in before.items() if offset < log.log_end_offset}
    assert log.cleaned_until_offset <= log.log_end_offset


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("mode", CrashMode)
def test_truncation_ends_a_swap_that_is_committed(mode: CrashMode, is_applied: bool) -> None:
    fs, manager, clock = prepared(3)
    log = manager.logs[KEY]
    result = run_cleaning(fs, log, clock)
    swap = Swap(fs, log, result.groups, result.end_offset)
    log.swap = swap
    assert swap.commit()
    if is_applied:
        swap.apply()
    truncate_to(log, result.end_offset - 3)
    log.swap = None
    left = records_of(log)
    assert log.cleaned_until_offset == log.log_end_offset <= result.end_offset - 3
    # Until it is flushed a power loss may undo the truncation itself.
    _, again = reopened(fs.crash(mode, random.Random(3)), clock, "delete")
    assert {offset: each for offset, each in records_of(again).items() if offset < log.log_end_offset} == left
    assert again.cleaned_until_offset <= again.log_end_offset
    # The rest of the way changes nothing.
    swap.sync_names()
    swap.forget()
    assert records_of(log) == left


def test_a_full_disk_at_a_start_leaves_the_end_of_a_swap_for_later() -> None:
    fs, manager, clock = prepared(3)
    log = manager.logs[KEY]
    result = run_cleaning(fs, log, clock)
    swap = Swap(fs, log, result.groups, result.end_offset)
    assert swap.commit()
    left = fs.crash(CrashMode.POWER)
    left.fail("pwrite", errno.ENOSPC, path_part="cleaner-offset-checkpoint", times=9)
    _, log = reopened(left, clock, "delete")
    assert log.failure is None
    assert log.swap is not None
    assert f"{log.directory}/cleaner-swap" in left.files()
    found = records_of(log)
    check_sound(log, found)
    # Until it is ended, every start does it again.
    manager, log = reopened(left.crash(CrashMode.POWER), clock, "delete")
    assert records_of(log) == found
    assert log.swap is None
    assert log.cleaned_until_offset == result.end_offset


def test_readers_keep_the_old_file_and_go_on_in_the_new_one() -> None:
    fs, manager, clock = prepared(4)
    log = manager.logs[KEY]
    pieces = []
    for segment in list(log.segments):
        piece = log.read(segment.base_offset, 1 << 20, log.log_end_offset)
        assert piece is not None
        pieces.append((piece, piece.read()))
    size_bytes = log.size_bytes
    compact(manager, fs, log, clock)
    assert log.size_bytes < size_bytes
    assert [piece.read() for piece, _ in pieces] == [data for _, data in pieces]
    check_sound(log, records_of(log))


def test_a_cleaned_file_that_is_not_what_the_cleaner_said_is_refused() -> None:
    fs, manager, clock = prepared(5)
    log = manager.logs[KEY]
    before = records_of(log)
    result = run_cleaning(fs, log, clock)
    for group in result.groups:
        path = f"{log.directory}/{group.base_offset:020d}.log.cleaned"
        fs.open(path).truncate(group.size_bytes + 1)
    with pytest.raises(swap_module.CorruptMessage, match="the cleaner wrote"):
        Swap(fs, log, result.groups, result.end_offset).commit()
    swap_module.remove_cleaned(fs, log.directory)
    assert records_of(reopened(fs.crash(CrashMode.POWER), clock)[1]) == before


def skip_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFs, "sync_directory", lambda self, path: self._before("sync_directory", path))


def forget_before_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_module.Swap, "sync_names", lambda self: self.forget())


def name_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Swap.apply

    def commit_late(self: Swap) -> bool:
        apply(self)
        return True

    monkeypatch.setattr(swap_module.Swap, "commit", commit_late)
    monkeypatch.setattr(swap_module.Swap, "apply", lambda self: None)
    monkeypatch.setattr(swap_module.Swap, "forget", lambda self: None)


@pytest.mark.parametrize("bug", [skip_directory_sync, forget_before_the_checkpoint, name_before_the_commit])
def test_the_harness_sees_bugs(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable(logging.CRITICAL)
    try:
        bug(monkeypatch)
        with pytest.raises((AssertionError, FileNotFoundError, KafkaStorageError, TypeError)):
            for seed in SEEDS:
                test_a_crash_leaves_the_old_log_or_the_cleaned_one(seed, CrashMode.POWER_TORN)
    finally:
        logging.disable(logging.NOTSET)


def test_a_swap_file_of_apache_kafka_is_completed() -> None:
    fs, manager, clock = prepared(1)
    log = manager.logs[KEY]
    result = run_cleaning(fs, log, clock)
    manager.abandon()
    group = max(result.groups, key=lambda each: len(each.sources))
    stem = f"{log.directory}/{group.base_offset:020d}"
    for suffix in (".index", ".timeindex", ".log"):
        fs.rename(stem + suffix + ".cleaned", stem + suffix + ".swap")
    _, log = reopened(fs, clock)
    assert not [name for name in fs.files() if name.endswith(".swap")]
    assert fs.open(stem + ".log").size() == group.size_bytes
    check_sound(log, records_of(log))
