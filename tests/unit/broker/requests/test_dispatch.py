"""From requests to handlers of every kind and back, over a connection whose channel and sockets are fakes."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.network.connection import Connection
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.dispatch import SMALL_REQUEST_BYTES, Dispatcher, ServedApi
from spark_kafkalite.broker.requests.exchange import Exchange, Quota
from spark_kafkalite.broker.requests.gate import AT_ONCE, Gate
from spark_kafkalite.broker.requests.slow_requests import RequestWatch
from spark_kafkalite.coordinator.internal_topic import GROUPS
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.slices import PASS_S, SLICE_S, Slices, Work
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import FrameReader
from spark_kafkalite.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.unit.broker.network.test_connection import FakeOwner
from tests.unit.net.fake_channels import FakeChannel, FakeLoop
from tests.unit.slice_clock import SliceClock

DELETE_GROUPS, HEARTBEAT = ApiKey.DELETE_GROUPS, ApiKey.HEARTBEAT


class QuotaOfAll:
    """Gives every client the same quota."""

    are_set = True

    def __init__(self, quota: Quota) -> None:
        self._quota = quota

    def of(self, session: Session, client_id: str | None) -> Quota:
        return self._quota


class World:
    """A dispatcher with handlers of the test's own, on the running loop."""

    def __init__(self, watch: RequestWatch | None = None, quota: Quota | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        # Each reading of the clock, one a step of work, takes ten microseconds; handlers take more of it.
        self.clock = SliceClock(reading_s=1e-5)
        slices = Slices(self.loop, self.clock)
        self.context: Any = SimpleNamespace(loop=self.loop, slices=slices, gate=Gate(slices.now), clock=self.clock)
        self.apis: dict[int, ServedApi] = {}
        self.dispatcher = Dispatcher(self.context, self.apis, watch, quotas=QuotaOfAll(quota) if quota else None)

    def serve(
        self,
        key: int,
        handler: Callable[..., Any],
        *,
        raw: bool = False,
        waits_for_clients: bool = False,
        groups_of: Callable[[Any], list[str]] | None = None,
    ) -> None:
        self.apis[key] = ServedApi(ApiKey(key), 0, 9, 0, handler, raw, waits_for_clients, groups_of=groups_of)

    def connect(self, slices: Slices | None = None) -> Client:
        """Return a client whose connection shares the time of passes with others if ``slices`` says which."""
        return Client(self, slices)


class Client:
    def __init__(self, world: World, slices: Slices | None) -> None:
        self.world = world
        self.owner = FakeOwner(
            slices=slices, clock=world.clock, max_frame_bytes=1 << 30, max_requests=1000, max_response_bytes=1 << 30
        )
        self.owner.memory = RequestMemory(1 << 30)
        self.owner.scratch = memoryview(bytearray(4 + (1 << 16)))
        self.owner.room = memoryview(bytearray(1 << 16))
        self.owner.serve = world.dispatcher.serve
        self.fake: FakeLoop = self.owner.loop
        self.channel = FakeChannel()
        self.connection = Connection(self.owner, self.channel, Session("127.0.0.1:1", Listener("P", "h", 1, "h", 1)))
        self.sent = 0

    def send(self, *messages: Any, version: int = 2) -> None:
        """Send requests in one piece, and have the broker read them."""
        self.send_only(*messages, version=version)
        self.read()

    def send_only(self, *messages: Any, version: int = 2) -> None:
        """Send requests; the broker does not read them yet."""
        data = b""
        for message in messages:
            self.sent += 1
            body = codec.encode_request(message, version, self.sent, None)
            data += struct.pack(">i", len(body)) + body
        for first in range(0, len(data), 60_000):
            self.channel.incoming.append(data[first : first + 60_000])

    def read(self) -> None:
        while self.channel.incoming and self.fake.reader is not None:
            if self.owner.slices.is_spent:
                self.fake.run_soon()
            self.fake.reader()

    def answers(self) -> list[int]:
        """The correlation ids of what was answered so far, in order."""
        data, found = bytes(self.channel.sent), []
        while data:
            (size,) = struct.unpack_from(">i", data)
            found.append(struct.unpack_from(">i", data, 4)[0])
            data = data[4 + size :]
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100_000):
            self.fake.run_soon()
            self.read()
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")


def names(count: int) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(count)])


def small() -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", member_id="m")


