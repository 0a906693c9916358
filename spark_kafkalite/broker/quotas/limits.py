"""Which quotas there are, for which entities, and which of them is a client's. Pure.

An entity is a user, a client id, both together, or an address (``ip``); ``None`` as a name stands for all that have no
quota of their own. As in Kafka, each kind of quota is looked for by itself, and the first of these that has it holds:

1. the user with the client id
2. the user with the default client id
3. the user
4. the default user with the client id
5. the default user with the default client id
6. the default user
7. the client id
8. the default client id

Where the entity names a client id, each client id (of each user) has an allowance of its own. Where it names a user
alone, all connections of that user share one.

Only quotas that are enforced are known. ``controller_mutation_rate`` is not: it is refused, and ignored with a warning
where another program has stored it.

Source: org.apache.kafka.server.quota.ClientQuotaManager.DefaultQuotaCallback,
org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.addresses import plain_address
from spark_kafkalite.errors import InvalidRequest
from spark_kafkalite.registry.entity_nodes import CLIENTS, IPS, USERS, desanitized, sanitized
from spark_kafkalite.registry.znodes import DEFAULT_ENTITY

_LOG = logging.getLogger(__name__)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

_MOST_LONG: Final = 2**63 - 1
_MOST_INT: Final = 2**31 - 1
# The largest value of each quota's type in Kafka; None: a fraction is possible.
_CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: _MOST_LONG,
    CONSUMER_BYTE_RATE: _MOST_LONG,
    REQUEST_PERCENTAGE: None,
}
_IP_KEYS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: _MOST_INT}
# How far from a whole number a value may be that is meant to be one.
_ROUNDED_OFF: Final = 1e-6
_TYPE_NAMES: Final = {_MOST_LONG: "a LONG", _MOST_INT: "an INT"}
_NOT_ENFORCED: Final = {
    "controller_mutation_rate": "this broker does not limit the creation and deletion of topics, so it stores no quota "
    "for it",
}
# A node's path has the name at three times its length at most.
MOST_NAME_CHARS: Final = 1000

# Of an entity: each type that it names, with the name or None for the default.
Entity = Mapping[str, str | None]


class FoundQuota(NamedTuple):
    """A client's quota of one kind: its value, and the users and client ids that share the allowance."""

    bound: float
    user: str
    client_id: str


