"""Hosted partitions over a real log manager in memory; the cluster is what a test publishes."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from spark_kafkalite.broker.replication.follower import Follower, NoLeader
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.following import SetAside
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import KafkaStorageError, NotLeaderOrFollower, UnknownTopicOrPartition
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.fs import remove_tree
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.strays import StrayFate
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState, TopicState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.slices import Slices, run_whole
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from spark_kafkalite.wire.packed import FetchedPartition
from tests.lab.batches import make_batch, make_stored_batch
from tests.lab.manual_loop import ManualLoop, ManualThreads
from tests.lab.partition_states import live_broker
from tests.simulator.disk import Disk, ReadFault
from tests.unit.slice_clock import SliceClock

ME, OTHER = BrokerId(1), BrokerId(2)
NAMES = ("a", "b", "c")
DEFAULTS = TopicConfig.from_properties({})


class World:
    """A broker's partitions; each change of the cluster is one transaction with the next zxid."""

    def __init__(self, loop: ManualLoop, clock: ManualClock, fs: MemoryFs | None = None) -> None:
        self.loop = loop
        self.fs = fs or MemoryFs()
        self.threads = ManualThreads(loop)
        self.view = ClusterView()
        self.configs: dict[str, TopicConfig] = {}
        self.logs = LogManager(self.fs, ["/d0", "/d1"], clock, config_of=self.config_of)
        self.logs.open()
        self.logs.load()
        services = self.services = PartitionServices(
            ME,
            clock,
            self.threads,  # type: ignore[arg-type]
            Purgatory(loop),
            1 << 26,
        )
        self.replicas = Replicas(loop, self.logs, services, self.view, self.config_of, Slices(loop, SliceClock()))
        self.view.add_listener(self.replicas.cluster_changed)
        self.logs.on_offline.append(self.replicas.directory_failed)
        self.deleted_topic_ids: frozenset[str] = frozenset()
        self.zxid = 10
        self.incarnation = Incarnation(1)
        self.me: BrokerInfo | None = None

    def config_of(self, name: str) -> TopicConfig:
        return self.configs.get(name, DEFAULTS)

    def register(self) -> None:
        self.zxid += 1
        self.me = BrokerInfo(ME, "localhost", 9092, None, BrokerEpoch(self.zxid), incarnation=self.incarnation)
        self.replicas.set_registration(self.me)

    def lose_registration(self) -> None:
        self.me = None
        self.replicas.set_registration(None)

    def publish(self, topics: Mapping[str, TopicState]) -> None:
        old = self.view.state
        new = replace(old, topics=dict(topics), deleted_topic_ids=self.deleted_topic_ids)
        self.view.publish(new, diff(old, new))

    def state(
        self, leader: int = ME, epoch: int = 0, version: int = 0, *, replicas: tuple[int, ...] = (ME,)
    ) -> PartitionState:
        self.zxid += 1
        brokers = tuple(map(BrokerId, replicas))
        return PartitionState(
            brokers,
            BrokerId(leader),
            LeaderEpoch(epoch),
            brokers,
            version=version,
            modified_zxid=self.zxid,
            incarnations=dict.fromkeys(brokers, self.incarnation),
        )

    def create(self, name: str, count: int = 1, topic_id: bytes | None = None) -> None:
        topic = TopicState(topic_id or name.encode() * 16, {number: self.state() for number in range(count)}, {})
        self.publish({**self.view.state.topics, name: topic})

    def change(self, key: TopicPartition, state: PartitionState) -> None:
        topics = dict(self.view.state.topics)
        topic = topics[key.topic]
        topics[key.topic] = replace(topic, partitions={**topic.partitions, key.partition: state})
        self.publish(topics)

    def delete(self, name: str) -> None:
        """As the controller does."""
        deleted = znodes.uuid_text(self.view.state.topics[name].topic_id)
        self.deleted_topic_ids = frozenset({*self.deleted_topic_ids, deleted})
        self.vanish(name)

    def vanish(self, name: str) -> None:
        """As when somebody removes the topic's node by hand."""
        self.publish({each: topic for each, topic in self.view.state.topics.items() if each != name})

    def settle(self) -> None:
        """Let everything be done that has been asked for."""
        assert self.loop.run_until_complete(self.replicas.wait_until(lambda: self.replicas.is_idle, 60))

    def append(self, key: TopicPartition, count: int = 1) -> None:
        batch = make_batch([b"value"] * count, timestamp_ms=1)
        partition = self.replicas.get(key)
        partition.log.readiness.prepare()
        partition.check_leader().try_append(memoryview(batch), 9)


@pytest.fixture
def world() -> Iterator[World]:
    clock = ManualClock()
    loop = ManualLoop(clock)
    yield World(loop, clock)
    loop.close()


A = TopicPartition("a", 0)


def test_a_partition_is_led_when_the_registry_says_so_and_not_before(world: World) -> None:
    world.create("a", 2)
    world.settle()
    with pytest.raises(NotLeaderOrFollower):
        world.replicas.get(A)
    # The state names another run of the broker (rule R1), whose log may not be whole here.
    world.incarnation = Incarnation(2)
    world.register()
    world.settle()
    assert not world.replicas.get(A).is_leader
    assert not world.replicas.serves(A, b"a" * 16)
    world.change(A, world.state(epoch=1, version=1))
    world.settle()
    assert world.replicas.get(A).is_leader
    assert world.replicas.serves(A, b"a" * 16)
    assert not world.replicas.serves(A, b"b" * 16)
    assert not world.replicas.get(TopicPartition("a", 1)).is_leader
    with pytest.raises(UnknownTopicOrPartition):
        world.replicas.get(TopicPartition("a", 2))


def test_who_waits_for_a_leader_hears_of_it_before_all_the_work_is_done(world: World) -> None:
    world.register()

    async def scenario() -> tuple[bool, bool]:
        world.create("a", 3)
        return (
            await world.replicas.wait_until(lambda: world.replicas.leads_or_failed("a", 2), 5),
            await world.replicas.wait_until(lambda: world.replicas.leads_or_failed("a", 3), 5),
        )

    began_s = world.loop.time()
    assert world.loop.run_until_complete(scenario()) == (True, False)
    assert 5 <= world.loop.time() - began_s < 6


