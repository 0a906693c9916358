"""The embedded registry's data tree: nodes, versions, ephemerals, sessions, watches. Pure: no I/O, threads or clock.

One owner calls it, with the transaction's number (zxid) and the wall time as arguments; a zxid is larger than every one
before. A transaction that raises has changed nothing, also in the middle of a multi (each step leaves an undo entry).
What must be persisted is collected in ``touched``, the watches that fired in ``fired``; the owner drains both with
:meth:`Tree.drain` after each transaction and lets the events out only when the transaction is safe on disk. It then
calls :meth:`Tree.settle`; or :meth:`Tree.roll_back`, when the disk had no room, and all that was done since the last
settling has not happened.

Child counters: a node counts its children's *creations*; ZooKeeper's ``cversion`` (creations and deletions) is
``2 * creations - children``, and the next sequential name takes the number of creations. So both only grow, also when
the ephemeral children of a dead process are simply not there at the next load.
Source: org.apache.zookeeper.server.DataTree, DataNode.copyStat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_kafkalite.registry import store
from spark_kafkalite.registry.store import (
    ANY_VERSION,
    BadVersion,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    Stat,
    Watcher,
    WatchEvent,
    parent_of,
)


@dataclass(slots=True)
class Node:
    """One node. ``ephemeral_owner`` is 0 for a persistent one; ``child_creations`` never falls."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int = 0
    child_creations: int = 0
    ephemeral_owner: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            cversion=2 * self.child_creations - len(self.children),
            aversion=0,
            ephemeral_owner=self.ephemeral_owner,
            data_length=len(self.data),
            num_children=len(self.children),
            pzxid=self.pzxid,
        )


# A watch as its table keeps it: the session that left it, and what to call. A dict serves as an ordered set.
_Watch = tuple[int, Watcher]
_WatchTable = dict[str, dict[_Watch, None]]


