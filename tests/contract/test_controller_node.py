"""/controller that somebody made by hand as a persistent node: brokers remove it, whatever registry they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.controller.controller import Controller
from spark_kafkalite.registry.store import Create, Delete, Operation, Store, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.contract.test_store import sessions_at
from tests.patience import PATIENCE_S, wait_until_async

Connect = Callable[[], Store]


@pytest.fixture(params=["embedded", "served", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    if request.param == "embedded":
        with EmbeddedRegistry(tmp_path) as registry:
            yield partial(EmbeddedStore, registry)
        return
    server = request.getfixturevalue(request.param)
    with sessions_at(server if isinstance(server, str) else server.connect) as connect:
        yield connect


async def until(view: ClusterView, condition: Callable[[ClusterState], bool]) -> None:
    await view.wait_for(condition, PATIENCE_S)


async def ephemeral_owner(store: Store) -> int:
    """Return the session of the next controller. Views may miss that for a moment no broker has the role."""
    async with asyncio.timeout(PATIENCE_S):
        while (stat := await answer(store.exists(znodes.CONTROLLER))) is None or not stat.ephemeral_owner:
            await asyncio.sleep(0.01)
    return stat.ephemeral_owner


async def replace_controller(store: Store, data: bytes) -> None:
    """Put a persistent node in the place of the ephemeral one. In two writes, a candidate may come between them."""
    await answer(store.multi([Delete(znodes.CONTROLLER), Create(znodes.CONTROLLER, data)]))


@asynccontextmanager
async def candidate(store: Store, broker_id: int) -> AsyncIterator[tuple[Controller, ClusterView]]:
    await registration.create_base_nodes(store)
    view = ClusterView()
    watcher = ClusterWatcher(store, view)
    await watcher.start(await registration.cluster_id(store))
    controller = Controller(store, watcher, BrokerId(broker_id))
    await controller.start()
    try:
        yield controller, view
    finally:
        await controller.close()
        watcher.close()


@pytest.mark.parametrize("data", [znodes.encode_controller(2, 0), znodes.encode_controller(9, 0), b"", b"by hand"])
def test_a_persistent_controller_is_removed_and_the_role_is_taken(open_session: Connect, data: bytes) -> None:
    async def work() -> None:
        store, other = open_session(), open_session()
        async with candidate(store, 1) as (first, view):
            assert first.is_active
            async with candidate(other, 2) as (second, second_view):
                # In the place of the node of the controller, which lives.
                await replace_controller(other, data)
                owner = await ephemeral_owner(other)
                assert owner in (store.session_id, other.session_id)
                number = 1 if owner == store.session_id else 2
                for each in (view, second_view):
                    await until(each, lambda state: state.controller_id == number)
                await wait_until_async(lambda: second.is_active == (number == 2), "the role to be known")
            # One broker alone has the role again, too.
            await until(view, lambda state: state.controller_id == 1)
            await replace_controller(other, data)
            assert await ephemeral_owner(other) == store.session_id
            await until(view, lambda state: state.controller_id == 1)

    asyncio.run(work())


@pytest.mark.parametrize("successor", [b"by hand", znodes.encode_controller(2, 0)])
def test_a_controller_deposed_by_hand_takes_the_role_when_it_is_free(open_session: Connect, successor: bytes) -> None:
    """Its view goes from its own node to that of the successor, and never shows that nobody has the role between."""

    async def work() -> None:
        store, other = open_session(), open_session()
        async with candidate(store, 1) as (controller, view):
            epoch = controller.epoch
            await answer(other.multi([Delete(znodes.CONTROLLER), Create(znodes.CONTROLLER, successor, ephemeral=True)]))
            await answer(other.delete(znodes.CONTROLLER))
            await wait_until_async(lambda: controller.epoch > epoch, "the role to be taken again")
            await until(view, lambda state: state.controller_id == 1)

    asyncio.run(work())


def test_a_persistent_controller_that_was_there_before_is_removed_by_the_first_broker(
    open_session: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        store = open_session()
        await registration.create_base_nodes(store)
        await answer(store.create(znodes.CONTROLLER, znodes.encode_controller(1, 0)))
        async with candidate(store, 1) as (controller, _):
            assert controller.is_active

    asyncio.run(work())
    assert "removed /controller, because it was a persistent node" in caplog.text


def test_an_ephemeral_node_that_replaces_the_persistent_one_is_not_removed(
    open_session: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same version, and comes between the look at the persistent one and its removal."""

    async def work() -> None:
        store, other = open_session(), open_session()
        await registration.create_base_nodes(store)
        await answer(store.create(znodes.CONTROLLER, b"by hand"))
        multi = store.multi
        replaced: list[Controller] = []

        async def replace() -> None:
            await answer(other.delete(znodes.CONTROLLER))
            async with candidate(other, 2) as (second, _):
                replaced.append(second)
                assert second.is_active
                removed.set()
                await tried.wait()
                stat = await answer(other.exists(znodes.CONTROLLER))
                assert stat is not None and stat.ephemeral_owner == other.session_id

        removed, tried = asyncio.Event(), asyncio.Event()
        held: list[Future[list[Any]]] = []

        def hold_removal(operations: Sequence[Operation]) -> Future[list[Any]]:
            if not any(isinstance(each, Delete) and each.path == znodes.CONTROLLER for each in operations):
                return multi(operations)
            outcome: Future[list[Any]] = Future()
            held.append(outcome)

            async def late() -> None:
                await removed.wait()
                try:
                    outcome.set_result(await answer(multi(operations)))
                except Exception as error:
                    outcome.set_exception(error)

            tasks.append(asyncio.get_running_loop().create_task(late()))
            tasks.append(asyncio.get_running_loop().create_task(replace()))
            return outcome

        tasks: list[asyncio.Task[None]] = []
        monkeypatch.setattr(store, "multi", hold_removal)
        async with candidate(store, 1) as (controller, _):
            assert held and replaced
            assert not controller.is_active
            tried.set()
            await asyncio.gather(*tasks)

    asyncio.run(work())