def answer_heartbeat(*_: Any) -> HeartbeatResponse:
    return HeartbeatResponse()


def echo(_: Any, request: Any, message: DeleteGroupsRequest) -> Work[DeleteGroupsResponse]:
    answer = DeleteGroupsResponse()
    for name in message.groups_names:
        yield None
        answer.results.append(DeletableGroupResult(group_id=name))
    return answer


def busy(context: Any, slices: int) -> Iterator[None]:
    """Work of so many slices: each step takes one."""
    for _ in range(slices):
        context.clock.take(SLICE_S)
        yield None


def run(scenario: Callable[[World], Any], watch: RequestWatch | None = None, *, quota: Quota | None = None) -> None:
    async def main() -> None:
        await scenario(World(watch, quota))

    asyncio.run(main())


def test_work_that_one_slice_finishes_is_answered_at_once() -> None:
    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, echo)
        client = world.connect()
        client.send(names(3))
        assert client.answers() == [1]

    run(scenario)


def test_a_large_request_is_decoded_answered_and_encoded_over_many_passes_of_the_loop() -> None:
    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, echo)
        client = world.connect()
        client.send(names(60_000))
        assert client.answers() == []
        await client.until(lambda: client.answers() == [1])
        _, answer = codec.decode_response(DELETE_GROUPS, 2, bytes(client.channel.sent[4:]))
        assert [result.group_id for result in answer.results] == names(60_000).groups_names
        assert client.owner.memory.used_bytes == 0

    run(scenario)


def test_the_requests_behind_long_work_wait_for_it_and_are_answered_in_order() -> None:
    served = []

    def slow(context: Any, request: Any, message: Any) -> Work[DeleteGroupsResponse]:
        yield from busy(context, 5)
        served.append(request.correlation_id)
        return DeleteGroupsResponse()

    def quick(_: Any, request: Any, message: Any) -> HeartbeatResponse:
        served.append(request.correlation_id)
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, slow)
        world.serve(HEARTBEAT, quick)
        client, other = world.connect(), world.connect()
        client.send(names(1), small(), names(1), small())
        assert served == []
        other.send(small())
        assert other.answers() == [1], "another connection does not wait"
        served.clear()
        await client.until(lambda: len(client.answers()) == 4)
        assert client.answers() == served == [1, 2, 3, 4]

    run(scenario)


def test_a_request_that_comes_in_pieces_behind_long_work_waits_too() -> None:
    order = []

    def slow(context: Any, request: Any, message: Any) -> Work[DeleteGroupsResponse]:
        yield from busy(context, 3)
        order.append("slow done")
        return DeleteGroupsResponse()

    def large(_: Any, request: Any, message: Any) -> HeartbeatResponse:
        order.append("large served")
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, slow)
        world.serve(HEARTBEAT, large)
        client = world.connect()
        client.send(names(1), HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000))
        await client.until(lambda: len(client.answers()) == 2)
        assert order == ["slow done", "large served"]

    run(scenario)


def test_only_a_few_large_requests_are_worked_on_at_a_time() -> None:
    inside, most = 0, 0

    def counted(context: Any, request: Any, message: Any) -> Work[DeleteGroupsResponse]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            # However long the others take to be decoded; who may not come in would while this goes on.
            while most < AT_ONCE:
                yield None
            yield from busy(context, 2)
        finally:
            inside -= 1
        return DeleteGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, counted)
        clients = [world.connect() for _ in range(12)]
        for client in clients:
            client.send(names(10_000))
        # One goes away while it waits for its turn, one while it is worked on.
        clients[11].connection.close("gone")
        clients[0].connection.close("gone")
        for client in clients[1:11]:
            await client.until(lambda client=client: client.answers() == [1])
        assert most == AT_ONCE
        late = world.connect()
        late.send(names(10_000))
        await late.until(lambda: late.answers() == [1])
        assert [client.owner.memory.used_bytes for client in clients] == [0] * 12

    run(scenario)


def test_a_coroutine_that_gets_a_large_request_answers_in_its_place() -> None:
    async def waits(_: Any, request: Any, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
        await asyncio.sleep(0)
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name) for name in message.groups_names])

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, waits)
        world.serve(HEARTBEAT, answer_heartbeat)
        client = world.connect()
        client.send(names(20_000), small())
        await client.until(lambda: len(client.answers()) == 2)
        assert client.answers() == [1, 2]

    run(scenario)