def checked_entity(parts: Sequence[tuple[str, str | None]]) -> Entity:
    """Return the entity that pairs of type and name make. Raises InvalidRequest, with Kafka's words."""
    entity: dict[str, str | None] = {}
    for kind, name in parts:
        if kind in entity:
            raise InvalidRequest(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in ENTITY_TYPES:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}; known are {', '.join(ENTITY_TYPES)}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported; null stands for the default")
        if name is not None and len(name) > MOST_NAME_CHARS:
            raise InvalidRequest(f"{kind}: the name has {len(name)} characters, at most {MOST_NAME_CHARS} are possible")
        entity[kind] = name
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    if IP in entity:
        if len(entity) > 1:
            raise InvalidRequest(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        name = entity[IP]
        if name is not None:
            try:
                entity[IP] = entity_address(name)
            except ValueError:
                raise InvalidRequest(
                    f"{name} is not a valid IP or resolvable host. Give an IP address: this broker resolves no names"
                ) from None
    return entity


def entity_address(host: str) -> str:
    """Return an address as entities have it, without its scope. Raises ValueError for what is none."""
    return plain_address(host.partition("%")[0])


def value_text(entity: Entity, key: str, value: float) -> str:
    """Return a quota as it is stored. Raises InvalidRequest for a key that the entity cannot have, or a bad value."""
    known = _IP_KEYS if IP in entity else _CLIENT_KEYS
    if key in _NOT_ENFORCED and IP not in entity:
        raise InvalidRequest(f"Invalid configuration key {key}: {_NOT_ENFORCED[key]}")
    if key not in known:
        raise InvalidRequest(f"Invalid configuration key {key}; known here are {', '.join(known)}")
    if not value > 0:
        raise InvalidRequest(f"Quota {key} must be greater than 0, but it is {value:g}; remove it to have no limit")
    most = known[key]
    if most is None:
        if math.isinf(value):
            raise InvalidRequest(f"Quota {key} must be finite; remove it to have no limit")
        return repr(float(value))
    if value > float(most):
        raise InvalidRequest(
            f"Proposed value for {key} is too large for {_TYPE_NAMES[most]}: {value:g}, at most {most} is possible"
        )
    whole = int(value + _ROUNDED_OFF)
    if abs(value - whole) > _ROUNDED_OFF:
        raise InvalidRequest(f"{key} cannot be a fractional value, but it is {value}")
    if whole < 1:
        raise InvalidRequest(f"Quota {key} must be at least 1, but it is {value:g}; remove it to have no limit")
    return str(min(whole, most))


# Entity paths ---------------------------------------------------------------------------------------------------------


def entity_path(entity: Entity) -> str:
    """Return the entity path under which an entity's quotas are stored (``registry.entity_nodes``)."""
    if IP in entity:
        return f"{IPS}/{_stored(entity[IP])}"
    parts = []
    if USER in entity:
        parts += [USERS, _stored(entity[USER])]
    if CLIENT_ID in entity:
        parts += [CLIENTS, _stored(entity[CLIENT_ID])]
    return "/".join(parts)


def entity_of(path: str) -> Entity | None:
    """Return the entity of an entity path, None for a path that is none's."""
    parts = path.split("/")
    if len(parts) % 2 or "" in parts:
        return None
    names = {kind: _said(name) for kind, name in zip(parts[::2], parts[1::2], strict=True)}
    match parts[::2]:
        case ["users"]:
            return {USER: names[USERS]}
        case ["users", "clients"]:
            return {USER: names[USERS], CLIENT_ID: names[CLIENTS]}
        case ["clients"]:
            return {CLIENT_ID: names[CLIENTS]}
        case ["ips"]:
            return {IP: names[IPS]}
    return None


def _stored(name: str | None) -> str:
    if name is None:
        return DEFAULT_ENTITY
    # A part of a path must not be "." or "..".
    return name.replace(".", "%2E") if name in (".", "..") else sanitized(name)


def _said(name: str) -> str | None:
    return None if name == DEFAULT_ENTITY else desanitized(name)


# The table ------------------------------------------------------------------------------------------------------------


class QuotaLimits:
    """The quotas of all entities, by entity path."""

    def __init__(self) -> None:
        self._quotas: dict[str, Mapping[str, float]] = {}
        self._addresses = 0

    def take(self, path: str, config: Mapping[str, str]) -> bool:
        """Take up the settings of an entity, of which some may be no quotas; return whether quotas have changed."""
        found = {key: value for key, text in config.items() if (value := _usable(path, key, text)) is not None}
        if found == self._quotas.get(path, {}):
            return False
        is_address = path.startswith(f"{IPS}/")
        if self._quotas.pop(path, None) is not None:
            self._addresses -= is_address
        if found:
            self._quotas[path] = found
            self._addresses += is_address
        return True

    @property
    def all(self) -> Mapping[str, Mapping[str, float]]:
        """The quotas that there are, by entity path."""
        return self._quotas

    @property
    def clients_have_some(self) -> bool:
        """Whether anything limits users or client ids."""
        return len(self._quotas) > self._addresses

    @property
    def addresses_have_some(self) -> bool:
        """Whether anything limits the connections of an address."""
        return self._addresses > 0

    def of_client(self, kind: str, user: str, client_id: str) -> FoundQuota | None:
        """Return the quota of one kind that holds for a user's client id, None if there is none."""
        whose, which = _stored(user), _stored(client_id)
        for path, sharing_user, sharing_client in (
            (f"{USERS}/{whose}/{CLIENTS}/{which}", user, client_id),
            (f"{USERS}/{whose}/{CLIENTS}/{DEFAULT_ENTITY}", user, client_id),
            (f"{USERS}/{whose}", user, ""),
            (f"{USERS}/{DEFAULT_ENTITY}/{CLIENTS}/{which}", user, client_id),
            (f"{USERS}/{DEFAULT_ENTITY}/{CLIENTS}/{DEFAULT_ENTITY}", user, client_id),
            (f"{USERS}/{DEFAULT_ENTITY}", user, ""),
            (f"{CLIENTS}/{which}", "", client_id),
            (f"{CLIENTS}/{DEFAULT_ENTITY}", "", client_id),
        ):
            bound = self._quotas.get(path, {}).get(kind)
            if bound is not None:
                return FoundQuota(bound, sharing_user, sharing_client)
        return None

    def of_address(self, address: str) -> float | None:
        """Return how many connections a second an address may open, None for any number."""
        for name in (sanitized(address), DEFAULT_ENTITY):
            bound = self._quotas.get(f"{IPS}/{name}", {}).get(CONNECTION_CREATION_RATE)
            if bound is not None:
                return bound
        return None


def _usable(path: str, key: str, text: str) -> float | None:
    """Return a stored quota's value, None for what is no quota or cannot be enforced."""
    entity = entity_of(path)
    if entity is None:
        return None
    if key in _NOT_ENFORCED:
        _LOG.warning("ignoring %s of %s: %s", key, path, _NOT_ENFORCED[key])
        return None
    if key not in (_IP_KEYS if IP in entity else _CLIENT_KEYS):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        _LOG.error("ignoring %s=%s of %s: it is not a number from 0 on", key, text, path)
        return None
    return value
