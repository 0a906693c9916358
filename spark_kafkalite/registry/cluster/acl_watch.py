"""Keeps a broker's ACLs current through Kafka's notices.

There may be ten thousand ACLs, so their nodes have no watches. Every change leaves a notice (``acl_changes``), and one
watch on each of the two parents of notices is enough: the broker reads each new notice, and the node that it names. The
watches are set before anything is read, so no change is missed. In each new session, and after a connection was lost,
all nodes are read again.

The ACLs outlive the session: while the registry is unavailable, the last known ones hold. So do those of a node that
cannot be read.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from spark_kafkalite.acls import AccessControlEntry, PatternType, Resource, ResourceType
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry import acl_nodes
from spark_kafkalite.registry.acl_changes import make_base_nodes
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import NoNode, SessionState, Store, WatchEvent, answer, call_in_loop

_LOG = logging.getLogger(__name__)

# Nodes that are read at the same time.
_AT_ONCE: Final = 200
_PAUSE_S: Final = 0.05
# How long to wait after a read that failed, unless the session ends first.
_RETRY_S: Final = 1.0

T = TypeVar("T")
# Takes what the ACLs of a resource say, nothing where it has none.
Put = Callable[[Resource, Collection[AccessControlEntry]], None]


class AclFollower:
    """Where the ACLs go: ``put`` takes those of one resource, ``known`` gives the resources that have some."""

    def __init__(self, put: Put, known: Callable[[], Iterable[Resource]]) -> None:
        self.put = put
        self.known = known

    async def follow(self, store: Store) -> AclWatch:
        """Read all ACLs in a new session, and follow their changes until the result is closed. Raises RegistryError."""
        watch = AclWatch(store, self)
        try:
            await watch.start()
        except BaseException:
            watch.close()
            raise
        return watch


class AclWatch:
    """Follows the notices of one session."""

    def __init__(self, store: Store, acls: AclFollower) -> None:
        self._store = store
        self._acls = acls
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._must_reload = False
        # The name of the last notice that was taken up, of each kind. Names of ten digits are in the order of numbers.
        self._last = dict.fromkeys(PatternType, "")
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything, and begin to follow. Raises RegistryError."""
        await make_base_nodes(self._store)
        self._store.add_session_listener(self._state_changed)
        await self._reload()
        self._following = self._loop.create_task(self._follow())

    def close(self) -> None:
        """Stop to follow."""
        if self._following is not None:
            self._following.cancel()

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            call_in_loop(self._loop, self._read_all_again)

    def _read_all_again(self) -> None:
        self._must_reload = True
        self._changed.set()

    def _notified(self, _: WatchEvent) -> None:
        call_in_loop(self._loop, self._changed.set)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            # Each list names all notices of the last quarter of an hour: many changes in a row share one.
            await asyncio.sleep(_PAUSE_S)
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
                _LOG.warning("all ACLs are read again, because a read failed: %s", error)
                await self._try_later()
            except Exception:
                _LOG.exception("changes of ACLs were not taken up; all ACLs are read again")
                await self._try_later()

    async def _try_later(self) -> None:
        self._read_all_again()
        await asyncio.sleep(_RETRY_S)

    async def _new_notices(self, kind: PatternType) -> list[str]:
        """Return the names of a kind's notices since the last one, in order, and leave the next watch."""
        names = await answer(self._store.children(acl_nodes.CHANGES[kind], self._notified))
        # There may be thousands, which the last quarter of an hour has left: most are only compared.
        last = self._last[kind]
        return sorted(name for name in names if name > last and acl_nodes.is_notice(name))

    async def _read_notices(self) -> None:
        """Read again the resources that the notices since the last one name."""
        for kind in PatternType:
            new = await self._new_notices(kind)
            named = await _each(self._resource_of, [f"{acl_nodes.CHANGES[kind]}/{name}" for name in new])
            await _each(self._read, list(dict.fromkeys(each for each in named if each is not None)))
            if new:
                self._last[kind] = new[-1]

    async def _resource_of(self, path: str) -> Resource | None:
        """Return the resource that a notice names, None where that is not known; then everything is read again."""
        try:
            data, _ = await answer(self._store.get(path))
            return acl_nodes.decode_notice(path, data)
        except (NoNode, MalformedNode) as error:
            _LOG.warning("all ACLs are read again: %s", error)
            self._read_all_again()
            return None

    async def _reload(self) -> None:
        """Read everything. The notices come first: what is written from now on has a later one."""
        await answer(self._store.sync())
        notices = {kind: await self._new_notices(kind) for kind in PatternType}
        kinds = [(pattern, kind) for pattern in PatternType for kind in ResourceType]
        found = [each for resources in await _each(self._resources, kinds) for each in resources]
        await _each(self._read, found)
        for gone in set(self._acls.known()).difference(found):
            self._acls.put(gone, ())
        for kind, names in notices.items():
            if names:
                self._last[kind] = names[-1]

    async def _resources(self, kind: tuple[PatternType, ResourceType]) -> list[Resource]:
        pattern_type, resource_type = kind
        try:
            names = await answer(self._store.children(acl_nodes.type_path(pattern_type, resource_type)))
        except NoNode:
            return []
        return [Resource(resource_type, pattern_type, name) for name in names]

    async def _read(self, resource: Resource) -> None:
        path = acl_nodes.acl_path(resource)
        try:
            data, _ = await answer(self._store.get(path))
            self._acls.put(resource, acl_nodes.decode_acls(path, data))
        except NoNode:
            self._acls.put(resource, ())
        except MalformedNode as malformed:
            # Another program wrote it, so nothing is guessed.
            _LOG.error("the ACLs of %s stay as they were: %s", resource.name, malformed)


Item = TypeVar("Item")


async def _each(work: Callable[[Item], Awaitable[T]], items: Sequence[Item]) -> list[T]:
    """Return the results of some work on each item, in order; a bounded number is under way at a time."""
    results: list[T] = []
    for first in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*map(work, items[first : first + _AT_ONCE]))
    return results
