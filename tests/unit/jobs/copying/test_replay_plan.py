"""Which offsets a replay reads, and what it says of a range that is not in the log."""

import json
from pathlib import Path

import pytest

from spark_kafkalite.jobs.copying.replay_plan import (
    Bound,
    QueryBatches,
    bound_of_offsets,
    bound_of_time,
    bounds_of_batches,
    plan_replay,
)
from spark_kafkalite.jobs.load.planning import PlanError, TopicLogs
from spark_kafkalite.manifests.files import local_files
from spark_kafkalite.manifests.manifest import LoadedTopic
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpoint, QueryCheckpointError
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
OCTOBER_MS = 1_380_585_600_000
LOG_END = Bound("the end of the log, offset")


def logs(bounds: dict[TopicPartition, tuple[int, int]]) -> TopicLogs:
    return TopicLogs({item: LogBounds(start, end) for item, (start, end) in bounds.items()}, {"t": "id"})


def test_a_replay_goes_to_the_end_of_the_log() -> None:
    plan = plan_replay(Bound("the start", {P0: 3}), LOG_END, logs({P0: (1, 9), P1: (2, 4)}))
    assert plan.ranges == (OffsetRange(P0, 3, 9), OffsetRange(P1, 2, 4))
    assert plan.topics == {"t": LoadedTopic("id", {0: 9, 1: 4})}


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ({P0: 0}, {}, r"t-0: the start 0 is not in the log, which holds offsets 1 to 9 .*-2 is the earliest"),
        ({}, {P0: 10}, r"t-0: the end 10 is not in the log"),
        ({P0: 5}, {P0: 4}, r"t-0: the start 5 lies beyond the end 4; swap them"),
        ({TopicPartition("t", 7): 0}, {}, r"no such partition: t-7"),
    ],
)
def test_a_replay_of_what_is_not_there_fails(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_replay(Bound("the start", start), Bound("the end", end), logs({P0: (1, 9)}))


def test_offsets_may_be_the_ends_of_the_log() -> None:
    bounds = {P0: LogBounds(3, 9), P1: LogBounds(4, 8)}
    found = bound_of_offsets("the start", "t", {0: -2, 1: -1, 2: -2}, bounds)
    assert found.offsets == {P0: 3, P1: 8, P2: -2}  # the plan refuses the partition that is not there


def test_errors_name_the_time_that_was_given_and_not_the_offset_found_for_it() -> None:
    there = logs({P0: (1, 9)})
    start = bound_of_time("--from-timestamp", OCTOBER_MS, {P0: 7}, there.bounds)
    with pytest.raises(PlanError) as refused:
        plan_replay(start, Bound("the end", {P0: 5}), there)
    assert "the time of --from-timestamp, 2013-10-01T00:00:00.000+00:00, lies beyond the end 5" in str(refused.value)
    end = bound_of_time("--to-timestamp", OCTOBER_MS, {P0: 2}, there.bounds)
    with pytest.raises(PlanError) as refused:
        plan_replay(Bound("the start", {P0: 5}), end, there)
    assert "the start 5 lies beyond the time of --to-timestamp, 2013-10-01T00:00:00.000+00:00," in str(refused.value)
    assert "2;" not in str(refused.value)


def test_a_record_that_came_after_the_look_at_the_log_is_past_its_end() -> None:
    there = logs({P0: (1, 9), P1: (5, 9), P2: (0, 2)})
    start = bound_of_time("--from-timestamp", OCTOBER_MS, {P0: 12, P1: 3, P2: None}, there.bounds)
    assert start.offsets == {P0: 9, P1: 5, P2: 2}
    assert plan_replay(start, LOG_END, there).ranges == (OffsetRange(P1, 5, 9),)


# Batches of a query ---------------------------------------------------------------------------------------------------


def checkpoint(directory: Path, batches: dict[int, list[str]], committed: int) -> QueryCheckpoint:
    for log in ("offsets", "commits"):
        (directory / log).mkdir()
    for number, sources in batches.items():
        (directory / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *sources]))
        if number <= committed:
            (directory / "commits" / str(number)).write_text("v1\n{}")
    return QueryCheckpoint.open(local_files(str(directory)))


