"""Follows Kafka's notices in one registry session: nodes that are read again because a notice names them.

There may be ten thousand nodes, so they have no watches. Every change of one leaves a notice, a sequence node below a
parent, and one watch on each parent is enough. The watches are set before anything is read, so no change is missed. In
each new session, after a connection was lost, and after a notice that cannot be read, all nodes are read again. Parents
that were removed are made again. So are the nodes below a root that was removed as a whole, from what this broker
knows: that is no way to delete all users or ACLs, and clients could not authenticate, or might do everything.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Final, TypeVar

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.cluster.registration import check_not_emptied
from spark_kafkalite.registry.store import NoNode, SessionState, Store, WatchEvent, answer, call_in_loop

_LOG = logging.getLogger(__name__)

# Each list names all notices of the last quarter of an hour: many changes in a row share one.
_PAUSE_S: Final = 0.05
# How long to wait after a read that failed, unless the session ends first.
_RETRY_S: Final = 1.0

Item = TypeVar("Item")
T = TypeVar("T")


class NoticeWatch(ABC):
    """Follows the notices below some parents. A subclass knows what notices look like, and what they name."""

    def __init__(self, store: Store, parents: Iterable[str], what: str, roots: dict[str, int]) -> None:
        """``what`` is all that notices are about, for the log: "all ACLs". ``roots`` has each node that all these stand
        below, and the creation zxid under which it was read last, 0 before the first time; it outlives the session."""
        self._store = store
        self._what = what
        self._roots = roots
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._must_reload = False
        # The notices that were taken up and still exist. Not the largest number: any client may have chosen that.
        self._taken_up: dict[str, frozenset[str]] = dict.fromkeys(parents, frozenset())
        self._following: asyncio.Task[None] | None = None

    @abstractmethod
    async def make_nodes(self) -> None:
        """Make the nodes that notices, and what they name, stand below, as far as they are missing."""

    @abstractmethod
    def is_notice(self, name: str) -> bool:
        """Whether a node of this name, below a parent, is a notice."""

    @abstractmethod
    async def read_all(self) -> None:
        """Read all nodes. Raises RegistryError."""

    @abstractmethod
    async def read_named(self, parent: str, notices: list[str]) -> None:
        """Read again the nodes that notices name. Raises RegistryError."""

    @abstractmethod
    async def write_again(self, root: str) -> int:
        """Write what is known of nodes below a root, as far as they are missing; return how many are known. Raises
        RegistryError."""

    async def start(self) -> None:
        """Read everything, and begin to follow. Raises RegistryError."""
        await self.make_nodes()
        self._store.add_session_listener(self._state_changed)
        await self._reload()
        self._following = self._loop.create_task(self._follow())

    def close(self) -> None:
        """Stop to follow."""
        if self._following is not None:
            self._following.cancel()

    def not_readable(self, error: Exception) -> None:
        """Have everything read again, because a notice does not name what has changed."""
        # Thousands of notices may have been removed at once.
        if not self._must_reload:
            _LOG.warning("%s are read again: %s", self._what, error)
        self._read_all_again()

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
                _LOG.warning("%s are read again, because a read failed: %s", self._what, error)
                self._must_reload = True
                # While there is no connection nothing is tried: the next one wakes this.
                if self._store.state is SessionState.CONNECTED:
                    self._changed.set()
                    await asyncio.sleep(_RETRY_S)
                    if isinstance(error, NoNode):
                        await self._make_nodes_again()
            except Exception:
                _LOG.exception("changes were not taken up; %s are read again", self._what)
                self._read_all_again()
                await asyncio.sleep(_RETRY_S)

    async def _make_nodes_again(self) -> None:
        """Make nodes again that were removed by hand; in a registry that was emptied nothing is made."""
        with contextlib.suppress(RegistryError):
            await check_not_emptied(self._store)
            await self.make_nodes()

    async def _notices(self) -> Mapping[str, list[str]]:
        """Return the names of all notices by parent, in order, and leave the next watches."""
        return {parent: await self._notices_below(parent) for parent in self._taken_up}

    async def _notices_below(self, parent: str) -> list[str]:
        names = await answer(self._store.children(parent, self._notified))
        return sorted(filter(self.is_notice, names))

    async def _read_notices(self) -> None:
        """Read again what the notices name that have not been taken up."""
        for parent, names in (await self._notices()).items():
            taken_up = self._taken_up[parent]
            new = [name for name in names if name not in taken_up]
            if new:
                await self.read_named(parent, new)
            self._taken_up[parent] = frozenset(names)

    async def _reload(self) -> None:
        """Read everything. The notices come first: what is written from now on has another one."""
        await answer(self._store.sync())
        notices = await self._notices()
        for root in self._roots:
            await self._check_root(root)
        await self.read_all()
        self._taken_up.update((parent, frozenset(names)) for parent, names in notices.items())

    async def _check_root(self, root: str) -> None:
        """Write the nodes below a root again if it is another one than was read last. Raises NoNode if it is gone."""
        stat = await answer(self._store.exists(root))
        if stat is None:
            raise NoNode(f"registry node {root} is gone", root)
        if self._roots[root] not in (0, stat.czxid) and (count := await self.write_again(root)):
            _LOG.warning(
                "registry node %s was removed with all below it, and the %d nodes there that this broker knows are "
                "written again; to remove what they hold use kafkalite users, acls or configs",
                root,
                count,
            )
        self._roots[root] = stat.czxid


async def each(work: Callable[[Item], Awaitable[T]], items: Iterable[Item], at_once: int) -> list[T]:
    """Return the results of some work on each item, in order; ``at_once`` are under way at a time."""
    results: list[T] = []
    left = iter(items)
    while part := list(islice(left, at_once)):
        results += await asyncio.gather(*map(work, part))
    return results
