"""The watcher and the controller over a real embedded registry, with brokers that are only registrations."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.errors import (
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    KafkaError,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import BrokerId, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import deleted_topics, znodes
from spark_kafkalite.registry.cluster import registration
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.config_nodes import alter_config
from spark_kafkalite.registry.controller import controller
from spark_kafkalite.registry.controller.controller import Controller, Extension, TopicSpec
from spark_kafkalite.registry.report_nodes import MISSING, OFFLINE, LogReport, encode_log, encode_node, report_path
from spark_kafkalite.registry.store import ConnectionLoss, Delete, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.patience import wait_until_async
from tests.unit.registry.virtual_time import follow, run

# In virtual time. Nobody reports logs here, so that unclean elections wait for ten seconds.
TIMEOUT_S = 30
UNCLEAN = "unclean.leader.election.enable"


@dataclass
class Member:
    """One broker's part in the cluster."""

    store: EmbeddedStore
    view: ClusterView
    watcher: ClusterWatcher
    controller: Controller
    seen: list[tuple[ClusterState, ClusterState]]
    registration: BrokerRegistration

    @property
    def state(self) -> ClusterState:
        return self.view.state

    def partition(self, name: str, number: int = 0) -> PartitionState:
        return self.state.topics[name].partitions[number]

    async def until(self, condition: Callable[[ClusterState], bool]) -> ClusterState:
        return await self.view.wait_for(condition, TIMEOUT_S)


def _next_run(broker_id: int, last: BrokerRegistration | None) -> BrokerRegistration:
    """Return another run of a broker; whoever gives the last one says that its logs are whole."""
    return BrokerRegistration(
        BrokerId(broker_id),
        "h",
        9000 + broker_id,
        incarnation=znodes.new_incarnation(),
        steady=(last.incarnation,) if last else (),
    )


async def join(registry: EmbeddedRegistry, broker_id: int, last: BrokerRegistration | None = None) -> Member:
    store = EmbeddedStore(registry)
    await registration.create_base_nodes(store)
    cluster_id = await registration.cluster_id(store)
    registered = _next_run(broker_id, last)
    await registration.register_broker(store, registered)
    seen: list[tuple[ClusterState, ClusterState]] = []
    view = ClusterView()
    view.add_listener(lambda old, new, _: seen.append((old, new)))
    watcher = ClusterWatcher(store, view)
    await watcher.start(cluster_id)
    controller = Controller(
        store,
        watcher,
        BrokerId(broker_id),
        unclean_election=lambda name: view.state.topics[name].config.get(UNCLEAN) == "true",
    )
    await controller.start()
    return Member(store, view, watcher, controller, seen, registered)


@asynccontextmanager
async def cluster(directory: Path, size: int) -> AsyncIterator[tuple[EmbeddedRegistry, list[Member]]]:
    registry = EmbeddedRegistry(directory)
    follow(registry)
    members = [await join(registry, broker_id) for broker_id in range(1, size + 1)]
    await members[0].until(lambda state: len(state.brokers) == size)
    try:
        yield registry, members
    finally:
        for member in members:
            await member.controller.close()
            member.watcher.close()
        registry.close()


