"""What a broker reports of its logs, over a real log manager in memory; the cluster is what a test publishes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from spark_kafkalite.broker.replication.log_reports import LogReports
from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState, TopicState, diff
from spark_kafkalite.registry.report_nodes import (
    EMPTY,
    FULL_NODE_BYTES,
    MAX_NODE_BYTES,
    MISSING,
    OFFLINE,
    LogReport,
    decode_node,
)
from spark_kafkalite.registry.store import (
    Children,
    ConnectionLoss,
    Create,
    Delete,
    Multi,
    NodeExists,
    NoNode,
    Request,
    SessionExpired,
    SetData,
    Store,
    check_multi,
)
from spark_kafkalite.slices import Slices, run_whole
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop
from tests.seeds import SEED
from tests.unit.broker.replication.test_replicas import ME, OTHER, World
from tests.unit.slice_clock import SliceClock
from tests.unit.turns import Turns

A = TopicPartition("a", 0)


class Nodes(Store):
    """A registry as far as reports need it. ``fault`` is what the next multi meets when it has been done."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, bytes] = {}
        self.writes = 0
        self.fault: Exception | None = None

    session_id = 1
    session_timeout_ms = 6000

    def close(self) -> None: ...

    def ask(self, request: Request) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(self._do(request))
        except Exception as error:
            done.set_exception(error)
        return done

    def _do(self, request: Request) -> Any:
        match request:
            case Children():
                return sorted(path.rpartition("/")[2] for path in self.data)
            case Multi(operations):
                check_multi(operations)
                after = dict(self.data)
                for each in operations:
                    self._change(after, each)
                self.data = after
                self.writes += 1
                fault, self.fault = self.fault, None
                if fault is not None:
                    raise fault
                return [None] * len(operations)
            case Delete():
                self._change(self.data, request)
        return None

    @staticmethod
    def _change(nodes: dict[str, bytes], operation: Any) -> None:
        path = operation.path
        if isinstance(operation, Create) == (path in nodes):
            raise (NodeExists if path in nodes else NoNode)(path, path)
        if isinstance(operation, Delete):
            del nodes[path]
        else:
            assert isinstance(operation, (Create, SetData))
            assert not isinstance(operation, Create) or operation.ephemeral
            nodes[path] = operation.data

    def reported(self) -> dict[TopicPartition, LogReport]:
        found: dict[TopicPartition, LogReport] = {}
        for path, data in self.data.items():
            assert len(data) <= MAX_NODE_BYTES
            node = run_whole(decode_node(path.rpartition("/")[2], data))
            assert (node.broker_id, node.incarnation) == (ME, 1)
            assert not found.keys() & node.logs.keys()
            found.update(node.logs)
        return found


class Reporting(World):
    def __init__(self, loop: ManualLoop, clock: ManualClock) -> None:
        super().__init__(loop, clock)
        self.store: Nodes | None = Nodes()
        # Every look at the time takes a slice.
        self.slices = Slices(loop, SliceClock(1.0))
        self.reports = LogReports(loop, self.slices, self.view, self.replicas, ME, self.incarnation, self.session)
        self.reports.start()

    def session(self) -> Store:
        if self.store is None:
            raise SessionExpired("no session")
        return self.store

    def register(self) -> None:
        super().register()
        assert self.me is not None
        brokers = {ME: self.me, OTHER: BrokerInfo(OTHER, "h", 1, None, BrokerEpoch(1), incarnation=Incarnation(9))}
        old = self.view.state
        new = replace(old, brokers=brokers)
        self.view.publish(new, diff(old, new))

    def leaderless(self, *, version: int = 1, isr: tuple[int, ...] = (ME, OTHER), created: int = 5) -> PartitionState:
        """Nobody's log is proven: the state names incarnations that are gone."""
        return PartitionState(
            (ME, OTHER),
            leader_epoch=LeaderEpoch(version),
            isr=tuple(map(BrokerId, isr)),
            version=version,
            modified_zxid=100 + version,
            incarnations={BrokerId(each): Incarnation(77) for each in isr},
            created_zxid=created,
        )

    def pass_time(self) -> None:
        self.settle()
        self.loop.run_for(5)

    def reported(self) -> dict[TopicPartition, LogReport]:
        assert self.store is not None
        return self.store.reported()


@pytest.fixture
def world() -> Iterator[Reporting]:
    clock = ManualClock()
    loop = ManualLoop(clock)
    made = Reporting(loop, clock)
    yield made
    loop.run_until_complete(made.reports.stop())
    loop.close()


def led_once(world: Reporting, records: int) -> None:
    """Have this broker lead t-0, write, and be without a leader."""
    world.register()
    world.create("a")
    world.settle()
    if records:
        world.append(A, records)
    world.change(A, world.leaderless())
    world.pass_time()


def test_nothing_is_written_while_partitions_have_leaders(world: Reporting) -> None:
    world.register()
    world.create("a", 50)
    world.pass_time()
    world.change(A, world.state(OTHER, epoch=1, version=1, replicas=(OTHER, ME)))
    world.pass_time()
    assert world.store is not None and world.store.writes == 0


def test_a_log_is_reported_for_the_state_that_has_no_leader_until_there_is_one(world: Reporting) -> None:
    led_once(world, 3)
    assert world.reported() == {A: LogReport(5, 1, 0, 3, ((0, 0),), (), "", 3, 0, leader_epoch=1)}
    world.change(A, world.leaderless(version=2))
    world.pass_time()
    assert world.reported() == {A: LogReport(5, 2, 0, 3, ((0, 0),), (), "", 3, 0, leader_epoch=2)}
    world.change(A, world.state(OTHER, epoch=3, version=3, replicas=(OTHER, ME)))
    world.pass_time()
    assert world.store is not None and world.store.data == {}


