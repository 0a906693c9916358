"""When a plan counts as repeated, and of what it warns."""

import pickle
from pathlib import Path

import pytest

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.positions import AT_LATEST, Position, PositionKind, Positions
from spark_kafkalite.spark.reading.read_plan import ReadTask
from spark_kafkalite.spark.reading.repeated_plan import FirstTask, PlanEnds, behind_logs, is_repeated
from spark_kafkalite.spark.workers import worker_log
from spark_kafkalite.spark.workers.worker_log import SaidBefore

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_only_ends_that_follow_the_log_count() -> None:
    ends = {A0: 5, A1: 6, B0: 7}
    assert PlanEnds.of(Positions(AT_LATEST), ends).ends == ends
    some = Positions(topics={"a": AT_LATEST}, partitions={A1: Position(PositionKind.OFFSET, 6)})
    assert PlanEnds.of(some, ends).ends == {A0: 5}
    assert PlanEnds.of(Positions(Position(PositionKind.TIME, 1)), ends).ends == {}
    assert PlanEnds.of(None, ends).ends == {}


def test_each_plan_has_a_name_of_its_own_which_its_task_carries() -> None:
    planned = PlanEnds.of(Positions(AT_LATEST), {A0: 5})
    assert planned.plan != PlanEnds.of(Positions(AT_LATEST), {A0: 5}).plan
    task = pickle.loads(pickle.dumps(FirstTask(ReadTask(()), planned)))
    assert (task.planned, task.ranges, task.token) == (planned, (), None)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_plan_is_repeated_by_another_execution(tmp_path: Path, is_shared: bool) -> None:
    def process() -> SaidBefore:
        """Another process of the host, where they share a directory."""
        return SaidBefore(tmp_path / "seen") if is_shared else seen

    seen = SaidBefore(None)
    # Names by chance would have one slot once in a thousand times, and forget each other.
    first, second = PlanEnds({A0: 1}, "first"), PlanEnds({A0: 1}, "second")
    assert not is_repeated(first, "7", process())
    # A retry, or a second stage of the same action.
    assert not is_repeated(first, "7", process())
    assert not is_repeated(second, "8", process())
    assert is_repeated(first, "9", process())
    # One warning for an execution is enough.
    assert not is_repeated(first, "9", process())
    assert is_repeated(first, "10", process())


def test_executions_of_a_plan_do_not_make_it_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_log, "_SLOTS", 1)
    seen, plan = SaidBefore(None), PlanEnds({A0: 1})
    assert [is_repeated(plan, each, seen) for each in ("7", "9", "9", "10")] == [False, True, False, True]


def test_which_partitions_are_behind() -> None:
    planned = {A0: 5, A1: 6, B0: 7}
    # A log that was truncated is no reason, nor is a topic that is gone.
    assert behind_logs(planned, {A0: 9, A1: 6, B0: 3}) == {A0: 4}
    assert behind_logs(planned, {}) == {}
