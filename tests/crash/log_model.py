"""A model of logs, random work on both, and what must hold after a crash; for the crash tests.

A run does random things to the logs of a LogManager on a file system in memory and keeps a model beside it: what was
appended, what was acknowledged, and what was known to be flushed. The file system stops in a chosen operation, forgets
what a crash of the chosen kind forgets, and a new manager loads what is left (sometimes it is stopped in that, too).
Then:

* every record below the flushed offset is there, and after a mere crash of the process every acknowledged one;
* every record that is there is the one that was appended at that offset; a reader comes to the log's end, without a
  gap, but for what was not flushed: after a power loss the log knows what is missing, but for a compacted topic's log
  that no checkpoint knows;
* leader epochs are right for every offset; a repeated batch of a producer is recognised; the topic id is right;
* look-ups by time find what walking over all records finds;
* the log start is neither below what its checkpoint said nor above what was asked for, also after a truncation to
  below it;
* what was recovered survives a power loss from then on, and the log takes appends.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.small_files import RECOVERY_POINT_FILE, read_offsets
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash
from tests.lab.batches import end_of, header_of, make_batch, values_of

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
CONFIGS = {
    policy: [
        TopicConfig.from_properties(
            {"segment.bytes": size, "index.interval.bytes": interval, "segment.ms": ms, "cleanup.policy": policy}
        )
        for size, interval, ms in [(900, 150, 10**9), (400, 100, 10**9), (2000, 10, 10**9), (900, 150, 300)]
    ]
    for policy in ("delete", "compact")
}


# At an offset that no record ever had.
UNREADABLE = (b"", -1)


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
        # A truncation to this offset has begun; None when none is under way.
        self.truncating: int | None = None
        # What was truncated, by offset: until the truncation is flushed a power loss may bring it back.
        self.truncated: dict[int, set[tuple[bytes, int]]] = {}

    @property
    def given(self) -> int:
        """Up to where offsets have been given."""
        return max(len(self.records) + len(self.in_flight), *(offset + 1 for offset in self.truncated), 0)

    def allowed(self, offset: int) -> set[tuple[bytes, int]]:
        """What may be at an offset after a crash."""
        may_hold = self.records + self.in_flight
        allowed = {may_hold[offset]} if offset < len(may_hold) else set()
        return allowed if offset < self.flushed else allowed | self.truncated.get(offset, set())


class Run:
    """Random work on a manager, and the model of it. Nothing is compacted, whatever the topics' policy says."""

    def __init__(
        self, seed: int, fs: MemoryFs, policy: str = "delete", *, below_start: bool = True, ahead: bool = False
    ) -> None:
        """Without ``below_start`` no truncation goes below the log start, and without ``ahead`` no batch is written
        before it is appended: the runs of older seeds."""
        self.below_start = below_start
        self.ahead = ahead
        self.chance = random.Random(seed)
        self.fs = fs
        self.clock = ManualClock()
        self.models: dict[TopicPartition, Model] = {}
        self.configs = CONFIGS[policy]
        self.config = self.configs[0]
        self.epoch = 0
        self.serial = 0
        self.manager = start_manager(fs, self.clock, self.config)

    def work(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[TopicPartition], None]]] = [
            (12, self.append),
            (4, self.append_as_follower),
            (1, self.roll),
            (2, self.remove_oldest),
            (1, self.change_config),
            (4, self.flush),
            (2, self.checkpoint),
            (2, self.new_epoch),
            (1, self.truncate),
            (int(self.below_start), self.truncate_fully),
            (1, self.advance_start),
            (1, self.delete),
            (1, self.stop_and_start),
            (12 * int(self.ahead), self.append_written_ahead),
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
        log, model = self.log(key), self.models[key]
        batch, values = self.next_batch(model)
        model.in_flight = [(value, self.epoch) for value in values]
        result = log.append_as_leader(batch, header_of(batch), self.epoch)
        assert result.base_offset == len(model.records)
        self.appended(model, [values])

    def append_written_ahead(self, key: TopicPartition) -> None:
        """Write a batch ahead, have something else happen perhaps, and append it if it is still of use."""
        log, model = self.log(key), self.models[key]
        batch, values = self.next_batch(model)
        producer = (model.producer_epoch, model.sequence)
        ahead = log.write_ahead(batch, header_of(batch))
        assert ahead is not None
        for _ in range(self.chance.randrange(4)):
            ahead.write_piece()
        if self.chance.random() < 0.5:
            others = [self.append, self.append_as_follower, self.roll, self.flush, self.checkpoint, self.truncate]
            self.chance.choice([*others, self.remove_oldest, self.delete, self.stop_and_start])(key)
        ahead.run()
        is_next = producer == (model.producer_epoch, model.sequence)
        if self.manager.get(key) is log and is_next and log.local.holds(ahead):
            model.in_flight = [(value, self.epoch) for value in values]
            assert log.append_as_leader(batch, header_of(batch), self.epoch, ahead).base_offset == len(model.records)
            self.appended(model, [values])

    def next_batch(self, model: Model, *, sequence: int | None = None) -> tuple[bytearray, list[bytes]]:
        values = []
        for _ in range(self.chance.randrange(1, 6)):
            self.serial += 1
            values.append(b"%d:" % self.serial + b"x" * self.chance.randrange(60))
        batch = make_batch(
            values,
            timestamps_ms=[self.clock.wall_ms() - self.chance.randrange(300) for _ in values],
            producer_id=5,
            producer_epoch=model.producer_epoch,
            base_sequence=model.sequence if sequence is None else sequence,
        )
        return batch, values

    def appended(self, model: Model, batches: list[list[bytes]]) -> None:
        model.records += model.in_flight
        model.in_flight = []
        end = len(model.records) - sum(map(len, batches))
        for values in batches:
            end += len(values)
            model.batches.append((end, model.sequence, len(values)))
            model.sequence += len(values)

    def append_as_follower(self, key: TopicPartition) -> None:
        log, model = self.log(key), self.models[key]
        data, batches, offset, sequence = bytearray(), [], len(model.records), model.sequence
        for _ in range(self.chance.randrange(1, 4)):
            self.epoch += self.chance.random() < 0.2
            batch, values = self.next_batch(model, sequence=sequence)
            kernel.stamp(batch, 0, offset, self.epoch)
            data += batch
            batches.append(values)
            model.in_flight += [(value, self.epoch) for value in values]
            offset += len(values)
            sequence += len(values)
        copy_at_once(log, data)
        assert log.log_end_offset == offset
        self.appended(model, batches)

    def roll(self, key: TopicPartition) -> None:
        log = self.log(key)
        if log.segments.active.size_bytes:
            log.roll()

    def remove_oldest(self, key: TopicPartition) -> None:
        """As retention does: the checkpoint of the log start, the log start, and only then the files."""
        log, model = self.log(key), self.models[key]
        below = [segment.base_offset for segment in log.segments if segment.base_offset <= model.flushed]
        if below:
            self.move_start(log, model, self.chance.choice(below))
        self.manager.delete_files(log, log.drop_hidden(self.chance.randrange(5)))
        self.clock.advance(ms=self.chance.choice([0, 100_000]))
        job = self.manager.due_deletions()
        if job is not None:
            job.run()

    def move_start(self, log: PartitionLog, model: Model, offset: int) -> None:
        if offset <= model.start:
            return
        model.start = offset
        job = self.manager.log_starts.promise({log: offset})
        job.run()
        assert not self.manager.log_starts.finish(job)
        model.checkpointed_start = max(model.checkpointed_start, offset)
        assert log.log_start_offset == model.start

    def change_config(self, key: TopicPartition) -> None:
        self.config = self.chance.choice(self.configs)
        for log in self.manager.logs.values():
            log.update_config(self.config)

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
        # Sometimes below the log start, even below the first segment.
        if not self.below_start or self.chance.random() < 0.7:
            ends = [end for end in ends if end >= model.start] or [len(model.records)]
        target = self.chance.choice(ends)
        # What is being cut may be gone already when the crash comes.
        model.flushed = min(model.flushed, target)
        self.begin_truncation(model, target)
        truncate_to(log, target)
        assert log.log_start_offset == min(model.start, target)
        self.end_truncation(model, target, log)

    def truncate_fully(self, key: TopicPartition) -> None:
        log, model = self.log(key), self.models[key]
        target = self.chance.randrange(max(0, model.start - 10), len(model.records) + 10)
        model.flushed = 0
        self.begin_truncation(model, model.start)
        truncate_fully(log, target)
        assert log.log_start_offset == log.log_end_offset == target and not log.producers.state.producers
        model.batches.clear()
        model.records += [UNREADABLE] * (target - len(model.records))
        self.end_truncation(model, target, log)

    def begin_truncation(self, model: Model, target: int) -> None:
        for offset in range(target, len(model.records)):
            model.truncated.setdefault(offset, set()).add(model.records[offset])
        model.truncating = target

    def end_truncation(self, model: Model, target: int, log: PartitionLog) -> None:
        model.truncating = None
        model.start = log.log_start_offset
        if model.start != model.checkpointed_start:
            model.checkpointed_start = model.start
            # Then it is on the disk.
            model.truncated = {each: found for each, found in model.truncated.items() if each < target}
        del model.records[target:]
        model.batches = [batch for batch in model.batches if batch[0] <= target]
        # The leader that this log now follows has another producer session.
        model.producer_epoch += 1
        model.sequence = 0
        self.epoch += 1

    def advance_start(self, key: TopicPartition) -> None:
        log, model = self.log(key), self.models[key]
        if model.flushed > model.start:
            self.move_start(log, model, self.chance.randrange(model.start, model.flushed + 1))

    def delete(self, key: TopicPartition) -> None:
        self.log(key)
        self.models.pop(key)
        self.manager.retiring.delete(key)

    def stop_and_start(self, key: TopicPartition) -> None:
        self.manager.shutdown()
        for model in self.models.values():
            model.flushed = len(model.records)
            model.checkpointed_start = model.start
        self.manager = start_manager(self.fs, self.clock, self.config)
        assert self.manager.was_clean
        for each, model in self.models.items():
            assert self.manager.logs[each].log_end_offset == len(model.records)


def start_manager(fs: MemoryFs, clock: ManualClock, config: TopicConfig) -> LogManager:
    manager = LogManager(fs, ["/data"], clock, config_of=lambda topic: config)
    manager.open()
    manager.claim(1, "cluster")
    manager.load()
    return manager


def crash_and_check(
    seed: int,
    stop_at: int | None,
    mode: CrashMode,
    *,
    steps: int = 40,
    stop_recovery_too: bool = False,
    policy: str = "delete",
    below_start: bool = True,
    ahead: bool = False,
) -> bool:
    """Do a run that stops at an operation, and check what is left; returns whether it stopped at all."""
    fs = MemoryFs()
    if stop_at is not None:
        fs.stop_at(stop_at)
    run = None
    stopped = False
    try:
        run = Run(seed, fs, policy, below_start=below_start, ahead=ahead)
        run.work(steps)
    except SimulatedCrash:
        stopped = True
    chance = random.Random(seed)
    config = run.config if run else CONFIGS[policy][0]
    after = fs.crash(mode, chance)
    if stop_recovery_too:
        after.stop_at(chance.randrange(1, 30))
        try:
            start_manager(after, ManualClock(), config)
        except SimulatedCrash:
            pass
        after = after.crash(mode, chance)
    known = {key for key, offset in recovery_points(after).items() if offset}
    manager = start_manager(after, run.clock if run else ManualClock(), config)
    models = run.models if run else {}
    for key, model in models.items():
        log = manager.get(key)
        if log is None:
            assert not model.flushed, f"{key} is gone, {model.flushed} records were flushed"
        else:
            check(log, model, mode, was_known=key in known)
    ends = {key: log.log_end_offset for key, log in manager.logs.items()}
    again = start_manager(after.crash(CrashMode.POWER), ManualClock(), config)
    for key, end in ends.items():
        if end:
            assert again.logs[key].log_end_offset == end, "what was recovered did not survive a power loss"
    for key, model in models.items():
        if key in manager.logs:
            take_up_again(manager.logs[key], model)
    return stopped


def recovery_points(fs: MemoryFs) -> dict[TopicPartition, int]:
    """Return what the checkpoint says; nothing when it was never written."""
    return read_offsets(fs, f"/data/{RECOVERY_POINT_FILE}")


def check(log: PartitionLog, model: Model, mode: CrashMode, *, was_known: bool) -> None:
    end, start = log.log_end_offset, log.log_start_offset
    kept = model.flushed
    assert end >= model.flushed, f"flushed records are lost: {log}, {model.flushed} were flushed"
    if mode is CrashMode.PROCESS:
        acknowledged = len(model.records) if model.truncating is None else 0
        assert end >= acknowledged, f"acknowledged records are lost: {log}, {acknowledged} were acknowledged"
        kept = max(kept, acknowledged)
    if kept > model.start:
        assert start <= model.start, f"records are hidden: {log}, the log start was {model.start}"
    assert start >= min(model.checkpointed_start, end)
    if model.flushed:
        assert log.topic_id == model.topic_id
    damaged = {offset for first, until in log.damaged_ranges for offset in range(first, until)}
    # What is missing is no replica's: it is passed over, as the leader of a partition that has no other does.
    log.local.known_damage.accept()
    offset, found = int(start), []
    while (piece := log.read(offset, 500, end)) is not None:
        found += [record for record in values_of(piece.read()) if record[0] >= offset]
        offset = end_of(piece.read())
    assert offset == end, f"a reader comes to {offset} only, and the log ends at {end}"
    offsets = [each for each, _ in found]
    records_end = offsets[-1] + 1 if offsets else int(start)
    # Behind a torn batch whole ones may lie, which prove that their offsets have been given; they leave the log.
    may_be_torn = mode is not CrashMode.PROCESS and records_end >= model.flushed and end <= model.given
    assert records_end == end or may_be_torn, f"the last record is at {records_end - 1}, and the log ends at {end}"
    assert offsets == sorted(set(offsets)), "offsets go back"
    flushed = range(start, model.flushed)
    assert offsets[: len(flushed)] == list(flushed), "flushed offsets have a gap"
    if not log.config.is_compacted or was_known:
        missing = set(range(start, records_end)) - set(offsets)
        assert missing <= damaged, f"offsets {sorted(missing - damaged)} are missing, and the log does not know"
        assert not missing or mode is not CrashMode.PROCESS, "offsets have a gap"
    for each, value in found:
        allowed = model.allowed(each)
        assert value in [each_value for each_value, _ in allowed], f"offset {each} holds {value!r}, not {allowed!r}"
        # Epochs below the log start are dropped, also when the new log start was not checkpointed.
        epoch = log.epochs.epoch_at(each)
        assert each < model.start or (value, epoch) in allowed, f"offset {each}: epochs {log.epochs.entries}"
    assert log.recovery_point == end
    check_times(log)


def check_times(log: PartitionLog) -> None:
    end = log.log_end_offset
    builder = kernel.ColumnBuilder(False)
    offset = int(log.log_start_offset)
    while (piece := log.read(offset, 1 << 20, end)) is not None:
        data, position = piece.read(), 0
        for header in kernel.scan_headers(data):
            builder.add_batch(data, position, header, None)
            position += header.size_bytes
            offset = header.next_offset
    columns = builder.finish()
    records = [(columns.offset_at(row), columns.timestamp_at(row)) for row in range(columns.count)]
    records = [record for record in records if record[0] >= log.log_start_offset]
    for _, at in records[:: max(1, len(records) // 4)]:
        found = log.offset_for_timestamp(at, end)
        right = next(offset for offset, timestamp in records if timestamp >= at)
        assert found is not None
        assert found.offset == right, f"time {at}: {found}, walking finds {right}"


def take_up_again(log: PartitionLog, model: Model) -> None:
    end = log.log_end_offset
    whole = [batch for batch in model.batches if batch[0] <= end]
    if whole and whole[-1][0] == end and not model.in_flight and model.flushed >= end > log.log_start_offset:
        _, sequence, count = whole[-1]
        repeated = make_batch(
            count, producer_id=5, producer_epoch=log.producers.state.producers[5].producer_epoch, base_sequence=sequence
        )
        assert log.append_as_leader(repeated, header_of(repeated), log.epochs.latest).duplicate
    batch = make_batch([b"after the crash"])
    result = log.append_as_leader(batch, header_of(batch), log.epochs.latest + 1)
    assert result.base_offset == end
    piece = log.read(end, 1, end + 1)
    assert piece is not None
    assert values_of(piece.read()) == [(end, b"after the crash")]
