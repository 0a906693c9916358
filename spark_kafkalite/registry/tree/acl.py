"""Access control lists of the embedded tree, as ZooKeeper has them. Pure.

A list holds entries (permissions, scheme, id). Schemes: ``world`` (its one id is ``anyone``) and ``digest`` (the id is
``user:`` and the base64 of the SHA-1 of ``user:password``). A private node of the process whose registry it is has the
scheme ``process``, which no client proves. ``auth`` in a request stands for the ids that have
authenticated on the connection and is replaced before it is stored. Creating and deleting a node are permissions on its
*parent*, and nothing is inherited. Source: org.apache.zookeeper.server.ZooKeeperServer.checkACL,
DigestAuthenticationProvider.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, NamedTuple

from spark_kafkalite.registry.store import ANY_VERSION, Create, NodeError


class Permission(IntFlag):
    """ZooKeeper's bits."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class AclEntry(NamedTuple):
    """Permissions of one identity."""

    permissions: int
    scheme: str
    id: str


Acl = tuple[AclEntry, ...]
# What somebody has proved to be: (scheme, id).
Identity = tuple[str, str]

ANYONE: Final = ("world", "anyone")
OPEN_ACL: Final[Acl] = (AclEntry(Permission.ALL, *ANYONE),)
# What the process is whose registry it is. Clients are so only where they are its brokers (``registry.served.server``).
PROCESS: Final[Identity] = ("process", "owner")
PROCESS_ACL: Final[Acl] = (AclEntry(Permission.ALL, *PROCESS),)
# What that process alone changes, and others read.
GUARDED_ACL: Final[Acl] = (*PROCESS_ACL, AclEntry(Permission.READ, *ANYONE))
CREATOR_ACL: Final[Acl] = (AclEntry(Permission.ALL, "auth", ""),)


class InvalidAcl(NodeError):
    """The access control list is empty, or names a scheme or id that is none."""


@dataclass(frozen=True, slots=True)
class CreateWithAcl(Create):
    """Create a node with an access control list; ``with_stat`` makes the result a pair of path and stat."""

    acl: Acl = OPEN_ACL
    with_stat: bool = False


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Replace a node's access control list if that has this version (``Stat.aversion``)."""

    path: str
    acl: Acl
    version: int = ANY_VERSION


def allows(acl: Acl, permission: int, identities: Iterable[Identity]) -> bool:
    """Return whether one of the identities has one of the permissions."""
    if acl is OPEN_ACL:
        return True
    known = {ANYONE, *identities}
    return any(entry.permissions & permission and (entry.scheme, entry.id) in known for entry in acl)


def checked(acl: Iterable[AclEntry], identities: Iterable[Identity], path: str) -> Acl:
    """Return the list as it is stored: ``auth`` replaced, duplicates gone. Raises InvalidAcl."""
    entries: dict[AclEntry, None] = {}
    for entry in acl:
        if entry.scheme == "auth":
            own = [identity for identity in identities if identity[0] == "digest"]
            if not own:
                raise InvalidAcl(f"registry node {path}: an ACL of scheme auth needs an authenticated connection", path)
            entries.update((AclEntry(entry.permissions, *identity), None) for identity in own)
        elif (entry.scheme, entry.id) == ANYONE or (entry.scheme == "digest" and entry.id.count(":") == 1):
            entries[entry] = None
        else:
            raise InvalidAcl(
                f"registry node {path}: an ACL cannot name {entry.scheme}:{entry.id}; it may name world:anyone and "
                "digest:USER:HASH",
                path,
            )
    if not entries:
        raise InvalidAcl(f"registry node {path}: its ACL would be empty, so no client could use it", path)
    result = tuple(entries)
    return OPEN_ACL if result == OPEN_ACL else result


def masked(acl: Acl) -> Acl:
    """Return the list with the hashes of passwords hidden, for clients that may read but not administer."""
    return tuple(
        entry._replace(id=f"{entry.id.partition(':')[0]}:x") if entry.scheme == "digest" else entry for entry in acl
    )


def digest_identity(user_and_password: str) -> Identity:
    """Return the identity of ``user:password``."""
    digest = hashlib.sha1(user_and_password.encode(), usedforsecurity=False).digest()
    return "digest", f"{user_and_password.partition(':')[0]}:{base64.b64encode(digest).decode()}"


def to_text(acl: Acl) -> str | None:
    """Return the list as it is stored on disk; None is the open one."""
    return None if acl is OPEN_ACL else json.dumps(acl, separators=(",", ":"))


def from_text(text: str | None) -> Acl:
    """Return the list of a stored text."""
    if text is None:
        return OPEN_ACL
    return tuple(AclEntry(int(permissions), scheme, name) for permissions, scheme, name in json.loads(text))
