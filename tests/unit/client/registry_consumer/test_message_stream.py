"""What counts as processed, without a broker: rows are put into a stream as if they had been decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.registry_consumer.message_stream import Lease, MessageStream, OwnedPartition
from spark_kafkalite.errors import ConsumerTimeout
from spark_kafkalite.model import Record, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock

ONE = TopicPartition("t", 0)


class Row:
    """Stands in for a record."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lease(clock: ManualClock) -> Lease:
    made = Lease()
    made.until_s = clock.monotonic_s() + 10
    return made


@pytest.fixture
def stream(clock: ManualClock, lease: Lease) -> Iterator[MessageStream]:
    config = consumer_config({"bootstrap.servers": "127.0.0.1:1"}, {})
    ahead = ReadAhead(config, ClusterClient(config.client, clock), clock, fair=True)
    yield MessageStream("c-0", ahead, lease, 0, clock)
    ahead.close()


def hand_over(stream: MessageStream, owned: OwnedPartition, offsets: list[int], end: int) -> None:
    """Have the stream go on with these rows, behind which lies nothing visible until ``end``."""
    if owned not in stream.owned():
        stream.add(owned)
    rows: list[Record] = [Row(offset) for offset in offsets]  # type: ignore[misc]
    stream._from, stream._rows, stream._row, stream._rows_end = owned, rows, 0, end
    stream._reader = threading.get_ident()


def processed(stream: MessageStream, reader: int = 0) -> dict[TopicPartition, int]:
    return {owned.topic_partition: offset for owned, offset in stream.processed(reader)}


def test_a_record_counts_when_the_next_one_is_asked_for(stream: MessageStream) -> None:
    owned = OwnedPartition(ONE, "c-0", 3)
    hand_over(stream, owned, [3, 5, 6], 9)
    assert processed(stream) == {ONE: 3}
    assert next(stream).offset == 3
    assert processed(stream) == {ONE: 3}
    assert next(stream).offset == 5
    assert processed(stream) == {ONE: 5}
    assert next(stream).offset == 6
    assert processed(stream) == {ONE: 6}
    with pytest.raises(ConsumerTimeout):
        next(stream)
    # With what lies behind it, which holds no visible record.
    assert processed(stream) == {ONE: 9}


def test_its_reader_may_say_so_earlier(stream: MessageStream) -> None:
    hand_over(stream, OwnedPartition(ONE, "c-0", None), [3, 5], 9)
    next(stream)
    assert processed(stream, threading.get_ident()) == {ONE: 5}
    assert processed(stream, threading.get_ident() + 1) == {ONE: 3}
    next(stream)
    assert processed(stream, threading.get_ident()) == {ONE: 9}


def test_what_is_taken_away_is_not_handed_out_and_its_last_record_not_committed(stream: MessageStream) -> None:
    owned = OwnedPartition(ONE, "c-0", 0)
    hand_over(stream, owned, [0, 1, 2], 3)
    next(stream), next(stream)
    assert stream.remove({ONE}) == [owned]
    assert (owned.processed, owned.next_offset) == (1, 2)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    # Its reader is done with it now: should the partition come back, it goes on behind it.
    assert (owned.processed, owned.next_offset) == (2, 2)


def test_nothing_is_handed_out_when_the_lease_is_over(stream: MessageStream, lease: Lease, clock: ManualClock) -> None:
    hand_over(stream, OwnedPartition(ONE, "c-0", 0), [0, 1, 2], 3)
    next(stream)
    clock.advance(s=10)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert processed(stream) == {ONE: 1}
    lease.until_s = clock.monotonic_s() + 10
    assert [next(stream).offset, next(stream).offset] == [1, 2]


def test_a_rewind_drops_what_was_decoded(stream: MessageStream) -> None:
    owned = OwnedPartition(ONE, "c-0", 0)
    hand_over(stream, owned, [0, 1, 2], 3)
    next(stream), next(stream)
    assert stream.rewind(ONE, 0)
    assert processed(stream) == {ONE: 0}
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert processed(stream) == {ONE: 0}
    assert not stream.rewind(TopicPartition("t", 1), 0)


def test_the_end_ends_the_iteration(stream: MessageStream) -> None:
    hand_over(stream, OwnedPartition(ONE, "c-0", 0), [0, 1], 2)
    next(stream)
    stream.end()
    assert list(stream) == []
