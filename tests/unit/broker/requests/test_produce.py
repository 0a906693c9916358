"""A request with a batch for each of many partitions is appended in slices; a small one at once.

What may happen between two slices is done to a real dispatcher and connection.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite import slices as slices_module
from spark_kafkalite.broker.network.connection import Connection
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.dispatch import Dispatcher
from spark_kafkalite.broker.requests.gate import Gate
from spark_kafkalite.broker.requests.handlers import produce
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.outbox import Response
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.slices import NotFinished, Slices, Work, run_whole
from spark_kafkalite.wire import packed
from spark_kafkalite.wire.header import read_request_header
from tests.lab.batches import make_batch
from tests.unit.broker.network.test_connection import FakeOwner
from tests.unit.broker.replication.led_partitions import LedPartitions
from tests.unit.broker.replication.test_leader import Answers
from tests.unit.net.fake_channels import FakeChannel
from tests.unit.slice_clock import SliceClock

PARTITIONS = 150
VERSION = 9


@pytest.fixture
def led() -> Iterator[LedPartitions]:
    led = LedPartitions(PARTITIONS, 1)
    yield led
    led.loop.close()


class Exchange(Answers):
    """An exchange whose request stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.api_key, self.api_version = 0, VERSION
        self.session = SimpleNamespace(rights=None)
        self.kept = 0

    def keep(self, frame: memoryview) -> memoryview:
        self.kept += 1
        return frame


def handle(led: LedPartitions, partitions: int) -> tuple[Exchange, Any]:
    """Hand over a request with acks=1 and a batch for each of the first partitions; return what the handler returns."""
    context: Any = SimpleNamespace(
        meters=None,
        clock=led.clock,
        lease=RegistryLease(unlimited=True),
        replicas=SimpleNamespace(get=led.hosted.partitions.__getitem__),
        view=led.view,
    )
    batch = bytes(make_batch([b"x"]))
    named = [("t", [(number, batch) for number in range(partitions)])]
    pieces, _ = packed.pack_produce_request(1, "producer", VERSION, 1, 30_000, named)
    frame = memoryview(bytearray().join(pieces))
    assert len(frame) < produce.SMALL_REQUEST_BYTES
    exchange = Exchange()
    return exchange, produce.handle(context, exchange, frame, read_request_header(frame)[1])  # type: ignore[arg-type]


def has_been_appended(led: LedPartitions) -> int:
    return sum(partition.log.log_end_offset for partition in led.hosted.partitions.values())


def outcomes(response: Response) -> list[tuple[int, int, int]]:
    """Partition, error code and base offset of each outcome."""
    body = response if isinstance(response, bytes) else b"".join(bytes(piece) for piece in response[0])  # type: ignore[union-attr]
    answer = packed.parse_produce_response(body, VERSION)
    ((_, partitions),) = answer.topics
    return [(each.partition, each.error_code, each.base_offset) for each in partitions]


def test_many_batches_are_appended_one_between_two_yields(led: LedPartitions) -> None:
    exchange, work = handle(led, PARTITIONS)
    assert isinstance(work, Generator)
    steps = 0
    try:
        while True:
            before = has_been_appended(led)
            next(work)
            assert has_been_appended(led) - before <= 1
            steps += 1
    except StopIteration as end:
        assert outcomes(end.value) == [(number, 0, 0) for number in range(PARTITIONS)]
    assert steps >= PARTITIONS
    assert (exchange.kept, has_been_appended(led)) == (1, PARTITIONS)


def test_few_batches_are_appended_at_once(led: LedPartitions) -> None:
    exchange, response = handle(led, 20)
    assert outcomes(response) == [(number, 0, 0) for number in range(20)]
    assert (exchange.kept, has_been_appended(led)) == (0, 20)


# Between two slices


class Served:
    """A connection whose requests are served for partitions that broker 1 leads; a slice is some batches long."""

    def __init__(self, led: LedPartitions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.led = led
        self.missing: set[int] = set()
        slices = Slices(led.loop, SliceClock())
        self.gate = Gate(slices.now)
        context: Any = SimpleNamespace(
            meters=None,
            loop=led.loop,
            clock=led.clock,
            lease=RegistryLease(unlimited=True),
            replicas=SimpleNamespace(get=self._partition, find=led.hosted.find),
            view=led.view,
            slices=slices,
            gate=self.gate,
            purgatory=led.harness.services.purgatory,
        )
        self.dispatcher = Dispatcher(context)
        self.owner = FakeOwner(RequestMemory(1 << 30), max_frame_bytes=1 << 20)
        self.owner.scratch = memoryview(bytearray(4 + (1 << 16)))
        self.owner.serve = self.dispatcher.serve  # type: ignore[method-assign]
        self.channel = FakeChannel()
        self.connection = Connection(self.owner, self.channel, Session("peer", Listener("P", "h", 1, "h", 1)))

        def run_slice(work: Work[Any], *_: object) -> Any:
            try:
                for _step in range(20):
                    next(work)
            except StopIteration as end:
                return end.value
            raise NotFinished

        monkeypatch.setattr(slices_module, "run_slice", run_slice)

    def _partition(self, topic_partition: TopicPartition) -> Partition:
        if topic_partition.partition in self.missing:
            raise UnknownTopicOrPartition(f"{topic_partition} is gone")
        return self.led.hosted.partitions[topic_partition]

    def send(self, acks: int, record_bytes: int = 1) -> None:
        batch = bytes(make_batch([b"x" * record_bytes]))
        named = [("t", [(number, batch) for number in range(PARTITIONS)])]
        pieces, _ = packed.pack_produce_request(1, "producer", VERSION, acks, 30_000, named)
        body = b"".join(bytes(piece) for piece in pieces)
        self.channel.incoming.append(struct.pack(">i", len(body)) + body)
        while self.channel.incoming and self.owner.loop.reader is not None:
            self.owner.loop.reader()

    @property
    def waiting(self) -> int:
        leaders = [partition.check_leader() for partition in self.led.hosted.partitions.values()]
        return sum(len(leader.ack_waiters.operations) for leader in leaders)

    def check_nothing_is_left(self) -> None:
        assert self.connection.closed
        assert len(self.owner.closed) == 1
        assert (self.waiting, self.owner.memory.used_bytes, bool(self.gate)) == (0, 0, False)


def test_a_connection_that_ends_between_two_slices_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    led = LedPartitions(PARTITIONS, 1, 2, 3)
    for slices_before in range(10):
        served = Served(led, monkeypatch)
        served.send(acks=-1)
        assert served.waiting
        for _ in range(slices_before):
            led.loop.run_for(0)
        served.connection.close("the client is gone")
        before = has_been_appended(led)
        led.run(1.0)
        assert has_been_appended(led) == before
        served.check_nothing_is_left()
    led.loop.close()


def test_an_error_without_acknowledgements_closes_in_whichever_slice_it_comes(
    led: LedPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 19, 20, 70, PARTITIONS - 1):
        served = Served(led, monkeypatch)
        served.missing = {number}
        before = has_been_appended(led)
        served.send(acks=0)
        led.run(1.0)
        assert has_been_appended(led) - before == number
        served.check_nothing_is_left()
        assert f"a produce with acks=0 to t-{number} failed" in served.owner.closed[0][0]


def test_other_clients_large_requests_are_not_waited_for(led: LedPartitions, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(led, monkeypatch)
    while served.gate._inside < served.gate._limit:
        run_whole(served.gate.enter())
    # More than what is small, and so than what is let pass.
    served.send(acks=1, record_bytes=200)
    led.run(1.0)
    assert has_been_appended(led) == PARTITIONS
