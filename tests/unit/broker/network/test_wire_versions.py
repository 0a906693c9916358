"""Brokers whose versions of the inner wire are too far apart refuse each other, with one line on each side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_kafkalite.broker.network.peer import PeerIdentity, PeerSettings
from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.network.wire_versions import WireVersions, version_problem
from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.replica_fetcher import FetchSettings, LeaderFetcher
from spark_kafkalite.errors import InnerWireUnsupported, KafkaliteError
from spark_kafkalite.model import Incarnation
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, diff
from spark_kafkalite.security.cluster_secret import ClusterSecret
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from tests.lab.manual_loop import ManualLoop
from tests.lab.partition_states import live_broker
from tests.patience import PATIENCE_S, wait_until_async
from tests.unit.broker.network.brokers_door import HEARTBEAT_VERSION, SECRET, Door, Visitor, door
from tests.unit.slice_clock import SliceClock


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


def registered(number: int, version: int, at: Door | None = None) -> BrokerInfo:
    broker = replace(live_broker(number), inner_wire_version=version)
    return broker if at is None else replace(broker, host=at.address[0], port=at.address[1])


def peers_of(at: Door, broker_id: int, version: int) -> Peers:
    identity = PeerIdentity(broker_id, ClusterSecret((SECRET,)), WireVersions(broker_id, version))
    return Peers(at.loop, at.slices, lambda: identity, PeerSettings(PATIENCE_S, -1))


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the broker complains of; a slow host has asyncio complain, too."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno >= logging.WARNING and each.name.startswith("spark_kafkalite")
    ]


@pytest.mark.parametrize(
    ("mine", "other", "speaks"), [(1, 1, True), (1, 2, True), (2, 1, True), (1, 3, False), (4, 2, False)]
)
def test_a_broker_speaks_its_own_version_and_the_one_before(mine: int, other: int, speaks: bool) -> None:
    problem = version_problem(7, mine, 9, other)
    assert (problem == "") == speaks
    if problem:
        assert f"broker 7 has version {mine} of" in problem
        assert f"broker 9 has version {other}" in problem
        assert f"all brokers to version {min(mine, other) + 1} before any has version {max(mine, other)}" in problem


def test_brokers_one_version_apart_talk(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        for mine, others in ((2, 1), (1, 2), (2, 2)):
            async with door() as one:
                one.inner_wire.versions = WireVersions(1, others)
                peers = peers_of(one, 7, mine)
                answer = await peers.ask(
                    registered(1, others, one), HeartbeatRequest(), HEARTBEAT_VERSION, timeout_s=PATIENCE_S
                )
                assert (answer.error_code, one.asked) == (0, [7])
                peers.close()
        assert errors_in(caplog) == []

    run(test)


def test_a_registration_too_far_apart_is_not_connected_to_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with door() as one:
            peers = peers_of(one, 7, 1)
            for version in (3, 4):
                for _ in range(50):
                    with pytest.raises(InnerWireUnsupported):
                        await peers.ask(
                            registered(1, version, one), HeartbeatRequest(), HEARTBEAT_VERSION, timeout_s=PATIENCE_S
                        )
            assert one.asked == []
            told = errors_in(caplog)
            assert len(told) == 2, told
            assert "broker 7 has version 1" in told[0] and "broker 1 has version 3" in told[0]
            peers.close()

    run(test)


def test_who_connects_all_the_same_is_refused_and_both_sides_say_why_once(caplog: pytest.LogCaptureFixture) -> None:
    """It may be an older one that does not look, or one whose registration is not known yet."""

    async def test() -> None:
        async with door() as one:
            one.inner_wire.versions, versions = WireVersions(1, 1), WireVersions(7, 3)
            for _ in range(5):
                visitor = one.connect(versions=versions)
                await wait_until_async(lambda visitor=visitor: bool(visitor.errors), "the refusal")
                assert isinstance(visitor.errors[0], InnerWireUnsupported)
            assert one.asked == []
            told = errors_in(caplog)
            assert len(told) == 2, told
            for line in told:
                assert "broker 7 has version 3" in line and "broker 1 has version 1" in line
                assert "Upgrade step by step" in line

    run(test)


def test_each_of_two_brokers_says_so_when_the_other_one_registers(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with door() as one:
            one.inner_wire.versions = WireVersions(1, 1)
            nobody, both = ClusterState(), ClusterState(brokers={1: registered(1, 1), 2: registered(2, 3)})
            one.inner_wire.cluster_changed(nobody, both, diff(nobody, both))
            one.inner_wire.cluster_changed(nobody, both, diff(nobody, both))
            (line,) = errors_in(caplog)
            assert "broker 1 has version 1" in line and "broker 2 has version 3" in line

    run(test)


def test_a_follower_of_such_a_leader_neither_floods_the_log_nor_asks_often(caplog: pytest.LogCaptureFixture) -> None:
    versions, clock = WireVersions(7, 1), ManualClock()
    loop = ManualLoop(clock)
    tries: list[float] = []

    def connect(broker: BrokerInfo, on_closed: Callable[[KafkaliteError], None]) -> Visitor:
        tries.append(loop.time())
        versions.check(broker.broker_id, broker.inner_wire_version)
        raise AssertionError("it is connected to")

    fetcher = LeaderFetcher(
        loop,
        Slices(loop, SliceClock()),
        1,
        lambda number: registered(number, 3),
        connect,  # type: ignore[arg-type]
        FetchSettings(7, Incarnation(70), backoff_s=1.0),
        ReplicationThrottle(loop.time),
    )
    follower = SimpleNamespace(epoch=0, ready_at_s=0.0, on_ready=None, ask=lambda _: None, is_throttled=False)
    fetcher.add((b"t" * 16, 0), follower)  # type: ignore[arg-type]
    loop.run_for(20.0)
    fetcher.close()
    loop.close()
    # Once in replica.fetch.backoff.ms.
    assert 2 <= len(tries) <= 30
    assert len(errors_in(caplog)) == 1
