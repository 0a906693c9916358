"""What a member does in the thread that polls: rebalances, callbacks, commits, lost partitions.

The coordinator is a few lines here, behind the broker of the same process: it deals out what the test says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.consume.subscription import select_topics
from spark_kafkalite.client.group.consumer_protocol import Assignment
from spark_kafkalite.client.group.group_consumer import GroupConsumer
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import FencedInstanceId, KafkaliteError, RebalanceInProgress, UnknownMemberId
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.wire.messages import offset_commit, offset_fetch
from spark_kafkalite.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.lab.batches import make_batch
from tests.lab.model_broker import NODE_ID, ModelBroker
from tests.patience import PATIENCE_S, wait_until

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
UNKNOWN_MEMBER, REBALANCING, FENCED = 25, 27, 82


class OneGroup:
    """A group of one follower: what it is dealt out, what it has committed, and what its next heartbeats hear."""

    def __init__(self) -> None:
        self.broker = ModelBroker({"t": 3}, self.answer)
        for each in (T0, T1, T2):
            self.broker.append(each, make_batch(20))
        self.assigned: tuple[TopicPartition, ...] = (T0, T1)
        self.generation = 0
        self.committed: dict[TopicPartition, int] = {}
        self.joins: list[JoinGroupRequest] = []
        self.left = self.heartbeats = 0
        self.heartbeat_code = self.join_code = 0
        self.commits_may_go_on, self.joins_may_go_on = threading.Event(), threading.Event()
        self.commits_may_go_on.set()
        self.joins_may_go_on.set()

    def rebalance(self, *assigned: TopicPartition) -> None:
        """Deal out these partitions in the next generation."""
        self.assigned = assigned
        self.heartbeat_code = REBALANCING

    def answer(self, api_key: int, request: Any) -> Any:
        match request:
            case FindCoordinatorRequest():
                found = Coordinator(key="g", node_id=NODE_ID, host="model", port=1)
                return FindCoordinatorResponse(coordinators=[found])
            case JoinGroupRequest():
                self.joins.append(request)
                self.joins_may_go_on.wait(PATIENCE_S)
                self.heartbeat_code = 0
                self.generation += 1
                return JoinGroupResponse(
                    error_code=self.join_code,
                    generation_id=self.generation,
                    protocol_name=request.protocols[0].name,
                    leader="another",
                    member_id="m",
                )
            case SyncGroupRequest():
                return SyncGroupResponse(assignment=Assignment(self.assigned).encode())
            case HeartbeatRequest():
                self.heartbeats += 1
                return HeartbeatResponse(error_code=self.heartbeat_code)
            case LeaveGroupRequest():
                self.left += 1
                return LeaveGroupResponse()
            case offset_commit.OffsetCommitRequest():
                self.commits_may_go_on.wait(PATIENCE_S)
                return self._commit(request)
            case offset_fetch.OffsetFetchRequest():
                return self._fetch(request)
        return None

    def _commit(self, request: offset_commit.OffsetCommitRequest) -> offset_commit.OffsetCommitResponse:
        topics = []
        for topic in request.topics:
            for part in topic.partitions:
                self.committed[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
            parts = [
                offset_commit.OffsetCommitResponsePartition(partition_index=p.partition_index) for p in topic.partitions
            ]
            topics.append(offset_commit.OffsetCommitResponseTopic(name=topic.name, partitions=parts))
        return offset_commit.OffsetCommitResponse(topics=topics)

    def _fetch(self, request: offset_fetch.OffsetFetchRequest) -> offset_fetch.OffsetFetchResponse:
        parts = [
            offset_fetch.OffsetFetchResponsePartitions(
                partition_index=each.partition, committed_offset=self.committed.get(each, 0), committed_leader_epoch=-1
            )
            for each in (T0, T1, T2)
        ]
        topics = [offset_fetch.OffsetFetchResponseTopics(name="t", partitions=parts)]
        return offset_fetch.OffsetFetchResponse(
            groups=[offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=topics)]
        )


class Member:
    """A group consumer, and what its user was told."""

    def __init__(self, group: OneGroup, **settings: Any) -> None:
        given = {
            "group_id": "g",
            "heartbeat_interval_ms": 5,
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 1,
            "partition_assignment_strategy": "range",
            **settings,
        }
        config = consumer_config({"bootstrap.servers": "model:1"}, given)
        assert config.group is not None
        self.cluster = ClusterClient(config.client, SYSTEM_CLOCK, group.broker.open)
        self.consumer = GroupConsumer(config.group, self.cluster, SYSTEM_CLOCK)
        self.ahead = ReadAhead(config, self.cluster, SYSTEM_CLOCK, fetch_committed=self.consumer.fetch_committed)
        self.consumer.attach(self.ahead)
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.on_revoked: Callable[[list[TopicPartition]], None] | None = None

    def subscribe(self) -> Member:
        def revoked(partitions: list[TopicPartition]) -> None:
            self.told.append(("revoked", partitions))
            if self.on_revoked is not None:
                self.on_revoked(partitions)

        self.consumer.subscribe(
            select_topics(["t"], None, exclude_internal=True),
            lambda partitions: self.told.append(("assigned", partitions)),
            revoked,
            lambda partitions: self.told.append(("lost", partitions)),
            auto_create=False,
        )
        return self

    def step_until(self, done: Callable[[], object]) -> None:
        """Poll until something is so."""

        def is_done_or_steps() -> object:
            if not (found := done()) and self.consumer.is_due():
                self.consumer.step()
            return found

        wait_until(is_done_or_steps, lambda: f"the end of steps; told {self.told}, owned {self.owned()}", poll_s=0.001)

    def owned(self) -> list[TopicPartition]:
        return sorted(self.ahead.states)

    def stand_at(self, position: int) -> None:
        """Have polls returned the records before a position, in all partitions."""
        self.ahead.move(None, position, None)

    def close(self) -> None:
        try:
            self.consumer.close(Deadline.after_ms(5_000))
        finally:
            self.ahead.close()
            self.cluster.close()
            self.consumer.wait_closed()


@pytest.fixture
def group() -> Iterator[OneGroup]:
    made = OneGroup()
    yield made
    made.broker.close()


@pytest.fixture
def make(group: OneGroup) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def member(**settings: Any) -> Member:
        made.append(Member(group, **settings))
        return made[-1]

    yield member
    group.commits_may_go_on.set()
    group.joins_may_go_on.set()
    for each in made:
        each.on_revoked = None
        try:
            each.close()
        except KafkaliteError:
            pass


def test_an_eager_member_gives_everything_up_before_it_joins_again(
    make: Callable[..., Member], group: OneGroup
) -> None:
    member = make().subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])
    member.stand_at(7)
    group.rebalance(T1, T2)
    member.step_until(lambda: member.owned() == [T1, T2])
    assert member.told == [("assigned", [T0, T1]), ("revoked", [T0, T1]), ("assigned", [T1, T2])]
    assert len(group.joins) == 2
    # Committed before they were given up, since that is automatic.
    assert group.committed == {T0: 7, T1: 7}
    assert member.ahead.wait_for_position(T1, Deadline.after_ms(20_000)) == 7


def test_a_cooperative_member_keeps_what_it_keeps_and_joins_once_more(
    make: Callable[..., Member], group: OneGroup
) -> None:
    member = make(partition_assignment_strategy="cooperative-sticky").subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])
    member.stand_at(7)
    group.rebalance(T1, T2)
    member.step_until(lambda: len(group.joins) == 3 and member.consumer.member.generation_id == 3)
    assert member.told == [("assigned", [T0, T1]), ("revoked", [T0]), ("assigned", [T2]), ("assigned", [])]
    assert group.committed == {T0: 7, T1: 7}
    assert member.ahead.states[T1].position == 7


def test_joining_waits_for_commits_that_are_on_their_way(make: Callable[..., Member], group: OneGroup) -> None:
    member = make(enable_auto_commit=False).subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])
    group.commits_may_go_on.clear()
    outcomes: list[Exception | None] = []
    member.consumer.commit_async({T0: CommittedOffset(3)}, lambda offsets, error: outcomes.append(error))
    group.rebalance(T0)
    # The member sees the rebalance, and does not join for as long as its commit is on its way.
    heartbeats = group.heartbeats
    member.step_until(lambda: group.heartbeats > heartbeats + 5)
    assert len(group.joins) == 1 and member.owned() == [T0, T1]
    group.commits_may_go_on.set()
    member.step_until(lambda: member.owned() == [T0])
    assert outcomes == [None] and group.committed == {T0: 3}


def test_who_falls_out_of_the_group_loses_everything_and_commits_nothing(
    make: Callable[..., Member], group: OneGroup
) -> None:
    member = make().subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])
    member.stand_at(7)
    group.assigned = (T2,)
    group.heartbeat_code = UNKNOWN_MEMBER
    member.step_until(lambda: member.owned() == [T2])
    assert member.told == [("assigned", [T0, T1]), ("lost", [T0, T1]), ("assigned", [T2])]
    assert group.committed == {}


def test_partitions_that_come_back_stay_paused(make: Callable[..., Member], group: OneGroup) -> None:
    member = make().subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])
    member.ahead.set_paused([T1], True)
    group.rebalance(T1, T2)
    member.step_until(lambda: member.owned() == [T1, T2])
    assert [member.ahead.states[each].paused for each in (T1, T2)] == [True, False]


def test_what_a_callback_raises_comes_out_of_that_step_and_the_rebalance_goes_on(
    make: Callable[..., Member], group: OneGroup
) -> None:
    member = make().subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])

    def fail(partitions: list[TopicPartition]) -> None:
        member.on_revoked = None
        raise ValueError("mine")

    member.on_revoked = fail
    group.rebalance(T2)
    with pytest.raises(ValueError, match="mine"):
        member.step_until(lambda: False)
    member.step_until(lambda: member.owned() == [T2])


def test_a_callback_may_poll_and_unsubscribe(make: Callable[..., Member], group: OneGroup) -> None:
    member = make().subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])

    def leave(partitions: list[TopicPartition]) -> None:
        member.on_revoked = None
        told = list(member.told)
        member.consumer.step()
        # The rebalance that called back comes first.
        assert member.told == told
        member.consumer.unsubscribe("the test leaves", Deadline.after_ms(5_000))

    member.on_revoked = leave
    group.rebalance(T2)
    member.step_until(lambda: not member.consumer.is_subscribed)
    assert member.owned() == [] and group.left == 1 and len(group.joins) == 1


def test_who_is_fenced_hears_it_at_every_poll_and_commit(make: Callable[..., Member], group: OneGroup) -> None:
    group.join_code = FENCED
    member = make(group_instance_id="me").subscribe()
    for _ in range(2):
        with pytest.raises(FencedInstanceId):
            member.step_until(lambda: False)
    with pytest.raises(FencedInstanceId):
        member.consumer.commit({T0: CommittedOffset(1)}, Deadline.after_ms(1_000))


def test_outside_of_a_generation_nothing_can_be_committed(make: Callable[..., Member], group: OneGroup) -> None:
    member = make().subscribe()
    with pytest.raises(UnknownMemberId, match=r"poll\(\) joins it"):
        member.consumer.commit({T0: CommittedOffset(1)}, Deadline.after_ms(1_000))
    group.joins_may_go_on.clear()
    member.step_until(lambda: group.joins)
    with pytest.raises(RebalanceInProgress):
        member.consumer.commit({T0: CommittedOffset(1)}, Deadline.after_ms(1_000))
    group.joins_may_go_on.set()
    # The assignment has come, and no poll has taken it up.
    wait_until(lambda: "generation 1" in str(member.consumer._membership), "the join to end")
    with pytest.raises(RebalanceInProgress):
        member.consumer.commit({T0: CommittedOffset(1)}, Deadline.after_ms(1_000))
    member.step_until(lambda: member.owned() == [T0, T1])
    member.consumer.commit({T0: CommittedOffset(1)}, Deadline.after_ms(20_000))
    assert group.committed == {T0: 1}


def test_closing_commits_tells_and_leaves(make: Callable[..., Member], group: OneGroup) -> None:
    member = make().subscribe()
    member.step_until(lambda: member.owned() == [T0, T1])
    member.stand_at(9)
    member.close()
    assert member.told[-1] == ("revoked", [T0, T1]) and group.left == 1
    assert group.committed == {T0: 9, T1: 9}
