"""The phases of a broker's start: whichever fails, or is the last one before a stop, leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.broker.start import BrokerStart
from spark_kafkalite.testing.fake_registry import FakeRegistry
from tests.interop.support.running_broker import RunningBroker, running_broker

# As BrokerStart.run calls them.
PHASES = re.findall(r"self\.(_[a-z_]+)\(", inspect.getsource(BrokerStart.run))


class Injected(Exception):
    """What a phase fails with here."""


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(bounded())


def after_phase(monkeypatch: pytest.MonkeyPatch, name: str, then: Any) -> None:
    """Have ``then`` called when a phase has ended."""
    phase = getattr(BrokerStart, name)

    async def later(self: BrokerStart, *arguments: Any) -> Any:
        result = await phase(self, *arguments)
        then()
        return result

    def at_once(self: BrokerStart, *arguments: Any) -> Any:
        result = phase(self, *arguments)
        then()
        return result

    monkeypatch.setattr(BrokerStart, name, later if inspect.iscoroutinefunction(phase) else at_once)


def held() -> Counter[threading.Thread | str]:
    """Return this process's threads, and what its descriptors are open on, how often."""
    opened = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            opened.append(re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{fd}")))
        except FileNotFoundError:
            continue  # the one that lists them
    return Counter(threading.enumerate()) + Counter(opened)


async def nothing_more_than(before: Counter[threading.Thread | str]) -> None:
    """Wait until no more is held than before; fail when something stays.

    Others in this process, such as servers that fixtures run, may have closed something, or opened it for a moment.
    """
    deadline = time.monotonic() + 5
    while not held() <= before and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert held() <= before


def test_the_phases_are_those_of_the_start() -> None:
    assert len(PHASES) == len(set(PHASES)) >= 9
    assert PHASES[:3] == ["_prepare", "_lock_log_dirs", "_open_registry"]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, elsewhere: bool
) -> None:
    def fail() -> None:
        raise Injected

    async def start(registry: FakeRegistry | None) -> None:
        open_store = None if registry is None else registry.open_session
        # What a start leaves in the process for good, such as loaded modules, is there afterwards.
        async with running_broker(tmp_path / "data", open_store):
            pass
        tasks, before = asyncio.all_tasks(), held()
        with monkeypatch.context() as patched:
            after_phase(patched, phase, fail)
            with pytest.raises(Injected):
                await RunningBroker(tmp_path / "data", open_store, registry_listener="127.0.0.1:0").run()
        await asyncio.sleep(0)  # for those that have been cancelled
        assert asyncio.all_tasks() == tasks
        await nothing_more_than(before)
        if registry is not None:
            assert not registry.registry.tree.sessions
            assert all(session.is_closed for session in registry.sessions)
        # Locks and ports are free, and the logs are whole.
        async with running_broker(tmp_path / "data", open_store):
            pass

    async def work() -> None:
        if not elsewhere:
            await start(None)
            return
        with FakeRegistry(tmp_path / "registry") as registry:
            await start(registry)

    run(work())


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_after_any_phase_is_obeyed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, elsewhere: bool
) -> None:
    async def start(registry: FakeRegistry | None) -> None:
        running = RunningBroker(tmp_path / "data", None if registry is None else registry.open_session)
        stopped_s: list[float] = []

        def stop() -> None:
            stopped_s.append(time.monotonic())
            running.broker.stop()

        if registry is not None:
            registry.connect().close()  # its files are open from the first commit on
        before = held()
        after_phase(monkeypatch, phase, stop)
        assert await running.run() == 0
        # What it waits for in vain otherwise takes longer.
        assert time.monotonic() - stopped_s[0] < 5
        await nothing_more_than(before)
        if registry is not None:
            assert not registry.registry.tree.sessions

    async def work() -> None:
        if not elsewhere:
            await start(None)
            return
        with FakeRegistry(tmp_path / "registry") as registry:
            await start(registry)

    run(work())


def test_a_start_that_waits_for_its_registry_obeys_a_stop(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeRegistry(tmp_path / "registry") as registry:
            registry.become_unreachable()
            running = RunningBroker(tmp_path / "data", registry.open_session)
            ends = asyncio.ensure_future(running.run())
            while not registry._waiting:
                await asyncio.sleep(0.001)
            running.broker.stop()
            assert await asyncio.wait_for(ends, 1) == 0
            assert not running.ready.is_set()
            registry.become_reachable()
            assert all(session.is_closed for session in registry.sessions)

    run(work())
