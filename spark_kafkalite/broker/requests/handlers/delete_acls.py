"""DeleteAcls (key 31), versions 1 to 3: deletes the ACLs that filters mean; the answer of each filter lists them.

v1  plain
v2  flexible
v3  the resource type of users

As in CreateAcls any broker writes the registry itself. Without an authorizer the answer of each filter is
SECURITY_DISABLED (54). Source: kafka.server.AclApis.
"""

from __future__ import annotations

from spark_kafkalite.acls import Acl, AclFilter, Operation, ResourceType
from spark_kafkalite.broker.authorization.acl_changes import MOST_FILTERS, filter_of
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, log_change, some_of
from spark_kafkalite.broker.requests.authorized_operations import NO_AUTHORIZER
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, KafkaError, SecurityDisabled
from spark_kafkalite.slices import Work, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handles(ApiKey.DELETE_ACLS, 1, 3)
async def handle(context: BrokerContext, exchange: Exchange, message: DeleteAclsRequest) -> DeleteAclsResponse:
    """Delete what each filter means."""
    try:
        exchange.require(Operation.ALTER, ResourceType.CLUSTER)
        if context.acls is None:
            raise SecurityDisabled(NO_AUTHORIZER)
        if len(message.filters) > MOST_FILTERS:
            raise InvalidRequest(
                f"{len(message.filters)} filters are too many for one request, by which nothing was deleted; at most "
                f"{MOST_FILTERS} are possible"
            )
    except KafkaError as error:
        code, text = error.code, str(error)
        refused = (DeleteAclsFilterResult(error_code=code, error_message=text) for _ in message.filters)
        return DeleteAclsResponse(filter_results=await context.work(exchange, filled([], refused)))
    filters: list[AclFilter | KafkaError] = await context.work(exchange, _read(message.filters))
    answer = DeleteAclsResponse()
    turn = context.slices.turn()
    deleted: list[Acl] = []
    count = 0
    for outcome in await context.acls.delete(filters):
        if isinstance(outcome, KafkaError):
            answer.filter_results.append(DeleteAclsFilterResult(error_code=outcome.code, error_message=str(outcome)))
            continue
        result = DeleteAclsFilterResult()
        answer.filter_results.append(result)
        for acl, problem in outcome:
            await turn.pause()
            result.matching_acls.append(_answered(acl, problem))
            if problem is None:
                count += 1
                if count <= MOST_NAMED:
                    deleted.append(acl)
    if count:
        log_change(exchange, "%d ACLs have been deleted: %s", count, some_of(deleted, count))
    return answer


def _read(filters: list[DeleteAclsFilter]) -> Work[list[AclFilter | KafkaError]]:
    found: list[AclFilter | KafkaError] = []
    for each in filters:
        yield None
        try:
            found.append(
                filter_of(
                    resource_type=each.resource_type_filter,
                    name=each.resource_name_filter,
                    pattern_type=each.pattern_type_filter,
                    principal=each.principal_filter,
                    host=each.host_filter,
                    operation=each.operation,
                    permission=each.permission_type,
                )
            )
        except KafkaError as error:
            found.append(error.with_traceback(None))
    return found


def _answered(acl: Acl, error: KafkaError | None) -> DeleteAclsMatchingAcl:
    (resource_type, pattern_type, name), entry = acl
    return DeleteAclsMatchingAcl(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else str(error),
        resource_type=resource_type,
        resource_name=name,
        pattern_type=pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
