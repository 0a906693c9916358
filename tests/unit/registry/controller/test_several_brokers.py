"""Controllers of several brokers over one registry that loses sessions and answers: elections, guards, and the role.

Brokers are registrations here, with watchers and controllers of their own.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.controller.controller import Controller, Extension, TopicSpec
from spark_kafkalite.registry.controller.election import needs_election
from spark_kafkalite.registry.store import (
    Children,
    ConnectionLoss,
    Exists,
    Get,
    Multi,
    RegistryError,
    Request,
    Store,
    answer,
)
from spark_kafkalite.registry.znodes import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.lab.fake_registry import FakeRegistry, FakeStore, Fault, lose_answer
from tests.seeds import SEED, SOAK
from tests.unit.registry.virtual_time import follow, run

# In virtual time.
TIMEOUT_S = 20


def _reads(operation: Callable[[], Future[Any]]) -> bool:
    """Whether it is a read, which a watcher repeats when it is told that the connection is back, and only then."""
    assert isinstance(operation, partial)
    return isinstance(operation.args[0], (Get, Exists, Children))


def not_sent(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
    """The connection breaks before the operation is sent. Nobody is told that it is back."""
    if _reads(operation):
        return lose_answer(store, operation)
    lost: Future[Any] = Future()
    lost.set_exception(ConnectionLoss("the connection broke"))
    return lost


def lost_silently(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
    """The operation is done, its answer lost. Nobody is told that the connection is back."""
    if _reads(operation):
        return lose_answer(store, operation)
    lost: Future[Any] = Future()
    operation().add_done_callback(lambda _: lost.set_exception(ConnectionLoss("the connection broke")))
    return lost


class Broker:
    """One run of a broker in one session."""

    def __init__(self, cluster: Cluster, registered: BrokerRegistration, store: Store) -> None:
        self.registration = registered
        self.cluster = cluster
        self.store = store
        self.view = ClusterView()
        self.watcher = ClusterWatcher(store, self.view)
        self.controller = Controller(
            store,
            self.watcher,
            registered.broker_id,
            unclean_election=lambda _: cluster.allows_unclean,
            recovery=lambda _: cluster.recovers,
            min_insync=lambda _: cluster.min_insync,
        )

    @property
    def state(self) -> ClusterState:
        return self.view.state

    def partition(self, name: str = "t", number: int = 0) -> PartitionState:
        return self.state.topics[name].partitions[number]

    async def until(self, condition: Callable[[ClusterState], bool]) -> ClusterState:
        return await self.view.wait_for(condition, TIMEOUT_S)

    async def until_led(self, leader: int, name: str = "t", number: int = 0) -> PartitionState:
        await self.until(lambda state: name in state.topics and self.partition(name, number).leader == leader)
        return self.partition(name, number)

    async def join(self) -> None:
        await registration.register_broker(self.store, self.registration)
        await self.watcher.start(await registration.cluster_id(self.store))
        await self.watcher.caught_up(TIMEOUT_S)
        await self.controller.start()

    async def end(self) -> None:
        await self.controller.close()
        self.watcher.close()

    def expire(self) -> None:
        self.cluster.registry.registry.expire(self.store.session_id).result()


class Cluster:
    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        follow(registry.registry)
        self.observer = registry.connect()
        self.min_insync = 1
        self.allows_unclean = False
        self.recovers = False
        self.brokers: list[Broker] = []

    async def join(self, *numbers: int) -> list[Broker]:
        """Have new runs of brokers join, with empty disks."""
        runs = [
            BrokerRegistration(BrokerId(each), "h", 9000 + each, incarnation=znodes.new_incarnation())
            for each in numbers
        ]
        return [await self.join_again(run) for run in runs]

    async def join_again(self, registered: BrokerRegistration) -> Broker:
        """Have the same run join in another session."""
        broker = Broker(self, registered, self.registry.open_session().result())
        self.brokers.append(broker)
        await broker.join()
        return broker

    def write_state(self, name: str, number: int, change: Callable[[LeaderAndIsr], LeaderAndIsr]) -> None:
        path = znodes.state_path(name, number)
        data, stat = self.observer.get(path).result()
        self.observer.set(path, change(LeaderAndIsr.decode(name, number, data)).encode(), stat.version).result()

    def guards(self) -> list[str]:
        return self.observer.children(znodes.TOPIC_GUARDS).result()


@asynccontextmanager
async def a_cluster(directory: Path, *numbers: int) -> AsyncIterator[Cluster]:
    with FakeRegistry(directory) as registry:
        cluster = Cluster(registry)
        await registration.create_base_nodes(cluster.observer)
        try:
            await cluster.join(*numbers)
            for broker in cluster.brokers:
                await broker.until(lambda state: len(state.brokers) == len(numbers))
            yield cluster
        finally:
            for broker in cluster.brokers:
                await broker.end()


# Who leads ----------------------------------------------------------------------------------------------------------


def test_a_partition_that_is_given_back_is_led_by_the_next_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, *_ = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 3]})])
            await first.until_led(2)

            def given_back(old: LeaderAndIsr) -> LeaderAndIsr:
                return replace(
                    old,
                    leader=BrokerId(-1),
                    isr=(BrokerId(3),),
                    incarnations={BrokerId(3): old.incarnations[BrokerId(3)]},
                )

            cluster.write_state("t", 0, given_back)
            after = await first.until_led(3)
            assert (after.leader_epoch, after.isr) == (1, (3,))

    run(work())


def test_a_broker_that_is_no_replica_any_more_leads_no_longer(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, *_ = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 3]})])
            await first.until_led(2)
            path = znodes.topic_path("t")
            old = TopicAssignment.decode("t", cluster.observer.get(path).result()[0])
            cluster.observer.set(path, replace(old, partitions={0: (BrokerId(3),)}).encode()).result()
            assert (await first.until_led(3)).isr == (3,)

    run(work())


def test_who_leaves_too_small_an_isr_may_lead_when_the_others_cannot(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = cluster.brokers
            cluster.min_insync = 2
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 3]})])
            await first.until_led(2)
            second.expire()
            after = await first.until_led(3)
            assert (after.isr, after.eligible) == ((3,), {2: second.registration.incarnation})
            third.expire()
            await first.until_led(-1)
            # Broker 3 comes back on an empty disk, and leads nothing; broker 2 has all that was acknowledged to both.
            await cluster.join(3)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition().leader == -1
            await cluster.join_again(second.registration)
            after = await first.until_led(2)
            assert (after.isr, after.eligible) == ((2,), {})

    run(work())


def test_a_round_of_a_thousand_elections_is_sent_before_the_first_answer_comes(tmp_path: Path) -> None:
    class Held:
        """Holds the answers to elections back until ten multis of them have been sent."""

        def __init__(self, inner: Callable[[Request], Future[Any]]) -> None:
            self.inner = inner
            self.lock = threading.Lock()
            self.held: list[Callable[[], None]] = []
            self.sent = 0

        def __call__(self, request: Request) -> Future[Any]:
            future = self.inner(request)
            if not isinstance(request, Multi) or not any("/state" in each.path for each in request.operations):
                return future
            self.sent += 1
            passed_on: Future[Any] = Future()
            future.add_done_callback(lambda done: self.hold(lambda: passed_on.set_result(done.result())))
            return passed_on

        def hold(self, answer_it: Callable[[], None]) -> None:
            with self.lock:
                self.held.append(answer_it)
                if len(self.held) < 10:
                    return
                ready, self.held = self.held, []
            for each in ready:
                each()

    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2) as cluster:
            first, second = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment=dict.fromkeys(range(1000), (2, 1)))])
            await first.watcher.caught_up(TIMEOUT_S)
            held = Held(first.store.ask)
            first.store.ask = held  # type: ignore[method-assign]
            second.expire()
            await first.until(lambda state: all(p.leader == 1 for p in state.topics["t"].partitions.values()))
            assert held.sent == 10

    run(work())


# The role -----------------------------------------------------------------------------------------------------------


FAULTS: list[Fault] = [not_sent, lost_silently, lose_answer]
ROLE_PATHS = ["/controller", "/controller_epoch", "/admin/delete_topics", "/kafkalite/topics", "/state"]


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        # Each path with one of the faults; all pairs in the soak.
        pytest.param(path, fault, marks=() if (first + second) % len(FAULTS) == 0 else pytest.mark.soak)
        for first, path in enumerate(ROLE_PATHS)
        for second, fault in enumerate(FAULTS)
    ],
)
def test_a_controller_whose_connection_breaks_looks_at_everything_by_itself(
    tmp_path: Path, path: str, fault: Fault
) -> None:
    """Rule R13: whatever happens to its first attempts, and though nothing changes afterwards."""

    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment={0: [1, 2, 3]})])
            await third.until_led(1)
            # The next controller may be either; the role and its first steps meet the faults.
            for _ in range(3):
                cluster.registry.arm(path, fault)
            first.expire()
            after = await third.until_led(2)
            assert (after.leader_epoch, after.isr) == (1, (2, 3))
            assert sum(broker.controller.is_active for broker in (second, third)) == 1

    run(work())


def test_a_controller_that_dies_while_it_elects_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment=dict.fromkeys(range(300), (2, 1, 3)))])
            await third.until_led(2, number=299)

            def die(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
                done = operation()
                cluster.registry.registry.expire(first.store.session_id)
                return done

            cluster.registry.arm("/partitions/150/state", die)
            second.expire()
            await third.until(lambda state: all(p.leader == 3 for p in state.topics["t"].partitions.values()))
            assert third.controller.is_active

    run(work())


def test_brokers_that_come_back_one_after_the_other_find_everything_as_it_was(tmp_path: Path) -> None:
    """After an outage that has ended all sessions: the first one to register elects nobody in their stead."""

    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, *_ = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", 9, 3)])
            await first.until(lambda state: "t" in state.topics)
            before = first.state.topics["t"]
            assert {each.leader for each in before.partitions.values()} == {1, 2, 3}
            gone = list(cluster.brokers)
            for broker in gone:
                broker.watcher.close()
            for broker in gone:
                broker.expire()
            back = [await cluster.join_again(broker.registration) for broker in gone]
            for broker in back:
                await broker.until(lambda state: len(state.brokers) == 3)
                await broker.watcher.caught_up(TIMEOUT_S)
                assert broker.state.topics["t"] == before
            assert sum(broker.controller.is_active for broker in back) == 1

    run(work())


def test_who_does_not_come_back_is_not_waited_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment={0: [3, 2, 1]})])
            await first.until_led(3)
            for broker in (first, second, third):
                broker.watcher.close()
            for broker in (first, second, third):
                broker.expire()
            back = await cluster.join_again(first.registration)
            await cluster.join_again(second.registration)
            assert (await back.until_led(2)).isr == (2, 1)

    run(work())


# Guards and assignments -----------------------------------------------------------------------------------------------


def test_a_guard_stands_as_long_as_its_topic(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1) as cluster:
            (only,) = cluster.brokers
            made = await only.controller.create_topics([TopicSpec("t", 2), TopicSpec("u", 600)])
            ids = {name: found.topic_id for name, found in made.items() if isinstance(found, TopicAssignment)}
            assert cluster.guards() == sorted(map(znodes.uuid_text, ids.values()))
            await only.watcher.caught_up(TIMEOUT_S)
            assert await only.controller.delete_topics(["t", "u"]) == {"t": None, "u": None}
            assert cluster.guards() == []

    run(work())


def test_guards_of_topics_of_earlier_versions_are_made_and_left_over_ones_go(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2) as cluster:
            first, second = cluster.brokers
            await first.controller.create_topics([TopicSpec("t"), TopicSpec("u"), TopicSpec("torn")])
            await second.until(lambda state: len(state.topics) == 3)
            ids = {name: topic.topic_id for name, topic in second.state.topics.items()}
            await answer(cluster.observer.delete(znodes.topic_guard_path(ids["t"])))
            await answer(cluster.observer.create(znodes.topic_guard_path(znodes.new_uuid())))
            # A deletion that was begun, of a topic whose node nobody can read.
            await answer(cluster.observer.set(znodes.topic_path("torn"), b"{"))
            await answer(cluster.observer.create(znodes.deleted_topic_path("torn")))
            first.expire()
            expected = sorted(znodes.uuid_text(ids[name]) for name in ("t", "u"))
            async with asyncio.timeout(TIMEOUT_S):
                while cluster.guards() != expected:
                    await asyncio.sleep(0.01)

    run(work())


def test_no_partitions_are_added_to_a_topic_that_is_reassigned(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2) as cluster:
            first, _ = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment={0: [1]})])
            path = znodes.topic_path("t")
            old = TopicAssignment.decode("t", cluster.observer.get(path).result()[0])
            moving = replace(
                old,
                partitions={0: (BrokerId(2), BrokerId(1))},
                adding={0: (BrokerId(2),)},
                removing={0: (BrokerId(1),)},
            )
            cluster.observer.set(path, moving.encode()).result()
            await first.watcher.caught_up(TIMEOUT_S)
            extended = (await first.controller.extend_topics([Extension("t", 2)]))["t"]
            assert isinstance(extended, ReassignmentInProgress)
            assert TopicAssignment.decode("t", cluster.observer.get(path).result()[0]) == moving

    run(work())


# Elections that are asked for -----------------------------------------------------------------------------------------


def test_the_preferred_leader_is_elected_when_somebody_asks_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, _ = cluster.brokers
            assignment = {0: [2, 3], 1: [3, 2], 2: [2, 1]}
            await first.controller.create_topics([TopicSpec("t", assignment=assignment)])
            await first.until_led(2)
            second.expire()
            await first.until_led(3)
            await first.until_led(1, number=2)
            again = await cluster.join_again(second.registration)
            await first.until(lambda state: 2 in state.brokers)
            t0, t1, t2, t9 = (TopicPartition("t", each) for each in (0, 1, 2, 9))
            outcome = await first.controller.elect_leaders([t0, t1, t9])
            assert {each: type(error) for each, error in outcome.items()} == {
                t0: PreferredLeaderNotAvailable,
                t1: ElectionNotNeeded,
                t9: UnknownTopicOrPartition,
            }
            # It has caught up.
            two, mine = BrokerId(2), again.registration.incarnation
            for number in (0, 2):
                cluster.write_state(
                    "t",
                    number,
                    lambda old: replace(old, isr=(*old.isr, two), incarnations={**old.incarnations, two: mine}),
                )
            await first.watcher.caught_up(TIMEOUT_S)
            assert await first.controller.elect_leaders(None) == {t0: None, t2: None}
            assert (await first.until_led(2)).isr == (2, 3)
            assert (await first.until_led(2, number=2)).isr == (2, 1)

    run(work())


def test_an_unclean_election_is_held_for_those_that_have_no_leader(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = cluster.brokers
            await first.controller.create_topics(
                [TopicSpec("t", assignment={0: [2, 3], 1: [1, 2]}), TopicSpec("u", assignment={0: [3]})]
            )
            await first.until_led(2)
            second.expire()
            await first.until_led(3)
            third.expire()
            await first.until_led(-1)
            await first.until_led(-1, "u")
            await cluster.join(2)
            await first.until(lambda state: 2 in state.brokers)
            await first.watcher.caught_up(TIMEOUT_S)
            parts = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
            outcome = await first.controller.elect_leaders(parts, unclean=True)
            assert [type(outcome[each]) for each in parts] == [
                type(None),
                ElectionNotNeeded,
                EligibleLeadersNotAvailable,
            ]
            after = await first.until_led(2)
            assert (after.leader_epoch, after.isr) == (3, (2,))

    run(work())


# Random histories -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(12 if SOAK else 3))
def test_after_any_history_everything_that_can_be_led_is_led(tmp_path: Path, number: int) -> None:
    seed = SEED + number

    async def work() -> None:
        chosen = random.Random(seed)
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            cluster.min_insync = 2
            runs = {broker.registration.broker_id: broker for broker in cluster.brokers}
            names = [f"t{number}" for number in range(5)]

            async def change_topics() -> None:
                for broker in list(runs.values()):
                    if broker.controller.is_active:
                        specs = [TopicSpec(chosen.choice(names), chosen.randint(1, 3), chosen.randint(1, 3))]
                        try:
                            await broker.controller.create_topics(specs)
                            await broker.controller.delete_topics([chosen.choice(names)])
                        except (RegistryError, Exception) as error:
                            assert type(error).__name__ in ("NotController", "ConnectionLoss", "SessionExpired"), error

            async def lose_session(number: BrokerId) -> None:
                old = runs[number]
                old.expire()
                await old.end()
                registered = old.registration
                if chosen.random() < 0.5:
                    steady = (registered.incarnation, *registered.steady) if chosen.random() < 0.5 else ()
                    registered = replace(registered, incarnation=znodes.new_incarnation(), steady=steady)
                runs[number] = await cluster.join_again(registered)

            for _ in range(25):
                if chosen.random() < 0.5:
                    paths = ["/controller", "/state", "/admin/delete_topics", "/kafkalite/topics", "/brokers/topics"]
                    cluster.registry.arm(chosen.choice(paths), chosen.choice([not_sent, lost_silently, lose_answer]))
                if chosen.random() < 0.5:
                    await change_topics()
                else:
                    try:
                        await lose_session(BrokerId(chosen.randint(1, 3)))
                    except ConnectionLoss:
                        return  # a fault of the joining itself, which a membership would repeat
            with cluster.registry._lock:
                cluster.registry._faults.clear()
            async with asyncio.timeout(TIMEOUT_S):
                while problem := await still_wrong(cluster, list(runs.values())):
                    await asyncio.sleep(0.02)
            assert not problem

    async def still_wrong(cluster: Cluster, runs: list[Broker]) -> str:
        active = [broker for broker in runs if broker.controller.is_active]
        if len(active) != 1:
            return f"controllers: {active}"
        state = await active[0].watcher.caught_up(TIMEOUT_S)
        for name, topic in state.topics.items():
            for number, partition in topic.partitions.items():
                members = {**partition.eligible, **partition.incarnations}
                can_be = len(partition.replicas) == 1 or any(
                    each in state.brokers and state.brokers[each].has_log_of(named) for each, named in members.items()
                )
                if (can_be or not partition.has_state) and needs_election(partition, state.brokers):
                    return f"{name}-{number}: {partition}"
        guards = sorted(znodes.uuid_text(topic.topic_id) for topic in state.topics.values())
        return "" if set(guards) <= set(cluster.guards()) else f"guards {cluster.guards()} for {guards}"

    try:
        run(work())
    except BaseException as error:
        raise AssertionError(f"seed {seed}") from error