def test_raw_work_keeps_its_frame_and_gives_it_back() -> None:
    def raw(context: Any, request: Any, frame: memoryview, position: int) -> Work[bytes]:
        return later(context, request, request.keep(frame))

    def later(context: Any, request: Any, frame: memoryview) -> Work[bytes]:
        before = bytes(frame)
        yield from busy(context, 3)
        assert bytes(frame) == before
        return codec.encode_response(HeartbeatResponse(), 2, request.correlation_id)

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, raw, raw=True)
        world.serve(DELETE_GROUPS, echo)
        client, other = world.connect(), world.connect()
        client.send(small(), names(3))
        other.send(names(3))
        assert client.owner.memory.used_bytes > 0
        await client.until(lambda: client.answers() == [1, 2])
        assert client.owner.memory.used_bytes == 0

    run(scenario)


@pytest.mark.parametrize("large", [True, False])
def test_a_part_of_a_request_is_kept_until_it_is_let_go_of_and_counted_once(large: bool) -> None:
    kept: list[tuple[memoryview, Callable[[], None]]] = []

    def raw(_: Any, request: Any, frame: memoryview, position: int) -> Any:
        return later(request, request.keep(frame)) if large else answer(request, frame)

    def later(request: Any, frame: memoryview) -> Work[bytes]:
        yield None
        return answer(request, frame)

    def answer(request: Any, frame: memoryview) -> bytes:
        kept[:] = [request.keep_part(frame[start : start + 100]) for start in (100, 300)]
        return codec.encode_response(HeartbeatResponse(), 2, request.correlation_id)

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, raw, raw=True)
        world.serve(HEARTBEAT, answer_heartbeat)
        client = world.connect()
        memory = client.owner.memory
        request = names(30_000 if large else 100)
        frame = codec.encode_request(request, 2, 1, None)
        client.send(request)
        await client.until(lambda: client.answers() == [1])
        assert memory.used_bytes == (len(frame) if large else 200)
        client.send(small())
        assert [bytes(part) for part, _ in kept] == [frame[100:200], frame[300:400]]
        kept[0][1]()
        assert memory.used_bytes == (len(frame) if large else 100)
        kept[1][1]()
        assert memory.used_bytes == 0

    run(scenario)


def test_a_large_request_that_cannot_be_read_closes_its_connection_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, echo)
        client = world.connect()
        body = bytearray(codec.encode_request(names(60_000), 2, 1, None))
        body[-100:] = b"\xff" * 100
        client.channel.incoming = [struct.pack(">i", len(body)) + body]
        client.connection._frames = FrameReader(1 << 30, memoryview(bytearray(1 << 20)))
        client.read()
        await client.until(lambda: client.connection.closed)
        ((reason, hostile),) = client.owner.closed
        assert "DeleteGroups" in reason and hostile
        assert client.owner.memory.used_bytes == 0

    run(scenario)


def test_a_bug_in_late_work_closes_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def buggy(context: Any, request: Any, message: Any) -> Work[DeleteGroupsResponse]:
        yield from busy(context, 3)
        raise RuntimeError("a bug")

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, buggy)
        world.serve(HEARTBEAT, answer_heartbeat)
        client, other = world.connect(), world.connect()
        client.send(names(1), small())
        await client.until(lambda: client.connection.closed)
        assert "a bug" in caplog.text
        other.send(small())
        assert other.answers() == [1]

    run(scenario)


def test_unfinished_work_ends_with_the_dispatcher() -> None:
    steps = []

    def endless(context: Any, request: Any, message: Any) -> Work[DeleteGroupsResponse]:
        while True:
            steps.append(1)
            yield from busy(context, 1)

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, endless)
        client = world.connect()
        client.send(names(1))
        await world.dispatcher.stop()
        count = len(steps)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(steps) == count

    run(scenario)


def test_a_handler_that_has_not_begun_ends_with_the_dispatcher() -> None:
    """Without a word of a coroutine that was never awaited, which pytest makes an error."""
    begun = []

    async def waits(_: Any, request: Any, message: Any) -> DeleteGroupsResponse:
        begun.append(1)
        return DeleteGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, waits)
        world.connect().send(names(1))
        await world.dispatcher.stop()
        assert not begun

    run(scenario)
    gc.collect()


