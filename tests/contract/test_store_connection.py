"""What a Store over ZooKeeper's protocol does when its connection breaks, against every server of that protocol."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    EventType,
    NodeExists,
    SessionExpired,
    SessionState,
    WatchEvent,
)
from spark_kafkalite.registry.zookeeper import ZooKeeperStore, open_zookeeper
from tests.contract.forwarder import Forwarder
from tests.patience import PATIENCE_S, wait_until

SERVERS = ["served", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]


class Link:
    """Two sessions of one tree: ``store`` through a forwarder that can be cut, ``other`` straight."""

    def __init__(self, address: str, stack: contextlib.ExitStack, session_timeout_ms: int = 20_000) -> None:
        chroot = uuid.uuid4().hex
        self.forwarder = stack.enter_context(Forwarder(int(address.rpartition(":")[2])))
        self.other = self._open(f"{address}/{chroot}", stack, 20_000)
        self.store = self._open(f"{self.forwarder.address}/{chroot}", stack, session_timeout_ms)
        self.states: list[SessionState] = []
        self._changed = threading.Condition()
        self.store.add_session_listener(self._take)

    @staticmethod
    def _open(connect: str, stack: contextlib.ExitStack, session_timeout_ms: int) -> ZooKeeperStore:
        store = open_zookeeper(connect, session_timeout_ms=session_timeout_ms)
        stack.callback(store.close)
        return store

    def _take(self, state: SessionState) -> None:
        with self._changed:
            self.states.append(state)
            self._changed.notify_all()

    def wait_for(self, *states: SessionState) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.states == list(states), PATIENCE_S), self.states

    def cut(self) -> None:
        self.forwarder.cut()
        self.wait_for(SessionState.SUSPENDED)


@pytest.fixture(params=SERVERS)
def address(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    return server if isinstance(server, str) else str(server.connect)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def link(address: str, stack: contextlib.ExitStack) -> Link:
    return Link(address, stack)


def get(future: Future[Any]) -> Any:
    return future.result(PATIENCE_S)


def test_watches_outlive_the_connection_and_tell_what_was_missed(link: Link) -> None:
    store, other = link.store, link.other
    seen: list[tuple[str, WatchEvent]] = []

    def watcher(name: str) -> Any:
        return lambda event: seen.append((name, event))

    for name in ("changed", "deleted", "parent", "both", "quiet", "again"):
        get(store.create(f"/{name}", b"old"))
    for name in ("changed", "deleted", "quiet", "again"):
        get(store.get(f"/{name}", watch=watcher(name)))
    for name in ("created", "missing"):
        assert get(store.exists(f"/{name}", watch=watcher(name))) is None
    for name in ("parent", "quiet"):
        get(store.children(f"/{name}", watch=watcher(f"children of {name}")))
    both = watcher("both")
    get(store.get("/both", watch=both))
    get(store.children("/both", watch=both))

    link.cut()
    get(other.set("/changed", b"new"))
    get(other.delete("/deleted"))
    get(other.delete("/both"))
    get(other.create("/created"))
    get(other.create("/parent/child"))
    # Asked for before the connection is back: the events come before this answer, which shows their changes.
    order = len(seen)
    changed = store.get("/changed")
    changed.add_done_callback(lambda _: seen.append(("answer", WatchEvent(EventType.CREATED, "/"))))
    link.forwarder.mend()
    assert get(changed)[0] == b"new"
    get(store.sync())
    assert sorted(seen[order:-1]) == sorted(
        [
            ("changed", WatchEvent(EventType.DATA_CHANGED, "/changed")),
            ("deleted", WatchEvent(EventType.DELETED, "/deleted")),
            ("both", WatchEvent(EventType.DELETED, "/both")),
            ("created", WatchEvent(EventType.CREATED, "/created")),
            ("children of parent", WatchEvent(EventType.CHILDREN_CHANGED, "/parent")),
        ],
        key=lambda pair: (pair[0], pair[1].path),
    )
    assert seen[-1][0] == "answer"
    link.wait_for(SessionState.SUSPENDED, SessionState.CONNECTED)

    # The others are still there, and fire once.
    seen.clear()
    for _ in range(2):
        get(other.set("/again", b"new"))
    get(other.create("/missing"))
    get(other.create("/quiet/child"))
    get(store.sync())
    assert [name for name, _ in seen] == ["again", "missing", "children of quiet"]


def test_watches_outlive_a_connection_that_breaks_again_and_again(link: Link) -> None:
    seen: list[WatchEvent] = []
    get(link.store.create("/w"))
    get(link.store.get("/w", watch=seen.append))
    for _ in range(3):
        link.cut()
        link.forwarder.mend()
        link.wait_for(SessionState.SUSPENDED, SessionState.CONNECTED)
        link.states.clear()
    get(link.store.sync())
    assert seen == []
    get(link.other.set("/w", b"new"))
    get(link.store.sync())
    assert seen == [WatchEvent(EventType.DATA_CHANGED, "/w")]


def test_a_watch_of_a_tree_is_left_again_with_every_connection(link: Link) -> None:
    seen: list[WatchEvent] = []
    get(link.store.create("/top"))
    get(link.store.watch_tree("/top", seen.append))
    for number in range(3):
        link.cut()
        get(link.other.create(f"/top/missed-{number}"))
        link.forwarder.mend()
        link.wait_for(SessionState.SUSPENDED, SessionState.CONNECTED)
        link.states.clear()
        get(link.store.sync())
        seen.clear()
        get(link.other.create(f"/top/{number}"))
        get(link.store.sync())
        assert seen == [WatchEvent(EventType.CREATED, f"/top/{number}")]


def test_what_is_asked_for_while_suspended_shows_what_a_watch_of_a_tree_does_not_report(link: Link) -> None:
    """Each change is either in what is read after the connection is back, or reported."""
    seen: list[WatchEvent] = []
    get(link.store.create("/top"))
    get(link.store.watch_tree("/top", seen.append))
    link.cut()
    found = link.store.children("/top")
    link.forwarder.mend()
    for number in range(200):
        get(link.other.create(f"/top/{number}"))
    reported = {event.path.rpartition("/")[2] for event in seen}
    get(link.store.sync())
    reported |= {event.path.rpartition("/")[2] for event in seen}
    assert {*get(found), *reported} == {str(number) for number in range(200)}


def test_a_watch_outlives_a_break_while_what_came_before_it_is_still_being_told(link: Link) -> None:
    """The answer that leaves a watch again is taken late, after the next break; that of the next one never comes."""
    seen: list[WatchEvent] = []
    get(link.store.create("/w"))
    get(link.store.get("/w", watch=seen.append))
    busy, go_on = threading.Event(), threading.Event()

    def hold(state: SessionState) -> None:
        if state is SessionState.CONNECTED and not busy.is_set():
            busy.set()
            assert go_on.wait(PATIENCE_S)

    link.store.add_session_listener(hold)
    link.cut()
    answers = link.forwarder.answers
    link.forwarder.mend()
    assert busy.wait(PATIENCE_S)
    # The session's, and that of the read which leaves the watch.
    wait_until(lambda: link.forwarder.answers >= answers + 2, "two answers")
    refused = link.forwarder.refused
    link.forwarder.cut()
    wait_until(lambda: link.forwarder.refused > refused, "another attempt to connect")
    link.forwarder.passes = 1
    go_on.set()
    link.forwarder.mend()
    expected = [SessionState.SUSPENDED, SessionState.CONNECTED] * 2
    link.wait_for(*expected)
    link.forwarder.cut()
    link.forwarder.passes = None
    link.forwarder.mend()
    link.wait_for(*expected, SessionState.SUSPENDED, SessionState.CONNECTED)
    get(link.other.set("/w", b"new"))
    get(link.store.sync())
    assert seen == [WatchEvent(EventType.DATA_CHANGED, "/w")]


def test_requests_of_a_suspended_session_wait_without_blocking_who_asks(link: Link) -> None:
    get(link.store.create("/w"))
    link.cut()
    pending = [link.store.set("/w", str(number).encode()) for number in range(3000)]
    assert not any(future.done() for future in pending)
    link.forwarder.mend()
    assert [get(future).version for future in pending] == list(range(1, 3001))


def test_a_broken_connection_leaves_what_was_under_way_unknown(link: Link) -> None:
    get(link.store.create("/w"))
    pending = [link.store.set("/w", bytes(1000)) for _ in range(300)]
    # All of them may have been answered by now: what follows is asked for when the break has been noticed.
    link.cut()
    outcomes = [future.exception(PATIENCE_S) for future in pending]
    link.forwarder.mend()
    assert all(outcome is None or isinstance(outcome, ConnectionLoss) for outcome in outcomes)
    done = sum(outcome is None for outcome in outcomes)
    get(link.store.sync())
    assert done <= get(link.store.exists("/w")).version <= len(pending)


def test_the_session_and_its_ephemerals_outlive_the_connection(link: Link) -> None:
    number = link.store.session_id
    get(link.store.create("/e", ephemeral=True))
    link.cut()
    assert get(link.other.exists("/e")).ephemeral_owner == number
    link.forwarder.mend()
    link.wait_for(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert link.store.session_id == number
    with pytest.raises(NodeExists):
        get(link.store.create("/e"))


def test_a_session_away_for_too_long_is_lost_for_good(address: str, stack: contextlib.ExitStack) -> None:
    link = Link(address, stack, session_timeout_ms=4000)
    gone = threading.Event()
    get(link.store.create("/e", ephemeral=True))
    get(link.other.exists("/e", watch=lambda _: gone.set()))
    link.cut()
    pending = link.store.create("/too-late")
    assert gone.wait(PATIENCE_S)
    link.forwarder.mend()
    link.wait_for(SessionState.SUSPENDED, SessionState.LOST)
    for future in (pending, link.store.exists("/")):
        with pytest.raises(SessionExpired):
            get(future)
    assert get(link.other.exists("/too-late")) is None
    assert link.store.state is SessionState.LOST


def test_the_session_lasts_as_long_as_the_server_granted(link: Link, address: str) -> None:
    greedy = open_zookeeper(address, session_timeout_ms=100_000_000)
    get(greedy.sync())
    assert greedy.session_timeout_ms == 120_000
    greedy.close()
    get(link.store.sync())
    assert link.store.session_timeout_ms == 20_000


@pytest.mark.parametrize("server_type", [RegistryProcess, pytest.param(ZooKeeperServer, marks=pytest.mark.zookeeper)])
def test_a_session_outlives_a_restart_of_the_registry(
    tmp_path: Path, stack: contextlib.ExitStack, server_type: type[RegistryProcess | ZooKeeperServer]
) -> None:
    with server_type(tmp_path / "server") as server:
        store = open_zookeeper(f"{server.connect}/part", session_timeout_ms=30_000)
        stack.callback(store.close)
        seen: list[WatchEvent] = []
        get(store.create("/e", ephemeral=True))
        get(store.exists("/later", watch=seen.append))
        number = store.session_id
        server.kill()
        pending = [store.set("/e", str(step).encode()) for step in range(20)]
        server.start()
        # Those that were asked for after the loss had been noticed wait; the others are not known to be done.
        assert all(isinstance(future.exception(PATIENCE_S), (ConnectionLoss, type(None))) for future in pending)
        get(store.create("/later"))
        assert get(store.exists("/e")).ephemeral_owner == store.session_id == number
        assert seen == [WatchEvent(EventType.CREATED, "/later")]


def test_a_connection_whose_first_message_is_never_answered_does_not_cost_the_session(
    address: str, stack: contextlib.ExitStack
) -> None:
    # As of a server that is just starting.
    link = Link(address, stack, session_timeout_ms=8000)
    number = link.store.session_id
    link.cut()
    pending = link.store.exists("/")
    link.forwarder.swallows = 1
    link.forwarder.mend()
    get(pending)
    link.wait_for(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert link.store.session_id == number


def test_closing_a_suspended_session_ends_at_once(link: Link) -> None:
    link.cut()
    pending = link.store.exists("/")
    link.store.close()
    assert isinstance(pending.exception(PATIENCE_S), SessionExpired | ConnectionLoss)
    # Neither for the connection nor for the session's end was waited.
    assert link.states == [SessionState.SUSPENDED]


def test_who_may_not_make_the_chroot_is_told_that_there_is_none(address: str, stack: contextlib.ExitStack) -> None:
    root = open_zookeeper(address)
    stack.callback(root.close)
    with pytest.raises(RegistryError, match=r"has no node /mistyped.*zookeeper\.connect"):
        open_zookeeper(f"{address}/mistyped", make_chroot=False)
    assert get(root.exists("/mistyped")) is None
    open_zookeeper(f"{address}/made").close()
    open_zookeeper(f"{address}/made", make_chroot=False).close()


def test_nobody_to_connect_to_is_said() -> None:
    with pytest.raises(ConnectionLoss, match=r"no ZooKeeper answers at .* within 0\.5 s"):
        open_zookeeper("127.0.0.1:1", connect_timeout_s=0.5)
