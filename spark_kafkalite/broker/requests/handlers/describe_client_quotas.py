"""DescribeClientQuotas (key 48), versions 0 and 1: none, whatever is asked for.

v0  plain
v1  flexible

Source: KIP-546.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from spark_kafkalite.wire.rights import refused


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, is_off=True)
def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Answer that there are no quotas."""
    if not exchange.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        refusal = refused(ResourceType.CLUSTER)
        return DescribeClientQuotasResponse(error_code=refusal.code, error_message=str(refusal), entries=None)
    return DescribeClientQuotasResponse(entries=[])
