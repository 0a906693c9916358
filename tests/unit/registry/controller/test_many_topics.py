"""Thousands of topics and partitions: no turn of the loop is long, and the registry is written some at a time."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import slices
from spark_kafkalite.errors import InvalidPartitions, InvalidTopic
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration, watcher
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.watcher import PUBLISH_AT_MOST, ClusterWatcher
from spark_kafkalite.registry.controller import topic_writes
from spark_kafkalite.registry.controller.controller import Controller, Extension, TopicSpec
from spark_kafkalite.registry.controller.placement import MAX_PARTITIONS
from spark_kafkalite.registry.store import MAX_DATA_BYTES, MAX_MULTI_OPERATIONS, Create, Delete
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, TopicAssignment
from tests import processor
from tests.seeds import SEED
from tests.unit.turns import Turns

TIMEOUT_S = 60
# Processor time of the loop's thread from one look at its sockets to the next.
LONGEST_TURN_MS = 100


class Member:
    """A broker's registration, watcher and controller; what its watcher has published since the last look."""

    def __init__(self, registry: EmbeddedRegistry) -> None:
        self.registry = registry
        self.store = EmbeddedStore(registry)
        self.changes: list[ClusterChange] = []
        self.view = ClusterView()
        self.view.add_listener(self._changed)
        self.watcher = ClusterWatcher(self.store, self.view)
        self.controller = Controller(self.store, self.watcher, BrokerId(1))

    @staticmethod
    def next_run() -> BrokerRegistration:
        return BrokerRegistration(BrokerId(1), "h", 9001, incarnation=znodes.new_incarnation())

    def _changed(self, _: ClusterState, __: ClusterState, change: ClusterChange) -> None:
        self.changes.append(change)

    async def register(self) -> None:
        await registration.register_broker(self.store, self.next_run())

    async def caught_up(self) -> ClusterState:
        return await self.watcher.caught_up(TIMEOUT_S)


@asynccontextmanager
async def joined(registry: EmbeddedRegistry) -> AsyncIterator[Member]:
    member = Member(registry)
    await registration.create_base_nodes(member.store)
    cluster_id = await registration.cluster_id(member.store)
    await member.register()
    await member.watcher.start(cluster_id)
    await member.controller.start()
    try:
        yield member
    finally:
        await member.controller.close()
        member.watcher.close()
        member.store.close()


def run(work: Coroutine[Any, Any, None]) -> Turns:
    loop = asyncio.new_event_loop()
    # Debugging costs a multiple, and collections look at all that the test runner holds.
    loop.set_debug(False)
    gc.disable()
    turns = Turns(loop)
    try:
        loop.run_until_complete(asyncio.wait_for(work, TIMEOUT_S))
    finally:
        loop.close()
        gc.enable()
    return turns


