"""The rules of a mirror: what its targets lack, and which mirrors would never end."""

import pytest

from spark_kafkalite.client.group.lag import PartitionLag
from spark_kafkalite.jobs.copying.mirror_topics import (
    MirroredTopics,
    TopicLag,
    by_topic,
    changes_of_targets,
    check_clusters,
    check_no_way_back,
    group_of,
    prefix_of,
    shown,
)
from spark_kafkalite.jobs.load.planning import PlanError
from spark_kafkalite.model import TopicPartition


def test_topics_are_chosen_by_name_or_by_a_pattern_that_matches_anywhere() -> None:
    there = ["a", "b", "logs.a", "logs.b"]
    assert MirroredTopics(("b", "a", "absent")).of(there) == ["a", "b"]
    assert MirroredTopics(pattern="logs").of(there) == ["logs.a", "logs.b"]
    assert MirroredTopics(pattern=r"^a$").of(there) == ["a"]
    assert MirroredTopics(("a", "b")).source_options() == {"subscribe": "a,b"}
    assert MirroredTopics(pattern="x.*").source_options() == {"subscribePattern": "x.*"}


def test_targets_are_created_and_grow_and_never_shrink() -> None:
    changes = changes_of_targets(
        MirroredTopics(prefix="p."),
        {"new": 3, "grown": 5, "same": 2, "wider": 1},
        {"p.grown": 4, "p.same": 2, "p.wider": 8},
    )
    assert (changes.create, changes.grow) == ({"p.new": 3}, {"p.grown": 5})


def test_a_topic_is_not_copied_into_itself() -> None:
    selection = MirroredTopics(("t",))
    with pytest.raises(
        PlanError, match="topic t: both ends are the cluster with id A, so it would be copied into itself"
    ):
        check_clusters(selection, ["t"], "A", "A")
    check_clusters(selection, ["t"], "A", "B")
    check_clusters(MirroredTopics(("t",), prefix="copy."), ["t"], "A", "A")
    # An old cluster does not say who it is.
    check_clusters(selection, ["t"], None, None)


def test_a_target_that_is_copied_as_well_is_refused() -> None:
    with pytest.raises(PlanError, match=r"topic t: its target copy\.t is on the same cluster and is copied as well"):
        check_clusters(MirroredTopics(pattern="t", prefix="copy."), ["t"], "A", "A")
    check_clusters(MirroredTopics(pattern="^t", prefix="copy."), ["t"], "A", "A")


def test_a_mirror_there_and_back_is_refused() -> None:
    selection = MirroredTopics(("t",))
    with pytest.raises(
        PlanError, match="topic t: group g on the target's cluster shows a mirror that copies t back to t"
    ):
        check_no_way_back(selection, ["t"], "g", "", {"t"})
    check_no_way_back(selection, ["t"], "g", "", {"u"})
    # Back it comes under another name, which is not copied.
    check_no_way_back(selection, ["t"], "g", "back.", {"t"})
    check_no_way_back(MirroredTopics(("t",), prefix="there."), ["t"], "g", "", {"t"})
    with pytest.raises(PlanError, match=r"copies there\.t back to back\.there\.t"):
        check_no_way_back(MirroredTopics(pattern="t", prefix="there."), ["t"], "g", "back.", {"there.t"})


def test_a_group_says_where_its_mirror_goes_and_under_which_names() -> None:
    for prefix in ("", "copy.", "."):
        assert prefix_of(group_of("cluster", prefix), "cluster") == prefix
    assert prefix_of(group_of("cluster2", ""), "cluster") is None
    assert prefix_of(group_of("cluster2", "p"), "cluster") is None
    assert prefix_of("reports", "cluster") is None


def test_lag_is_summed_up_by_topic() -> None:
    def lag(committed: int | None, end: int | None, age_ms: int | None) -> PartitionLag:
        return PartitionLag(committed, 0, end, age_ms)

    found = by_topic(
        {
            TopicPartition("b", 0): lag(5, 5, None),
            TopicPartition("a", 1): lag(5, 8, 2_000),
            TopicPartition("a", 0): lag(5, 6, 9_000),
            TopicPartition("a", 2): lag(5, None, None),
        }
    )
    assert found == [TopicLag("a", 4, 9_000), TopicLag("b", 0, None)]
    assert shown(found) == "4 offsets behind: a 4 (9 s)"
    assert shown([TopicLag("b", 0, None)]) == "0 offsets behind: nothing waits"
