from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from spark_kafkalite.log.files.fs import read_whole, replace_file
from spark_kafkalite.log.files.small_files import read_offsets, read_own_starts, write_offsets, write_own_starts
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash
from tests.lab.batches import header_of, make_batch
from tests.seeds import SEED, SOAK

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FILE = "/data/log-start-offset-checkpoint"
OWN_FILE = "/data/kafkalite-log-starts"
Opener = Callable[..., LogManager]


@pytest.fixture
def open_manager(fs: MemoryFs, clock: ManualClock) -> Opener:
    def opener(on: MemoryFs | None = None) -> LogManager:
        config = TopicConfig.from_properties({"segment.bytes": "100"})
        manager = LogManager(on or fs, ["/data"], clock, config_of=lambda topic: config)
        manager.open()
        manager.load()
        return manager

    return opener


def filled(manager: LogManager, key: TopicPartition, count: int = 5) -> PartitionLog:
    log = manager.create(key, bytes(16))
    for _ in range(count):
        data = make_batch(1)
        log.append_as_leader(data, header_of(data), 0)
    log.flush()
    return log


def test_start_is_on_the_disk_before_it_is_in_force(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    job = manager.log_starts.promise({log: 3, other: 2})
    assert (log.log_start_offset, fs.exists(FILE)) == (0, False)
    job.run()
    assert (log.log_start_offset, read_offsets(fs.crash(CrashMode.POWER), FILE)) == (0, {T0: 3, T1: 2})
    assert manager.log_starts.finish(job) == {}
    assert (log.log_start_offset, other.log_start_offset) == (3, 2)


def test_checkpoints_meanwhile_keep_what_is_promised(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    first = manager.log_starts.promise({log: 3})
    second = manager.log_starts.promise({log: 2, other: 1})
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {T0: 3, T1: 1}
    before = fs.operations
    first.run()
    second.run()
    assert fs.operations == before
    manager.log_starts.finish(second)
    assert log.log_start_offset == 2
    manager.checkpoint()
    assert read_offsets(fs, FILE)[T0] == 3
    manager.log_starts.finish(first)
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {T0: 3, T1: 1}


def test_what_cannot_be_written_does_not_hold(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    fs.fail("rename", errno.ENOSPC, path_part=FILE)
    job = manager.log_starts.promise({log: 3})
    job.run()
    failed = manager.log_starts.finish(job)
    assert "the log start offset 3 cannot be written" in str(failed[log])
    assert log.log_start_offset == 0
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {}
    again = manager.log_starts.promise({log: 2})
    again.run()
    assert manager.log_starts.finish(again) == {}
    assert log.log_start_offset == 2


def test_logs_that_change_meanwhile_are_left_alone(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    job = manager.log_starts.promise({log: 3, other: 5})
    job.run()
    manager.retiring.delete(T0)
    truncate_to(other, 4)
    new = filled(manager, T0)
    assert manager.log_starts.finish(job) == {}
    assert (log.log_start_offset, other.log_start_offset, new.log_start_offset) == (0, 0, 0)
    manager.checkpoint()
    assert read_offsets(fs, FILE) == {}


@pytest.mark.parametrize("mode", [CrashMode.PROCESS, CrashMode.POWER])
@pytest.mark.parametrize(("fully", "to"), [(True, 2), (True, 0), (True, 9), (False, 3), (False, 1)])
def test_truncation_to_another_start_loses_no_record_that_comes_after_it(
    open_manager: Opener, fs: MemoryFs, fully: bool, to: int, mode: CrashMode
) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    job = manager.log_starts.promise({log: 4, other: 2})
    job.run()
    manager.log_starts.finish(job)
    if fully:
        truncate_fully(log, to)
    else:
        truncate_to(log, to)
    assert (log.log_start_offset, log.log_end_offset) == (to, to)
    assert read_offsets(fs.crash(CrashMode.POWER), FILE) == {T1: 2, **({T0: to} if to else {})}
    filled(manager, T0, 8)
    again = open_manager(fs.crash(mode)).logs
    assert (again[T0].log_start_offset, again[T0].log_end_offset) == (to, to + 8)
    assert (again[T1].log_start_offset, again[T1].log_end_offset) == (2, 5)


@pytest.mark.parametrize("written", ["before", "after", "never"])
def test_truncation_takes_a_promise_back(open_manager: Opener, fs: MemoryFs, written: str) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    job = manager.log_starts.promise({log: 4})
    if written == "before":
        job.run()
    truncate_to(log, 2)
    if written == "after":
        job.run()
    filled(manager, T0, 6)
    later = manager.log_starts.promise({log: 3})
    manager.log_starts.finish(job)
    assert log.log_start_offset == 0
    later.run()
    left = open_manager(fs.crash(CrashMode.POWER)).logs[T0]
    assert (left.log_start_offset, left.log_end_offset) == (3, 8)
    manager.log_starts.finish(later)
    assert log.log_start_offset == 3


def test_removed_segments_do_not_come_back_in_a_power_cut(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    manager.checkpoint()
    job = manager.log_starts.promise({log: 3})
    job.run()
    manager.log_starts.finish(job)
    assert log.hidden_segments == 3
    assert log.drop_hidden(2)
    assert (log.hidden_segments, log.segments.first.base_offset) == (1, 2)
    left = fs.crash(CrashMode.POWER)
    assert left.exists("/data/t-0/00000000000000000000.log")
    again = open_manager(left).logs[T0]
    assert (again.log_start_offset, again.log_end_offset, again.segments.first.base_offset) == (3, 5, 3)
    assert not left.exists("/data/t-0/00000000000000000000.log")


def test_what_is_not_flushed_is_not_removed(open_manager: Opener) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    for _ in range(2):
        data = make_batch(1)
        log.append_as_leader(data, header_of(data), 0)
    assert log.advance_log_start(7)
    # Nor a segment that ends just there, while what begins behind it is unsynced.
    assert (log.recovery_point, log.hidden_segments) == (5, 4)
    log.flush()
    assert log.hidden_segments == 6


def test_high_watermarks_are_on_the_disk_before_a_start_is(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0)
    job = manager.log_starts.promise({log: 4})
    fs.fail("rename", errno.EIO, path_part="/data/log-start")
    job.run()
    assert read_offsets(fs, "/data/replication-offset-checkpoint") == {T0: 4}
    assert log in manager.log_starts.finish(job)
    manager.checkpoint()
    assert read_offsets(fs, "/data/replication-offset-checkpoint") == {T0: 4}, "and do not go back"


def test_start_is_in_force_though_a_power_loss_has_taken_the_records_below(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    log = filled(manager, T0, 1)
    for _ in range(4):
        data = make_batch(1)
        log.append_as_leader(data, header_of(data), 0)
    job = manager.log_starts.promise({log: 4})
    job.run()
    again = open_manager(fs.crash(CrashMode.POWER)).logs[T0]
    assert (again.log_start_offset, again.log_end_offset) == (4, 4)


# What somebody else has written -----------------------------------------------------------------------------------


def move(manager: LogManager, log: PartitionLog, start: int) -> None:
    job = manager.log_starts.promise({log: start})
    job.run()
    assert manager.log_starts.finish(job) == {}


def raised(fs: MemoryFs, start: int) -> None:
    write_offsets(fs, FILE, {**read_offsets(fs, FILE), T0: start})


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "has not written" in each.getMessage()]


def bases(log: PartitionLog) -> list[int]:
    return [int(segment.base_offset) for segment in log.segments]


@pytest.mark.parametrize("is_clean", [True, False])
def test_raised_start_takes_nothing_away(
    open_manager: Opener, fs: MemoryFs, caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    manager = open_manager()
    log, other = filled(manager, T0), filled(manager, T1)
    move(manager, log, 1)
    move(manager, other, 2)
    manager.delete_files(log, log.drop_hidden(1))
    if is_clean:
        manager.shutdown()
    left = fs.crash(CrashMode.PROCESS)
    raised(left, 4)
    again = open_manager(left).logs
    log = again[T0]
    assert (log.log_start_offset, log.unconfirmed_start_offset, bases(log)) == (1, 4, [1, 2, 3, 4])
    (line,) = lines(caplog)
    assert line.startswith("t-0: the log start offset in log-start-offset-checkpoint is 4, and this broker has not")
    size_bytes = sum(segment.size_bytes for segment in log.segments) - log.segments.active.size_bytes
    assert f"Records 1 to 3 (with 3 segments of {size_bytes} bytes, offsets 1 to 3) stay until" in line
    assert (again[T1].log_start_offset, again[T1].unconfirmed_start_offset) == (2, 0), "another one counts as ever"
    # Confirmed, it is a start like any other.
    log.advance_log_start(3)
    assert log.unconfirmed_start_offset == 4
    log.advance_log_start(4)
    assert (log.unconfirmed_start_offset, log.hidden_segments) == (0, 3)


def test_raised_start_is_forgotten_with_the_next_checkpoint(
    open_manager: Opener, fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager()
    move(manager, filled(manager, T0), 1)
    manager.shutdown()
    raised(fs, 3)
    manager = open_manager()
    manager.checkpoint()
    assert read_offsets(fs, FILE) == read_own_starts(fs, OWN_FILE) == {T0: 1}
    log = open_manager(fs.crash(CrashMode.POWER)).logs[T0]
    assert (log.log_start_offset, log.unconfirmed_start_offset, len(lines(caplog))) == (1, 0, 1)


@pytest.mark.parametrize(("own", "said", "start"), [(5000, 5000, 0), (5000, 7000, 0), (2, 5000, 2)])
def test_start_beyond_the_end_is_believed_in_neither_file(
    open_manager: Opener, fs: MemoryFs, own: int, said: int, start: int
) -> None:
    manager = open_manager()
    filled(manager, T0)
    manager.log_starts.begin("/data")
    manager.shutdown()
    write_own_starts(fs, OWN_FILE, {T0: own})
    write_offsets(fs, FILE, {T0: said})
    log = open_manager().logs[T0]
    assert (log.log_start_offset, log.log_end_offset, bases(log)[-1]) == (start, 5, 4)


def test_raised_start_of_another_log_is_not_that_of_one_cut_back(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    filled(manager, T0)
    manager.log_starts.begin("/data")
    manager.shutdown()
    raised(fs, 3)
    log = open_manager().logs[T0]
    assert log.unconfirmed_start_offset == 3
    truncate_to(log, 4)
    assert (log.log_start_offset, log.unconfirmed_start_offset) == (0, 0)


def copied(open_manager: Opener) -> None:
    """Leave a directory with a log of five records in five segments, and with both files."""
    manager = open_manager()
    filled(manager, T0)
    manager.log_starts.begin("/data")
    manager.shutdown()


@pytest.mark.parametrize("how", ["edited", "written anew", "emptied", "cut"])
def test_starts_in_a_copy_that_somebody_has_changed_take_nothing_away(
    open_manager: Opener, fs: MemoryFs, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    copied(open_manager)
    if how == "edited":
        text = read_whole(fs, OWN_FILE).decode()
        replace_file(fs, OWN_FILE, text.replace("0\n0\n", "0\n1\nt 0 3\n").encode())
    elif how == "written anew":
        write_offsets(fs, OWN_FILE, {T0: 3})
    else:
        fs.open(OWN_FILE).truncate(0 if how == "emptied" else 3)
    raised(fs, 3)
    log = open_manager().logs[T0]
    assert (log.log_start_offset, log.unconfirmed_start_offset, bases(log)) == (0, 3, [0, 1, 2, 3, 4])
    assert "kafkalite-log-starts: its checksum is missing or wrong; so the offsets in" in caplog.text
    assert len(lines(caplog)) == 1


def test_without_a_copy_of_its_own_a_broker_believes_the_checkpoint(open_manager: Opener, fs: MemoryFs) -> None:
    """As Apache Kafka leaves a directory, and versions that wrote none."""
    copied(open_manager)
    fs.unlink(OWN_FILE)
    raised(fs, 3)
    log = open_manager().logs[T0]
    assert (log.log_start_offset, log.unconfirmed_start_offset, bases(log)) == (3, 0, [3, 4])


def test_copy_is_there_from_the_first_run_on(open_manager: Opener, fs: MemoryFs) -> None:
    manager = open_manager()
    manager.claim(1, "cluster")
    manager.runs.begin(Incarnation(1), "boot", ())
    assert (fs.exists(OWN_FILE), fs.exists(FILE)) == (True, False)
    filled(manager, T0)
    left = fs.crash(CrashMode.POWER)
    raised(left, 3)
    assert open_manager(left).logs[T0].unconfirmed_start_offset == 3


class Schedule:
    """A log whose start moves, whose broker dies, and whose checkpoint somebody edits, drawn by a seed."""

    def __init__(self, open_manager: Opener, fs: MemoryFs, caplog: pytest.LogCaptureFixture, seed: int) -> None:
        self.open_manager = open_manager
        self.fs = fs
        self.caplog = caplog
        self.chance = random.Random(seed)
        self.manager = open_manager(fs)
        self.manager.log_starts.begin("/data")
        self.log = filled(self.manager, T0)
        # What may be in force after a crash besides the start that is.
        self.promised = 0
        # Whether the checkpoint has been edited, and not been written since.
        self.is_edited = False

    def step(self) -> None:
        self.chance.choice((self.append, self.move, self.move, self.remove, self.cut, self.restart))()

    def append(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            data = make_batch(1)
            self.log.append_as_leader(data, header_of(data), 0)
        self.log.flush()

    def move(self) -> None:
        start = self.chance.randint(int(self.log.log_start_offset), int(self.log.log_end_offset))
        job = self.manager.log_starts.promise({self.log: start})
        self.promised = max(self.promised, start)
        if self.chance.random() < 0.5:
            # In the middle of one of the three files.
            self.fs.stop_at(self.fs.operations + self.chance.randint(1, 15))
            with suppress(SimulatedCrash):
                job.run()
            self.restart(is_crash=True)
        else:
            job.run()
            assert self.manager.log_starts.finish(job) == {}

    def remove(self) -> None:
        if self.log.hidden_segments:
            self.manager.delete_files(self.log, self.log.drop_hidden(self.chance.randint(1, 3)))

    def cut(self) -> None:
        if self.chance.random() < 0.3:
            end = self.chance.randint(0, int(self.log.log_end_offset))
            (truncate_fully if self.chance.random() < 0.5 else truncate_to)(self.log, end)
            self.promised = 0
            self.append()

    def restart(self, is_crash: bool = False) -> None:
        start, end = int(self.log.log_start_offset), int(self.log.log_end_offset)
        if not is_crash and self.chance.random() < 0.4:
            self.manager.shutdown()
        self.fs = self.fs.crash(self.chance.choice((CrashMode.PROCESS, CrashMode.POWER)))
        said, own = read_offsets(self.fs, FILE).get(T0, 0), read_own_starts(self.fs, OWN_FILE).get(T0, 0)
        assert said <= own or self.is_edited
        self.is_edited = said > own
        if said < end and self.chance.random() < 0.5:
            said = self.chance.randint(said + 1, end)
            raised(self.fs, said)
            self.is_edited = True
        self.caplog.clear()
        self.manager = self.open_manager(self.fs)
        self.log = self.manager.logs[T0]
        assert self.log.log_end_offset == end
        assert start <= self.log.log_start_offset <= max(start, self.promised)
        assert bool(lines(self.caplog)) == (self.log.unconfirmed_start_offset > 0) == (said > own)
        for offset in range(int(self.log.log_start_offset), end):
            assert self.log.read(offset, 1, end) is not None
        self.promised = int(self.log.log_start_offset)


@pytest.mark.parametrize("number", range(2_000 if SOAK else 20))
def test_no_edited_start_takes_records_away_and_none_of_the_brokers_own_is_doubted(
    open_manager: Opener, fs: MemoryFs, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    schedule = Schedule(open_manager, fs, caplog, SEED * 10_000 + number)
    for _ in range(30):
        schedule.step()
    schedule.restart()
