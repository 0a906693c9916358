"""From fetched pieces to rows: turns, positions, what is in hand; and random polls, seeks and pauses beside a model."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.fetch_requests import PartitionFetched
from spark_kafkalite.client.consume.fetched import FetchedBatches
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.consume.polling import RowSource
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import ClosedError, CorruptMessage
from spark_kafkalite.model import CommittedOffset, Record, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.columns import ColumnBuilder
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.batches import make_batch, make_stored_batch
from tests.seeds import SEED, SOAK

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
EPOCH = 4


class Rig:
    """A row source over a read-ahead whose threads never start: the test is what fetches."""

    def __init__(self, *partitions: TopicPartition) -> None:
        self.clock = ManualClock()
        config = consumer_config({"bootstrap.servers": "h:1"}, {})
        self.ahead = ReadAhead(config, ClusterClient(config.client, self.clock), self.clock)
        for each in partitions:
            self.ahead.states[each] = TopicPartitionState(each)
            self.ahead.states[each].move_to(0)
        self.rows = RowSource(self.ahead)

    def compressed(self, tp: TopicPartition, *values: bytes) -> None:
        """Have a piece with one compressed batch of these values come."""
        plain = make_batch(values, codec="zstd")
        with self.ahead.lock:
            state = self.ahead.states[tp]
            first = state.fetch_offset
            kernel.stamp(plain, 0, first, EPOCH)
            end = first + len(values)
            piece = FetchedBatches(tp, PartitionFetched(0, end, end, 0, None, memoryview(plain)), first)
            state.buffered.append(piece)
            state.buffered_bytes += piece.size_bytes
            state.fetch_offset = piece.end_offset

    def fetched(self, tp: TopicPartition, *counts: int, damaged: bool = False) -> None:
        """Have a piece with batches of so many records come, their values being their offsets."""
        with self.ahead.lock:
            state = self.ahead.states[tp]
            first = offset = state.fetch_offset
            data = b""
            for count in counts:
                data += make_stored_batch(offset, EPOCH, [b"%d" % number for number in range(offset, offset + count)])
                offset += count
            if damaged:
                data = data[:-1] + bytes([data[-1] ^ 1])
            piece = FetchedBatches(tp, PartitionFetched(0, offset, offset, 0, None, memoryview(data)), first)
            state.buffered.append(piece)
            state.buffered_bytes += piece.size_bytes
            state.fetch_offset = piece.end_offset

    def poll(self, most: int = 1_000, decoded_rows: int = 1_000) -> list[Record]:
        """As ``Consumer.poll``, without waiting."""
        self.rows.begin_poll()
        return self.rows.take_records(
            most,
            lambda waits: self.rows.next_rows(Deadline.after_ms(0, self.clock) if waits else None, decoded_rows, True),
        )

    def position(self, tp: TopicPartition = T0) -> int | None:
        return self.ahead.states[tp].position


def offsets(records: Sequence[Record], tp: TopicPartition = T0) -> list[int]:
    found = [each.offset for each in records if each.partition == tp.partition]
    assert [each.value for each in records] == [b"%d" % each.offset for each in records]
    return found


def test_rows_come_in_the_sizes_that_are_asked_for_and_the_position_follows() -> None:
    rig = Rig(T0)
    rig.fetched(T0, 3, 4)
    assert offsets(rig.poll(2)) == [0, 1] and rig.position() == 2
    assert offsets(rig.poll(3)) == [2, 3, 4] and rig.position() == 5
    assert rig.ahead.states[T0].leader_epoch == EPOCH
    assert offsets(rig.poll(9)) == [5, 6] and rig.position() == 7
    assert rig.poll() == [] and rig.ahead.states[T0].buffered_bytes == 0


def test_partitions_take_turns() -> None:
    rig = Rig(T0, T1, T2)
    for _ in range(2):
        for each in (T0, T1, T2):
            rig.fetched(each, 4)
    seen = [rig.poll(4, 4)[0].partition for _ in range(6)]
    assert seen == [0, 1, 2, 0, 1, 2]


def test_a_damaged_batch_comes_after_the_good_rows_and_stays_until_a_seek(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(T0)
    rig.fetched(T0, 2, 3, damaged=True)
    assert offsets(rig.poll()) == [0, 1] and rig.position() == 2
    pauses_s = []
    for _ in range(5):
        # What lies behind is dropped, and it is fetched again.
        assert rig.poll() == []
        state = rig.ahead.states[T0]
        pauses_s.append(state.retry_at_s - rig.clock.monotonic_s())
        assert (state.fetch_offset, state.fetch_epoch, state.buffered_bytes) == (2, -1, 0)
        rig.fetched(T0, 3, damaged=True)
    # Each is spread by a fifth either way.
    assert pauses_s == [pytest.approx(each, rel=0.2) for each in (0.1, 0.2, 0.4, 0.8, 1.0)]
    for _ in range(3):
        with pytest.raises(CorruptMessage, match="t-0: the batch at offset 2 cannot be read"):
            rig.poll()
    assert rig.position() == 2 and len(caplog.records) == 1
    rig.ahead.move([T0], 5, None)
    rig.fetched(T0, 1)
    assert offsets(rig.poll()) == [5]


def test_a_damaged_batch_that_is_whole_when_it_is_fetched_again_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(T0)
    for offset in (0, 2):
        # Each batch has its five times.
        for _ in range(5):
            rig.fetched(T0, 2, damaged=True)
            assert rig.poll() == []
        rig.fetched(T0, 2)
        assert offsets(rig.poll()) == [offset, offset + 1]
    assert not caplog.records


def test_a_damaged_partition_that_is_paused_keeps_no_other_from_being_read() -> None:
    rig = Rig(T0, T1)
    rig.fetched(T1, 1)
    with pytest.raises(CorruptMessage):
        while True:
            rig.fetched(T0, 1, damaged=True)
            rig.poll(1)
    rig.ahead.set_paused([T0], True)
    rig.fetched(T1, 2)
    assert len(rig.poll()) >= 2


def test_rows_of_a_partition_that_is_paused_are_fetched_again() -> None:
    rig = Rig(T0)
    rig.fetched(T0, 5)
    assert offsets(rig.poll(2)) == [0, 1]
    rig.ahead.set_paused([T0], True)
    assert rig.poll() == []
    rig.ahead.set_paused([T0], False)
    assert rig.ahead.states[T0].fetch_offset == 2
    rig.fetched(T0, 3)
    assert offsets(rig.poll()) == [2, 3, 4]


def test_what_is_in_hand_can_be_taken_back_unless_it_was_committed() -> None:
    rig = Rig(T0)
    rig.fetched(T0, 10)
    rig.poll(3)
    rig.poll(3)
    rig.rows.processed({T0: CommittedOffset(4)})
    rig.rows.take_back()
    assert rig.position() == 4
    rig.ahead.move([T0], 6, None)
    rig.fetched(T0, 4)
    rig.poll(2)
    rig.rows.processed()
    rig.rows.take_back()
    assert rig.position() == 8


def test_an_iteration_moves_the_position_when_it_is_asked_for() -> None:
    rig = Rig(T0)
    rig.fetched(T0, 4)
    decoded = rig.rows.next_rows(Deadline.after_ms(0, rig.clock), 100, True)
    assert decoded is not None
    records = rig.rows.one_by_one(decoded, 100, rig.clock)
    assert [next(records).offset for _ in range(3)] == [0, 1, 2] and rig.position() == 0
    rig.rows.settle()
    assert rig.position() == 3
    # The last one yielded is still in hand.
    rig.rows.take_back()
    assert rig.position() == 2


def test_an_iteration_ends_when_the_partition_moves_or_time_passes() -> None:
    rig = Rig(T0)
    for change in (
        lambda: rig.ahead.move([T0], 1, None),
        lambda: rig.ahead.set_paused([T0], True),
        lambda: rig.clock.advance(s=1),
        rig.rows.close,
    ):
        rig.ahead.set_paused([T0], False)
        rig.ahead.move([T0], 0, None)
        rig.fetched(T0, 4)
        decoded = rig.rows.next_rows(Deadline.after_ms(0, rig.clock), 100, True)
        assert decoded is not None
        records: Iterator[Record] = rig.rows.one_by_one(decoded, 100, rig.clock)
        assert next(records).offset == 0
        change()
        assert list(records) == []


def test_rows_of_a_partition_that_is_moved_while_they_are_decoded_are_dropped() -> None:
    rig = Rig(T0)
    rig.fetched(T0, 4)

    class MovedMeanwhile(FetchedBatches):
        def decode_into(self, builder: ColumnBuilder) -> None:
            super().decode_into(builder)
            rig.ahead.move([T0], 20, None)

    fetched = PartitionFetched(0, 4, 4, 0, None, memoryview(make_stored_batch(0, EPOCH, 4)))
    rig.ahead.states[T0].buffered[0] = MovedMeanwhile(T0, fetched, 0)
    assert rig.poll() == [] and rig.position() == 20
    rig.fetched(T0, 2)
    assert offsets(rig.poll()) == [20, 21]


def test_a_wait_ends_when_it_is_woken_or_closed() -> None:
    for end in (RowSource.wakeup, RowSource.close):
        rig = Rig(T0)
        heard: list[object] = []

        def wait(rig: Rig = rig, heard: list[object] = heard) -> None:
            try:
                heard.append(rig.rows.next_rows(Deadline.after_ms(60_000, rig.clock), 10, True))
            except ClosedError as error:
                heard.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        end(rig.rows)
        thread.join()
        if end is RowSource.wakeup:
            assert heard == [None] and rig.rows.take_woken() and not rig.rows.take_woken()
        else:
            assert isinstance(heard[0], ClosedError)


def test_random_polls_seeks_and_pauses_skip_and_double_nothing() -> None:
    for seed in range(SEED, SEED + (1_000 if SOAK else 40)):
        source = random.Random(seed)
        rig = Rig(T0, T1, T2)
        expected = dict.fromkeys((T0, T1, T2), 0)
        # Where partitions stood before what the last poll returned.
        before = dict(expected)
        paused: set[TopicPartition] = set()
        for _ in range(200):
            tp = source.choice([T0, T1, T2])
            act = source.random()
            if act < 0.35:
                rig.fetched(tp, *(source.randint(1, 6) for _ in range(source.randint(1, 3))))
            elif act < 0.8:
                before = dict(expected)
                for record in rig.poll(source.randint(1, 12), source.randint(1, 20)):
                    each = TopicPartition("t", record.partition)
                    assert each not in paused and record.offset == expected[each], seed
                    expected[each] += 1
            elif act < 0.86:
                expected[tp] = before[tp] = source.randrange(40)
                rig.ahead.move([tp], expected[tp], None)
            elif act < 0.94:
                (paused.discard if tp in paused else paused.add)(tp)
                rig.ahead.set_paused([tp], tp in paused)
            elif act < 0.97:
                rig.rows.processed()
                before = dict(expected)
            else:
                rig.rows.take_back()
                assert [rig.position(each) for each in before] == list(before.values()), seed
                # As whoever closes: nothing is returned afterwards, so go on from there.
                for each in before:
                    rig.ahead.move([each], before[each], None)
                expected = dict(before)
            assert [rig.position(each) for each in expected] == list(expected.values()), seed


def test_a_poll_holds_a_bounded_amount_of_what_batches_decompress_to() -> None:
    rig = Rig(T0, T1)
    for _ in range(6):
        for tp in (T0, T1):
            rig.compressed(tp, bytes(6 << 20), bytes(6 << 20))
    polled = []
    while records := rig.poll():
        assert sum(len(record.value or b"") for record in records) <= 40 << 20
        polled += [(record.partition, record.offset) for record in records]
    assert sorted(polled) == [(partition, offset) for partition in (0, 1) for offset in range(12)]


def test_one_batch_at_a_time_is_decompressed() -> None:
    """A batch whose rows come in parts is finished before another partition's is begun."""
    partitions = [TopicPartition("t", number) for number in range(5)]
    rig = Rig(*partitions)
    for tp in partitions:
        rig.compressed(tp, *(bytes(6 << 20) for _ in range(8)))
    begun = set()
    while rig.rows.next_rows(None, 1_000, True) is not None:
        inside = [tp for tp, state in rig.ahead.states.items() if any(each.is_inside_batch for each in state.buffered)]
        assert len(inside) <= 1
        begun.update(inside)
        rig.poll(1)
    assert begun == set(partitions)
