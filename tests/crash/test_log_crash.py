"""A log is stopped after every operation of its disk, and opened again; what it promised must be there.

A run does random things to the logs of a LogManager on a file system in memory and keeps a model beside it: what was
appended, and what was known to be flushed. The file system stops in a chosen operation, forgets what a crash of the
chosen kind forgets, and a new manager loads what is left (sometimes it is stopped in that, too). Then:

* every record below the flushed offset is there, and after a mere crash of the process every acknowledged one;
* every record that is there is the one that was appended at that offset; offsets have no gap;
* leader epochs are right for every offset; a repeated batch of a producer is recognised; the topic id is right;
* what was recovered survives a power loss from then on, and the log takes appends.

Every failure names its seed. ``KAFKALITE_CRASH_RUNS`` sets the number of random runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log import scan
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments import Segments
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.batches import header_of, make_batch, values_of
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash

RUNS = int(os.environ.get("KAFKALITE_CRASH_RUNS", "300"))
PARTITIONS = [TopicPartition("t", number) for number in range(2)]
CONFIG = TopicConfig.from_properties({"segment.bytes": "900", "index.interval.bytes": "150"})


class Model:
    """What one partition must and may hold."""

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        # (value, leader epoch) by offset.
        self.records: list[tuple[bytes, int]] = []
        # Ends of batches and the sequence they began with; all batches are of one producer.
        self.batches: list[tuple[int, int, int]] = []
        self.flushed = 0
        self.start = 0
        self.checkpointed_start = 0
        self.sequence = 0
        self.producer_epoch = 0
        # A batch whose append has not returned.
        self.in_flight: list[tuple[bytes, int]] = []
        # What was truncated, by offset: until the truncation is flushed a power loss may bring it back.
        self.truncated: dict[int, set[tuple[bytes, int]]] = {}

    def allowed(self, offset: int) -> set[tuple[bytes, int]]:
        """What may be at an offset after a crash."""
        may_hold = self.records + self.in_flight
        allowed = {may_hold[offset]} if offset < len(may_hold) else set()
        return allowed if offset < self.flushed else allowed | self.truncated.get(offset, set())


class Run:
    """Random work on a manager, and the model of it."""

    def __init__(self, seed: int, fs: MemoryFs) -> None:
        self.chance = random.Random(seed)
        self.fs = fs
        self.clock = ManualClock()
        self.models: dict[TopicPartition, Model] = {}
        self.epoch = 0
        self.serial = 0
        self.manager = start_manager(fs, self.clock)

    def work(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[TopicPartition], None]]] = [
            (12, self.append),
            (4, self.flush),
            (2, self.checkpoint),
            (2, self.new_epoch),
            (1, self.truncate),
            (1, self.advance_start),
            (1, self.delete),
            (1, self.stop_and_start),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            (action,) = self.chance.choices([each for _, each in actions], weights)
            self.clock.advance(ms=self.chance.randrange(100))
            action(self.chance.choice(PARTITIONS))

    def log(self, key: TopicPartition) -> PartitionLog:
        log = self.manager.get(key)
        if log is None:
            self.models[key] = Model(self.chance.randbytes(16))
            log = self.manager.create(key, self.models[key].topic_id)
        return log

    def append(self, key: TopicPartition) -> None:
        log, model = self.log(key), None
        model = self.models[key]
        count = self.chance.randrange(1, 6)
        values = []
        for _ in range(count):
            self.serial += 1
            values.append(b"%d:" % self.serial + b"x" * self.chance.randrange(60))
        batch = make_batch(
            values,
            timestamp_ms=self.clock.wall_ms(),
            producer_id=5,
            producer_epoch=model.producer_epoch,
            base_sequence=model.sequence,
        )
        model.in_flight = [(value, self.epoch) for value in values]
        result = log.append_as_leader(batch, header_of(batch), self.epoch)
        assert result.base_offset == len(model.records)
        model.records += model.in_flight
        model.in_flight = []
        model.batches.append((len(model.records), model.sequence, count))
        model.sequence += count

    def flush(self, key: TopicPartition) -> None:
        log = self.log(key)
        job = log.start_flush()
        if job is None:
            return
        if self.chance.random() < 0.5:
            self.append(key)
        job.run()
        log.finish_flush(job)
        self.models[key].flushed = max(self.models[key].flushed, log.recovery_point)

    def checkpoint(self, key: TopicPartition) -> None:
        starts = {each: model.start for each, model in self.models.items()}
        self.manager.checkpoint({})
        for each, start in starts.items():
            self.models[each].checkpointed_start = start

    def new_epoch(self, key: TopicPartition) -> None:
        self.epoch += 1

    def truncate(self, key: TopicPartition) -> None:
        log, model = self.log(key), self.models[key]
        if not model.batches:
            return
        ends = [0, *(end for end, _, _ in model.batches)]
        target = self.chance.choice([end for end in ends if end >= model.start] or [len(model.records)])
        # What is being cut may be gone already when the crash comes.
        model.flushed = min(model.flushed, target)
        for offset in range(target, len(model.records)):
            model.truncated.setdefault(offset, set()).add(model.records[offset])
        log.truncate_to(target)
        del model.records[target:]
        model.batches = [batch for batch in model.batches if batch[0] <= target]
        # The leader that this log now follows has another producer session.
        model.producer_epoch += 1
        model.sequence = 0
        self.epoch += 1

    def advance_start(self, key: TopicPartition) -> None:
        log, model = self.log(key), self.models[key]
        if model.flushed > model.start:
            model.start = self.chance.randrange(model.start, model.flushed + 1)
            log.advance_log_start(model.start)

    def delete(self, key: TopicPartition) -> None:
        self.log(key)
        self.models.pop(key)
        self.manager.delete(key)

    def stop_and_start(self, key: TopicPartition) -> None:
        self.manager.shutdown()
        for model in self.models.values():
            model.flushed = len(model.records)
            model.checkpointed_start = model.start
        self.manager = start_manager(self.fs, self.clock)
        assert self.manager.was_clean
        for each, model in self.models.items():
            assert self.manager.logs[each].log_end_offset == len(model.records)


def start_manager(fs: MemoryFs, clock: ManualClock) -> LogManager:
    manager = LogManager(fs, ["/data"], clock, config_of=lambda topic: CONFIG)
    manager.open()
    manager.claim(1, "cluster")
    manager.load()
    return manager


def crash_and_check(
    seed: int, stop_at: int | None, mode: CrashMode, *, steps: int = 40, stop_recovery_too: bool = False
) -> bool:
    """Do a run that stops at an operation, and check what is left; returns whether it stopped at all."""
    fs = MemoryFs()
    if stop_at is not None:
        fs.stop_at(stop_at)
    run = None
    stopped = False
    try:
        run = Run(seed, fs)
        run.work(steps)
    except SimulatedCrash:
        stopped = True
    chance = random.Random(seed)
    after = fs.crash(mode, chance)
    if stop_recovery_too:
        after.stop_at(chance.randrange(1, 30))
        try:
            start_manager(after, ManualClock())
        except SimulatedCrash:
            pass
        after = after.crash(mode, chance)
    manager = start_manager(after, run.clock if run else ManualClock())
    models = run.models if run else {}
    for key, model in models.items():
        log = manager.get(key)
        if log is None:
            assert not model.flushed, f"{key} is gone, {model.flushed} records were flushed"
        else:
            check(log, model, mode)
    ends = {key: log.log_end_offset for key, log in manager.logs.items()}
    again = start_manager(after.crash(CrashMode.POWER), ManualClock())
    for key, end in ends.items():
        if end:
            assert again.logs[key].log_end_offset == end, "what was recovered did not survive a power loss"
    for key, model in models.items():
        if key in manager.logs:
            take_up_again(manager.logs[key], model)
    return stopped


def check(log: PartitionLog, model: Model, mode: CrashMode) -> None:
    end, start = log.log_end_offset, log.log_start_offset
    assert end >= model.flushed, f"flushed records are lost: {log}, {model.flushed} were flushed"
    if mode is CrashMode.PROCESS and not model.in_flight:
        assert end >= len(model.records) or model.flushed < len(model.records), f"acknowledged records are lost: {log}"
    assert start <= max(model.start, end)
    assert start >= min(model.checkpointed_start, end)
    if model.flushed:
        assert log.topic_id == model.topic_id
    offset, found = int(start), []
    while (piece := log.read(offset, 500, end)) is not None:
        found += [record for record in values_of(piece.read()) if record[0] >= offset]
        offset = found[-1][0] + 1
    assert [each for each, _ in found] == list(range(start, end)), "offsets have a gap"
    for each, value in found:
        allowed = model.allowed(each)
        assert value in [each_value for each_value, _ in allowed], f"offset {each} holds {value!r}, not {allowed!r}"
        # Epochs below the log start are dropped, also when the new log start was not checkpointed.
        epoch = log.epochs.epoch_at(each)
        assert each < model.start or (value, epoch) in allowed, f"offset {each}: epochs {log.epochs.entries}"
    assert log.recovery_point == end


def take_up_again(log: PartitionLog, model: Model) -> None:
    end = log.log_end_offset
    whole = [batch for batch in model.batches if batch[0] <= end]
    if whole and whole[-1][0] == end and not model.in_flight and model.flushed >= end > log.log_start_offset:
        _, sequence, count = whole[-1]
        repeated = make_batch(
            count, producer_id=5, producer_epoch=log.producers.producers[5].producer_epoch, base_sequence=sequence
        )
        assert log.append_as_leader(repeated, header_of(repeated), log.epochs.latest).duplicate
    batch = make_batch([b"after the crash"])
    result = log.append_as_leader(batch, header_of(batch), log.epochs.latest + 1)
    assert result.base_offset == end
    piece = log.read(end, 1, end + 1)
    assert piece is not None
    assert values_of(piece.read()) == [(end, b"after the crash")]


@pytest.mark.parametrize("mode", CrashMode)
def test_stopped_after_every_operation_of_a_run(mode: CrashMode) -> None:
    for stop_at in range(1, 10_000):
        if not crash_and_check(4, stop_at, mode, steps=30):
            assert stop_at > 100, "the run was too short to say anything"
            return
    pytest.fail("the run never came to its end")


@pytest.mark.parametrize("mode", CrashMode)
def test_random_runs(mode: CrashMode) -> None:
    seed = 0
    for seed in range(RUNS):
        try:
            crash_and_check(seed, random.Random(seed).randrange(1, 400), mode)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {mode}: {error}") from error


@pytest.mark.parametrize("mode", CrashMode)
def test_random_runs_that_are_stopped_in_recovery_too(mode: CrashMode) -> None:
    for seed in range(1000, 1000 + RUNS // 2):
        try:
            crash_and_check(seed, random.Random(seed).randrange(1, 400), mode, stop_recovery_too=True)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {mode}: {error}") from error


# The harness itself is tried out on logs that are wrong.


def _skip_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushJob, "run", lambda self: None)


def _believe_every_crc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan.kernel, "check_crc", lambda buffer, position, size: None)


def _count_appends_as_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = PartitionLog.finish_flush

    def hasty(self: PartitionLog, job: FlushJob) -> None:
        job.end_offset = self.log_end_offset
        finish(self, job)

    monkeypatch.setattr(PartitionLog, "finish_flush", hasty)


def _forget_the_old_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    roll = PartitionLog.roll

    def careless(self: PartitionLog, base_offset: int | None = None) -> None:
        roll(self, base_offset)
        self._unsynced.files.clear()

    monkeypatch.setattr(PartitionLog, "roll", careless)


def _keep_a_torn_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_all(self: object, header: object, base_offset: int, bytes_left: int) -> None:
        return None

    def no_check(buffer: bytes, position: int, size: int) -> None:
        if len(buffer) < position + size:
            raise CorruptMessage("cut")

    monkeypatch.setattr(scan.Scan, "_fault", take_all)
    monkeypatch.setattr(scan.kernel, "check_crc", no_check)


def _keep_later_segments_when_truncating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segments, "truncate", lambda self, offset, created_ms: offset)


@pytest.mark.parametrize(
    "bug",
    [
        _skip_sync,
        _believe_every_crc,
        _count_appends_as_flushed,
        _forget_the_old_segment,
        _keep_a_torn_tail,
        _keep_later_segments_when_truncating,
    ],
)
def test_seeded_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    bug(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - how it shows depends on the bug
        for seed in range(500):
            crash_and_check(seed, random.Random(seed).randrange(1, 400), CrashMode.POWER_TORN)
