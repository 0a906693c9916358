"""ListGroups (key 16), versions 0 to 5: the groups that this broker coordinates.

While some are still being read from the log, the answer has the others and COORDINATOR_LOAD_IN_PROGRESS.

v1  throttle time
v2  same as v1
v3  flexible
v4  states, in the answer and as a filter
v5  types likewise; every group here is of the type classic

A client that may not describe the cluster receives only the groups that it may describe.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import CoordinatorLoadInProgress
from spark_kafkalite.slices import Work, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_TYPE = "classic"
# Groups that are described between two yields.
_AT_ONCE = 100


@handles(ApiKey.LIST_GROUPS, 0, 5)
def handle(context: BrokerContext, exchange: Exchange, message: ListGroupsRequest) -> Work[ListGroupsResponse]:
    """The groups that this broker coordinates."""
    # Spelled in any case, as Apache Kafka takes them.
    states = yield from filled(set(), (name.lower() for name in message.states_filter))
    types = yield from filled(set(), (name.lower() for name in message.types_filter))
    groups = context.groups.groups() if not types or _TYPE in types else []
    sees_all = exchange.may(Operation.DESCRIBE, ResourceType.CLUSTER, is_probe=True)
    answer = ListGroupsResponse(error_code=CoordinatorLoadInProgress.code if context.groups.is_loading else 0)
    for number, group in enumerate(groups):
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield None
        if not sees_all and not exchange.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id, is_probe=True):
            continue
        if not states or group.state.value.lower() in states:
            answer.groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=_TYPE,
                )
            )
    yield from freed(states)
    yield from freed(types)
    return answer
