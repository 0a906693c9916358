"""DeleteAcls (key 31), versions 1 to 3: SECURITY_DISABLED for each filter, as in an Apache Kafka without authorizer.

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
from spark_kafkalite.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


@handles(ApiKey.DELETE_ACLS, 1, 3, is_off=True)
def handle(context: BrokerContext, exchange: Exchange, message: DeleteAclsRequest) -> Work[DeleteAclsResponse]:
    """Refuse each filter."""
    code, text = SecurityDisabled.code, NO_AUTHORIZER
    refused = (DeleteAclsFilterResult(error_code=code, error_message=text) for _ in message.filters)
    return DeleteAclsResponse(filter_results=(yield from filled([], refused)))
