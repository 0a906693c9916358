"""Limits and splits by bytes, over logs that are lists of records' sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from spark_kafkalite.client.consume.log_samples import LogSample
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange, Offsets
from spark_kafkalite.spark.reading.range_bytes import split_by_bytes
from spark_kafkalite.spark.reading.trigger_limits import limited_by_bytes

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


class Logs:
    """Logs whose records have these sizes; a sample takes records up to ``sample_bytes``, one at least."""

    def __init__(self, sizes: Mapping[TopicPartition, Sequence[int]], sample_bytes: int = 1_000) -> None:
        self.sizes = sizes
        self.sample_bytes = sample_bytes
        self.unreadable: set[TopicPartition] = set()
        self.asked: list[Offsets] = []

    def __call__(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogSample]:
        self.asked.append(dict(places))
        return {tp: self._sample(tp, place) for tp, place in places.items() if tp not in self.unreadable}

    def _sample(self, tp: TopicPartition, place: int) -> LogSample:
        end, size_bytes = place + 1, self.sizes[tp][place]
        while end < len(self.sizes[tp]) and size_bytes + self.sizes[tp][end] <= self.sample_bytes:
            size_bytes += self.sizes[tp][end]
            end += 1
        return LogSample(place, end, size_bytes)

    def ends(self) -> Offsets:
        return {tp: len(sizes) for tp, sizes in self.sizes.items()}

    def limited(self, limit_bytes: int, start: Offsets | None = None) -> Offsets:
        return limited_by_bytes(self, start or dict.fromkeys(self.sizes, 0), self.ends(), limit_bytes)

    def bytes_between(self, start: Offsets, end: Offsets) -> int:
        return sum(sum(sizes[start[tp] : end[tp]]) for tp, sizes in self.sizes.items())


def test_a_batch_takes_as_many_records_as_fit_and_each_partition_by_its_bytes():
    logs = Logs({T0: [100] * 1_000, T1: [10] * 1_000})
    assert logs.limited(11_000) == {T0: 100, T1: 100}
    # Where the limit is no bound everything is taken.
    assert logs.limited(110_000) == logs.ends()


def test_what_one_sample_holds_is_exact():
    logs = Logs({T0: [100, 100, 100, 700]})
    assert logs.limited(1_000) == {T0: 4}
    assert logs.asked == [{T0: 0}]


def test_no_partition_with_records_is_starved_however_large_they_are():
    logs = Logs({T0: [1_000_000] * 5, T1: [10] * 3, T2: []})
    assert logs.limited(1) == {T0: 1, T1: 1, T2: 0}


def test_large_records_behind_small_ones_end_a_batch_sooner():
    # By the first records the batch would hold 10,000 records, 49 MB.
    logs = Logs({T0: [10] * 5_000 + [10_000] * 50_000})
    end = logs.limited(100_000)
    assert logs.bytes_between({T0: 0}, end) <= 200_000
    assert end[T0] >= 10


def test_small_records_behind_large_ones_are_read_in_the_batches_that_follow():
    logs = Logs({T0: [10_000] * 10 + [10] * 10_000})
    position, batches = {T0: 0}, 0
    while position != logs.ends():
        end = logs.limited(50_000, position)
        assert end[T0] > position[T0]
        assert logs.bytes_between(position, end) <= 60_000
        position, batches = end, batches + 1
    assert batches <= 8


def test_a_partition_that_cannot_be_looked_at_counts_as_the_others_do():
    logs = Logs({T0: [100] * 1_000, T1: [100] * 1_000})
    logs.unreadable = {T1}
    assert logs.limited(20_000) == {T0: 100, T1: 100}
    # Nothing is known at all: a kilobyte each.
    logs.unreadable = {T0, T1}
    assert logs.limited(20 * 1024) == {T0: 10, T1: 10}


def test_nothing_new_is_not_measured():
    logs = Logs({T0: [100] * 5})
    assert logs.limited(1, {T0: 5}) == {T0: 5}
    assert logs.asked == []


@pytest.mark.parametrize("seed", range(40))
def test_batches_by_bytes_read_everything_once_and_hold_the_limit_on_even_logs(seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    logs = Logs(
        {
            TopicPartition("t", number): [chance.randrange(50, 150) for _ in range(chance.randrange(0, 4_000))]
            for number in range(5)
        },
        sample_bytes=chance.randrange(500, 20_000),
    )
    limit = chance.randrange(1_000, 200_000)
    position = dict.fromkeys(logs.sizes, 0)
    while position != logs.ends():
        end = logs.limited(limit, position)
        assert all(end[tp] > position[tp] or end[tp] == len(sizes) for tp, sizes in logs.sizes.items())
        # The samples are of a few records at least: sizes between 50 and 150 average out to a third.
        assert logs.bytes_between(position, end) <= limit * 1.34 + 5 * 150
        position = end


def range_of(tp: TopicPartition, size: int, start: int = 0) -> OffsetRange:
    return OffsetRange(tp, start, size, 7)


def test_tasks_hold_about_as_many_bytes_as_asked():
    logs = Logs({T0: [100] * 1_000, T1: [10] * 90})
    pieces = split_by_bytes(logs, [range_of(T0, 1_000), range_of(T1, 90)], 25_000)
    assert [(str(each.topic_partition), each.start_offset, each.end_offset) for each in pieces] == [
        ("t-0", 0, 250),
        ("t-0", 250, 500),
        ("t-0", 500, 750),
        ("t-0", 750, 1_000),
        ("t-1", 0, 90),
    ]
    # Only at its start is the log's epoch known.
    assert [each.start_epoch for each in pieces] == [7, -1, -1, -1, 7]


def test_tasks_are_cut_where_the_bytes_are():
    logs = Logs({T0: [10] * 500 + [1_000] * 500})
    pieces = split_by_bytes(logs, [range_of(T0, 1_000)], 101_000)
    sizes = [sum(logs.sizes[T0][each.start_offset : each.end_offset]) for each in pieces]
    assert len(pieces) == 5
    assert max(sizes) <= 110_000


@pytest.mark.parametrize("most_bytes", [1, 99, 10**9])
def test_the_pieces_are_the_range(most_bytes):
    logs = Logs({T0: [100] * 37, T1: [0] * 12})
    pieces = split_by_bytes(logs, [range_of(T0, 37, 5), range_of(T1, 12)], most_bytes)
    offsets = [(each.topic_partition, at) for each in pieces for at in range(each.start_offset, each.end_offset)]
    assert offsets == [(T0, at) for at in range(5, 37)] + [(T1, at) for at in range(12)]
    assert all(each.size > 0 for each in pieces)
    assert split_by_bytes(logs, [], most_bytes) == []
