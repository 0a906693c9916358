"""Many topics and partitions: no turn of the loop is long, and the registry is written some at a time."""

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
from spark_kafkalite.registry.multi_pieces import pieces
from spark_kafkalite.registry.store import MAX_DATA_BYTES, MAX_MULTI_OPERATIONS, Create, Delete
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, TopicAssignment
from tests.seeds import SEED
from tests.unit.registry.virtual_time import RegistryLoop, follow, run
from tests.unit.slice_clock import SliceClock
from tests.unit.turns import Turns

# In virtual time.
TIMEOUT_S = 60
# Topics and partitions that are far more than those worked on between two yields.
TOPICS, PARTITIONS = 300, 800
# In a turn of the loop.
MOST_CALLS = 10_000
# What a step of work takes by the clock of the slices: some hundred steps fit into a slice.
A_STEP_S = 1e-5


class Member:
    """A broker's registration, watcher and controller; what its watcher has published since the last look."""

    def __init__(self, registry: EmbeddedRegistry, slice_reading_s: float) -> None:
        self.registry = registry
        self.store = EmbeddedStore(registry)
        self.changes: list[ClusterChange] = []
        self.view = ClusterView()
        self.view.add_listener(self._changed)
        loop_slices = slices.Slices(asyncio.get_running_loop(), SliceClock(reading_s=slice_reading_s))
        self.watcher = ClusterWatcher(self.store, self.view, slices=loop_slices)
        self.controller = Controller(self.store, self.watcher, BrokerId(1), slices=loop_slices)

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
async def joined(registry: EmbeddedRegistry, slice_reading_s: float = A_STEP_S) -> AsyncIterator[Member]:
    """Let a broker join. Each reading of its slices' clock takes so long."""
    follow(registry)
    member = Member(registry, slice_reading_s)
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


def most_calls(work: Coroutine[Any, Any, None]) -> int:
    """Run in virtual time, without a collector; return the most calls of a turn."""
    gc.disable()
    try:
        with asyncio.Runner(debug=False, loop_factory=RegistryLoop) as runner, Turns(runner.get_loop()) as turns:
            runner.run(work)
    finally:
        gc.enable()
    return turns.most_calls


def come_and_go(directory: Path, count: int, slice_reading_s: float) -> tuple[int, list[ClusterChange]]:
    """Create and delete topics. Return the most calls of a turn and what the watcher has published."""
    changes: list[ClusterChange] = []

    async def work() -> None:
        async with joined(registry, slice_reading_s) as member:
            names = [f"name_{number}" for number in range(count)]
            created = await member.controller.create_topics([TopicSpec(name) for name in names])
            assert all(isinstance(outcome, TopicAssignment) for outcome in created.values())
            state = await member.caught_up()
            assert set(state.topics) == set(names)
            assert all(topic.partitions[0].leader == 1 for topic in state.topics.values())
            assert {state.topic_name(topic.topic_id) for topic in state.topics.values()} == set(names)
            deleted = await member.controller.delete_topics(names)
            assert set(deleted.values()) == {None}
            assert not (await member.caught_up()).topics
            changes.extend(member.changes)

    with EmbeddedRegistry(directory) as registry:
        return most_calls(work()), changes


def test_hundreds_of_topics_come_and_go_without_a_long_turn(tmp_path: Path) -> None:
    calls, _ = come_and_go(tmp_path, TOPICS, slices.SLICE_S)
    assert calls < MOST_CALLS


def test_listeners_hear_of_a_bounded_number_of_changes_at_once(tmp_path: Path) -> None:
    _, changes = come_and_go(tmp_path, PUBLISH_AT_MOST + 100, A_STEP_S)
    # A slice of the watcher may add to what is due.
    assert max(len(change.changed_partitions) for change in changes) <= PUBLISH_AT_MOST + 50
    assert max(len(change.deleted_topics) for change in changes) <= PUBLISH_AT_MOST + 50


