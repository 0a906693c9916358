"""DeleteGroups (key 42), versions 0 to 2: deletes groups without members, and their committed offsets.

Each group has its own outcome, and is gone for good when the answer comes.

v1  same as v0
v2  flexible
"""

from __future__ import annotations

import asyncio

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.slices import counted
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

# Groups deleted together, and between them other requests have their turn.
_AT_ONCE = 100


@handles(ApiKey.DELETE_GROUPS, 0, 2, groups_of=lambda message: message.groups_names)
async def handle(context: BrokerContext, exchange: Exchange, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Groups without members go, and their committed offsets with them."""

    async def outcome(group_id: str) -> int:
        try:
            exchange.require(Operation.DELETE, ResourceType.GROUP, group_id)
            await context.groups.delete(group_id)
        except KafkaError as error:
            return error.code
        log_change(exchange, "group %s has been deleted", group_id)
        return 0

    group_ids = list(await context.work(exchange, counted(message.groups_names)))
    results: list[DeletableGroupResult] = []
    turn = context.slices.turn()
    for first in range(0, len(group_ids), _AT_ONCE):
        some = group_ids[first : first + _AT_ONCE]
        codes = await asyncio.gather(*map(outcome, some))
        results += [
            DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in zip(some, codes, strict=True)
        ]
        await turn.pause()
    return DeleteGroupsResponse(results=results)
