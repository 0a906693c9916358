"""Exchanges that are counted; under a quota that delays; and sessions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafkalite.broker.requests.exchange import Exchange, Times
from spark_kafkalite.broker.requests.handlers import api_versions
from spark_kafkalite.log.segments.sending import Sending
from spark_kafkalite.net.outbox import FileRange
from spark_kafkalite.slices import Work
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsResponse
from spark_kafkalite.wire.messages.heartbeat import HeartbeatResponse
from spark_kafkalite.wire.messages.produce import ProduceRequest, TopicProduceData
from tests.unit.broker.network.test_connection import FakeFile
from tests.unit.broker.requests.test_dispatch import (
    DELETE_GROUPS,
    HEARTBEAT,
    Client,
    World,
    busy,
    echo,
    names,
    run,
    small,
)

PRODUCE = ApiKey.PRODUCE
REFUSED = 29


class Delaying:
    def __init__(self, throttle_ms: int = 500) -> None:
        self.throttle_ms = throttle_ms
        self.asked: list[tuple[int, int, int]] = []

    counts_time = False

    def most_fetch_bytes(self, asked: int) -> int:
        return asked

    def throttle_time_ms(self, exchange: Exchange, response_bytes: int) -> int:
        self.asked.append((exchange.correlation_id, exchange.request_bytes, response_bytes))
        return self.throttle_ms


class Counting:
    def next(self, api_key: int) -> Counting:
        return self

    def __init__(self) -> None:
        self.ended_exchanges: list[Exchange] = []
        self.times: list[Times] = []

    def ended(self, exchange: Exchange, times: Times) -> None:
        self.ended_exchanges.append(exchange)
        self.times.append(times)


def answered(client: Client) -> list[DeleteGroupsResponse]:
    data, found = bytes(client.channel.sent), []
    while data:
        (size,) = struct.unpack_from(">i", data)
        found.append(codec.decode_response(DELETE_GROUPS, 2, data[4 : 4 + size])[1])
        data = data[4 + size :]
    return found


def never(*_: Any) -> Any:
    raise AssertionError("this handler is not to be called")


def produce_of(topic: str) -> ProduceRequest:
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic)])


# Delaying -------------------------------------------------------------------------------------------------------------


def test_a_throttled_client_has_its_answer_at_once_and_is_then_not_served_for_as_long_as_that_says() -> None:
    served = []

    def handler(_: Any, exchange: Exchange, message: Any) -> HeartbeatResponse:
        served.append(exchange.correlation_id)
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, handler)
        client = world.connect()
        client.send(small(), small())
        assert (client.answers(), served) == ([1], [1])
        _, answer = codec.decode_response(HEARTBEAT, 2, bytes(client.channel.sent[4:]))
        assert answer.throttle_time_ms == 500
        assert client.fake.reader is None
        client.fake.pass_time(0.4)
        client.fake.run_soon()
        assert served == [1]
        client.fake.pass_time(0.2)
        client.fake.run_soon()
        assert (client.answers(), served) == ([1, 2], [1, 2])

    run(scenario, quota=Delaying())


def test_time_in_which_a_client_is_muted_is_neither_idle_nor_slow() -> None:
    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, lambda *_: HeartbeatResponse())
        client = world.connect()
        client.owner.limits.idle_s = client.owner.limits.read_timeout_s = 10
        client.send(small())
        client.fake.now += 3000
        assert client.connection.overdue(client.fake.now) is None
        client.fake.now -= 3000
        client.fake.pass_time(3600)
        client.fake.run_soon()
        assert client.connection.overdue(client.fake.now) is None
        assert "idle" in (client.connection.overdue(client.fake.now + 11) or "")

    run(scenario, quota=Delaying(3_600_000))


def test_the_longest_of_several_delays_holds() -> None:
    quota = Delaying(1000)
    waiting: list[Exchange] = []

    def raw(_: Any, exchange: Exchange, frame: memoryview, position: int) -> None:
        exchange.defer()
        waiting.append(exchange)

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, raw, raw=True)
        client = world.connect()
        client.send(small(), small(), small())
        await client.until(lambda: len(waiting) == 3)
        for delay_ms, exchange in zip((1000, 3000, 100), waiting, strict=True):
            quota.throttle_ms = delay_ms
            exchange.answer(b"\0\0\0\0")
        client.fake.run_soon()
        assert len(client.answers()) == 3, "answers leave whatever is muted"
        client.fake.pass_time(2.9)
        client.fake.run_soon()
        assert client.fake.reader is None
        client.fake.pass_time(0.2)
        client.fake.run_soon()
        assert client.fake.reader is not None

    run(scenario, quota=quota)


def test_the_size_of_what_a_handler_answers_is_charged_once() -> None:
    quota = Delaying(0)

    def raw(_: Any, exchange: Exchange, frame: memoryview, position: int) -> bytes:
        assert exchange.throttle_time_ms(12_345) == 0
        return b"\0\0\0\1"

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, raw, raw=True)
        client = world.connect()
        client.send(small())
        request_bytes = len(codec.encode_request(small(), 2, 1, None))
        assert quota.asked == [(1, request_bytes, 12_345)]
        assert client.fake.reader is not None

    run(scenario, quota=quota)


def test_a_quota_is_told_for_how_long_the_loop_has_worked_on_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inline, in slices, and in a coroutine; what others do meanwhile does not count."""

    class Timing(Delaying):
        counts_time = True

        def __init__(self) -> None:
            super().__init__(0)
            self.worked_s: list[float] = []

        def throttle_time_ms(self, exchange: Exchange, response_bytes: int) -> int:
            self.worked_s.append(exchange.worked_s)
            return 0

    quota = Timing()

    now_s = [100.0]
    monkeypatch.setattr("spark_kafkalite.broker.requests.exchange.perf_counter", lambda: now_s[0])

    def spin() -> None:
        now_s[0] += 0.01

    def inline(*_: Any) -> HeartbeatResponse:
        spin()
        return HeartbeatResponse()

    def in_slices(context: Any, *_: Any) -> Work[DeleteGroupsResponse]:
        for _ in range(3):
            spin()
            # A slice is over: another one's turn comes first.
            context.clock.take(1.0)
            yield None
        return DeleteGroupsResponse()

    async def waits(context: Any, exchange: Exchange, _: Any) -> HeartbeatResponse:
        await asyncio.sleep(0)
        now_s[0] += 5
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, inline)
        world.serve(DELETE_GROUPS, in_slices)
        client = world.connect()
        client.send(small())
        await client.until(lambda: client.answers() == [1])
        client.send(names(1))
        await client.until(lambda: client.answers() == [1, 2])
        world.serve(HEARTBEAT, waits)
        client.send(small())
        await client.until(lambda: client.answers() == [1, 2, 3])

    run(scenario, quota=quota)
    at_once, sliced, waited = quota.worked_s
    assert at_once == pytest.approx(0.01)
    assert sliced == pytest.approx(0.03)
    assert waited == 0


