"""A broker's own look at its registration: what it proves, and what it notices."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration, registration_watch
from spark_kafkalite.registry.cluster.registration_watch import RegistrationGone, RegistrationWatch
from spark_kafkalite.registry.store import ConnectionLoss, Request, SessionExpired
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.patience import wait_until_async
from tests.unit.registry.virtual_time import follow, run


class SlowStore(EmbeddedStore):
    """Answers when it is told to."""

    held: list[Future[Any]] | None = None

    def ask(self, request: Request) -> Future[Any]:
        if self.held is None:
            return super().ask(request)
        self.held.append(Future())
        return self.held[-1]


class Watched:
    def __init__(self, registry: EmbeddedRegistry) -> None:
        self.clock = ManualClock()
        self.store = SlowStore(registry, session_timeout_ms=60)
        self.answers: list[tuple[float, int]] = []
        self.watch = RegistrationWatch(
            self.store, BrokerId(1), self.clock, lambda sent_s, timeout_ms: self.answers.append((sent_s, timeout_ms))
        )

    async def register(self) -> None:
        follow(self.store.registry)
        await registration.register_broker(self.store, BrokerRegistration(BrokerId(1), "h", 1))

    async def has_asked(self) -> None:
        """Wait until it has asked, and the answer is held."""
        await wait_until_async(lambda: self.store.held, "the watch asks", poll_s=0.001)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with EmbeddedRegistry(tmp_path) as registry:
        yield Watched(registry)


def test_an_answer_proves_the_session_from_the_sending_on(watched: Watched) -> None:
    async def work() -> None:
        await watched.register()
        sent_s = watched.clock.monotonic_s()
        watched.store.held = []
        look = asyncio.ensure_future(watched.watch.look())
        await watched.has_asked()
        # However long the answer is on its way.
        watched.clock.advance(s=100)
        caught_up, found = watched.store.held
        watched.store.held = None
        stat = watched.store.exists(znodes.broker_path(1)).result()
        caught_up.set_result(None)
        found.set_result(stat)
        await look
        assert watched.answers == [(sent_s, 60)]

    run(work())


@pytest.mark.parametrize("error", [ConnectionLoss("broken"), SessionExpired("over")])
def test_no_answer_proves_nothing(watched: Watched, error: Exception) -> None:
    async def work() -> None:
        await watched.register()
        for failing in (0, 1):
            watched.store.held = []
            look = asyncio.ensure_future(watched.watch.look())
            await watched.has_asked()
            asked = watched.store.held
            asked[failing].set_exception(error)
            if failing == 0:
                watched.store.held = None
                asked[1].set_result(watched.store.exists(znodes.broker_path(1)).result())
            else:
                asked[0].set_result(None)
            with pytest.raises(type(error)):
                await look
        assert watched.answers == []

    run(work())


def test_it_looks_again_and_again_until_the_session_ends(watched: Watched) -> None:
    async def work() -> None:
        await watched.register()
        running = asyncio.ensure_future(watched.watch.run())
        await wait_until_async(lambda: len(watched.answers) >= 5, "the watch asks again", poll_s=0.001)
        # A connection that breaks is no end.
        watched.store.held = []
        await watched.has_asked()
        asked, watched.store.held = watched.store.held, None
        for each in asked:
            each.set_exception(ConnectionLoss("broken"))
        before = len(watched.answers)
        await wait_until_async(lambda: len(watched.answers) >= before + 2, "the watch goes on", poll_s=0.001)
        watched.store.registry.expire(watched.store.session_id).result()
        await running

    run(work())


def test_a_registration_that_is_removed_or_foreign_is_noticed(watched: Watched) -> None:
    async def work() -> None:
        await watched.register()
        other = EmbeddedStore(watched.store.registry)
        running = asyncio.ensure_future(watched.watch.run())
        other.delete(znodes.broker_path(1)).result()
        with pytest.raises(RegistrationGone, match="/brokers/ids/1 is gone, although"):
            await running
        await registration.register_broker(other, BrokerRegistration(BrokerId(1), "h", 1))
        with pytest.raises(RegistrationGone, match="belongs to another session"):
            await watched.watch.look()

    run(work())


def test_silence_is_said_once_a_minute(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await watched.register()
        watched.store.held = []
        running = asyncio.ensure_future(watched.watch.run())
        await watched.has_asked()

        def said() -> list[str]:
            return [record.getMessage() for record in caplog.records if "has not answered for" in record.message]

        with caplog.at_level(logging.WARNING, registration_watch.__name__):
            for minutes in (1, 2):
                watched.clock.advance(s=61)
                await wait_until_async(lambda: len(said()) >= minutes, "the watch logs it", poll_s=0.001)  # noqa: B023
                # Some rounds later it has not repeated it.
                await asyncio.sleep(0.5)
                assert len(said()) == minutes
        assert "for 61 s; what this broker leads is served for acks=all" in said()[0]
        running.cancel()

    run(work())


def test_a_look_that_is_called_off_leaves_no_error_behind(watched: Watched) -> None:
    async def work() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await watched.register()
        watched.store.held = []
        look = asyncio.ensure_future(watched.watch.look())
        await watched.has_asked()
        look.cancel()
        await asyncio.sleep(0)
        for each in watched.store.held:
            if each.set_running_or_notify_cancel():
                each.set_exception(SessionExpired("over"))
        await asyncio.wait([look])
        assert look.cancelled()
        del look
        gc.collect()
        assert complaints == []

    run(work())
