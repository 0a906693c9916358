"""The phases of a broker's start: whichever fails, or is the last one before a stop, leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.broker import start
from spark_kafkalite.broker.start import BrokerStart
from tests.interop.support.running_broker import RunningBroker, running_broker
from tests.lab.fake_registry import FakeRegistry
from tests.patience import wait_until_async

# As BrokerStart.run calls them: methods, which the simulator replaces, and functions.
PHASES = re.findall(r"\b(_?[a-z_]+)\((?:loop|given|ground)[,)]", inspect.getsource(BrokerStart.run))

# A stop may wait some seconds for connections and threads, and not for what is longer.
ENDLESS_S = 5.0


class Injected(Exception):
    """What a phase fails with here."""


class ImpatientLoop(asyncio.SelectorEventLoop):
    """A loop on which no wait of ENDLESS_S and more ends by itself: where a stop waits for such a time, it hangs."""

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        if when - self.time() >= ENDLESS_S:
            when = self.time() + 86_400
        return super().call_at(when, callback, *args, context=context)


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=ImpatientLoop) as runner:
        runner.run(work)


def after_phase(monkeypatch: pytest.MonkeyPatch, name: str, then: Any) -> None:
    """Have ``then`` called when a phase has ended."""
    owner: Any = BrokerStart if name.startswith("_") else start
    phase = getattr(owner, name)

    async def later(*arguments: Any) -> Any:
        result = await phase(*arguments)
        then()
        return result

    def at_once(*arguments: Any) -> Any:
        result = phase(*arguments)
        then()
        return result

    monkeypatch.setattr(owner, name, later if inspect.iscoroutinefunction(phase) else at_once)


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

    Other parts of this process, such as servers that fixtures run, may have closed something, or have opened it for a
    moment.
    """
    await wait_until_async(lambda: held() <= before, lambda: f"no more than before; left is {held() - before}")


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
        await wait_until_async(lambda: asyncio.all_tasks() == tasks, "those that have been cancelled to end")
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
        if registry is not None:
            registry.connect().close()  # its files are open from the first commit on
        before = held()
        after_phase(monkeypatch, phase, running.broker.stop)
        assert await running.run() == 0
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
            await wait_until_async(lambda: registry._waiting, "the start waits for the registry")
            running.broker.stop()
            assert await ends == 0
            assert not running.ready.is_set()
            registry.become_reachable()
            assert all(session.is_closed for session in registry.sessions)

    run(work())
