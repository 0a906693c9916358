import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.data_loss import LossCause
from spark_kafkalite.spark.reading.offset_ranges import (
    PACK_MIN_TASKS,
    PACK_TARGET_OFFSETS,
    OffsetRange,
    losses,
    packed,
    ranges_between,
    split,
    waiting,
)
from spark_kafkalite.spark.reading.trigger_limits import limited

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def ranges_of(sizes: list[int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", number), 7, 7 + size) for number, size in enumerate(sizes)]


ranges = st.lists(st.integers(1, 100_000), max_size=40).map(ranges_of)
small_ranges = st.lists(st.integers(1, 300), max_size=12).map(ranges_of)


def range_of(size: int, partition: int = 0) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), 0, size)


def covered(pieces: list[OffsetRange]) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return what pieces cover, adjacent pieces joined."""
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for piece in sorted(pieces, key=lambda each: (each.topic_partition, each.start_offset)):
        spans = found.setdefault(piece.topic_partition, [])
        if spans and spans[-1][1] == piece.start_offset:
            spans[-1] = (spans[-1][0], piece.end_offset)
        else:
            spans.append((piece.start_offset, piece.end_offset))
    return found


def test_the_limit_is_shared_in_proportion_and_nobody_starves():
    start = {T0: 0, T1: 0, T2: 5}
    end = {T0: 900, T1: 1, T2: 5}
    assert limited(start, end, 100) == {T0: 99, T1: 1, T2: 5}


def test_a_limit_with_nothing_waiting_returns_the_end():
    assert limited({T0: 5}, {T0: 5}, 1) == {T0: 5}
    assert limited({T0: 9}, {T0: 5}, 1) == {T0: 5}


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), min_size=1, max_size=20), st.integers(1, 2**62)
)
def test_a_limited_batch_moves_every_partition_and_passes_the_limit_by_one_each(spans, limit):
    start = {TopicPartition("t", number): first for number, (first, _) in enumerate(spans)}
    end = {TopicPartition("t", number): max(first, last) for number, (first, last) in enumerate(spans)}
    found = limited(start, end, limit)
    assert all(start[tp] < found[tp] <= end[tp] for tp in end if end[tp] > start[tp])
    assert sum(found[tp] - start[tp] for tp in found) <= limit + len(spans)


def test_waiting_counts_partitions_without_a_start_from_zero():
    assert waiting({T0: 5}, {T0: 7, T1: 3}) == 5


def test_empty_and_negative_ranges_are_dropped():
    assert ranges_between({T0: 5, T1: 5, T2: 0}, {T0: 5, T1: 3, T2: 1}) == [OffsetRange(T2, 0, 1)]


WORKED = [range_of(9000, 0), range_of(900, 1), range_of(10, 2)]


@pytest.mark.parametrize(("minimum", "tasks"), [(None, 5), (5, 5), (6, 5), (7, 8)])
def test_the_worked_example(minimum, tasks):
    assert len(split(WORKED, minimum, 3000)) == tasks


def test_dividing_spreads_the_remainder():
    assert [piece.size for piece in split([range_of(10)], 3, None)] == [3, 3, 4]
    assert [piece.size for piece in split([range_of(10)], None, 4)] == [3, 3, 4]


def test_fewer_offsets_than_tasks():
    assert [piece.size for piece in split([range_of(2)], 5, None)] == [1, 1]


# Small ones, since they may be split into single offsets.
@given(small_ranges, st.none() | st.integers(1, 100), st.none() | st.integers(1, 400))
def test_splitting_loses_and_repeats_nothing(whole, minimum, maximum):
    pieces = split(whole, minimum, maximum)
    assert covered(pieces) == covered(whole)
    assert sum(piece.size for piece in pieces) == sum(each.size for each in whole)
    if maximum is not None:
        assert all(0 < piece.size <= maximum for piece in pieces)


def test_few_ranges_stay_a_task_each():
    few = [range_of(1, number) for number in range(PACK_MIN_TASKS)]
    assert packed(few) == [[each] for each in few]


def test_many_small_ranges_share_tasks():
    assert len(packed([range_of(1, number) for number in range(1000)])) == PACK_MIN_TASKS


def test_large_ranges_stay_alone():
    large = [range_of(PACK_TARGET_OFFSETS, number) for number in range(10)]
    small = [range_of(10, number) for number in range(10, 50)]
    tasks = packed(large + small)
    assert tasks[:10] == [[each] for each in large]
    assert len(tasks) == 11


@given(ranges)
def test_packing_loses_and_repeats_nothing_and_is_balanced(whole):
    tasks = packed(whole)
    assert sorted(map(str, (each for task in tasks for each in task))) == sorted(map(str, whole))
    assert all(tasks)
    assert packed(whole) == tasks
    assert all(sum(each.size for each in task) < 2 * PACK_TARGET_OFFSETS for task in tasks if len(task) > 1)


def conditions(*args) -> list[str]:
    return [loss.condition for loss in losses(*args)]


def test_no_loss_when_offsets_go_on_and_partitions_are_added_at_zero():
    assert conditions({T0: 5}, {T0: 5, T1: 3}, {T1: 0}) == []


@pytest.mark.parametrize(
    ("start", "end", "first", "condition", "cause"),
    [
        ({}, {T0: 5}, {}, "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", LossCause.PARTITION_GONE),
        ({}, {T0: 5}, {T0: 2}, "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", LossCause.AGED_OUT),
        ({T0: 5}, {}, {}, "PARTITIONS_DELETED", LossCause.DELETED),
        ({T0: 5, T1: 5}, {T1: 5}, {}, "PARTITIONS_DELETED", LossCause.PARTITION_GONE),
        ({T0: 5}, {T0: 4}, {}, "PARTITION_OFFSET_CHANGED", LossCause.END_WENT_BACK),
    ],
)
def test_each_way_of_losing_data_has_the_jvm_connectors_name(start, end, first, condition, cause):
    (loss,) = losses(start, end, first)
    assert (loss.condition, loss.cause) == (f"KAFKA_DATA_LOSS.{condition}", cause)
    assert "t-0" in loss.text


def test_what_new_partitions_lack_is_counted():
    (loss,) = losses({}, {T0: 5, T1: 9}, {T0: 2, T1: 4})
    assert loss.text.endswith("t-0 starts at 2, t-1 starts at 4; 6 offsets are skipped")
