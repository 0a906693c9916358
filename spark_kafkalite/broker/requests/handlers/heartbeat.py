"""Heartbeat (key 12), versions 0 to 4: keeps a member in its group; the answer asks it to join again when it must.

v1  throttle time
v2  same as v1
v3  static members
v4  flexible
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(ApiKey.HEARTBEAT, 0, 4, groups_of=lambda message: [message.group_id])
def handle(context: BrokerContext, exchange: Exchange, message: HeartbeatRequest) -> HeartbeatResponse:
    """A member lives, and hears whether it has to join again."""
    try:
        exchange.require(Operation.READ, ResourceType.GROUP, message.group_id)
        context.groups.heartbeat(message.group_id, message.member_id, message.group_instance_id, message.generation_id)
    except KafkaError as error:
        return HeartbeatResponse(error_code=error.code)
    return HeartbeatResponse()
