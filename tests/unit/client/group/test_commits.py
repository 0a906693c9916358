from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import ClientConfig, consumer_config
from spark_kafkalite.client.group.auto_commit import AutoCommit
from spark_kafkalite.client.group.commits import CommitLane, CommittedOffsets
from spark_kafkalite.client.group.offsets import GroupMember
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import CoordinatorNotAvailable
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.patience import PATIENCE_S

MEMBER = GroupMember("m", 1)
UNKNOWN_TOPIC = 3
ILLEGAL_GENERATION = 22


class Coordinator:
    """Answers commits when the test lets it."""

    group_id = "g"

    def __init__(self) -> None:
        self.config = ClientConfig(("h:1",))
        self.cluster = self
        self.pauses = 0
        self.requests: queue.Queue[tuple[dict[str, int], queue.Queue[Any]]] = queue.Queue()

    def call(self, request: OffsetCommitRequest, deadline: Deadline) -> OffsetCommitResponse:
        offsets = {
            f"{topic.name}-{item.partition_index}": item.committed_offset
            for topic in request.topics
            for item in topic.partitions
        }
        answers: queue.Queue[Any] = queue.Queue()
        self.requests.put((offsets, answers))
        answer = answers.get(timeout=PATIENCE_S)
        if isinstance(answer, Exception):
            raise answer
        partition = OffsetCommitResponsePartition(partition_index=0, error_code=answer)
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])])

    def pause(self, seconds: float) -> None:
        self.pauses += 1

    def expect(self, offsets: dict[str, int], answer: Any = 0) -> None:
        request, answers = self.requests.get(timeout=PATIENCE_S)
        assert request == offsets
        answers.put(answer)


def offsets(number: int, topic: str = "t") -> CommittedOffsets:
    return {TopicPartition(topic, 0): CommittedOffset(number)}


def nothing(stored: CommittedOffsets, error: Exception | None) -> None:
    """A callback: somebody wants to know."""


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def lane(coordinator: Coordinator) -> Iterator[CommitLane]:
    used: Any = coordinator
    made = CommitLane(used, lambda: None, SYSTEM_CLOCK)
    yield made
    made.close()
    made.wait_closed(20)


def soon() -> Deadline:
    return Deadline.after_ms(20_000)


def test_commits_that_wait_for_their_turn_go_together_when_they_are_of_the_same_partitions(
    coordinator: Coordinator, lane: CommitLane
) -> None:
    lane.submit(offsets(1), MEMBER, nothing)
    first, answers = coordinator.requests.get(timeout=PATIENCE_S)
    assert first == {"t-0": 1}
    for number in (2, 3):
        lane.submit(offsets(number), MEMBER, nothing)
    lane.submit(offsets(9, "u"), MEMBER, nothing)
    lane.submit(offsets(4), MEMBER, nothing)
    lane.submit(offsets(5), MEMBER._replace(generation_id=2), nothing)
    answers.put(0)
    for expected in ({"t-0": 3}, {"u-0": 9}, {"t-0": 4}, {"t-0": 5}):
        assert not lane.is_idle
        coordinator.expect(expected)
    assert lane.wait_idle(soon())
    assert [(each.offsets, error) for each, error in lane.take_outcomes()] == [
        (offsets(number, topic), None) for number, topic in [(1, "t"), (2, "t"), (3, "t"), (9, "u"), (4, "t"), (5, "t")]
    ]
    assert lane.take_outcomes() == []


def test_a_refused_commit_is_the_outcome_of_all_that_went_with_it(coordinator: Coordinator, lane: CommitLane) -> None:
    lane.submit(offsets(1), MEMBER, nothing)
    _, answers = coordinator.requests.get(timeout=PATIENCE_S)
    lane.submit(offsets(2), MEMBER, nothing)
    lane.submit(offsets(3), MEMBER, nothing)
    answers.put(0)
    coordinator.expect({"t-0": 3}, ILLEGAL_GENERATION)
    assert lane.wait_idle(soon())
    codes = [getattr(error, "code", 0) for _, error in lane.take_outcomes()]
    assert codes == [0, ILLEGAL_GENERATION, ILLEGAL_GENERATION]


def test_a_topic_that_the_coordinator_has_not_heard_of_yet_is_tried_again(
    coordinator: Coordinator, lane: CommitLane
) -> None:
    lane.submit(offsets(1), MEMBER, nothing)
    for code in (UNKNOWN_TOPIC, UNKNOWN_TOPIC, 0):
        coordinator.expect({"t-0": 1}, code)
    assert lane.wait_idle(soon())
    assert [error for _, error in lane.take_outcomes()] == [None]
    assert coordinator.pauses == 2
    lane.submit(offsets(2), MEMBER, nothing)
    for _ in range(5):
        coordinator.expect({"t-0": 2}, UNKNOWN_TOPIC)
    assert lane.wait_idle(soon())
    assert [getattr(error, "code", 0) for _, error in lane.take_outcomes()] == [UNKNOWN_TOPIC]


def test_commits_that_nobody_asks_about_do_not_pile_up(coordinator: Coordinator, lane: CommitLane) -> None:
    lane.submit(offsets(1), MEMBER, None)
    _, answers = coordinator.requests.get(timeout=PATIENCE_S)
    for number in range(2, 1_000):
        lane.submit(offsets(number), MEMBER, None)
    answers.put(0)
    coordinator.expect({"t-0": 999})
    assert lane.wait_idle(soon())
    assert len(lane.take_outcomes()) == 2


def test_a_commit_that_waits_comes_after_those_that_do_not(coordinator: Coordinator, lane: CommitLane) -> None:
    lane.submit(offsets(1), MEMBER, None)
    with pytest.raises(TimeoutError, match="earlier asynchronous commits were not done in time"):
        lane.commit(offsets(2), MEMBER, Deadline.after_ms(1))
    waiting = threading.Thread(target=lane.commit, args=(offsets(2), MEMBER, soon()))
    waiting.start()
    coordinator.expect({"t-0": 1})
    coordinator.expect({"t-0": 2})
    waiting.join()


def test_automatic_commits_are_due_by_time_and_store_only_what_has_changed(
    coordinator: Coordinator, lane: CommitLane
) -> None:
    config = consumer_config({"bootstrap.servers": "h:1"}, {"group_id": "g", "auto_commit_interval_ms": 1_000}).group
    assert config is not None
    clock = ManualClock()
    auto = AutoCommit(config, lane, clock)
    assert not auto.is_due
    clock.advance(s=1.0)
    assert auto.is_due
    auto.submit(offsets(1), MEMBER)
    clock.advance(s=5.0)
    assert not auto.is_due, "one is on its way"
    coordinator.expect({"t-0": 1})
    assert lane.wait_idle(soon())
    for commit, error in lane.take_outcomes():
        assert commit.callback is not None
        commit.callback(commit.offsets, error)
    assert auto.is_due
    auto.submit(offsets(1), MEMBER)
    assert lane.is_idle, "it is stored already"
    assert not auto.is_due
    clock.advance(s=60.0)
    auto.submit(offsets(1), MEMBER)
    coordinator.expect({"t-0": 1}, CoordinatorNotAvailable("not now"))
    assert lane.wait_idle(soon())
    auto.restart()
    auto.submit(offsets(1), MEMBER)
    coordinator.expect({"t-0": 1})
    assert lane.wait_idle(soon())
    auto.submit({}, MEMBER)
    assert lane.is_idle, "there is nothing to store"