class Tree:
    """All nodes by path, sessions with their ephemerals, and the watches left on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0, 0)}
        self.sessions: dict[int, set[str]] = {}
        self._data_watches: _WatchTable = {}
        self._child_watches: _WatchTable = {}
        self._touched: set[str] = set()
        self._fired: list[tuple[Watcher, WatchEvent]] = []
        # What takes back the steps of the transaction under way, and everything since the last settle.
        self._undo: list[Callable[[], None]] = []
        self._unsettled: list[Callable[[], None]] = []

    def load(self, path: str, node: Node) -> None:
        """Put back a persisted node; parents must be loaded before their children."""
        self.nodes[path] = node
        if path != "/":
            parent = self.nodes.get(parent_of(path))
            if parent is None:
                raise NoNode(f"registry node {path} was stored without its parent", path)
            parent.children.add(path.rpartition("/")[2])

    def drain(self) -> tuple[set[str], list[tuple[Watcher, WatchEvent]]]:
        """Give and forget the paths changed and the watches fired since the last call."""
        touched, fired = self._touched, self._fired
        self._touched, self._fired = set(), []
        return touched, fired

    def settle(self) -> None:
        """Keep what has been done: it is on disk."""
        self._unsettled.clear()

    def roll_back(self) -> None:
        """Take back everything since the last settle: nodes, sessions, and watches that have fired."""
        for undo in reversed(self._unsettled):
            undo()
        self._unsettled.clear()
        self.drain()

    # Reads ----------------------------------------------------------------------------------------------------------

    def get(self, path: str, session_id: int = 0, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        node = self._existing(path)
        if watch is not None:
            _add_watch(self._data_watches, path, session_id, watch)
        return node.data, node.stat()

    def exists(self, path: str, session_id: int = 0, watch: Watcher | None = None) -> Stat | None:
        store.check_path(path)
        if watch is not None:
            _add_watch(self._data_watches, path, session_id, watch)
        node = self.nodes.get(path)
        return None if node is None else node.stat()

    def children(self, path: str, session_id: int = 0, watch: Watcher | None = None) -> list[str]:
        node = self._existing(path)
        if watch is not None:
            _add_watch(self._child_watches, path, session_id, watch)
        return sorted(node.children)

    # Transactions ---------------------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation], session_id: int, zxid: int, now_ms: int) -> list[Any]:
        """Do all operations under one zxid, or none: then the error of the first refused one is raised."""
        fired_before, touched_before = len(self._fired), set(self._touched)
        results: list[Any] = []
        triggers: list[tuple[EventType, str]] = []
        try:
            for index, operation in enumerate(operations):
                try:
                    results.append(self._apply_one(operation, session_id, zxid, now_ms, triggers))
                except NodeError as error:
                    error.operation_index = index
                    raise
        except NodeError:
            for undo in reversed(self._undo):
                undo()
            del self._fired[fired_before:]
            self._touched = touched_before
            self._undo.clear()
            raise
        self._unsettled += self._undo
        self._undo.clear()
        for event_type, path in triggers:
            self._trigger(event_type, path)
        return results

    def missing_parents(self, path: str) -> list[Operation]:
        """Return the operations that create the parents that ``path`` lacks, outermost first."""
        store.check_path(path)
        missing: list[Operation] = []
        parent = parent_of(path)
        while parent not in self.nodes:
            missing.append(Create(parent))
            parent = parent_of(parent)
        return missing[::-1]

    def open_session(self, session_id: int) -> None:
        self.sessions[session_id] = set()
        self._unsettled.append(lambda: self._forget_session(session_id))

    def _forget_session(self, session_id: int) -> None:
        self.sessions.pop(session_id, None)

    def close_session(self, session_id: int, zxid: int, now_ms: int) -> None:
        """Forget the session and its watches and remove its ephemeral nodes, as one transaction."""
        ephemerals = self.sessions.get(session_id)
        if ephemerals is None:
            return
        self.drop_watches(session_id)
        self.apply([Delete(path) for path in sorted(ephemerals)], session_id, zxid, now_ms)
        del self.sessions[session_id]
        # Before those of the deletions, which put the paths back into the same set.
        self._unsettled.append(lambda: self.sessions.__setitem__(session_id, ephemerals))

    def drop_watches(self, session_id: int) -> None:
        """Forget the watches that a session left."""
        for table in (self._data_watches, self._child_watches):
            for path in list(table):
                dropped = {watch: None for watch in table[path] if watch[0] == session_id}
                if not dropped:
                    continue
                self._unsettled.append(partial(_restore_watches, table, path, dropped))
                kept = {watch: None for watch in table[path] if watch[0] != session_id}
                if kept:
                    table[path] = kept
                else:
                    del table[path]

    # Single steps: each checks first, then changes, and says how to undo it -------------------------------------------

    def _apply_one(
        self, operation: Operation, session_id: int, zxid: int, now_ms: int, triggers: list[tuple[EventType, str]]
    ) -> Any:
        if isinstance(operation, Create):
            return self._create(operation, session_id, zxid, now_ms, triggers)
        node = self._existing(operation.path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(
                f"registry node {operation.path} has version {node.version}, not {operation.version}", operation.path
            )
        if isinstance(operation, SetData):
            return self._set(operation, node, zxid, now_ms, triggers)
        if isinstance(operation, Delete):
            self._delete(operation.path, node, zxid, triggers)
        return None

    def _create(
        self, operation: Create, session_id: int, zxid: int, now_ms: int, triggers: list[tuple[EventType, str]]
    ) -> str:
        path = operation.path
        # A sequential path may end with '/': the number is then the whole name.
        store.check_path(path + "0" if operation.sequential else path)
        _check_data(path, operation.data)
        parent_path = parent_of(path)
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise NoNode(f"cannot create registry node {path}: its parent does not exist", path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(f"cannot create registry node {path}: its parent is ephemeral", path)
        if operation.sequential:
            path = f"{path}{parent.child_creations:010d}"
        if path in self.nodes:
            raise NodeExists(f"registry node {path} exists", path)
        owner = session_id if operation.ephemeral else 0
        old_pzxid = parent.pzxid
        name = path.rpartition("/")[2]
        self.nodes[path] = Node(bytes(operation.data), zxid, zxid, zxid, now_ms, now_ms, ephemeral_owner=owner)
        parent.children.add(name)
        parent.child_creations += 1
        parent.pzxid = zxid
        if owner:
            self.sessions[owner].add(path)

        def undo() -> None:
            del self.nodes[path]
            parent.children.discard(name)
            parent.child_creations -= 1
            parent.pzxid = old_pzxid
            if owner:
                self.sessions[owner].discard(path)

        self._undo.append(undo)
        self._touched.update((path, parent_path))
        triggers += ((EventType.CREATED, path), (EventType.CHILDREN_CHANGED, parent_path))
        return path

    def _set(
        self, operation: SetData, node: Node, zxid: int, now_ms: int, triggers: list[tuple[EventType, str]]
    ) -> Stat:
        _check_data(operation.path, operation.data)
        old = (node.data, node.version, node.mzxid, node.mtime)
        node.data, node.mzxid, node.mtime = bytes(operation.data), zxid, now_ms
        node.version += 1

        def undo() -> None:
            node.data, node.version, node.mzxid, node.mtime = old

        self._undo.append(undo)
        self._touched.add(operation.path)
        triggers.append((EventType.DATA_CHANGED, operation.path))
        return node.stat()

    def _delete(self, path: str, node: Node, zxid: int, triggers: list[tuple[EventType, str]]) -> None:
        if path == "/":
            raise store.BadArguments("the registry's root cannot be deleted", path)
        if node.children:
            raise NotEmpty(f"registry node {path} has {len(node.children)} children", path)
        parent_path = parent_of(path)
        parent = self.nodes[parent_path]
        old_pzxid = parent.pzxid
        name = path.rpartition("/")[2]
        owned = self.sessions.get(node.ephemeral_owner) if node.ephemeral_owner else None
        del self.nodes[path]
        parent.children.discard(name)
        parent.pzxid = zxid
        if owned is not None:
            owned.discard(path)

        def undo() -> None:
            self.nodes[path] = node
            parent.children.add(name)
            parent.pzxid = old_pzxid
            if owned is not None:
                owned.add(path)

        self._undo.append(undo)
        self._touched.update((path, parent_path))
        triggers += ((EventType.DELETED, path), (EventType.CHILDREN_CHANGED, parent_path))

    # Watches ----------------------------------------------------------------------------------------------------------

    def _trigger(self, event_type: EventType, path: str) -> None:
        watches: Iterable[_Watch]
        if event_type is EventType.CHILDREN_CHANGED:
            watches = self._taken(self._child_watches, path)
        elif event_type is EventType.DELETED:
            # A watcher that left both kinds hears of the deletion once.
            watches = {**self._taken(self._data_watches, path), **self._taken(self._child_watches, path)}
        else:
            watches = self._taken(self._data_watches, path)
        event = WatchEvent(event_type, path)
        self._fired.extend((watcher, event) for _, watcher in watches)

    def _taken(self, table: _WatchTable, path: str) -> dict[_Watch, None]:
        watches = table.pop(path, None)
        if watches is None:
            return {}
        self._unsettled.append(partial(_restore_watches, table, path, watches))
        return watches

    def _existing(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            store.check_path(path)
            raise NoNode(f"registry node {path} does not exist", path)
        return node


def _add_watch(table: _WatchTable, path: str, session_id: int, watch: Watcher) -> None:
    table.setdefault(path, {})[session_id, watch] = None


def _restore_watches(table: _WatchTable, path: str, watches: dict[_Watch, None]) -> None:
    table[path] = {**watches, **table.get(path, {})}


def _check_data(path: str, data: bytes) -> None:
    if len(data) > store.MAX_DATA_BYTES:
        raise store.BadArguments(
            f"registry node {path}: {len(data)} bytes of data are more than {store.MAX_DATA_BYTES}", path
        )
