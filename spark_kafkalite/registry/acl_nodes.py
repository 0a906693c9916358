"""Paths and payloads of ACLs in the registry. Pure: text and bytes in, values out.

=================================================  =====================================================================
path                                               data, all persistent
=================================================  =====================================================================
/kafka-acl/TYPE/NAME                               version 1: acls. Those of one literal name
/kafka-acl-extended/prefixed/TYPE/NAME             the same for the names that begin with NAME
/kafka-acl-changes/acl_changes_N                   ``TYPE:NAME``; a sequence node for each change of a literal name
/kafka-acl-extended-changes/acl_changes_N          version 1: resourceType, name, patternType; likewise for prefixes
=================================================  =====================================================================

TYPE is Topic, Group, Cluster, TransactionalId, DelegationToken or User. A node without ACLs does not exist. All of them
are private where the session has authenticated (``zookeeper.digest``): only that identity reads them.

A payload that cannot be read raises MalformedNode naming the path. It may have held a denial, so it counts as
:data:`UNREADABLE`. (Apache Kafka takes it for no ACL.)
Source: kafka.zk.ZkAclStore, kafka.security.authorizer.AccessControlEntry of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from spark_kafkalite.acls import (
    EVERYONE,
    WILDCARD,
    AccessControlEntry,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
)
from spark_kafkalite.registry.node_json import (
    MalformedNode,
    array,
    decode_object,
    encode_object,
    mapping,
    number,
    reading,
    text,
)

LITERAL_ACLS: Final = "/kafka-acl"
EXTENDED_ACLS: Final = "/kafka-acl-extended"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
LITERAL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_CHANGES: Final = "/kafka-acl-extended-changes"
ROOTS: Final = {PatternType.LITERAL: LITERAL_ACLS, PatternType.PREFIXED: PREFIXED_ACLS}
CHANGES: Final = {PatternType.LITERAL: LITERAL_CHANGES, PatternType.PREFIXED: EXTENDED_CHANGES}
NOTICE_PREFIX: Final = "acl_changes_"
_VERSION: Final = 1
# What the ACLs of a node that cannot be read count as: all is denied to all but super users, on every broker alike.
UNREADABLE: Final = frozenset({AccessControlEntry(EVERYONE, WILDCARD, Operation.ALL, PermissionType.DENY)})
# Of a sequence node's number.
_DIGITS: Final = 10


def type_path(pattern_type: PatternType, resource_type: ResourceType) -> str:
    """Return the node whose children are the names of one type that have ACLs."""
    return f"{ROOTS[pattern_type]}/{resource_type.title}"


# All that is about ACLs is at or below these.
ROOT_PATHS: Final = (LITERAL_ACLS, EXTENDED_ACLS, LITERAL_CHANGES, EXTENDED_CHANGES)
# What must exist before ACLs are written or watched; parents come before children.
BASE_PATHS: Final = (
    *ROOT_PATHS,
    PREFIXED_ACLS,
    *(type_path(pattern, kind) for pattern in PatternType for kind in ResourceType),
)


def acl_path(resource: Resource) -> str:
    """Return the node with the ACLs of a resource."""
    return f"{type_path(resource.pattern_type, resource.resource_type)}/{resource.name}"


def is_private(path: str) -> bool:
    """Return whether a node is for brokers alone."""
    return path.startswith((LITERAL_ACLS, EXTENDED_ACLS))


def encode_acls(entries: Collection[AccessControlEntry]) -> bytes:
    """Return the data of the node of a resource."""
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission.title,
            "operation": entry.operation.title,
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return encode_object({"version": _VERSION, "acls": acls})


def decode_acls(path: str, data: bytes) -> frozenset[AccessControlEntry]:
    """Return the entries of a node. Raises MalformedNode."""
    fields = decode_object(path, data)
    with reading(path, data):
        number(fields["version"], _VERSION, _VERSION)
        return frozenset(
            AccessControlEntry(
                text(acl["principal"]),
                text(acl["host"]),
                Operation(Operation.of_title(text(acl["operation"]))),
                PermissionType(PermissionType.of_title(text(acl["permissionType"]))),
            )
            for acl in map(mapping, array(fields["acls"]))
        )


def encode_notice(resource: Resource) -> bytes:
    """Return the data of a notice that the ACLs of a resource have changed."""
    if resource.pattern_type is PatternType.LITERAL:
        return f"{resource.resource_type.title}:{resource.name}".encode()
    return encode_object(
        {
            "version": _VERSION,
            "resourceType": resource.resource_type.name,
            "name": resource.name,
            "patternType": resource.pattern_type.name,
        }
    )


def decode_notice(path: str, data: bytes) -> Resource:
    """Return the resource that a notice at this path is about. Raises MalformedNode."""
    if path.startswith(f"{EXTENDED_CHANGES}/"):
        fields = decode_object(path, data)
        with reading(path, data):
            return Resource(
                _type_of(text(fields["resourceType"])), PatternType[text(fields["patternType"])], text(fields["name"])
            )
    with reading(path, data):
        kind, colon, name = data.decode("utf-8").partition(":")
        if not colon or not name:
            raise ValueError("not of the form TYPE:NAME")
        return Resource(_type_of(kind), PatternType.LITERAL, name)
    raise MalformedNode(path)


def _type_of(name: str) -> ResourceType:
    """Return the type of a name, which tools write as Topic, TOPIC or TransactionalId."""
    return ResourceType(ResourceType.of_title(name.replace("_", "")))


def is_notice(name: str) -> bool:
    """Whether a node of this name is a notice: a sequence node, whose name ends with ten digits."""
    digits = name.removeprefix(NOTICE_PREFIX)
    return digits != name and len(digits) == _DIGITS and digits.isascii() and digits.isdigit()
