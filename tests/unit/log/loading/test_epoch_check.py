"""A file of leader epochs that does not fit its log is completed from the batches."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite.log.epochs import LeaderEpochs
from spark_kafkalite.log.files.fs import replace_file
from spark_kafkalite.log.files.small_files import read_epochs, write_epochs
from spark_kafkalite.log.loading.epoch_check import EpochRun, completed, epoch_runs, tell_of_completion
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch
from tests.seeds import SEED

KEY = TopicPartition("t", 0)
FILE = "/data/t-0/leader-epoch-checkpoint"
MARKER = "/data/.kafka_cleanshutdown"
# What the log has: offsets 0 to 19, five of each epoch.
TRUE = [(0, 0), (1, 5), (2, 10), (4, 15)]
WRONG = {
    "start early": [(0, 0), (1, 5), (2, 7), (4, 15)],
    "start late": [(0, 0), (1, 5), (2, 10), (4, 19)],
    "one is missing": [(0, 0), (2, 10), (4, 15)],
    "lower last": [(0, 0), (1, 5), (2, 15)],
    "older": [(0, 0), (1, 5)],
    "only the first": [(0, 0)],
    "empty": [],
    "last from the beginning": [(4, 0)],
    "beyond the end": [(0, 0), (1, 5), (2, 10), (4, 5000)],
}
# Which of them say of the last record, or of the first of a segment, what it does not say.
SEEN_AFTER_A_STOP = ("lower last", "older", "only the first", "empty", "beyond the end")


@pytest.fixture
def start(clock: ManualClock, fs: MemoryFs) -> Iterator[Callable[..., LogManager]]:
    running: list[LogManager] = []

    def starter(on: MemoryFs | None = None) -> LogManager:
        while running:
            running.pop().abandon()
        # A segment takes two batches of a record each.
        config = TopicConfig.from_properties({"segment.bytes": "300"})
        manager = LogManager(on or fs, ["/data"], clock, config_of=lambda _: config)
        manager.open()
        manager.load()
        running.append(manager)
        return manager

    yield starter
    while running:
        running.pop().abandon()


def fill(log: PartitionLog) -> None:
    for epoch, begin in TRUE:
        for _ in range(begin, begin + 5):
            data = make_batch([b"x" * 60])
            log.append_as_leader(data, header_of(data), epoch)


@pytest.mark.parametrize("case", SEEN_AFTER_A_STOP)
@pytest.mark.parametrize("marker", ["ours", "Kafka's"])
def test_file_is_completed_after_a_clean_stop(
    fs: MemoryFs, start: Callable[..., LogManager], caplog: pytest.LogCaptureFixture, case: str, marker: str
) -> None:
    manager = start()
    fill(manager.create(KEY, bytes(16)))
    manager.shutdown()
    write_epochs(fs, FILE, WRONG[case])
    if marker == "Kafka's":
        replace_file(fs, MARKER, b'{"version":0,"brokerEpoch":7}')
    with caplog.at_level(logging.WARNING):
        log = start().logs[KEY]
    assert log.epochs.entries == TRUE
    assert read_epochs(fs, FILE) == TRUE
    assert "leader-epoch-checkpoint does not fit the log" in caplog.text
    assert log.last_record_epoch == 4


@pytest.mark.parametrize("case", WRONG)
def test_file_is_completed_after_a_crash(fs: MemoryFs, start: Callable[..., LogManager], case: str) -> None:
    manager = start()
    log = manager.create(KEY, bytes(16))
    fill(log)
    log.flush()
    manager.checkpoint({})
    crashed = fs.crash(CrashMode.PROCESS)
    write_epochs(crashed, FILE, WRONG[case])
    log = start(on=crashed).logs[KEY]
    assert log.epochs.entries == TRUE
    assert read_epochs(crashed, FILE) == TRUE


def test_right_file_is_not_written_again(
    fs: MemoryFs, start: Callable[..., LogManager], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start()
    log = manager.create(KEY, bytes(16))
    fill(log)
    # An idle leader's epoch, which has no record.
    log.assign_leader_epoch(7)
    manager.shutdown()
    assert read_epochs(fs, FILE) == [*TRUE, (7, 20)]
    with caplog.at_level(logging.WARNING):
        assert start().logs[KEY].epochs.entries == [*TRUE, (7, 20)]
    assert not caplog.text


def test_epochs_of_a_log_that_ends_in_damage_are_those_before_it(
    fs: MemoryFs, start: Callable[..., LogManager]
) -> None:
    log = start().create(KEY, bytes(16))
    fill(log)
    fs.open(f"/data/t-0/{10:020d}.log").pwrite(b"\xff" * 20, 0)
    assert epoch_runs(log.segments) == [EpochRun(0, 0, 5), EpochRun(1, 5, 10)]


def test_completed_pairs_say_of_each_batch_what_it_says() -> None:
    """Whatever the file has; and what a right file knows beside that stays."""
    chance = random.Random(SEED)
    for _ in range(5000):
        # A history: epochs, of which some write nothing, and of whose batches some are gone again.
        true: list[tuple[int, int]] = []
        runs: list[EpochRun] = []
        offset, epoch = chance.choice((0, 7)), chance.choice((0, 3))
        for _ in range(chance.randrange(6)):
            count = chance.choice((0, 1, 1, 5))
            if count:
                true.append((epoch, offset))
                first, last = sorted(chance.randrange(offset, offset + count) for _ in range(2))
                if chance.random() < 0.8:
                    runs.append(EpochRun(epoch, first, last + 1))
            offset, epoch = offset + count, epoch + chance.randrange(1, 3)
        assert completed(true, runs) == true, "a right file stays"
        wrong = [each for each in true if chance.random() < 0.6]
        wrong = [(each, max(begin + chance.choice((0, 0, -2, 2)), 0)) for each, begin in wrong]
        file = LeaderEpochs(MemoryFs(), FILE)
        for each, begin in wrong:
            file.note(each, begin)
        found = LeaderEpochs(MemoryFs(), FILE, completed(file.entries, runs))
        assert found.epochs == sorted(set(found.epochs))
        starts = [begin for _, begin in found.entries]
        assert starts == sorted(set(starts))
        for run in runs:
            for each_offset in range(run.start_offset, run.end_offset):
                assert found.epoch_at(each_offset) == run.epoch


@pytest.mark.parametrize("bit", [2, 5, 22])
def test_a_flipped_bit_in_an_epoch_costs_its_batch_and_not_the_log(
    fs: MemoryFs, start: Callable[..., LogManager], bit: int
) -> None:
    """Its CRC does not cover a batch's epoch. A replica with a higher one than the registry has stays offline."""
    manager = start()
    log = manager.create(KEY, bytes(16))
    fill(log)
    log.flush()
    segment = log.segments.floor(6)
    found = segment.find(6)
    assert found is not None and found.header.partition_leader_epoch == 1
    # Behind the base offset and the length.
    segment.file.pwrite((1 | 1 << bit).to_bytes(4, "big"), found.position + 12)
    log = start(fs.crash(CrashMode.PROCESS)).logs[KEY]
    assert log.damaged_ranges == ((6, 7),) and not log.was_whole
    assert max(epoch for epoch, _ in log.epochs.entries) <= 4


def test_a_file_that_was_right_is_not_said_to_be_wrong(caplog: pytest.LogCaptureFixture) -> None:
    # A damaged header has had it compared with the batches.
    tell_of_completion("t-0", TRUE, list(TRUE))
    assert not caplog.messages
