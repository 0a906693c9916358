"""The settings of users, client ids and addresses, kept current through Kafka's notices in ``/config/changes``.

There may be ten thousand users, so their nodes have no watches. Every change leaves a notice (``config_nodes``), and
one watch on the parent of the notices is enough: the broker reads each new notice and the node that it names. The
watch is set before anything is read, so no change is missed. In each new session, and after a connection was lost, all
nodes are read again.

The settings outlive the session: while the registry is unavailable, the last known ones hold.

Lives in one event loop. A listener receives the entity path (``registry.entity_nodes``) and its settings, which are
empty when the entity has none any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry import entity_nodes, znodes
from spark_kafkalite.registry.entity_nodes import CLIENTS, IPS, USERS
from spark_kafkalite.registry.guarded_nodes import guard_parents
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
    Store,
    WatchEvent,
    answer,
    call_in_loop,
)

_LOG = logging.getLogger(__name__)

# Nodes that are read at the same time.
_AT_ONCE: Final = 32
# How long to wait after a read that failed, unless the session ends first.
_RETRY_S: Final = 1.0

Item = TypeVar("Item")
EntityListener = Callable[[str, Mapping[str, str]], None]


class EntityConfigs:
    """See the module's text."""

    def __init__(self) -> None:
        # By entity path; none is empty.
        self._configs: dict[str, Mapping[str, str]] = {}
        self._listeners: list[EntityListener] = []

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
        """Take up what an entity's node holds."""
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
            # A user without settings of its own has an empty node above the quotas of its client ids.
            self.take(entity, znodes.decode_config(path, data) if data else {})
        except NoNode:
            self.take(entity, {})
            return False
        except MalformedNode as malformed:
            # What was known before stands: another program wrote it, so nothing is guessed.
            _LOG.error("ignoring the settings of %s: %s", entity, malformed)
            return True
        return stat.num_children > 0


class EntityWatch:
    """Follows the notices of one session."""

    def __init__(self, store: Store, configs: EntityConfigs) -> None:
        self._store = store
        self._configs = configs
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._must_reload = False
        # The notices that were taken up and are there. Not the largest number: any client may have chosen that.
        self._taken_up: frozenset[str] = frozenset()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything, and begin to follow. Raises RegistryError."""
        await guard_parents(self._store)
        for path in (znodes.CONFIG_CHANGES, *map(entity_nodes.entity_node, (USERS, CLIENTS, IPS))):
            with contextlib.suppress(NodeExists):
                private = entity_nodes.is_private(path) and self._store.can_be_private
                await answer(self._store.create(path, private=private, make_parents=True))
        self._store.add_session_listener(self._state_changed)
        await self._reload()
        self._following = self._loop.create_task(self._follow())

    def close(self) -> None:
        """Stop to follow."""
        if self._following is not None:
            self._following.cancel()

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            call_in_loop(self._loop, self._reconnected)

    def _reconnected(self) -> None:
        self._must_reload = True
        self._changed.set()

    def _notified(self, _: WatchEvent) -> None:
        call_in_loop(self._loop, self._changed.set)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._must_reload:
                    self._must_reload = False
                    await self._reload()
                else:
                    await self._read_notices()
            except RegistryError as error:
                if self._store.state is SessionState.LOST:
                    return
                _LOG.warning("the settings of users and clients are read again, because a read failed: %s", error)
                self._must_reload = True
                # While there is no connection nothing is tried: the next one wakes this.
                if self._store.state is SessionState.CONNECTED:
                    self._changed.set()
                    await asyncio.sleep(_RETRY_S)
            except Exception:
                _LOG.exception("changes of the settings of users and clients were not taken up; all are read again")
                self._reconnected()
                await asyncio.sleep(_RETRY_S)

    async def _notices(self) -> list[tuple[int, str]]:
        """Return numbers and names of all notices, in order, and leave the next watch."""
        names = await answer(self._store.children(znodes.CONFIG_CHANGES, self._notified))
        return sorted((number, name) for name in names if (number := entity_nodes.notice_number(name)) is not None)

    async def _read_notices(self) -> None:
        """Read again the entities that the notices since the last one name."""
        notices = await self._notices()
        new = [(number, name) for number, name in notices if name not in self._taken_up]
        entities: dict[str, None] = {}
        for part in _parts(new):
            for entity in await asyncio.gather(*(self._entity_of(name) for _, name in part)):
                if entity is not None:
                    entities[entity] = None
        await self._read(entities)
        self._taken_up = frozenset(name for _, name in notices)

    async def _entity_of(self, name: str) -> str | None:
        """Return the entity that a notice names, None for one that is of topics or brokers."""
        try:
            data, _ = await answer(self._store.get(f"{znodes.CONFIG_CHANGES}/{name}"))
            entity = entity_nodes.decode_notice(name, data)
        except (NoNode, MalformedNode) as error:
            # It was removed before it was read, or says nothing: what it was about is not known.
            _LOG.warning("all settings of users and clients are read again: %s", error)
            self._reconnected()
            return None
        return entity if entity.partition("/")[0] in (USERS, CLIENTS, IPS) else None

    async def _reload(self) -> None:
        """Read everything. The notices come first: what is written from now on has one with a larger number."""
        await answer(self._store.sync())
        notices = await self._notices()
        found: list[str] = []
        for kind in (USERS, CLIENTS, IPS):
            found += await self._children(kind)
        with_clients = await self._read(found)
        for part in _parts(with_clients):
            below = await asyncio.gather(*(self._children(f"{entity}/{CLIENTS}") for entity in part))
            names = [entity for entities in below for entity in entities]
            await self._read(names)
            found += names
        for gone in set(self._configs.entities()) - set(found):
            self._configs.take(gone, {})
        self._taken_up = frozenset(name for _, name in notices)

    async def _children(self, entity: str) -> list[str]:
        try:
            names = await answer(self._store.children(entity_nodes.entity_node(entity)))
        except NoNode:
            return []
        return [f"{entity}/{name}" for name in names]

    async def _read(self, entities: Iterable[str]) -> list[str]:
        """Read entities; return those users that have nodes below theirs."""
        above: list[str] = []
        for part in _parts(list(entities)):
            has_children = await asyncio.gather(*(self._configs.read(self._store, entity) for entity in part))
            above += [entity for entity, has in zip(part, has_children, strict=True) if has]
        return [entity for entity in above if entity.startswith(f"{USERS}/")]


def _parts(items: list[Item]) -> Iterable[list[Item]]:
    for first in range(0, len(items), _AT_ONCE):
        yield items[first : first + _AT_ONCE]
