"""Requests that create or delete thousands of topics and partitions, at a live broker.

The soak measures the longest turns of its loop, and how the cost grows. It repeats what follows here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite.errors import InvalidRequest, PolicyViolation, UnknownTopicOrPartition
from spark_kafkalite.wire.messages import create_partitions, create_topics, delete_topics, metadata
from tests import processor
from tests.interop.support.metered_broker import MeteredBroker
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

# What one turn of the loop may take of the processor, whatever is asked for.
LONGEST_MS = 100
TIMEOUT_MS = 120_000
LIMIT = 10_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    with MeteredBroker(tmp_path_factory.mktemp("many") / "data") as running:
        yield running


@pytest.fixture
def client(broker: MeteredBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap, PATIENCE_S) as connected:
        yield connected


def create(
    client: RawClient, names: list[str], partitions: int = 1, *, validate_only: bool = False
) -> create_topics.CreateTopicsResponse:
    wanted = [
        create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    request = create_topics.CreateTopicsRequest(topics=wanted, timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    answer: create_topics.CreateTopicsResponse = client.call(request, 7)
    return answer


def delete(client: RawClient, names: list[str]) -> delete_topics.DeleteTopicsResponse:
    asked = [delete_topics.DeleteTopicState(name=name) for name in names]
    answer: delete_topics.DeleteTopicsResponse = client.call(
        delete_topics.DeleteTopicsRequest(topics=asked, timeout_ms=TIMEOUT_MS), 6
    )
    return answer


def described(client: RawClient, names: list[str], *, creating: bool = False) -> metadata.MetadataResponse:
    asked = [metadata.MetadataRequestTopic(name=name) for name in names]
    answer: metadata.MetadataResponse = client.call(
        metadata.MetadataRequest(topics=asked, allow_auto_topic_creation=creating), 12
    )
    return answer


def processor_s(broker: MeteredBroker) -> float:
    """Return what the broker has used of the processor; what its file system has used says how busy that is."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def wait_until_led(client: RawClient, names: list[str], partitions: int) -> None:
    """Wait until so many partitions are led: a creation's answer does not wait for all logs to be made."""

    def are_led() -> bool:
        topics = described(client, names).topics
        assert {topic.error_code for topic in topics} == {0}
        parts = [part for topic in topics for part in topic.partitions]
        assert len(parts) == partitions
        return {(part.error_code, part.leader_id) for part in parts} == {(0, 1)}

    wait_until(are_led, f"all {partitions} partitions to be led", poll_s=0.1)


