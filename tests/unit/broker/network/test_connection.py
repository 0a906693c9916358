"""A connection over a channel and a loop that only remember: no sockets, no time.

Every test runs over a channel like a plain socket and over one that behaves as under TLS.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from spark_kafkalite.broker.network.connection import Connection, Limits
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import FrameError
from spark_kafkalite.log.segments.sending import Sending
from spark_kafkalite.net.outbox import FileRange, Response
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.slices import PASS_S, Slices, Work
from tests.unit.net.fake_channels import HANDSHAKE_STEPS, FakeChannel, FakeLoop, RecordChannel
from tests.unit.slice_clock import SliceClock


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def exchange(connection: Connection) -> Exchange:
    return Exchange(connection, (0, 0, 1, None))


def answer(connection: Connection, response: Response) -> None:
    exchange(connection).answer(response)


def defer(connection: Connection) -> Exchange:
    one = exchange(connection)
    one.defer()
    return one


class FakeOwner:
    def __init__(
        self,
        memory: RequestMemory | None = None,
        slices: Slices | None = None,
        clock: SliceClock | None = None,
        **limits: Any,
    ) -> None:
        """``slices``: those of another owner, which shares its passes with this one. The clock stands still if none is
        given: what a connection does in one turn does not depend on the host.
        """
        self.loop: Any = FakeLoop()
        self.at_end_of_pass = self.loop.call_at_end_of_pass
        settings = {
            "max_frame_bytes": 1000,
            "max_requests": 4,
            "max_response_bytes": 10_000,
            "read_timeout_s": 30.0,
            "idle_s": 600.0,
            "max_unauthenticated_bytes": 500,
        } | limits
        self.limits = Limits(**settings)
        self.memory = RequestMemory(2000) if memory is None else memory
        self.slices = Slices(self.loop, clock or SliceClock()) if slices is None else slices
        self.scratch = memoryview(bytearray(4 + 4096))
        self.room = memoryview(bytearray(4096))
        self.served: list[bytes] = []
        self.answer: Callable[[Connection, bytes], None] = lambda connection, body: answer(connection, b"re:" + body)
        self.closed: list[tuple[str, bool]] = []

    def serve(self, connection: Connection, frame: memoryview) -> None:
        self.served.append(bytes(frame))
        self.answer(connection, bytes(frame))

    def handshake_complete(self, connection: Connection) -> None:
        assert not connection._channel.needs_handshake

    def connection_closed(self, connection: Connection, reason: str, *, hostile: bool) -> None:
        self.closed.append((reason, hostile))


class Setting:
    channel_class: type[FakeChannel] = FakeChannel

    def __init__(self, slices: Slices | None = None, clock: SliceClock | None = None, **limits: Any) -> None:
        self.owner = FakeOwner(slices=slices, clock=clock, **limits)
        self.channel = self.channel_class()
        self.connection = Connection(self.owner, self.channel, Session("peer", Listener("P", "h", 1, "h", 1)))

    @property
    def loop(self) -> FakeLoop:
        loop: FakeLoop = self.owner.loop
        return loop

    def receive(self, *pieces: bytes) -> None:
        self.channel.incoming += pieces
        self.settle()

    def settle(self) -> None:
        """Let the loop see every event there is, until nothing happens any more."""
        for _ in range(10_000):
            self.loop.run_soon()
            if self.loop.reader is not None and self.channel.readable:
                self.loop.reader()
            elif self.loop.writer is not None and self.channel.writable:
                self.loop.writer()
            elif not self.loop.soon and not self.loop.at_end:
                return
        raise AssertionError("the connection spins")


@pytest.fixture(params=["plain", "records"], autouse=True)
def _channels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "records":
        monkeypatch.setattr(Setting, "channel_class", RecordChannel)


BODIES = (b"one", b"t", b"three" * 30, b"four")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 10_000])
def test_requests_arrive_however_they_are_cut(size: int) -> None:
    setting = Setting()
    data = framed(*BODIES)
    setting.receive(*(data[start : start + size] for start in range(0, len(data), size)))
    assert setting.owner.served == list(BODIES)
    assert bytes(setting.channel.sent) == framed(*(b"re:" + body for body in BODIES))
    assert setting.owner.memory.used_bytes == 0


def test_answers_to_one_read_leave_in_one_call() -> None:
    setting = Setting()
    setting.receive(framed(b"a", b"b", b"c"))
    assert setting.channel.calls == ["send"]


def test_a_deferred_answer_holds_the_later_ones_back() -> None:
    setting = Setting()
    slots = []

    def serve(connection: Connection, body: bytes) -> None:
        if body == b"wait":
            slots.append(defer(connection))
        else:
            answer(connection, b"re:" + body)

    setting.owner.answer = serve
    setting.receive(framed(b"wait", b"a", b"wait", b"b"))
    assert bytes(setting.channel.sent) == b""
    slots[1].answer(b"second")
    setting.settle()
    assert bytes(setting.channel.sent) == b""
    slots[0].answer(b"first")
    setting.settle()
    assert bytes(setting.channel.sent) == framed(b"first", b"re:a", b"second", b"re:b")
    with pytest.raises(RuntimeError):
        slots[0].answer(b"again")


def test_answers_that_came_later_are_sent_at_once_when_that_is_asked_for() -> None:
    setting = Setting()
    slots = []
    setting.owner.answer = lambda connection, body: slots.append(defer(connection))
    setting.receive(framed(b"a", b"b", b"c"))
    setting.connection.send_answers()
    slots[0].answer(b"first")
    slots[1].answer(b"second")
    assert setting.channel.calls == []
    setting.connection.send_answers()
    assert bytes(setting.channel.sent) == framed(b"first", b"second")
    slots[2].answer(b"third")
    setting.settle()
    setting.connection.send_answers()
    assert bytes(setting.channel.sent) == framed(b"first", b"second", b"third")
    assert setting.channel.calls == ["send", "send"]


def test_too_many_unanswered_requests_stop_the_reading() -> None:
    setting = Setting(max_requests=2)
    slots = []
    setting.owner.answer = lambda connection, _: slots.append(defer(connection))
    setting.receive(framed(b"1", b"2", b"3", b"4", b"5"))
    assert setting.owner.served == [b"1", b"2"]
    assert setting.loop.reader is None
    assert setting.owner.memory.used_bytes == 15
    slots[0].answer(b"x")
    setting.settle()
    assert setting.owner.served == [b"1", b"2", b"3"]
    for slot in slots[1:]:
        slot.answer(b"y")
    setting.settle()
    assert setting.owner.served == [b"1", b"2", b"3", b"4", b"5"]
    assert setting.loop.reader is None
    slots[3].answer(b"z")
    setting.settle()
    assert setting.loop.reader is not None
    assert setting.owner.memory.used_bytes == 0


def test_a_peer_that_does_not_read_is_not_read() -> None:
    setting = Setting(max_response_bytes=100)
    setting.channel.room = 0
    setting.owner.answer = lambda connection, _: answer(connection, bytes(90))
    setting.receive(framed(b"1", b"2", b"3", b"4"))
    assert setting.owner.served == [b"1", b"2"]
    assert (setting.loop.reader, setting.loop.writer is None) == (None, False)
    setting.channel.room = 1 << 20
    setting.settle()
    assert setting.owner.served == [b"1", b"2", b"3", b"4"]
    assert len(setting.channel.sent) == 4 * 94
    assert setting.loop.reader is not None


class FakeFile:
    def fileno(self) -> int:
        # No process has so many files: the connection looks whether the page cache has what it sends.
        return FakeChannel.FILES + ord("F")


def test_file_ranges_leave_between_their_neighbours_and_survive_a_full_socket() -> None:
    setting = Setting()
    setting.owner.answer = lambda connection, _: answer(
        connection, ([b"head", FileRange(FakeFile(), 0, 50, Sending()), b"tail"], 58)
    )
    setting.channel.room = 20
    setting.receive(framed(b"x"))
    assert setting.channel.calls == ["send+", "file", "file"]
    while len(setting.channel.sent) < 62:
        setting.channel.room = 7
        setting.settle()
    assert bytes(setting.channel.sent) == framed(b"head" + b"F" * 50 + b"tail")


def test_a_file_that_is_too_short_closes_the_connection() -> None:
    setting = Setting()
    setting.channel.send_file = lambda *_: 0  # type: ignore[method-assign]
    setting.owner.answer = lambda connection, _: answer(connection, ([b"h", FileRange(FakeFile(), 0, 5, Sending())], 6))
    setting.receive(framed(b"x"))
    assert setting.channel.closed


def test_ranges_are_counted_while_they_are_sent() -> None:
    setting, sending = Setting(), Sending()
    setting.owner.answer = lambda connection, _: answer(
        connection, ([b"h", FileRange(FakeFile(), 0, 50, sending), FileRange(FakeFile(), 100, 10, sending)], 61)
    )
    assert len(sending) == 0
    setting.channel.room = 20
    setting.receive(framed(b"x"))
    assert len(sending) == 2
    setting.channel.room = 40
    setting.settle()
    assert len(sending) == 1
    setting.channel.room = 40
    setting.settle()
    assert len(sending) == 0
    # Dropped with the connection.
    setting.channel.room = 1
    setting.receive(framed(b"x"))
    assert len(sending) == 2
    setting.connection.close("for a test")
    assert len(sending) == 0


@pytest.mark.parametrize(("cut_at", "is_cut"), [(60, False), (59, True), (30, True), (0, True)])
def test_what_is_cut_while_it_is_sent_closes_its_connection(cut_at: int, is_cut: bool) -> None:
    setting, sending = Setting(), Sending()
    setting.owner.answer = lambda connection, _: answer(
        connection, ([b"h", FileRange(FakeFile(), 10, 50, sending)], 51)
    )
    setting.channel.room = 45
    setting.receive(framed(b"x"))
    sending.cut(cut_at)
    setting.channel.room = 100
    setting.settle()
    assert (setting.channel.closed, len(sending)) == (is_cut, 0)
    assert len(setting.channel.sent) == (45 if is_cut else 55)


def test_what_was_cut_before_it_was_sent_closes_its_connection() -> None:
    setting, sending = Setting(), Sending()
    found = FileRange(FakeFile(), 10, 50, sending)
    sending.cut(60)
    setting.owner.answer = lambda connection, _: answer(connection, ([b"h", found], 51))
    setting.receive(framed(b"x"))
    assert setting.channel.closed


@pytest.mark.parametrize("size_bytes", [0, -1, 1001, 2**31 - 1])
def test_impossible_sizes_close_the_connection(size_bytes: int) -> None:
    setting = Setting()
    setting.receive(struct.pack(">i", size_bytes) + b"x")
    assert setting.channel.closed
    assert setting.owner.closed[0][1]


def test_an_unreadable_request_closes_the_connection_and_later_ones_are_not_served() -> None:
    setting = Setting()

    def serve(connection: Connection, body: bytes) -> None:
        raise FrameError("no")

    setting.owner.answer = serve
    setting.receive(framed(b"a", b"b"))
    assert setting.owner.served == [b"a"]
    assert setting.owner.closed == [("sent a request that cannot be read: no", True)]


def test_the_end_of_the_stream_abandons_what_was_deferred() -> None:
    setting = Setting()
    events = []

    def serve(connection: Connection, _: bytes) -> None:
        slot = defer(connection)
        slot.call_if_abandoned(lambda: events.append("abandoned"))
        events.append(slot)

    setting.owner.answer = serve
    setting.receive(framed(b"a") + b"\x00\x00", b"")
    assert events[1] == "abandoned"
    events[0].answer(b"too late")
    setting.settle()
    assert bytes(setting.channel.sent) == b""
    assert (setting.owner.memory.used_bytes, setting.owner.closed) == (
        0,
        [("closed by the peer in the middle of a request", False)],
    )


def test_memory_of_half_arrived_requests_is_counted_and_waited_for() -> None:
    setting = Setting()
    other = object()
    setting.owner.memory._exempt = other  # type: ignore[assignment]
    setting.receive(struct.pack(">i", 900) + bytes(300))
    assert setting.owner.memory.used_bytes == 300
    setting.owner.memory.take(1700)
    setting.receive(bytes(100))
    assert (setting.loop.reader, setting.owner.memory.used_bytes) == (None, 2000)
    setting.owner.memory.give_back(1700)
    setting.receive(bytes(500))
    assert setting.owner.served == [bytes(900)]
    assert setting.owner.memory.used_bytes == 0


def test_large_requests_arrive_in_the_memory_of_earlier_ones_and_never_in_each_others() -> None:
    memory = RequestMemory(1 << 30)
    one, two = (Setting(max_frame_bytes=1 << 20, memory=memory) for _ in range(2))
    bodies = [bytes([number]) * (500_000 - 90_000 * number) for number in range(4)]
    for ours, others in ((0, 1), (2, 3)):
        first, second = framed(bodies[ours]), framed(bodies[others])
        one.receive(first[:4000])
        two.receive(second[:4000])
        one.receive(first[4000:])
        two.receive(second[4000:])
    assert (one.owner.served, two.owner.served) == (bodies[::2], bodies[1::2])
    kept = {id(buffer) for buffer in memory.buffers._kept}
    assert len(kept) == 2
    one.receive(framed(bodies[0])[:4000])
    assert len(memory.buffers._kept) == 1
    one.connection.close("in the middle of a request")
    assert {id(buffer) for buffer in memory.buffers._kept} == kept
    assert memory.used_bytes == 0


def test_slow_and_idle_connections_are_overdue() -> None:
    setting = Setting(read_timeout_s=10.0, idle_s=100.0)
    setting.receive(b"\x00")
    assert setting.connection.overdue(1010.5) is not None
    setting.loop.now = 1009.0
    setting.receive(b"\x00\x00\x03ab")
    # More bytes do not start the clock anew.
    assert "2 of 3 bytes" in (setting.connection.overdue(1010.5) or "")
    setting.receive(b"c")
    assert setting.connection.overdue(1108) is None
    assert "idle" in (setting.connection.overdue(1110) or "")
    setting.owner.answer = lambda connection, _: defer(connection)
    setting.receive(framed(b"x"))
    assert setting.connection.overdue(9000) is None


# Under TLS ------------------------------------------------------------------------------------------------------------


def test_nothing_is_read_before_the_handshake_which_may_wait_for_either_direction() -> None:
    setting = Setting()
    channel = setting.channel
    for step in range(HANDSHAKE_STEPS if channel.needs_handshake else 0):
        assert channel.needs_handshake and not setting.owner.served
        assert (setting.loop.reader is not None, setting.loop.writer is not None) == (step % 2 == 0, step % 2 == 1)
        (setting.loop.reader or setting.loop.writer or pytest.fail("nothing is watched"))()
    assert not channel.needs_handshake
    setting.receive(framed(b"first"))
    assert setting.owner.served == [b"first"]


def test_a_handshake_that_fails_closes_the_connection() -> None:
    setting = Setting()
    if not setting.channel.needs_handshake:
        return

    def fail() -> bool:
        raise OSError(1, "wrong version number")

    setting.channel.handshake = fail  # type: ignore[method-assign]
    setting.receive(b"GET / HTTP/1.1")
    assert setting.owner.closed == [("did not complete its handshake: wrong version number", True)]
    assert (setting.loop.reader, setting.loop.writer) == (None, None)


def test_a_connection_is_idle_from_its_last_answer_on() -> None:
    setting = Setting(idle_s=100.0)
    waiting: list[Exchange] = []

    def answer_first_later(connection: Connection, body: bytes) -> None:
        if body == b"one":
            connection.hold()
            waiting.append(defer(connection))
        else:
            answer(connection, b"re:" + body)

    setting.owner.answer = answer_first_later
    setting.receive(framed(b"one", b"two"))
    setting.loop.now += 200
    waiting[0].answer(b"re:one")
    setting.settle()
    assert setting.connection.overdue(setting.loop.now + 99) is None
    setting.loop.now += 200
    setting.connection.release()
    setting.settle()
    assert setting.channel.sent == framed(b"re:one", b"re:two")
    assert setting.connection.overdue(setting.loop.now + 99) is None
    assert "idle" in (setting.connection.overdue(setting.loop.now + 101) or "")


def test_a_handshake_that_does_not_end_is_overdue() -> None:
    setting = Setting(read_timeout_s=10.0, idle_s=100.0)
    reason = setting.connection.overdue(1011.0)
    if setting.channel.needs_handshake:
        assert "handshake" in (reason or "")
    else:
        assert reason is None


@pytest.mark.parametrize("seed", range(300))
def test_requests_and_answers_survive_any_schedule(seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    setting = Setting(max_requests=random.randint(1, 5), max_response_bytes=random.randint(50, 400))
    bodies = [bytes([number]) * random.choice([1, 3, 50, 900]) for number in range(random.randint(1, 30))]
    deferred: list[tuple[Exchange, bytes]] = []

    def serve(connection: Connection, body: bytes) -> None:
        if random.random() < 0.3:
            deferred.append((defer(connection), b"re:" + body))
        else:
            answer(connection, b"re:" + body)

    setting.owner.answer = serve
    data = framed(*bodies)
    wanted = framed(*(b"re:" + body for body in bodies))
    position = 0
    for _ in range(100_000):
        if len(setting.channel.sent) == len(wanted):
            break
        if position < len(data) and random.random() < 0.5:
            size = random.choice([1, 2, 5, 100, 2000])
            setting.channel.incoming.append(data[position : position + size])
            position += size
        if deferred and random.random() < 0.5:
            exchange, response = deferred.pop(random.randrange(len(deferred)))
            exchange.answer(response)
        setting.channel.room = random.choice([0, 1, 30, 1000])
        setting.settle()
    assert setting.owner.served == bodies
    assert bytes(setting.channel.sent) == wanted
    assert setting.owner.memory.used_bytes == 0


# Turns


@pytest.mark.parametrize("sent_ahead", [1, 10])
def test_who_comes_too_late_in_every_pass_has_turns(sent_ahead: int) -> None:
    clock = SliceClock()
    first = Setting(clock=clock)
    second = Setting(slices=first.owner.slices)

    def long_work() -> Work[None]:
        while True:
            clock.take(0.001)
            yield None

    def serve(connection: Connection, body: bytes) -> None:
        clock.take(PASS_S / 2)
        answer(connection, body)

    # A large request of somebody else's.
    first.owner.slices.start(long_work(), lambda *_: None)
    first.owner.answer = second.owner.answer = serve
    second.channel.incoming.append(framed(*[b"x"] * sent_ahead))
    passes = 0
    while len(second.owner.served) < sent_ahead:
        # The system names the first one first, and it has always sent something.
        first.channel.incoming.append(framed(b"y", b"y"))
        for setting in (first, second):
            setting.loop.run_pass()
        for setting in (first, second):
            if setting.loop.reader is not None:
                setting.loop.reader()
            if setting.loop.writer is not None:
                setting.loop.writer()
        passes += 1
        assert passes < 10 * sent_ahead
    assert len(first.owner.served) >= passes / 4


def test_every_turn_serves_a_request_even_if_the_clock_ends_it_at_once() -> None:
    setting = Setting(clock=SliceClock(reading_s=PASS_S), max_requests=100)
    bodies = [b"%d" % number for number in range(20)]
    setting.channel.incoming += [framed(*bodies[:10]), framed(*bodies[10:])]
    for _ in range(10 * len(bodies)):
        setting.loop.run_pass()
        if setting.loop.reader is not None and setting.channel.readable:
            setting.loop.reader()
        if setting.loop.writer is not None and setting.channel.writable:
            setting.loop.writer()
    assert setting.owner.served == bodies
    assert bytes(setting.channel.sent) == framed(*(b"re:" + body for body in bodies))
