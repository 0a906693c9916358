"""When segments of hosted partitions go: over a real log manager in memory, with time that jumps."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.upkeep.retention import Retention
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.log.files.small_files import write_offsets
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import make_batch, values_of
from tests.lab.manual_loop import ManualLoop, ManualThreads
from tests.lab.partition_states import live_broker, partition_state
from tests.unit.slice_clock import SliceClock

SETTINGS = {"log.retention.check.interval.ms": 10_000, "log.initial.task.delay.ms": 1_000}
TP = TopicPartition("t", 0)


class World:
    """Partitions that this broker leads, and their retention."""

    def __init__(self, loop: ManualLoop, clock: ManualClock, fs: MemoryFs | None = None) -> None:
        self.loop = loop
        self.clock = clock
        self.fs = fs or MemoryFs()
        self.threads = ManualThreads(loop)
        self.configs: dict[str, TopicConfig] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        default = TopicConfig.from_properties({})
        self.logs = LogManager(self.fs, ["/data"], clock, config_of=lambda topic: self.configs.get(topic, default))
        self.logs.open()
        self.logs.load()
        self.services = PartitionServices(
            1,
            clock,
            self.threads,  # type: ignore[arg-type]
            Purgatory(loop),
            1 << 26,
            on_storage_failure=lambda partition, error: partition.go_offline(error),
        )
        self.retention = Retention(
            loop,
            SETTINGS,  # type: ignore[arg-type]
            self.threads,  # type: ignore[arg-type]
            clock,
            self.logs,
            self.partitions.values(),  # type: ignore[arg-type]
            Slices(loop, SliceClock()),
        )

    def partition(
        self, key: TopicPartition = TP, replicas: tuple[int, ...] = (1,), epoch: int = 0, **settings: object
    ) -> Partition:
        given = {"segment_bytes": 400, "file_delete_delay_ms": 0, **settings}
        self.configs[key.topic] = TopicConfig.from_properties({k.replace("_", "."): v for k, v in given.items()})
        log = self.logs.logs.get(key) or self.logs.create(key, b"i" * 16)
        log.update_config(self.configs[key.topic])
        partition = Partition(key, b"i" * 16, log, self.services)
        partition.become_leader(partition_state(*replicas, replicas=replicas, epoch=epoch, version=epoch))
        self.partitions[key] = partition
        return partition

    def append(self, partition: Partition, count: int = 1, age_ms: int = 0) -> None:
        for _ in range(count):
            value = b"%06d" % partition.log.log_end_offset
            batch = make_batch([value * 10], timestamp_ms=self.clock.wall_ms() - age_ms)
            partition.log.readiness.prepare()
            partition.check_leader().try_append(memoryview(batch), 9)


@pytest.fixture
def world() -> Iterator[World]:
    clock = ManualClock()
    loop = ManualLoop(clock)
    yield World(loop, clock)
    loop.close()


def segments(partition: Partition) -> list[int]:
    return [int(segment.base_offset) for segment in partition.log.segments]


def test_what_has_expired_goes_at_the_next_check_and_not_before(world: World) -> None:
    partition = world.partition(retention_ms=5_000)
    world.append(partition, 12)
    rest = segments(partition)
    assert len(rest) > 3
    world.retention.start()
    world.loop.run_for(2)
    assert segments(partition) == rest
    # One check came too early; the next one finds all of it expired, the active segment too.
    world.loop.run_for(7)
    assert segments(partition) == rest
    world.loop.run_for(3)
    assert partition.log_start_offset == partition.log.log_end_offset == 12
    assert segments(partition) == [12]


def test_what_is_too_much_goes_from_the_old_end(world: World) -> None:
    partition = world.partition(retention_bytes=1000)
    world.append(partition, 20)
    world.retention.start()
    world.loop.run_for(3)
    assert 1000 <= partition.log.size_bytes < 1000 + 400
    assert partition.log_start_offset == segments(partition)[0] > 0


def test_nothing_goes_that_consumers_may_not_see_yet(world: World) -> None:
    partition = world.partition(retention_ms=500, visibility_policy="flushed")
    world.append(partition, 12)
    world.threads.held = True
    world.retention.start()
    world.loop.run_for(30)
    assert partition.visible_end_offset == partition.log_start_offset == 0
    world.threads.held = False
    world.threads.run_all()
    world.loop.run_for(30)
    assert partition.log_start_offset == 12


def test_a_log_start_is_on_the_disk_before_anybody_sees_it_and_the_files_go_after_it(world: World) -> None:
    partition = world.partition(retention_ms=500)
    world.append(partition, 12)
    partition.log.roll()
    partition.log.flush()
    before = segments(partition)
    world.threads.held = True
    world.retention.start()
    world.loop.run_for(3)
    assert (partition.log_start_offset, segments(partition)) == (0, before)
    # Another look meanwhile does not move it twice.
    world.retention.look_soon(partition)
    world.loop.run_for(1)
    assert len(world.threads.work) == 1
    world.threads.held = False
    world.threads.run_all()
    assert partition.log_start_offset == 12
    world.loop.run_for(1)
    assert segments(partition) == [12]


def test_a_start_that_cannot_be_written_stays_and_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    partition = world.partition(retention_ms=500)
    world.append(partition, 12)
    partition.log.flush()
    world.fs.fail("open", errno.ENOSPC, path_part="log-start-offset-checkpoint", times=2)
    world.retention.start()
    world.loop.run_for(5)
    assert partition.log_start_offset == 0
    assert "retention of 1 logs" in caplog.text
    world.loop.run_for(60)
    assert partition.log_start_offset == 12


def test_delete_records_moves_starts_and_the_files_go_soon(world: World) -> None:
    partition = world.partition()
    world.append(partition, 12)
    partition.log.flush()
    world.retention.start()
    failed = world.loop.run_until_complete(world.retention.advance_log_starts({partition: 7}))
    assert (failed, partition.log_start_offset) == ({}, 7)
    assert segments(partition)[0] == 0
    world.loop.run_for(2)
    assert 0 < segments(partition)[0] <= 7
    assert world.loop.run_until_complete(world.retention.advance_log_starts({partition: 3})) == {}
    assert partition.log_start_offset == 7


def test_a_log_whose_disk_failed_is_left_alone_and_the_others_are_not(world: World) -> None:
    lost, sound = (world.partition(TopicPartition(name, 0), retention_ms=500) for name in "ab")
    for partition in (lost, sound):
        world.append(partition, 12)
        partition.log.flush()
    lost.go_offline(OSError(errno.EIO, "gone"))
    world.retention.start()
    world.loop.run_for(30)
    assert (lost.log_start_offset, sound.log_start_offset) == (0, 12)


def test_after_the_end_nothing_goes(world: World) -> None:
    partition = world.partition(retention_ms=500)
    world.append(partition, 12)
    partition.log.flush()
    before = segments(partition)
    world.threads.held = True
    world.retention.start()
    world.loop.run_for(3)
    world.retention.stop()
    # What a thread has done is true, and the next start goes on from there.
    world.threads.run_all()
    world.retention.look_soon(partition)
    world.loop.run_for(60)
    assert partition.log_start_offset > 0
    assert segments(partition)[: len(before)] == before


def test_many_logs_are_handed_to_threads_some_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafkalite.broker.upkeep.retention._HANDED_OVER_AT_ONCE", 3)
    for number in range(10):
        partition = world.partition(TopicPartition("t", number), retention_ms=500)
        world.append(partition, 5)
        partition.log.roll()
        partition.log.flush()
    world.threads.held = True
    world.retention.start()
    world.loop.run_for(3)
    assert len(world.threads.work) == 4
    world.threads.held = False
    world.threads.run_all()
    world.loop.run_for(30)
    assert [partition.log_start_offset for partition in world.partitions.values()] == [5] * 10


def test_many_segments_of_one_log_go_some_at_a_time(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    partition = world.partition(retention_ms=500)
    world.append(partition, 120)
    assert len(segments(partition)) > 32
    world.retention.start()
    world.loop.run_for(3)
    assert segments(partition) == [120]
    removed = [record for record in caplog.records if "removed" in record.message]
    assert len(removed) >= 3


@pytest.mark.parametrize("seed", range(25))
def test_whatever_comes_in_between_what_is_kept_is_whole_and_what_may_go_goes(world: World, seed: int) -> None:
    chosen = random.Random(seed)
    retention_ms = chosen.choice([3_000, 40_000])
    retention_bytes = chosen.choice([-1, 900])
    partitions = [
        world.partition(TopicPartition("t", number), retention_ms=retention_ms, retention_bytes=retention_bytes)
        for number in range(3)
    ]
    world.retention.start()
    starts = [0, 0, 0]
    for _ in range(60):
        number = chosen.randrange(3)
        partition = partitions[number]
        step = chosen.random()
        if step < 0.5:
            world.append(partition, chosen.randint(1, 5), chosen.choice([0, 0, 2_000, -20_000]))
        elif step < 0.6:
            world.threads.held = not world.threads.held
            world.threads.run_all()
        elif step < 0.7:
            world.retention.look_soon(partition)
        elif step < 0.75 and partition.log.segments.active.size_bytes:
            partition.roll()
        else:
            world.loop.run_for(chosen.choice([0.0, 0.4, 3.0, 12.0]))
        for at, each in enumerate(partitions):
            assert starts[at] <= each.log_start_offset <= each.visible_end_offset
            starts[at] = each.log_start_offset
            assert segments(each)[0] <= starts[at]
            assert readable(each) == list(range(starts[at], each.log.log_end_offset))
    world.threads.held = False
    world.threads.run_all()
    # Past the timestamps that were ahead of the clock.
    world.loop.run_for(retention_ms / 1000 + 20 + 25)
    for each in partitions:
        assert each.log_start_offset == each.log.log_end_offset
        assert len(segments(each)) == 1


def readable(partition: Partition) -> list[int]:
    """Return the offsets that can be read, whose values are those that were written there."""
    log, found = partition.log, []
    offset = int(log.log_start_offset)
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        for at, value in values_of(piece.read()):
            if at >= offset:
                assert value == b"%06d" % at * 10
                found.append(at)
        offset = found[-1] + 1
    return found


def test_a_followers_log_starts_where_its_leaders_does(world: World) -> None:
    partition = world.partition(retention_ms=-1)
    world.append(partition, 20)
    world.threads.held = True
    # Not beyond what is known to be everywhere.
    partition.bounds.high_watermark = 15
    world.retention.follow_leader(partition, 12)
    # It has gone on while the first is on its way to the disk.
    world.retention.follow_leader(partition, 18)
    world.threads.run_all()
    world.threads.held = False
    world.loop.run_for(2)
    assert partition.log_start_offset == 15
    assert len(partition.log.segments) < 20
    world.retention.follow_leader(partition, 3)
    world.loop.run_for(2)
    assert partition.log_start_offset == 15


@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
def test_a_start_that_the_broker_has_not_written_waits_for_another_replica_if_there_is_one(
    world: World, replicas: tuple[int, ...]
) -> None:
    partition = world.partition(retention_ms=-1)
    world.append(partition, 20)
    world.logs.log_starts.begin("/data")
    world.logs.shutdown()
    write_offsets(world.fs, "/data/log-start-offset-checkpoint", {TP: 12})
    again = World(world.loop, world.clock, world.fs)
    again.services.live_brokers = lambda: {each: live_broker(each) for each in replicas}
    partition = again.partition(retention_ms=-1, replicas=replicas)
    partition.bounds.high_watermark = 20
    assert partition.log_start_offset == 0
    again.retention.start()
    if len(replicas) > 1:
        for start in (0, 11, 13):
            partition.check_leader().follower_fetched(2, Incarnation(20), 20, None, start)
            again.loop.run_for(30)
            assert (partition.log_start_offset, segments(partition)[0]) == (0, 0)
        again.partitions.clear()
        partition = again.partition(retention_ms=-1, replicas=replicas, epoch=1)
        partition.check_leader().follower_fetched(2, Incarnation(20), 20, None, 12)
    again.loop.run_for(30)
    assert partition.log_start_offset == 12
    assert 0 < segments(partition)[0] <= 12
    assert readable(partition) == list(range(12, 20))


def test_retention_goes_on_below_a_start_that_nobody_confirms(world: World) -> None:
    partition = world.partition(retention_ms=5_000)
    world.append(partition, 8, age_ms=6_000)
    partition.roll()
    world.append(partition, 12)
    partition.log.flush()
    partition.log.unconfirmed_start_offset = 16
    partition.become_leader(partition_state(1, replicas=(1, 2), epoch=1, version=1))
    world.retention.start()
    world.loop.run_for(2)
    assert (partition.log_start_offset, partition.log.unconfirmed_start_offset) == (8, 16)
    assert readable(partition) == list(range(8, 20))
    world.loop.run_for(20)
    assert (partition.log_start_offset, partition.log.unconfirmed_start_offset) == (20, 0)
