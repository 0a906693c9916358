"""Declares the settings of the broker's authorizer, and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.settings import Setting

# Kafka's authorizers, with ZooKeeper and without. Either name is for the broker's own, which behaves as they do.
AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
_CLASS: Final = "authorizer.class.name"
_SUPER_USERS: Final = "super.users"

AUTHORIZATION_SETTINGS: Final = (
    Setting(
        _CLASS,
        "string",
        "",
        "Either of Kafka's two authorizers, which make no difference here: clients may do what ACLs allow. Empty: "
        "every client may do everything. Give all brokers of a cluster the same.",
        choices=("", *AUTHORIZERS),
    ),
    Setting(
        _SUPER_USERS,
        "string",
        "",
        "Principals that may do everything, TYPE:NAME with semicolons, such as User:admin;User:CN=ops,O=Example. The "
        "brokers of the cluster need not be named.",
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        "boolean",
        False,
        "Whether every client may use a resource to which no ACL applies.",
    ),
)


def super_users(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the principals in ``super.users``. Raises ConfigError."""
    names = [name.strip() for name in str(values[_SUPER_USERS]).split(";") if name.strip()]
    for name in names:
        kind, colon, user = name.partition(":")
        if not (kind and colon and user):
            raise ConfigError(
                f"{_SUPER_USERS}: {name!r} is not of the form TYPE:NAME, such as User:admin; several are separated by "
                "semicolons"
            )
    return frozenset(names)


def has_authorizer(values: Mapping[str, Any]) -> bool:
    """Return whether clients may do only what ACLs allow."""
    return bool(values[_CLASS])