def test_only_a_produce_may_be_larger_than_what_is_decoded() -> None:
    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, echo)
        client = world.connect()
        client.send(DeleteGroupsRequest(groups_names=["x" * 30_000] * 1200))
        assert client.connection.closed
        ((reason, _),) = client.owner.closed
        assert "at most 33554432 are possible" in reason

    run(scenario)


def test_small_requests_are_those_that_take_milliseconds() -> None:
    assert len(codec.encode_request(names(2_000), 2, 1, None)) < SMALL_REQUEST_BYTES


# What many small ones add up to -------------------------------------------------------------------------------------


def test_requests_that_one_client_has_sent_ahead_share_the_time_of_each_pass() -> None:
    served = []

    def handler(context: Any, exchange: Exchange, message: Any) -> HeartbeatResponse:
        served.append(exchange.correlation_id)
        context.clock.take(PASS_S / 4)
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, handler)
        client = world.connect()
        client.send(*[small()] * 40)
        in_a_pass = [len(served)]
        while len(client.answers()) < 40:
            before = len(served)
            client.fake.run_pass()
            in_a_pass.append(len(served) - before)
        assert served == client.answers() == list(range(1, 41))
        assert max(in_a_pass) <= 5
        assert client.owner.memory.used_bytes == 0

    run(scenario)


def test_all_clients_share_the_time_of_each_pass_and_all_are_served() -> None:
    served = 0

    def handler(context: Any, exchange: Exchange, message: Any) -> HeartbeatResponse:
        nonlocal served
        served += 1
        context.clock.take(PASS_S / 4)
        return HeartbeatResponse()

    async def scenario(world: World) -> None:
        world.serve(HEARTBEAT, handler)
        clients = [world.connect(world.context.slices) for _ in range(40)]
        for client in clients:
            client.send_only(small())
        passes = 0
        while served < 40:
            before = served
            for client in clients:
                if client.channel.incoming and client.fake.reader is not None:
                    client.fake.reader()
            assert served - before <= 5
            passes += 1
            assert passes < 1000
            await asyncio.sleep(0)
        for client in clients:
            await client.until(lambda client=client: client.answers() == [1])

    run(scenario)


def test_small_requests_whose_work_is_long_go_through_the_gate() -> None:
    inside, most = 0, 0

    def counted(context: Any, request: Any, message: Any) -> Work[DeleteGroupsResponse]:
        nonlocal inside, most
        yield from busy(context, 2)
        inside += 1
        most = max(most, inside)
        while most < AT_ONCE:
            yield None
        yield from busy(context, 2)
        inside -= 1
        return DeleteGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, counted)
        clients = [world.connect() for _ in range(10)]
        for client in clients:
            client.send(names(1))
        for client in clients:
            await client.until(lambda client=client: client.answers() == [1])
        assert most == AT_ONCE

    run(scenario)


def test_large_requests_of_handlers_that_wait_are_inside_until_they_are_answered() -> None:
    inside, most = 0, 0
    done = asyncio.Event()

    async def waits(_: Any, request: Any, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await done.wait()
        inside -= 1
        return DeleteGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, waits)
        clients = [world.connect() for _ in range(10)]
        for client in clients:
            client.send(names(10_000))
        await clients[0].until(lambda: inside == AT_ONCE)
        # Its work goes on, so its place is not free.
        clients[0].connection.close("gone")
        for _ in range(50):
            await asyncio.sleep(0)
        assert most == AT_ONCE
        done.set()
        for client in clients[1:]:
            await client.until(lambda client=client: client.answers() == [1])
        assert [client.owner.memory.used_bytes for client in clients] == [0] * 10
        # The answer does not wait until the request has been taken apart, which a slice may not be enough for.
        await clients[-1].until(lambda: not world.context.gate)

    run(scenario)


def test_who_waits_for_other_clients_is_not_inside() -> None:
    members = 0
    all_here = asyncio.Event()

    async def waits(_: Any, request: Any, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
        nonlocal members
        members += 1
        if members == 3 * AT_ONCE:
            all_here.set()
        await all_here.wait()
        return DeleteGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, waits, waits_for_clients=True)
        clients = [world.connect() for _ in range(3 * AT_ONCE)]
        for client in clients:
            client.send(names(10_000))
        for client in clients:
            await client.until(lambda client=client: client.answers() == [1])
        assert not world.context.gate

    run(scenario)


