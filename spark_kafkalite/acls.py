"""ACLs: resource, principal, host, operation, and whether that is allowed or denied.

Owns the numbers and names of Kafka's ACLs, one ACL as a value, filters over them, and which operations imply others.
The broker decides by them (``broker.authorization``); the registry stores them (``registry.acl_nodes``).

Numbers are those of the protocol, names those of Kafka's tools and registry nodes.
Source: org.apache.kafka.common.acl, org.apache.kafka.common.resource, kafka.security.authorizer.AccessControlEntry.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

# The name of the one resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"
# As a literal name: every name of the type. As a host: every host.
WILDCARD: Final = "*"
# The principal that stands for all of them.
EVERYONE: Final = "User:*"
# Of a filter: whatever it is.
ANY: Final = 1


class _Named(IntEnum):
    # Enum's own is a call in Python for each look-up, and these are parts of keys on hot paths.
    __hash__ = int.__hash__

    @property
    def title(self) -> str:
        """The name in registry nodes and in logs: ``AlterConfigs`` for ALTER_CONFIGS."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def of_title(cls, text: str) -> _Named:
        """Return the member with this title, in any case. Raises ValueError."""
        for member in cls:
            if member.title.lower() == text.lower():
                return member
        raise ValueError(f"{text!r} is none of {', '.join(member.title for member in cls)}")


class ResourceType(_Named):
    """What a right is about."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    """How the name of an ACL's resource is compared with that of a resource."""

    LITERAL = 3
    PREFIXED = 4


# Of a filter: every pattern that applies to the resource of this name.
MATCH: Final = 2


class Operation(_Named):
    """What is to be done with a resource."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class PermissionType(_Named):
    """Whether an ACL allows or denies its operation."""

    DENY = 2
    ALLOW = 3


_O = Operation
# The operations that there are on each type, which ALL stands for.
OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
# The operations whose ALLOW contains that of the key. A DENY contains nothing but itself.
IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    _O.DESCRIBE: frozenset({_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALTER_CONFIGS}),
}


class Resource(NamedTuple):
    """One name, or the names that begin with it."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str


class AccessControlEntry(NamedTuple):
    """What an ACL allows or denies on its resource."""

    principal: str
    host: str
    operation: Operation
    permission: PermissionType


class Acl(NamedTuple):
    """One ACL."""

    resource: Resource
    entry: AccessControlEntry

    def __str__(self) -> str:
        (resource_type, pattern_type, name), (principal, host, operation, permission) = self
        kind = "" if pattern_type is PatternType.LITERAL else f"{pattern_type.title.lower()} "
        what = f"{operation.title} on {kind}{resource_type.title} {name!r}"
        return f"{permission.title} {what} to {principal} from host {host}"


class AclFilter(NamedTuple):
    """Which ACLs are meant. Numbers are those of the protocol (``ANY``, ``MATCH``); None is any text."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches_resource(self, resource: Resource) -> bool:
        """Whether ACLs of this resource are meant. Source: ResourcePatternFilter.matches."""
        if self.resource_type not in (ANY, resource.resource_type):
            return False
        if self.pattern_type not in (ANY, MATCH, resource.pattern_type):
            return False
        if self.name is None or self.name == resource.name:
            return True
        if self.pattern_type != MATCH:
            return False
        if resource.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name == WILDCARD

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        """Whether an ACL with this entry is meant. Source: AccessControlEntryFilter.matches."""
        return (
            (self.principal is None or self.principal == entry.principal)
            and (self.host is None or self.host == entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission in (ANY, entry.permission)
        )


def problem_of(acl: Acl) -> str | None:
    """Return what is wrong with an ACL that is to be added, None when nothing is.

    Source: SecurityUtils.validateAclBinding, kafka.server.AclApis, ResourcePattern.
    """
    (resource_type, _, name), (principal, host, operation, _) = acl
    if not name:
        return "the resource name is empty"
    if resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        return f"the only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if "/" in name:
        return f"the resource name {name!r} contains '/'"
    if operation is not Operation.ALL and operation not in OPERATIONS[resource_type]:
        known = ", ".join(each.name for each in OPERATIONS[resource_type])
        return f"{operation.name} is no operation on {resource_type.name}; there are ALL, {known}"
    kind, colon, user = principal.partition(":")
    if not kind or not colon or not user:
        return f"the principal {principal!r} is not of the form TYPE:NAME, such as User:alice"
    if not host:
        return "the host is empty; '*' stands for all hosts"
    return None
