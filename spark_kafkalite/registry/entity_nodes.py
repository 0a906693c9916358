"""Paths and payloads of the settings of users, client ids and addresses, and of the notices of their changes. Pure.

As in Apache Kafka with ZooKeeper:

================================  ============================================================================
path                              data
================================  ============================================================================
/config/users/U                   version 1: config. A user's SCRAM credentials (``SCRAM-SHA-256``,
                                  ``SCRAM-SHA-512``) and its quotas
/config/users/U/clients/C         version 1: config. Quotas of one user with one client id
/config/clients/C, /config/ips/A  version 1: config. Quotas
/config/changes/config_change_N   version 2: entity_path, such as ``users/U``; a sequence node for each change
================================  ============================================================================

Names are written as in a URL's query with ``%20`` for a blank, so that they have no slash; ``<default>`` is the entity
that stands for all of a kind. An *entity path* is a path without ``/config/``.

Nodes of entities and notices are private: they are made for a session that has authenticated, and only that identity
reads them. A session that has not (``zookeeper.digest``) makes a node that all clients of the registry can read.
Source: kafka.server.ConfigEntityName, org.apache.kafka.common.utils.Sanitizer, kafka.zk.ZkData.sensitiveRootPaths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from spark_kafkalite.registry.node_json import MalformedNode, decode_object, encode_object, number, reading, text
from spark_kafkalite.registry.znodes import CONFIG_CHANGES, DEFAULT_ENTITY, decode_config_node

CONFIG_ROOT: Final = "/config"
USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
NOTICE_PREFIX: Final = "config_change_"
# Of this broker's own making, from which it takes the salts of users that do not exist.
DECOY_SECRET: Final = "/kafkalite/scram_decoy_secret"

_VERSION: Final = 1
_NOTICE_VERSION: Final = 2
# The roots of what is private.
ROOTS: Final = tuple(f"{CONFIG_ROOT}/{kind}" for kind in (USERS, CLIENTS, IPS))
_PRIVATE: Final = (*(f"{root}/" for root in ROOTS), f"{CONFIG_CHANGES}/{NOTICE_PREFIX}")


def sanitized(name: str) -> str:
    """Return a name in the form for a path. Source: Sanitizer.sanitize."""
    return quote(name, safe="-_.").replace("~", "%7E")


def desanitized(name: str) -> str:
    """Return the name that this form in a path is of."""
    return unquote(name)


def user_entity(user: str) -> str:
    """Return the entity path of a user."""
    return f"{USERS}/{sanitized(user)}"


def user_of_entity(entity: str) -> str | None:
    """Return the user whose own node an entity path names, None for another kind of entity."""
    kind, _, name = entity.partition("/")
    if kind != USERS or not name or "/" in name or name == DEFAULT_ENTITY:
        return None
    return desanitized(name)


def entity_node(entity: str) -> str:
    """Return the node of an entity path."""
    return f"{CONFIG_ROOT}/{entity}"


def is_private(path: str) -> bool:
    """Return whether a node is for brokers alone: those of entities with their parents, the notices of their changes,
    and the secret for decoys."""
    return f"{path}/".startswith(_PRIVATE) or path == DECOY_SECRET


def decode_settings(path: str, data: bytes) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return an entity's settings, and the fields of its node that are not known.

    A node without data has none: a user has one above the quotas of its client ids. Raises MalformedNode. Its text has
    no part of the data, which may be of a credential.
    """
    if not data:
        return {}, {}
    try:
        fields = decode_object(path, data)
        with reading(path, data):
            number(fields.get("version"), _VERSION, _VERSION)
        return decode_config_node(path, data)
    except MalformedNode:
        raise MalformedNode(
            f"registry node {path} holds {len(data)} bytes that are not the settings of an entity in version {_VERSION}"
        ) from None


def encode_notice(entity: str) -> bytes:
    """Return the data of a notice that an entity's settings have changed."""
    return encode_object({"version": _NOTICE_VERSION, "entity_path": entity})


def decode_notice(name: str, data: bytes) -> str:
    """Return the entity path in a notice of this name. Raises MalformedNode.

    Version 1, which old tools write, has entity_type and entity_name instead.
    """
    path = f"{CONFIG_CHANGES}/{name}"
    fields = decode_object(path, data)
    with reading(path, data):
        if fields.get("version") == 1:
            return f"{text(fields['entity_type'])}/{text(fields['entity_name'])}"
        return text(fields["entity_path"])


def is_notice(name: str) -> bool:
    """Whether a node of this name is a notice: a sequence node, whose name ends with digits."""
    digits = name.removeprefix(NOTICE_PREFIX)
    return digits != name and digits.isascii() and digits.isdigit()
