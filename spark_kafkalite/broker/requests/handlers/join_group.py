"""JoinGroup (key 11), versions 0 to 9: makes a client a member of a group, or keeps it one in the next generation.

The answer comes when the generation begins: all members have joined, or their rebalance timeout is over. Only the
leader receives the list of members. A connection that closes while it waits takes its new member with it.

v0  the rebalance timeout is the session timeout
v1  its own rebalance timeout
v2  throttle time
v3  same as v2
v4  a client without a member id gets one first (MEMBER_ID_REQUIRED), and joins with it
v5  static members: a group instance id
v6  flexible
v7  protocol type in the answer, protocol null where there is none
v8  a reason, for the log
v9  the answer marks a leader that need not assign
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.groups.members import MOST_PROTOCOLS, JoinRequest
from spark_kafkalite.errors import GroupAuthorizationFailed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

_FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
_FIRST_VERSION_WITH_MEMBER_ID_FIRST = 4
_FIRST_VERSION_WITH_NULL_PROTOCOL = 7
_FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9


@handles(ApiKey.JOIN_GROUP, 0, 9, waits_for_clients=True, groups_of=lambda message: [message.group_id])
async def handle(context: BrokerContext, exchange: Exchange, message: JoinGroupRequest) -> JoinGroupResponse:
    """Become a member of a group, or stay one in its next generation."""
    if not exchange.may(Operation.READ, ResourceType.GROUP, message.group_id):
        return JoinGroupResponse(error_code=GroupAuthorizationFailed.code)
    version = exchange.api_version
    rebalance_timeout_ms = message.rebalance_timeout_ms
    if version < _FIRST_VERSION_WITH_REBALANCE_TIMEOUT or rebalance_timeout_ms < 0:
        rebalance_timeout_ms = message.session_timeout_ms
    waiting = context.groups.join(
        message.group_id,
        JoinRequest(
            message.member_id,
            message.group_instance_id,
            exchange.client_id or "",
            exchange.session.client_host,
            message.session_timeout_ms,
            rebalance_timeout_ms,
            message.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in message.protocols[: MOST_PROTOCOLS + 1]),
            needs_member_id=version >= _FIRST_VERSION_WITH_MEMBER_ID_FIRST,
            may_skip_assignment=version >= _FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT,
        ),
    )
    if not waiting.done():
        exchange.call_if_abandoned(lambda: context.groups.abandon(message.group_id, waiting))
    answer = await waiting
    protocol = answer.protocol
    if protocol is None and version < _FIRST_VERSION_WITH_NULL_PROTOCOL:
        protocol = ""
    return JoinGroupResponse(
        error_code=0 if answer.error is None else answer.error.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in answer.members
        ],
    )
