"""Decides by ACLs. Pure: no clock, no log, no registry.

The ACLs of a resource are those of its literal name, those of the literal ``*``, and those of each prefix that its name
begins with. In this order:

1. No ACL at all: nothing is decided here (:attr:`AclVerdict.is_open`; ``allow.everyone.if.no.acl.found``).
2. An ACL that denies the operation, or all operations, to the principal at its host: denied.
3. One that allows it, or all, or an operation that implies it (``acls.IMPLIED_BY``): allowed.
4. Else denied: one ACL on a resource, for any principal, ends its openness.

A look-up costs two look-ups in a dict and one for each length of the prefixes of that type, and then only the entries
of that principal and of ``User:*``.

Source: kafka.security.authorizer.AclAuthorizer of Apache Kafka 3.9, org.apache.kafka.server.authorizer.Authorizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from spark_kafkalite.acls import (
    EVERYONE,
    IMPLIED_BY,
    WILDCARD,
    AccessControlEntry,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
)
from spark_kafkalite.addresses import plain_address

_NOTHING: Mapping[str, tuple[AccessControlEntry, ...]] = {}


class AclVerdict(NamedTuple):
    """A decision. ``by`` is the ACL that made it, None where none did.

    ``is_open``: there is no ACL on the resource, for any principal; then ``allowed`` is False.
    """

    allowed: bool
    by: Acl | None = None
    is_open: bool = False


_OPEN = AclVerdict(allowed=False, is_open=True)
_NOT_ALLOWED = AclVerdict(allowed=False)


@lru_cache(maxsize=4096)
def host_text(host: str) -> str:
    """Return an address in its one form, so that an ACL with ``0:0:0:0:0:0:0:1``, as Java writes it, is for ``::1``.

    IPv4 in IPv6 is IPv4. Any other text stays.
    """
    try:
        return plain_address(host)
    except ValueError:
        return host


class _Rules(NamedTuple):
    """The ACLs of one resource, by principal; ``denies`` and ``allows`` have hosts in their one form."""

    resource: Resource
    entries: frozenset[AccessControlEntry]
    denies: Mapping[str, tuple[AccessControlEntry, ...]]
    allows: Mapping[str, tuple[AccessControlEntry, ...]]

    @classmethod
    def of(cls, resource: Resource, entries: Collection[AccessControlEntry]) -> _Rules:
        by_permission: dict[PermissionType, dict[str, tuple[AccessControlEntry, ...]]] = {
            each: {} for each in PermissionType
        }
        for entry in sorted(entries):
            by_principal = by_permission[entry.permission]
            shown = entry._replace(host=host_text(entry.host))
            by_principal[entry.principal] = (*by_principal.get(entry.principal, ()), shown)
        denies, allows = by_permission[PermissionType.DENY], by_permission[PermissionType.ALLOW]
        return cls(resource, frozenset(entries), denies or _NOTHING, allows or _NOTHING)

    def find(
        self, permission: PermissionType, principal: str, host: str, operations: Collection[Operation]
    ) -> Acl | None:
        """Return an ACL that denies or allows one of these operations, None when there is none."""
        by_principal = self.denies if permission is PermissionType.DENY else self.allows
        for name in (principal, EVERYONE):
            for entry in by_principal.get(name, ()):
                if entry.operation in operations and entry.host in (host, WILDCARD):
                    return Acl(self.resource, entry)
        return None


def _denied_by(operation: Operation) -> tuple[Operation, ...]:
    return (operation, Operation.ALL)


def _allowed_by(operation: Operation) -> frozenset[Operation]:
    return IMPLIED_BY.get(operation, frozenset()) | {operation, Operation.ALL}


_DENIED_BY = {operation: _denied_by(operation) for operation in Operation}
_ALLOWED_BY = {operation: _allowed_by(operation) for operation in Operation}


class _OfType:
    """The ACLs of one type of resource."""

    __slots__ = ("_lengths", "literal", "prefixed", "prefix_lengths")

    def __init__(self) -> None:
        self.literal: dict[str, _Rules] = {}
        self.prefixed: dict[str, _Rules] = {}
        self._lengths: Counter[int] = Counter()
        self.prefix_lengths: tuple[int, ...] = ()

    def put(self, rules: _Rules) -> None:
        name = rules.resource.name
        by_name = self.literal if rules.resource.pattern_type is PatternType.LITERAL else self.prefixed
        was_there = name in by_name
        if rules.entries:
            by_name[name] = rules
        elif was_there:
            del by_name[name]
        if by_name is self.prefixed and was_there != bool(rules.entries):
            self._lengths[len(name)] += 1 if rules.entries else -1
            self.prefix_lengths = tuple(sorted(+self._lengths))

    def applying_to(self, name: str) -> list[_Rules]:
        """Return the rules that apply to a resource of this name."""
        literal = self.literal
        found = [literal[name]] if name in literal else []
        if WILDCARD in literal and name != WILDCARD:
            found.append(literal[WILDCARD])
        for length in self.prefix_lengths:
            if length > len(name):
                break
            rules = self.prefixed.get(name[:length])
            if rules is not None:
                found.append(rules)
        return found


class AclTable:
    """All ACLs. Changed by one resource at a time; a decision sees a change at once."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._types = {each: _OfType() for each in ResourceType}
        by_resource: dict[Resource, list[AccessControlEntry]] = {}
        for resource, entry in acls:
            by_resource.setdefault(resource, []).append(entry)
        for resource, entries in by_resource.items():
            self.put(resource, entries)

    def put(self, resource: Resource, entries: Collection[AccessControlEntry]) -> bool:
        """Replace the ACLs of a resource, by none if ``entries`` is empty; return whether that changes anything."""
        if frozenset(entries) == self.entries(resource):
            return False
        self._types[resource.resource_type].put(_Rules.of(resource, entries))
        return True

    def entries(self, resource: Resource) -> frozenset[AccessControlEntry]:
        """Return the entries of a resource, as they were put."""
        of_type = self._types[resource.resource_type]
        by_name = of_type.literal if resource.pattern_type is PatternType.LITERAL else of_type.prefixed
        rules = by_name.get(resource.name)
        return frozenset() if rules is None else rules.entries

    def resources(self) -> Iterator[tuple[Resource, frozenset[AccessControlEntry]]]:
        """Give each resource that has ACLs, with its entries."""
        for of_type in self._types.values():
            for by_name in (of_type.literal, of_type.prefixed):
                for rules in list(by_name.values()):
                    yield rules.resource, rules.entries

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> AclVerdict:
        """Decide about one resource. ``host`` is an address as :func:`host_text` gives it."""
        rules = self._types[resource_type].applying_to(name)
        if not rules:
            return _OPEN
        for permission, operations in (
            (PermissionType.DENY, _DENIED_BY[operation]),
            (PermissionType.ALLOW, _ALLOWED_BY[operation]),
        ):
            for each in rules:
                found = each.find(permission, principal, host, operations)
                if found is not None:
                    return AclVerdict(permission is PermissionType.ALLOW, found)
        return _NOT_ALLOWED

    def decide_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> AclVerdict:
        """Decide whether there is a resource of this type on which the operation is allowed.

        ``is_open`` where only ``allow.everyone.if.no.acl.found`` could allow it. An ALLOW counts unless a DENY covers
        all that it is for. Source: AclAuthorizer.authorizeByResourceType.
        """
        of_type = self._types[resource_type]
        denied_by, allowed_by = _DENIED_BY[operation], _ALLOWED_BY[operation]

        def named(
            by_name: Mapping[str, _Rules], permission: PermissionType, by: Collection[Operation]
        ) -> dict[str, Acl]:
            found = ((name, rules.find(permission, principal, host, by)) for name, rules in by_name.items())
            return {name: acl for name, acl in found if acl is not None}

        denied = named(of_type.literal, PermissionType.DENY, denied_by)
        if WILDCARD in denied:
            return AclVerdict(allowed=False, by=denied[WILDCARD])
        denied_prefixes = named(of_type.prefixed, PermissionType.DENY, denied_by)
        lengths = sorted({len(prefix) for prefix in denied_prefixes})

        def is_void(name: str) -> bool:
            return any(name[:length] in denied_prefixes for length in lengths if length <= len(name))

        for name, acl in named(of_type.literal, PermissionType.ALLOW, allowed_by).items():
            if name not in denied and (name == WILDCARD or not is_void(name)):
                return AclVerdict(allowed=True, by=acl)
        for name, acl in named(of_type.prefixed, PermissionType.ALLOW, allowed_by).items():
            if not is_void(name):
                return AclVerdict(allowed=True, by=acl)
        return _OPEN
