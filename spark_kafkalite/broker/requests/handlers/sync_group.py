"""SyncGroup (key 14), versions 0 to 5: takes the assignments from the group's leader, and gives each member its own.

All wait until the leader's assignment is committed to ``__consumer_offsets``.

v1  throttle time
v2  same as v1
v3  static members
v4  flexible
v5  protocol type and protocol, mandatory and checked against the group's
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.groups.members import SyncRequest
from spark_kafkalite.errors import GroupAuthorizationFailed, InconsistentGroupProtocol
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


@handles(ApiKey.SYNC_GROUP, 0, 5, waits_for_clients=True, groups_of=lambda message: [message.group_id])
async def handle(context: BrokerContext, exchange: Exchange, message: SyncGroupRequest) -> SyncGroupResponse:
    """The leader hands in the assignments, and every member gets its own."""
    if not exchange.may(Operation.READ, ResourceType.GROUP, message.group_id):
        return SyncGroupResponse(error_code=GroupAuthorizationFailed.code)
    named = message.protocol_type is not None and message.protocol_name is not None
    if exchange.api_version >= _FIRST_VERSION_WITH_PROTOCOL and not named:
        return SyncGroupResponse(error_code=InconsistentGroupProtocol.code)
    waiting = context.groups.sync(
        message.group_id,
        SyncRequest(
            message.member_id,
            message.group_instance_id,
            message.generation_id,
            message.protocol_type,
            message.protocol_name,
            await context.work(exchange, _shares(message)),
        ),
    )
    if not waiting.done():
        exchange.call_if_abandoned(lambda: context.groups.abandon(message.group_id, waiting))
    answer = await waiting
    return SyncGroupResponse(
        error_code=0 if answer.error is None else answer.error.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _shares(message: SyncGroupRequest) -> Work[dict[str, bytes]]:
    shares = {}
    for one in message.assignments:
        yield None
        shares[one.member_id] = one.assignment
    return shares