def test_without_a_quota_that_counts_time_work_stays_as_it_is() -> None:
    async def scenario(world: World) -> None:
        client = world.connect()
        exchange = Exchange(client.connection, (DELETE_GROUPS, 0, 1, None))
        work = echo(None, None, names(1))
        assert exchange.counted(work) is work
        assert not exchange.resume()
        exchange.quota = Delaying()
        assert exchange.counted(work) is work
        assert not exchange.resume()
        work.close()

    run(scenario)


# Counting -------------------------------------------------------------------------------------------------------------


def test_the_times_of_an_exchange_are_in_order_until_its_last_byte_has_left() -> None:
    watch = Counting()
    waiting: list[Exchange] = []

    def raw(_: Any, exchange: Exchange, frame: memoryview, position: int) -> None:
        exchange.defer()
        waiting.append(exchange)

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, raw, raw=True)
        client = world.connect()
        client.fake.now = 100.0
        client.send(small(), small())
        await client.until(lambda: len(waiting) == 2)
        client.fake.now = 103.0
        client.channel.room = 30
        waiting[0].answer(([b"head", FileRange(FakeFile(), 0, 50, Sending())], 54))
        client.fake.run_soon()
        assert watch.ended_exchanges == [], "some of the file has not left"
        client.fake.now = 107.0
        client.channel.room = 1000
        assert client.fake.writer is not None
        client.fake.writer()
        (times,) = watch.times
        assert (times.arrived_s, times.started_s, times.deferred_s) == (100.0, 100.0, 100.0)
        assert (times.answered_s, times.sent_s, times.waited_s) == (103.0, 107.0, 3.0)
        client.connection.close("gone")
        assert [one.correlation_id for one in watch.ended_exchanges] == [1, 2]
        assert watch.times[1].sent_s == 0.0
        waiting[1].answer(b"nobody is there")
        assert len(watch.ended_exchanges) == 2

    run(scenario, watch)