def test_the_first_broker_is_the_controller_with_epoch_1(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            assert (first.controller.is_active, second.controller.is_active) == (True, False)
            assert (await answer(first.store.get("/controller_epoch")))[0] == b"1"
            await second.until(lambda state: state.controller_id == 1)
            with pytest.raises(NotController):
                await second.controller.create_topics([TopicSpec("t")])

    run(work())


def test_brokers_are_in_the_order_of_their_numbers_whichever_came_first(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        follow(registry)
        members = []
        for broker_id in (3, 1, 2):
            members.append(await join(registry, broker_id))
            await members[0].until(lambda state, last=broker_id: last in state.brokers)
        assert list(members[0].view.state.brokers) == [1, 2, 3]
        for member in members:
            await member.controller.close()
            member.watcher.close()
        registry.close()

    run(work())


def test_a_created_topic_has_its_nodes_and_leaders(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 3) as (_, (first, second, _)):
            created = await first.controller.create_topics([TopicSpec("t", 3, 2, config={"retention.ms": "-1"})])
            assignment = created["t"]
            assert isinstance(assignment, znodes.TopicAssignment)
            state = await second.until(lambda state: "t" in state.topics)
            topic = state.topics["t"]
            assert (topic.topic_id, topic.config) == (assignment.topic_id, {"retention.ms": "-1"})
            for number, partition in topic.partitions.items():
                assert partition.replicas == partition.isr == assignment.partitions[number]
                assert (partition.leader, partition.leader_epoch, partition.version) == (partition.replicas[0], 0, 0)
                assert partition.is_led_by(state.brokers[partition.leader])
            data, _ = await answer(first.store.get("/brokers/topics/t/partitions/0/state"))
            assert LeaderAndIsr.decode("t", 0, data).controller_epoch == 1

    run(work())


class Breaks:
    """Has syncs of a store fail as if the connection had broken, so many or all; ``count`` is how many have."""

    def __init__(self, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, at_most: float) -> None:
        self.count = 0
        self._at_most = at_most
        self._sync = store.sync
        monkeypatch.setattr(store, "sync", self._ask)

    def _ask(self) -> Future[None]:
        if self.count >= self._at_most:
            return self._sync()
        self.count += 1
        lost: Future[None] = Future()
        lost.set_exception(ConnectionLoss("the connection broke"))
        return lost


def test_a_connection_that_breaks_before_anything_is_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (member,)):
            breaks = Breaks(member.store, monkeypatch, at_most=4)
            created = await member.controller.create_topics([TopicSpec("t", 1, 1)])
            assert breaks.count == 4 and isinstance(created["t"], TopicAssignment)

    run(work())


def test_a_connection_that_stays_broken_for_a_session_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (member,)):
            monkeypatch.setattr(EmbeddedStore, "session_timeout_ms", 300)
            breaks = Breaks(member.store, monkeypatch, at_most=math.inf)
            with pytest.raises(ConnectionLoss):
                await member.controller.create_topics([TopicSpec("t", 1, 1)])
            assert 3 <= breaks.count < 15
            monkeypatch.undo()
            assert "t" not in (await member.watcher.caught_up()).topics

    run(work())


def test_what_the_registry_does_not_answer_in_time_is_not_done_later_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (member,)):
            answers, caught_up = asyncio.Event(), ClusterWatcher.caught_up

            async def late(watcher: ClusterWatcher, *arguments: Any) -> ClusterState:
                await answers.wait()
                return await caught_up(watcher, *arguments)

            monkeypatch.setattr(ClusterWatcher, "caught_up", late)
            asked = member.controller
            outcomes = await asyncio.gather(
                asked.create_topics([TopicSpec("a", 1)], timeout_s=0.05),
                asked.create_topics([TopicSpec("b", 1)], timeout_s=0.05),
                asked.delete_topics(["a"], timeout_s=0.05),
                asked.elect_leaders(None, timeout_s=0.05),
                return_exceptions=True,
            )
            assert {type(outcome) for outcome in outcomes} == {RequestTimedOut}
            assert all("nothing was changed" in str(outcome) for outcome in outcomes)
            answers.set()
            await asked.create_topics([TopicSpec("c", 1)], timeout_s=TIMEOUT_S)
            assert set((await member.watcher.caught_up(TIMEOUT_S)).topics) == {"c"}

    run(work())


