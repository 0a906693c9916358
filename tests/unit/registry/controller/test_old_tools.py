"""What tools for older versions of Kafka leave in the registry: named in a warning once, or removed after a while."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.controller.old_tools import OldTools
from spark_kafkalite.registry.store import answer
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.unit.registry.controller.test_several_brokers import Cluster, a_cluster
from tests.unit.registry.virtual_time import run

QUARTER_MS = 15 * 60_000


async def write(cluster: Cluster, path: str, data: bytes = b"{}", *, sequential: bool = False) -> str:
    found: str = await answer(cluster.brokers[0].store.create(path, data, sequential=sequential, make_parents=True))
    return found


def test_what_is_not_obeyed_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1) as cluster:
            tools = OldTools(cluster.brokers[0].store, ManualClock())
            # A tool makes the parents without asking for anything.
            await write(cluster, "/delegation_token/tokens", b"")
            await tools.look()
            assert caplog.messages == []
            await write(cluster, "/admin/reassign_partitions")
            await write(cluster, "/delegation_token/tokens/alice")
            await tools.look()
            await write(cluster, "/delegation_token/tokens/bob")
            await tools.look()

    with caplog.at_level(logging.WARNING):
        run(work())
    assert [line.partition(",")[0] for line in caplog.messages] == [
        "registry node /admin/reassign_partitions",
        "registry node /delegation_token/tokens",
    ]
    assert all("is not obeyed: " in line for line in caplog.messages)


def test_notices_of_changed_settings_are_removed_after_a_quarter_of_an_hour(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1) as cluster:
            store = cluster.brokers[0].store
            # A tool finds the node there.
            await OldTools(store, ManualClock()).look()
            notice = await answer(store.create(f"{znodes.CONFIG_CHANGES}/config_change_", b"{}", sequential=True))
            stat = await answer(store.exists(notice))
            assert stat is not None
            clock = ManualClock(wall_ms=stat.ctime + QUARTER_MS)
            tools = OldTools(store, clock)
            await tools.look()
            assert await answer(store.children(znodes.CONFIG_CHANGES)) == ["config_change_0000000000"]
            clock.advance(ms=1)
            await tools.look()
            assert await answer(store.children(znodes.CONFIG_CHANGES)) == []

    run(work())


def test_a_controller_looks_every_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2) as cluster:
            await write(cluster, "/delegation_token/tokens/loader")
            await asyncio.sleep(130)

    with caplog.at_level(logging.WARNING):
        run(work())
    assert [line.partition(",")[0] for line in caplog.messages if "is not obeyed" in line] == [
        "registry node /delegation_token/tokens"
    ]