def slow(context: Any, exchange: Exchange, message: Any) -> Work[DeleteGroupsResponse]:
    yield from busy(context, 3)
    return DeleteGroupsResponse()


async def waits(_: Any, exchange: Exchange, message: Any) -> DeleteGroupsResponse:
    await asyncio.sleep(0)
    return DeleteGroupsResponse()


def says_nothing(_: Any, exchange: Exchange, frame: memoryview, position: int) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("handler", "raw", "count"),
    [(echo, False, 3), (slow, False, 3), (waits, False, 3), (echo, False, 20_000), (says_nothing, True, 1)],
)
def test_every_exchange_ends_exactly_once(handler: Callable[..., Any], raw: bool, count: int) -> None:
    watch = Counting()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, handler, raw=raw)
        client = world.connect()
        client.send(names(count), names(1), names(count))
        await client.until(lambda: len(watch.ended_exchanges) == 3)
        assert sorted(one.correlation_id for one in watch.ended_exchanges) == [1, 2, 3]
        assert all(one.sent_s >= one.answered_s >= one.started_s > 0 for one in watch.times)
        client.connection.close("gone")
        await asyncio.sleep(0)
        assert len(watch.ended_exchanges) == 3

    run(scenario, watch)


@pytest.mark.parametrize("handler", [slow, waits])
def test_exchanges_of_a_connection_that_closes_end_unsent(handler: Callable[..., Any]) -> None:
    watch = Counting()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, handler)
        client = world.connect()
        client.send(names(3))
        client.connection.close("gone")
        for _ in range(100):
            await asyncio.sleep(0)
        (times,) = watch.times
        assert times.sent_s == 0.0
        assert client.owner.memory.used_bytes == 0

    run(scenario, watch)


def test_without_a_watch_no_times_are_taken() -> None:
    seen: list[Exchange] = []

    def handler(_: Any, exchange: Exchange, message: Any) -> HeartbeatResponse:
        seen.append(exchange)
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, handler)
        world.connect().send(small())
        (exchange,) = seen
        assert exchange.times is None

    run(scenario)


def test_an_exchange_is_answered_once() -> None:
    def twice(_: Any, exchange: Exchange, frame: memoryview, position: int) -> bytes:
        exchange.answer(b"\0\0\0\1")
        with pytest.raises(RuntimeError, match="answered once"):
            exchange.answer(b"\0\0\0\1")
        return None  # type: ignore[return-value]

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, twice, raw=True)
        client = world.connect()
        client.send(small())
        assert client.answers() == [1]

    run(scenario)


# Sessions -------------------------------------------------------------------------------------------------------------


def test_a_session_learns_its_clients_software_once_it_is_well_formed() -> None:
    async def scenario(world: World) -> None:
        world.serve(18, api_versions.handle)
        client = world.connect()
        session = client.connection.session
        assert (session.principal, session.client_software_name) == ("User:ANONYMOUS", "")
        client.send(ApiVersionsRequest(client_software_name="no spaces", client_software_version="1"), version=3)
        assert session.client_software_name == ""
        client.send(ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.11.0"), version=3)
        assert (session.client_software_name, session.client_software_version) == ("librdkafka", "2.11.0")
        assert "librdkafka 2.11.0" in repr(session)

    run(scenario)


@pytest.mark.parametrize(
    ("peer", "host"), [("127.0.0.1:5", "/127.0.0.1"), ("[::1]:5", "/::1"), ("[fe80::1%eth0]:5", "/fe80::1%eth0")]
)
def test_the_client_host_is_shown_as_kafka_shows_it(peer: str, host: str) -> None:
    async def scenario(world: World) -> None:
        session = world.connect().connection.session
        session.peer = peer
        assert session.client_host == host

    run(scenario)
