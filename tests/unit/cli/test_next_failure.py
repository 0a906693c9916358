"""What ``cluster status`` shows of the next failure, of leaders, of reassignments and of throttles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.cli.cluster.moves import MovesInProgress, moves_of
from spark_kafkalite.cli.cluster.next_failure import preferred, skew_text, stops_without
from spark_kafkalite.client.admin.logs import LogDirInfo, ReplicaInfo
from spark_kafkalite.client.admin.reassignments import Reassignment
from spark_kafkalite.client.network.metadata import PartitionInfo
from spark_kafkalite.errors import RequestTimedOut
from spark_kafkalite.model import BrokerId, TopicPartition

UNLIMITED = 2**63 - 1


def partitions(*states: tuple[int, tuple[int, ...], tuple[int, ...]]) -> dict[TopicPartition, PartitionInfo]:
    """Make partitions from their leaders, replicas and ISRs."""
    return {
        TopicPartition("t", number): PartitionInfo(number, leader, 5, replicas, isr, ())
        for number, (leader, replicas, isr) in enumerate(states)
    }


@pytest.mark.parametrize(
    ("isr", "required", "live", "expected"),
    [
        ((1, 2, 3), 2, {1, 2, 3}, ("", "")),
        ((1, 2), 2, {1, 2, 3}, ("", "t-0")),
        ((1, 2), 1, {1, 2, 3}, ("", "")),
        ((1,), 1, {1, 2, 3}, ("t-0", "")),
        # What the others need is not there any more, or not yet missed by the registry.
        ((1, 2), 1, {1, 3}, ("t-0", "")),
        # It refuses acks=all already.
        ((1, 2), 3, {1, 2, 3}, ("", "")),
        # It has nothing of it, or has been left out.
        ((2, 3), 2, {1, 2, 3}, ("", "")),
    ],
)
def test_what_stops_with_one_more_broker(
    isr: tuple[int, ...], required: int, live: set[int], expected: tuple[str, str]
) -> None:
    found = partitions((isr[0], (1, 2, 3), isr))
    stops = stops_without(1, found, dict.fromkeys(found, required), live)
    assert tuple(",".join(map(str, keys)) for keys in stops) == expected
    assert bool(stops.text()) == any(expected)


def test_the_text_names_some_and_internal_topics_last() -> None:
    found = partitions(*[(1, (1,), (1,))] * 5)
    found[TopicPartition("__consumer_offsets", 0)] = found[TopicPartition("t", 0)]
    stops = stops_without(1, found, {}, {1, 2})
    assert stops.text() == "6 partitions have no leader (t-0, t-1, t-2 and 3 more)"
    assert len(stops.as_json()["leaderless"]) == 6


def test_brokers_that_do_not_lead_what_they_should() -> None:
    found = partitions((1, (1, 2), (1, 2)), (1, (2, 1), (1, 2)), (2, (2, 1), (1, 2)), (-1, (3, 1), ()))
    assert preferred(2, found) == (2, 1)
    assert skew_text({1, 2}, found).startswith("Leaders that are not first replicas: broker 2 leads 1 of 2: kafkalite ")
    assert skew_text({1}, found) == ""


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in brokers)


def test_reassignments_are_shown_with_what_is_copied() -> None:
    key = TopicPartition("t", 3)
    moving = {key: Reassignment(ids(1, 2, 3, 4), ids(3, 4), ids(1, 2))}
    moves = MovesInProgress(moving, {key: {1: 1000, 2: 900, 3: 500}}, {3: (UNLIMITED, 50_000)}, {"t"})
    assert list(moves.lines()) == [
        "Reassignments in progress: 1, 500 B of 2.0 kB copied",
        "  t-3: from 1,2 to 3,4, 500 B of 2.0 kB copied",
        "Throttles: broker 3 50.0 kB/s",
    ]
    found = moves.as_json()
    assert (found["reassignments"][0]["copiedBytes"], found["reassignments"][0]["totalBytes"]) == (500, 2000)
    assert found["throttles"] == {
        "brokers": [{"id": 3, "leaderBytesPerSecond": None, "followerBytesPerSecond": 50_000}],
        "topics": ["t"],
    }
    many = {TopicPartition("t", number): moving[key] for number in range(12)}
    assert len(list(MovesInProgress(many, {}, {}, ()).lines())) == 12


def test_what_is_left_of_a_throttle_is_shown() -> None:
    (line,) = MovesInProgress({}, {}, {1: (10, 10)}, ()).lines()
    assert line == "Throttles: broker 1 10 B/s; no topic names throttled replicas, so this has no effect"
    (line,) = MovesInProgress({}, {}, {}, ["t"]).lines()
    assert line.endswith("topic t, without effect, as no rate is set: kafkalite cluster reassign --cancel removes them")
    assert len(list(MovesInProgress({}, {}, {1: (10, 10)}, ["t"]).lines())) == 2
    assert list(MovesInProgress({}, {}, {}, ()).lines()) == []


def test_brokers_are_asked_for_their_throttles() -> None:
    def describe_configs(broker_id: int, **_: Any) -> Any:
        if broker_id == 3:
            raise RequestTimedOut("no answer")
        rate = SimpleNamespace(value="77" if broker_id == 2 else str(UNLIMITED))
        return {"leader.replication.throttled.rate": rate}

    lists = {"a": "*", "b": ""}
    admin: Any = SimpleNamespace(
        describe_configs=describe_configs,
        describe_topic_settings=lambda topics, names: {
            topic: {names[1]: SimpleNamespace(value=lists[topic])} for topic in topics
        },
    )
    key = TopicPartition("a", 0)
    logs = {1: [LogDirInfo("/d", None, {key: ReplicaInfo(9, 0, False, (), None)})]}
    found = moves_of(admin, {}, logs, ["a", "b"], [1, 2, 3])
    assert (found.rates, found.listed, found.sizes) == ({2: (77, UNLIMITED)}, {"a"}, {key: {1: 9}})
