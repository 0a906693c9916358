"""The requests of a group's member, and what it does about each error code. Pure.

``AFTER`` is the whole of it: API key, then code, then what to do. A code that is not there is a failure, for which
``ADVICE`` may have a word. Source: AbstractCoordinator's response handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from spark_kafkalite.client.group.assignors import GroupMemberSubscription
from spark_kafkalite.client.group.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription
from spark_kafkalite.client.group.offsets import GroupMember
from spark_kafkalite.client.group.settings import GroupConfig
from spark_kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    FrameError,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

_LOG = logging.getLogger("spark_kafkalite.client")

# What brokers take of a reason.
_MAX_REASON: Final = 255


class Then(Enum):
    """What an error code asks for."""

    AGAIN = auto()  # the same once more, after a pause
    FIND = auto()  # another broker may coordinate now
    REJOIN = auto()  # the group rebalances
    LOSE = auto()  # out of the generation
    FORGET = auto()  # and the member id is not known any more either


_ELSEWHERE: Final = {
    CoordinatorLoadInProgress.code: Then.AGAIN,
    CoordinatorNotAvailable.code: Then.FIND,
    NotCoordinator.code: Then.FIND,
}
_OUT: Final = {IllegalGeneration.code: Then.LOSE, UnknownMemberId.code: Then.FORGET}

AFTER: Final[Mapping[int, Mapping[int, Then]]] = {
    ApiKey.JOIN_GROUP: {**_ELSEWHERE, UnknownMemberId.code: Then.FORGET, RebalanceInProgress.code: Then.AGAIN},
    ApiKey.SYNC_GROUP: {**_ELSEWHERE, **_OUT, RebalanceInProgress.code: Then.REJOIN},
    ApiKey.HEARTBEAT: {**_ELSEWHERE, **_OUT, RebalanceInProgress.code: Then.REJOIN},
}

ADVICE: Final[Mapping[int, str]] = {
    InconsistentGroupProtocol.code: "its assignors, or its protocol type, are not those of the other members: choose "
    "partition.assignment.strategy so that all share one, or another group.id",
    InvalidSessionTimeout.code: "session.timeout.ms must lie between the broker's group.min.session.timeout.ms and "
    "group.max.session.timeout.ms",
    GroupMaxSizeReached.code: "the group is full: stop other members, or raise the broker's group.max.size",
    FencedInstanceId.code: "another member has joined with the same group.instance.id since: stop one of them, or give "
    "each its own",
}


def join_request(
    config: GroupConfig, member: GroupMember, protocols: Sequence[tuple[str, bytes]], reason: str
) -> JoinGroupRequest:
    """Return the request to join with these subscriptions, by assignor in order of preference."""
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        reason=reason[:_MAX_REASON],
    )


def members_of(answer: JoinGroupResponse) -> list[GroupMemberSubscription]:
    """Return all members, as sent to the leader; one whose bytes cannot be read has no topics, and others go on."""
    members = []
    for each in answer.members:
        try:
            subscription = Subscription.decode(each.metadata)
        except FrameError as error:
            _LOG.warning("member %r of the group gets no partitions: %s", each.member_id, error)
            subscription = Subscription(())
        members.append(GroupMemberSubscription(each.member_id, each.group_instance_id, subscription))
    return members


def sync_request(
    config: GroupConfig, member: GroupMember, protocol: str, assignments: Mapping[str, Assignment]
) -> SyncGroupRequest:
    """Return the request for this member's assignment; the leader's also carries the assignments of all members."""
    return SyncGroupRequest(
        group_id=config.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol,
        assignments=[
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment.encode())
            for member_id, assignment in assignments.items()
        ],
    )


def heartbeat_request(config: GroupConfig, member: GroupMember) -> HeartbeatRequest:
    """Return the request that keeps the member's session alive."""
    return HeartbeatRequest(
        group_id=config.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
    )


def leave_request(config: GroupConfig, member: GroupMember, reason: str) -> LeaveGroupRequest:
    """Return the request to leave; both forms, because versions before 3 know one member only."""
    identity = MemberIdentity(member_id=member.member_id, reason=reason[:_MAX_REASON])
    return LeaveGroupRequest(group_id=config.group_id, member_id=member.member_id, members=[identity])
