"""Which tasks read which ranges."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafkalite.client.consume.log_samples import LogSample
from spark_kafkalite.jobs.load.task_planning import tasks_by_bytes
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange


def even(bytes_each: Mapping[str, int]):  # type: ignore[no-untyped-def]
    """Samples of logs in which every offset of a topic takes the same bytes."""

    def sample(places: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogSample]:
        return {tp: LogSample(at, at + 10, 10 * bytes_each[tp.topic]) for tp, at in places.items()}

    return sample


def ranges(topic: str, *sizes: int) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition(topic, number), 100, 100 + size) for number, size in enumerate(sizes)]


def sizes(tasks: object) -> list[list[tuple[str, int]]]:
    return [[(str(each.topic_partition), each.size) for each in task] for task in tasks]  # type: ignore[attr-defined]


def test_small_partitions_of_a_topic_share_a_task() -> None:
    tasks, size_bytes = tasks_by_bytes(even({"a": 1, "b": 1}), ranges("a", 40, 40, 40) + ranges("b", 20), 100)
    assert sizes(tasks) == [[("a-0", 40), ("a-1", 40)], [("a-2", 40)], [("b-0", 20)]]
    assert size_bytes == 140


def test_a_large_partition_is_cut_and_shares_with_none() -> None:
    tasks, _ = tasks_by_bytes(even({"a": 2}), ranges("a", 10, 200, 10), 100)
    assert sizes(tasks) == [[("a-0", 10)], *([("a-1", 50)] for _ in range(4)), [("a-2", 10)]]
    assert [each.start_offset for task in tasks for each in task] == [100, 100, 150, 200, 250, 100]


def test_every_offset_is_in_one_task() -> None:
    whole = ranges("a", 7, 1000, 3, 512, 1) + ranges("b", 999)
    tasks, _ = tasks_by_bytes(even({"a": 3, "b": 50}), whole, 1_000)
    covered = {
        (each.topic_partition, offset)
        for task in tasks
        for each in task
        for offset in range(each.start_offset, each.end_offset)
    }
    assert len(covered) == sum(each.size for each in whole) == sum(each.size for task in tasks for each in task)


def test_nothing_to_read_takes_no_task() -> None:
    assert tasks_by_bytes(even({}), [], 100) == ((), 0.0)