def ends(*by_partition: int, initial: tuple[int, ...] | None = None) -> str:
    first = {} if initial is None else {"$initial": {"t": dict(enumerate(initial))}}
    return json.dumps({**first, "t": dict(enumerate(by_partition))})


THREE = {0: [ends(10, 20, initial=(5, 6))], 1: [ends(15, 20)], 2: [ends(18, 25, 4)]}
LOGS = {P0: LogBounds(0, 100), P1: LogBounds(2, 100), P2: LogBounds(1, 100)}


@pytest.mark.parametrize(
    ("span", "start", "end"),
    [
        (None, {P0: 10, P1: 20, P2: 1}, None),
        (QueryBatches(0), {P0: 5, P1: 6, P2: 1}, None),
        (QueryBatches(0, 0), {P0: 5, P1: 6, P2: 1}, {P0: 10, P1: 20, P2: 1}),
        (QueryBatches(1, 2), {P0: 10, P1: 20, P2: 1}, {P0: 18, P1: 25, P2: 4}),
        (QueryBatches(2), {P0: 15, P1: 20, P2: 1}, None),
    ],
)
def test_a_batch_begins_where_the_one_before_it_ends(
    tmp_path: Path, span: QueryBatches | None, start: dict[TopicPartition, int], end: dict[TopicPartition, int] | None
) -> None:
    found = checkpoint(tmp_path, THREE, committed=1)
    first, last = bounds_of_batches(found, "t", span, LOGS)
    assert first.offsets == start
    assert (None if last is None else last.offsets) == end
    assert plan_replay(first, last or LOG_END, TopicLogs(LOGS)).size > 0


@pytest.mark.parametrize(
    ("topic", "batches", "span", "message"),
    [
        ("t", THREE, QueryBatches(7), "offsets/7: there is no such batch; the checkpoint holds 0 to 2"),
        ("t", THREE, QueryBatches(1, 9), "offsets/9: there is no such batch"),
        ("u", THREE, QueryBatches(1), "no source of the query reads topic u; they read t"),
        ("t", {0: [ends(10)]}, QueryBatches(0), "source 0 does not hold where the query began"),
        ("t", {0: ["7"]}, QueryBatches(0), "they read no topic"),
        (
            "t",
            {0: [ends(1), ends(2)], 1: [ends(3), ends(3)]},
            QueryBatches(1),
            "several sources of the query read topic t",
        ),
    ],
)
def test_a_checkpoint_that_does_not_say_is_refused(
    tmp_path: Path, topic: str, batches: dict[int, list[str]], span: QueryBatches, message: str
) -> None:
    found = checkpoint(tmp_path, batches, committed=max(batches) - 1)
    with pytest.raises(QueryCheckpointError, match=message):
        bounds_of_batches(found, topic, span, LOGS)


def test_a_batch_whose_records_are_gone_is_named(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, THREE, committed=2)
    first, _ = bounds_of_batches(found, "t", QueryBatches(1), LOGS)
    with pytest.raises(PlanError, match=r"t-0: the start of batch 1 of file:.*, offset 10 is not in the log"):
        plan_replay(first, LOG_END, TopicLogs({**LOGS, P0: LogBounds(50, 100)}))


def test_two_sources_that_read_the_topic_alike_are_one(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {0: [ends(1), ends(1)], 1: [ends(3), ends(3), "7"]}, committed=1)
    first, _ = bounds_of_batches(found, "t", None, {P0: LogBounds(0, 9)})
    assert first.offsets == {P0: 1}


def test_without_a_finished_batch_one_must_be_named(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {0: [ends(10, initial=(5,))]}, committed=-1)
    with pytest.raises(QueryCheckpointError, match="no batch of the query is finished; name one with --batch 0"):
        bounds_of_batches(found, "t", None, LOGS)