def test_a_log_of_which_everything_was_deleted_is_reported_with_its_start(world: Reporting) -> None:
    led_once(world, 3)
    partition = world.replicas.find(A)
    assert partition is not None
    log = partition.log
    log.advance_log_start(3)
    # What a start of the broker does with an epoch that has no record.
    log.epochs.drop_empty(3)
    world.change(A, world.leaderless(version=2))
    world.pass_time()
    (report,) = world.reported().values()
    assert report == LogReport(5, 2, -1, 3, high_watermark=3, log_start_offset=3, leader_epoch=2)
    assert report.is_emptied


def test_an_empty_log_is_gone_where_the_state_names_the_broker(world: Reporting) -> None:
    led_once(world, 0)
    assert world.reported() == {A: LogReport(5, 1, gone=EMPTY, leader_epoch=1)}
    world.change(A, world.leaderless(version=2, isr=(OTHER,)))
    world.pass_time()
    assert world.reported() == {A: LogReport(5, 2, log_start_offset=0, leader_epoch=2)}
    # It is named by the ISR alone, and no replica any more: it has set its log aside.
    world.change(A, replace(world.leaderless(version=3), replicas=(OTHER,)))
    world.pass_time()
    assert world.reported() == {A: LogReport(5, 3, gone=MISSING)}


def test_a_state_that_names_nobody_is_reported_with_the_highest_epoch_that_the_broker_knows(world: Reporting) -> None:
    world.register()
    world.create("a")
    world.change(A, world.state(epoch=3, version=1, replicas=(ME, OTHER)))
    world.settle()
    world.append(A, 3)
    # An epoch under which nothing is appended.
    world.change(A, world.state(epoch=7, version=2, replicas=(ME, OTHER)))
    world.settle()
    world.change(A, PartitionState.without_node((ME, OTHER), 90))
    world.pass_time()
    assert world.reported() == {}
    made = replace(world.leaderless(isr=()), version=0, leader_epoch=LeaderEpoch(0), created_zxid=95)
    assert made.names_nobody
    world.change(A, made)
    world.pass_time()
    assert world.reported() == {A: LogReport(95, 0, 3, 3, ((3, 0),), (), "", 0, 0, leader_epoch=7)}


def test_where_the_topics_node_names_no_id_the_one_of_the_log_is_reported(world: Reporting) -> None:
    world.register()
    world.logs.create(A, b"a" * 16)
    state = replace(world.state(OTHER, epoch=3, version=3, replicas=(OTHER, ME)), created_zxid=5)
    world.publish({"a": TopicState(bytes(16), {0: state}, {})})
    world.pass_time()
    assert world.reported() == {A: LogReport(5, 3, gone=OFFLINE, topic_id="YWFhYWFhYWFhYWFhYWFhYQ")}
    world.publish({"a": TopicState(b"a" * 16, {0: state}, {})})
    world.pass_time()
    assert world.reported() == {}


def test_nobody_reports_where_somebody_can_lead_by_itself(world: Reporting) -> None:
    world.register()
    world.create("a")
    world.settle()
    proven = {ME: Incarnation(77), OTHER: Incarnation(9)}
    world.change(A, replace(world.leaderless(), incarnations=proven))
    world.pass_time()
    assert world.reported() == {}


def test_a_new_session_has_the_reports_written_again(world: Reporting) -> None:
    led_once(world, 3)
    before = world.reported()
    assert world.store is not None
    names = set(world.store.data)
    world.store = None
    world.lose_registration()
    world.pass_time()
    world.store = Nodes()
    # Of the last session, which the registry has not ended yet.
    world.store.data["/kafkalite/logs/1-7"] = b"{}"
    world.register()
    world.pass_time()
    assert world.reported() == before
    # A version of a name is of one text for ever.
    assert not names & set(world.store.data)
    names |= set(world.store.data)
    world.change(A, world.state(OTHER, epoch=3, version=3, replicas=(OTHER, ME)))
    world.pass_time()
    assert world.store.data == {}
    world.change(A, world.leaderless(version=4))
    world.pass_time()
    assert world.store.data and not names & set(world.store.data)


def test_writes_of_unknown_outcome_are_repeated_until_they_are_known(world: Reporting) -> None:
    chance = random.Random(SEED)
    led_once(world, 3)
    version = 1
    for _ in range(20):
        version += 1
        assert world.store is not None
        world.store.fault = ConnectionLoss("the connection broke")
        if chance.random() < 0.3:
            world.change(A, world.state(OTHER, epoch=version, version=version, replicas=(OTHER, ME)))
            world.pass_time()
            assert world.reported() == {}
        else:
            world.change(A, world.leaderless(version=version))
            world.pass_time()
            assert world.reported()[A].version == version


def test_ten_thousand_partitions_are_reported_in_small_nodes_and_short_turns(world: Reporting) -> None:
    count, with_logs = 10_000, 100
    world.register()
    # Most of these logs are on another broker: the ISR names this one all the same.
    elsewhere = replace(world.leaderless(), replicas=(OTHER,))
    states = {number: world.leaderless() if number < with_logs else elsewhere for number in range(count)}
    topic = TopicState(b"a" * 16, states, {})
    world.publish({"a": topic})
    world.settle()
    with Turns(world.loop) as turns:
        world.loop.run_for(5)
    assert len(world.reported()) == count
    # A look at fifty logs, or what one write takes: about 1,500 calls.
    assert turns.most_calls < 5_000
    assert world.store is not None
    assert max(map(len, world.store.data.values())) <= FULL_NODE_BYTES + 200
    assert world.store.writes <= 10
