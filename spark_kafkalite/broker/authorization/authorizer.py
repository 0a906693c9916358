"""Decides whether a client may do something, by the ACLs and by the settings, and remembers it for its session.

A handler asks ``exchange.may``, which asks the session's :class:`SessionRights`. Those of a broker without an
authorizer are None, and everything is allowed. What a session may do is remembered until an ACL changes
(:attr:`Authorizer.generation`) or the client authenticates as another principal. A question that was asked before costs
one look-up in a dict.

Brokers of the cluster may do everything. They are known by ``session.broker_id``, which they have proved, and never by
the name of their principal: a user may have the same name.

Source: kafka.security.authorizer.AclAuthorizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from spark_kafkalite.acls import CLUSTER_NAME, OPERATIONS, AccessControlEntry, Operation, Resource, ResourceType
from spark_kafkalite.broker.authorization.acl_table import AclTable, AclVerdict, host_text
from spark_kafkalite.broker.authorization.authorizer_log import AuthorizerLog

_DEBUG: Final = logging.DEBUG
# What one session remembers, at most: some 500 bytes each. A longer name is decided again each time: no topic can have
# it, and a client could fill the memory with names of 32 KiB that it makes up.
_MOST_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 255


class Authorizer:
    """Decides; owns the table of ACLs. Lives in one event loop."""

    def __init__(self, super_users: Collection[str] = (), *, allows_everyone: bool = False) -> None:
        """``super_users`` are principals, such as ``User:admin``. ``allows_everyone``: what has no ACL is open to all
        (``allow.everyone.if.no.acl.found``)."""
        self.acls = AclTable()
        # Grows with each change.
        self.generation = 0
        self.audit = AuthorizerLog()
        self._super_users = frozenset(super_users)
        self._allows_everyone = allows_everyone
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after each change."""
        self._listeners.append(listener)

    def put(self, resource: Resource, entries: Collection[AccessControlEntry]) -> None:
        """Replace the ACLs of a resource; they hold from now on."""
        if self.acls.put(resource, entries):
            self.generation += 1
            for listener in self._listeners:
                listener()

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> AclVerdict:
        """Decide about one resource; ``host`` as ``host_text`` gives it."""
        if principal in self._super_users:
            return AclVerdict(allowed=True)
        return self._settled(self.acls.decide(principal, host, operation, resource_type, name))

    def decide_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> AclVerdict:
        """Decide whether the principal may do this with any resource of the type, whatever its name."""
        if principal in self._super_users:
            return AclVerdict(allowed=True)
        return self._settled(self.acls.decide_any(principal, host, operation, resource_type))

    def _settled(self, verdict: AclVerdict) -> AclVerdict:
        return verdict._replace(allowed=self._allows_everyone) if verdict.is_open else verdict


class AuthenticatedClient(Protocol):
    """The other end of a connection, as far as rights depend on it; ``network.session.Session`` is one."""

    broker_id: int | None
    principal: str

    @property
    def client_host(self) -> str:
        """Its host, as Kafka writes it."""


class SessionRights:
    """What one session may do. Ask with ``exchange.may``, which names the API for the audit log."""

    __slots__ = ("_allowed", "_authorizer", "_generation", "_host", "_known", "_principal", "_session")

    def __init__(self, authorizer: Authorizer, session: AuthenticatedClient) -> None:
        self._authorizer = authorizer
        self._session = session
        self._host = host_text(session.client_host.removeprefix("/"))
        self._principal = session.principal
        self._generation = authorizer.generation
        # By operation, type and name; the name is None for "any".
        self._known: dict[tuple[Operation, ResourceType, str | None], AclVerdict] = {}
        # Those of them that are allowed.
        self._allowed: set[tuple[Operation, ResourceType, str | None]] = set()

    @property
    def is_unlimited(self) -> bool:
        """Whether the session may do everything: it is that of a broker."""
        return self._session.broker_id is not None

    def may(
        self,
        api_key: int,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None,
        *,
        is_probe: bool = False,
    ) -> bool:
        """Whether the client may do this. ``name`` None: with any resource of the type.

        ``is_probe``: another right may do as well, or what is denied is left out without an error. Then a denial is not
        written to the audit log.
        """
        # The path of every Produce and Fetch: two look-ups, and no call but this.
        authorizer = self._authorizer
        if (
            (operation, resource_type, name) in self._allowed
            and self._generation == authorizer.generation
            and self._principal is self._session.principal
            and authorizer.audit.logger.level > _DEBUG
        ):
            return True
        if self._session.broker_id is not None:
            return True
        verdict = self._decided(operation, resource_type, name)
        if not is_probe or verdict.allowed:
            authorizer.audit.write(self._principal, self._host, api_key, operation, resource_type, name, verdict)
        return verdict.allowed

    def _decided(self, operation: Operation, resource_type: ResourceType, name: str | None) -> AclVerdict:
        session, authorizer = self._session, self._authorizer
        is_stale = self._generation != authorizer.generation or self._principal is not session.principal
        if is_stale or len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
            self._allowed.clear()
            self._generation, self._principal = authorizer.generation, session.principal
        key = operation, resource_type, name
        verdict = self._known.get(key)
        if verdict is None:
            if name is None:
                verdict = authorizer.decide_any(self._principal, self._host, operation, resource_type)
            else:
                verdict = authorizer.decide(self._principal, self._host, operation, resource_type, name)
            if name is None or len(name) <= _LONGEST_REMEMBERED:
                self._known[key] = verdict
                if verdict.allowed:
                    self._allowed.add(key)
        return verdict

    def operations_on(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return all that the client may do with a resource as a set of bits, numbered by ``Operation``."""
        session, authorizer = self._session, self._authorizer
        everything = OPERATIONS[resource_type]
        if session.broker_id is not None:
            return sum(1 << operation for operation in everything)
        principal, host = session.principal, self._host
        return sum(
            1 << operation
            for operation in everything
            if authorizer.decide(principal, host, operation, resource_type, name).allowed
        )
