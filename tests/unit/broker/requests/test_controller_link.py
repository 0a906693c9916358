"""Requests that are handed on: to whoever is the controller, once it is there, and never twice to one that may work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Any

import pytest

from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.peers import NotAnswered
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.controller_link import ControllerLink
from spark_kafkalite.errors import BrokerUnreachable, KafkaliteError, NotController, RequestTimedOut
from spark_kafkalite.model import BrokerEpoch, BrokerId
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.create_topics import CreateTopicsRequest
from tests.lab.manual_loop import ManualLoop

ME = 1
REFUSAL = "not the controller"


class World:
    """Broker 1, and others whose answers are what a test says."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.is_controller = False
        self.link = ControllerLink(ME, self.view, self, lambda: self.is_controller)  # type: ignore[arg-type]
        self.outcomes: list[str | BaseException] = []
        # Who was asked, and how long its request says it may take.
        self.asked: list[tuple[int, int]] = []
        self.set_controller(-1)

    def set_controller(self, controller_id: int, brokers: tuple[int, ...] = (1, 2, 3)) -> None:
        infos = {number: BrokerInfo(BrokerId(number), "h", 1, None, BrokerEpoch(1)) for number in brokers}
        new = ClusterState(brokers=MappingProxyType(infos), controller_id=BrokerId(controller_id))
        self.view.publish(new, diff(self.view.state, new))

    async def ask(self, broker: BrokerInfo, message: Any, version: int, *, timeout_s: float) -> Any:
        self.asked.append((broker.broker_id, message.timeout_ms))
        assert timeout_s > message.timeout_ms / 1000 and version == 7
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def hand_on(self, timeout_ms: int = 30_000, session: Session | None = None) -> Any:
        request = CreateTopicsRequest(timeout_ms=timeout_ms)
        return await self.link.hand_on(request, 7, lambda answer: answer == REFUSAL, session)


def run(test: Callable[[World], Awaitable[None]]) -> float:
    """Return the seconds that the test took by its own clock."""
    loop = ManualLoop(ManualClock())
    try:
        began_s = loop.time()

        async def made() -> None:
            await test(World())

        loop.run_until_complete(made())
        return loop.time() - began_s
    finally:
        loop.close()


def test_the_controllers_answer_is_the_answer() -> None:
    async def test(world: World) -> None:
        world.set_controller(2)
        world.outcomes = ["done"]
        assert await world.hand_on() == "done"
        assert world.asked == [(2, 30_000)]

    assert run(test) < 0.1


def test_the_controller_itself_hands_nothing_on() -> None:
    async def test(world: World) -> None:
        world.is_controller = True
        world.set_controller(2)
        assert await world.hand_on() is None

    assert run(test) == 0


def test_what_comes_from_a_broker_is_not_handed_on_again() -> None:
    async def test(world: World) -> None:
        world.set_controller(2)
        session = Session("peer", Listener("P", "h", 1, "h", 1))
        session.prove_broker(3, b"proof")
        assert await world.hand_on(session=session) is None
        client = Session("peer", Listener("P", "h", 1, "h", 1))
        world.outcomes = ["done"]
        assert await world.hand_on(session=client) == "done"

    run(test)


def test_a_controller_that_comes_in_time_is_waited_for() -> None:
    async def test(world: World) -> None:
        asking = asyncio.ensure_future(world.hand_on())
        await asyncio.sleep(3)
        # It is named before it is known where it is.
        world.set_controller(3, brokers=(1, 2))
        await asyncio.sleep(3)
        world.outcomes = ["done"]
        world.set_controller(3)
        assert await asking == "done"
        ((asked, timeout_ms),) = world.asked
        assert asked == 3 and 23_000 <= timeout_ms <= 24_000

    run(test)


def test_becoming_the_controller_ends_the_wait() -> None:
    async def test(world: World) -> None:
        asking = asyncio.ensure_future(world.hand_on())
        await asyncio.sleep(1)
        world.set_controller(ME)
        await asyncio.sleep(1)
        assert not asking.done()
        world.is_controller = True
        assert await asking is None

    assert run(test) < 2.5


@pytest.mark.parametrize(("timeout_ms", "waited_s"), [(30_000, 10), (2000, 2), (0, 0), (-5, 0)])
def test_nobody_waits_for_a_controller_for_long(timeout_ms: int, waited_s: float) -> None:
    async def test(world: World) -> None:
        with pytest.raises(NotController, match="no controller at present"):
            await world.hand_on(timeout_ms)

    assert waited_s <= run(test) <= waited_s + 0.2


@pytest.mark.parametrize("failure", [REFUSAL, BrokerUnreachable("gone"), KafkaliteError("refused")])
def test_one_that_has_not_done_it_is_asked_again_or_the_next_one(failure: Any) -> None:
    async def test(world: World) -> None:
        world.set_controller(2)
        world.outcomes = [failure] * 5
        asking = asyncio.ensure_future(world.hand_on())
        while world.outcomes:
            await asyncio.sleep(0.01)
        world.outcomes = ["done"]
        world.set_controller(3)
        assert await asking == "done"
        assert [number for number, _ in world.asked] == [2] * 5 + [3]

    run(test)


def test_one_that_is_not_reached_is_named_in_the_end() -> None:
    async def test(world: World) -> None:
        world.set_controller(2)
        world.outcomes = [BrokerUnreachable("broker 2 at h:1 is gone")] * 1000
        with pytest.raises(NotController, match="broker 2 at h:1 is gone"):
            await world.hand_on()

    assert 10 <= run(test) <= 10.2


@pytest.mark.parametrize("failure", [NotAnswered("broken"), TimeoutError()])
def test_one_that_may_have_done_it_is_not_asked_again(failure: BaseException) -> None:
    async def test(world: World) -> None:
        world.set_controller(2)
        world.outcomes = [failure, "done"]
        with pytest.raises(RequestTimedOut, match="broker 2, the controller"):
            await world.hand_on()
        assert len(world.asked) == 1

    run(test)