def test_requests_behind_one_that_waits_are_served_when_it_is_answered() -> None:
    served = []
    done = asyncio.Event()

    async def waits(_: Any, exchange: Exchange, message: Any) -> DeleteGroupsResponse:
        served.append(exchange.correlation_id)
        await done.wait()
        return DeleteGroupsResponse()

    async def scenario(world: World) -> None:
        world.serve(DELETE_GROUPS, waits)
        client = world.connect()
        client.send(names(1), names(1), names(1))
        for _ in range(20):
            client.fake.run_soon()
            await asyncio.sleep(0)
        assert served == [1]
        done.set()
        await client.until(lambda: client.answers() == [1, 2, 3])

    run(scenario)


class CoordinationDouble:
    """Questions whether this broker coordinates; the test answers them."""

    def __init__(self) -> None:
        self.is_certain = False
        self.asked: list[tuple[list[str], asyncio.Future[bool]]] = []

    def partitions_of(self, groups: list[str]) -> Work[list[str]]:
        yield None
        return groups

    def confirm(self, partitions: list[str]) -> asyncio.Future[bool]:
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.asked.append((partitions, question))
        return question


def coordinated_by(world: World, **differs: Any) -> CoordinationDouble:
    """Have a context whose handlers answer as ``differs`` says where it does not coordinate."""
    coordination = CoordinationDouble()
    world.context.coordinators = {GROUPS: SimpleNamespace(coordination=coordination)}

    async def work(exchange: Any, work: Work[Any]) -> Any:
        return await world.context.slices.run(work if exchange.is_inside else world.context.gate.when_long(work))

    world.context.work = work
    world.context.not_coordinating = lambda: SimpleNamespace(**{**vars(world.context), **differs})
    return coordination


@pytest.mark.parametrize("count", [1, 5_000])
@pytest.mark.parametrize("is_confirmed", [True, False])
@pytest.mark.parametrize("kind", ["plain", "work", "coroutine"])
def test_a_request_of_groups_waits_until_it_is_certain_who_coordinates(
    kind: str, is_confirmed: bool, count: int
) -> None:
    def answer_of(context: Any, message: Any) -> DeleteGroupsResponse:
        code = getattr(context, "refuses", 0)
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=message.groups_names[0], error_code=code)])

    def plain(context: Any, _: Any, message: Any) -> DeleteGroupsResponse:
        return answer_of(context, message)

    def work(context: Any, _: Any, message: Any) -> Work[DeleteGroupsResponse]:
        yield None
        return answer_of(context, message)

    async def coroutine(context: Any, _: Any, message: Any) -> DeleteGroupsResponse:
        return answer_of(context, message)

    async def scenario(world: World) -> None:
        coordination = coordinated_by(world, refuses=16)
        handler = {"plain": plain, "work": work, "coroutine": coroutine}[kind]
        world.serve(DELETE_GROUPS, handler, groups_of=lambda message: message.groups_names)
        world.serve(HEARTBEAT, answer_heartbeat)
        clients, other = [world.connect() for _ in range(AT_ONCE + 1)], world.connect()
        for client in clients:
            client.send(names(count))
        # Large ones too: those that wait for followers are not inside the gate.
        await clients[0].until(lambda: len(coordination.asked) == len(clients))
        other.send(small())
        assert other.answers() == [1]
        for client, (groups, question) in zip(clients, coordination.asked, strict=True):
            assert groups == names(count).groups_names
            assert client.answers() == []
            question.set_result(is_confirmed)
        for client in clients:
            await client.until(lambda client=client: client.answers() == [1])
            _, answer = codec.decode_response(DELETE_GROUPS, 2, bytes(client.channel.sent[4:]))
            assert [each.error_code for each in answer.results] == [0 if is_confirmed else 16]
        # While the lease holds nobody is asked.
        coordination.is_certain = True
        clients[0].send(names(1))
        await clients[0].until(lambda: clients[0].answers() == [1, 2])
        assert len(coordination.asked) == len(clients)

    run(scenario)


def test_a_request_of_groups_whose_client_goes_away_asks_no_longer() -> None:
    async def scenario(world: World) -> None:
        coordination = coordinated_by(world)
        world.serve(HEARTBEAT, answer_heartbeat, groups_of=lambda message: [message.group_id])
        client = world.connect()
        client.send(small())
        await client.until(lambda: bool(coordination.asked))
        client.connection.close("the client has gone")
        for _ in range(3):
            await asyncio.sleep(0)
        assert coordination.asked[0][1].cancelled()
        await world.dispatcher.stop()

    run(scenario)
