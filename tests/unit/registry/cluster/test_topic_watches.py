"""What a broker's watcher hears of topics by watches of trees: every change, and no watch more for a topic more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.topic_reads import WATCHED_TREES
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.controller.controller import Extension, TopicSpec
from spark_kafkalite.registry.store import (
    MAX_READ_AT_ONCE,
    Children,
    ConnectionLoss,
    Get,
    GetMany,
    RegistryTooOld,
    Request,
    SessionState,
    WatchTree,
    answer,
    steps_of,
)
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment
from tests.unit.registry.controller.test_controller import TIMEOUT_S, cluster
from tests.unit.registry.virtual_time import run

ME = BrokerId(1)
STATE = LeaderAndIsr(ME, LeaderEpoch(1), (ME,), ControllerEpoch(1)).encode()


class Recorded(EmbeddedStore):
    """A session whose requests are seen; ``before`` is called with each one before it is asked for."""

    before: Callable[[Request], Future[Any] | None] = staticmethod(lambda _: None)

    def ask(self, request: Request) -> Future[Any]:
        refused = self.before(request)
        return super().ask(request) if refused is None else refused


def refused(error: RegistryError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def test_a_session_has_as_many_watches_with_a_hundred_topics_as_with_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (registry, members):
            before = len(registry.tree.watches)
            await members[0].controller.create_topics([TopicSpec(f"t{number}", 3) for number in range(100)])
            for member in members:
                await member.until(lambda state: len(state.topics) == 100)
                await member.watcher.caught_up(TIMEOUT_S)
            assert len(registry.tree.watches) == before

    run(work())


def test_a_change_reads_the_node_that_has_changed_and_no_list_of_topics(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            await only.controller.create_topics([TopicSpec("wide", 50), TopicSpec("other")])
            store, view = Recorded(registry), ClusterView()
            watcher = ClusterWatcher(store, view)
            await watcher.start("c")
            read: list[str] = []

            def note(request: Request) -> None:
                if isinstance(request, (Get, GetMany, Children)):
                    read.extend(step.path for step in steps_of(request))

            store.before = note
            await only.controller.create_topics([TopicSpec("new", 2)])
            await watcher.caught_up(TIMEOUT_S)
            paths = [znodes.topic_path("new"), znodes.topic_config_path("new")]
            assert sorted(read) == sorted([*paths, *(znodes.state_path("new", number) for number in range(2))])
            read.clear()
            data, _ = await answer(only.store.get(znodes.state_path("wide", 7)))
            await answer(only.store.set(znodes.state_path("wide", 7), data))
            await watcher.caught_up(TIMEOUT_S)
            assert read == [znodes.state_path("wide", 7)]
            read.clear()
            # Those that it has are not read again.
            await only.controller.extend_topics([Extension("wide", 52)])
            await watcher.caught_up(TIMEOUT_S)
            assert {znodes.topic_path("wide"), *(znodes.state_path("wide", number) for number in (50, 51))} == set(read)
            assert len(view.state.topics["wide"].partitions) == 52
            watcher.close()
            store.close()

    run(work())


def test_nodes_that_change_together_are_read_in_few_messages(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            store, view = Recorded(registry), ClusterView()
            watcher = ClusterWatcher(store, view)
            await watcher.start("c")
            messages: list[int] = []

            def note(request: Request) -> None:
                assert not isinstance(request, Get)
                if isinstance(request, GetMany):
                    messages.append(len(request.paths))

            store.before = note
            count = 10 * MAX_READ_AT_ONCE
            await only.controller.create_topics([TopicSpec("wide", count)])
            await watcher.caught_up(TIMEOUT_S)
            # The topic's node, its settings, and what was read before the first full message and behind the last one.
            assert sum(messages) >= count + 2
            assert len(messages) <= count // MAX_READ_AT_ONCE + 4
            assert max(messages) <= MAX_READ_AT_ONCE
            assert len(view.state.topics["wide"].partitions) == count
            watcher.close()
            store.close()

    run(work())


def test_a_message_of_reads_that_is_lost_with_the_connection_is_made_good_by_the_next_reading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            await only.controller.create_topics([TopicSpec("t", 5)])
            store, view = Recorded(registry), ClusterView()
            lost: list[Request] = []

            def lose(request: Request) -> Future[Any] | None:
                if not isinstance(request, GetMany) or len(lost) >= 2:
                    return None
                lost.append(request)
                return refused(ConnectionLoss("the connection broke"))

            store.before = lose
            watcher = ClusterWatcher(store, view)
            starting = asyncio.ensure_future(watcher.start("c"))
            while not lost:
                await asyncio.sleep(0)
            for state in (SessionState.SUSPENDED, SessionState.CONNECTED, SessionState.SUSPENDED):
                store.listeners.report(state)
            while len(lost) < 2:
                await asyncio.sleep(0)
            # Not without the topic: what has not been read may be there.
            assert not starting.done()
            store.listeners.report(SessionState.CONNECTED)
            state = await asyncio.wait_for(starting, TIMEOUT_S)
            assert len(state.topics["t"].partitions) == 5
            assert caplog.text.count("a registry read failed") == 2
            watcher.close()
            store.close()

    run(work())


def test_parts_of_a_topic_may_come_and_go_one_by_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            store = only.store

            async def version() -> int:
                return (await only.watcher.caught_up(TIMEOUT_S)).topics["t"].partitions[0].version

            assignment = TopicAssignment(znodes.new_uuid(), {0: (ME,)})
            # The state's event may come while nobody knows the topic.
            await answer(store.create(znodes.topic_path("t"), assignment.encode()))
            await answer(store.create(znodes.state_path("t", 0), STATE, make_parents=True))
            await answer(store.set(znodes.state_path("t", 0), STATE))
            assert await version() >= 1
            await answer(store.create(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "7"})))
            assert (await only.watcher.caught_up(TIMEOUT_S)).topics["t"].config == {"retention.ms": "7"}
            # Somebody has removed it: the topic keeps its settings, which the controller writes again.
            await answer(store.delete(znodes.topic_config_path("t")))
            assert (await only.watcher.caught_up(TIMEOUT_S)).topics["t"].config == {"retention.ms": "7"}

    run(work())


def test_a_node_that_is_overwritten_with_what_cannot_be_read_costs_one_line_that_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("t")])
            before = await only.watcher.caught_up(TIMEOUT_S)
            for path in (znodes.topic_path("t"), znodes.topic_config_path("t"), znodes.state_path("t", 0)):
                await answer(only.store.set(path, b"[]"))
                assert (await only.watcher.caught_up(TIMEOUT_S)).topics == before.topics
                assert [each for each in caplog.messages if path in each] == [
                    f"registry node {path} holds b'[]', which cannot be read: not an object; what was known before "
                    "stays in force: write what it should hold"
                ]
                caplog.clear()

    run(work())


def test_names_below_a_topic_that_are_no_partitions_are_nobodys(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("t")])
            before = await only.watcher.caught_up(TIMEOUT_S)
            for name in ("x", "01", "-1", "99999999999"):
                await answer(only.store.create(f"{znodes.partitions_path('t')}/{name}/state", STATE, make_parents=True))
            await answer(only.store.create(f"{znodes.topic_path('t')}/of-a-tool/0/state", make_parents=True))
            await answer(only.store.create(f"{znodes.TOPICS}/bad name", b"{}"))
            assert (await only.watcher.caught_up(TIMEOUT_S)).topics == before.topics

    run(work())


def test_nothing_is_lost_between_watching_and_reading(tmp_path: Path) -> None:
    """A topic is made just before each request of a watcher that starts, one after the other."""

    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            await only.controller.create_topics([TopicSpec("first")])
            # It would elect leaders for what is made here.
            await only.controller.close()
            for moment in range(40):
                store, view = Recorded(registry), ClusterView()
                asked = 0

                def make(_: Request, moment: int = moment) -> None:
                    nonlocal asked
                    asked += 1
                    if asked == moment:
                        name = f"t{moment}"
                        assignment = TopicAssignment(znodes.new_uuid(), {0: (ME,)})
                        only.store.create(znodes.topic_path(name), assignment.encode())
                        only.store.create(znodes.state_path(name, 0), STATE, make_parents=True)
                        only.store.set(znodes.state_path("first", 0), STATE)

                store.before = make
                watcher = ClusterWatcher(store, view)
                await watcher.start("c")
                seen = (await watcher.caught_up(TIMEOUT_S)).topics
                made = (await only.watcher.caught_up(TIMEOUT_S)).topics
                # Whatever the watcher that was there before has seen, this one has.
                assert {name: topic.partitions for name, topic in seen.items()} == {
                    name: topic.partitions for name, topic in made.items()
                }
                watcher.close()
                store.close()

    run(work())


def test_a_registry_without_watches_of_trees_is_said_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, _):
            store = Recorded(registry)
            store.before = lambda request: refused(RegistryTooOld("old")) if isinstance(request, WatchTree) else None
            with pytest.raises(RegistryTooOld, match="old"):
                await ClusterWatcher(store, ClusterView()).start("c")
            store.close()

    run(work())


def test_a_wide_topic_is_published_once_whole_and_then_by_its_changes(tmp_path: Path) -> None:
    """What is made piece by piece is seen with all its states, and a change later names its partition alone."""

    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            changes: list[ClusterChange] = []
            store, view = EmbeddedStore(registry), ClusterView()
            view.add_listener(lambda _, __, change: changes.append(change))
            watcher = ClusterWatcher(store, view)
            await watcher.start("c")
            await only.controller.create_topics([TopicSpec("wide", 2000)])
            await watcher.caught_up(TIMEOUT_S)
            first = next(change for change in changes if change.new_topics)
            assert len(first.changed_partitions) == 2000
            await only.controller.close()
            changes.clear()
            await answer(only.store.set(znodes.state_path("wide", 7), STATE))
            await watcher.caught_up(TIMEOUT_S)
            changed = [change.changed_partitions for change in changes if change.changed_partitions]
            assert changed == [(TopicPartition("wide", 7),)]
            watcher.close()
            store.close()

    run(work())


def test_a_change_that_comes_while_watches_are_left_publishes_nothing_before_all_is_read(tmp_path: Path) -> None:
    """A start would end with a cluster without an id, or with the one topic that has changed."""

    async def work() -> None:
        async with cluster(tmp_path, 1) as (registry, (only,)):
            await only.controller.create_topics([TopicSpec("t"), TopicSpec("other")])
            store, view, seen = Recorded(registry), ClusterView(), []
            view.add_listener(lambda _, new, __: seen.append((new.cluster_id, sorted(new.topics), sorted(new.brokers))))
            watcher = ClusterWatcher(store, view)
            trees = 0

            def change_between(request: Request) -> Future[Any] | None:
                nonlocal trees
                trees += isinstance(request, WatchTree)
                if not isinstance(request, WatchTree) or trees != len(WATCHED_TREES):
                    return None
                # The last watch waits until the event of the first has been taken.
                changed = only.store.set(znodes.state_path("t", 0), STATE)
                waiting: Future[Any] = Future()

                def leave(_: Future[Any]) -> None:
                    loop.call_soon_threadsafe(lambda: loop.call_later(1.0, leave_watch))

                def leave_watch() -> None:
                    EmbeddedStore.ask(store, request).add_done_callback(lambda done: waiting.set_result(done.result()))

                changed.add_done_callback(leave)
                return waiting

            loop = asyncio.get_running_loop()
            store.before = change_between
            state = await watcher.start("c")
            assert (state.cluster_id, sorted(state.topics), sorted(state.brokers)) == ("c", ["other", "t"], [1])
            assert all(each == ("c", ["other", "t"], [1]) for each in seen)
            watcher.close()
            store.close()

    run(work())
