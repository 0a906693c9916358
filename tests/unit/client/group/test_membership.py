"""The member's thread against a coordinator that answers as it is told: what each error code makes it do."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spark_kafkalite.client.config import ClientConfig, consumer_config
from spark_kafkalite.client.group.assignors import GroupMemberSubscription
from spark_kafkalite.client.group.consumer_protocol import Assignment, Subscription
from spark_kafkalite.client.group.membership import Joined, Membership, Phase
from spark_kafkalite.client.group.offsets import GroupMember
from spark_kafkalite.client.network.metadata import Node
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import BrokerUnreachable, FencedInstanceId, GroupMaxSizeReached, SaslAuthenticationFailed
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.patience import PATIENCE_S, wait_until

LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING = 22, 25, 27
MEMBER_ID_REQUIRED, GROUP_FULL, FENCED = 79, 81, 82

NODE = Node(1, "h", 1)
MINE = (TopicPartition("t", 0),)


class Script:
    """A coordinator, its cluster and a connection to it, all in one; answers come from the test."""

    group_id = "g"

    def __init__(self) -> None:
        self.config = ClientConfig(("h:1",), retry_backoff_ms=1, retry_backoff_max_ms=1)
        self.cluster = self
        self.closed = False
        self.name = "h:1"
        self.requests: queue.Queue[tuple[Any, queue.Queue[Any]]] = queue.Queue()
        self.left: list[LeaveGroupRequest] = []
        self.forgotten = 0
        self.connected = 0

    def __str__(self) -> str:
        return f"coordinator {NODE}"

    def connect(self, deadline: Deadline) -> tuple[Node, Script]:
        self.connected += 1
        self.closed = False
        return NODE, self

    def forget(self, node: Node | None = None) -> None:
        self.forgotten += 1

    def attempt(self, request: LeaveGroupRequest, deadline: Deadline) -> None:
        self.left.append(request)

    def version(self, api_key: int) -> int:
        return 9

    def request(self, api_key: int, request: Any, deadline: Deadline) -> Any:
        answers: queue.Queue[Any] = queue.Queue()
        self.requests.put((request, answers))
        answer = answers.get(timeout=PATIENCE_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True

    def expect(self, kind: type, answer: Any) -> Any:
        """Wait for the next request, which must be of this kind, and answer it."""
        request, answers = self.requests.get(timeout=PATIENCE_S)
        assert isinstance(request, kind), request
        answers.put(answer(request) if callable(answer) and not isinstance(answer, Exception) else answer)
        return request


class Member:
    """A membership, and what a poll thread would see of it."""

    def __init__(self, **settings: Any) -> None:
        config = consumer_config(
            {"bootstrap.servers": "h:1"},
            {"group_id": "g", "heartbeat_interval_ms": 1, "session_timeout_ms": 10_000, **settings},
        ).group
        assert config is not None
        self.script = Script()
        self.changed = threading.Event()
        self.dealt_out: list[tuple[str, Sequence[GroupMemberSubscription]]] = []
        coordinator: Any = self.script
        self.membership = Membership(config, coordinator, self._assign, self.changed.set, SYSTEM_CLOCK)

    def _assign(self, protocol: str, members: Sequence[GroupMemberSubscription]) -> dict[str, Assignment]:
        self.dealt_out.append((protocol, members))
        return {member.member_id: Assignment(MINE) for member in members}

    def until(self, condition: Callable[[], Any]) -> Any:
        return wait_until(
            condition, lambda: f"what the test expects of a member that is {self.membership.phase.name}", poll_s=0.001
        )

    def join(self, *, keeps_partitions: bool = False) -> None:
        self.membership.join([("range", Subscription(("t",)).encode())], keeps_partitions=keeps_partitions)

    def joined(self, generation: int = 1) -> Joined:
        """Let it into a generation, as a follower."""
        self.script.expect(JoinGroupRequest, in_generation(generation))
        self.script.expect(SyncGroupRequest, SyncGroupResponse(assignment=Assignment(MINE).encode()))
        found: Joined = self.until(self.membership.take_joined)
        return found


def in_generation(generation: int, **fields: Any) -> JoinGroupResponse:
    values = {"protocol_name": "range", "member_id": "m", "leader": "somebody", **fields}
    return JoinGroupResponse(generation_id=generation, **values)


@pytest.fixture
def make() -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def member(**settings: Any) -> Member:
        made.append(Member(**settings))
        return made[-1]

    yield member
    for each in made:
        each.membership.close()
        # Whatever the thread waits for will not come any more.
        while not each.membership.wait_closed(0.05):
            with contextlib.suppress(queue.Empty):
                each.script.requests.get_nowait()[1].put(BrokerUnreachable("the test is over"))


def test_a_member_is_told_its_id_first_and_then_joins_with_it(make: Callable[..., Member]) -> None:
    member = make()
    assert member.membership.wants_join
    member.join()
    assert member.membership.phase is Phase.JOINING
    first = member.script.expect(JoinGroupRequest, JoinGroupResponse(error_code=MEMBER_ID_REQUIRED, member_id="given"))
    assert (first.member_id, first.group_id, first.session_timeout_ms) == ("", "g", 10_000)
    second = member.script.expect(JoinGroupRequest, in_generation(4, member_id="given"))
    assert second.member_id == "given"
    sync = member.script.expect(SyncGroupRequest, SyncGroupResponse(assignment=Assignment(MINE).encode()))
    assert (sync.generation_id, sync.member_id, sync.assignments) == (4, "given", [])
    joined = member.until(member.membership.take_joined)
    assert joined == Joined(GroupMember("given", 4), "range", Assignment(MINE), is_leader=False)
    assert not member.membership.wants_join
    heartbeat = member.script.expect(HeartbeatRequest, HeartbeatResponse())
    assert (heartbeat.generation_id, heartbeat.member_id) == (4, "given")


def test_the_leader_deals_out_and_a_member_that_cannot_be_read_gets_what_is_left(make: Callable[..., Member]) -> None:
    member = make()
    member.join()
    members = [
        JoinGroupResponseMember(member_id="m", metadata=Subscription(("t",)).encode()),
        JoinGroupResponseMember(member_id="odd", metadata=b"\x00"),
    ]
    member.script.expect(JoinGroupRequest, in_generation(1, leader="m", members=members))
    sync = member.script.expect(SyncGroupRequest, SyncGroupResponse(assignment=Assignment(MINE).encode()))
    assert {each.member_id: Assignment.decode(each.assignment) for each in sync.assignments} == {
        "m": Assignment(MINE),
        "odd": Assignment(MINE),
    }
    assert [each.subscription.topics for each in member.dealt_out[0][1]] == [("t",), ()]
    assert member.until(member.membership.take_joined).is_leader


@pytest.mark.parametrize("code", [LOADING, NOT_AVAILABLE, NOT_COORDINATOR, REBALANCING])
def test_joining_is_tried_again_when_it_cannot_be_done_at_present(
    make: Callable[..., Member], code: int, caplog: pytest.LogCaptureFixture
) -> None:
    member = make()
    member.join()
    member.script.expect(JoinGroupRequest, JoinGroupResponse(error_code=code))
    member.joined()
    # Only those that say so have the coordinator found again.
    assert bool(member.script.forgotten) == (code in (NOT_AVAILABLE, NOT_COORDINATOR))
    assert member.script.connected == 1 + bool(member.script.forgotten)
    (line,) = [each.getMessage() for each in caplog.records if "tried again" in each.getMessage()]
    assert line.count("group 'g'") == 1 and "JoinGroup is refused" in line


def test_a_lost_connection_finds_the_coordinator_again_and_joins_under_the_same_id(make: Callable[..., Member]) -> None:
    member = make()
    member.join()
    member.script.expect(JoinGroupRequest, JoinGroupResponse(error_code=MEMBER_ID_REQUIRED, member_id="m"))
    member.script.expect(JoinGroupRequest, BrokerUnreachable("gone"))
    again = member.script.expect(JoinGroupRequest, in_generation(1))
    assert again.member_id == "m"
    assert member.script.forgotten == 1
    assert member.script.connected == 2


@pytest.mark.parametrize("code", [REBALANCING, ILLEGAL_GENERATION, UNKNOWN_MEMBER])
def test_who_holds_nothing_joins_again_by_itself_when_the_group_moved_on(
    make: Callable[..., Member], code: int
) -> None:
    member = make()
    member.join()
    member.script.expect(JoinGroupRequest, in_generation(1))
    member.script.expect(SyncGroupRequest, SyncGroupResponse(error_code=code))
    again = member.script.expect(JoinGroupRequest, in_generation(2))
    assert again.member_id == ("" if code == UNKNOWN_MEMBER else "m")
    member.script.expect(SyncGroupRequest, SyncGroupResponse(assignment=Assignment(MINE).encode()))
    assert member.until(member.membership.take_joined).member.generation_id == 2
    assert member.membership.lost is None
    # One rebalance is enough.
    assert not member.membership.wants_join


def test_who_kept_partitions_must_give_them_up_first(make: Callable[..., Member]) -> None:
    member = make(partition_assignment_strategy="cooperative-sticky")
    member.join(keeps_partitions=True)
    member.script.expect(JoinGroupRequest, JoinGroupResponse(error_code=UNKNOWN_MEMBER))
    assert member.until(lambda: member.membership.lost) == "UNKNOWN_MEMBER_ID"
    assert member.membership.phase is Phase.UNJOINED
    assert member.membership.wants_join
    member.membership.take_lost()
    member.join()
    assert member.joined(7).member.generation_id == 7


@pytest.mark.parametrize("code", [ILLEGAL_GENERATION, UNKNOWN_MEMBER])
def test_a_heartbeat_says_that_the_partitions_are_lost(make: Callable[..., Member], code: int) -> None:
    member = make()
    member.join()
    member.joined()
    member.script.expect(HeartbeatRequest, HeartbeatResponse())
    member.script.expect(HeartbeatRequest, HeartbeatResponse(error_code=code))
    assert member.until(lambda: member.membership.lost)
    assert member.membership.member == GroupMember("" if code == UNKNOWN_MEMBER else "m", -1)
    assert member.membership.wants_join


def test_a_refused_password_is_told_and_the_member_stays_until_its_session_ends(make: Callable[..., Member]) -> None:
    member = make()
    member.join()
    member.joined()
    for _ in range(2):
        member.script.expect(HeartbeatRequest, SaslAuthenticationFailed("wrong password"))
        assert isinstance(member.until(member.membership.take_failure), SaslAuthenticationFailed)
    member.script.expect(HeartbeatRequest, HeartbeatResponse())
    assert member.membership.lost is None
    assert member.membership.phase is Phase.JOINED
    assert member.membership.member == GroupMember("m", 1)
    member.script.expect(HeartbeatRequest, HeartbeatResponse(error_code=UNKNOWN_MEMBER))
    assert member.until(lambda: member.membership.lost)


def test_a_heartbeat_says_that_the_group_rebalances_and_the_user_comes_first(make: Callable[..., Member]) -> None:
    member = make()
    member.join()
    member.joined()
    member.script.expect(HeartbeatRequest, HeartbeatResponse(error_code=REBALANCING))
    member.until(lambda: member.membership.wants_join)
    assert member.membership.phase is Phase.JOINED
    assert member.membership.lost is None
    # Until it joins it stays a member.
    member.script.expect(HeartbeatRequest, HeartbeatResponse(error_code=REBALANCING))
    member.join()
    request, answers = member.script.requests.get(timeout=PATIENCE_S)
    while isinstance(request, HeartbeatRequest):
        answers.put(HeartbeatResponse(error_code=REBALANCING))
        request, answers = member.script.requests.get(timeout=PATIENCE_S)
    assert isinstance(request, JoinGroupRequest)
    assert request.reason == "the group rebalances"
    answers.put(in_generation(2))
    member.script.expect(SyncGroupRequest, SyncGroupResponse(assignment=Assignment(MINE).encode()))
    assert member.until(member.membership.take_joined).member.generation_id == 2
    assert not member.membership.wants_join


@pytest.mark.parametrize(("code", "error"), [(GROUP_FULL, GroupMaxSizeReached), (FENCED, FencedInstanceId)])
def test_what_cannot_pass_is_told_and_not_tried_again(
    make: Callable[..., Member], code: int, error: type[Exception]
) -> None:
    member = make(group_instance_id="i")
    member.join()
    member.script.expect(JoinGroupRequest, JoinGroupResponse(error_code=code))
    failure = member.until(member.membership.take_failure)
    assert isinstance(failure, error)
    assert str(failure).startswith(
        "group 'g', member '' (group.instance.id 'i') of generation -1, coordinator broker 1"
    )
    assert member.membership.phase is Phase.UNJOINED
    assert member.script.requests.empty()


@pytest.mark.parametrize("instance", [None, "i"])
def test_who_is_not_polled_leaves_and_a_static_member_only_stops(
    make: Callable[..., Member], instance: str | None
) -> None:
    member = make(max_poll_interval_ms=1, group_instance_id=instance, heartbeat_interval_ms=9_000)
    member.join()
    member.script.expect(JoinGroupRequest, in_generation(1))
    member.script.expect(SyncGroupRequest, SyncGroupResponse(assignment=Assignment(MINE).encode()))
    lost = member.until(lambda: member.membership.lost)
    assert "poll() was not called for max.poll.interval.ms=1" in lost
    member.until(lambda: len(member.script.left) == (instance is None))
    assert member.membership.wants_join
    assert member.membership.member == GroupMember("", -1, instance)


def test_leaving_drops_what_was_under_way(make: Callable[..., Member]) -> None:
    member = make()
    member.join()
    member.script.expect(JoinGroupRequest, JoinGroupResponse(error_code=MEMBER_ID_REQUIRED, member_id="m"))
    _, answers = member.script.requests.get(timeout=PATIENCE_S)
    member.membership.leave("enough", Deadline.after_ms(1_000))
    assert [(each.group_id, each.member_id, each.members[0].reason) for each in member.script.left] == [
        ("g", "m", "enough")
    ]
    # The connection was closed; an answer that came all the same belongs to nobody.
    assert member.script.closed
    answers.put(in_generation(1))
    member.join()
    assert member.joined(2).member.generation_id == 2
