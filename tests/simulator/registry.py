"""The registry of a simulated cluster: the real tree, and sessions whose connections a schedule cuts.

A request takes a while to the server and its answer a while back; both keep their order, and so do events of watches,
which come before the answers that show their changes. A connection that is cut fails what is on its way with
ConnectionLoss: a write may or may not have happened. A session that is not heard of for its timeout ends; its client
learns that when it is connected again, as from an ensemble.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from spark_kafkalite.registry.store import (
    Children,
    ConnectionLoss,
    CreateWithParents,
    Exists,
    Get,
    GetMany,
    Guard,
    Multi,
    Request,
    SessionExpired,
    SessionState,
    Store,
    Sync,
    Watcher,
    WatchEvent,
    WatchTree,
    call_back,
    check_multi,
)
from spark_kafkalite.registry.tree.embedded_store import get_many
from spark_kafkalite.registry.tree.tree import Tree
from tests.simulator.world import START_WALL_MS, ProcessLoop, World

_LONGEST_WAY_S: Final = 0.004
_RECONNECT_S: Final = 0.2


class SimulatedRegistry:
    """The server: one tree, its sessions and their deadlines."""

    def __init__(self, world: World, session_timeout_s: float = 3.0) -> None:
        self.world = world
        self.tree = Tree()
        self.session_timeout_s = session_timeout_s
        self.zxid = 0
        self._last_session = 0
        self.stores: list[SimulatedStore] = []
        # Whether it answers at all.
        self.is_up = True
        self._tick()

    def go_down(self) -> None:
        """Answer nobody any more; sessions last, as over a restart."""
        self.is_up = False
        for each in list(self.stores):
            each.drop()

    def come_up(self) -> None:
        """Answer again; every session has its whole timeout from now on."""
        if not self.is_up:
            self.is_up = True
            for each in self.stores:
                each.heard_s = self.world.now_s

    def connect(self, loop: ProcessLoop) -> Future[Store]:
        """Open a session for a process; comes to nothing while the registry is down, or cut off from it."""
        opening: Future[Store] = Future()
        store_ = SimulatedStore(self, loop)
        self.stores.append(store_)
        store_.open(opening)
        return opening

    def new_session(self) -> int:
        self._last_session += 1
        self.tree.open_session(self._last_session)
        self.settle()
        return self._last_session

    def now_ms(self) -> int:
        return START_WALL_MS + round(self.world.now_s * 1000)

    def next_zxid(self) -> int:
        self.zxid += 1
        return self.zxid

    def settle(self) -> None:
        """Let out the events of what has been done; they are queued at each session's connection."""
        self.tree.settle()
        _, fired = self.tree.drain()
        for watcher, event in fired:
            watcher(event)

    def end_session(self, session_id: int) -> None:
        """End a session, and remove its ephemeral nodes."""
        if session_id in self.tree.sessions:
            self.tree.close_session(session_id, self.next_zxid(), self.now_ms())
            self.settle()

    def _tick(self) -> None:
        if self.is_up:
            for each in list(self.stores):
                if each.is_gone:
                    self.stores.remove(each)
                elif (
                    each.session_id
                    and not each.is_forgotten
                    and self.world.now_s > each.heard_s + self.session_timeout_s
                ):
                    self.end_session(each.session_id)
        self.world.later(0.05, self._tick)


