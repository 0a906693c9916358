"""ListPartitionReassignments (key 46), version 0: none, whatever is asked for.

Source: KIP-455.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import ClusterAuthorizationFailed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, is_off=True)
def handle(
    context: BrokerContext, exchange: Exchange, message: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Answer that no partition is being moved."""
    if not exchange.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return ListPartitionReassignmentsResponse(error_code=ClusterAuthorizationFailed.code)
    return ListPartitionReassignmentsResponse()