def test_refused_topics_say_why_and_write_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            await only.controller.create_topics([TopicSpec("a.b")])
            before = registry.last_zxid
            refused = await only.controller.create_topics(
                [
                    TopicSpec("a.b"),
                    TopicSpec("a_b"),
                    TopicSpec("no/slash"),
                    TopicSpec("wide", 1, 2),
                    TopicSpec("none", 0),
                ]
            )
            assert {name: type(error) for name, error in refused.items()} == {
                "a.b": TopicAlreadyExists,
                "a_b": InvalidTopic,
                "no/slash": InvalidTopic,
                "wide": InvalidReplicationFactor,
                "none": InvalidPartitions,
            }
            checked = await only.controller.create_topics([TopicSpec("fine", 2)], validate_only=True)
            assert isinstance(checked["fine"], znodes.TopicAssignment)
            assert registry.last_zxid == before

    run(work())


def test_a_restarted_single_broker_leads_again_with_a_higher_epoch(tmp_path: Path) -> None:
    async def first_life() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("t", 3)])
            await only.watcher.caught_up(TIMEOUT_S)

    async def second_life() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            state = await only.until(
                lambda state: all(p.is_led_by(state.brokers[1]) for p in state.topics["t"].partitions.values())
            )
            for partition in state.topics["t"].partitions.values():
                assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 1, (1,))
                assert partition.controller_epoch == 2

    run(first_life())
    run(second_life())


def test_a_dead_leader_is_replaced_and_the_isr_of_the_dead_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 3) as (registry, (first, second, third)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 3]})])
            await first.until(lambda state: "t" in state.topics)
            registry.expire(second.store.session_id)
            await first.until(lambda state: state.topics["t"].partitions[0].leader == 3)
            assert (first.partition("t").leader_epoch, first.partition("t").isr) == (1, (3,))
            registry.expire(third.store.session_id)
            await first.until(lambda state: state.topics["t"].partitions[0].leader == -1)
            assert (first.partition("t").leader_epoch, first.partition("t").isr) == (2, (3,))
            # Broker 2 is not in the ISR: it must not lead, broker 3 must.
            back_2 = await join(registry, 2, second.registration)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition("t").leader == -1
            # Nor broker 3 on an empty disk.
            empty_3 = await join(registry, 3)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition("t").leader == -1
            registry.expire(empty_3.store.session_id)
            back_3 = await join(registry, 3, third.registration)
            await first.until(lambda state: state.topics["t"].partitions[0].leader == 3)
            assert first.partition("t").leader_epoch == 3
            assert first.partition("t").incarnations == {3: back_3.registration.incarnation}
            for member in (back_2, empty_3, back_3):
                await member.controller.close()
                member.watcher.close()

    run(work())


def test_the_next_broker_takes_the_role_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (registry, (first, second)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [1, 2]})])
            registry.expire(first.store.session_id)
            await second.until(lambda state: state.controller_id == 2)
            await second.until(lambda state: "t" in state.topics and state.topics["t"].partitions[0].leader == 2)
            assert second.controller.epoch == 2
            assert second.partition("t").controller_epoch == 2

    run(work())


def test_a_deposed_controllers_writes_are_fenced(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            # Broker 1 does not hear that it has lost the role: its watcher is closed before.
            first.watcher.close()
            await answer(second.store.delete("/controller"))
            await second.until(lambda state: state.controller_id == 2)
            assert first.controller.is_active
            with pytest.raises(NotController, match="no longer the controller"):
                await first.controller.role.write([])
            assert not first.controller.is_active

    run(work())


@pytest.mark.parametrize("removed", ["removed", "made again"])
def test_a_controller_whose_epochs_node_was_removed_goes_on(tmp_path: Path, removed: str) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, _)):
            await answer(first.store.delete("/controller_epoch"))
            if removed == "made again":
                await answer(first.store.create("/controller_epoch", b"7"))
                await answer(first.store.set("/controller_epoch", b"8"))
                await answer(first.store.set("/controller_epoch", b"9"))
            with pytest.raises(NotController):
                await first.controller.role.write([])
            await wait_until_async(lambda: first.controller.is_active, "the controller has its role", poll_s=0.01)
            assert first.controller.epoch == (1 if removed == "removed" else 9)
            created = await first.controller.create_topics([TopicSpec("t", assignment={0: [1, 2]})])
            assert not isinstance(created["t"], KafkaError)

    run(work())