def test_threads_make_many_logs_while_the_loop_goes_on(world: World) -> None:
    world.register()
    world.threads.held = True
    world.create("a", 40)
    world.loop.run_for(1)
    assert not world.logs.logs
    assert not world.replicas.serves(A, b"a" * 16)
    with pytest.raises(NotLeaderOrFollower):
        world.replicas.get(A)
    world.threads.held = False
    world.threads.run_all()
    world.settle()
    keys = [TopicPartition("a", number) for number in range(40)]
    assert all(world.replicas.serves(key, b"a" * 16) for key in keys)
    # Both directories get the same number.
    assert Counter(world.logs.logs[key].disk.path for key in keys) == {"/d0": 20, "/d1": 20}


def test_logs_of_a_topic_that_is_deleted_while_threads_make_them_are_deleted(world: World) -> None:
    world.register()
    world.threads.held = True
    world.create("a", 40)
    world.loop.run_for(1)
    world.delete("a")
    world.create("a", 2, topic_id=b"n" * 16)
    world.threads.held = False
    world.threads.run_all()
    world.settle()
    assert world.logs.logs.keys() == {A, TopicPartition("a", 1)}
    assert all(log.topic_id == b"n" * 16 for log in world.logs.logs.values())
    names = [entry.name for path in ("/d0", "/d1") for entry in world.fs.entries(path)]
    assert not [name for name in names if name.endswith("-stray")]


def test_what_keeps_threads_from_making_logs_is_reported_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.register()
    world.fs.fail("create", errno.EACCES, path_part="a-7/", times=1000)
    world.create("a", 40)
    world.settle()
    served = {number for number in range(40) if world.replicas.serves(TopicPartition("a", number), b"a" * 16)}
    assert served == set(range(40)) - {7}
    assert [line for line in caplog.messages if "a-7 cannot be served" in line] == [
        record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
    ]


def test_a_topic_made_again_under_its_name_begins_with_empty_logs(world: World) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.append(A, 3)
    before = world.replicas.get(A)
    world.threads.held = True
    world.delete("a")
    # At once, whatever the disk takes.
    assert world.replicas.find(A) is None
    world.create("a", topic_id=b"n" * 16)
    world.loop.run_for(1)
    assert world.replicas.find(A) is None
    assert not world.replicas.is_idle
    world.threads.held = False
    world.threads.run_all()
    world.settle()
    after = world.replicas.get(A)
    assert after is not before
    assert (after.topic_id, after.log.log_end_offset, after.is_leader) == (b"n" * 16, 0, True)


def test_a_topic_that_cannot_be_read_any_more_keeps_its_log(world: World) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.append(A)
    old = world.view.state
    new = replace(old, topics={}, unreadable_topics=frozenset({"a"}))
    world.view.publish(new, diff(old, new))
    world.settle()
    assert world.replicas.find(A) is None
    assert world.logs.get(A) is not None


def kept_and_deleted(world: World) -> list[str]:
    """Return how the directories of logs end that are out of use."""
    names = [entry.name for directory in ("/d0", "/d1") for entry in world.fs.entries(directory)]
    return sorted(name.rpartition("-")[2] for name in names if "." in name and name.startswith("a-"))


