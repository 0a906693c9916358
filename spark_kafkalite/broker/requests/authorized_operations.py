"""What a client may do, as Metadata and the Describe APIs return it, where the client asks for it.

Bits are numbered as in ``acls.Operation``. Source: kafka.server.AuthHelper.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.acls import CLUSTER_NAME, Operation, ResourceType
from spark_kafkalite.broker.requests.exchange import Exchange

NOT_ASKED: Final = -(2**31)
# What Kafka says of an ACL where there is no authorizer.
NO_AUTHORIZER: Final = "No Authorizer is configured."


def cluster_operations(exchange: Exchange, *, is_asked: bool) -> int:
    """Return what the client may do with the cluster: nothing, if it may not even describe it."""
    if not is_asked:
        return NOT_ASKED
    if not exchange.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, is_probe=True):
        return 0
    return exchange.operations_on(ResourceType.CLUSTER)