def test_a_guard_that_was_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_COMPLETED_EVERY_S", 0.05)

    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("t", assignment={0: [1]})])
            (guard,) = await answer(only.store.children(znodes.TOPIC_GUARDS))
            await answer(only.store.delete(f"{znodes.TOPIC_GUARDS}/{guard}"))
            while await answer(only.store.children(znodes.TOPIC_GUARDS)) != [guard]:
                await asyncio.sleep(0.01)

    run(work())


def test_a_topic_that_an_old_tool_writes_without_its_id_keeps_it_and_gets_it_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [1, 2]})])
            path = znodes.topic_path("t")
            before = await second.until(lambda state: "t" in state.topics)
            # As kafka-topics --zookeeper --alter of Kafka 2.3 writes it.
            await answer(second.store.set(path, b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}'))
            topic_id = before.topics["t"].topic_id

            def has_it_back(state: ClusterState) -> bool:
                return len(state.topics["t"].partitions) == 2 and not state.topics_without_id

            for member in (first, second):
                await member.until(has_it_back)
                assert {new.topics["t"].topic_id for _, new in member.seen if "t" in new.topics} == {topic_id}
            assert TopicAssignment.decode("t", (await answer(second.store.get(path)))[0]).topic_id == topic_id

    with caplog.at_level(logging.WARNING):
        run(work())
    assert "of topic t back into registry node /brokers/topics/t" in caplog.text


@pytest.mark.parametrize("has_guard", [True, False])
def test_a_topic_whose_id_no_session_has_read_gets_back_that_of_its_logs_if_that_is_certain(
    tmp_path: Path, has_guard: bool
) -> None:
    async def work() -> None:
        topic_id = znodes.new_uuid()
        registry = EmbeddedRegistry(tmp_path)
        follow(registry)
        store = EmbeddedStore(registry)
        await registration.create_base_nodes(store)
        await answer(store.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}'))
        if has_guard:
            await answer(store.create(znodes.topic_guard_path(topic_id)))
        registry.close()
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.until(lambda state: state.topics["t"].partitions[0].names_nobody)
            await report_no_logs(only, "t", znodes.uuid_text(topic_id))
            if has_guard:
                await only.until(lambda state: state.topics["t"].topic_id == topic_id and not state.topics_without_id)
            else:
                # Its logs may be those of an older topic of that name.
                await asyncio.sleep(130)
                await only.watcher.caught_up(TIMEOUT_S)
                assert only.state.topics["t"].topic_id == znodes.NO_TOPIC_ID

    run(work())


def test_an_unclean_election_follows_the_setting(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 3) as (registry, (first, second, third)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 3]})])
            await first.until(lambda state: "t" in state.topics)
            for member, leader in ((second, 3), (third, -1)):
                registry.expire(member.store.session_id)
                await first.until(lambda state, leader=leader: state.topics["t"].partitions[0].leader == leader)  # type: ignore[misc]
            back = await join(registry, 2)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition("t").leader == -1
            await alter_config(back.store, znodes.topic_config_path("t"), lambda old: {**old, UNCLEAN: "true"})
            await first.until(lambda state: state.topics["t"].partitions[0].leader == 2)
            assert first.partition("t").isr == (2,)
            await back.controller.close()
            back.watcher.close()

    run(work())


def test_the_leaders_own_isr_change_is_not_overwritten(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 1]})])
            await second.until(lambda state: "t" in state.topics)
            known = second.partition("t")
            shrunk = LeaderAndIsr(known.leader, known.leader_epoch, (BrokerId(2),), known.controller_epoch)
            await answer(second.store.set(znodes.state_path("t", 0), shrunk.encode(), known.version))
            await first.until(lambda state: "t" in state.topics and state.topics["t"].partitions[0].isr == (2,))
            assert (first.partition("t").version, first.partition("t").leader_epoch) == (1, 0)

    run(work())


