"""CreateAcls (key 30), versions 1 to 3: SECURITY_DISABLED for each ACL, as in an Apache Kafka without authorizer.

v1  plain
v2  flexible
v3  the resource type of users

Source: kafka.server.AclApis.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.authorized_operations import NO_AUTHORIZER
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import SecurityDisabled
from spark_kafkalite.slices import Work, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


@handles(ApiKey.CREATE_ACLS, 1, 3, is_off=True)
def handle(context: BrokerContext, exchange: Exchange, message: CreateAclsRequest) -> Work[CreateAclsResponse]:
    """Refuse each ACL."""
    code, text = SecurityDisabled.code, NO_AUTHORIZER
    refused = (AclCreationResult(error_code=code, error_message=text) for _ in message.creations)
    return CreateAclsResponse(results=(yield from filled([], refused)))