@pytest.mark.parametrize("registered", [True, False])
def test_only_a_topic_that_the_controller_has_deleted_loses_its_logs(
    world: World, registered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world.register()
    world.create("a", 2)
    world.settle()
    world.append(A)
    if not registered:
        world.lose_registration()
        world.settle()
    # An older copy of the registry would say the same.
    world.vanish("a")
    world.settle()
    assert world.replicas.find(A) is None
    assert kept_and_deleted(world) == ["stray", "stray"]
    (line,) = [each.getMessage() for each in caplog.records if "set aside" in each.getMessage()]
    assert "2 logs are set aside" in line and "a-0 (kept in /d" in line and "a-1 (kept in /d" in line
    world.register()
    world.create("a", topic_id=b"n" * 16)
    world.settle()
    assert world.replicas.get(A).log.log_end_offset == 0
    if not registered:
        world.lose_registration()
        world.settle()
    world.delete("a")
    world.settle()
    assert kept_and_deleted(world) == ["delete", "stray", "stray"]


def test_a_log_is_used_again_when_the_topic_of_its_id_appears_again(world: World) -> None:
    world.register()
    world.create("a", 2)
    world.settle()
    world.append(A, 5)
    world.replicas.get(A).log.advance_log_start(2)
    world.vanish("a")
    world.settle()
    assert kept_and_deleted(world) == ["stray", "stray"]
    # Another topic of its name has nothing of it.
    world.create("a", topic_id=b"n" * 16)
    world.settle()
    assert world.replicas.get(A).log.log_end_offset == 0
    world.delete("a")
    world.create("a", 2)
    world.settle()
    log = world.replicas.get(A).log
    assert (log.topic_id, log.log_start_offset, log.log_end_offset) == (b"a" * 16, 2, 5)
    assert world.replicas.get(A).is_leader
    assert kept_and_deleted(world) == ["delete"]
    world.append(A)
    assert log.log_end_offset == 6


def test_what_an_operator_has_removed_begins_empty_when_its_topic_appears_again(world: World) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.append(A)
    world.vanish("a")
    world.settle()
    for directory in ("/d0", "/d1"):
        for entry in world.fs.entries(directory):
            if entry.name.endswith("-stray"):
                remove_tree(world.fs, f"{directory}/{entry.name}")
    world.create("a")
    world.settle()
    assert world.replicas.get(A).log.log_end_offset == 0


def test_a_log_that_cannot_be_taken_back_is_not_replaced_by_an_empty_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.append(A, 3)
    world.vanish("a")
    world.settle()

    def refuse(old: str, new: str) -> None:
        raise OSError(errno.EROFS, "read-only", old)

    with monkeypatch.context() as patched:
        patched.setattr(world.fs, "rename", refuse)
        world.create("a")
        world.settle()
        with pytest.raises(KafkaStorageError, match="read-only"):
            world.replicas.get(A)
        assert kept_and_deleted(world) == ["stray"]
    world.replicas.retry_failed()
    world.settle()
    assert world.replicas.get(A).log.log_end_offset == 3


@pytest.mark.parametrize(("deleted", "ends"), [((b"a", b"b"), ["delete", "stray"]), ((), ["stray", "stray"])])
def test_a_start_deletes_the_logs_of_topics_that_were_deleted_meanwhile(
    world: World, deleted: tuple[bytes, ...], ends: list[str]
) -> None:
    world.logs.create(A, b"a" * 16)
    # A log that names no topic id may be that of any topic.
    world.logs.create(TopicPartition("a", 1), None)
    world.deleted_topic_ids = frozenset(znodes.uuid_text(each * 16) for each in deleted)
    world.publish({})
    world.loop.run_until_complete(world.replicas.compare_logs())
    assert kept_and_deleted(world) == ends


def test_what_becomes_of_a_log_that_was_set_aside_depends_on_its_topic(world: World) -> None:
    world.create("here", topic_id=b"h" * 16)
    world.create("gone", topic_id=b"g" * 16)
    world.delete("gone")
    fate = world.replicas.fate_of_stray
    assert fate("gone-0.aa-stray", b"o" * 16) is StrayFate.KEPT
    assert fate("gone-0.aa-stray", b"g" * 16) is StrayFate.DELETED
    assert fate("here-0.aa-stray", b"h" * 16) is StrayFate.KEPT_FOR_A_TIME
    assert fate("here-0.aa-stray", b"o" * 16) is StrayFate.KEPT
    assert fate("here-0.aa-stray", None) is StrayFate.KEPT_FOR_A_TIME
    assert fate("gone-0.aa-stray", None) is StrayFate.KEPT
    # A reassignment has moved the partition away; without its word in the state the list was written by hand.
    key = TopicPartition("here", 0)
    away = replace(world.state(epoch=1, version=1), replicas=(OTHER,), leader=OTHER, isr=(OTHER,))
    world.change(key, away)
    assert fate("here-0.aa-stray", b"h" * 16) is StrayFate.KEPT_FOR_A_TIME
    world.change(key, replace(away, version=2, removed=(ME,)))
    assert fate("here-0.aa-stray", b"h" * 16) is StrayFate.DELETED
    assert fate("here-0.aa-stray", None) is StrayFate.KEPT_FOR_A_TIME
    world.change(key, replace(away, version=3, replicas=(OTHER, ME)))
    assert fate("here-0.aa-stray", b"h" * 16) is StrayFate.KEPT_FOR_A_TIME


def test_a_loss_that_is_acted_upon_late_does_not_end_what_is_led_under_the_next_registration(world: World) -> None:
    world.register()
    world.create("a")
    world.create("b")
    world.settle()
    world.threads.held = True
    # All that comes waits for a thread that removes the log of this one.
    world.delete("b")
    world.change(A, world.state(epoch=1, version=1))
    world.lose_registration()
    world.register()
    world.change(A, world.state(epoch=2, version=2))
    world.threads.held = False
    world.threads.run_all()
    world.settle()
    assert world.replicas.get(A).check_leader().epoch == 2


def test_a_log_of_an_older_topic_of_the_name_is_set_aside(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.logs.create(A, b"o" * 16)
    world.register()
    world.create("a")
    world.settle()
    assert world.replicas.get(A).log.topic_id == b"a" * 16
    assert "older topic of the same name" in caplog.text


@pytest.mark.parametrize("replicas", [(ME,), (ME, OTHER)])
def test_a_log_that_does_not_say_whose_it_is_goes_on_only_where_there_is_no_other(
    world: World, caplog: pytest.LogCaptureFixture, replicas: tuple[int, ...]
) -> None:
    log = world.logs.create(A, None)
    copy_at_once(log, make_stored_batch(0, 0, 3))
    world.register()
    world.publish({"a": TopicState(b"a" * 16, {0: world.state(replicas=replicas)}, {})})
    world.settle()
    partition = world.replicas.get(A)
    assert partition.log.topic_id == b"a" * 16
    assert partition.log.log_end_offset == (3 if replicas == (ME,) else 0)
    assert ("does not name the id of its topic" in caplog.text) == (len(replicas) > 1)


def test_the_last_log_stays_though_it_does_not_say_whose_it_is(world: World, caplog: pytest.LogCaptureFixture) -> None:
    copy_at_once(world.logs.create(A, None), make_stored_batch(0, 0, 3))
    other = replace(live_broker(OTHER), incarnation=world.incarnation)
    world.services.live_brokers = lambda: {OTHER: other}
    # Of an earlier run of this broker, which was the last in-sync replica.
    alone = replace(world.state(ME, 3, replicas=(ME, OTHER)), isr=(BrokerId(ME),))
    world.publish({"a": TopicState(b"a" * 16, {0: alone}, {})})
    world.loop.run_until_complete(world.replicas.compare_logs())
    world.register()
    world.settle()
    log = world.logs.get(A)
    assert log is not None and log.log_end_offset == 3
    with pytest.raises(KafkaStorageError, match="a-0 is offline: its log does not name the id of its topic") as refused:
        world.replicas.get(A)
    assert "write the two lines 'version: 0' and 'topic_id: YWFhYWFhYWFhYWFhYWFhYQ' into /d" in str(refused.value)
    # Once others go on without it, it is copied again.
    led = replace(alone, leader=BrokerId(OTHER), isr=(BrokerId(OTHER),), version=2)
    world.change(A, led)
    world.settle()
    assert isinstance(world.replicas.get(A).role, Follower) and world.replicas.get(A).log.log_end_offset == 0


@pytest.mark.parametrize("gone", ["no log", "no id", "another topic's"])
def test_where_a_log_is_gone_those_lead_that_have_it(world: World, gone: str, caplog: pytest.LogCaptureFixture) -> None:
    """However whole this broker's other logs are, the state means a log that is not there."""
    left: list[tuple[TopicPartition, bytes]] = []
    world.services.on_log_lost = lambda *lost: left.append(lost)
    if gone != "no log":
        log = world.logs.create(A, None if gone == "no id" else b"o" * 16)
        copy_at_once(log, make_stored_batch(0, 0, 3))
    named = world.state(replicas=(ME, OTHER))
    world.publish({"a": TopicState(b"a" * 16, {0: named}, {})})
    world.loop.run_until_complete(world.replicas.compare_logs())
    world.register()
    world.settle()
    assert set(left) == {(A, b"a" * 16)}
    with pytest.raises(KafkaStorageError, match="no log here any more: it is left to brokers 2"):
        world.replicas.get(A)
    assert world.logs.get(A) is None
    # An election that comes first changes nothing.
    world.change(A, replace(named, leader_epoch=LeaderEpoch(1), version=1))
    world.settle()
    assert world.logs.get(A) is None
    world.change(A, replace(named, leader=BrokerId(OTHER), isr=(BrokerId(OTHER),), version=2))
    world.settle()
    assert isinstance(world.replicas.get(A).role, Follower)
    assert not world.replicas.has_failed
    assert not world.replicas.has_lost(A, b"a" * 16)
    assert "a-0 has no log here any more: it is left to brokers 2, which had" in caplog.text
    assert "is lost" not in caplog.text


def test_a_log_that_cannot_be_read_is_set_aside_only_where_others_go_on_without_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    disk, clock = Disk(), ManualClock()
    before = LogManager(disk, ["/d0", "/d1"], clock, config_of=world.config_of)
    before.open()
    before.load()
    log = before.create(A, b"a" * 16)
    copy_at_once(log, make_stored_batch(0, 0, 3))
    path = log.segments.active.log_path
    before.abandon()
    disk.fail_reads(path, ReadFault(None, at=70))
    world = World(world.loop, clock, disk)
    other = replace(live_broker(OTHER), incarnation=world.incarnation)
    world.services.live_brokers = lambda: {OTHER: other} if is_live else {}
    is_live = True
    world.register()
    led = world.state(OTHER, 3, replicas=(ME, OTHER))
    without_me = replace(led, isr=(BrokerId(OTHER),), incarnations={BrokerId(OTHER): world.incarnation})
    may_be_needed = [
        led,
        replace(without_me, leader=BrokerId(-1)),
        replace(without_me, eligible={BrokerId(ME): world.incarnation}),
        # Its leader is another run, whose log is not known to be whole.
        replace(without_me, incarnations={BrokerId(OTHER): Incarnation(99)}),
    ]
    world.publish({"a": TopicState(b"a" * 16, {0: led}, {})})
    for version, state in enumerate(may_be_needed):
        world.change(A, replace(state, version=version))
        world.settle()
        assert world.logs.get(A) is None and world.replicas.has_failed
    is_live = False
    world.change(A, replace(without_me, version=10))
    world.settle()
    assert world.logs.get(A) is None and not [each for each in names(disk) if "-stray" in each]
    is_live = True
    world.replicas.retry_failed()
    world.settle()
    assert isinstance(world.replicas.get(A).role, Follower) and world.replicas.get(A).log.log_end_offset == 0
    (kept,) = [each for each in names(disk) if "-stray" in each]
    (line,) = [each.getMessage() for each in caplog.records if "its files are kept in" in each.getMessage()]
    assert kept in line and line.endswith("and it is copied again from its leader, broker 2")


def names(fs: MemoryFs) -> list[str]:
    return [each.name for path in ("/d0", "/d1") for each in fs.entries(path)]


def test_a_log_that_nobody_else_has_begins_anew(world: World, caplog: pytest.LogCaptureFixture) -> None:
    named = replace(world.state(replicas=(ME, OTHER)), isr=(BrokerId(ME),))
    world.publish({"a": TopicState(b"a" * 16, {0: replace(named, leader_epoch=LeaderEpoch(3))}, {})})
    world.loop.run_until_complete(world.replicas.compare_logs())
    world.register()
    world.settle()
    assert world.replicas.get(A).is_leader
    assert "whatever it held is lost" in caplog.text


def test_a_log_ahead_of_the_registry_is_not_led(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.logs.create(A, b"a" * 16).assign_leader_epoch(5, sync=False)
    world.register()
    world.create("a")
    world.settle()
    with pytest.raises(KafkaStorageError, match=r"leader epoch 5, the registry only 0.*registry rebuild"):
        world.replicas.get(A)
    assert world.replicas.leads_or_failed("a", 0)
    assert world.replicas.is_offline(A)
    world.change(A, world.state(epoch=6, version=1))
    world.settle()
    assert world.replicas.get(A).is_leader
    assert not world.replicas.has_failed


def test_a_log_ahead_of_the_registry_is_kept_and_not_served(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.logs.create(A, b"a" * 16).assign_leader_epoch(5, sync=False)
    world.create("a")
    world.change(A, world.state(version=1, replicas=(ME, OTHER)))
    world.register()
    world.settle()
    assert world.replicas.find(A) is None
    # The only copy of what was acknowledged may be there.
    assert "stop all brokers" in caplog.text
    assert "kafkalite cluster recover-registry" in caplog.text
    assert "move the log's directory /d" in caplog.text


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_a_leader_epoch_that_goes_back_changes_nothing(
    world: World, caplog: pytest.LogCaptureFixture, leader: BrokerId
) -> None:
    """Written by hand, it once had followers ask under an epoch that the leader refused, for ever."""
    world.register()
    world.create("a")
    world.change(A, world.state(leader, epoch=5, version=1, replicas=(ME, OTHER)))
    world.settle()
    role = world.replicas.get(A).role
    world.change(A, world.state(leader, epoch=2, version=2, replicas=(ME, OTHER)))
    world.settle()
    partition = world.replicas.get(A)
    assert (partition.role, partition.leader_epoch) == (role, 5)
    assert "/brokers/topics/a/partitions/0/state has only 2" in caplog.text
    assert "set its leader_epoch to 6" in caplog.text
    world.change(A, world.state(leader, epoch=6, version=3, replicas=(ME, OTHER)))
    world.settle()
    assert partition.leader_epoch == 6
    assert partition.role is not role


def test_a_leader_obeys_a_replica_list_that_changes_alone(world: World) -> None:
    world.register()
    world.create("a")
    first = world.state(epoch=1, version=4)
    world.change(A, first)
    world.settle()
    leader = world.replicas.get(A).leader
    assert leader is not None
    with pytest.raises(NotLeaderOrFollower, match="is not a follower"):
        leader.follower_fetched(OTHER, Incarnation(9), 0)
    world.change(A, replace(first, replicas=(ME, OTHER), replicas_zxid=99))
    world.settle()
    assert world.replicas.get(A).leader is leader
    leader.follower_fetched(OTHER, Incarnation(9), 0)
    world.change(A, replace(first, replicas_zxid=100))
    world.settle()
    with pytest.raises(NotLeaderOrFollower, match="is not a follower"):
        leader.follower_fetched(OTHER, Incarnation(9), 0)


def test_a_state_node_that_was_made_again_is_obeyed(world: World) -> None:
    world.register()
    world.create("a")
    world.change(A, replace(world.state(OTHER, epoch=5, version=40, replicas=(ME, OTHER)), created_zxid=11))
    world.settle()
    world.change(A, replace(world.state(epoch=6, version=0, replicas=(ME, OTHER)), created_zxid=12))
    world.settle()
    assert world.replicas.get(A).is_leader
    world.change(A, replace(world.state(OTHER, epoch=7, version=0, replicas=(ME, OTHER)), created_zxid=13))
    world.settle()
    role = world.replicas.get(A).role
    assert isinstance(role, Follower)
    assert (role.leader_id, role.epoch) == (OTHER, 7)


def test_a_leader_whose_state_node_is_gone_leads_no_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.register()
    world.create("a")
    first = replace(world.state(epoch=5, version=4, replicas=(ME, OTHER)), created_zxid=11)
    world.change(A, first)
    world.settle()
    world.append(A)
    world.change(A, PartitionState.without_node((ME, OTHER), 20))
    world.settle()
    with pytest.raises(NotLeaderOrFollower, match=r"registry node .* is gone"):
        world.replicas.get(A).check_leader()
    assert "a-0 is not led here any more, because registry node /brokers/topics/a/partitions/0/state is gone" in (
        caplog.text
    )
    # What the controller makes first says nothing of epochs, and names nobody.
    nobody = PartitionState((ME, OTHER), leader_epoch=LeaderEpoch(0), version=0, created_zxid=21)
    world.change(A, nobody)
    world.settle()
    partition = world.replicas.get(A)
    assert isinstance(partition.role, NoLeader)
    assert (partition.leader_epoch, partition.state_order) == (5, (21, 0))
    world.change(A, replace(world.state(OTHER, epoch=6, version=1, replicas=(ME, OTHER)), created_zxid=21))
    world.settle()
    assert isinstance(world.replicas.get(A).role, Follower)


def test_a_leader_that_sees_only_the_state_that_names_nobody_leads_no_more(world: World) -> None:
    world.register()
    world.create("a")
    world.change(A, replace(world.state(epoch=5, version=4, replicas=(ME, OTHER)), created_zxid=11))
    world.settle()
    world.change(A, PartitionState((ME, OTHER), leader_epoch=LeaderEpoch(0), version=0, created_zxid=21))
    world.settle()
    partition = world.replicas.get(A)
    assert (partition.is_leader, partition.leader_epoch) == (False, 5)


def test_a_log_is_opened_for_a_state_that_names_nobody_whatever_its_epochs(world: World) -> None:
    world.logs.create(A, b"a" * 16).assign_leader_epoch(5, sync=False)
    world.create("a")
    world.change(A, PartitionState((ME, OTHER), leader_epoch=LeaderEpoch(0), version=0, created_zxid=21))
    world.register()
    world.settle()
    partition = world.replicas.get(A)
    assert isinstance(partition.role, NoLeader)
    assert not world.replicas.has_failed


def test_a_log_is_kept_where_it_is_while_the_topics_node_names_no_id(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.logs.create(A, b"a" * 16)
    before = sorted(names(world.fs))
    world.create("a", topic_id=bytes(16))
    world.register()
    world.settle()
    with pytest.raises(KafkaStorageError, match="names no topic_id"):
        world.replicas.get(A)
    assert sorted(names(world.fs)) == before
    state = world.view.state.topics["a"].partitions
    world.publish({"a": TopicState(b"a" * 16, {0: replace(state[0], version=1)}, {})})
    world.settle()
    assert world.replicas.get(A).is_leader
    # Another session has read it without its id.
    world.publish({"a": TopicState(bytes(16), {0: replace(state[0], version=2)}, {})})
    world.settle()
    assert world.replicas.find(A) is None
    assert sorted(names(world.fs)) == before
    assert "its log is that of topic YWFhYWFhYWFhYWFhYWFhYQ" in caplog.text


@pytest.mark.parametrize(("leader", "other"), [(ME, OTHER), (OTHER, ME), (OTHER, BrokerId(3))])
def test_another_leader_under_the_same_epoch_is_not_obeyed(
    world: World, caplog: pytest.LogCaptureFixture, leader: BrokerId, other: BrokerId
) -> None:
    """Logs that two leaders have written under one epoch cannot be told apart."""
    world.register()
    world.create("a")
    replicas = (ME, OTHER, 3)
    world.change(A, replace(world.state(leader, epoch=5, version=4, replicas=replicas), created_zxid=11))
    world.settle()
    role = world.replicas.get(A).role
    world.change(A, replace(world.state(other, epoch=5, version=0, replicas=replicas), created_zxid=12))
    world.settle()
    assert world.replicas.get(A).role is role
    assert f"has another leader under it, broker {other} instead of {leader}" in caplog.text
    assert "set its leader_epoch to 6" in caplog.text


def test_who_was_no_replica_for_a_while_leaves_the_isr_before_it_makes_an_empty_log(world: World) -> None:
    """Its log has been set aside; an election would take the empty one for whole."""
    lost: list[TopicPartition] = []
    world.services.on_log_lost = lambda key, _: lost.append(key)
    world.register()
    world.create("a")
    state = world.state(OTHER, epoch=1, version=1, replicas=(ME, OTHER))
    world.change(A, state)
    world.settle()
    world.change(A, replace(state, replicas=(OTHER,), replicas_zxid=90))
    world.settle()
    # The state may come in a moment, and name this broker.
    assert world.logs.get(A) is not None
    world.loop.run_for(31)
    world.settle()
    assert world.logs.get(A) is None
    world.change(A, replace(state, replicas_zxid=91))
    world.settle()
    assert lost == [A]
    assert world.replicas.find(A) is None
    world.change(A, replace(state, isr=(OTHER,), version=2, replicas_zxid=91))
    world.settle()
    assert isinstance(world.replicas.get(A).role, Follower)


def follow(world: World) -> tuple[Partition, PartitionState]:
    """Follow with ten committed records; return the partition, and its state."""
    world.register()
    world.create("a")
    world.settle()
    world.append(A, 10)
    state = world.state(OTHER, epoch=1, version=1, replicas=(ME, OTHER))
    world.change(A, state)
    world.settle()
    partition = world.replicas.get(A)
    assert isinstance(partition.role, Follower) and partition.high_watermark == 10
    return partition, state


def follow_and_hold(world: World) -> tuple[Partition, PartitionState]:
    partition, state = follow(world)
    world.replicas.hold(partition)
    return partition, state


def check_that_an_empty_log_follows(world: World, former: Partition) -> None:
    partition = world.replicas.get(A)
    assert partition is not former and isinstance(partition.role, Follower)
    assert (partition.role.leader_id, partition.log.log_end_offset) == (OTHER, 0)


def test_a_log_that_differs_is_set_aside_and_an_empty_one_follows(world: World) -> None:
    partition, state = follow_and_hold(world)
    assert isinstance(partition.role, NoLeader)
    # Whatever is heard meanwhile, it does not follow with this log.
    world.change(A, replace(state, isr=(OTHER,), version=2))
    world.settle()
    assert isinstance(partition.role, NoLeader)
    world.replicas.release(partition, is_left=True)
    world.settle()
    assert kept_and_deleted(world) == ["stray"]
    check_that_an_empty_log_follows(world, partition)


def test_a_log_that_has_what_its_leader_lost_is_set_aside_unless_another_epoch_has_begun(world: World) -> None:
    partition, state = follow(world)
    world.change(A, replace(state, isr=(OTHER,), version=2))
    world.settle()
    assert isinstance(partition.role, Follower)
    for is_parted in (False, True):
        partition.role._rules.stopped = SetAside(5) if is_parted else None
        world.services.on_parted(partition)
        world.settle()
        assert kept_and_deleted(world) == (["stray"] if is_parted else [])
    check_that_an_empty_log_follows(world, partition)


def test_a_log_that_differs_stays_where_the_broker_stands_still(world: World) -> None:
    partition, _ = follow_and_hold(world)
    world.loop.create_task(world.replicas.stand_still("the registry is made again", 10))
    world.settle()
    world.replicas.release(partition, is_left=True)
    world.settle()
    assert world.replicas.get(A) is partition and kept_and_deleted(world) == []


def test_who_has_not_left_follows_on_with_its_log(world: World) -> None:
    partition, _ = follow_and_hold(world)
    world.replicas.release(partition, is_left=False)
    world.settle()
    assert world.replicas.get(A) is partition and isinstance(partition.role, Follower)
    assert kept_and_deleted(world) == [] and partition.log.log_end_offset == 10


def test_a_broker_that_is_added_for_the_log_it_has_set_aside_leaves_again(world: World) -> None:
    """A fetch that came late has told the leader what the old log had."""
    lacking: list[TopicPartition] = []
    world.services.on_lacking = lacking.append
    partition, state = follow_and_hold(world)
    world.change(A, replace(state, isr=(OTHER,), version=2))
    world.replicas.release(partition, is_left=True)
    world.settle()
    assert not lacking
    world.change(A, replace(state, version=3))
    world.settle()
    assert lacking == [A]
    # Neither does it lead with nothing.
    world.change(A, replace(state, leader=ME, leader_epoch=LeaderEpoch(2), version=4))
    world.settle()
    assert lacking == [A, A] and not world.replicas.get(A).is_leader
    # Another epoch of another leader has not heard of it.
    world.change(A, replace(state, leader_epoch=LeaderEpoch(3), version=5))
    world.settle()
    assert lacking == [A, A] and isinstance(world.replicas.get(A).role, Follower)


def test_a_log_that_could_not_be_made_is_made_when_it_is_tried_again(world: World) -> None:
    world.register()
    world.fs.fail("make_directories", errno.ENOSPC, path_part="a-0")
    world.create("a")
    world.settle()
    with pytest.raises(KafkaStorageError):
        world.replicas.get(A)
    assert world.replicas.has_failed
    world.replicas.retry_failed()
    world.settle()
    assert world.replicas.get(A).is_leader
    assert not world.replicas.has_failed


def test_a_directory_that_fails_takes_its_partitions_offline_and_no_other(world: World) -> None:
    world.register()
    world.create("a", 4)
    world.settle()
    failed = world.replicas.get(A)
    world.replicas.storage_failed(failed, OSError(5, "Input/output error"))
    for partition in world.replicas:
        lost = partition.log.disk.path == failed.log.disk.path
        assert partition.is_leader is not lost
        assert world.replicas.is_offline(partition.topic_partition) is lost
    assert {partition.is_leader for partition in world.replicas} == {True, False}


def test_changed_settings_reach_the_logs(world: World) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.configs["a"] = TopicConfig.from_properties({"max.message.bytes": "5000"})
    world.replicas.broker_config_changed()
    world.settle()
    assert world.replicas.get(A).log.config.max_message_bytes == 5000


def test_nothing_is_served_after_the_end(world: World) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.create("b")
    world.replicas.close()
    world.loop.run_for(1)
    with pytest.raises(NotLeaderOrFollower):
        world.replicas.get(A).check_leader()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_registry_says_in_whatever_order_partitions_are_what_it_says_last(
    world: World, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    Schedule(world, random.Random(seed)).run()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


class Schedule:
    """Random changes of the cluster and appends, and what must hold whenever all that was asked for is done."""

    def __init__(self, world: World, chosen: random.Random) -> None:
        self.world = world
        self.chosen = chosen
        self.made = 0
        # Records appended to each partition of a topic, by the topic's id.
        self.appended: dict[tuple[bytes, int], int] = {}

    def run(self) -> None:
        steps = (
            self.create, self.delete, self.make_again, self.elect_me, self.elect_me, self.elect_other, self.repeat,
            self.append, self.append, self.append, self.register, self.lose_registration, self.pass_time, self.hold,
        )  # fmt: skip
        self.world.register()
        for _ in range(120):
            self.chosen.choice(steps)()
            self.check_always()
            if self.chosen.random() < 0.3:
                self.settle_and_check()
        self.settle_and_check()

    def create(self) -> None:
        absent = [name for name in NAMES if name not in self.world.view.state.topics]
        if absent:
            self.made += 1
            self.world.create(self.chosen.choice(absent), self.chosen.randint(1, 3), b"%016d" % self.made)

    def delete(self) -> None:
        if self.world.view.state.topics:
            self.world.delete(self.chosen.choice(sorted(self.world.view.state.topics)))

    def make_again(self) -> None:
        """In one snapshot: nobody has seen that it was gone."""
        if self.world.view.state.topics:
            self.made += 1
            name = self.chosen.choice(sorted(self.world.view.state.topics))
            self.world.create(name, self.chosen.randint(1, 3), b"%016d" % self.made)

    def _change(self, leader: int, more_epochs: int) -> None:
        states = [
            (TopicPartition(name, number), state)
            for name, topic in sorted(self.world.view.state.topics.items())
            for number, state in topic.partitions.items()
        ]
        if states:
            key, state = self.chosen.choice(states)
            epoch = state.leader_epoch + more_epochs
            self.world.change(key, self.world.state(leader, epoch, state.version + 1, replicas=(ME, OTHER)))

    def elect_me(self) -> None:
        self._change(ME, 1)

    def elect_other(self) -> None:
        self._change(self.chosen.choice((OTHER, -1)), 1)

    def repeat(self) -> None:
        """A newer state that changes nothing, as another in-sync set would be."""
        states = [
            (TopicPartition(name, number), state)
            for name, topic in sorted(self.world.view.state.topics.items())
            for number, state in topic.partitions.items()
        ]
        if states:
            key, state = self.chosen.choice(states)
            self.world.zxid += 1
            self.world.change(key, replace(state, version=state.version + 1, modified_zxid=self.world.zxid))

    def append(self) -> None:
        led = [partition for partition in self.world.replicas if partition.is_leader]
        if led:
            partition = self.chosen.choice(sorted(led, key=lambda each: each.topic_partition))
            count = self.chosen.randint(1, 5)
            self.world.append(partition.topic_partition, count)
            owner = partition.topic_id, partition.topic_partition.partition
            self.appended[owner] = self.appended.get(owner, 0) + count

    def register(self) -> None:
        self.world.lose_registration()
        self.world.register()

    def lose_registration(self) -> None:
        self.world.lose_registration()

    def pass_time(self) -> None:
        self.world.loop.run_until_complete(asyncio.sleep(0))

    def hold(self) -> None:
        self.world.threads.held = not self.world.threads.held
        if not self.world.threads.held:
            self.world.threads.run_all()

    def check_always(self) -> None:
        """Nothing is served of a topic that is gone."""
        topics = self.world.view.state.topics
        for partition in self.world.replicas:
            topic = topics.get(partition.topic_partition.topic)
            assert topic is not None
            assert partition.topic_id == topic.topic_id

    def settle_and_check(self) -> None:
        world = self.world
        world.threads.held = False
        world.threads.run_all()
        world.settle()
        existing = {
            TopicPartition(name, number): (topic.topic_id, state)
            for name, topic in world.view.state.topics.items()
            for number, state in topic.partitions.items()
        }
        assert set(world.logs.logs) <= set(existing)
        for key, (topic_id, state) in existing.items():
            partition = world.replicas.find(key)
            if partition is None:
                assert world.me is None or not state.is_led_by(world.me)
                continue
            self._check_partition(partition, topic_id, state)

    def _check_partition(self, partition: Partition, topic_id: bytes, state: PartitionState) -> None:
        me = self.world.me
        number = partition.topic_partition.partition
        assert partition.topic_id == topic_id
        assert partition.log.log_end_offset == self.appended.get((topic_id, number), 0)
        if me is None:
            assert not partition.is_leader
        elif partition.is_leader:
            assert state.leader == ME
            assert partition.leader_epoch == state.leader_epoch
        if me is not None and state.is_led_by(me):
            assert partition.is_leader
            assert partition.log.epochs.latest == state.leader_epoch


def follow_and_cut(world: World, to: int = 2) -> Partition:
    """Lead, append, follow another broker, and hear from it that its log parts from this one; threads are held."""
    world.register()
    world.create("a")
    world.change(A, world.state(version=1, replicas=(ME, OTHER)))
    world.settle()
    for _ in range(5):
        world.append(A)
    world.change(A, world.state(OTHER, 1, 2, replicas=(ME, OTHER)))
    world.settle()
    partition = world.replicas.get(A)
    role = partition.role
    assert isinstance(role, Follower)
    asked = role.ask(world.loop.time())
    assert asked is not None
    world.threads.held = True
    run_whole(role.take(asked, FetchedPartition(0, 0, to, -1, 0, diverging_epoch=(0, to)), world.loop.time()))
    assert partition.is_truncating
    return partition


def test_a_partition_leads_when_the_truncation_of_its_log_has_ended(world: World) -> None:
    partition = follow_and_cut(world)
    world.change(A, world.state(ME, 2, 3, replicas=(ME, OTHER)))
    world.settle()
    assert not partition.is_leader
    world.threads.held = False
    world.threads.run_all()
    world.loop.run_for(0.1)
    world.settle()
    assert partition.is_leader
    assert partition.log.log_end_offset == 2
    assert world.logs.get(A) is partition.log


def test_a_broker_that_stands_still_leads_and_follows_nothing_whatever_is_heard(world: World) -> None:
    b = TopicPartition("b", 0)
    world.register()
    world.create("a")
    world.create("b")
    world.change(b, world.state(OTHER, 1, 1, replicas=(ME, OTHER)))
    world.settle()
    leader, follower = world.replicas.get(A), world.replicas.get(b)
    world.append(A, 5)
    assert leader.is_leader and isinstance(follower.role, Follower)
    standing = world.loop.create_task(world.replicas.stand_still("the registry is made again", 10))
    world.settle()
    assert standing.done() and standing.exception() is None
    world.register()
    world.change(A, world.state(epoch=1, version=1))
    world.change(b, world.state(epoch=2, version=2))
    world.settle()
    assert isinstance(leader.role, NoLeader) and isinstance(follower.role, NoLeader)
    with pytest.raises(NotLeaderOrFollower, match="the registry is made again"):
        leader.check_leader()
    assert leader.log.log_end_offset == 5


def test_a_broker_stands_still_when_no_log_is_being_cut_back(world: World) -> None:
    partition = follow_and_cut(world)
    standing = world.loop.create_task(world.replicas.stand_still("the registry is made again", 10))
    world.loop.run_for(1)
    assert not standing.done()
    world.threads.held = False
    world.threads.run_all()
    world.loop.run_for(1)
    assert standing.done() and standing.exception() is None
    assert isinstance(partition.role, NoLeader) and partition.log.log_end_offset == 2


def test_a_broker_whose_disk_does_not_answer_says_that_it_does_not_stand_still(world: World) -> None:
    follow_and_cut(world)
    standing = world.loop.create_task(world.replicas.stand_still("the registry is made again", 10))
    world.loop.run_for(11)
    assert isinstance(standing.exception(), KafkaStorageError)


def test_a_topic_deleted_amid_a_truncation_goes_when_that_has_ended(world: World) -> None:
    partition = follow_and_cut(world)
    world.delete("a")
    world.create("a", topic_id=b"n" * 16)
    world.loop.run_for(1)
    # The files are still those that threads work on.
    assert world.logs.get(A) is partition.log
    world.threads.held = False
    world.threads.run_all()
    world.loop.run_for(1)
    world.settle()
    assert world.replicas.get(A).topic_id == b"n" * 16
    assert world.replicas.get(A).log.log_end_offset == 0
    assert partition.storage_error is None
    assert not [path for path in world.logs.directories.online if path.offline]


@pytest.mark.parametrize("when", ["running", "stopped"])
def test_a_broker_that_is_no_replica_any_more_stops_and_sets_its_log_aside(
    world: World, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.register()
    world.create("a", 2)
    world.settle()
    world.append(A, 3)
    waiter = world.replicas.get(A).check_leader()
    if when == "stopped":
        world.lose_registration()
        world.settle()
    world.change(A, world.state(OTHER, 1, 1, replicas=(OTHER,)))
    if when == "stopped":
        world.register()
    world.settle()
    assert waiter.end_reason is not None
    assert world.replicas.find(A) is None
    assert world.logs.get(A) is None
    names = [entry.name for path in ("/d0", "/d1") for entry in world.fs.entries(path)]
    assert [name for name in names if name.startswith("a-0") and name.endswith("-stray")]
    assert "this broker is no replica of it any more" in caplog.text
    with pytest.raises(NotLeaderOrFollower):
        world.replicas.get(A)
    assert world.replicas.get(TopicPartition("a", 1)).is_leader


def test_a_state_of_another_run_is_followed_by_nobody(world: World) -> None:
    world.register()
    world.create("a")
    world.settle()
    world.incarnation = Incarnation(2)
    world.change(A, world.state(version=1, replicas=(ME, OTHER)))
    world.settle()
    assert isinstance(world.replicas.get(A).role, NoLeader)


def test_only_high_watermarks_that_others_have_a_part_in_are_noted_often(world: World) -> None:
    world.register()
    world.create("a", 3)
    world.change(TopicPartition("a", 1), world.state(version=1, replicas=(ME, OTHER)))
    world.change(TopicPartition("a", 2), world.state(OTHER, 1, 1, replicas=(ME, OTHER)))
    world.settle()
    assert sorted(key.partition for key in world.replicas.high_watermarks(replicated=True)) == [1, 2]
    assert len(world.replicas.high_watermarks()) == 3
    marks = {TopicPartition("a", 1): 4, TopicPartition("b", 7): 9}
    job = world.logs.checkpoints.start_high_watermarks(marks)
    job.run()
    world.logs.finish_checkpoint(job)
    assert world.logs.high_watermark(TopicPartition("a", 1)) == 4
    text = b"".join(
        world.fs.open(f"{path}/replication-offset-checkpoint").pread(999, 0)
        for path in ("/d0", "/d1")
        if world.fs.exists(f"{path}/replication-offset-checkpoint")
    )
    assert b"a 1 4" in text
    assert b"b 7" not in text


@pytest.mark.parametrize("first", ["list", "state"])
def test_a_log_that_has_moved_away_is_deleted_whichever_of_the_two_nodes_comes_first(world: World, first: str) -> None:
    world.register()
    world.create("a")
    state = replace(world.state(OTHER, epoch=1, version=1, replicas=(ME, OTHER)), replicas_zxid=80, modified_zxid=80)
    world.change(A, state)
    world.settle()
    directory = world.logs.get(A).directory  # type: ignore[union-attr]
    after = replace(state, replicas=(OTHER,), version=2, isr=(OTHER,), modified_zxid=90, removed=(ME,))
    if first == "list":
        world.change(A, replace(state, replicas=(OTHER,), replicas_zxid=90))
    else:
        world.change(A, replace(after, listed=(ME, OTHER), removing=(ME,)))
    world.settle()
    # A busy host hears of the other node late.
    world.loop.run_for(10)
    assert world.replicas.find(A) is None and world.fs.exists(directory)
    world.change(A, replace(after, replicas_zxid=90))
    world.settle()
    assert world.logs.get(A) is None
    names = [each.name for each in world.fs.entries("/d0")] + [each.name for each in world.fs.entries("/d1")]
    assert [each.endswith("-delete") for each in names if each.startswith("a-0")] == [True]
