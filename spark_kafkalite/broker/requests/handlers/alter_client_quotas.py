"""AlterClientQuotas (key 49), versions 0 and 1: UNSUPPORTED_VERSION for each quota that is set; removals do nothing.

v0  plain
v1  flexible

Apache Kafka always keeps quotas. It, too, answers the removal of a quota that is not set without an error.
Source: KIP-546, org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import UnsupportedVersion
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResponse,
    EntryDataResponse,
)
from spark_kafkalite.wire.rights import refused

_NOT_BUILT = "Quotas of clients are not supported by this broker: nothing is limited, and nothing was changed"


@handles(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, is_off=True)
def handle(
    context: BrokerContext, exchange: Exchange, message: AlterClientQuotasRequest
) -> Work[AlterClientQuotasResponse]:
    """Refuse to set quotas."""
    may_alter = exchange.may(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    answered = []
    for entry in message.entries:
        entity = []
        for part in entry.entity:
            entity.append(EntityDataResponse(entity_type=part.entity_type, entity_name=part.entity_name))
            yield None
        code, text = 0, None
        for change in entry.ops:
            yield None
            if not change.remove:
                code, text = UnsupportedVersion.code, _NOT_BUILT
        if not may_alter:
            refusal = refused(ResourceType.CLUSTER)
            code, text = refusal.code, str(refusal)
        answered.append(EntryDataResponse(error_code=code, error_message=text, entity=entity))
        yield None
    return AlterClientQuotasResponse(entries=answered)