def test_a_state_that_somebody_has_deleted_is_made_again_and_names_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [1, 2]})])
            await second.until(lambda state: "t" in state.topics)
            path, known = znodes.state_path("t", 0), second.partition("t")
            alone = LeaderAndIsr(
                BrokerId(2),
                LeaderEpoch(7),
                (BrokerId(2),),
                known.controller_epoch,
                {BrokerId(2): known.incarnations[BrokerId(2)]},
            )
            await answer(second.store.set(path, alone.encode(), known.version))
            await first.until(lambda state: "t" in state.topics and state.topics["t"].partitions[0].isr == (2,))
            await answer(second.store.delete(path))
            await first.until(lambda state: state.topics["t"].partitions[0].names_nobody)
            made = first.partition("t")
            # Nobody knows who was in sync in the end, and under which epoch.
            assert (made.leader, made.isr, made.version, made.leader_epoch) == (-1, (), 0, 7)
            assert made.order > known.order

    run(work())


def test_what_a_newer_version_has_written_besides_survives_an_extension_and_an_election(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 3) as (registry, (first, second, _)):
            await first.controller.create_topics([TopicSpec("t", assignment={0: [2, 1]})])
            await second.until(lambda state: "t" in state.topics)
            topic, state = znodes.topic_path("t"), znodes.state_path("t", 0)
            for path in (topic, state):
                data, stat = await answer(first.store.get(path))
                await answer(first.store.set(path, data[:-1] + b',"newer":{"0":[1]}}', stat.version))
            await first.until(lambda state: state.topics["t"].partitions[0].version == 1)
            await first.controller.extend_topics([Extension("t", 2)])
            registry.expire(second.store.session_id)
            await first.until(lambda state: state.topics["t"].partitions[0].leader == 1)
            for path in (topic, state):
                assert json.loads((await answer(first.store.get(path)))[0])["newer"] == {"0": [1]}

    run(work())


def test_partitions_are_added(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, _)):
            await first.controller.create_topics([TopicSpec("t", 2)])
            extended = (await first.controller.extend_topics([Extension("t", 5)]))["t"]
            assert isinstance(extended, znodes.TopicAssignment)
            state = await first.until(lambda state: len(state.topics["t"].partitions) == 5)
            assert {number: p.replicas for number, p in state.topics["t"].partitions.items()} == extended.partitions
            assert all(p.leader in (1, 2) for p in state.topics["t"].partitions.values())
            await first.controller.extend_topics([Extension("t", 6, [[2]])])
            await first.until(lambda state: len(state.topics["t"].partitions) == 6)
            assert first.partition("t", 5).replicas == (2,)
            refused = await first.controller.extend_topics([Extension("t", 6), Extension("other", 6)])
            assert isinstance(refused["t"], InvalidPartitions)
            assert isinstance(refused["other"], UnknownTopicOrPartition)

    run(work())


def test_a_deleted_topic_leaves_nothing_and_can_be_made_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            created = await only.controller.create_topics([TopicSpec("t", 2, config={"a": "b"})])
            outcome = await only.controller.delete_topics(["t", "other"])
            assert outcome["t"] is None
            assert isinstance(outcome["other"], UnknownTopicOrPartition)
            await only.until(lambda state: not state.topics)
            for path in (znodes.TOPICS, znodes.TOPIC_CONFIGS, znodes.DELETED_TOPICS):
                assert await answer(only.store.children(path)) == []
            again = await only.controller.create_topics([TopicSpec("t", 1)])
            await only.until(lambda state: "t" in state.topics)
            assert again["t"].topic_id == only.state.topics["t"].topic_id != created["t"].topic_id
            assert (only.state.topics["t"].config, len(only.state.topics["t"].partitions)) == ({}, 1)

    run(work())


