"""kazoo's client as the registry's Store over ZooKeeper needs it: one thread, no blocking, watches left again.

- :class:`AddWatch`: what leaves a watch on a whole tree (ZooKeeper 3.6 and later), which kazoo 2.11 cannot send.
- :class:`ReadMany`: reads many nodes with one request (ZooKeeper 3.6 and later), likewise.
- :class:`OneThreadHandler`: kazoo hands out answers and watch events from two threads; the store's contract wants one.
  Its connection thread reads and sends in bursts, see :mod:`.zookeeper_socket`.
- :class:`Client`: its changes of state exclude the queueing of requests (``submit_lock``), so that nothing asked for in
  one session can run in the next. It hands events to the watches of trees, too (``add_tree_watch``).
- :class:`Watch`: kazoo keeps watchers in sets by path and forgets them with a connection; one of these knows what it
  was left for.
- :class:`ClientLog`: kazoo's log lines, each message once a minute, and its course of events at level DEBUG.

Of the modules that import kazoo only this one uses what kazoo keeps to itself: :data:`PRIVATE_OF_CLIENT` and
:data:`PRIVATE_OF_CONNECTION`. A new version of kazoo may change these without notice, so ``pyproject.toml`` bounds it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, AuthFailedError, SASLException, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import (
    GetData,
    int_struct,
    multiheader_struct,
    stat_struct,
    write_string,
)
from kazoo.protocol.serialization import Watch as EventMessage
from kazoo.protocol.states import Callback, KeeperState, WatchedEvent, ZnodeStat

from spark_kafkalite.registry.store import EventType, Watcher, WatchEvent, call_back
from spark_kafkalite.registry.zookeeper_socket import ServerSocket, Waiting, readable

_LOG = logging.getLogger("spark_kafkalite.registry.zookeeper.kazoo")
# kazoo says with every attempt why it failed; this often is enough.
_SAME_MESSAGE_S: Final = 60.0
# Answers to the first message of a connection that may fail to come before the session is over.
_TRIES_IN_A_SESSION: Final = 4
# A connection that takes longer is tried again, or the next server is. Twice what the kernel waits before it repeats
# the first packet: later repetitions come too seldom for a network that is back.
_CONNECT_WITHIN_S: Final = 2.0
# Attributes of KazooClient and of its ConnectionHandler that are not part of kazoo's interface, and what they are.
PRIVATE_OF_CLIENT: Final = {
    "_call": "queues a request for the connection's thread: AddWatch, which kazoo has no method for",
    "_child_watchers": "the watchers of children by path, of which a lost connection forgets those that are left",
    "_connection": "the ConnectionHandler",
    "_data_watchers": "the watchers of data by path, likewise",
    "_session_callback": "takes a state of the connection, in its thread; overridden",
    "_session_id": "of the session that there is or was, 0 or None before the first",
    "_stopped": "an event that is set once the client is to stop",
}
PRIVATE_OF_CONNECTION: Final = {
    "_connect": "opens a connection and asks for the session; returns timeouts in ms: read, connect; replaced",
    "_invoke": "sends one request and waits for its answer, while the connection is made; replaced",
    "_read_watch_event": "takes an event from the connection, in its thread; replaced",
}
# A mode of AddWatchMode, as it is sent.
_PERSISTENT_RECURSIVE: Final = b"\0\0\0\1"
# What stands before each read of many, and behind the last one.
_READ_HEADER: Final = bytes(multiheader_struct.pack(GetData.type, False, -1))
_LAST_HEADER: Final = bytes(multiheader_struct.pack(-1, True, -1))
EVENT_TYPES: Final = {
    "CREATED": EventType.CREATED,
    "DELETED": EventType.DELETED,
    "CHANGED": EventType.DATA_CHANGED,
    "CHILD": EventType.CHILDREN_CHANGED,
}


class _Queue(queue.SimpleQueue[Any]):
    """What kazoo wants of a queue, without a lock in Python for each element."""

    def task_done(self) -> None:
        """Do nothing: no thread waits for that."""


class OneThreadHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with watch events in the queue of the answers."""

    queue_impl = _Queue
    # Among how many a session looks for one that answers.
    servers = 1

    def dispatch_callback(self, callback: Any) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))

    def create_connection(self, *where: Any, timeout: float, **options: Any) -> ServerSocket:
        # kazoo would give each server the session's time, and so lose the session to the first that is away.
        timeout = min(timeout / (2 * self.servers), _CONNECT_WITHIN_S)
        return ServerSocket(super().create_connection(*where, timeout=timeout, **options))

    def create_socket_pair(self) -> tuple[Waiting, Waiting]:
        waiting = Waiting()
        return waiting, waiting

    def select(self, reading: Any, writing: Any, _: Any, timeout: float | None = None) -> tuple[Any, Any, Any]:
        # What is written is kept, however much.
        return ([], writing, []) if writing else (readable(reading, timeout), [], [])

    def call(self, run: Callable[[], None]) -> None:
        """Have ``run`` called after everything that has arrived."""
        if self.running:
            self.completion_queue.put(run)
        else:
            run()


