import json

import pytest

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.jobs.planning import LogBounds, OffsetRange, PlanError, plan_load, plan_replay

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_first_load_takes_everything_in_the_log_also_offset_zero() -> None:
    plan = plan_load({}, {P0: LogBounds(0, 10), P1: LogBounds(4, 6)})
    assert plan.ranges == (OffsetRange(P0, 0, 10), OffsetRange(P1, 4, 6))
    assert plan.size == 12
    assert plan.lost == 0


def test_next_load_goes_on_where_the_last_one_ended() -> None:
    plan = plan_load({P0: 10, P1: 3}, {P0: LogBounds(0, 10), P1: LogBounds(0, 5)})
    assert plan.ranges == (OffsetRange(P1, 3, 5),)


def test_new_partition_is_loaded_from_its_start() -> None:
    plan = plan_load({P0: 10}, {P0: LogBounds(0, 10), P1: LogBounds(2, 4)})
    assert plan.ranges == (OffsetRange(P1, 2, 4),)


def test_records_deleted_before_they_were_loaded_fail_the_run() -> None:
    with pytest.raises(
        PlanError, match=r"t-0.*offset 5.*starts at 8: 3 offsets were deleted.*--on-out-of-range earliest"
    ):
        plan_load({P0: 5}, {P0: LogBounds(8, 12)})


def test_records_deleted_before_they_were_loaded_are_counted_when_allowed() -> None:
    plan = plan_load({P0: 5}, {P0: LogBounds(8, 12)}, "earliest")
    assert plan.ranges == (OffsetRange(P0, 8, 12),)
    assert plan.lost == 3


def test_log_shorter_than_what_was_loaded_always_fails() -> None:
    with pytest.raises(PlanError, match=r"t-0.*offset 20.*ends at 12.*made again"):
        plan_load({P0: 20}, {P0: LogBounds(0, 12)}, "earliest")


def test_plan_reads_exactly_its_ranges_through_the_source_options() -> None:
    plan = plan_load({P0: 5}, {P0: LogBounds(0, 9), P1: LogBounds(0, 2)})
    options = {name: json.loads(value) for name, value in plan.spark_options().items()}
    assert options == {
        "assign": {"t": [0, 1]},
        "startingOffsets": {"t": {"0": 5, "1": 0}},
        "endingOffsets": {"t": {"0": 9, "1": 2}},
    }


def test_replay_defaults_to_the_whole_log() -> None:
    assert plan_replay({P0: 3}, {}, {P0: LogBounds(1, 9), P1: LogBounds(2, 4)}).ranges == (
        OffsetRange(P0, 3, 9),
        OffsetRange(P1, 2, 4),
    )


@pytest.mark.parametrize(
    ("starts", "ends", "message"),
    [
        ({P0: 0}, {}, r"t-0: the start 0 is not in the log, which holds offsets 1 to 9"),
        ({}, {P0: 10}, r"t-0: the end 10 is not in the log"),
        ({P0: 5}, {P0: 4}, r"t-0: the start 5 lies beyond the end 4"),
        ({TopicPartition("t", 7): 0}, {}, r"no such partition: t-7"),
    ],
)
def test_replay_of_what_is_not_there_fails(
    starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_replay(starts, ends, {P0: LogBounds(1, 9)})
