"""DescribeAcls (key 29), versions 1 to 3: the ACLs that a filter means, as this broker knows them.

v1  plain
v2  flexible
v3  the resource type of users

A filter of pattern MATCH means every ACL that applies to the resource of its name. Without an authorizer the answer is
SECURITY_DISABLED (54). Source: kafka.server.AclApis.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.authorization.acl_changes import filter_of
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import KafkaError, SecurityDisabled
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

# Kafka's words, which are not those of the other two.
_NO_AUTHORIZER = "No Authorizer is configured on the broker"


@handles(ApiKey.DESCRIBE_ACLS, 1, 3)
def handle(context: BrokerContext, exchange: Exchange, message: DescribeAclsRequest) -> Work[DescribeAclsResponse]:
    """Describe the ACLs, by resource."""
    try:
        exchange.require(Operation.DESCRIBE, ResourceType.CLUSTER)
        if context.acls is None:
            raise SecurityDisabled(_NO_AUTHORIZER)
        wanted = filter_of(
            resource_type=message.resource_type_filter,
            name=message.resource_name_filter,
            pattern_type=message.pattern_type_filter,
            principal=message.principal_filter,
            host=message.host_filter,
            operation=message.operation,
            permission=message.permission_type,
        )
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error))
    answer = DescribeAclsResponse()
    for (resource_type, pattern_type, name), entries in (yield from context.acls.matching(wanted)):
        yield None
        answer.resources.append(
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[
                    AclDescription(
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission,
                    )
                    for entry in entries
                ],
            )
        )
    return answer
