"""What a cluster remembers of a replay with a run id, and when a repeated run is refused."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.copying.offset_set import OffsetSet
from spark_kafkalite.jobs.copying.replay_plan import Bound, plan_replay
from spark_kafkalite.jobs.copying.replay_run import (
    LOOK_BACK_OFFSETS,
    ReplayRun,
    check_new,
    digest,
    last_records,
    recorded_run,
)
from spark_kafkalite.jobs.load.planning import PlanError, TopicLogs
from spark_kafkalite.model import CommittedOffset, LogBounds, TopicPartition

S0, S1, T0, T1 = (TopicPartition(topic, number) for topic in ("s", "t") for number in range(2))
SOURCE = TopicLogs({S0: LogBounds(2, 50), S1: LogBounds(0, 10)}, {"s": "source-id"})
TARGET = TopicLogs({T0: LogBounds(0, 3), T1: LogBounds(0, 5_000)}, {"t": "target-id"})
PLAN = plan_replay(Bound("", {S0: 20, S1: 10}), Bound(""), SOURCE)
RUN = ReplayRun.first("asked", PLAN, SOURCE, TARGET)
GROWN = TopicLogs(
    {S0: LogBounds(2, 90), S1: LogBounds(0, 30), TopicPartition("s", 2): LogBounds(0, 5)}, SOURCE.topic_ids
)


def test_a_repeated_run_reads_what_the_first_start_planned_whatever_came_since() -> None:
    remembered = ReplayRun.of("g", RUN.offsets({}))
    assert remembered == RUN
    assert remembered.resumed("x", "asked", GROWN, TARGET).ranges == PLAN.ranges
    assert {tp: each.offset for tp, each in RUN.offsets({}).items()} == {S0: 50, S1: 10, T0: 3, T1: 5_000}
    assert all(len(each.metadata) < 4096 for each in RUN.offsets({}).values())


def test_the_ends_of_the_logs_are_committed_and_do_not_move_the_run() -> None:
    committed = RUN.offsets({S0: 90, S1: 30, T0: 43})
    assert {tp: each.offset for tp, each in committed.items()} == {S0: 90, S1: 30, T0: 43, T1: 5_000}
    assert ReplayRun.of("g", committed) == RUN


def test_a_record_of_version_0_2_is_read() -> None:
    """There the offsets were the ends of the ranges, and the metadata did not repeat them."""

    def as_before(each: CommittedOffset) -> CommittedOffset:
        fields = {name: value for name, value in json.loads(each.metadata).items() if name not in ("end", "begin")}
        return each._replace(metadata=json.dumps(fields))

    assert ReplayRun.of("g", {tp: as_before(each) for tp, each in RUN.offsets({}).items()}) == RUN


def test_the_target_is_looked_through_from_where_the_run_began() -> None:
    new = TopicPartition("t", 2)
    grown = TopicLogs({T0: LogBounds(0, 90), T1: LogBounds(0, 9_000), new: LogBounds(0, 7)}, TARGET.topic_ids)
    assert RUN.look_from(grown) == {T0: 3, T1: 5_000, new: 0}
    assert last_records(TARGET) == {T0: 0, T1: 5_000 - LOOK_BACK_OFFSETS}


def test_a_cluster_without_topic_ids_is_taken_as_it_is() -> None:
    run = ReplayRun.first("asked", PLAN, replace(SOURCE, topic_ids={}), replace(TARGET, topic_ids={}))
    assert ReplayRun.of("g", run.offsets({})).resumed("x", "asked", SOURCE, TARGET).ranges == PLAN.ranges


@pytest.mark.parametrize(
    ("asked", "source", "target", "message"),
    [
        ("other", SOURCE, TARGET, "--run-id x: that run was begun with another range; repeat its options"),
        ("asked", TARGET, SOURCE, "that run reads topic s and writes topic t; give another"),
        ("asked", replace(SOURCE, topic_ids={"s": "new"}), TARGET, "topic s had id source-id when .* has id new now"),
        ("asked", SOURCE, replace(TARGET, topic_ids={"t": "new"}), "topic t had id target-id"),
        (
            "asked",
            SOURCE,
            TopicLogs({T0: LogBounds(4, 9), T1: LogBounds(0, 5_000)}),
            "began to write at offset 3 of t-0",
        ),
        (
            "asked",
            SOURCE,
            TopicLogs({T0: LogBounds(0, 9), T1: LogBounds(0, 9)}),
            "began to write at offset 5000 of t-1",
        ),
        (
            "asked",
            TopicLogs({S0: LogBounds(30, 49), S1: LogBounds(0, 10)}),
            TARGET,
            "the run reads s-0 up to offset 50, but its log now ends at 49: it was truncated",
        ),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(asked: str, source: TopicLogs, target: TopicLogs, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        RUN.resumed("x", asked, source, target)


def test_a_record_that_is_not_whole_is_refused() -> None:
    committed = RUN.offsets({})
    del committed[S1]
    with pytest.raises(PlanError, match="group g: its record of the run lacks partitions"):
        ReplayRun.of("g", committed)
    strange = {**RUN.offsets({}), S0: RUN.offsets({})[S0]._replace(metadata="mine")}
    with pytest.raises(PlanError, match="group g: what it has committed for s-0 is no record of a replay"):
        ReplayRun.of("g", strange)


def test_a_run_of_which_nothing_is_remembered_is_new_unless_its_records_are_there() -> None:
    admin: Any = SimpleNamespace(group_offsets={"kafkalite-replay-x": {}}.__getitem__)
    assert recorded_run(admin, "x") is None
    check_new("x", "t", {})
    with pytest.raises(PlanError, match=r"topic t holds records of that run, but group kafkalite-replay-x.* is gone"):
        check_new("x", "t", {0: OffsetSet.of(pa.array([1], pa.int64()))})


def test_a_range_is_told_from_another() -> None:
    assert digest({"from": [1, None]}) == digest({"from": [1, None]}) != digest({"from": [2, None]})


def test_a_run_goes_on_when_its_source_has_forgotten_what_may_be_there_already() -> None:
    shorter = TopicLogs({S0: LogBounds(40, 90), S1: LogBounds(0, 10)}, SOURCE.topic_ids)
    assert RUN.resumed("x", "asked", shorter, TARGET).ranges == PLAN.ranges