def play_many(client: RawClient, count: int = 2000) -> None:
    """Create so many topics, the last four fifths in one request, and delete them in one."""
    names = [f"topic-{number}" for number in range(count)]
    assert {topic.error_code for topic in create(client, names[: count // 5]).topics} == {0}
    assert {topic.error_code for topic in create(client, names[count // 5 :]).topics} == {0}
    wait_until_led(client, names, count)
    assert {topic.error_code for topic in delete(client, names).responses} == {0}
    assert {topic.error_code for topic in described(client, names).topics} == {UnknownTopicOrPartition.code}


def play_wide(client: RawClient) -> None:
    """Create a topic of 3,000 partitions, extend it to 4,000 and delete it."""
    assert [topic.error_code for topic in create(client, ["wide"], 3000).topics] == [0]
    more = create_partitions.CreatePartitionsRequest(
        topics=[create_partitions.CreatePartitionsTopic(name="wide", count=4000, assignments=None)],
        timeout_ms=TIMEOUT_MS,
    )
    assert [result.error_code for result in client.call(more, 3).results] == [0]
    wait_until_led(client, ["wide"], 4000)
    assert [result.error_code for result in delete(client, ["wide"]).responses] == [0]


def play_automatic(client: RawClient) -> None:
    """Ask for more topics than one request may create, and for some."""
    names = [f"automatic-{number}" for number in range(LIMIT + 1)]
    answer = described(client, names, creating=True)
    assert {topic.error_code for topic in answer.topics} == {UnknownTopicOrPartition.code}
    # An answer waits two seconds for them; on a slow host that is not enough.
    wait_until(
        lambda: {topic.error_code for topic in described(client, names[:50], creating=True).topics} == {0},
        "fifty topics to be made",
    )


def play_checked(client: RawClient) -> None:
    """Have as many topics checked as one request may create."""
    answer = create(client, [f"checked_{number}" for number in range(LIMIT)], validate_only=True)
    assert {topic.error_code for topic in answer.topics} == {0}


def test_two_thousand_topics_are_made_and_removed(client: RawClient) -> None:
    play_many(client)
    # No file of theirs is in the way of topics of the same names.
    play_many(client, 10)


def test_a_topic_of_four_thousand_partitions_is_made_extended_and_removed(client: RawClient) -> None:
    play_wide(client)


@pytest.mark.parametrize(
    ("count", "partitions", "error_code"),
    [(LIMIT, 1, 0), (LIMIT + 1, 1, PolicyViolation.code), (2, LIMIT // 2 + 1, PolicyViolation.code)],
)
def test_the_partitions_of_a_whole_request_count(
    client: RawClient, count: int, partitions: int, error_code: int
) -> None:
    answer = create(client, [f"checked_{number}" for number in range(count)], partitions, validate_only=True)
    assert len(answer.topics) == count
    assert {topic.error_code for topic in answer.topics} == {error_code}
    if error_code:
        assert "max.partitions.per.request=10000" in (answer.topics[0].error_message or "")


def test_a_metadata_request_makes_no_more_topics_than_one_that_creates(client: RawClient) -> None:
    play_automatic(client)


@pytest.mark.soak
@pytest.mark.parametrize("play", [play_many, play_wide, play_automatic, play_checked])
def test_the_loop_is_never_held_for_long(
    broker: MeteredBroker, client: RawClient, play: Callable[[RawClient], None]
) -> None:
    assert broker.least_longest_ms(lambda: play(client)) < LONGEST_MS * processor.slowness()


@pytest.mark.soak
def test_each_topic_costs_what_the_first_ones_cost(broker: MeteredBroker, client: RawClient) -> None:
    ratios = []
    for number in range(3):
        names = [f"costly-{number}-{each}" for each in range(2000)]
        began_s = processor_s(broker)
        assert {topic.error_code for topic in create(client, names[:400]).topics} == {0}
        few_s = processor_s(broker) - began_s
        assert {topic.error_code for topic in create(client, names[400:]).topics} == {0}
        many_s = processor_s(broker) - began_s - few_s
        assert {topic.error_code for topic in delete(client, names).responses} == {0}
        print(f"400 topics {few_s:.1f} s of the processor, 1,600 more {many_s:.1f} s")
        ratios.append(many_s / few_s)
    # The half is for what a loaded machine adds.
    assert min(ratios) < 1.5 * 4


def test_what_is_named_twice_is_answered_once_and_left_alone(client: RawClient) -> None:
    assert [topic.error_code for topic in create(client, ["kept"]).topics] == [0]
    answer = delete(client, ["kept"] * 3)
    assert [(one.name, one.error_code) for one in answer.responses] == [("kept", InvalidRequest.code)]
    twice = create(client, ["new", "new", "other"], validate_only=True)
    assert {topic.name: topic.error_code for topic in twice.topics} == {"new": InvalidRequest.code, "other": 0}
    assert Counter(topic.name for topic in twice.topics) == {"new": 1, "other": 1}
    extended = client.call(
        create_partitions.CreatePartitionsRequest(
            topics=[
                create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None)
                for name in ("kept", "kept", "none")
            ]
        ),
        3,
    )
    assert [(one.name, one.error_code) for one in extended.results] == [
        ("kept", InvalidRequest.code),
        ("none", UnknownTopicOrPartition.code),
    ]
