from __future__ import annotations

import re

import pytest

from spark_kafkalite.client.consume.subscription import partition_counts, select_topics
from spark_kafkalite.client.network.metadata import ClusterSnapshot, PartitionInfo, TopicInfo
from spark_kafkalite.errors import ConfigError


def topic(name: str, partitions: int = 1, *, is_internal: bool = False, error_code: int = 0) -> TopicInfo:
    infos = tuple(PartitionInfo(number, 1, 0, (1,), (1,), ()) for number in range(partitions))
    return TopicInfo(name, bytes(16), is_internal, infos, error_code)


def snapshot(*topics: TopicInfo) -> ClusterSnapshot:
    return ClusterSnapshot(topics={each.name: each for each in topics})


CLUSTER = snapshot(
    topic("orders", 3),
    topic("orders-old"),
    topic("__consumer_offsets", 50, is_internal=True),
    # From a broker that does not say so.
    topic("__transaction_state", 50),
    topic("being-deleted", 0, error_code=3),
)


def test_named_topics_are_wanted_whether_they_exist_or_not() -> None:
    selection = select_topics(["orders", "to-come"], None, exclude_internal=True)
    assert selection.names(CLUSTER) == {"orders", "to-come"}
    assert partition_counts(CLUSTER, selection.names(CLUSTER)) == {"orders": 3}


def test_a_pattern_matches_whole_names() -> None:
    assert select_topics(None, "orders", exclude_internal=True).names(CLUSTER) == {"orders"}
    assert select_topics(None, re.compile("ord.*"), exclude_internal=True).names(CLUSTER) == {"orders", "orders-old"}


def test_kafkas_own_topics_match_only_when_they_are_asked_for() -> None:
    assert select_topics(None, ".*", exclude_internal=True).names(CLUSTER) == {"orders", "orders-old"}
    every = select_topics(None, ".*", exclude_internal=False).names(CLUSTER)
    assert every == {"orders", "orders-old", "__consumer_offsets", "__transaction_state"}


@pytest.mark.parametrize(
    ("topics", "pattern", "message"),
    [
        (None, None, "either topics or a pattern"),
        (["a"], "a", "either topics or a pattern"),
        (None, "(", "not a regular expression"),
        ("orders", None, "give a list of topics"),
        (["a b"], None, "one or more characters other than"),
    ],
)
def test_what_cannot_be_subscribed_to_is_refused(topics: list[str] | None, pattern: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select_topics(topics, pattern, exclude_internal=True)