def test_a_base_node_that_is_removed_by_hand_is_made_again_and_the_controller_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (first,)):
            await first.controller.create_topics([TopicSpec("t")])
            await first.until(lambda state: "t" in state.topics)
            await answer(first.store.delete(znodes.DELETED_TOPICS))
            await answer(first.store.delete("/admin"))
            async with asyncio.timeout(TIMEOUT_S):
                while await answer(first.store.exists(znodes.DELETED_TOPICS)) is None:
                    await asyncio.sleep(0.1)
            assert (await first.controller.delete_topics(["t"]))["t"] is None
            assert [each for each in caplog.messages if "made again" in each] == [
                "registry nodes were gone that brokers need, and are made again, empty: /admin, /admin/delete_topics; "
                "do not delete them"
            ]

    run(work())


def test_a_creation_that_finds_a_base_node_gone_is_refused_and_the_next_one_succeeds(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await answer(only.store.delete(znodes.TOPICS))
            refused = (await only.controller.create_topics([TopicSpec("t")]))["t"]
            assert isinstance(refused, RequestTimedOut)
            assert str(refused) == (
                "creating topic t: cannot create registry node /brokers/topics/t: its parent does not exist: it was "
                "removed by hand; try again"
            )
            await only.controller.create_topics([TopicSpec("t")])
            await only.until(lambda state: "t" in state.topics)

    run(work())


@pytest.mark.parametrize("partitions", [2, 1200])
def test_a_topic_that_the_controller_deletes_is_known_as_deleted_when_it_is_seen_gone(
    tmp_path: Path, partitions: int
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            created = await first.controller.create_topics([TopicSpec("t", partitions), TopicSpec("by-hand")])
            await first.watcher.caught_up(TIMEOUT_S)
            await second.watcher.caught_up(TIMEOUT_S)
            await first.controller.delete_topics(["t"])
            await second.watcher.caught_up(TIMEOUT_S)
            (gone,) = [new for old, new in second.seen if "t" in old.topics and "t" not in new.topics]
            assert gone.has_deleted(created["t"].topic_id)
            # What another program removes is not.
            paths = ("/partitions/0/state", "/partitions/0", "/partitions", "")
            await answer(second.store.multi([Delete(znodes.topic_path("by-hand") + path) for path in paths]))
            state = await second.watcher.caught_up(TIMEOUT_S)
            assert not state.topics
            assert not state.has_deleted(created["by-hand"].topic_id)
            # A node that was made unreadable, or removed, by hand is made again by the next deletion.
            for damage in (b"no json", None):
                if damage is None:
                    await answer(second.store.delete(deleted_topics.PATH))
                else:
                    await answer(second.store.set(deleted_topics.PATH, damage))
                assert not (await second.watcher.caught_up(TIMEOUT_S)).deleted_topic_ids
                again = await first.controller.create_topics([TopicSpec("t")])
                await first.controller.delete_topics(["t"])
                state = await second.watcher.caught_up(TIMEOUT_S)
                assert state.deleted_topic_ids == {znodes.uuid_text(again["t"].topic_id)}

    run(work())


def test_a_topic_that_a_tool_marks_is_deleted_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            await first.controller.create_topics([TopicSpec("t"), TopicSpec("u", 1200), TopicSpec("v")])
            await second.until(lambda state: len(state.topics) == 3)
            for name in ("t", "v"):
                topic_id = second.state.topics[name].topic_id
                await answer(second.store.create(znodes.deleted_topic_path(name)))
                state = await second.until(lambda state, name=name: name not in state.topics)
                assert state.has_deleted(topic_id)
                # The controller's own marker comes between.
                if name == "t":
                    assert await first.controller.delete_topics(["u"]) == {"u": None}
            assert first.controller.is_active

    run(work())


def test_a_topic_made_again_at_once_is_read_afresh(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            for count in (3, 1, 2, 5, 1):
                await only.controller.create_topics([TopicSpec("t", count)])
                state = await only.watcher.caught_up(TIMEOUT_S)
                assert sorted(state.topics["t"].partitions) == list(range(count))
                assert all(p.version == 0 for p in state.topics["t"].partitions.values())
                await only.controller.delete_topics(["t"])
            assert not (await only.watcher.caught_up(TIMEOUT_S)).topics

    run(work())


def test_a_large_topic_takes_several_writes_and_is_deleted_whole(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("t", 1200)])
            state = await only.watcher.caught_up(TIMEOUT_S)
            assert sum(p.leader == 1 for p in state.topics["t"].partitions.values()) == 1200
            assert await only.controller.delete_topics(["t"]) == {"t": None}
            for path in (znodes.TOPICS, znodes.DELETED_TOPICS):
                assert await answer(only.store.children(path)) == []

    run(work())


async def report_no_logs(broker: Member, topic: str, topic_id: str = "") -> None:
    """Have a broker report that it has no logs of a topic, or only those of the topic of that id."""
    logs = []
    for number, state in broker.state.topics[topic].partitions.items():
        report = LogReport(state.created_zxid, state.version, gone=OFFLINE if topic_id else MISSING, topic_id=topic_id)
        logs.append(encode_log(TopicPartition(topic, number), report))
    number, incarnation = broker.registration.broker_id, broker.registration.incarnation
    await answer(broker.store.create(znodes.LOG_REPORTS))
    await answer(broker.store.create(report_path(number, 0), encode_node(number, incarnation, logs), ephemeral=True))


def test_what_another_program_or_a_crash_left_is_finished(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        follow(registry)
        store = EmbeddedStore(registry)
        await registration.create_base_nodes(store)
        planned = znodes.TopicAssignment(znodes.new_uuid(), {0: (BrokerId(1),), 1: (BrokerId(1),)})
        # A topic without states, and one whose deletion had begun.
        await answer(store.create("/brokers/topics/planned", planned.encode()))
        await answer(store.create("/brokers/topics/doomed", planned.encode()))
        await answer(store.create("/admin/delete_topics/doomed"))
        registry.close()
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.until(
                lambda state: all(each.names_nobody for each in state.topics["planned"].partitions.values())
            )
            await report_no_logs(only, "planned")
            await only.until(lambda state: state.topics["planned"].partitions[1].leader == 1)
            state = await only.watcher.caught_up(TIMEOUT_S)
            assert set(state.topics) == {"planned"}
            assert state.has_deleted(planned.topic_id)
            assert await answer(only.store.children(znodes.DELETED_TOPICS)) == []

    run(work())


def test_a_malformed_node_is_ignored_and_what_was_known_stands(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("t")])
            before = (await only.watcher.caught_up(TIMEOUT_S)).topics["t"]
            await answer(only.store.set(znodes.state_path("t", 0), b"not json"))
            await answer(only.store.set(znodes.topic_path("t"), b"{}"))
            after = (await only.watcher.caught_up(TIMEOUT_S)).topics["t"]
            assert after == before
            # And it goes on watching.
            good = LeaderAndIsr(
                BrokerId(1), before.partitions[0].leader_epoch, (BrokerId(1),), before.partitions[0].controller_epoch
            )
            await answer(only.store.set(znodes.state_path("t", 0), good.encode()))
            assert (await only.watcher.caught_up(TIMEOUT_S)).topics["t"].partitions[0].version == 2

    run(work())


def test_rereading_leaves_no_further_watches(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            await only.controller.create_topics([TopicSpec(f"t{number}", 2) for number in range(5)])
            await only.watcher.caught_up(TIMEOUT_S)

            def watches() -> int:
                return len(registry.tree.watches)

            before = watches()
            for _ in range(5):
                only.watcher._reads.put(only.watcher._read_all)
                await only.watcher.caught_up(TIMEOUT_S)
            assert watches() == before
            await only.controller.delete_topics([f"t{number}" for number in range(5)])
            await only.watcher.caught_up(TIMEOUT_S)
            assert watches() == before

    run(work())
