"""The registry's interface: a tree of small nodes with versions, ephemerals, watches and atomic multis.

The model is ZooKeeper's, because a cluster on several hosts uses a ZooKeeper ensemble; the embedded tree follows it.

- Every method returns a ``concurrent.futures.Future`` at once and never blocks. All futures and all watch and session
  events of one store are completed by one thread, in the order of the registry's transactions: an event of a change
  arrives before any answer that shows the change. Callbacks run in that thread and must only hand over (for a loop:
  ``call_soon_threadsafe``, see :func:`answer`); one that waits for another registry answer would wait for ever.
- A write's answer means that the write survives a crash. ConnectionLoss is the exception: the write may or may not have
  happened, so the caller reads again before it acts.
- Watches belong to the session. Their event reports only *that* something changed: read again and act on what was read.
  One of a single node is one-shot: the next one is left in the call that reads again. One of a tree stays, and costs
  the registry one watch however many nodes there are; a change while the connection is broken is not reported by it, so
  read the whole tree again once the session is CONNECTED.
- Ephemeral nodes go with their session; they cannot have children.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from spark_kafkalite.errors import RegistryError

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

ANY_VERSION: Final = -1
# ZooKeeper's default jute.maxbuffer: larger packets break the connection there, so the embedded tree refuses them too.
MAX_FRAME_BYTES: Final = 1024 * 1024
MAX_DATA_BYTES: Final = MAX_FRAME_BYTES - 1024
# Operations in one multi: keeps it below MAX_DATA_BYTES with partition states of a few hundred bytes.
MAX_MULTI_OPERATIONS: Final = 1000
# Nodes in one read of many. The largest ones fit into what the registry's process keeps for one connection
# (``served.connection.MAX_UNSENT_BYTES``).
MAX_READ_AT_ONCE: Final = 15
# Control, private-use and surrogate characters, and what a server sees as surrogates.
_ILLEGAL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class NodeError(RegistryError):
    """An operation on a path was refused. ``operation_index`` is its place in a multi, -1 outside of one."""

    def __init__(self, message: str, path: str, operation_index: int = -1) -> None:
        super().__init__(message)
        self.path = path
        self.operation_index = operation_index


class NoNode(NodeError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(NodeError):
    """A node of this path exists."""


class BadVersion(NodeError):
    """The node has another version than the one the write asks for."""


class NotEmpty(NodeError):
    """The node to delete has children."""


class NoChildrenForEphemerals(NodeError):
    """The parent of the node to create is ephemeral."""


class BadArguments(NodeError):
    """The path is not legal or the data is too large."""


class NoAuth(NodeError):
    """The session's identities have not the permission that the operation needs."""


class SessionExpired(RegistryError):
    """The session has ended: its ephemeral nodes are gone, and a new session is needed."""


class ConnectionLoss(RegistryError):
    """The connection broke before the answer came: a write may or may not have been done."""

    retriable = True


class OutOfRoom(RegistryError):
    """The registry's disk has no room for the operation: nothing was done."""

    retriable = True


class RegistryTooOld(RegistryError):
    """The registry's software lacks what brokers need."""


class Stat(NamedTuple):
    """What the registry knows of a node. Times are milliseconds since the epoch; zxids number transactions."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class EventType(Enum):
    """What happened to a watched node; the values are ZooKeeper's."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class WatchEvent(NamedTuple):
    """One watch has fired."""

    type: EventType
    path: str


class SessionState(Enum):
    """Where a session stands. LOST is final for that session; SUSPENDED may become CONNECTED or LOST."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


Watcher = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionState], None]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; with ``sequential`` ten digits of the parent's counter are added to its name.

    ``private``: for a secret; only a session with the same credentials may read or change the node. Refused where the
    session has none.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    private: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data if it has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a childless node if it has this version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the multi unless the node has this version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


def call_back(callback: Callable[[Any], None], argument: Any) -> None:
    """Call a watcher or a session listener; what it raises is logged, and does not stop the thread that calls."""
    try:
        callback(argument)
    except Exception:
        _LOG.exception("a registry callback failed on %s", argument)


class SessionListeners:
    """The state of one session, and the listeners to its changes."""

    __slots__ = ("_listeners", "state")

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self._listeners: list[SessionListener] = []

    def add(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def clear(self) -> None:
        """Notify no listener any more: the caller of close() knows; only an end that comes from elsewhere is news."""
        self._listeners.clear()

    def report(self, state: SessionState) -> None:
        """Take a new state and call the listeners; none follows LOST. In the thread that completes the futures."""
        if self.state is state or self.state is SessionState.LOST:
            return
        self.state = state
        for listener in list(self._listeners):
            call_back(listener, state)


@dataclass(frozen=True, slots=True)
class CreateWithParents:
    """Create a node, and before it the parents that are missing."""

    create: Create


@dataclass(frozen=True, slots=True)
class Get:
    """Read data and stat."""

    path: str
    watch: Watcher | None = None


@dataclass(frozen=True, slots=True)
class GetMany:
    """Read data and stat of some nodes."""

    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class Exists:
    """Read the stat of a node that need not be there."""

    path: str
    watch: Watcher | None = None


@dataclass(frozen=True, slots=True)
class Children:
    """Read the children's names."""

    path: str
    watch: Watcher | None = None