class SimulatedStore(Store):
    """One session of one process."""

    def __init__(self, registry: SimulatedRegistry, loop: ProcessLoop) -> None:
        super().__init__()
        self.registry = registry
        self._world = registry.world
        self.loop = loop
        self._session_id = 0
        self.heard_s = 0.0
        self.is_cut = False
        # Whether nothing comes from the server, which hears everything.
        self.is_deaf = False
        # Whether the session was ended before its time.
        self.was_ended = False
        self._closed = False
        self._connected = False
        # Another one for each connection: what arrives by an older one arrives nowhere.
        self._connection = 0
        self._to_server_s = self._to_client_s = 0.0
        self._unanswered: list[tuple[Request, Future[Any]]] = []
        self._waiting: list[tuple[Request, Future[Any]]] = []
        self._events: list[tuple[Watcher, WatchEvent]] = []
        self._watchers: dict[Watcher, Watcher] = {}

    def __repr__(self) -> str:
        return f"SimulatedStore({self.loop.name}, {self._session_id}, {self.state.value})"

    def abandon(self) -> None:
        if self._closed or self.is_forgotten:
            return
        self.was_ended = True
        if self._session_id and self._connected and self._reaches:
            self._world.later(self._way_s(), lambda: self.registry.end_session(self._session_id))
        self._connected = False
        self._connection += 1
        self._in_process(self._expire)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return round(self.registry.session_timeout_s * 1000)

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing of it matters to the server any more."""
        return bool(self._session_id) and self._session_id not in self.registry.tree.sessions

    @property
    def is_gone(self) -> bool:
        """Whether its client is gone as well, or knows that it has ended."""
        return self.is_forgotten and (
            self._closed or not self.loop.is_alive or self.listeners.state is SessionState.LOST
        )

    @property
    def works(self) -> bool:
        """Whether its process runs and hears the server, and the server hears it."""
        return (
            self._connected
            and self._reaches
            and not self.is_deaf
            and not self.is_forgotten
            and self._world.now_s >= self.loop.stands_until_s
        )

    @property
    def connections(self) -> int:
        """How many connections it has had before the present one."""
        return self._connection

    # Connections ----------------------------------------------------------------------------------------------------

    @property
    def _reaches(self) -> bool:
        return self.registry.is_up and not self.is_cut and self.loop.is_alive

    def open(self, opening: Future[Store]) -> None:
        def arrive() -> None:
            if self._closed or not self.loop.is_alive:
                return
            if not self._reaches:
                self._world.later(_RECONNECT_S, arrive)
                return
            self._session_id = self.registry.new_session()
            self._connected = True
            self.heard_s = self._world.now_s
            self._ping()
            self._in_process(lambda: opening.set_result(self))

        self._world.later(self._way_s(), arrive)

    def cut(self) -> None:
        """Break the connection, and keep it broken until :meth:`mend`."""
        self.is_cut = True
        self.drop()

    def mend(self) -> None:
        self.is_cut = False

    def lose_answers(self, seconds: float) -> None:
        """Have nothing come back for a while, then break the connection."""
        self.is_deaf = True

        def end() -> None:
            self.is_deaf = False
            self.drop()

        self._world.later(seconds, end)

    def drop(self) -> None:
        """Break the connection; it comes back by itself where nothing is cut."""
        if not self._connected:
            return
        self._connected = self.is_deaf = False
        self._connection += 1
        lost, self._unanswered = self._unanswered, []
        self._world.later(_RECONNECT_S * (0.5 + self._world.random.random()), self._reconnect)

        def tell() -> None:
            self.listeners.report(SessionState.SUSPENDED)
            for _, future in lost:
                _fail(future, ConnectionLoss("the connection broke before the answer came"))

        self._in_process(tell)

    def _reconnect(self) -> None:
        if self._closed or not self.loop.is_alive:
            return
        if not self._reaches:
            self._world.later(_RECONNECT_S * (0.5 + self._world.random.random()), self._reconnect)
            return
        if self.is_forgotten:
            self._in_process(self._expire)
            return
        self._connected = True
        self.heard_s = self._world.now_s
        self._to_server_s = self._to_client_s = 0.0

        def tell() -> None:
            self.listeners.report(SessionState.CONNECTED)
            waiting, self._waiting = self._waiting, []
            for request, future in waiting:
                self._send(request, future)

        self._in_process(tell)
        events, self._events = self._events, []
        for watcher, event in events:
            self._tell(watcher, event)

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting + self._unanswered, []
        self._unanswered = []
        for _, future in waiting:
            _fail(future, SessionExpired(f"registry session {self._session_id} has ended"))
        self.listeners.report(SessionState.LOST)

    def _ping(self) -> None:
        """Tell the server that the process lives; one that stands still does not."""
        if self._closed or not self.loop.is_alive or self.is_forgotten:
            return
        if self._connected and self._reaches and self._world.now_s >= self.loop.paused_until_s:
            self.heard_s = self._world.now_s
        self._world.later(self.registry.session_timeout_s / 3, self._ping)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.listeners.clear()
        self.was_ended = True
        if self._session_id and self._connected and self._reaches:
            self._world.later(self._way_s(), lambda: self.registry.end_session(self._session_id))
        for _, future in [*self._waiting, *self._unanswered]:
            _fail(future, SessionExpired("the session has been closed"))
        self._waiting, self._unanswered = [], []

    # Requests -------------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        if self._closed or self.state is SessionState.LOST:
            future.set_exception(SessionExpired(f"registry session {self._session_id} has ended"))
        elif not self._connected or self.state is SessionState.SUSPENDED:
            self._waiting.append((request, future))
        else:
            self._send(request, future)
        return future

    def _send(self, request: Request, future: Future[Any]) -> None:
        if not self._connected:
            self._waiting.append((request, future))
            return
        connection, entry = self._connection, (request, future)
        self._unanswered.append(entry)

        def arrive() -> None:
            if connection != self._connection or not self._reaches:
                return  # what was on its way when the connection broke
            self.heard_s = self._world.now_s
            if self.is_forgotten:
                self._to_process(connection, self._expire)
                return
            result, error = self._done(request)

            def answered() -> None:
                if entry in self._unanswered:
                    self._unanswered.remove(entry)
                    _fail(future, error) if error is not None else _finish(future, result)

            self._to_process(connection, answered)

        self._to_server_s = max(self._to_server_s, self._world.now_s + self._way_s())
        self._world.later(self._to_server_s - self._world.now_s, arrive)

    def _done(self, request: Request) -> tuple[Any, BaseException | None]:
        tree, session = self.registry.tree, self._session_id
        try:
            match request:
                case Get(path, watch):
                    return tree.get(path, session, self._watcher(watch)), None
                case GetMany(paths):
                    return get_many(tree, paths, session), None
                case Exists(path, watch):
                    return tree.exists(path, session, self._watcher(watch)), None
                case Children(path, watch):
                    return tree.children(path, session, self._watcher(watch)), None
                case WatchTree(path, watch):
                    return tree.watch_tree(path, session, self._tree_watcher(watch)), None
                case Sync() | Guard():
                    return None, None
                case Multi(operations):
                    check_multi(operations)
                    results = tree.apply(operations, session, self.registry.next_zxid(), self.registry.now_ms())
                    return results, None
                case CreateWithParents(create):
                    operations = [*tree.missing_parents(create.path), create]
                    results = tree.apply(operations, session, self.registry.next_zxid(), self.registry.now_ms())
                    return results[-1], None
                case operation:
                    results = tree.apply([operation], session, self.registry.next_zxid(), self.registry.now_ms())
                    return results[0], None
        except Exception as error:
            return None, error
        finally:
            self.registry.settle()

    def _watcher(self, watcher: Watcher | None) -> Watcher | None:
        """Return what the tree calls: the same one for the same watcher, so that equal watches are one."""
        if watcher is None:
            return None
        if watcher not in self._watchers:
            self._watchers[watcher] = lambda event: self._fired(watcher, event)
        return self._watchers[watcher]

    def _tree_watcher(self, watcher: Watcher) -> Watcher:
        """Return what the tree calls for a watch of a tree: what happens without a connection is not reported."""

        def fired(event: WatchEvent) -> None:
            if self._connected:
                self._to_process(self._connection, lambda: call_back(watcher, event))

        return fired

    def _fired(self, watcher: Watcher, event: WatchEvent) -> None:
        if self._connected:
            self._tell(watcher, event)
        else:
            self._events.append((watcher, event))

    def _tell(self, watcher: Watcher, event: WatchEvent) -> None:
        connection = self._connection

        def tell() -> None:
            call_back(watcher, event)

        if not self._to_process(connection, tell, lost=lambda: self._events.append((watcher, event))):
            self._events.append((watcher, event))

    def _to_process(self, connection: int, do: Callable[[], None], lost: Callable[[], None] = lambda: None) -> bool:
        """Have something arrive at the process, behind all that was sent before by this connection."""
        self._to_client_s = max(self._to_client_s, self._world.now_s + self._way_s())

        def arrive() -> None:
            if connection == self._connection and self._reaches and not self.is_deaf:
                self._in_process(do)
            else:
                lost()

        self._world.later(self._to_client_s - self._world.now_s, arrive)
        return True

    def _in_process(self, do: Callable[[], None]) -> None:
        """Do something in the process, as its registry thread would: as soon as it runs."""
        if self.loop.is_alive:
            self.loop.call_soon(do)

    def _way_s(self) -> float:
        return self._world.random.uniform(0.0002, _LONGEST_WAY_S)


def _finish(future: Future[Any], result: Any) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def _fail(future: Future[Any], error: BaseException) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