def test_fifteen_hundred_topics_come_and_go_without_a_long_turn(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                names = [f"name_{number}" for number in range(1500)]
                created = await member.controller.create_topics([TopicSpec(name) for name in names])
                assert all(isinstance(outcome, TopicAssignment) for outcome in created.values())
                state = await member.caught_up()
                assert set(state.topics) == set(names)
                assert all(topic.partitions[0].leader == 1 for topic in state.topics.values())
                assert {state.topic_name(topic.topic_id) for topic in state.topics.values()} == set(names)
                deleted = await member.controller.delete_topics(names)
                assert set(deleted.values()) == {None}
                assert not (await member.caught_up()).topics
                # What listeners hear of at once is bounded: a slice of the watcher may add to what is due.
                assert max(len(change.changed_partitions) for change in member.changes) <= PUBLISH_AT_MOST + 50
                assert max(len(change.deleted_topics) for change in member.changes) <= PUBLISH_AT_MOST + 50

    assert run(work()).longest_ms < LONGEST_TURN_MS * processor.slowness()


def test_three_thousand_partitions_come_grow_and_go_without_a_long_turn(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                await member.controller.create_topics([TopicSpec("wide", 3000)])
                await member.controller.extend_topics([Extension("wide", 3500)])
                topic = (await member.caught_up()).topics["wide"]
                assert list(topic.partitions) == list(range(3500))
                assert all(partition.leader == 1 for partition in topic.partitions.values())
                assert await member.controller.delete_topics(["wide"]) == {"wide": None}
                assert not (await member.caught_up()).topics
                assert await asyncio.wrap_future(member.store.children(znodes.DELETED_TOPICS)) == []

    assert run(work()).longest_ms < LONGEST_TURN_MS * processor.slowness()


def test_a_restart_elects_the_leaders_of_three_thousand_partitions_in_a_few_transactions(tmp_path: Path) -> None:
    async def before() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                await member.controller.create_topics(
                    [TopicSpec("wide", 2500), *(TopicSpec(f"t{n}") for n in range(500))]
                )

    async def after() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            zxid = registry.last_zxid
            async with joined(registry) as member:
                state = await member.caught_up()
                epochs = [part.leader_epoch for topic in state.topics.values() for part in topic.partitions.values()]
                assert epochs == [1] * 3000
                assert registry.last_zxid - zxid < 60

    run(before())
    assert run(after()).longest_ms < LONGEST_TURN_MS * processor.slowness()


def test_an_election_that_was_overtaken_does_not_stop_those_beside_it(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                await member.controller.create_topics([TopicSpec(f"t{number}") for number in range(20)])
                state = await member.caught_up()
                # The registration of another incarnation: all leaders must be elected anew. One state is written by
                # somebody else in the same moment, so that the multi of all of them is refused.
                path = znodes.state_path("t7", 0)
                data, _ = await asyncio.wrap_future(member.store.get(path))
                await asyncio.wrap_future(member.store.delete(znodes.broker_path(1)))
                await member.register()
                member.store.set(path, data)

                def led_again(new: ClusterState) -> bool:
                    me = new.brokers.get(1)
                    return me is not None and all(topic.partitions[0].is_led_by(me) for topic in new.topics.values())

                await member.view.wait_for(
                    lambda new: 1 in new.brokers and new.brokers[1].epoch > state.brokers[1].epoch, TIMEOUT_S
                )
                await member.view.wait_for(led_again, TIMEOUT_S)

    run(work())


def test_of_topics_that_collide_in_one_request_the_first_is_created(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                outcomes = await member.controller.create_topics([TopicSpec("a.b"), TopicSpec("a_b"), TopicSpec("ab")])
                assert isinstance(outcomes["a.b"], TopicAssignment)
                assert isinstance(outcomes["a_b"], InvalidTopic)
                assert isinstance(outcomes["ab"], TopicAssignment)

    run(work())


def test_settings_left_over_from_a_topic_are_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                left_over = znodes.encode_config({"retention.ms": "1"})
                await asyncio.wrap_future(member.store.create(znodes.topic_config_path("t"), left_over))
                await member.controller.create_topics([TopicSpec("t", config={"retention.ms": "2"})])
                assert (await member.caught_up()).topics["t"].config == {"retention.ms": "2"}

    run(work())


def test_a_topic_with_more_or_less_than_it_should_have_is_deleted_too(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                await member.controller.create_topics([TopicSpec("more", 2), TopicSpec("less", 2)])
                await asyncio.wrap_future(member.store.create(f"{znodes.topic_path('more')}/of-a-tool"))
                await asyncio.wrap_future(member.store.delete(znodes.topic_config_path("less")))
                assert await member.controller.delete_topics(["more", "less"]) == {"more": None, "less": None}
                for path in (znodes.TOPICS, znodes.TOPIC_CONFIGS, znodes.DELETED_TOPICS):
                    assert await asyncio.wrap_future(member.store.children(path)) == []

    run(work())


@pytest.mark.slow
def test_a_topic_outgrows_its_node_with_a_text_that_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                total = MAX_PARTITIONS
                await member.controller.create_topics([TopicSpec("wide", total)])
                outcome: Any = None
                while not isinstance(outcome, Exception):
                    total += MAX_PARTITIONS
                    assert total < 200_000
                    outcome = (
                        await member.controller.extend_topics([Extension("wide", total)], validate_only=total < 100_000)
                    )["wide"]
                assert isinstance(outcome, InvalidPartitions)

    run(work())


def test_pieces_hold_as_much_as_a_multi_takes() -> None:
    few = list(topic_writes.pieces(Delete(f"/{number}") for number in range(2500)))
    assert [len(piece) for piece in few] == [MAX_MULTI_OPERATIONS - 1, MAX_MULTI_OPERATIONS - 1, 502]
    large = list(topic_writes.pieces(Create(f"/{number}", bytes(400_000)) for number in range(5)))
    assert [len(piece) for piece in large] == [2, 2, 1]
    assert all(sum(len(each.data) for each in piece if isinstance(each, Create)) < MAX_DATA_BYTES for piece in large)
    assert list(topic_writes.pieces([])) == []


def test_what_has_been_written_is_in_the_snapshot_wherever_slices_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)

    def run_slice(work: slices.Work[Any], *_: object) -> Any:
        future = None
        try:
            for _ in range(chance.randrange(1, 40)):
                future = next(work)
                if future is not None:
                    break
        except StopIteration as end:
            return end.value
        raise slices.NotFinished(future)

    monkeypatch.setattr(slices, "run_slice", run_slice)
    monkeypatch.setattr(watcher, "PUBLISH_WITHIN_S", 0.0)

    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                for number in range(1, 31):
                    await member.controller.create_topics([TopicSpec(f"t{number}", number)])
                    topics = (await member.caught_up()).topics
                    assert [topics[f"t{each}"].partitions[0].leader for each in range(1, number + 1)] == [1] * number
                    await member.controller.extend_topics([Extension(f"t{number}", 2 * number)])
                    partitions = (await member.caught_up()).topics[f"t{number}"].partitions
                    assert [each.leader for each in partitions.values()] == [1] * 2 * number

    run(work())
