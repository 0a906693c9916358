"""CreateAcls (key 30), versions 1 to 3: adds ACLs; each has its own outcome.

v1  plain
v2  flexible
v3  the resource type of users

One that exists already is added without an error. Any broker writes the registry itself. Its answer means that the ACL
is in the registry and that this broker obeys it; other brokers follow within moments. Without an authorizer each answer
is SECURITY_DISABLED (54). Source: kafka.server.AclApis.
"""

from __future__ import annotations

from spark_kafkalite.acls import Acl, Operation, ResourceType
from spark_kafkalite.broker.authorization.acl_changes import MOST_ACLS, acl_of
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, log_change, some_of
from spark_kafkalite.broker.requests.authorized_operations import NO_AUTHORIZER
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, KafkaError, SecurityDisabled
from spark_kafkalite.slices import Work, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


@handles(ApiKey.CREATE_ACLS, 1, 3)
async def handle(context: BrokerContext, exchange: Exchange, message: CreateAclsRequest) -> CreateAclsResponse:
    """Add each ACL."""
    try:
        exchange.require(Operation.ALTER, ResourceType.CLUSTER)
        if context.acls is None:
            raise SecurityDisabled(NO_AUTHORIZER)
        if len(message.creations) > MOST_ACLS:
            raise InvalidRequest(
                f"{len(message.creations)} ACLs are too many for one request, of which none was added; at most "
                f"{MOST_ACLS} are possible"
            )
    except KafkaError as error:
        code, text = error.code, str(error)
        refused = (AclCreationResult(error_code=code, error_message=text) for _ in message.creations)
        return CreateAclsResponse(results=await context.work(exchange, filled([], refused)))
    acls: list[Acl | KafkaError] = await context.work(exchange, _read(message.creations))
    outcomes = await context.acls.create(acls)
    answer = CreateAclsResponse()
    turn = context.slices.turn()
    added: list[Acl] = []
    count = 0
    for acl, problem in zip(acls, outcomes, strict=True):
        await turn.pause()
        if problem is not None:
            answer.results.append(AclCreationResult(error_code=problem.code, error_message=str(problem)))
            continue
        answer.results.append(AclCreationResult())
        count += 1
        if count <= MOST_NAMED and isinstance(acl, Acl):
            added.append(acl)
    if count:
        log_change(exchange, "%d ACLs have been added: %s", count, some_of(added, count))
    return answer


def _read(creations: list[AclCreation]) -> Work[list[Acl | KafkaError]]:
    acls: list[Acl | KafkaError] = []
    for creation in creations:
        yield None
        try:
            acls.append(
                acl_of(
                    resource_type=creation.resource_type,
                    name=creation.resource_name,
                    pattern_type=creation.resource_pattern_type,
                    principal=creation.principal,
                    host=creation.host,
                    operation=creation.operation,
                    permission=creation.permission_type,
                )
            )
        except KafkaError as error:
            acls.append(error.with_traceback(None))
    return acls