@dataclass(frozen=True, slots=True)
class WatchTree:
    """Leave a watch on a node and all nodes below it, which need not exist."""

    path: str
    watch: Watcher


@dataclass(frozen=True, slots=True)
class Guard:
    """Let clients with other credentials only read a node that all may change; ``private``: not even that."""

    path: str
    private: bool = False


@dataclass(frozen=True, slots=True)
class Multi:
    """Do all operations or none."""

    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Sync:
    """Catch up with what has been written."""


Request = Operation | CreateWithParents | Get | GetMany | Exists | Children | WatchTree | Guard | Multi | Sync
# One operation or read, with one path.
Step = Operation | Get | Exists | Children | WatchTree | Guard


def steps_of(request: Request) -> Sequence[Step]:
    """Return what a request does, path by path; nothing for a Sync."""
    match request:
        case Sync():
            return ()
        case Multi(operations):
            return operations
        case GetMany(paths):
            return tuple(map(Get, paths))
        case CreateWithParents(create):
            return (create,)
        case step:
            return (step,)


class Store(ABC):
    """One session with the registry. Errors arrive through the futures.

    Its methods are requests as values, handed to :meth:`ask`: that is what a kind of registry implements.
    """

    def __init__(self, listeners: SessionListeners | None = None) -> None:
        self.listeners = listeners or SessionListeners()

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The number of the current session; ``Stat.ephemeral_owner`` of its ephemeral nodes."""

    @property
    @abstractmethod
    def session_timeout_ms(self) -> int:
        """How long the registry keeps a silent session."""

    @property
    def can_be_private(self) -> bool:
        """Whether this session has credentials, so that it may create private nodes."""
        return True

    @property
    def sets_acl(self) -> bool:
        """Whether all that this session creates, but what consumers write, is guarded."""
        return True

    @property
    def seen_zxid(self) -> int:
        """The last transaction that the registry has reported to this session; it is on the disk there. 0: not
        known."""
        return 0

    @abstractmethod
    def ask(self, request: Request) -> Future[Any]:
        """Send one request; its answer is what the method of its name gives."""

    @abstractmethod
    def close(self) -> None:
        """End the session (its ephemerals go) and release everything. Idempotent; may block briefly."""

    def abandon(self) -> None:  # noqa: B027 - right as it is for most kinds
        """End the session as if the registry had ended it: listeners get LOST. May be called in any thread, and does
        not block. A session that cannot be lost, with a registry in the same process, stays."""

    @property
    def state(self) -> SessionState:
        return self.listeners.state

    def add_session_listener(self, listener: SessionListener) -> None:
        """Have every later change of the session's state reported, in order with answers and watch events.

        The session's own close() is not reported.
        """
        self.listeners.add(listener)

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        private: bool = False,
        make_parents: bool = False,
    ) -> Future[str]:
        """Create a node and give its path. NodeExists, NoNode (no parent), NoChildrenForEphemerals."""
        request = Create(path, data, ephemeral=ephemeral, sequential=sequential, private=private)
        return self.ask(CreateWithParents(request) if make_parents else request)

    def get(self, path: str, watch: Watcher | None = None) -> Future[tuple[bytes, Stat]]:
        """Read data and stat. NoNode, and then no watch is left; else it fires at the next change or deletion."""
        return self.ask(Get(path, watch))

    def get_many(self, paths: Sequence[str]) -> Future[list[tuple[bytes, Stat] | RegistryError]]:
        """Read data and stat of up to ``MAX_READ_AT_ONCE`` nodes, in one message; for a node that cannot be read its
        error, as NoNode. BadArguments when they are more."""
        return self.ask(GetMany(tuple(paths)))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Stat]:
        """Replace the data. NoNode, BadVersion."""
        return self.ask(SetData(path, data, version))

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        """Remove a node. NoNode, BadVersion, NotEmpty."""
        return self.ask(Delete(path, version))

    def exists(self, path: str, watch: Watcher | None = None) -> Future[Stat | None]:
        """Read the stat, None when there is no node. The watch fires at creation, change or deletion."""
        return self.ask(Exists(path, watch))

    def children(self, path: str, watch: Watcher | None = None) -> Future[list[str]]:
        """Give the children's names, sorted. The watch fires when one comes or goes, or the node is deleted."""
        return self.ask(Children(path, watch))

    def watch_tree(self, path: str, watch: Watcher) -> Future[None]:
        """Have ``watch`` called for each node at or below ``path`` that is created, changed or deleted from now on.

        It lasts as long as the session, and a change of a list of children has no event. Leave it first and read
        afterwards: then nothing is missed. Changes while the connection is broken are: read everything again once the
        session is CONNECTED, when the watch has been left again. RegistryTooOld where the registry has no such watches.
        """
        return self.ask(WatchTree(path, watch))

    def guard(self, path: str, *, private: bool = False) -> Future[bool]:
        """Let only this session's identity change a node from now on, create nodes right below it, and delete these.

        Gives whether all may still read it: yes, unless it is ``private``. A node on which no rights are for all stays
        as it is. Only for a session that ``can_be_private``. NoNode.
        """
        return self.ask(Guard(path, private))

    def multi(self, operations: Sequence[Operation]) -> Future[list[Any]]:
        """Do all operations or none. Results: path (Create), Stat (SetData), None (Delete, Check).

        The error of a refused multi is that of its first refused operation, with ``operation_index``.
        """
        return self.ask(Multi(tuple(operations)))

    def sync(self) -> Future[None]:
        """Answer when the store has caught up with everything that was written before this call."""
        return self.ask(Sync())


