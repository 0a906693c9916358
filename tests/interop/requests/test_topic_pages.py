"""DescribeTopicPartitions and ListConfigResources: our broker and Apache Kafka give the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.message import ZERO_UUID
from spark_kafkalite.wire.messages.describe_topic_partitions import (
    CursorRequest,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from spark_kafkalite.wire.messages.list_config_resources import ListConfigResourcesRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest
from tests.interop.support.raw_client import RawClient

# Partitions of topics that are there; "page-a", "page-b" and "page-c" are made in another order than that of names.
TOPICS = {"page-b": 3, "page-a": 3, "page-c": 5}
NAMES = ("page-c", "page-a", "page-b")
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture(scope="module")
def client(bootstrap: str, admin: Admin) -> Iterator[RawClient]:
    for name, partitions in TOPICS.items():
        admin.create_topic(name, partitions, 1)
    with RawClient(bootstrap) as running:
        yield running


def asked(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else CursorRequest(topic_name=cursor[0], partition_index=cursor[1]),
    )


def shown(answer: Any) -> tuple[list[tuple[int, str, list[int]]], tuple[str, int] | None]:
    """Return error, name and partitions of each topic, and the cursor."""
    topics = [
        (topic.error_code, topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in answer.topics
    ]
    cursor = answer.next_cursor
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


A, B, C = (0, "page-a", [0, 1, 2]), (0, "page-b", [0, 1, 2]), (0, "page-c", [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("request_", "topics", "cursor"),
    [
        pytest.param(asked(*NAMES), [A, B, C], None, id="in the order of names"),
        pytest.param(asked("page-a", "page-a"), [A], None, id="each once"),
        pytest.param(
            asked("page-a", "page-none", "no/name", "..", "x" * 250),
            [(17, "..", []), (17, "no/name", []), A, (3, "page-none", []), (17, "x" * 250, [])],
            None,
            id="each with its own error",
        ),
        pytest.param(asked(*NAMES, limit=2), [(0, "page-a", [0, 1])], ("page-a", 2), id="ends within a topic"),
        pytest.param(asked(*NAMES, limit=3), [A], ("page-b", 0), id="ends with a topic"),
        pytest.param(asked(*NAMES, limit=4), [A, (0, "page-b", [0])], ("page-b", 1), id="ends in the second topic"),
        pytest.param(asked("page-a", limit=3), [A], None, id="ends with the last topic"),
        pytest.param(asked("page-a", "page-aa", limit=3), [A], ("page-aa", 0), id="ends before an unknown topic"),
        pytest.param(
            asked("page-a", "page-aa", "page-b", limit=4),
            [A, (3, "page-aa", []), (0, "page-b", [0])], ("page-b", 1),
            id="unknown topics do not count",
        ),
        pytest.param(asked(*NAMES, limit=0), [(0, "page-a", [0])], ("page-a", 1), id="at least one"),
        pytest.param(asked(*NAMES, limit=-7), [(0, "page-a", [0])], ("page-a", 1), id="at least one of less than none"),
        pytest.param(
            asked(*NAMES, cursor=("page-b", 1)), [(0, "page-b", [1, 2]), C], None, id="goes on within a topic"
        ),
        pytest.param(asked(*NAMES, cursor=("page-b", 0)), [B, C], None, id="goes on with a topic"),
        pytest.param(
            asked(*NAMES, limit=3, cursor=("page-b", 2)),
            [(0, "page-b", [2]), (0, "page-c", [0, 1])], ("page-c", 2),
            id="goes on and ends",
        ),
        pytest.param(
            asked(*NAMES, cursor=("page-b", 9)), [(0, "page-b", []), C], None, id="goes on behind the last partition"
        ),
        pytest.param(
            asked("page-a", "page-none", cursor=("page-none", 1)), [(3, "page-none", [])], None,
            id="goes on with a topic that has gone",
        ),
    ],
)  # fmt: skip
def test_a_page(
    client: RawClient,
    request_: DescribeTopicPartitionsRequest,
    topics: list[tuple[int, str, list[int]]],
    cursor: tuple[str, int] | None,
) -> None:
    assert shown(client.call(request_, 0)) == (topics, cursor)


@pytest.mark.parametrize("cursor", [("page-b", -1), ("page-aa", 0), ("page-z", 0), ("", 0)])
def test_a_cursor_that_cannot_be(client: RawClient, cursor: tuple[str, int]) -> None:
    answer = client.call(asked(*NAMES, cursor=cursor), 0)
    assert shown(answer) == ([(42, name, []) for name in NAMES], None)


def test_what_a_page_says_of_a_partition(client: RawClient, admin: Admin) -> None:
    (topic, unknown) = client.call(asked("page-a", "page-none"), 0).topics
    (described,) = [each for each in client.call(MetadataRequest(topics=None), 12).topics if each.name == "page-a"]
    assert topic.topic_id == described.topic_id != ZERO_UUID
    assert not topic.is_internal
    # READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, always.
    assert topic.topic_authorized_operations == sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
    assert unknown.topic_authorized_operations == topic.topic_authorized_operations
    assert unknown.topic_id == ZERO_UUID
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    # Asking makes no topic.
    assert "page-none" not in admin.list_topics()


def all_partitions(client: RawClient) -> set[tuple[str, int, bool]]:
    return {
        (topic.name, partition.partition_index, topic.is_internal)
        for topic in client.call(MetadataRequest(topics=None), 12).topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_pages_of_all_topics_have_each_partition_once(
    request: pytest.FixtureRequest, client: RawClient, limit: int
) -> None:
    """On Apache Kafka other tests make and delete topics meanwhile."""
    before = all_partitions(client)
    seen: list[tuple[str, int, bool]] = []
    cursor: tuple[str, int] | None = None
    while True:
        answer = client.call(asked(limit=limit, cursor=cursor), 0)
        seen += [
            (topic.name, partition.partition_index, topic.is_internal)
            for topic in answer.topics
            for partition in topic.partitions
        ]
        former, cursor = cursor, shown(answer)[1]
        if cursor is None:
            break
        assert former is None or former < cursor
    after = all_partitions(client)
    assert seen == sorted(set(seen))
    assert before & after <= set(seen)
    if "ours" in request.node.name:
        assert set(seen) == before


@pytest.mark.parametrize(
    ("types", "listed"),
    [
        ([], [LOGGER, BROKER, TOPIC]),
        ([TOPIC], [TOPIC]),
        ([BROKER], [BROKER]),
        ([LOGGER], [LOGGER]),
        ([METRICS], []),
        ([GROUP], []),
        ([TOPIC, BROKER, TOPIC], [BROKER, TOPIC]),
    ],
)
def test_resources_are_listed(client: RawClient, types: list[int], listed: list[int]) -> None:
    answer = client.call(ListConfigResourcesRequest(resource_types=types), 1)
    assert answer.error_code == 0
    found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
    assert list(dict.fromkeys(kind for kind, _ in found)) == listed
    assert {name for kind, name in found if kind != TOPIC} <= {"1"}
    if TOPIC in listed:
        assert set(TOPICS) <= {name for kind, name in found if kind == TOPIC}


@pytest.mark.parametrize("types", [[1], [99], [0], [-1], [TOPIC, 64]])
def test_other_resources_cannot_be_listed(client: RawClient, types: list[int]) -> None:
    answer = client.call(ListConfigResourcesRequest(resource_types=types), 1)
    assert (answer.error_code, answer.config_resources) == (35, [])


def test_version_0_lists_client_metrics_alone(client: RawClient) -> None:
    answer = client.call(ListConfigResourcesRequest(), 0)
    assert (answer.error_code, answer.config_resources) == (0, [])


@pytest.fixture(scope="module")
def small_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """Our broker with pages of at most four partitions, and a topic of more."""
    overrides = {"max.request.partition.size.limit": 4}
    with (
        BrokerProcess(tmp_path_factory.mktemp("small-pages") / "data", overrides=overrides) as running,
        Admin(bootstrap_servers=running.bootstrap) as admin,
        RawClient(running.bootstrap) as client,
    ):
        admin.create_topic("many", 10, 1)
        yield client


def test_the_broker_limits_partitions_and_topics(small_pages: RawClient) -> None:
    page = shown(small_pages.call(asked("many", limit=2**31 - 1), 0))
    assert page == ([(0, "many", [0, 1, 2, 3])], ("many", 4))
    # Of topics that do not exist, too: else one request could name any number.
    unknown = [f"none-{number}" for number in range(9)]
    page = shown(small_pages.call(asked(*unknown), 0))
    assert page == ([(3, name, []) for name in unknown[:4]], ("none-4", 0))
    page = shown(small_pages.call(asked(*unknown, cursor=("none-4", 0)), 0))
    assert page == ([(3, name, []) for name in unknown[4:8]], ("none-8", 0))
    page = shown(small_pages.call(asked(*unknown, cursor=("none-8", 0)), 0))
    assert page == ([(3, "none-8", [])], None)
