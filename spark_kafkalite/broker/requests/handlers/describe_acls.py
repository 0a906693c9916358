"""DescribeAcls (key 29), versions 1 to 3: SECURITY_DISABLED, as in an Apache Kafka without authorizer.

v1  plain
v2  flexible
v3  the resource type of users

Source: kafka.server.AclApis.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import SecurityDisabled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

# Kafka's words, which are not those of the other two.
_NO_AUTHORIZER = "No Authorizer is configured on the broker"


@handles(ApiKey.DESCRIBE_ACLS, 1, 3, is_off=True)
def handle(context: BrokerContext, exchange: Exchange, message: DescribeAclsRequest) -> DescribeAclsResponse:
    """Answer that there are no ACLs."""
    return DescribeAclsResponse(error_code=SecurityDisabled.code, error_message=_NO_AUTHORIZER)
