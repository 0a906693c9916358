"""DescribeUserScramCredentials (key 50), version 0: no user has any; a user that is named is RESOURCE_NOT_FOUND.

Source: KIP-554, org.apache.kafka.image.ScramImage.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import ResourceNotFound
from spark_kafkalite.slices import Work, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from spark_kafkalite.wire.rights import refused

# Of a name, in a text.
_SHOWN = 300


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, is_off=True)
def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeUserScramCredentialsRequest
) -> Work[DescribeUserScramCredentialsResponse]:
    """Answer for each user that there is none; each name is answered once."""
    if not exchange.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        refusal = refused(ResourceType.CLUSTER)
        return DescribeUserScramCredentialsResponse(error_code=refusal.code, error_message=str(refusal))
    names = yield from filled({}, ((user.name, None) for user in message.users or ()))
    text = "Attempt to describe a user credential that does not exist: "
    missing = (
        DescribeUserScramCredentialsResult(
            user=name, error_code=ResourceNotFound.code, error_message=f"{text}{name[:_SHOWN]}"
        )
        for name in names
    )
    return DescribeUserScramCredentialsResponse(results=(yield from filled([], missing)))
