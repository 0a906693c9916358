"""Watches on the embedded tree: one-shot ones on data and children, persistent and recursive ones. Pure.

A watch is a session and what to call; left twice it is one. Which event reaches which kind of watch:

===================  ========  ============  ==========  ==========================
event at a path      data      children      persistent  recursive
===================  ========  ============  ==========  ==========================
created, changed     there     --            there       there and at every ancestor
deleted              there     there         there       there and at every ancestor
children changed     --        there         there       --
===================  ========  ============  ==========  ==========================

One event reaches a watcher once, by however many watches. It uses up one-shot watches. To take the transaction back,
restore them with the result of :meth:`Watches.fire`. Source: org.apache.zookeeper.server.watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial

from spark_kafkalite.registry.store import EventType, Watcher, parent_of


class WatchKind(Enum):
    """What a watch listens to, and whether it stays."""

    DATA = "data"
    CHILDREN = "children"
    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


# The session that left it, and what to call. A dict serves as an ordered set.
Watch = tuple[int, Watcher]
_Watches = dict[Watch, None]


class Watches:
    """All watches of one tree, by place and by session."""

    def __init__(self) -> None:
        self._tables: dict[WatchKind, dict[str, _Watches]] = {kind: {} for kind in WatchKind}
        # A session's watches, for its end: closing one must not look at those of all others.
        self._of_session: dict[int, dict[tuple[WatchKind, str, Watcher], None]] = {}

    def __len__(self) -> int:
        return sum(len(places) for places in self._of_session.values())

    def count(self, session_id: int) -> int:
        """Return how many watches a session has left."""
        return len(self._of_session.get(session_id, ()))

    def add(self, kind: WatchKind, path: str, session_id: int, watcher: Watcher) -> None:
        self._tables[kind].setdefault(path, {})[session_id, watcher] = None
        self._of_session.setdefault(session_id, {})[kind, path, watcher] = None

    def has(self, kind: WatchKind, path: str, session_id: int) -> bool:
        """Return whether a session has a watch of this kind on a path."""
        return any(owner == session_id for owner, _ in self._tables[kind].get(path, ()))

    def remove(self, kind: WatchKind, path: str, session_id: int) -> None:
        """Forget a session's watches of one kind on a path."""
        for owner, watcher in list(self._tables[kind].get(path, ())):
            if owner == session_id:
                self._forget(kind, path, (owner, watcher))

    def drop(self, session_id: int, undo: list[Callable[[], None]]) -> None:
        """Forget all that a session left; what brings them back is appended to ``undo``."""
        places = list(self._of_session.get(session_id, ()))
        for kind, path, watcher in places:
            self._forget(kind, path, (session_id, watcher))
        if places:
            undo.append(partial(self._restore, [(kind, path, (session_id, watcher)) for kind, path, watcher in places]))

    def fire(self, event_type: EventType, path: str, undo: list[Callable[[], None]]) -> list[Watch]:
        """Return the watches that an event reaches, each once; what brings the used up ones back goes to ``undo``."""
        reached: _Watches = {}
        if event_type is not EventType.CHILDREN_CHANGED:
            reached.update(self._taken(WatchKind.DATA, path, undo))
        if event_type in (EventType.CHILDREN_CHANGED, EventType.DELETED):
            reached.update(self._taken(WatchKind.CHILDREN, path, undo))
        reached.update(self._tables[WatchKind.PERSISTENT].get(path, {}))
        recursive = self._tables[WatchKind.RECURSIVE]
        if recursive and event_type is not EventType.CHILDREN_CHANGED:
            for above in _with_ancestors(path):
                reached.update(recursive.get(above, {}))
        return list(reached)

    def _taken(self, kind: WatchKind, path: str, undo: list[Callable[[], None]]) -> _Watches:
        watches = dict(self._tables[kind].get(path, {}))
        for watch in watches:
            self._forget(kind, path, watch)
        if watches:
            undo.append(partial(self._restore, [(kind, path, watch) for watch in watches]))
        return watches

    def _forget(self, kind: WatchKind, path: str, watch: Watch) -> None:
        session_id, watcher = watch
        table, places = self._tables[kind], self._of_session[session_id]
        del table[path][watch], places[kind, path, watcher]
        if not table[path]:
            del table[path]
        if not places:
            del self._of_session[session_id]

    def _restore(self, watches: Iterable[tuple[WatchKind, str, Watch]]) -> None:
        for kind, path, (session_id, watcher) in watches:
            self.add(kind, path, session_id, watcher)


def _with_ancestors(path: str) -> Iterator[str]:
    yield path
    while path != "/":
        path = parent_of(path)
        yield path
