"""The settings of users, client ids and addresses, kept current through Kafka's notices in ``/config/changes``.

Every change leaves a notice (``config_nodes``), which ``notice_watch`` follows. The settings outlive the session: while
the registry is unavailable, the last known ones hold. They are written again if the node above all of a kind was
removed. If a node cannot be read, its user has no credential any more, whatever the node held before: another program
may have written there that the user is gone. Quotas stay as they are known.

Lives in one event loop. A listener receives the entity path (``registry.entity_nodes``) and its settings, which are
empty when the entity has none any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry import entity_nodes, znodes
from spark_kafkalite.registry.cluster.notice_watch import NoticeWatch, each
from spark_kafkalite.registry.config_nodes import alter_entity
from spark_kafkalite.registry.entity_nodes import CLIENTS, IPS, USERS
from spark_kafkalite.registry.guarded_nodes import guard_parents, make_private
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    NodeExists,
    NoNode,
    SessionExpired,
    Store,
    answer,
)
from spark_kafkalite.security.scram import SCRAM_HASHES

_LOG = logging.getLogger(__name__)

# Nodes that are read at the same time.
_AT_ONCE: Final = 32

EntityListener = Callable[[str, Mapping[str, str]], None]


class EntityConfigs:
    """See the module's text."""

    def __init__(self) -> None:
        # By entity path; none is empty.
        self._configs: dict[str, Mapping[str, str]] = {}
        self._listeners: list[EntityListener] = []
        # Those whose nodes cannot be read, with the reason that is in the log.
        self._unreadable: dict[str, str] = {}
        # As NoticeWatch takes them.
        self.roots = dict.fromkeys(entity_nodes.ROOTS, 0)

    def add_listener(self, listener: EntityListener) -> None:
        """Have ``listener`` called with each entity whose settings have changed."""
        self._listeners.append(listener)

    def config(self, entity: str) -> Mapping[str, str]:
        """Return the settings of an entity path; empty where it has none."""
        return self._configs.get(entity, {})

    def entities(self) -> Iterable[str]:
        """Return the entity paths that have settings."""
        return self._configs.keys()

    async def follow(self, store: Store) -> EntityWatch:
        """Read everything in a new session, and follow its changes until the result is closed. Raises RegistryError."""
        watch = EntityWatch(store, self)
        try:
            await watch.start()
        except (ConnectionLoss, SessionExpired):
            raise
        except RegistryError as error:
            raise RegistryError(
                f"the settings of users in the registry ({entity_nodes.entity_node(USERS)}) cannot be read: {error}; "
                "all brokers need the same zookeeper.digest"
            ) from error
        return watch

    def take(self, entity: str, config: Mapping[str, str]) -> None:
        """Take up what an entity's node holds, nothing where there is none."""
        self._put(entity, config)
        if self._unreadable.pop(entity, None) is not None:
            _LOG.info("the settings of %s can be read again, and hold", entity)

    def _put(self, entity: str, config: Mapping[str, str]) -> None:
        if config == self._configs.get(entity, {}):
            return
        if config:
            self._configs[entity] = config
        else:
            del self._configs[entity]
        for listener in self._listeners:
            try:
                listener(entity, config)
            except Exception:
                _LOG.exception("a change of the settings of %s was not followed", entity)

    async def read(self, store: Store, entity: str) -> bool:
        """Read one entity's node again; return whether there may be nodes below it. Raises RegistryError."""
        path = entity_nodes.entity_node(entity)
        try:
            data, stat = await answer(store.get(path))
            self.take(entity, entity_nodes.decode_settings(path, data)[0])
        except NoNode:
            self.take(entity, {})
            return False
        except MalformedNode as malformed:
            self._seal(entity, malformed)
            return True
        return stat.num_children > 0

    def _seal(self, entity: str, malformed: MalformedNode) -> None:
        """Keep the quotas of an entity whose node cannot be read, and no credential. It is logged once."""
        known = self.config(entity)
        self._put(entity, {name: text for name, text in known.items() if name not in SCRAM_HASHES})
        if self._unreadable.get(entity) == str(malformed):
            return
        self._unreadable[entity] = str(malformed)
        quotas = "its quotas stay as they were" if self.config(entity) else "its quotas are the default ones"
        user = entity_nodes.user_of_entity(entity)
        if user is None:
            _LOG.error("%s: %s. Set the quotas again (kafkalite configs alter)", quotas, malformed)
        else:
            _LOG.error(
                "user %.100r cannot authenticate by SCRAM, and %s: %s. Set the password again (kafkalite users add), "
                "and the quotas that it had",
                user,
                quotas,
                malformed,
            )


class EntityWatch(NoticeWatch):
    """Follows the notices of one session."""

    def __init__(self, store: Store, configs: EntityConfigs) -> None:
        super().__init__(store, (znodes.CONFIG_CHANGES,), "all settings of users and clients", configs.roots)
        self._configs = configs

    async def make_nodes(self) -> None:
        await guard_parents(self._store)
        for path in (znodes.CONFIG_CHANGES, *entity_nodes.ROOTS):
            with contextlib.suppress(NodeExists):
                private = entity_nodes.is_private(path) and self._store.can_be_private
                await answer(self._store.create(path, private=private, make_parents=True))
        await make_private(self._store, entity_nodes.ROOTS)

    def is_notice(self, name: str) -> bool:
        return entity_nodes.is_notice(name)

    async def read_named(self, parent: str, notices: list[str]) -> None:
        named = await each(self._entity_of, notices, _AT_ONCE)
        await self._read(dict.fromkeys(entity for entity in named if entity is not None))

    async def _entity_of(self, name: str) -> str | None:
        """Return the entity that a notice names, None for one that is of topics or brokers."""
        try:
            data, _ = await answer(self._store.get(f"{znodes.CONFIG_CHANGES}/{name}"))
            entity = entity_nodes.decode_notice(name, data)
        except (NoNode, MalformedNode) as error:
            # It was removed before it was read, or says nothing: what it was about is not known.
            self.not_readable(error)
            return None
        return entity if entity.partition("/")[0] in (USERS, CLIENTS, IPS) else None

    async def write_again(self, root: str) -> int:
        entities = list(self._configs.entities())
        below = [entity for entity in entities if entity_nodes.entity_node(entity).startswith(f"{root}/")]

        async def write(entity: str) -> None:
            known = self._configs.config(entity)
            await alter_entity(self._store, entity, lambda old: old or known)

        await each(write, below, _AT_ONCE)
        return len(below)

    async def read_all(self) -> None:
        found: list[str] = []
        for kind in (USERS, CLIENTS, IPS):
            found += await self._children(kind)
        above = await self._read(found)
        below = await each(self._children, (f"{user}/{CLIENTS}" for user in above), _AT_ONCE)
        of_clients = [entity for entities in below for entity in entities]
        await self._read(of_clients)
        for gone in set(self._configs.entities()).difference(found, of_clients):
            self._configs.take(gone, {})

    async def _children(self, entity: str) -> list[str]:
        try:
            names = await answer(self._store.children(entity_nodes.entity_node(entity)))
        except NoNode:
            return []
        return [f"{entity}/{name}" for name in names]

    async def _read(self, entities: Iterable[str]) -> list[str]:
        """Read entities; return those users that have nodes below theirs."""
        read = list(entities)
        have_children = await each(partial(self._configs.read, self._store), read, _AT_ONCE)
        return [
            entity for entity, has in zip(read, have_children, strict=True) if has and entity.startswith(f"{USERS}/")
        ]
