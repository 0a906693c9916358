import json
from typing import Any

import pytest

from spark_kafkalite.jobs.load.planning import LoadPolicies, PlanError, TopicLogs, plan_load
from spark_kafkalite.manifests.manifest import LoadedTopic, LostRange, RecreatedTopic
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


OLD, NEW, THIRD = "AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg", "AAAAAAAAQACAAAAAAAAAAw"


def logs(bounds: dict[TopicPartition, tuple[int, int]], topic_id: str | None = OLD) -> TopicLogs:
    return TopicLogs(
        {item: LogBounds(start, end) for item, (start, end) in bounds.items()},
        {} if topic_id is None else {item.topic: topic_id for item in bounds},
    )


def loaded(next_offsets: dict[int, int], topic_id: str | None = OLD, *earlier: str | None) -> dict[str, LoadedTopic]:
    return {"t": LoadedTopic(topic_id, next_offsets, earlier)}


def test_first_load_takes_everything_in_the_log_also_offset_zero() -> None:
    plan = plan_load({}, logs({P0: (0, 10), P1: (4, 6)}))
    assert plan.ranges == (OffsetRange(P0, 0, 10), OffsetRange(P1, 4, 6))
    assert plan.size == 12
    # A topic that was never loaded has no files whose layout would bind the run.
    assert plan.topics == {"t": LoadedTopic(OLD, {0: 10, 1: 6}, layout={})}
    assert (plan.lost, plan.recreated, plan.adopted_ids) == ((), (), ())


def test_next_load_goes_on_where_the_last_one_ended() -> None:
    plan = plan_load(loaded({0: 10, 1: 3}), logs({P0: (0, 10), P1: (0, 5)}))
    assert plan.ranges == (OffsetRange(P1, 3, 5),)


def test_new_partition_is_loaded_from_its_start() -> None:
    plan = plan_load(loaded({0: 10}), logs({P0: (0, 10), P1: (2, 4)}))
    assert plan.ranges == (OffsetRange(P1, 2, 4),)


def test_a_run_with_nothing_new_changes_nothing() -> None:
    before = loaded({0: 10})
    assert not plan_load(before, logs({P0: (0, 10)})).changes(before)
    assert plan_load(before, logs({P0: (0, 11)})).changes(before)
    assert plan_load({}, logs({P0: (0, 0)})).changes({})


def test_what_a_partition_seen_empty_loses_before_the_next_run_counts() -> None:
    seen = plan_load({}, logs({P0: (0, 9), P1: (0, 0)})).topics
    with pytest.raises(PlanError, match=r"t-1.*offset 0.*starts at 6: 6 offsets were deleted"):
        plan_load(seen, logs({P0: (0, 9), P1: (6, 8)}))


def test_records_deleted_before_they_were_loaded_fail_the_run() -> None:
    with pytest.raises(
        PlanError, match=r"t-0.*offset 5.*starts at 8: 3 offsets were deleted.*--on-out-of-range earliest"
    ):
        plan_load(loaded({0: 5}), logs({P0: (8, 12)}))


def test_records_deleted_before_they_were_loaded_are_named_when_allowed() -> None:
    plan = plan_load(loaded({0: 5, 1: 5}), logs({P0: (8, 12), P1: (7, 7)}), LoadPolicies("earliest"))
    assert plan.ranges == (OffsetRange(P0, 8, 12),)
    assert plan.lost == (LostRange("t", 0, 5, 8), LostRange("t", 1, 5, 7))
    assert plan.lost_offsets == 5
    # Also the partition that nothing is left of goes on from its end: the same loss is told once.
    assert plan.topics == loaded({0: 12, 1: 7})


def test_a_log_of_the_same_topic_that_ends_before_what_was_loaded_always_fails() -> None:
    with pytest.raises(PlanError, match=r"t-0.*offset 20.*the same topic.*ends at 12.*truncated"):
        plan_load(loaded({0: 20}), logs({P0: (0, 12)}), LoadPolicies("earliest", "earliest"))


@pytest.mark.parametrize("end", [5, 10, 300])
def test_a_topic_created_again_is_refused_however_long_it_has_grown(end: int) -> None:
    with pytest.raises(
        PlanError, match=rf"topic t: .*{OLD}.*now is {NEW}.*created again.*--on-recreated-topic earliest"
    ):
        plan_load(loaded({0: 10}), logs({P0: (0, end)}, NEW))


def test_of_a_topic_created_again_what_it_holds_is_loaded_and_what_it_held_is_lost() -> None:
    # Told with both policies: whoever loads the new topic has not asked for a run that fails.
    for policies in (LoadPolicies("fail", "earliest"), LoadPolicies("earliest", "earliest")):
        plan = plan_load(loaded({0: 10, 1: 4}), logs({P0: (2, 30), P1: (0, 1)}, NEW), policies)
        assert plan.ranges == (OffsetRange(P0, 2, 30), OffsetRange(P1, 0, 1))
        assert plan.lost == (LostRange("t", 0, 0, 2),)


