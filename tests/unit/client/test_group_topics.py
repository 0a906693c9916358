from __future__ import annotations

from typing import Any

import pytest

from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.consume.subscription import TopicSelection, select_topics
from spark_kafkalite.client.group.topics import GroupTopics
from spark_kafkalite.client.network.metadata import ClusterSnapshot, PartitionInfo, TopicInfo
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK

LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC = 5, 3


class Cluster:
    """A cluster whose topics the test sets: name to partition count, or to a negative error code."""

    def __init__(self) -> None:
        self.config = ClientConfig(("h:1",))
        self.snapshot = ClusterSnapshot()
        self.knows_all_topics = False
        self.watched: set[str] = set()
        self.watches_all = False
        self.answers: list[dict[str, int]] = []
        self.pauses = 0

    def set(self, **topics: int) -> None:
        infos = {}
        for name, count in topics.items():
            partitions = tuple(PartitionInfo(number, 1, 0, (1,), (1,), ()) for number in range(max(0, count)))
            infos[name] = TopicInfo(name, bytes(16), False, partitions, max(0, -count))
        self.snapshot = ClusterSnapshot(version=self.snapshot.version + 1, topics=infos)

    def refresh(self, topics: Any, deadline: Deadline, *, allow_auto_create: bool = False) -> ClusterSnapshot:
        if self.answers:
            self.set(**self.answers.pop(0))
        return self.snapshot

    def watch_topics(self, topics: Any, *, auto_create: bool = False) -> None:
        self.watched |= set(topics)

    def unwatch_topics(self, topics: Any) -> None:
        self.watched -= set(topics)

    def watch_all_topics(self, wanted: bool) -> None:
        self.watches_all = wanted

    def pause(self, seconds: float) -> None:
        self.pauses += 1


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def topics(cluster: Cluster) -> GroupTopics:
    used: Any = cluster
    return GroupTopics(used, SYSTEM_CLOCK)


def named(*names: str) -> TopicSelection:
    return select_topics(names, None, exclude_internal=True)


def matching(pattern: str) -> TopicSelection:
    return select_topics(None, pattern, exclude_internal=True)


def test_another_subscription_asks_for_a_rebalance_once(cluster: Cluster, topics: GroupTopics) -> None:
    topics.select(named("a"), auto_create=True)
    assert topics.for_join() == {"a"}
    topics.joined(is_leader=False)
    assert topics.change(cluster.snapshot) is None
    topics.select(named("b"), auto_create=True)
    assert cluster.watched == {"b"}
    reason = topics.change(cluster.snapshot)
    assert reason is not None
    assert "new: ['b'], gone: ['a']" in reason
    assert topics.change(cluster.snapshot) is None
    # While it joins for these, nothing has changed.
    assert topics.for_join() == {"b"}
    cluster.set()
    assert topics.change(cluster.snapshot) is None


def test_a_pattern_waits_for_all_topics_and_sees_them_come_and_go(cluster: Cluster, topics: GroupTopics) -> None:
    topics.select(matching("t.*"), auto_create=True)
    assert cluster.watches_all
    assert not topics.is_known
    cluster.knows_all_topics = True
    cluster.set(t1=1, other=1)
    assert topics.for_join() == {"t1"}
    topics.joined(is_leader=False)
    assert topics.change(cluster.snapshot) is None
    cluster.set(t1=1, t2=1, other=2)
    assert "new: ['t2']" in (topics.change(cluster.snapshot) or "")
    topics.stop()
    assert not cluster.watches_all
    assert cluster.watched == set()


def test_only_the_leader_looks_at_partition_counts(cluster: Cluster, topics: GroupTopics) -> None:
    cluster.set(a=2, b=1)
    topics.select(named("a"), auto_create=False)
    topics.for_join()
    # Another member reads b.
    assert topics.counts_for({"a", "b"}) == {"a": 2, "b": 1}
    topics.joined(is_leader=False)
    cluster.set(a=2, b=3)
    assert topics.change(cluster.snapshot) is None
    topics.for_join()
    assert topics.counts_for({"a", "b"}) == {"a": 2, "b": 3}
    topics.joined(is_leader=True)
    assert topics.change(cluster.snapshot) is None
    cluster.set(a=2, b=4)
    assert topics.change(cluster.snapshot) == "topic 'b' has other partitions than were assigned"
    topics.for_join()
    assert topics.change(cluster.snapshot) is None, "they are being dealt out"


def test_topics_that_are_being_made_are_waited_for(
    cluster: Cluster, topics: GroupTopics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.select(named("a"), auto_create=True)
    cluster.answers = [{"a": -UNKNOWN_TOPIC}, {"a": -LEADER_NOT_AVAILABLE}, {"a": 3}]
    assert topics.counts_for({"a"}) == {"a": 3}
    assert cluster.pauses == 2
    assert not caplog.records


def test_topics_that_are_not_there_are_told_and_not_waited_for(
    cluster: Cluster, topics: GroupTopics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.select(named("a", "gone"), auto_create=False)
    cluster.set(a=1, gone=-UNKNOWN_TOPIC)
    assert topics.counts_for({"a", "gone"}) == {"a": 1}
    assert cluster.pauses == 0
    assert "topics that do not exist: gone" in caplog.text