def check_path(path: str) -> None:
    """Raise BadArguments unless the path is legal. Source: org.apache.zookeeper.common.PathUtils.validatePath."""
    if path == "/":
        return
    problem = None
    if not path.startswith("/"):
        problem = "must start with '/'"
    elif path.endswith("/"):
        problem = "must not end with '/'"
    elif any(part in ("", ".", "..") for part in path[1:].split("/")):
        problem = "has an empty or relative part"
    elif _ILLEGAL.search(path):
        problem = "has a control or private-use character"
    if problem:
        raise BadArguments(f"registry path {path!r} {problem}", path)


def check_read(paths: Sequence[str]) -> None:
    """Raise BadArguments when the nodes are too many for one answer."""
    if len(paths) > MAX_READ_AT_ONCE:
        raise BadArguments(f"a read of {len(paths)} nodes at once; {MAX_READ_AT_ONCE} are the most", "/")


def check_data(path: str, data: bytes) -> None:
    """Raise BadArguments when the data of a node is too large."""
    if len(data) > MAX_DATA_BYTES:
        raise BadArguments(f"registry node {path}: {len(data)} bytes of data are more than {MAX_DATA_BYTES}", path)


def check_multi(operations: Sequence[Step]) -> None:
    """Raise BadArguments when the operations are too many, or too large, for one transaction."""
    if len(operations) > MAX_MULTI_OPERATIONS:
        raise BadArguments(f"a multi of {len(operations)} operations; {MAX_MULTI_OPERATIONS} are the most", "/")
    size = sum(
        len(operation.path) + len(operation.data)
        for operation in operations
        if isinstance(operation, (Create, SetData))
    )
    if size > MAX_FRAME_BYTES - 1024:
        raise BadArguments(f"a multi of {size} bytes of paths and data; {MAX_FRAME_BYTES - 1024} are the most", "/")


def parent_of(path: str) -> str:
    """Return the path of the parent of a path other than the root."""
    return path.rpartition("/")[0] or "/"


async def answer(future: Future[T]) -> T:
    """Wait in an event loop for an answer of the registry.

    Answers awaited in one loop, and watch events handed over with ``call_soon_threadsafe``, keep the store's order.
    """
    return await asyncio.wrap_future(future)


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    """Hand a call over to a loop from the store's thread; nothing happens when the loop has been closed meanwhile."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)
