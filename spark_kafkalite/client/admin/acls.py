"""Administration of ACLs: which principals may do what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from spark_kafkalite.acls import (
    AccessControlEntry,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
)
from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.errors import InvalidRequest, KafkaError
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_acls import AclCreation, CreateAclsRequest
from spark_kafkalite.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from spark_kafkalite.wire.messages.describe_acls import DescribeAclsRequest
from spark_kafkalite.wire.rights import refusal


class AclAdmin(AdminRequests):
    """The calls of an administrator that have to do with ACLs."""

    def describe_acls(self, wanted: AclFilter | None = None, *, timeout_ms: int | None = None) -> list[Acl]:
        """Return the ACLs that a filter means, or all of them.

        Raises SecurityDisabled (54) for brokers without an authorizer.
        """
        deadline = self._deadline(timeout_ms)
        each = wanted or AclFilter()
        request = DescribeAclsRequest(
            resource_type_filter=each.resource_type,
            resource_name_filter=each.name,
            pattern_type_filter=each.pattern_type,
            principal_filter=each.principal,
            host_filter=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        ask = partial(self._cluster.request_any, ApiKey.DESCRIBE_ACLS, request, deadline)
        answer = self._retried(ask, deadline)
        if answer.error_code:
            raise refusal(ApiKey.DESCRIBE_ACLS, answer.error_code, answer.error_message)
        return sorted(
            _acl(found.resource_type, found.pattern_type, found.resource_name, acl)
            for found in answer.resources
            for acl in found.acls
        )

    def create_acls(self, acls: Sequence[Acl], *, timeout_ms: int | None = None) -> None:
        """Add ACLs. One that exists already is added without an error.

        Raises InvalidRequest (42), SecurityDisabled (54), and others; the ACLs that the error does not name are added.
        """
        deadline = self._deadline(timeout_ms)
        request = CreateAclsRequest(creations=[_creation(acl) for acl in acls])
        ask = partial(self._cluster.request_any, ApiKey.CREATE_ACLS, request, deadline)
        results = self._retried(ask, deadline).results
        if len(results) != len(acls):
            raise InvalidRequest(f"the broker answered {len(results)} of {len(acls)} ACLs")
        _raise_first(
            [
                refusal(ApiKey.CREATE_ACLS, each.error_code, f"cannot add {acl}: {each.error_message or 'refused'}")
                for acl, each in zip(acls, results, strict=True)
                if each.error_code
            ]
        )

    def delete_acls(self, wanted: Sequence[AclFilter], *, timeout_ms: int | None = None) -> list[Acl]:
        """Delete the ACLs that the filters mean, and return them, each once."""
        deadline = self._deadline(timeout_ms)
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in wanted
            ]
        )
        ask = partial(self._cluster.request_any, ApiKey.DELETE_ACLS, request, deadline)
        deleted: set[Acl] = set()
        failed: list[KafkaError] = []
        for result in self._retried(ask, deadline).filter_results:
            if result.error_code:
                failed.append(refusal(ApiKey.DELETE_ACLS, result.error_code, result.error_message))
            for found in result.matching_acls:
                acl = _acl(found.resource_type, found.pattern_type, found.resource_name, found)
                if found.error_code:
                    text = f"cannot delete {acl}: {found.error_message or 'refused'}"
                    failed.append(refusal(ApiKey.DELETE_ACLS, found.error_code, text))
                else:
                    deleted.add(acl)
        _raise_first(failed)
        return sorted(deleted)


def _raise_first(failed: Sequence[KafkaError]) -> None:
    if len(failed) > 1:
        raise type(failed[0])("; ".join(map(str, failed)))
    if failed:
        raise failed[0]


def _creation(acl: Acl) -> AclCreation:
    (resource_type, pattern_type, name), entry = acl
    return AclCreation(
        resource_type=resource_type,
        resource_name=name,
        resource_pattern_type=pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _acl(resource_type: int, pattern_type: int, name: str, found: Any) -> Acl:
    return Acl(
        Resource(ResourceType(resource_type), PatternType(pattern_type), name),
        AccessControlEntry(
            found.principal, found.host, Operation(found.operation), PermissionType(found.permission_type)
        ),
    )