def grow_and_go(directory: Path, slice_reading_s: float) -> int:
    """Create, extend and delete a wide topic. Return the most calls of a turn."""

    async def work() -> None:
        async with joined(registry, slice_reading_s) as member:
            await member.controller.create_topics([TopicSpec("wide", PARTITIONS)])
            await member.controller.extend_topics([Extension("wide", PARTITIONS + 300)])
            topic = (await member.caught_up()).topics["wide"]
            assert list(topic.partitions) == list(range(PARTITIONS + 300))
            assert all(partition.leader == 1 for partition in topic.partitions.values())
            assert await member.controller.delete_topics(["wide"]) == {"wide": None}
            assert not (await member.caught_up()).topics
            assert await asyncio.wrap_future(member.store.children(znodes.DELETED_TOPICS)) == []

    with EmbeddedRegistry(directory) as registry:
        return most_calls(work())


def test_a_topic_of_a_thousand_partitions_comes_grows_and_goes_without_a_long_turn(tmp_path: Path) -> None:
    assert grow_and_go(tmp_path, slices.SLICE_S) < MOST_CALLS


def test_a_turn_is_long_when_no_slice_ends(tmp_path: Path) -> None:
    """So the tests of turns can fail."""
    assert grow_and_go(tmp_path, 0.0) > 2 * MOST_CALLS


def test_a_restart_elects_the_leaders_of_a_thousand_partitions_in_a_few_transactions(tmp_path: Path) -> None:
    async def before() -> None:
        async with joined(registry) as member:
            await member.controller.create_topics(
                [TopicSpec("wide", PARTITIONS), *(TopicSpec(f"t{n}") for n in range(200))]
            )

    async def after() -> None:
        zxid = registry.last_zxid
        async with joined(registry, slices.SLICE_S) as member:
            state = await member.caught_up()
            epochs = [part.leader_epoch for topic in state.topics.values() for part in topic.partitions.values()]
            assert epochs == [1] * (PARTITIONS + 200)
            assert registry.last_zxid - zxid < 30

    with EmbeddedRegistry(tmp_path) as registry:
        run(before())
    with EmbeddedRegistry(tmp_path) as registry:
        assert most_calls(after()) < MOST_CALLS


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


def test_a_topic_outgrows_its_node_with_a_text_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A node of a tenth of the size.
    monkeypatch.setattr(topic_writes, "MAX_ASSIGNMENT_BYTES", topic_writes.MAX_ASSIGNMENT_BYTES // 10)

    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            async with joined(registry) as member:
                total = 500
                await member.controller.create_topics([TopicSpec("wide", total)])

                async def extended(*, validate_only: bool) -> object:
                    extension = Extension("wide", total)
                    return (await member.controller.extend_topics([extension], validate_only=validate_only))["wide"]

                outcome: object = None
                while not isinstance(outcome, Exception):
                    total += 500
                    assert total < 2 * MAX_PARTITIONS
                    outcome = await extended(validate_only=True)
                for validate_only in (True, False):
                    outcome = await extended(validate_only=validate_only)
                    assert isinstance(outcome, InvalidPartitions)
                    assert f"topic wide: {total} partitions take" in str(outcome)

    run(work())


def test_pieces_hold_as_much_as_a_multi_takes() -> None:
    few = list(pieces(Delete(f"/{number}") for number in range(2500)))
    assert [len(piece) for piece in few] == [MAX_MULTI_OPERATIONS - 1, MAX_MULTI_OPERATIONS - 1, 502]
    large = list(pieces(Create(f"/{number}", bytes(400_000)) for number in range(5)))
    assert [len(piece) for piece in large] == [2, 2, 1]
    assert all(sum(len(each.data) for each in piece if isinstance(each, Create)) < MAX_DATA_BYTES for piece in large)
    assert list(pieces([])) == []


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
                for number in range(1, 13):
                    await member.controller.create_topics([TopicSpec(f"t{number}", number)])
                    topics = (await member.caught_up()).topics
                    assert [topics[f"t{each}"].partitions[0].leader for each in range(1, number + 1)] == [1] * number
                    await member.controller.extend_topics([Extension(f"t{number}", 2 * number)])
                    partitions = (await member.caught_up()).topics[f"t{number}"].partitions
                    assert [each.leader for each in partitions.values()] == [1] * 2 * number

    run(work())