@dataclass(frozen=True)
class AddWatch:
    """The request that leaves a persistent, recursive watch; ``path`` has the chroot.

    Source: org.apache.zookeeper.proto.AddWatchRequest, org.apache.zookeeper.AddWatchMode.
    """

    path: str

    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path)) + _PERSISTENT_RECURSIVE

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> None:
        """Take the answer, which has only its header."""


@dataclass(frozen=True)
class ReadMany:
    """The request for data and stat of many nodes (multiRead); ``paths`` have the chroot.

    Source: org.apache.zookeeper.MultiOperationRecord, org.apache.zookeeper.MultiResponse.
    """

    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for path in self.paths:
            encoded = path.encode()
            parts += (_READ_HEADER, len(encoded).to_bytes(4), encoded, b"\0")
        return b"".join((*parts, _LAST_HEADER))

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[tuple[bytes, tuple[int, ...]] | Exception]:
        """Return of each node its data and stat, or kazoo's error."""
        found: list[tuple[bytes, tuple[int, ...]] | Exception] = []
        while True:
            kind, is_last, _ = multiheader_struct.unpack_from(data, offset)
            offset += multiheader_struct.size
            if is_last:
                return found
            (number,) = int_struct.unpack_from(data, offset)
            offset += int_struct.size
            if kind != GetData.type:
                found.append(EXCEPTIONS[number]())
                continue
            # A node without data has the length -1.
            length = max(number, 0)
            found.append((bytes(data[offset : offset + length]), stat_struct.unpack_from(data, offset + length)))
            offset += length + stat_struct.size


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, whose changes of state exclude the queueing of requests."""

    submit_lock: Any
    # What the server granted, which may be less or more than was asked for; None before there was a session.
    granted_timeout_ms: int | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.handler.servers = len(self.hosts)
        # Whether a server has refused the credentials: kazoo ends the session then, and does not try again.
        self.auth_failed = False
        # Whether a session has been asked for.
        self._has_asked = False
        self._state_changed = threading.Condition()
        connect = self._connection._connect

        def connect_and_note(*where: Any) -> Any:
            try:
                read_timeout_ms, connect_timeout_ms = connect(*where)
            except (SASLException, SessionClosedRequireSaslError) as error:
                # kazoo's thread knows what to do about this one alone, and dies of the others.
                raise AuthFailedError(f"SASL: {error.__cause__ or type(error).__name__}") from error
            # kazoo keeps the granted timeout nowhere; what it waits for an answer is two thirds of it.
            self.granted_timeout_ms = round(read_timeout_ms * 1.5)
            return read_timeout_ms, connect_timeout_ms

        self._connection._connect = connect_and_note
        ask = self._connection._invoke

        def ask_for_a_while(timeout_s: float, request: Any, xid: int | None = None) -> Any:
            # A server that is just starting may take the question and never answer it. kazoo would wait for as long as
            # the session lasts, and so lose it. A new one has to reach the server's disk first: asking again and again,
            # because that is slow, would only give it more to write, and never come to an end.
            is_first = not self._has_asked
            self._has_asked = True
            may_wait = not self._session_id and not is_first
            return ask(timeout_s if may_wait else timeout_s / _TRIES_IN_A_SESSION, request, xid)

        # What kazoo says while it connects, before there is anything else to say.
        self._connection._invoke = ask_for_a_while
        # Of each path below which all is watched, with the chroot: who is told. Replaced, not changed: the connection's
        # thread looks at it.
        self._tree_watches: dict[str, tuple[Watcher, ...]] = {}
        self._read_one_shots = self._connection._read_watch_event
        self._connection._read_watch_event = self._read_watch_event

    def add_tree_watch(self, path: str, watcher: Watcher) -> Any:
        """Leave a watch on everything at or below ``path``; return kazoo's pending answer.

        From now on ``watcher`` gets the server's events, on this connection and, where :meth:`add_again` is called for
        them, on later ones.
        """
        path = self._with_chroot(path)
        known = self._tree_watches.get(path, ())
        if watcher not in known:
            self._tree_watches = {**self._tree_watches, path: (*known, watcher)}
        return self._add(path)

    def _with_chroot(self, path: str) -> str:
        return self.chroot + path if path != "/" else self.chroot or "/"

    def read_many(self, paths: Sequence[str]) -> Any:
        """Ask for data and stat of nodes; return kazoo's pending answer."""
        answer = self.handler.async_result()
        self._call(ReadMany([self._with_chroot(path) for path in paths]), answer)
        return answer

    @property
    def last_session_id(self) -> Any:
        """The id of the session that there is or was."""
        return self._session_id

    def left_watches(self) -> Iterator[Watch]:
        """Iterate over the watches that the connection has: those of data first, then those of children."""
        for watches in (*self._data_watchers.values(), *self._child_watchers.values()):
            yield from watches

    def add_again(self) -> list[Any]:
        """Leave the watches of trees again; return kazoo's pending answers."""
        return [self._add(path) for path in self._tree_watches]

    def _add(self, path: str) -> Any:
        added = self.handler.async_result()
        self._call(AddWatch(path), added)
        return added

    def _read_watch_event(self, data: bytes, offset: int) -> None:
        """Take an event from the connection, in its thread."""
        if self._tree_watches:
            message, _ = EventMessage.deserialize(data, offset)
            event_type = EventType(message.type) if 1 <= message.type <= 3 else None
            if event_type is not None:
                self._tell_tree_watches(event_type, message.path)
        self._read_one_shots(data, offset)

    def _tell_tree_watches(self, event_type: EventType, path: str) -> None:
        told: dict[Watcher, None] = {}
        above = path
        while True:
            told.update(dict.fromkeys(self._tree_watches.get(above or "/", ())))
            if above in ("", "/"):
                break
            above = above.rpartition("/")[0]
        if told and not self._stopped.is_set():
            event = WatchEvent(event_type, self.unchroot(path))
            for watcher in told:
                self.handler.dispatch_callback(Callback("watch", call_back, (watcher, event)))

    def _session_callback(self, state: Any) -> None:
        with self.submit_lock:
            # Before kazoo tells anybody, so that the reason is known when the session's end is seen.
            self.auth_failed = self.auth_failed or state == KeeperState.AUTH_FAILED
            super()._session_callback(state)
        with self._state_changed:
            self._state_changed.notify_all()

    def wait_until_connected(self, timeout_s: float) -> bool:
        """Wait until there is a session, or the credentials are refused; return whether there is one now.

        kazoo's own event does not do: a refusal clears it a moment after the session has set it. A thread that checks
        it in between or afterwards would take the refusal for a server that does not answer.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._state_changed:
            while not self.connected and not self.auth_failed:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._state_changed.wait(left_s)
        return bool(self.connected) and not self.auth_failed


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """One client's log: names its servers, and holds back a message that was logged a moment ago.

    Where kazoo logs that connections and sessions come and go, the user of the client logs it in words of its own.
    """

    def __init__(self, connect: str) -> None:
        super().__init__(_LOG, {})
        self._connect = connect
        self._logged_s: dict[str, float] = {}

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        level = logging.DEBUG if level == logging.INFO else level
        if not self.isEnabledFor(level):
            return
        text, now_s = str(msg) % args if args else str(msg), time.monotonic()
        self._logged_s = {each: at_s for each, at_s in self._logged_s.items() if now_s - at_s < _SAME_MESSAGE_S}
        if self._logged_s.setdefault(text, now_s) == now_s:
            self.logger.log(level, "%s: %s", self._connect, text, **options)


Fire = Callable[[Watcher, WatchedEvent], None]


class Watch:
    """A watcher as kazoo keeps it. Two that would call the same for the same are one, until it has been called."""

    __slots__ = ("_key", "_fire", "done", "existed", "of_children", "path", "watcher")

    def __init__(self, fire: Fire, path: str, watcher: Watcher, of_children: bool) -> None:
        self._fire = fire
        self._key = (path, watcher, of_children)
        self.path = path
        self.watcher = watcher
        self.of_children = of_children
        self.existed = True
        self.done = False

    def __call__(self, event: WatchedEvent) -> None:
        # Others are news of the session, which comes another way.
        if event.type in EVENT_TYPES and not self.done:
            self.done = True
            self._fire(self.watcher, event)

    def missed(self, stat: ZnodeStat | None, seen_zxid: int) -> str | None:
        """Return the event that a node's stat shows to have happened since ``seen_zxid``, if one has."""
        if stat is None:
            return "DELETED" if self.existed else None
        if self.of_children:
            return "CHILD" if stat.pzxid > seen_zxid else None
        if not self.existed:
            return "CREATED"
        return "CHANGED" if stat.mzxid > seen_zxid else None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Watch) and not self.done and not other.done and self._key == other._key
        )

    def __hash__(self) -> int:
        return hash(self._key)
