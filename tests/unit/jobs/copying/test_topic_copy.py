"""How the ranges of a copy become tasks."""

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.copying.offset_set import OffsetSet
from spark_kafkalite.jobs.copying.topic_copy import dealt, left_of
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", number), 0, size) for number, size in enumerate(sizes)]


def test_what_is_there_at_the_beginning_is_not_read_again() -> None:
    present = {
        0: OffsetSet.of(pa.array(range(4), pa.int64())),
        1: OffsetSet.of(pa.array(range(10), pa.int64())),
        2: OffsetSet.of(pa.array([1, 2], pa.int64())),
    }
    left = left_of(ranges(10, 10, 10, 10), present)
    assert [(each.topic_partition.partition, each.start_offset, each.end_offset) for each in left] == [
        (0, 4, 10), (2, 0, 10), (3, 0, 10),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "most", "shares"), [((5, 9, 1, 2), 2, [9, 8]), ((5, 9), 8, [9, 5]), ((3, 3, 3), 1, [9]), ((), 4, [])]
)
def test_ranges_are_dealt_to_no_more_tasks_than_run_at_once(
    sizes: tuple[int, ...], most: int, shares: list[int]
) -> None:
    lists = dealt(ranges(*sizes), most)
    assert [sum(each.size for each in one) for one in lists] == shares
    assert {each for one in lists for each in one} == set(ranges(*sizes))
