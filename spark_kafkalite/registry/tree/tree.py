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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_kafkalite.registry import store
from spark_kafkalite.registry.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoAuth,
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
from spark_kafkalite.registry.tree import acl as access
from spark_kafkalite.registry.tree.acl import OPEN_ACL, Acl, CreateWithAcl, Identity, Permission, SetAcl
from spark_kafkalite.registry.tree.watches import Watches, WatchKind


@dataclass(slots=True)
class DataNode:
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
    acl: Acl = OPEN_ACL
    aversion: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            cversion=2 * self.child_creations - len(self.children),
            aversion=self.aversion,
            ephemeral_owner=self.ephemeral_owner,
            data_length=len(self.data),
            num_children=len(self.children),
            pzxid=self.pzxid,
        )


@dataclass(frozen=True, slots=True)
class KeptSession:
    """What is stored of a session that outlives the process: what its client proves it by, and how long it lasts."""

    password: bytes
    timeout_ms: int


# An event to come, and the access control list that says who may hear of it.
_Trigger = tuple[EventType, str, Acl]


class Tree:
    """All nodes by path, sessions with their ephemerals, and the watches left on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, DataNode] = {"/": DataNode(b"", 0, 0, 0, 0, 0)}
        self.sessions: dict[int, set[str]] = {}
        # Who a session has proved to be. One that is not here is of this process and may do everything.
        self.identities: dict[int, set[Identity]] = {}
        # Sessions that are stored, with their ephemeral nodes; the others end with the process.
        self.kept: dict[int, KeptSession] = {}
        self.watches = Watches()
        self._touched: set[str] = set()
        self._touched_sessions: set[int] = set()
        self._fired: list[tuple[Watcher, WatchEvent]] = []
        # What takes back the steps of the transaction under way, and everything since the last settle.
        self._undo: list[Callable[[], None]] = []
        self._unsettled: list[Callable[[], None]] = []

    def load(self, path: str, node: DataNode) -> None:
        """Put back a persisted node; parents must be loaded before their children, sessions before their nodes."""
        self.nodes[path] = node
        if node.ephemeral_owner:
            if node.ephemeral_owner not in self.sessions:
                raise NoNode(f"registry node {path} was stored without its session {node.ephemeral_owner}", path)
            self.sessions[node.ephemeral_owner].add(path)
        if path != "/":
            parent = self.nodes.get(parent_of(path))
            if parent is None:
                raise NoNode(f"registry node {path} was stored without its parent", path)
            parent.children.add(path.rpartition("/")[2])

    def load_session(self, session_id: int, kept: KeptSession) -> None:
        """Put back a stored session; its client authenticates again."""
        self.sessions[session_id], self.identities[session_id], self.kept[session_id] = set(), set(), kept

    def drain_sessions(self) -> set[int]:
        """Give and forget the stored sessions that have come or gone since the last call."""
        touched, self._touched_sessions = self._touched_sessions, set()
        return touched

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
        self.drain_sessions()

    # Reads ----------------------------------------------------------------------------------------------------------

    def get(self, path: str, session_id: int = 0, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        node = self._readable(path, session_id)
        if watch is not None:
            self.watches.add(WatchKind.DATA, path, session_id, watch)
        return node.data, node.stat()

    def exists(self, path: str, session_id: int = 0, watch: Watcher | None = None) -> Stat | None:
        store.check_path(path)
        node = self.nodes.get(path)
        if node is not None:
            self.check_access(node, path, Permission.READ, session_id)
        if watch is not None:
            self.watches.add(WatchKind.DATA, path, session_id, watch)
        return None if node is None else node.stat()

    def children(self, path: str, session_id: int = 0, watch: Watcher | None = None) -> list[str]:
        node = self._readable(path, session_id)
        if watch is not None:
            self.watches.add(WatchKind.CHILDREN, path, session_id, watch)
        return sorted(node.children)

    def watch_tree(self, path: str, session_id: int, watch: Watcher) -> None:
        """Leave a watch on a path, which need not exist, and on everything below it."""
        store.check_path(path)
        self.watches.add(WatchKind.RECURSIVE, path, session_id, watch)

    def acl(self, path: str, session_id: int = 0) -> tuple[Acl, Stat]:
        """Return a node's access control list; without the ADMIN permission, passwords' hashes are hidden."""
        node = self._existing(path)
        self.check_access(node, path, Permission.READ | Permission.ADMIN, session_id)
        shown = node.acl if self._allows(node.acl, Permission.ADMIN, session_id) else access.masked(node.acl)
        return shown, node.stat()

    def count_below(self, path: str, session_id: int = 0) -> int:
        """Return the number of a node's descendants."""
        self._readable(path, session_id)
        prefix = path if path == "/" else path + "/"
        return sum(1 for other in self.nodes if other.startswith(prefix) and other != "/")

    def check_access(self, node: DataNode, path: str, permission: Permission, session_id: int) -> None:
        """Raise NoAuth unless the session has one of the permissions."""
        if not self._allows(node.acl, permission, session_id):
            raise NoAuth(f"registry session {session_id} has no permission {permission.name} on {path}", path)

    def _allows(self, acl: Acl, permission: Permission, session_id: int) -> bool:
        identities = self.identities.get(session_id)
        return identities is None or access.allows(acl, permission, identities)

    # Transactions ---------------------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation | SetAcl], session_id: int, zxid: int, now_ms: int) -> list[Any]:
        """Do all operations under one zxid, or none: then the error of the first refused one is raised."""
        fired_before, touched_before = len(self._fired), set(self._touched)
        results: list[Any] = []
        triggers: list[_Trigger] = []
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
        for event_type, path, acl in triggers:
            self._trigger(event_type, path, acl)
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

    def open_session(
        self, session_id: int, identities: set[Identity] | None = None, kept: KeptSession | None = None
    ) -> None:
        """Begin a session; without identities it is one of this process, which may do everything. ``kept`` is what is
        to be stored of it, None when it ends with the process."""
        self.sessions[session_id] = set()
        if kept is not None:
            self.kept[session_id] = kept
            self._touched_sessions.add(session_id)
        if identities is not None:
            self.identities[session_id] = identities
        self._unsettled.append(lambda: self._forget_session(session_id))

    def _forget_session(self, session_id: int) -> None:
        self.sessions.pop(session_id, None)
        self.identities.pop(session_id, None)
        self.kept.pop(session_id, None)

    def close_session(self, session_id: int, zxid: int, now_ms: int) -> None:
        """Forget the session and its watches and remove its ephemeral nodes, as one transaction."""
        ephemerals = self.sessions.get(session_id)
        if ephemerals is None:
            return
        self.drop_watches(session_id)
        # Not as the session: whose node it is, is removed whatever the parent's access control list says.
        self.apply([Delete(path) for path in sorted(ephemerals)], 0, zxid, now_ms)
        del self.sessions[session_id]
        kept = self.kept.pop(session_id, None)
        if kept is not None:
            self._touched_sessions.add(session_id)
            self._unsettled.append(partial(self.kept.__setitem__, session_id, kept))
        identities = self.identities.pop(session_id, None)
        if identities is not None:
            self._unsettled.append(partial(self.identities.__setitem__, session_id, identities))
        # Before those of the deletions, which put the paths back into the same set.
        self._unsettled.append(lambda: self.sessions.__setitem__(session_id, ephemerals))

    def drop_watches(self, session_id: int) -> None:
        """Forget the watches that a session left."""
        self.watches.drop(session_id, self._unsettled)

    # Single steps: each checks first, then changes, and says how to undo it -------------------------------------------

    def _apply_one(
        self,
        operation: Operation | SetAcl,
        session_id: int,
        zxid: int,
        now_ms: int,
        triggers: list[_Trigger],
    ) -> Any:
        if isinstance(operation, Create):
            return self._create(operation, session_id, zxid, now_ms, triggers)
        node = self._existing(operation.path)
        if isinstance(operation, SetAcl):
            return self._set_acl(operation, node, session_id)
        self._check_step(operation, node, session_id)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(
                f"registry node {operation.path} has version {node.version}, not {operation.version}", operation.path
            )
        if isinstance(operation, SetData):
            return self._set(operation, node, zxid, now_ms, triggers)
        if isinstance(operation, Delete):
            self._delete(operation.path, node, zxid, triggers)
        return None

    def _check_step(self, operation: SetData | Delete | Check, node: DataNode, session_id: int) -> None:
        if session_id not in self.identities:
            return
        path = operation.path
        if isinstance(operation, Delete):
            if path != "/":
                self.check_access(self.nodes[parent_of(path)], path, Permission.DELETE, session_id)
            return
        permission = Permission.WRITE if isinstance(operation, SetData) else Permission.READ
        self.check_access(node, path, permission, session_id)

    def _create(
        self, operation: Create, session_id: int, zxid: int, now_ms: int, triggers: list[_Trigger]
    ) -> str | tuple[str, Stat]:
        path = operation.path
        # A sequential path may end with '/': the number is then the whole name.
        store.check_path(path + "0" if operation.sequential else path)
        store.check_data(path, operation.data)
        parent_path = parent_of(path)
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise NoNode(f"cannot create registry node {path}: its parent does not exist", path)
        self.check_access(parent, path, Permission.CREATE, session_id)
        acl = OPEN_ACL
        if isinstance(operation, CreateWithAcl) and operation.acl is not OPEN_ACL:
            acl = access.checked(operation.acl, self.identities.get(session_id, ()), path)
        elif operation.private:
            identities = self.identities.get(session_id)
            acl = access.PROCESS_ACL if identities is None else access.checked(access.CREATOR_ACL, identities, path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(f"cannot create registry node {path}: its parent is ephemeral", path)
        if operation.sequential:
            path = f"{path}{parent.child_creations:010d}"
        if path in self.nodes:
            raise NodeExists(f"registry node {path} exists", path)
        owner = session_id if operation.ephemeral else 0
        old_pzxid = parent.pzxid
        name = path.rpartition("/")[2]
        node = DataNode(bytes(operation.data), zxid, zxid, zxid, now_ms, now_ms, ephemeral_owner=owner, acl=acl)
        self.nodes[path] = node
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
        triggers += ((EventType.CREATED, path, acl), (EventType.CHILDREN_CHANGED, parent_path, parent.acl))
        return (path, node.stat()) if isinstance(operation, CreateWithAcl) and operation.with_stat else path

    def _set_acl(self, operation: SetAcl, node: DataNode, session_id: int) -> Stat:
        path = operation.path
        self.check_access(node, path, Permission.ADMIN, session_id)
        identities = self.identities.get(session_id)
        acl = operation.acl if identities is None else access.checked(operation.acl, identities, path)
        if operation.version not in (ANY_VERSION, node.aversion):
            raise BadVersion(
                f"the ACL of registry node {path} has version {node.aversion}, not {operation.version}", path
            )
        old = (node.acl, node.aversion)
        node.acl = acl
        node.aversion += 1

        def undo() -> None:
            node.acl, node.aversion = old

        self._undo.append(undo)
        self._touched.add(path)
        return node.stat()

    def _set(self, operation: SetData, node: DataNode, zxid: int, now_ms: int, triggers: list[_Trigger]) -> Stat:
        store.check_data(operation.path, operation.data)
        old = (node.data, node.version, node.mzxid, node.mtime)
        node.data, node.mzxid, node.mtime = bytes(operation.data), zxid, now_ms
        node.version += 1

        def undo() -> None:
            node.data, node.version, node.mzxid, node.mtime = old

        self._undo.append(undo)
        self._touched.add(operation.path)
        triggers.append((EventType.DATA_CHANGED, operation.path, node.acl))
        return node.stat()

    def _delete(self, path: str, node: DataNode, zxid: int, triggers: list[_Trigger]) -> None:
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
        triggers += ((EventType.DELETED, path, node.acl), (EventType.CHILDREN_CHANGED, parent_path, parent.acl))

    # Watches ----------------------------------------------------------------------------------------------------------

    def _trigger(self, event_type: EventType, path: str, acl: Acl) -> None:
        event = WatchEvent(event_type, path)
        for session_id, watcher in self.watches.fire(event_type, path, self._unsettled):
            # An event tells that a node exists, which only whoever may read it may know.
            if self._allows(acl, Permission.READ, session_id):
                self._fired.append((watcher, event))

    def _readable(self, path: str, session_id: int) -> DataNode:
        node = self._existing(path)
        self.check_access(node, path, Permission.READ, session_id)
        return node

    def _existing(self, path: str) -> DataNode:
        node = self.nodes.get(path)
        if node is None:
            store.check_path(path)
            raise NoNode(f"registry node {path} does not exist", path)
        return node
