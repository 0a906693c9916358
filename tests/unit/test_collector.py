"""Cyclic garbage goes, old objects are left alone, and no collection looks at many objects."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from spark_kafkalite import collector as module
from tests.patience import PATIENCE_S
from tests.unit.turns import run_collected


class Cycle:
    def __init__(self) -> None:
        self.itself = self


async def allocate(count: int) -> list[list[object]]:
    """Make as many objects, some in each turn of the loop."""
    made: list[list[object]] = []
    for number in range(count):
        made.append([number])
        if number % 1_000 == 0:
            await asyncio.sleep(0)
    return made


def test_cycles_go_soon() -> None:
    async def scenario() -> None:
        cycle = weakref.ref(Cycle())
        assert cycle() is not None
        await allocate(50_000)
        assert cycle() is None

    run_collected(scenario)


def test_objects_that_live_long_are_not_looked_at_again() -> None:
    async def scenario() -> None:
        kept = await allocate(250_000)
        most = 0

        def watch(phase: str, info: dict[str, int]) -> None:
            nonlocal most
            if phase == "start":
                looked_at = sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1))
                most = max(most, looked_at)

        gc.callbacks.append(watch)
        try:
            kept += await allocate(250_000)
        finally:
            gc.callbacks.remove(watch)
        assert len(kept) == 500_000
        assert 0 < most < 2 * module._TOO_MANY_TO_LOOK_AT

    run_collected(scenario)


class Looks:
    """The collector's checks whether the process is quiet: each comes when a test calls it, not by a timer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> None:
        self._due: list[Callable[..., object]] = []
        call_later = loop.call_later

        def noted(delay_s: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
            if callback.__name__ != "look_if_quiet":
                return call_later(delay_s, callback, *arguments)
            self._due.append(callback)
            return call_later(PATIENCE_S, int)

        monkeypatch.setattr(loop, "call_later", noted)

    def come(self) -> None:
        """Have the one look come that is due."""
        (look,) = self._due
        self._due.clear()
        look()


@pytest.mark.parametrize("is_quiet", [True, False])
def test_old_cycles_go_when_memory_has_grown_and_the_process_is_quiet(
    monkeypatch: pytest.MonkeyPatch, is_quiet: bool
) -> None:
    monkeypatch.setattr(module, "_WANTED_TIMES", 1)
    monkeypatch.setattr(module, "_WANTED_BLOCKS", 50_000)
    monkeypatch.setattr(module, "_QUIET_SHARE", PATIENCE_S if is_quiet else 0.0)

    async def scenario() -> None:
        looks = Looks(monkeypatch, asyncio.get_running_loop())
        cycle = Cycle()
        watched = weakref.ref(cycle)
        kept = await allocate(60_000)
        del cycle
        kept += await allocate(60_000)
        assert watched() is not None
        looks.come()
        assert (watched() is None) == is_quiet and len(kept) == 120_000
        if not is_quiet:
            # It is looked again.
            monkeypatch.setattr(module, "_QUIET_SHARE", PATIENCE_S)
            looks.come()
            assert watched() is None

    run_collected(scenario)


def test_what_a_large_request_had_is_no_reason_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WANTED_TIMES", 1)
    monkeypatch.setattr(module, "_WANTED_BLOCKS", 50_000)
    monkeypatch.setattr(module, "_QUIET_SHARE", PATIENCE_S)

    async def scenario() -> None:
        looks = Looks(monkeypatch, asyncio.get_running_loop())
        cycle = Cycle()
        watched = weakref.ref(cycle)
        kept = await allocate(60_000)
        del cycle
        kept += await allocate(60_000)
        del kept
        looks.come()
        assert watched() is not None

    run_collected(scenario)


def test_old_cycles_go_at_once_when_memory_has_grown_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORCED_TIMES", 1)
    monkeypatch.setattr(module, "_FORCED_BLOCKS", 100_000)

    async def scenario() -> None:
        cycle = Cycle()
        watched = weakref.ref(cycle)
        kept = await allocate(60_000)
        del cycle
        kept += await allocate(100_000)
        assert watched() is None

    run_collected(scenario)


def test_python_has_its_collector_back_afterwards() -> None:
    before = gc.get_threshold(), list(gc.callbacks)

    async def scenario() -> None:
        assert gc.get_threshold() != before[0]

    run_collected(scenario)
    assert (gc.get_threshold(), list(gc.callbacks)) == before
