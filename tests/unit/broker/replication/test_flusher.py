"""When a log is flushed: over a real log in memory, with a loop and threads that the test runs."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.replication.flusher import Flusher
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import make_batch
from tests.lab.manual_loop import ManualLoop, ManualThreads

TP = TopicPartition("t", 0)
NEVER = 2**63 - 1


class Flushed:
    """A log, its flusher, and what the flusher has told."""

    def __init__(self, loop: ManualLoop, clock: ManualClock) -> None:
        self.loop = loop
        self.clock = clock
        self.fs = MemoryFs()
        self.threads = ManualThreads(loop)
        self.failures: list[BaseException] = []
        # Where the flushed end was each time that it was said to have moved.
        self.told: list[int] = []

    def open(self, **settings: object) -> Flushed:
        self.fs.make_directories("/logs")
        self.fs.sync_directory("/")
        config = self.config(**settings)
        host = LogHost.alone(OpenFiles(self.fs), "/logs", self.clock)
        self.log = PartitionLog.create(host, "/logs/t-0", TP, b"i" * 16, config)
        self.log.readiness.prepare()
        # A small file for the first flush to sync besides the segment.
        self.log.local.unsynced.add_path("/logs/t-0/partition.metadata")
        self.flusher = Flusher(
            self.log,
            self.clock,
            Purgatory(self.loop),
            self.threads,  # type: ignore[arg-type]
            lambda: self.told.append(self.log.recovery_point),
            self.failures.append,
        )
        return self

    def config(self, **settings: object) -> TopicConfig:
        return TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})

    def append(self, count: int = 1, *, waits: bool = False, size: int = 10) -> None:
        batch = memoryview(make_batch([b"v" * size] * count, timestamp_ms=self.clock.wall_ms()))
        self.log.append_as_leader(batch, kernel.read_header(batch), 0)
        self.flusher.appended(len(batch), waits)

    @property
    def end(self) -> int:
        return int(self.log.recovery_point)


@pytest.fixture
def flushed() -> Iterator[Flushed]:
    clock = ManualClock()
    loop = ManualLoop(clock)
    yield Flushed(loop, clock)
    loop.close()


def test_by_default_nothing_is_flushed_until_a_segment_rolls(flushed: Flushed) -> None:
    flushed.open(segment_bytes=1000)
    flushed.append(3)
    flushed.loop.run_for(86_400)
    assert (flushed.end, flushed.threads.work) == (0, [])
    while len(flushed.log.segments) == 1:
        flushed.append()
    flushed.loop.run_for(1)
    assert flushed.end == flushed.log.log_end_offset


def test_appends_of_one_pass_share_a_flush_and_those_during_it_share_the_next(flushed: Flushed) -> None:
    flushed.open()
    flushed.threads.held = True
    for _ in range(3):
        flushed.append(waits=True)
    flushed.loop.run_for(0.01)
    assert len(flushed.threads.work) == 1
    for _ in range(4):
        flushed.append(waits=True)
    flushed.loop.run_for(0.01)
    # One at a time.
    assert len(flushed.threads.work) == 1
    flushed.threads.run_one()
    assert flushed.told == [3]
    flushed.loop.run_for(0.01)
    flushed.threads.run_one()
    assert (flushed.told, flushed.threads.work) == ([3, 7], [])


def test_flush_ms_counts_from_the_oldest_record_that_is_not_flushed(flushed: Flushed) -> None:
    flushed.open(flush_ms=1000)
    flushed.append()
    flushed.loop.run_for(0.6)
    flushed.append()
    flushed.loop.run_for(0.3)
    assert flushed.end == 0
    flushed.loop.run_for(0.2)
    assert flushed.end == 2
    flushed.append()
    flushed.loop.run_for(0.9)
    assert flushed.end == 2
    flushed.loop.run_for(0.2)
    assert flushed.told == [2, 3]


def test_what_came_during_a_flush_by_time_has_its_own_deadline(flushed: Flushed) -> None:
    flushed.open(flush_ms=1000)
    flushed.append()
    flushed.threads.held = True
    flushed.loop.run_for(1.01)
    flushed.append()
    flushed.loop.run_for(0.5)
    flushed.threads.run_one()
    flushed.threads.held = False
    assert flushed.end == 1
    flushed.loop.run_for(0.6)
    assert flushed.end == 2


def test_settings_that_come_later_count_for_what_is_unflushed(flushed: Flushed) -> None:
    flushed.open()
    flushed.append(4)
    flushed.log.update_config(flushed.config(flush_messages=4))
    flushed.flusher.config_changed(False)
    flushed.loop.run_for(0.01)
    assert flushed.end == 4
    flushed.append()
    flushed.log.update_config(flushed.config(flush_ms=50))
    flushed.flusher.config_changed(False)
    flushed.loop.run_for(0.06)
    assert flushed.end == 5
    flushed.append()
    flushed.log.update_config(flushed.config())
    flushed.flusher.config_changed(False)
    flushed.loop.run_for(3600)
    assert flushed.end == 5


def test_a_flush_that_could_not_begin_is_tried_again_and_a_failed_one_is_not(
    flushed: Flushed, caplog: pytest.LogCaptureFixture
) -> None:
    flushed.open()
    flushed.fs.fail("open", errno.EMFILE, path_part="partition.metadata")
    flushed.append(waits=True)
    flushed.loop.run_for(0.2)
    assert (flushed.end, flushed.failures) == (0, [])
    assert "trying again" in caplog.text
    flushed.loop.run_for(0.1)
    assert (flushed.end, flushed.failures) == (1, [])
    flushed.fs.fail("sync", errno.EIO)
    flushed.append(waits=True)
    flushed.loop.run_for(60)
    flushed.flusher.request()
    flushed.loop.run_for(60)
    assert (flushed.end, len(flushed.failures), flushed.told) == (1, 1, [1])


def test_the_kernel_is_asked_to_write_before_gigabytes_wait(flushed: Flushed) -> None:
    flushed.open()
    flushed.threads.held = True
    for _ in range(33):
        flushed.append(size=1 << 20)
    # Every 32 MiB, and that is no flush.
    assert len(flushed.threads.work) == 1
    flushed.threads.run_one()
    assert (flushed.end, flushed.told) == (0, [])


def test_after_the_end_nothing_begins_and_nobody_is_told(flushed: Flushed) -> None:
    flushed.open(flush_ms=100)
    flushed.threads.held = True
    flushed.append(waits=True)
    flushed.loop.run_for(0.01)
    flushed.append(waits=True)
    flushed.flusher.close()
    flushed.flusher.forget_partition()
    flushed.threads.run_one()
    flushed.loop.run_for(10)
    assert (flushed.told, flushed.threads.work) == ([], [])
    assert flushed.end == 1


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_flushed_records_are_on_the_disk_and_none_waits_longer_than_it_may(
    flushed: Flushed, seed: int
) -> None:
    chosen = random.Random(seed)
    flush_ms = chosen.choice([200, 2000])
    flushed.open(flush_ms=flush_ms, flush_messages=chosen.choice([3, 20, NEVER]), segment_bytes=2000)
    refusals = chosen.randint(0, 3)
    flushed.fs.fail("open", errno.EMFILE, path_part="partition.metadata", times=refusals)
    for _ in range(80):
        step = chosen.random()
        if step < 0.5:
            flushed.append(chosen.randint(1, 4), waits=chosen.random() < 0.2)
        elif step < 0.6:
            flushed.threads.held = not flushed.threads.held
            flushed.threads.run_all()
        else:
            flushed.loop.run_for(chosen.choice([0.0, 0.05, 0.3, 1.0]))
        assert flushed.told == sorted(set(flushed.told))
        assert flushed.end == (flushed.told[-1] if flushed.told else 0)
        if flushed.end:
            left = LogHost.alone(OpenFiles(flushed.fs.crash(CrashMode.POWER)), "/logs", flushed.clock)
            log = PartitionLog.open(
                left, "/logs/t-0", TP, flushed.log.topic_id, flushed.log.config, LastRun(clean=False)
            )
            assert log.log_end_offset >= flushed.end
    flushed.threads.held = False
    flushed.threads.run_all()
    flushed.loop.run_for(flush_ms / 1000 + 0.3 * (refusals + 1))
    assert flushed.end == flushed.log.log_end_offset
    assert flushed.failures == []
