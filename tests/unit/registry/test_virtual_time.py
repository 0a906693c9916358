"""The virtual time of the tests over a registry: when it stands still, and when it goes on."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.registry.store import answer, call_in_loop
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.unit.registry.virtual_time import follow, run, running_loop


def test_no_time_passes_while_the_registry_answers(tmp_path: Path) -> None:
    async def work() -> None:
        loop = running_loop()
        fired: list[float] = []
        with EmbeddedRegistry(tmp_path) as registry:
            follow(registry)
            store, began_s = EmbeddedStore(registry), loop.time()
            loop.call_later(0.001, lambda: fired.append(loop.time()))
            for number in range(50):
                await answer(store.create(f"/{number}"))
            assert (loop.time(), fired) == (began_s, [])
            await asyncio.sleep(3600)
            assert loop.time() >= began_s + 3600 and len(fired) == 1
        # One that is closed is not waited for.
        await asyncio.sleep(3600)

    run(work())


def test_no_time_passes_while_one_operation_asks_for_the_next_in_the_registrys_thread(tmp_path: Path) -> None:
    async def work() -> None:
        loop = running_loop()
        with EmbeddedRegistry(tmp_path) as registry:
            follow(registry)
            done, began_s = loop.create_future(), loop.time()

            def go_on(left: int) -> None:
                if left:
                    asked: Future[None] = Future()
                    asked.add_done_callback(lambda _: go_on(left - 1))
                    registry.submit(lambda: None, asked)
                else:
                    call_in_loop(loop, done.set_result, None)

            go_on(200)
            async with asyncio.timeout(0.001):
                await done
            assert loop.time() == began_s

    run(work())


def test_what_waits_for_nothing_is_an_error() -> None:
    async def work() -> None:
        await running_loop().create_future()

    with pytest.raises(RuntimeError, match="would wait for ever"):
        run(work())
