"""Adds and deletes ACLs for the APIs: checks them, writes the registry, and lets this broker decide by them at once.

Other brokers follow within moments (``registry.cluster.acl_watch``). An answer means that the change is in the registry
and that this broker obeys it. Source: kafka.server.AclApis, kafka.security.authorizer.AclAuthorizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from spark_kafkalite.acls import (
    ANY,
    MATCH,
    AccessControlEntry,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
    problem_of,
)
from spark_kafkalite.broker.authorization.authorizer import Authorizer
from spark_kafkalite.errors import InvalidRequest, KafkaError, RegistryError, RequestTimedOut
from spark_kafkalite.registry.acl_changes import alter_acls
from spark_kafkalite.registry.store import BadArguments, OutOfRoom, Store
from spark_kafkalite.slices import Slices, Work

# Of one request.
MOST_ACLS: Final = 10_000
MOST_FILTERS: Final = 1_000
# Resources that are written at the same time.
_AT_ONCE: Final = 100
_LOOKED_AT_ONCE: Final = 200


class AclChanges:
    """See the module's text. Lives in one event loop."""

    def __init__(self, authorizer: Authorizer, slices: Slices, store: Callable[[], Store]) -> None:
        """``store`` returns the present session with the registry, and raises RegistryError while there is none."""
        self._authorizer = authorizer
        self._slices = slices
        self._store = store

    def matching(self, wanted: AclFilter) -> Work[list[tuple[Resource, list[AccessControlEntry]]]]:
        """Return the ACLs that a filter means, by resource, as this broker knows them."""
        found = []
        for number, (resource, entries) in enumerate(list(self._authorizer.acls.resources())):
            if number % _LOOKED_AT_ONCE == 0:
                yield None
            if wanted.matches_resource(resource):
                meant = sorted(entry for entry in entries if wanted.matches_entry(entry))
                if meant:
                    found.append((resource, meant))
        return found

    async def create(self, acls: Sequence[Acl | KafkaError]) -> list[KafkaError | None]:
        """Add ACLs; return each one's error. An error in the place of an ACL comes back. One that exists is added
        without an error."""
        outcomes: list[KafkaError | None] = [each if isinstance(each, KafkaError) else None for each in acls]
        by_resource: dict[Resource, list[int]] = {}
        for number, each in enumerate(acls):
            if not isinstance(each, KafkaError):
                by_resource.setdefault(each.resource, []).append(number)

        async def add(resource: Resource) -> None:
            numbers = by_resource[resource]
            entries = frozenset(each.entry for number in numbers if isinstance(each := acls[number], Acl))
            try:
                await self._alter(resource, lambda old: old | entries)
            except KafkaError as error:
                for number in numbers:
                    outcomes[number] = error

        await self._each(add, list(by_resource))
        return outcomes

    async def delete(
        self, filters: Sequence[AclFilter | KafkaError]
    ) -> list[list[tuple[Acl, KafkaError | None]] | KafkaError]:
        """Delete the ACLs that filters mean; return those of each filter, with the error of each that stays."""
        by_filter: list[list[tuple[Resource, list[AccessControlEntry]]] | KafkaError] = []
        gone: dict[Resource, set[AccessControlEntry]] = {}
        for wanted in filters:
            if isinstance(wanted, KafkaError):
                by_filter.append(wanted)
                continue
            found = await self._slices.run(self.matching(wanted))
            by_filter.append(found)
            for resource, entries in found:
                gone.setdefault(resource, set()).update(entries)
        errors: dict[Resource, KafkaError] = {}

        async def remove(resource: Resource) -> None:
            try:
                await self._alter(resource, lambda old: old - gone[resource])
            except KafkaError as error:
                errors[resource] = error

        await self._each(remove, list(gone))
        return [
            each
            if isinstance(each, KafkaError)
            else [(Acl(resource, entry), errors.get(resource)) for resource, entries in each for entry in entries]
            for each in by_filter
        ]

    async def _each(self, work: Callable[[Resource], Awaitable[None]], resources: Sequence[Resource]) -> None:
        for first in range(0, len(resources), _AT_ONCE):
            await asyncio.gather(*(work(each) for each in resources[first : first + _AT_ONCE]))

    async def _alter(
        self, resource: Resource, change: Callable[[frozenset[AccessControlEntry]], frozenset[AccessControlEntry]]
    ) -> None:
        """Raises InvalidRequest (42) for a name that the registry refuses, RequestTimedOut (7) when it fails."""
        try:
            _, new = await alter_acls(self._store(), resource, change)
        except BadArguments as error:
            raise InvalidRequest(str(error)) from error
        except OutOfRoom as error:
            raise RequestTimedOut(f"the ACLs were not changed: {error}") from error
        except RegistryError as error:
            raise RequestTimedOut(
                f"the ACLs may have been changed or not, because the registry failed: {error}"
            ) from error
        # Not later than the answer. What the notice says is read again, and changes nothing then.
        self._authorizer.put(resource, new)


def filter_of(
    *,
    resource_type: int,
    name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """Return the filter of a request. Raises InvalidRequest (42) for numbers that stand for nothing."""
    for what, number, kind, more in (
        ("resource type", resource_type, ResourceType, {ANY}),
        ("pattern type", pattern_type, PatternType, {ANY, MATCH}),
        ("operation", operation, Operation, {ANY}),
        ("permission type", permission, PermissionType, {ANY}),
    ):
        if number not in more and number not in kind._value2member_map_:
            raise InvalidRequest(f"The AclBindingFilter contains UNKNOWN elements: {what} {number}")
    return AclFilter(resource_type, name, pattern_type, principal, host, operation, permission)


def acl_of(
    *, resource_type: int, name: str, pattern_type: int, principal: str, host: str, operation: int, permission: int
) -> Acl:
    """Return the ACL that is to be created. Raises InvalidRequest (42) for one that cannot be."""
    try:
        acl = Acl(
            Resource(ResourceType(resource_type), PatternType(pattern_type), name),
            AccessControlEntry(principal, host, Operation(operation), PermissionType(permission)),
        )
    except ValueError as error:
        raise InvalidRequest(
            f"an ACL has one type of resource, pattern, operation and permission each, and this one has not: {error}"
        ) from None
    problem = problem_of(acl)
    if problem is not None:
        raise InvalidRequest(problem)
    return acl