def test_a_topic_created_again_keeps_the_ids_of_the_earlier_ones() -> None:
    plan = plan_load(loaded({0: 10, 1: 4}), logs({P0: (0, 30)}, NEW), LoadPolicies("fail", "earliest"))
    assert plan.recreated == (RecreatedTopic("t", OLD, NEW, {0: 10, 1: 4}),)
    assert plan.topics == loaded({0: 30}, NEW, OLD)
    again = plan_load(plan.topics, logs({P0: (0, 3)}, THIRD), LoadPolicies("fail", "earliest"))
    assert again.topics == loaded({0: 3}, THIRD, OLD, NEW)


def test_a_topic_that_was_already_replaced_is_another_cluster_s() -> None:
    with pytest.raises(PlanError, match=rf"{OLD}, which was loaded before that one: two clusters"):
        plan_load(loaded({0: 10}, NEW, OLD), logs({P0: (0, 10)}, OLD), LoadPolicies("earliest", "earliest"))


def test_a_topic_of_unknown_id_takes_the_one_that_is_found() -> None:
    plan = plan_load(loaded({0: 10}, None), logs({P0: (0, 12)}))
    assert plan.adopted_ids == ("t",)
    assert plan.topics == loaded({0: 12})
    assert plan_load(plan.topics, logs({P0: (0, 12)})).adopted_ids == ()
    idle = plan_load(loaded({0: 12}, None), logs({P0: (0, 12)}))
    assert (idle.ranges, idle.adopted_ids, idle.changes(loaded({0: 12}, None))) == ((), ("t",), True)


@pytest.mark.parametrize("found", [None, NEW], ids=["cluster without ids", "id not known before"])
@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({P0: (0, 12), P1: (0, 9)}, r"t-0.*offset 20.*ends at 12.*created again"),
        ({P0: (0, 30)}, r"t-1.*offset 3.*gone"),
    ],
    ids=["shorter", "fewer partitions"],
)
def test_without_ids_only_what_is_gone_shows_a_topic_created_again(
    bounds: dict[TopicPartition, tuple[int, int]], message: str, found: str | None
) -> None:
    before = loaded({0: 20, 1: 3}, None)
    with pytest.raises(PlanError, match=message):
        plan_load(before, logs(bounds, found))
    plan = plan_load(before, logs(bounds, found), LoadPolicies("fail", "earliest"))
    assert [(r.topic_partition, r.start_offset) for r in plan.ranges] == [(item, 0) for item in bounds]
    assert plan.topics["t"].earlier_ids == (None,)


def test_a_cluster_that_tells_no_ids_leaves_the_known_one() -> None:
    assert plan_load(loaded({0: 5}), logs({P0: (0, 6)}, None)).topics == loaded({0: 6})


def test_the_plan_names_its_partitions_to_the_source() -> None:
    plan = plan_load(loaded({0: 5}), logs({P0: (0, 9), P1: (0, 2)}))
    assert json.loads(plan.assign_option()) == {"t": [0, 1]}


@pytest.mark.parametrize(
    ("policy", "resumed"), [("earliest", 8), ("nearest", 8), ("latest", 12)], ids=["earliest", "nearest", "latest"]
)
def test_a_run_goes_on_behind_what_is_gone_as_it_is_told(policy: Any, resumed: int) -> None:
    plan = plan_load(loaded({0: 5}), logs({P0: (8, 12)}), LoadPolicies(policy))
    assert plan.lost == (LostRange("t", 0, 5, resumed),)
    assert plan.ranges == ((OffsetRange(P0, resumed, 12),) if resumed < 12 else ())
    assert plan.topics == loaded({0: 12})


def test_a_partition_that_is_skipped_stays_where_it_was() -> None:
    plan = plan_load(loaded({0: 5, 1: 1}), logs({P0: (8, 12), P1: (0, 3)}), LoadPolicies("skip"))
    assert (plan.skipped, plan.lost) == ((P0,), ())
    assert plan.ranges == (OffsetRange(P1, 1, 3),)
    assert plan.topics == loaded({0: 5, 1: 3})
    assert plan.at_end == {P1}


def test_new_partitions_may_begin_at_their_end() -> None:
    plan = plan_load(loaded({0: 5}), logs({P0: (0, 6), P1: (2, 4)}), LoadPolicies(new_partitions="latest"))
    assert plan.ranges == (OffsetRange(P0, 5, 6),)
    assert plan.topics == loaded({0: 6, 1: 4})
    assert plan.lost == ()


def test_a_bounded_run_ends_earlier_and_goes_on_there() -> None:
    whole = plan_load(loaded({0: 5}), logs({P0: (0, 9), P1: (0, 2)}))
    assert whole.at_end == {P0, P1}
    plan = whole.bounded({P0: 7, P1: 2})
    assert plan.ranges == (OffsetRange(P0, 5, 7), OffsetRange(P1, 0, 2))
    assert plan.topics == loaded({0: 7, 1: 2})
    assert plan.at_end == {P1}
    assert plan_load(plan.topics, logs({P0: (0, 9), P1: (0, 2)})).ranges == (OffsetRange(P0, 7, 9),)
    assert whole.bounded({P0: 5, P1: 2}).ranges == (OffsetRange(P1, 0, 2),)
