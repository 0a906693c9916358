"""DescribeClientQuotas (key 48), versions 0 and 1: the quotas that this broker enforces.

v0  plain
v1  flexible

Source: KIP-546.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.quotas.filters import Component, EntityFilter
from spark_kafkalite.broker.quotas.limits import entity_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from spark_kafkalite.wire.rights import refused


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1)
def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeClientQuotasRequest
) -> Work[DescribeClientQuotasResponse]:
    """Return the entities that match, with their quotas."""
    if not exchange.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        refusal = refused(ResourceType.CLUSTER)
        return DescribeClientQuotasResponse(error_code=refusal.code, error_message=str(refusal), entries=None)
    try:
        asked = EntityFilter(
            (Component(each.entity_type, each.match_type, each.match) for each in message.components),
            is_strict=message.strict,
        )
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    entries = []
    for path, quotas in list(context.quotas.limits.all.items()):
        yield None
        entity = entity_of(path)
        if entity is not None and asked.means(entity):
            entries.append(
                EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                    values=[ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
    return DescribeClientQuotasResponse(entries=entries)
