from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafkalite.registry.store import EventType, WatchEvent
from spark_kafkalite.registry.tree.watches import Watches, WatchKind


def watcher(_: WatchEvent) -> None: ...


def other(_: WatchEvent) -> None: ...


@pytest.mark.parametrize(
    ("kind", "event", "path", "reached"),
    [
        (WatchKind.DATA, EventType.CREATED, "/a/b", True),
        (WatchKind.DATA, EventType.DATA_CHANGED, "/a/b", True),
        (WatchKind.DATA, EventType.DELETED, "/a/b", True),
        (WatchKind.DATA, EventType.CHILDREN_CHANGED, "/a/b", False),
        (WatchKind.DATA, EventType.DELETED, "/a/b/c", False),
        (WatchKind.CHILDREN, EventType.CHILDREN_CHANGED, "/a/b", True),
        (WatchKind.CHILDREN, EventType.DELETED, "/a/b", True),
        (WatchKind.CHILDREN, EventType.DATA_CHANGED, "/a/b", False),
        (WatchKind.PERSISTENT, EventType.CHILDREN_CHANGED, "/a/b", True),
        (WatchKind.PERSISTENT, EventType.DELETED, "/a/b", True),
        (WatchKind.PERSISTENT, EventType.CREATED, "/a/b/c", False),
        (WatchKind.RECURSIVE, EventType.CREATED, "/a/b/c/d", True),
        (WatchKind.RECURSIVE, EventType.DATA_CHANGED, "/a/b", True),
        (WatchKind.RECURSIVE, EventType.CHILDREN_CHANGED, "/a/b", False),
        (WatchKind.RECURSIVE, EventType.CREATED, "/a/bc", False),
        (WatchKind.RECURSIVE, EventType.CREATED, "/a", False),
    ],
)
def test_which_event_reaches_which_kind(kind: WatchKind, event: EventType, path: str, reached: bool) -> None:
    watches = Watches()
    watches.add(kind, "/a/b", 1, watcher)
    assert watches.fire(event, path, []) == ([(1, watcher)] if reached else [])
    used_up = reached and kind in (WatchKind.DATA, WatchKind.CHILDREN)
    assert len(watches) == (0 if used_up else 1)


def test_one_event_reaches_a_watcher_once() -> None:
    watches = Watches()
    for kind in WatchKind:
        watches.add(kind, "/a", 1, watcher)
        watches.add(kind, "/a", 1, watcher)
    watches.add(WatchKind.DATA, "/a", 2, watcher)
    watches.add(WatchKind.DATA, "/a", 1, other)
    assert len(watches) == 6
    assert sorted(watches.fire(EventType.DELETED, "/a", []), key=str) == sorted(
        [(1, watcher), (2, watcher), (1, other)], key=str
    )


def test_what_was_used_up_or_dropped_can_be_brought_back() -> None:
    watches = Watches()
    watches.add(WatchKind.DATA, "/a", 1, watcher)
    watches.add(WatchKind.CHILDREN, "/a", 2, watcher)
    watches.add(WatchKind.RECURSIVE, "/", 1, watcher)
    undo: list[Callable[[], None]] = []
    watches.fire(EventType.DELETED, "/a", undo)
    watches.drop(1, undo)
    assert (len(watches), watches.count(1), watches.count(2)) == (0, 0, 0)
    for step in reversed(undo):
        step()
    assert (len(watches), watches.count(1), watches.count(2)) == (3, 2, 1)
    assert watches.has(WatchKind.DATA, "/a", 1)


def test_removal_is_of_one_session_and_kind() -> None:
    watches = Watches()
    for session_id in (1, 2):
        for kind in WatchKind:
            watches.add(kind, "/a", session_id, watcher)
    watches.remove(WatchKind.DATA, "/a", 1)
    assert not watches.has(WatchKind.DATA, "/a", 1)
    assert watches.has(WatchKind.DATA, "/a", 2)
    assert watches.has(WatchKind.CHILDREN, "/a", 1)
    assert len(watches) == 7
