"""DescribeUserScramCredentials (key 50), version 0: which users can authenticate by SCRAM, and by which mechanisms.

v0  flexible

Without names, or with an empty list of them, all users are described. A user that has no credential has
RESOURCE_NOT_FOUND (91), one that is named twice DUPLICATE_RESOURCE (92). No answer has a credential, only its
iterations. Source: org.apache.kafka.image.ScramImage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.authentication.scram_users import ScramUsers
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import DuplicateResource, ResourceNotFound
from spark_kafkalite.security.scram import SCRAM_TYPES
from spark_kafkalite.slices import Work, counted, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from spark_kafkalite.wire.rights import refused

# Of a name, in a text.
_SHOWN = 300
_NOT_THERE = "Attempt to describe a user credential that does not exist: "
_TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeUserScramCredentialsRequest
) -> Work[DescribeUserScramCredentialsResponse]:
    """Describe the users, each once."""
    if not exchange.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        refusal = refused(ResourceType.CLUSTER)
        refused_users = (
            DescribeUserScramCredentialsResult(user=user.name, error_code=refusal.code, error_message=str(refusal))
            for user in message.users or ()
        )
        results = yield from filled([], refused_users)
        return DescribeUserScramCredentialsResponse(
            error_code=refusal.code, error_message=str(refusal), results=results
        )
    if message.users:
        names = yield from counted(user.name for user in message.users)
    else:
        names = yield from counted(sorted(context.users.names()))
    return DescribeUserScramCredentialsResponse(results=(yield from filled([], _results(names, context.users))))


def _results(names: Mapping[str, int], users: ScramUsers) -> Iterator[DescribeUserScramCredentialsResult]:
    for name, times in names.items():
        iterations = users.iterations(name)
        if times > 1:
            yield DescribeUserScramCredentialsResult(
                user=name, error_code=DuplicateResource.code, error_message=_TWICE + name[:_SHOWN]
            )
        elif not iterations:
            yield DescribeUserScramCredentialsResult(
                user=name, error_code=ResourceNotFound.code, error_message=_NOT_THERE + name[:_SHOWN]
            )
        else:
            yield DescribeUserScramCredentialsResult(
                user=name,
                credential_infos=[
                    CredentialInfo(mechanism=number, iterations=iterations[mechanism])
                    for number, mechanism in SCRAM_TYPES.items()
                    if mechanism in iterations
                ],
            )
