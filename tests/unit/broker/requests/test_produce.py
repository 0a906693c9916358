"""A request with a batch for each of many partitions is appended in slices; a small one at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.network.outbox import Response
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.handlers import produce
from spark_kafkalite.testing.batches import make_batch
from spark_kafkalite.wire import packed
from spark_kafkalite.wire.header import read_request_header
from tests.unit.broker.replication.led_partitions import LedPartitions
from tests.unit.broker.replication.test_leader import Answers

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
        self.session = None
        self.kept = 0

    def keep(self, frame: memoryview) -> memoryview:
        self.kept += 1
        return frame


def handle(led: LedPartitions, partitions: int) -> tuple[Exchange, Any]:
    """Hand over a request with acks=1 and a batch for each of the first partitions; return what the handler returns."""
    context: Any = SimpleNamespace(
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
