"""AlterClientQuotas (key 49), versions 0 and 1: sets and removes quotas, each entity with an outcome of its own.

v0  plain
v1  flexible

Source: KIP-546, org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.quotas.changes import QuotaOperation, change_text
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, KafkaError
from spark_kafkalite.slices import filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResponse,
    EntryDataResponse,
)
from spark_kafkalite.wire.rights import refused

# One more than an entity can have, so that one with too many is told from it.
_MOST_PARTS: Final = 4


@handles(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1)
async def handle(
    context: BrokerContext, exchange: Exchange, message: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Alter one entity after the other."""
    turn = context.slices.turn()
    may_alter = exchange.may(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    answered = []
    seen = set()
    for entry in message.entries:
        await turn.pause()
        # Of a quarter of a million parts or operations it is refused, too, and answered with all of them.
        parts: list[tuple[str, str | None]] = await context.work(
            exchange, filled([], ((each.entity_type, each.entity_name) for each in entry.entity))
        )
        operations: list[QuotaOperation] = await context.work(
            exchange, filled([], (QuotaOperation(each.key, None if each.remove else each.value) for each in entry.ops))
        )
        code, text = 0, None
        try:
            if not may_alter:
                raise refused(ResourceType.CLUSTER)
            # More parts than there are types are refused as they are.
            name = frozenset(parts[:_MOST_PARTS])
            if name in seen:
                raise InvalidRequest("Ignoring duplicate entity; name each entity once in a request")
            seen.add(name)
            entity = await context.quota_changes.alter(parts, operations, validate_only=message.validate_only)
            if not message.validate_only:
                log_change(exchange, "%s", change_text(entity, operations))
        except KafkaError as error:
            code, text = error.code, str(error)
        named: list[EntityDataResponse] = await context.work(
            exchange, filled([], (EntityDataResponse(entity_type=kind, entity_name=name) for kind, name in parts))
        )
        answered.append(EntryDataResponse(error_code=code, error_message=text, entity=named))
    return AlterClientQuotasResponse(entries=answered)
