"""Followers over real logs, fetching from a leader that keeps a fetch session as KIP-227 says."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafkalite import slices
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.replication.replica_fetcher import FetchSettings, LeaderFetcher
from spark_kafkalite.broker.replication.replication import ReplicaFetchers
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import BrokerUnreachable, KafkaliteError, KafkaStorageError, NoMemoryForAnswer
from spark_kafkalite.log import copied_batches, copying
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from spark_kafkalite.wire.packed import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    pack_fetch_response,
    parse_fetch,
)
from spark_kafkalite.wire.packed.fetch_beginning import announced_records
from spark_kafkalite.wire.packed.replica_damage import REFUSED, UNCOUNTED, pack_damage, parse_damage
from tests.lab.batches import make_batch, make_stored_batch
from tests.lab.manual_loop import ManualLoop, ManualThreads
from tests.lab.partition_states import partition_state
from tests.seeds import SOAK
from tests.unit.slice_clock import SliceClock

ID = b"i" * 16
ME, LEADER = 1, 2
INCARNATION = Incarnation(77)


class LeaderSide:
    """What a leader answers. Answers go out when a partition has news, or at :meth:`end_waits`."""

    def __init__(self, loop: ManualLoop, logs: list[PartitionLog], epoch: int = 5) -> None:
        self.loop = loop
        self.logs = logs
        self.epoch = epoch
        self.high_watermarks = [0] * len(logs)
        self.session: dict[tuple[bytes, int], FetchPartition] = {}
        self.told: dict[int, tuple[int, int]] = {}
        # What it says of damage: what it lacks itself, and whether it counts on nothing of the follower's.
        self.damaged: tuple[tuple[int, int], ...] = ()
        self.is_counting_nobody = True
        self.session_id = 0
        self.next_epoch = 0
        self.gives_sessions = True
        self.requests: list[FetchRequest] = []
        self.waiting: list[tuple[FetchRequest, Callable[[memoryview], None]]] = []
        self.errors: dict[int, int] = {}
        self.connections: list[FakeConnection] = []
        self.refuses: KafkaliteError | None = None

    def connect(self, broker: BrokerInfo, on_closed: Callable[[KafkaliteError], None]) -> FakeConnection:
        assert broker.broker_id == LEADER
        if self.refuses is not None:
            raise self.refuses
        self.session_id = 0
        self.connections.append(FakeConnection(self, on_closed))
        return self.connections[-1]

    def asked(self, body: bytes, on_answer: Callable[[memoryview], None]) -> None:
        request = parse_fetch(memoryview(body), 0, 17)
        assert (request.replica_id, request.replica_epoch) == (ME, INCARNATION)
        self.requests.append(request)
        self.end_waits()
        if request.session_epoch == 0:
            self.session_id = 9 if self.gives_sessions else 0
            self.session.clear()
            if self.gives_sessions:
                self.told.clear()
            self.next_epoch = 1
        elif request.session_id != self.session_id or request.session_epoch != self.next_epoch:
            self.answer(request, on_answer, error_code=70 if request.session_id != self.session_id else 71)
            return
        else:
            self.next_epoch += 1
        for topic, partitions in request.topics:
            for one in partitions:
                self.session[topic, one.partition] = one  # type: ignore[index]
        for topic, numbers in request.forgotten_topics:
            for number in numbers:
                del self.session[topic, number]  # type: ignore[arg-type]
                self.told.pop(number, None)
        self.waiting.append((request, on_answer))
        self.wake()

    def wake(self) -> None:
        """Answer what waits, if there is something to say."""
        if self.waiting and any(self.said(one) is not None for one in self.session.values()):
            self.end_waits()

    def end_waits(self) -> None:
        waiting, self.waiting = self.waiting, []
        for request, on_answer in waiting:
            self.answer(request, on_answer)

    def said(self, asked: FetchPartition) -> FetchedPartition | None:
        number = asked.partition
        log, high_watermark = self.logs[number], self.high_watermarks[number]
        start = int(log.log_start_offset)
        if number in self.errors:
            return FetchedPartition(number, self.errors[number])
        if asked.current_leader_epoch != self.epoch:
            return FetchedPartition(number, 74 if asked.current_leader_epoch < self.epoch else 75)
        if asked.fetch_offset < start:
            return FetchedPartition(number, 1, -1, -1, start)
        if asked.last_fetched_epoch >= 0:
            diverging = log.end_offset_for_epoch(asked.last_fetched_epoch)
            if diverging[0] < asked.last_fetched_epoch or diverging[1] < asked.fetch_offset:
                return FetchedPartition(number, 0, high_watermark, -1, start, diverging_epoch=diverging)
        found = log.read(asked.fetch_offset, 300, log.log_end_offset)
        if found is None and self.told.get(number) == (high_watermark, start):
            return None
        return FetchedPartition(number, 0, high_watermark, -1, start, found.read() if found is not None else b"")

    def answer(self, request: FetchRequest, on_answer: Callable[[memoryview], None], error_code: int = 0) -> None:
        fetched = [] if error_code else [one for asked in self.session.values() if (one := self.said(asked))]
        for one in fetched:
            if not one.error_code:
                self.told[one.partition] = one.high_watermark, one.log_start_offset
        damage = pack_damage(
            each._replace(ranges=self.damaged, flags=UNCOUNTED * self.is_counting_nobody, log_start_offset=0)
            for each in parse_damage(request.damage)
        )
        topics = [(ID, fetched)] if fetched else []
        pieces = pack_fetch_response(0, 17, topics, 0, error_code, self.session_id, (), damage)  # type: ignore[arg-type]
        frame = pieces if isinstance(pieces, bytes) else b"".join(bytes(piece) for piece in pieces[0])  # type: ignore
        self.connections[-1].answers.append((on_answer, frame[5:]))
        self.connections[-1].give_soon()

    def append(self, number: int, count: int = 1) -> None:
        for _ in range(count):
            batch = make_batch(2)
            self.logs[number].append_as_leader(batch, kernel.read_header(batch), self.epoch)
        self.wake()


class FakeConnection:
    """A connection as ``PeerConnection`` is one: answers in order, and none while one is held."""

    def __init__(self, leader: LeaderSide, on_closed: Callable[[KafkaliteError], None]) -> None:
        self.leader = leader
        self.on_closed = on_closed
        self.answers: list[tuple[Callable[[memoryview], None], bytes]] = []
        self.held = 0
        self.closed = False
        self.most_unanswered = self.unanswered = 0

    def send(self, api_key: int, version: int, body: bytes, on_answer: Callable[[memoryview], None]) -> None:
        assert (api_key, version, self.closed) == (1, 17, False)
        self.unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        self.leader.loop.call_soon(lambda: self.closed or self.leader.asked(body, on_answer))

    def give_soon(self) -> None:
        self.leader.loop.call_soon(self.give)

    def give(self) -> None:
        while self.answers and not self.held and not self.closed:
            on_answer, body = self.answers.pop(0)
            self.unanswered -= 1
            buffer = bytearray(body)
            on_answer(memoryview(buffer))
            if not self.held:
                # Used again for the next one.
                buffer[:] = bytes(len(buffer))

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1
        self.give_soon()

    def close(self) -> None:
        self.closed = True

    def lose(self, error: KafkaliteError | None = None) -> None:
        self.closed = True
        self.leader.waiting.clear()
        self.on_closed(BrokerUnreachable("it is gone") if error is None else error)


class World:
    """This broker with some partitions, and their leader."""

    def __init__(self, count: int = 1, **settings: object) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.fs = MemoryFs()
        self.io = ManualThreads(self.loop)
        self.services = PartitionServices(ME, self.clock, self.io, Purgatory(self.loop), 1 << 20)  # type: ignore
        self.config = TopicConfig.from_properties({name.replace("_", "."): each for name, each in settings.items()})
        self.partitions = [
            Partition(TopicPartition("t", number), ID, self.log("mine", number), self.services)
            for number in range(count)
        ]
        self.leader = LeaderSide(self.loop, [self.log("other", number) for number in range(count)])
        for log in self.leader.logs:
            log.assign_leader_epoch(self.leader.epoch, sync=False)
        self.slices = Slices(self.loop, SliceClock())
        self.fetchers = ReplicaFetchers(
            lambda leader_id: LeaderFetcher(
                self.loop,
                self.slices,
                leader_id,
                lambda broker_id: BrokerInfo(BrokerId(broker_id), "h", 9, None, BrokerEpoch(3)),
                self.leader.connect,  # type: ignore[arg-type]
                FetchSettings(ME, INCARNATION),
                self.services.follower_throttle,
            )
        )
        self.services.on_following = self.fetchers.role_changed
        self.failed: list[Partition] = []

        def failed(partition: Partition, error: BaseException) -> None:
            self.failed.append(partition)
            partition.go_offline(error)

        self.services.on_storage_failure = failed

    def log(self, whose: str, number: int) -> PartitionLog:
        self.fs.make_directories(f"/{whose}")
        self.fs.sync_directory("/")
        host = LogHost.alone(OpenFiles(self.fs), f"/{whose}", self.clock)
        return PartitionLog.create(host, f"/{whose}/t-{number}", TopicPartition("t", number), ID, self.config)

    def follow(self, epoch: int = 5, version: int = 1) -> None:
        for partition in self.partitions:
            partition.resign(LEADER, epoch, version)

    def run(self, seconds: float = 0.001) -> None:
        self.loop.run_for(seconds)

    def is_same(self, number: int = 0) -> bool:
        mine, theirs = self.partitions[number].log, self.leader.logs[number]
        return contents(mine) == contents(theirs) and mine.epochs.entries == theirs.epochs.entries

    @property
    def connection(self) -> FakeConnection:
        return self.leader.connections[-1]


def contents(log: PartitionLog) -> bytes:
    data, offset = b"", log.log_start_offset
    while (found := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        data += found.read()
        offset = kernel.scan_headers(data)[-1].next_offset
    return data


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    worlds = []

    def make(*arguments: Any, **settings: Any) -> World:
        worlds.append(World(*arguments, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.fetchers.close()
        world.run()
        world.loop.close()


def test_copies_what_the_leader_has_and_follows_its_high_watermark(make_world: Callable[..., World]) -> None:
    world = make_world(3)
    world.leader.append(0, 9)
    world.leader.append(2, 2)
    world.leader.high_watermarks[0] = 7
    world.follow()
    world.run()
    assert [partition.log.log_end_offset for partition in world.partitions] == [18, 0, 4]
    assert all(world.is_same(number) for number in (0, 2))
    assert [partition.high_watermark for partition in world.partitions] == [7, 0, 0]
    world.leader.high_watermarks[0] = 40
    world.leader.wake()
    world.run()
    assert world.partitions[0].high_watermark == 18
    assert len(world.leader.connections) == 1


def test_a_round_names_what_has_changed(make_world: Callable[..., World]) -> None:
    world = make_world(50)
    world.follow()
    world.run()
    assert sum(len(partitions) for _, partitions in world.leader.requests[0].topics) == 50
    before = len(world.leader.requests)
    world.leader.append(7)
    world.run()
    later = world.leader.requests[before:]
    assert [[one.partition for _, some in request.topics for one in some] for request in later] == [[7]]
    # A wait that has ended without news is followed by a request that names nothing.
    world.leader.end_waits()
    world.run()
    assert world.leader.requests[-1].topics == []
    assert world.leader.requests[-1].session_epoch == len(world.leader.requests) - 1
    assert world.connection.most_unanswered == 1


def test_a_partition_that_is_to_be_followed_does_not_wait_for_the_others(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    world.partitions[0].resign(LEADER, 5, 1)
    world.run()
    assert len(world.leader.waiting) == 1
    world.leader.append(1)
    world.partitions[1].resign(LEADER, 5, 1)
    world.run()
    assert world.is_same(1)
    assert world.connection.most_unanswered == 2
    assert len(world.leader.connections) == 1


def test_cuts_back_what_the_leader_does_not_have(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = make_world()
    for log in (world.leader.logs[0], world.partitions[0].log):
        copy_at_once(log, make_stored_batch(0, 1, 3))
    # As the leader of epoch 3 it wrote what nobody has got.
    copy_at_once(world.partitions[0].log, make_stored_batch(3, 3, 4))
    world.leader.logs[0].assign_leader_epoch(5)
    world.leader.append(0, 3)
    world.leader.high_watermarks[0] = 9
    world.follow()
    world.run()
    assert world.is_same()
    assert world.partitions[0].high_watermark == 9
    assert "t-0: cut back from offset 7 to 3, where its log parts" in caplog.text


def test_on_a_read_only_disk_a_truncation_waits_until_it_can_be_written(make_world: Callable[..., World]) -> None:
    world = make_world()
    log = world.partitions[0].log
    copy_at_once(log, make_stored_batch(0, 3, 4))
    world.leader.append(0, 3)
    log.disk.out_of_room("append to t-0", OSError(30, "Read-only file system"))
    world.follow()
    world.run(5)
    assert log.log_end_offset == 4 and log.failure is None and not world.failed
    # It asks ever more seldom.
    assert 3 <= len(world.leader.requests) <= 30
    assert log.disk.resume()
    world.run(5)
    assert world.is_same()


def test_a_truncation_is_done_in_threads_and_keeps_other_roles_waiting(make_world: Callable[..., World]) -> None:
    world = make_world()
    partition = world.partitions[0]
    settled: list[Partition] = []
    world.services.on_settled.append(settled.append)
    copy_at_once(partition.log, make_stored_batch(0, 3, 4))
    world.io.held = True
    world.follow()
    world.run()
    assert partition.is_truncating
    assert world.io.work
    assert partition.log.failure is None
    pieces = 0
    while partition.is_truncating:
        # Nothing is asked for it, and nobody else works on its log.
        assert partition.log.start_flush() is None
        assert isinstance(partition.role, Follower)
        assert partition.role.ask(world.loop.time()) is None
        world.io.run_one()
        pieces += 1
    assert pieces >= 3
    assert settled == [partition]
    world.io.held = False
    world.leader.append(0, 3)
    world.run()
    assert world.is_same()


def test_begins_anew_where_the_leaders_log_begins(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.leader.append(0, 3)
    truncate_fully(world.leader.logs[0], 100)
    world.leader.logs[0].assign_leader_epoch(5)
    world.leader.append(0, 2)
    world.follow()
    world.run()
    assert (world.partitions[0].log_start_offset, world.partitions[0].log.log_end_offset) == (100, 104)
    assert world.is_same()


def test_tells_where_the_leaders_log_starts(make_world: Callable[..., World]) -> None:
    world = make_world()
    told: list[int] = []
    world.services.on_leader_log_start = lambda partition, offset: told.append(offset)
    world.leader.append(0, 5)
    world.leader.high_watermarks[0] = 10
    world.follow()
    world.run()
    assert told == []
    world.leader.logs[0].advance_log_start(4)
    world.leader.wake()
    world.run()
    assert told
    assert set(told) == {4}
    # The leader hears of it at once, since it waits for that when records are deleted by hand.
    world.partitions[0].log.advance_log_start(4)
    world.run()
    assert world.leader.session[ID, 0].log_start_offset == 4


def test_goes_on_after_every_error(make_world: Callable[..., World]) -> None:
    """KAFKA-7414."""
    world = make_world(2)
    world.leader.append(0)
    world.leader.append(1)
    world.leader.errors[0] = 56
    world.follow()
    world.run()
    assert world.is_same(1)
    world.run(10)
    asked = [one.partition for request in world.leader.requests for _, some in request.topics for one in some]
    # 50, 100, 200, 400, 800 ms, then each second.
    assert 10 <= asked.count(0) <= 16
    # Meanwhile the session says nothing of it.
    assert (ID, 0) not in world.leader.session
    world.leader.errors.clear()
    world.run(1)
    assert world.is_same(0)


def test_a_leader_that_has_not_heard_of_the_epoch_yet_is_asked_again_soon(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.leader.epoch = 4
    world.follow(5)
    world.run(0.01)
    assert len([request for request in world.leader.requests if request.topics]) == 1
    world.leader.epoch = 5
    world.leader.append(0)
    world.run(0.1)
    assert world.is_same()


def test_another_epoch_begins_a_new_following_in_the_same_session(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.leader.append(0)
    world.follow()
    world.run()
    role = world.partitions[0].role
    # The same leader epoch in a newer version of the node: the ISR has changed.
    world.follow(5, version=2)
    assert world.partitions[0].role is role
    world.leader.epoch = 6
    world.leader.logs[0].assign_leader_epoch(6)
    world.leader.append(0)
    world.follow(6, version=3)
    assert isinstance(role, Follower)
    assert role.has_ended
    world.run()
    assert world.is_same()
    assert len(world.leader.connections) == 1
    assert [request.session_epoch for request in world.leader.requests].count(0) == 1


@pytest.mark.parametrize("lose", ["session", "epoch"])
def test_begins_a_new_session_when_the_leader_does_not_know_it(make_world: Callable[..., World], lose: str) -> None:
    world = make_world(2)
    world.follow()
    world.run()
    if lose == "session":
        world.leader.session_id = 12
    else:
        world.leader.next_epoch += 1
    world.leader.end_waits()
    world.leader.append(1)
    world.run()
    assert world.is_same(1)
    assert [request.session_epoch for request in world.leader.requests].count(0) == 2
    assert len(world.leader.connections) == 1


def test_without_sessions_everything_is_asked_each_time(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    world.leader.gives_sessions = False
    world.follow()
    world.run()
    world.leader.append(1, 3)
    world.run()
    assert world.is_same(1)
    assert {request.session_epoch for request in world.leader.requests} == {0}
    assert all(len(request.topics[0][1]) == 2 for request in world.leader.requests)


def answer_with(*records: tuple[int, int]) -> bytes:
    """An answer with so many bytes of records in each partition, without its header."""
    partitions = [FetchedPartition(number, 0, 0, -1, 0, bytes(size)) for number, size in records]
    pieces, _ = pack_fetch_response(0, 17, [(ID, partitions)])
    whole = b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
    return whole[5:]


def no_memory(*records: tuple[int, int]) -> NoMemoryForAnswer:
    whole = answer_with(*records)
    return NoMemoryForAnswer("no memory for an answer", len(whole), whole[:262_144])


def test_the_beginning_of_an_answer_says_whose_records_are_large() -> None:
    whole = answer_with((0, 0), (3, 500), (1, 3_000_000), (2, 7))
    assert list(announced_records(whole)) == [(ID, 0, 0), (ID, 3, 500), (ID, 1, 3_000_000), (ID, 2, 7)]
    assert list(announced_records(whole[:2_000])) == [(ID, 0, 0), (ID, 3, 500), (ID, 1, 3_000_000)]
    for size in range(600):
        assert len(list(announced_records(whole[:size]))) <= 2


def test_without_memory_for_an_answer_less_is_asked_for_and_other_partitions_go_on(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(2)
    world.follow()
    world.run()
    asked = world.leader.requests[0]
    assert {one.partition for _, some in asked.topics for one in some} == {0, 1}
    pauses = []
    for _ in range(9):
        since_s, first = world.loop.time(), len(world.leader.requests)
        world.connection.lose(no_memory((0, 5), (1, 3_000_000)))
        while not any(
            one.partition == 1 for each in world.leader.requests[first:] for _, some in each.topics for one in some
        ):
            world.leader.append(0)
            world.run(0.5)
            # The other one is copied meanwhile.
            assert world.is_same(0)
        pauses.append(int(world.loop.time() - since_s))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert min(each.max_bytes for each in world.leader.requests) == asked.max_bytes >> 7
    assert (
        min(one.partition_max_bytes for each in world.leader.requests for _, some in each.topics for one in some)
        == 65_536
    )
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert all("a batch of 3000000 bytes in partition 1" in line for line in lines)
    # One a minute, at most.
    assert 3 <= len(lines) <= 6 and "Traceback" not in caplog.text
    world.leader.append(1)
    world.run(61)
    assert world.is_same(1)
    world.connection.lose()
    world.run(0.1)
    assert world.leader.requests[-1].max_bytes == asked.max_bytes


def test_connects_again_and_begins_a_new_session(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(2)
    world.follow()
    world.run()
    world.leader.refuses = BrokerUnreachable("no route")
    world.connection.lose()
    world.run(5)
    assert len(world.leader.connections) == 1
    assert caplog.text.count("cannot be reached") == 1
    world.leader.refuses = None
    world.leader.append(0)
    # Not a second later: it has registered.
    world.fetchers.registered((LEADER,))
    world.run()
    assert world.is_same()
    assert len(world.leader.connections) == 2


def test_damaged_batches_are_refused_and_fetched_again(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    world.leader.append(0, 2)
    sound = world.leader.said

    def damaged(asked: FetchPartition) -> FetchedPartition | None:
        fetched = sound(asked)
        if fetched is None or not fetched.records:
            return fetched
        records = bytearray(fetched.records)  # type: ignore[arg-type]
        records[-1] ^= 1
        return fetched._replace(records=bytes(records))

    world.leader.said = damaged  # type: ignore[method-assign]
    world.follow()
    world.run(3)
    assert world.partitions[0].log.log_end_offset == 0
    assert caplog.text.count("is refused and fetched again") == 1
    assert [each.flags for each in parse_damage(world.leader.requests[-1].damage)] == [REFUSED]
    world.leader.said = sound  # type: ignore[method-assign]
    world.run(1)
    assert world.is_same()
    assert world.leader.requests[-1].damage == b""
    assert "is copied from broker 2 again" not in caplog.text or caplog.text.count("again") >= 1


def test_a_full_disk_is_waited_for_and_a_broken_one_is_not(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.leader.append(0, 2)
    log = world.partitions[0].log
    append, problems = log.local.append_run, [KafkaStorageError("no room")] * 2

    def failing(*arguments: Any) -> Any:
        if problems:
            raise problems.pop()
        return append(*arguments)

    log.local.append_run = failing  # type: ignore[method-assign]
    world.follow()
    world.run(0.4)
    assert world.is_same()
    assert not world.failed

    def broken(*_: Any) -> Any:
        log.local.fail("bad disk")
        raise KafkaStorageError("bad disk")

    log.local.append_run = broken  # type: ignore[method-assign]
    world.leader.append(0)
    world.run(0.4)
    assert world.failed == world.partitions
    assert world.partitions[0].storage_error is not None


def test_only_what_is_flushed_is_acknowledged_where_that_is_asked(make_world: Callable[..., World]) -> None:
    world = make_world(1, flush_before_ack="true")
    world.partitions[0].log.readiness.prepare()
    world.io.held = True
    world.leader.append(0, 1)
    world.follow()
    world.run()
    assert world.partitions[0].log.log_end_offset == 2
    world.leader.end_waits()
    world.run()
    asked = [one.fetch_offset for request in world.leader.requests for _, some in request.topics for one in some]
    assert asked == [0]
    world.io.run_all()
    world.run()
    asked = [one.fetch_offset for request in world.leader.requests for _, some in request.topics for one in some]
    assert asked == [0, 2]


def test_logs_that_get_their_first_records_with_one_answer_are_prepared_together(
    make_world: Callable[..., World],
) -> None:
    world = make_world(3)
    world.io.held = True
    for number in range(3):
        world.leader.append(number, 2)
    world.follow()
    world.run()
    # One for each log, and the first of them is waited for.
    assert len(world.io.work) == 4
    assert [partition.log.log_end_offset for partition in world.partitions] == [0, 0, 0]
    world.io.run_all()
    world.run()
    assert world.io.work == []
    assert all(world.is_same(number) for number in range(3))


def test_a_disk_that_cannot_sync_the_first_append_takes_its_partition_offline(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    world.fs.fail("sync", errno.EIO, path_part="/mine/t-0/partition.metadata")
    for number in range(2):
        world.leader.append(number, 2)
    world.follow()
    world.run()
    assert world.failed == [world.partitions[0]] and world.partitions[0].log.log_end_offset == 0
    assert world.is_same(1)


def test_what_a_start_has_lost_is_copied_again(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.leader.append(0, 4)
    log = world.partitions[0].log
    copy_at_once(log, contents(world.leader.logs[0])[: len(contents(world.leader.logs[0])) // 4])
    log._go_on_at_end(8, "the last segment has lost its end")
    assert (log.log_end_offset, log.damaged_ranges[0][0]) == (8, 2)
    world.follow()
    world.run()
    assert world.is_same()
    assert not log.is_damaged


def test_a_damaged_log_is_cut_only_when_the_leader_counts_on_nothing_of_it_and_has_it_all(
    make_world: Callable[..., World],
) -> None:
    def answered(world: World) -> None:
        for _ in range(3):
            world.run(5.0)
            world.leader.end_waits()
        world.run(5.0)

    world = make_world()
    world.leader.append(0, 4)
    world.follow()
    world.run()
    assert world.is_same()
    log = world.partitions[0].log
    world.leader.is_counting_nobody = False
    log.local.known_damage.add(2, 4)
    log.local.known_damage.tell()
    answered(world)
    assert (log.log_end_offset, log.damaged_ranges) == (8, ((2, 4),)), "the leader counts on it still"
    # It goes on meanwhile with what comes.
    world.leader.append(0)
    answered(world)
    assert log.log_end_offset == 10
    world.leader.is_counting_nobody = True
    world.leader.damaged = ((6, 8),)
    answered(world)
    assert (log.log_end_offset, log.damaged_ranges) == (10, ((2, 4),)), "what the leader lacks would be gone everywhere"
    world.leader.damaged = ((0, 2),)
    answered(world)
    assert world.is_same() and not log.is_damaged
    # Each request says that it is healed, in case that one before it is late.
    assert parse_damage(world.leader.requests[-1].damage)[0].ranges == ()


def test_nothing_is_asked_any_more_at_the_end(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    world.follow()
    world.run()
    count = len(world.leader.requests)
    replicas = BrokerId(ME), BrokerId(LEADER)
    state = PartitionState(replicas, BrokerId(ME), LeaderEpoch(6), replicas[:1], version=2)
    world.partitions[0].become_leader(state)
    world.run()
    # The leader is told with the next request, for which it is not called away from a wait.
    assert len(world.leader.requests) == count
    world.leader.end_waits()
    world.run()
    assert world.leader.requests[-1].forgotten_topics == ((ID, [0]),)
    world.partitions[1].resign(-1, 6, 2)
    world.run()
    assert world.connection.closed
    assert len(world.leader.requests) == count + 1


@pytest.mark.parametrize("seed", range(40 if SOAK else 12))
def test_random_schedules(make_world: Callable[..., World], seed: int) -> None:
    chance = random.Random(seed)
    world = make_world(4, segment_bytes=2000, **({"flush_before_ack": "true"} if seed % 3 == 0 else {}))
    leader = world.leader
    world.services.on_leader_log_start = lambda partition, offset: partition.log.advance_log_start(offset)
    # All elections are unclean.
    world.services.unclean_epoch_of = lambda _: leader.epoch
    world.follow()
    version = 1
    for _ in range(150):
        what = chance.random()
        number = chance.randrange(4)
        if what < 0.4:
            leader.append(number, chance.randrange(1, 5))
        elif what < 0.5:
            leader.high_watermarks[number] = leader.logs[number].log_end_offset
            leader.wake()
        elif what < 0.55:
            leader.end_waits()
        elif what < 0.6 and world.leader.connections:
            if not world.connection.closed:
                world.connection.lose()
        elif what < 0.65:
            leader.session_id = 99
        elif what < 0.7:
            leader.errors = {} if leader.errors else {number: chance.choice([1, 2, 3, 6, 56, 74, 75, 100, 103])}
        elif what < 0.75:
            leader.logs[number].advance_log_start(
                chance.randint(leader.logs[number].log_start_offset, leader.high_watermarks[number])
                if leader.high_watermarks[number] > leader.logs[number].log_start_offset
                else leader.logs[number].log_start_offset
            )
            leader.wake()
        elif what < 0.78 and not any(partition.is_truncating for partition in world.partitions):
            # Another leader, which has lost a part of what it had.
            leader.epoch += 1
            version += 1
            for log in leader.logs:
                truncate_to(log, max(log.log_end_offset - chance.randrange(6), log.log_start_offset))
                log.assign_leader_epoch(leader.epoch)
            leader.high_watermarks = [
                min(each, log.log_end_offset) for each, log in zip(leader.high_watermarks, leader.logs, strict=True)
            ]
            world.follow(leader.epoch, version)
            leader.end_waits()
        world.run(chance.choice([0.0, 0.001, 0.02]))
        for partition, log in zip(world.partitions, leader.logs, strict=True):
            assert partition.high_watermark <= partition.log.log_end_offset or partition.is_truncating
            assert log.failure is None
    leader.errors = {}
    leader.high_watermarks = [log.log_end_offset for log in leader.logs]
    leader.end_waits()
    for _ in range(30):
        leader.wake()
        world.run(0.5)
    for number, partition in enumerate(world.partitions):
        start = max(partition.log_start_offset, leader.logs[number].log_start_offset)
        assert partition.log.log_end_offset == leader.logs[number].log_end_offset
        assert partition.high_watermark == leader.high_watermarks[number]
        assert [each for each in kernel.scan_headers(contents(partition.log)) if each.last_offset >= start] == [
            each for each in kernel.scan_headers(contents(leader.logs[number])) if each.last_offset >= start
        ]


# Answers that take several turns


def test_others_have_their_turn_while_much_is_appended(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_batches, "_RUN_BATCHES", 1)
    # A slice is over as soon as it may be.
    monkeypatch.setattr(slices.run_slice, "__defaults__", (0.0,))
    world = make_world()
    world.leader.append(0, 3)
    ends: list[int] = []

    def look() -> None:
        ends.append(world.partitions[0].log.log_end_offset)
        if ends[-1] < 6:
            world.loop.call_soon(look)

    world.loop.call_soon(look)
    world.follow()
    world.run()
    assert world.is_same()
    assert {2, 4} <= set(ends)


def test_an_append_ends_with_the_role(make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the answer holds besides is another leader's, whose log this broker may have left behind by then."""
    monkeypatch.setattr(copied_batches, "_RUN_BATCHES", 1)
    monkeypatch.setattr(slices.run_slice, "__defaults__", (0.0,))
    world = make_world()
    partition = world.partitions[0]
    world.leader.append(0, 3)
    led: list[int] = []

    def lead_at_once() -> None:
        if partition.log.log_end_offset == 0:
            world.loop.call_soon(lead_at_once)
            return
        partition.become_leader(partition_state(ME, epoch=6, version=2))
        led.append(partition.log.log_end_offset)
        batch = make_batch([b"led"])
        partition.check_leader().append_own(batch)

    world.loop.call_soon(lead_at_once)
    world.follow()
    world.run()
    assert led == [2]
    assert partition.log.log_end_offset == 3
    assert partition.log.epochs.entries == [(5, 0), (6, 2)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_thread_appends_a_large_batch(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The answer stays where it is until then, also when the connection breaks meanwhile."""
    monkeypatch.setattr(copying, "INLINE_BATCH_BYTES", 10)
    monkeypatch.setattr(copied_batches, "_RUN_BYTES", 1)
    world = make_world()
    world.io.held = True
    world.leader.append(0, 2)
    world.follow()
    world.run()
    assert world.partitions[0].log.log_end_offset == 0
    assert world.connection.held == 1
    if is_lost:
        world.connection.lose()
    world.io.held = False
    world.io.run_all()
    world.run(1.0)
    assert world.is_same()
    world.leader.append(0)
    world.run(1.0)
    assert world.is_same()
