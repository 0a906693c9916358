"""Requests of all kinds from several clients at a time: each is answered once, in its place, or its connection ends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.gate import AT_ONCE
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from spark_kafkalite.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.unit.broker.requests.test_dispatch import (
    DELETE_GROUPS,
    HEARTBEAT,
    World,
    answer_heartbeat,
    busy,
    echo,
    names,
    run,
    small,
)

LIST_GROUPS = 16


@pytest.mark.parametrize("seed", range(12))
def test_a_mix_of_requests_is_answered_in_order_whoever_leaves_in_between(seed: int) -> None:
    chosen = random.Random(seed)

    def worked(context: Any, exchange: Exchange, message: DeleteGroupsRequest) -> Work[DeleteGroupsResponse]:
        for _ in range(chosen.choice([0, 3, 50])):
            yield None
        if chosen.random() < 0.1:
            yield from busy(context, 2)
        return (yield from echo(context, exchange, message))

    async def waited(_: Any, exchange: Exchange, message: ListGroupsRequest) -> ListGroupsResponse:
        for _ in range(chosen.randint(0, 20)):
            await asyncio.sleep(0)
        return ListGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, worked)
        world.serve(LIST_GROUPS, waited)
        world.serve(HEARTBEAT, answer_heartbeat)
        clients = [world.connect() for _ in range(5)]
        for _ in range(40):
            client = chosen.choice(clients)
            kinds = (small, ListGroupsRequest, lambda: names(chosen.choice([1, 40, 40, 4000])))
            client.send(*(chosen.choice(kinds)() for _ in range(chosen.randint(1, 4))))
            if chosen.random() < 0.05:
                client.connection.close("gone")
                clients[clients.index(client)] = world.connect()
            for _ in range(chosen.randint(0, 5)):
                await asyncio.sleep(0)
                client.fake.run_soon()
        for client in clients:
            await client.until(lambda client=client: len(client.answers()) == client.sent)
            assert client.answers() == list(range(1, client.sent + 1))
            assert client.owner.memory.used_bytes == 0
        for _ in range(200):
            await asyncio.sleep(0)
        assert not world.context.gate

    run(scenario)


@pytest.mark.parametrize("ahead", [0, AT_ONCE])
def test_the_work_of_a_client_that_leaves_ends_and_its_place_is_taken(ahead: int) -> None:
    """Its work is inside the gate, or waits before it."""
    steps: list[int] = []

    def endless(context: Any, exchange: Exchange, message: DeleteGroupsRequest) -> Work[DeleteGroupsResponse]:
        while True:
            steps.append(exchange.correlation_id)
            yield from busy(context, 1)

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, endless)
        clients = [world.connect() for _ in range(ahead + 1)]
        for client in clients:
            client.send(names(1))
            await asyncio.sleep(0)
        # The last one first: it is let in only if all are.
        for client in reversed(clients):
            client.connection.close("gone")
        count = len(steps)
        assert count > ahead
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(steps) == count
        assert not world.context.gate

    run(scenario)


def fails_at_once(*_: Any) -> HeartbeatResponse:
    raise RuntimeError("a bug")


def fails_in_its_first_slice(*_: Any) -> Work[HeartbeatResponse]:
    yield None
    raise RuntimeError("a bug")


async def fails_after_a_wait(*_: Any) -> HeartbeatResponse:
    await asyncio.sleep(0)
    raise RuntimeError("a bug")


@pytest.mark.parametrize("handler", [fails_at_once, fails_in_its_first_slice, fails_after_a_wait])
def test_a_bug_in_a_handler_closes_its_connection_and_is_reported(
    handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, handler)
        client = world.connect()
        client.send(small())
        await client.until(lambda: client.connection.closed)
        assert "the handler of API 12 version 2 failed" in caplog.text
        assert client.owner.memory.used_bytes == 0
        assert not world.context.gate

    run(scenario)


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [
        (ListGroupsRequest(), 2, "API 16 version 2: this API is not served"),
        (HeartbeatRequest(group_id="g", member_id="m"), 4, "API 12 version 4: served are 1 to 3"),
        (HeartbeatRequest(group_id="g", member_id="m"), 0, "API 12 version 0: served are 1 to 3"),
    ],
)
def test_what_is_not_served_is_refused_with_what_is(message: Any, version: int, reason: str) -> None:
    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, answer_heartbeat)
        world.apis[HEARTBEAT] = replace(world.apis[HEARTBEAT], min_version=1, max_version=3)
        client = world.connect()
        client.send(message, version=version)
        ((said, hostile),) = client.owner.closed
        assert reason in said
        assert hostile
        assert client.answers() == []

    run(scenario)
