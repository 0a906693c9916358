"""LeaveGroup (key 13), versions 0 to 5: takes members out of a group at once, which rebalances it.

v0  one member
v1  throttle time
v2  same as v1
v3  several members, each with its own outcome; an instance id alone removes a static member
v4  flexible
v5  a reason, for the log
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import GroupAuthorizationFailed, KafkaError
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

_FIRST_VERSION_WITH_MEMBERS = 3
# Members that leave between two yields.
_AT_ONCE = 20


@handles(ApiKey.LEAVE_GROUP, 0, 5, groups_of=lambda message: [message.group_id])
def handle(context: BrokerContext, exchange: Exchange, message: LeaveGroupRequest) -> Work[LeaveGroupResponse]:
    """Members go at once, and the others share what they read."""
    if not exchange.may(Operation.READ, ResourceType.GROUP, message.group_id):
        return LeaveGroupResponse(error_code=GroupAuthorizationFailed.code)
    one_only = exchange.api_version < _FIRST_VERSION_WITH_MEMBERS
    leaving: list[tuple[str, str | None]] = [(message.member_id, None)]
    if not one_only:
        leaving = []
        for member in message.members:
            yield None
            leaving.append((member.member_id, member.group_instance_id))
    codes: list[int] = []
    try:
        for first in range(0, len(leaving), _AT_ONCE):
            yield None
            outcomes = context.groups.leave(message.group_id, leaving[first : first + _AT_ONCE])
            codes += [0 if outcome is None else outcome.code for outcome in outcomes]
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    if one_only:
        return LeaveGroupResponse(error_code=codes[0])
    answer = LeaveGroupResponse()
    for (member_id, instance_id), code in zip(leaving, codes, strict=True):
        yield None
        answer.members.append(MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code))
    return answer
