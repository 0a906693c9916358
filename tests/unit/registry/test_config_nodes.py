"""Altering nodes of settings over a real embedded registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.config_nodes import alter_config
from spark_kafkalite.registry.store import BadArguments, NoNode, Store, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.patience import PATIENCE_S

PATH = znodes.broker_config_path("1")
TIMEOUT_S = 10


@asynccontextmanager
async def stores(directory: Path, count: int) -> AsyncIterator[list[Store]]:
    registry = EmbeddedRegistry(directory)
    try:
        opened: list[Store] = [EmbeddedStore(registry) for _ in range(count)]
        await registration.create_base_nodes(opened[0])
        yield opened
    finally:
        registry.close()


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, PATIENCE_S)

    asyncio.run(bounded())


async def config(store: Store, path: str = PATH) -> dict[str, str]:
    return znodes.decode_config(path, (await answer(store.get(path)))[0])


def test_alterations_at_the_same_time_all_count(tmp_path: Path) -> None:
    async def work() -> None:
        async with stores(tmp_path, 4) as opened:

            def raised(old: Mapping[str, str]) -> dict[str, str]:
                return {"count": str(int(old.get("count", "0")) + 1)}

            await asyncio.gather(*(alter_config(store, PATH, raised) for store in opened for _ in range(5)))
            assert await config(opened[0]) == {"count": "20"}

    run(work())


def test_nothing_is_written_without_need(tmp_path: Path) -> None:
    async def work() -> None:
        async with stores(tmp_path, 1) as (store,):
            await alter_config(store, PATH, lambda _: {"a": "1"}, validate_only=True)
            assert await answer(store.exists(PATH)) is None
            await alter_config(store, PATH, lambda _: {"a": "1"})
            await alter_config(store, PATH, dict)
            _, stat = await answer(store.get(PATH))
            assert stat.version == 0
            with pytest.raises(NoNode):
                await alter_config(store, PATH, lambda _: {"a": "2"}, owner="/brokers/topics/none")
            for validate_only in (True, False):
                with pytest.raises(BadArguments, match="more than a registry node holds"):
                    await alter_config(store, PATH, lambda _: {"a": "x" * 2**20}, validate_only=validate_only)
            assert await config(store) == {"a": "1"}

    run(work())


def test_a_node_that_cannot_be_read_is_mended(tmp_path: Path) -> None:
    async def work() -> None:
        async with stores(tmp_path, 1) as (store,):
            await answer(store.create(PATH, b"\xff"))
            await alter_config(store, PATH, lambda old: {**old, "a": "1"})
            assert await config(store) == {"a": "1"}

    run(work())


def test_the_watcher_follows_the_settings_of_brokers(tmp_path: Path) -> None:
    async def work() -> None:
        async with stores(tmp_path, 2) as (store, other):
            await answer(other.create(znodes.broker_config_path("2"), znodes.encode_config({"a": "0"})))
            watcher = ClusterWatcher(store, ClusterView())
            assert (await watcher.start("id")).broker_configs == {"2": {"a": "0"}}
            default = znodes.broker_config_path(znodes.DEFAULT_ENTITY)

            async def seen() -> dict[str, dict[str, str]]:
                state = await watcher.caught_up(TIMEOUT_S)
                return {entity: dict(settings) for entity, settings in state.broker_configs.items()}

            await answer(other.create(default, znodes.encode_config({"a": "1"})))
            assert await seen() == {"2": {"a": "0"}, znodes.DEFAULT_ENTITY: {"a": "1"}}
            for value in ("2", "3"):
                await answer(other.set(default, znodes.encode_config({"a": value})))
                assert (await seen())[znodes.DEFAULT_ENTITY] == {"a": value}
            # What cannot be read leaves what was known.
            await answer(other.set(default, b"{"))
            assert (await seen())[znodes.DEFAULT_ENTITY] == {"a": "3"}
            # So does a node that somebody removes: the controller makes it again.
            await answer(other.delete(default))
            assert await seen() == {"2": {"a": "0"}, znodes.DEFAULT_ENTITY: {"a": "3"}}
            await answer(other.create(default, znodes.encode_config({"a": "4"})))
            assert (await seen())[znodes.DEFAULT_ENTITY] == {"a": "4"}
            watcher.close()

    run(work())


def test_fields_of_a_newer_version_survive_an_alteration(tmp_path: Path) -> None:
    async def work() -> None:
        async with stores(tmp_path, 1) as (store,):
            await answer(store.create(PATH, b'{"version":1,"config":{"a":"1"},"changed_by":{"who":"ann"}}'))
            await alter_config(store, PATH, lambda old: {**old, "b": "2"})
            data, _ = await answer(store.get(PATH))
            assert json.loads(data) == {"version": 1, "config": {"a": "1", "b": "2"}, "changed_by": {"who": "ann"}}

    run(work())
