"""``__consumer_offsets`` over a real partition in memory: what is committed when, under which epoch, and what loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.group_log import GroupLog
from spark_kafkalite.broker.io_threads import Lane
from spark_kafkalite.broker.partition import Partition, PartitionServices
from spark_kafkalite.broker.purgatory import Purgatory
from spark_kafkalite.errors import (
    FencedLeaderEpoch,
    KafkaError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownLeaderEpoch,
)
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.log.open_files import OpenFiles
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from spark_kafkalite.testing.batches import make_batch, values_of
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs

TP = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)


class HeldIo:
    """Threads that begin when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Any, on_done: Any, on_error: Any, lane: Lane = Lane.FILES) -> None:
        self.work.append((work, on_done))

    def run_all(self) -> None:
        pieces, self.work = self.work, []
        for work, on_done in pieces:
            on_done(work())

    async def run(self, work: Callable[[], Any], lane: Lane = Lane.FILES) -> Any:
        await asyncio.sleep(0)
        return work()


class Stage:
    """One partition of the topic, and the group log before it."""

    def __init__(self, *, epoch: int = 3, isr: tuple[int, ...] = (1,), **settings: object) -> None:
        loop = asyncio.get_running_loop()
        fs, self.clock, self.io = MemoryFs(), ManualClock(), HeldIo()
        self.roles: list[tuple[bool, int]] = []
        services = PartitionServices(
            1,
            self.clock,
            self.io,
            Purgatory(loop),
            1 << 26,
            lambda partition, error: None,  # type: ignore[arg-type]
        )
        services.on_role_change = lambda partition: self.roles.append((partition.is_leader, partition.leader_epoch))
        fs.make_directories("/logs")
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        log = PartitionLog.create(OpenFiles(fs), "/logs/o-0", TP, b"i" * 16, config, self.clock)
        self.partition = Partition(TP, b"i" * 16, log, services)
        self.partition.become_leader(epoch, isr, (1, 2), 1)
        replicas: Any = SimpleNamespace(get=lambda key: self.partition)
        unused: Any = None
        self.group_log = GroupLog(loop, unused, self.io, unused, unused, replicas)  # type: ignore[arg-type]

    def append(self, epoch: int = 3, timeout_s: float = 5.0, size: int = 1) -> asyncio.Future[int]:
        return self.group_log.append_committed(0, make_batch([b"v" * size], key=b"k"), epoch, timeout_s)

    async def read(self) -> list[bytes | None]:
        return [values_of(bytes(batch))[0][1] async for _, batch in self.group_log.read_committed_log(0)]


def stage(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@stage
async def test_alone_an_append_is_committed_at_once() -> None:
    on = Stage()
    first, second = on.append(), on.append(size=7)
    assert first.done() and (first.result(), second.result()) == (0, 1)
    assert await on.read() == [b"v", b"v" * 7]


@stage
async def test_with_flush_before_ack_one_flush_commits_many() -> None:
    on = Stage(flush_before_ack=True)
    several = [on.append() for _ in range(5)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in several)
    on.io.run_all()
    assert await asyncio.gather(*several) == [0, 1, 2, 3, 4]


@stage
async def test_what_is_not_committed_in_time_is_told_so_and_stays() -> None:
    on = Stage(flush_before_ack=True)
    with pytest.raises(RequestTimedOut, match=r"offsets\.commit\.timeout\.ms"):
        await on.append(timeout_s=0.001)
    assert on.partition.log.log_end_offset == 1


@pytest.mark.parametrize(("epoch", "error"), [(2, FencedLeaderEpoch), (4, UnknownLeaderEpoch)])
def test_another_epoch_writes_nothing(epoch: int, error: type[KafkaError]) -> None:
    async def run() -> None:
        on = Stage()
        with pytest.raises(error):
            await on.append(epoch)
        assert on.partition.log.log_end_offset == 0

    asyncio.run(run())


@stage
async def test_leadership_that_goes_fails_what_waits() -> None:
    on = Stage(flush_before_ack=True)
    waiting = on.append()
    on.partition.resign(2, 4, 2)
    with pytest.raises((NotLeaderOrFollower, FencedLeaderEpoch)):
        await waiting
    on.io.run_all()


@stage
async def test_an_epoch_that_follows_at_once_fails_what_waits_too() -> None:
    on = Stage(flush_before_ack=True)
    waiting = on.append()
    on.partition.become_leader(5, (1,), (1, 2), 2)
    with pytest.raises(FencedLeaderEpoch):
        await waiting
    on.io.run_all()


@stage
async def test_too_few_replicas_and_too_large_batches_are_refused() -> None:
    on = Stage(min_insync_replicas=2)
    with pytest.raises(NotEnoughReplicas):
        await on.append()
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        await Stage(max_message_bytes=1000).append(size=2000)


@stage
async def test_a_load_waits_until_what_is_there_is_committed() -> None:
    on = Stage(min_insync_replicas=2, epoch=3)
    # Left by another leader, and not in enough replicas.
    on.partition.check_leader().try_append(
        memoryview(make_batch([b"old"], key=b"k", timestamp_ms=on.clock.wall_ms())), 9
    )
    reading = asyncio.ensure_future(on.read())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()
    on.partition.become_leader(3, (1, 2), (1, 2), 2)
    on.partition.check_leader().follower_has(2, 1)
    assert await reading == [b"old"]


@stage
async def test_a_load_ends_with_the_leadership() -> None:
    on = Stage(min_insync_replicas=2)
    on.partition.check_leader().try_append(
        memoryview(make_batch([b"old"], key=b"k", timestamp_ms=on.clock.wall_ms())), 9
    )
    reading = asyncio.ensure_future(on.read())
    await asyncio.sleep(0)
    on.partition.close()
    with pytest.raises(NotLeaderOrFollower):
        await reading


@stage
async def test_large_logs_are_read_in_pieces_and_what_comes_meanwhile_is_not() -> None:
    on = Stage()
    for number in range(300):
        on.append(size=3000 + number)
    found = []
    async for header, batch in on.group_log.read_committed_log(0):
        assert header.size_bytes == len(batch)
        found.append(header.base_offset)
        if len(found) == 100:
            on.append()
    assert found == list(range(300))


@stage
async def test_partitions_tell_of_their_role() -> None:
    on = Stage()
    on.partition.become_leader(3, (1,), (1, 2), 2)
    on.partition.become_leader(4, (1,), (1, 2), 3)
    on.partition.resign(2, 5, 4)
    on.partition.close()
    assert on.roles == [(True, 3), (True, 4), (False, 5), (False, 5)]


@stage
async def test_shards_follow_the_role_of_their_partition_alone() -> None:
    on = Stage()
    seen: list[tuple[str, int, int]] = []
    shards: Any = SimpleNamespace(
        lead=lambda number, epoch: seen.append(("lead", number, epoch)),
        resign=lambda number: seen.append(("resign", number, -1)),
    )
    on.group_log.role_changed(shards, on.partition)
    on.partition.resign(2, 4, 2)
    on.group_log.role_changed(shards, on.partition)
    other: Any = SimpleNamespace(topic_partition=TopicPartition("t", 0), is_leader=True, leader_epoch=1)
    on.group_log.role_changed(shards, other)
    assert seen == [("lead", 0, 3), ("resign", 0, -1)]
