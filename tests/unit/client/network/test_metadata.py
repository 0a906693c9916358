"""The picture of the cluster, merged from answers."""

from __future__ import annotations

from spark_kafkalite.client.network.metadata import ClusterSnapshot, Node, merge
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID_1, ID_2 = b"1" * 16, b"2" * 16


def answer(*topics: tuple[str, bytes, list[tuple[int, int, int]]], error_code: int = 0) -> MetadataResponse:
    """Topics as (name, id, [(partition, leader, leader epoch)])."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=9)],
        cluster_id="c",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                error_code=error_code,
                name=name,
                topic_id=topic_id,
                partitions=[
                    MetadataResponsePartition(partition_index=number, leader_id=leader, leader_epoch=epoch)
                    for number, leader, epoch in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    )


def test_an_answer_becomes_the_picture() -> None:
    snapshot = merge(ClusterSnapshot(), answer(("t", ID_1, [(1, 2, 0), (0, 1, 0)])), {"t"})
    assert snapshot.nodes == {1: Node(1, "h", 9)}
    assert str(snapshot.nodes[1]) == "broker 1 at h:9"
    assert (snapshot.cluster_id, snapshot.controller_id, snapshot.version) == ("c", 1, 1)
    assert [snapshot.leader("t", number) for number in range(3)] == [1, 2, -1]
    assert snapshot.leader("other", 0) == -1


def test_topics_that_were_not_asked_for_stay() -> None:
    first = merge(ClusterSnapshot(), answer(("a", ID_1, [(0, 1, 0)])), {"a"})
    second = merge(first, answer(("b", ID_2, [(0, 1, 0)])), {"b"})
    assert set(second.topics) == {"a", "b"}
    assert set(merge(second, answer(("b", ID_2, [])), None).topics) == {"b"}


def test_leader_epochs_never_go_back() -> None:
    first = merge(ClusterSnapshot(), answer(("t", ID_1, [(0, 1, 5)])), {"t"})
    stale = merge(first, answer(("t", ID_1, [(0, 2, 4)])), {"t"})
    assert stale.leader("t", 0) == 1
    newer = merge(stale, answer(("t", ID_1, [(0, 2, 6)])), {"t"})
    assert newer.leader("t", 0) == 2
    # Older brokers answer without epochs: then the answer counts.
    assert merge(newer, answer(("t", ID_1, [(0, 3, -1)])), {"t"}).leader("t", 0) == 3


def test_a_topic_that_was_made_anew_starts_over() -> None:
    first = merge(ClusterSnapshot(), answer(("t", ID_1, [(0, 1, 5)])), {"t"})
    anew = merge(first, answer(("t", ID_2, [(0, 2, 0)])), {"t"})
    assert anew.leader("t", 0) == 2


def test_a_topic_with_an_error_has_no_partitions() -> None:
    snapshot = merge(ClusterSnapshot(), answer(("t", ID_1, [(0, 1, 0)]), error_code=3), {"t"})
    assert snapshot.partition(TopicPartition("t", 0)) is None


def test_partitions_may_be_missing_from_an_answer() -> None:
    snapshot = merge(ClusterSnapshot(), answer(("t", ID_1, [(2, 7, 0)])), {"t"})
    assert [snapshot.leader("t", number) for number in range(3)] == [-1, -1, 7]
