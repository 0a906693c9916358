"""An internal topic over a real partition in memory: what is committed when, under which epoch, and what loads."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.coordinator.internal_topic import InternalTopic
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    CorruptMessage,
    FencedLeaderEpoch,
    InvalidReplicationFactor,
    KafkaError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownLeaderEpoch,
)
from spark_kafkalite.log.files.needs_thread import NotInMemory, may_wait
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.control import Marker, build_marker
from spark_kafkalite.registry.controller.controller import TopicSpec
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import make_batch, values_of
from tests.lab.manual_loop import ManualThreads
from tests.lab.partition_states import partition_state
from tests.unit.coordinator.counters import Counters
from tests.unit.coordinator.host_double import until
from tests.unit.slice_clock import SliceClock

TOPIC = InternalTopic("__counters", "counter", 4, 2, 1 << 20, "counters.replicas", 5_000, "commit.timeout.ms")
TP = TopicPartition(TOPIC.name, 0)


class Stage:
    """One partition of the topic, and the host before it."""

    def __init__(self, *, epoch: int = 3, isr: tuple[int, ...] = (1,), **settings: object) -> None:
        loop = asyncio.get_running_loop()
        fs, self.clock, self.io = MemoryFs(), ManualClock(), ManualThreads()
        self.fs = fs
        self.roles: list[tuple[bool, int]] = []
        services = PartitionServices(
            1,
            self.clock,
            self.io,
            Purgatory(loop),
            1 << 26,
        )
        services.on_role_change.append(
            lambda partition: self.roles.append((partition.is_leader, partition.leader_epoch))
        )
        fs.make_directories("/logs")
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        host = LogHost.alone(OpenFiles(fs), "/logs", self.clock)
        log = PartitionLog.create(host, "/logs/o-0", TP, b"i" * 16, config)
        self.partition = Partition(TP, b"i" * 16, log, services)
        self.partition.become_leader(partition_state(*isr, replicas=(1, 2), epoch=epoch, version=1))
        replicas: Any = SimpleNamespace(get=lambda key: self.partition)
        unused: Any = None
        self.host = InternalTopicHost(TOPIC, Slices(loop, SliceClock()), self.io, unused, unused, replicas)  # type: ignore[arg-type]

    def append(self, epoch: int = 3, size: int = 1) -> asyncio.Future[int]:
        committed = self.host.append_committed(0, make_batch([b"v" * size], key=b"k"), epoch)
        if not isinstance(committed, int):
            return committed
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(committed)
        return done

    async def read(self) -> list[bytes | None]:
        return [values_of(bytes(batch))[0][1] async for _, batch in self.host.read_replicated(0)]


def stage(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run


@stage
async def test_alone_an_append_is_committed_at_once() -> None:
    on = Stage()
    first, second = on.append(), on.append(size=7)
    assert first.done() and (first.result(), second.result()) == (0, 1)
    assert await on.read() == [b"v", b"v" * 7]


@stage
async def test_a_load_has_the_log_take_the_first_append_without_a_sync() -> None:
    on = Stage()
    assert await on.read() == []
    on.fs.fail("sync", errno.EIO, path_part="partition.metadata")
    assert await on.append() == 0


@stage
async def test_with_flush_before_ack_one_flush_commits_many() -> None:
    on = Stage(flush_before_ack=True)
    several = [on.append() for _ in range(5)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in several)
    on.io.run_all()
    assert await asyncio.gather(*several) == [0, 1, 2, 3, 4]


@stage
async def test_it_waits_for_the_flush_however_long_that_takes() -> None:
    on = Stage(flush_before_ack=True)
    waiting = on.append()
    for _ in range(20):
        await asyncio.sleep(0)
    assert on.partition.log.log_end_offset == 1 and not waiting.done()
    on.io.run_all()
    assert await waiting == 0


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
    on.partition.become_leader(partition_state(1, replicas=(1, 2), epoch=5, version=2))
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
    on.partition.log.readiness.prepare()
    on.partition.check_leader().try_append(
        memoryview(make_batch([b"old"], key=b"k", timestamp_ms=on.clock.wall_ms())), 9
    )
    reading = asyncio.ensure_future(on.read())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()
    on.partition.become_leader(partition_state(1, 2, replicas=(1, 2), epoch=3, version=2))
    on.partition.check_leader().follower_fetched(2, Incarnation(20), 1)
    assert await reading == [b"old"]


@stage
async def test_a_load_ends_with_the_leadership() -> None:
    on = Stage(min_insync_replicas=2)
    on.partition.log.readiness.prepare()
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
    async for header, batch in on.host.read_replicated(0):
        assert header.size_bytes == len(batch)
        found.append(header.base_offset)
        if len(found) == 100:
            on.append()
    assert found == list(range(300))


@pytest.mark.parametrize(
    ("place", "said"),
    [(8, "header"), (16, "header"), (20, "the batch at offset 1, position "), (-1, "the batch at offset 1, position ")],
    ids=["length", "magic", "crc", "record"],
)
def test_a_damaged_batch_is_named_with_its_place_and_the_command_that_repairs_it(place: int, said: str) -> None:
    async def run() -> None:
        on = Stage()
        on.append()
        position = on.partition.log.segments.size_bytes
        for _ in range(2):
            on.append()
        file = on.fs.open(on.partition.log.segments.active.log_path)
        at = position + place if place >= 0 else position + position - 1
        file.pwrite(bytes([file.pread(1, at)[0] ^ 0x41]), at)
        damage = on.partition.log.local.known_damage
        damage.is_kept = False
        with pytest.raises(CorruptMessage, match=r"; restore the file") as caught:
            await on.read()
        assert said in str(caught.value) and on.partition.log.segments.active.log_path in str(caught.value)
        assert str(caught.value).endswith("cut the log there: kafkalite dump-log --repair /logs/o-0")
        damage.is_kept = True
        with pytest.raises(CorruptMessage, match=r"; another in-sync replica leads, and this one copies from it; if "):
            await on.read()

    asyncio.run(run())


@stage
async def test_a_damaged_batch_of_a_transaction_ends_the_load_too() -> None:
    """Its records are offsets of consumers, once they are committed."""
    on = Stage()
    builder = kernel.OpenBatch(1000)
    builder.append(1, b"k", b"v")
    batch = builder.build(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    on.partition.append_own(memoryview(batch), on.partition.leader_epoch)
    on.partition.append_own(memoryview(build_marker(7, 0, Marker(True, 1), 1)), on.partition.leader_epoch)
    assert [header.is_control async for header, _ in on.host.read_replicated(0)] == [False, True]
    file = on.fs.open(on.partition.log.segments.active.log_path)
    file.pwrite(b"x", len(batch) - 1)
    on.partition.log.local.known_damage.is_kept = False
    with pytest.raises(CorruptMessage, match="the batch at offset 0, position 0"):
        await on.read()


@stage
async def test_what_a_look_up_needs_of_the_disk_a_thread_reads() -> None:
    on = Stage()
    on.append()
    log, read, loaded = on.partition.log, on.partition.log.read, []

    class Missing(NotInMemory):
        def __init__(self) -> None:
            Exception.__init__(self, "an index")

        def work(self) -> None:
            loaded.append(may_wait())

    def missing(start_offset: int, max_bytes: int, until_offset: int) -> LogSlice | None:
        if not loaded:
            raise Missing
        return read(start_offset, max_bytes, until_offset)

    log.read = missing  # type: ignore[method-assign, assignment]
    reading = asyncio.ensure_future(on.read())
    while not on.io.work:
        await asyncio.sleep(0)
    assert not loaded and not reading.done()
    on.io.run_all()
    assert await reading == [b"v"]
    assert loaded == [True]


@stage
async def test_an_epoch_that_ends_during_a_look_up_ends_the_load() -> None:
    on = Stage()
    on.append()

    def missing(*_: object) -> LogSlice | None:
        raise NotInMemory(on.partition.log.segments.active.file, 0, 1)

    on.partition.log.read = missing  # type: ignore[method-assign]
    reading = asyncio.ensure_future(on.read())
    while not on.io.work:
        await asyncio.sleep(0)
    on.partition.become_leader(partition_state(1, replicas=(1, 2), epoch=4, version=2))
    on.io.run_all()
    with pytest.raises(FencedLeaderEpoch):
        await reading


@stage
async def test_partitions_tell_of_their_role() -> None:
    on = Stage()
    on.partition.become_leader(partition_state(1, replicas=(1, 2), epoch=3, version=2))
    on.partition.become_leader(partition_state(1, replicas=(1, 2), epoch=4, version=3))
    on.partition.resign(2, 5, 4)
    on.partition.close()
    assert on.roles == [(True, 3), (True, 4), (False, 5), (False, 5)]


@stage
async def test_a_batch_whose_flush_comes_late_is_applied_then() -> None:
    on = Stage(flush_before_ack=True)
    on.host.topic = replace(TOPIC, commit_timeout_ms=1)  # type: ignore[misc]
    on.host.partition_count = lambda: 1  # type: ignore[method-assign]
    shards = Shards(on.host, Counters, on.clock)
    shards.lead(0, on.partition.leader_epoch)
    await until(lambda: not shards.is_loading)
    shard = shards.shard_of("c")
    with pytest.raises(RequestTimedOut):
        await shard.append([("c", 1)])
    assert shard.state.values == {}
    on.io.run_all()
    await until(lambda: shard.state.values == {"c": 1})
    on.partition.resign(2, 4, 2)
    shards.resign(0)
    with pytest.raises(NotCoordinator):
        shards.shard_of("c")


class Cluster:
    """The registry and the controller, as far as a host asks them: one topic, made when the test says so."""

    def __init__(self) -> None:
        self.exists = False
        self.asked: list[TopicSpec] = []
        self.outcome: KafkaError | None = None
        self.may_answer = asyncio.Event()
        unused: Any = None
        slices = Slices(asyncio.get_running_loop(), SliceClock())
        self.host = InternalTopicHost(TOPIC, slices, unused, self, self, unused)  # type: ignore[arg-type]

    @property
    def state(self) -> Any:
        return SimpleNamespace(topics={TOPIC.name: SimpleNamespace(partitions=range(4))} if self.exists else {})

    async def make(self, topics: list[TopicSpec], timeout_s: float) -> dict[str, KafkaError | None]:
        self.asked += topics
        await self.may_answer.wait()
        return {TOPIC.name: self.outcome}


@stage
async def test_the_topic_is_made_once_for_all_who_ask() -> None:
    cluster = Cluster()
    assert cluster.host.partition_count() == 0
    asking = [asyncio.ensure_future(cluster.host.ensure()) for _ in range(3)]
    await asyncio.sleep(0)
    # The first to ask goes away; the others still want it.
    asking[0].cancel()
    cluster.may_answer.set()
    await asyncio.gather(*asking[1:])
    assert [(one.name, one.partition_count, one.replication_factor) for one in cluster.asked] == [("__counters", 4, 2)]
    assert cluster.asked[0].config == TOPIC.config
    cluster.exists = True
    assert cluster.host.partition_count() == 4
    await cluster.host.ensure()
    assert len(cluster.asked) == 1


@stage
async def test_a_topic_that_cannot_be_made_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.may_answer.set()
    cluster.outcome = InvalidReplicationFactor("2 replicas, 1 broker")
    for _ in range(3):
        with pytest.raises(CoordinatorNotAvailable, match="__counters cannot be created: 2 replicas, 1 broker"):
            await cluster.host.ensure()
    # Each client asks every 100 ms; one line a minute is enough.
    (said,) = [record.getMessage() for record in caplog.records if "__counters" in record.getMessage()]
    assert "start more brokers, or set counters.replicas" in said
    cluster.outcome = TopicAlreadyExists("made by another broker")
    await cluster.host.ensure()
    assert len(cluster.asked) == 4
