"""DescribeGroups (key 15), versions 0 to 5: a group's state, its members, and their assignments.

A group that does not exist is described as Dead. Subscriptions and assignments are included while the group is Stable:
before that they are those of no generation.

v1  throttle time
v2  same as v1
v3  authorized operations
v4  instance ids
v5  flexible
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.authorized_operations import NOT_ASKED
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.states import GroupState
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.slices import Work, counted
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


@handles(ApiKey.DESCRIBE_GROUPS, 0, 5, groups_of=lambda message: message.groups)
def handle(context: BrokerContext, exchange: Exchange, message: DescribeGroupsRequest) -> Work[DescribeGroupsResponse]:
    """A group's state, its members, and their assignments."""
    answer = DescribeGroupsResponse()
    # One that is named twice is described once: a short request must not make a long answer.
    for group_id in (yield from counted(message.groups)):
        yield None
        try:
            exchange.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
            described = _described(group_id, context.groups.describe(group_id))
        except KafkaError as error:
            described = DescribedGroup(group_id=group_id, error_code=error.code)
        else:
            if message.include_authorized_operations:
                described.authorized_operations = exchange.operations_on(ResourceType.GROUP, group_id)
            else:
                described.authorized_operations = NOT_ASKED
        answer.groups.append(described)
    return answer


def _described(group_id: str, group: Group | None) -> DescribedGroup:
    if group is None:
        return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ],
    )
