"""The registry's Store: one suite for every implementation.

Each factory gives a registry that can open sessions. What only one implementation has (a connection that breaks, a
directory that survives a kill) is tested in files of their own beside this one.
"""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.registry.store import (
    MAX_READ_AT_ONCE,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SessionState,
    SetData,
    Store,
    WatchEvent,
)
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.lab.fake_registry import FakeRegistry
from tests.patience import PATIENCE_S
from tests.seeds import SEED

Connect = Callable[[], Store]


def embedded(directory: Path) -> Iterator[Connect]:
    with EmbeddedRegistry(directory) as registry:
        yield partial(EmbeddedStore, registry)


@contextlib.contextmanager
def sessions_at(address: str) -> Iterator[Connect]:
    """Sessions over ZooKeeper's protocol, in a part of the tree that no other test uses; closed at the end."""
    with contextlib.ExitStack() as closing:

        def connect() -> Store:
            store = open_zookeeper(f"{address}/{chroot}", session_timeout_ms=6000)
            closing.callback(store.close)
            return store

        chroot = f"test-{uuid.uuid4().hex}"
        yield connect


def fake(directory: Path) -> Iterator[Connect]:
    with FakeRegistry(directory) as registry:
        yield registry.connect


IMPLEMENTATIONS = [
    "embedded",
    "fake",
    "served",
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    pytest.param("wounded_ensemble", marks=pytest.mark.zookeeper),
]


@pytest.fixture(params=IMPLEMENTATIONS)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    if request.param == "embedded":
        yield from embedded(tmp_path)
        return
    if request.param == "fake":
        yield from fake(tmp_path)
        return
    server = request.getfixturevalue(request.param)
    with sessions_at(server if isinstance(server, str) else server.connect) as connect:
        yield connect


@pytest.fixture
def store(connect: Connect) -> Store:
    return connect()


def get(future: Future[Any]) -> Any:
    return future.result(PATIENCE_S)


class Events:
    """Takes watch events and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.seen: list[WatchEvent] = []
        self._arrived = threading.Semaphore(0)

    def __call__(self, event: WatchEvent) -> None:
        self.seen.append(event)
        self._arrived.release()

    def next(self) -> WatchEvent:
        assert self._arrived.acquire(timeout=PATIENCE_S), "no watch event came"
        return self.seen[-1]


def test_a_created_node_is_read_back_with_its_stat(store: Store) -> None:
    assert get(store.create("/a", b"one")) == "/a"
    data, stat = get(store.get("/a"))
    assert data == b"one"
    assert (stat.version, stat.data_length, stat.num_children, stat.ephemeral_owner) == (0, 3, 0, 0)
    assert stat.czxid == stat.mzxid == stat.pzxid > 0


def test_set_raises_version_and_mzxid_only(store: Store) -> None:
    get(store.create("/a"))
    before = get(store.exists("/a"))
    after = get(store.set("/a", b"two", 0))
    assert (after.version, after.czxid) == (1, before.czxid)
    assert after.mzxid > before.mzxid
    assert get(store.get("/a")) == (b"two", after)


def test_versions_guard_writes(store: Store) -> None:
    get(store.create("/a"))
    get(store.set("/a", b"two"))
    for refused in (store.set("/a", b"three", 0), store.delete("/a", 0)):
        with pytest.raises(BadVersion, match="version"):
            get(refused)
    get(store.delete("/a", 1))
    assert get(store.exists("/a")) is None


def test_refusals(store: Store) -> None:
    get(store.create("/a/b/c", make_parents=True))
    cases: list[tuple[Future[Any], type[Exception]]] = [
        (store.create("/a"), NodeExists),
        (store.create("/x/y"), NoNode),
        (store.get("/x"), NoNode),
        (store.set("/x", b""), NoNode),
        (store.delete("/x"), NoNode),
        (store.children("/x"), NoNode),
        (store.delete("/a/b"), NotEmpty),
        (store.create("/big", bytes(2 * 1024 * 1024)), BadArguments),
        (store.create("relative"), BadArguments),
        (store.create("/a//b"), BadArguments),
        (store.create("/a/../b"), BadArguments),
        (store.create("/a/"), BadArguments),
        (store.create("/a\x00"), BadArguments),
    ]
    for future, error in cases:
        with pytest.raises(error):
            get(future)


def test_many_nodes_are_read_in_one_message(store: Store) -> None:
    paths = [f"/n{number}" for number in range(MAX_READ_AT_ONCE - 2)]
    for index, path in enumerate(paths):
        get(store.create(path, b"x" * index))
    read = get(store.get_many(["/none", *paths, "/"]))
    assert isinstance(read[0], NoNode) and read[0].path == "/none"
    assert read[1:] == [get(store.get(path)) for path in (*paths, "/")]
    assert get(store.get_many([])) == []
    for wrong in (["/a/"], ["/a"] * (MAX_READ_AT_ONCE + 1)):
        with pytest.raises(BadArguments):
            get(store.get_many(wrong))


def test_nodes_of_the_largest_size_are_read_in_one_message(store: Store, request: pytest.FixtureRequest) -> None:
    # The ZooKeeper servers of the tests have heaps too small for that.
    size = 10_000 if re.search("zookeeper|ensemble", request.node.name) else 1_000_000
    paths = [f"/n{number}" for number in range(MAX_READ_AT_ONCE)]
    for path in paths:
        get(store.create(path, bytes(size)))
    assert [len(data) for data, _ in get(store.get_many(paths))] == [size] * len(paths)


def test_children_are_names_in_order(store: Store) -> None:
    for name in ("b", "a", "c"):
        get(store.create(f"/top/{name}", make_parents=True))
    assert get(store.children("/top")) == ["a", "b", "c"]


def test_child_counters_follow_zookeeper(store: Store) -> None:
    get(store.create("/top"))
    get(store.create("/top/a"))
    get(store.create("/top/b"))
    get(store.delete("/top/a"))
    stat = get(store.exists("/top"))
    # Two creations and a deletion: three changes of the list of children, and none of the data.
    assert (stat.cversion, stat.num_children, stat.version) == (3, 1, 0)
    assert stat.pzxid > stat.mzxid


def test_sequential_names_grow_also_after_deletions(store: Store) -> None:
    get(store.create("/q"))
    first = get(store.create("/q/n-", sequential=True))
    get(store.delete(first))
    second = get(store.create("/q/n-", sequential=True))
    assert (first, second) == ("/q/n-0000000000", "/q/n-0000000001")


def test_ephemerals_go_with_their_session_and_have_no_children(connect: Connect) -> None:
    owner, other = connect(), connect()
    events = Events()
    get(owner.create("/e", b"", ephemeral=True))
    get(other.sync())
    assert get(other.exists("/e", watch=events)).ephemeral_owner == owner.session_id
    with pytest.raises(NoChildrenForEphemerals):
        get(other.create("/e/child"))
    owner.close()
    assert events.next() == WatchEvent(EventType.DELETED, "/e")
    assert get(other.exists("/e")) is None


def test_sessions_have_numbers_of_their_own_and_end_for_good(connect: Connect) -> None:
    first, second = connect(), connect()
    assert second.session_id != first.session_id
    states: list[SessionState] = []
    first.add_session_listener(states.append)
    first.close()
    assert states == []
    assert first.state is SessionState.LOST
    with pytest.raises(SessionExpired):
        get(first.exists("/"))
    assert get(second.exists("/")) is not None


def test_watches_fire_once_with_what_happened(connect: Connect) -> None:
    store, writer = connect(), connect()
    events = Events()
    assert get(store.exists("/w", watch=events)) is None
    get(writer.create("/w"))
    assert events.next() == WatchEvent(EventType.CREATED, "/w")
    get(store.get("/w", watch=events))
    get(writer.set("/w", b"1"))
    assert events.next() == WatchEvent(EventType.DATA_CHANGED, "/w")
    get(store.children("/w", watch=events))
    get(writer.create("/w/child"))
    assert events.next() == WatchEvent(EventType.CHILDREN_CHANGED, "/w")
    get(writer.delete("/w/child"))
    get(writer.set("/w", b"2"))
    get(store.sync())
    assert len(events.seen) == 3


def test_a_watch_of_a_tree_stays_and_tells_of_every_node_below_it(connect: Connect) -> None:
    store, writer = connect(), connect()
    events = Events()
    get(store.watch_tree("/top", events))
    steps: list[tuple[Future[Any], WatchEvent]] = [
        (writer.create("/top"), WatchEvent(EventType.CREATED, "/top")),
        (writer.create("/top/a"), WatchEvent(EventType.CREATED, "/top/a")),
        (writer.create("/top/a/b"), WatchEvent(EventType.CREATED, "/top/a/b")),
        (writer.set("/top/a/b", b"1"), WatchEvent(EventType.DATA_CHANGED, "/top/a/b")),
        (writer.set("/top/a/b", b"2"), WatchEvent(EventType.DATA_CHANGED, "/top/a/b")),
        (writer.delete("/top/a/b"), WatchEvent(EventType.DELETED, "/top/a/b")),
    ]
    for written, _ in steps:
        get(written)
    get(writer.create("/topmost"))
    get(writer.set("/", b""))
    get(store.sync())
    assert events.seen == [event for _, event in steps]


def test_a_multi_is_reported_node_by_node_to_a_watch_of_a_tree(connect: Connect) -> None:
    store, writer = connect(), connect()
    events = Events()
    get(writer.create("/top"))
    # A server of an ensemble may learn of a change only after another server has answered its writer.
    get(store.sync())
    get(store.watch_tree("/", events))
    get(writer.multi([Create("/top/a"), Create("/top/a/b"), SetData("/top", b"1")]))
    get(store.sync())
    assert events.seen == [
        WatchEvent(EventType.CREATED, "/top/a"),
        WatchEvent(EventType.CREATED, "/top/a/b"),
        WatchEvent(EventType.DATA_CHANGED, "/top"),
    ]


def test_a_watcher_hears_once_of_what_several_of_its_watches_of_trees_see(store: Store) -> None:
    events, other = Events(), Events()
    for path in ("/top", "/top/a", "/top/a"):
        get(store.watch_tree(path, events))
    get(store.watch_tree("/top/a", other))
    get(store.create("/top/a", make_parents=True))
    get(store.sync())
    assert events.seen == [WatchEvent(EventType.CREATED, "/top"), WatchEvent(EventType.CREATED, "/top/a")]
    assert other.seen == [WatchEvent(EventType.CREATED, "/top/a")]


def test_a_watch_of_a_tree_leaves_those_of_single_nodes_as_they_are(store: Store) -> None:
    of_tree, of_node, of_children = Events(), Events(), Events()
    get(store.create("/top"))
    get(store.watch_tree("/top", of_tree))
    get(store.get("/top", watch=of_node))
    get(store.children("/top", watch=of_children))
    get(store.create("/top/a"))
    for data in (b"1", b"2"):
        get(store.set("/top", data))
    get(store.sync())
    assert [event.path for event in of_tree.seen] == ["/top/a", "/top", "/top"]
    assert of_node.seen == [WatchEvent(EventType.DATA_CHANGED, "/top")]
    assert of_children.seen == [WatchEvent(EventType.CHILDREN_CHANGED, "/top")]


def test_an_event_of_a_watched_tree_comes_before_the_answer_that_shows_its_change(store: Store) -> None:
    order: list[str] = []
    get(store.create("/w"))
    get(store.watch_tree("/w", lambda _: order.append("event")))
    store.set("/w", b"1").add_done_callback(lambda _: order.append("written"))
    store.get("/w").add_done_callback(lambda _: order.append("read"))
    get(store.sync())
    assert order == ["event", "written", "read"]


def test_a_tree_is_not_watched_at_a_path_that_no_node_can_have(store: Store) -> None:
    with pytest.raises(BadArguments):
        get(store.watch_tree("/a//b", Events()))


def test_a_watcher_of_data_and_children_hears_of_a_deletion_once(store: Store) -> None:
    events = Events()
    get(store.create("/w"))
    get(store.get("/w", watch=events))
    get(store.children("/w", watch=events))
    get(store.delete("/w"))
    get(store.sync())
    assert events.seen == [WatchEvent(EventType.DELETED, "/w")]


def test_the_same_watcher_left_twice_fires_once(store: Store) -> None:
    events = Events()
    get(store.create("/w"))
    for _ in range(3):
        get(store.get("/w", watch=events))
    get(store.set("/w", b"1"))
    get(store.sync())
    assert len(events.seen) == 1


def test_a_failed_read_leaves_no_watch(store: Store) -> None:
    events = Events()
    for read in (store.get, store.children):
        with pytest.raises(NoNode):
            get(read("/w", watch=events))
    get(store.create("/w"))
    get(store.sync())
    assert events.seen == []


def test_an_event_comes_before_the_answer_that_shows_its_change(store: Store) -> None:
    order: list[str] = []
    get(store.create("/w"))
    get(store.get("/w", watch=lambda _: order.append("event")))
    store.set("/w", b"1").add_done_callback(lambda _: order.append("written"))
    store.get("/w").add_done_callback(lambda _: order.append("read"))
    get(store.sync())
    assert order == ["event", "written", "read"]


def test_answers_come_in_the_order_of_the_calls(store: Store) -> None:
    order: list[int] = []
    get(store.create("/w"))
    for number in range(500):
        store.set("/w", str(number).encode()).add_done_callback(lambda _, number=number: order.append(number))
    get(store.sync())
    assert order == list(range(500))


def test_a_failing_callback_stops_nothing(store: Store) -> None:
    def broken(_: WatchEvent) -> None:
        raise ValueError("a watcher's own fault")

    get(store.create("/w"))
    get(store.get("/w", watch=broken))
    get(store.set("/w", b"1"))
    assert get(store.get("/w"))[0] == b"1"


def test_multi_does_everything(store: Store) -> None:
    get(store.create("/a"))
    results = get(
        store.multi([Check("/a", 0), SetData("/a", b"x", 0), Create("/a/b"), Create("/a/b/c", b"y"), Delete("/a/b/c")])
    )
    assert results[0] is None
    assert results[1].version == 1
    assert results[2:] == ["/a/b", "/a/b/c", None]
    assert get(store.children("/a")) == ["b"]


def test_multi_does_nothing_when_one_operation_is_refused(store: Store) -> None:
    events = Events()
    get(store.create("/a", b"old"))
    get(store.create("/a/keep"))
    before = get(store.get("/a", watch=events))
    with pytest.raises(BadVersion) as refused:
        get(
            store.multi(
                [
                    SetData("/a", b"new"),
                    Create("/a/n", ephemeral=True),
                    Create("/a/s-", sequential=True),
                    Delete("/a/keep"),
                    Check("/a", 7),
                ]
            )
        )
    assert refused.value.operation_index == 4
    assert get(store.get("/a")) == before
    assert get(store.children("/a")) == ["keep"]
    get(store.sync())
    assert events.seen == []
    # The refused creations have used up no sequence number either.
    assert get(store.create("/a/s-", sequential=True)) == "/a/s-0000000001"


def test_the_root_stays(store: Store) -> None:
    with pytest.raises(NodeError):
        get(store.delete("/"))


# Against a model ----------------------------------------------------------------------------------------------------


class Model:
    """What a tree of nodes must do, in the simplest words: a dictionary from path to data and version."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def create(self, path: str, data: bytes) -> str:
        parent = path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            return "NoNode"
        if path in self.nodes:
            return "NodeExists"
        self.nodes[path] = (data, 0)
        return "ok"

    def set(self, path: str, data: bytes, version: int) -> str:
        if path not in self.nodes:
            return "NoNode"
        if version not in (-1, self.nodes[path][1]):
            return "BadVersion"
        self.nodes[path] = (data, self.nodes[path][1] + 1)
        return "ok"

    def delete(self, path: str, version: int) -> str:
        if path not in self.nodes:
            return "NoNode"
        if version not in (-1, self.nodes[path][1]):
            return "BadVersion"
        if any(other.startswith(path + "/") for other in self.nodes):
            return "NotEmpty"
        del self.nodes[path]
        return "ok"


def _outcome(future: Future[Any]) -> str:
    error = future.exception(PATIENCE_S)
    return "ok" if error is None else type(error).__name__


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_match_the_model(connect: Connect, seed: int, request: pytest.FixtureRequest) -> None:
    store, chosen, model = connect(), random.Random(SEED + seed), Model()
    paths = [f"/{a}" for a in "ab"] + [f"/{a}/{b}" for a in "ab" for b in "cd"] + ["/a/c/e", "/b/d/f"]
    # Each step waits for its answer, which takes the longer the further away it is.
    for step in range(600 if "embedded" in request.node.name else 120):
        path, version, data = chosen.choice(paths), chosen.choice([-1, -1, 0, 1]), str(step).encode()
        action = chosen.choice(["create", "create", "set", "delete"])
        if action == "create":
            assert _outcome(store.create(path, data)) == model.create(path, data), (SEED + seed, step, path)
        elif action == "set":
            assert _outcome(store.set(path, data, version)) == model.set(path, data, version), (SEED + seed, step, path)
        else:
            assert _outcome(store.delete(path, version)) == model.delete(path, version), (SEED + seed, step, path)
    for path in paths:
        if path in model.nodes:
            data, stat = get(store.get(path))
            assert (data, stat.version) == model.nodes[path]
        else:
            assert get(store.exists(path)) is None


# Across a crash -----------------------------------------------------------------------------------------------------

# Prints what each answer showed, after the answer came; the parent kills it in the middle.
WRITER = """
import sys
from spark_kafkalite.registry.tree.embedded_store import open_embedded
store = open_embedded(sys.argv[1])
store.create("/n").exception()
print("session", store.session_id, flush=True)
pending = []
for number in range(1_000_000):
    data = str(number).encode()
    pending.append((number, store.create("/n/k-", data, sequential=True), store.set("/n", data)))
    if len(pending) == 50:
        lines = []
        for number, created, changed in pending:
            stat = changed.result()
            lines.append(f"{created.result()} {number} {stat.version} {stat.mzxid}")
        print("\\n".join(lines), flush=True)
        pending = []
"""


def test_kill_9_loses_no_answer_and_takes_nothing_back(tmp_path: Path) -> None:
    sessions, version, zxid = [], -1, 0
    answered: dict[str, bytes] = {}
    for rounds in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": _root()},
        )
        assert child.stdout is not None
        sessions.append(int(child.stdout.readline().split()[1]))
        lines = [child.stdout.readline() for _ in range(200 + 100 * rounds)]
        child.kill()
        rest = child.stdout.read()
        child.wait()
        child.stdout.close()
        lines += rest.splitlines()[: rest.count("\n")]  # the last line may be cut
        for line in lines:
            path, number, seen_version, seen_zxid = line.split()
            assert path not in answered
            answered[path] = number.encode()
            assert int(seen_version) > version
            assert int(seen_zxid) > zxid
            version, zxid = int(seen_version), int(seen_zxid)
        with EmbeddedRegistry(tmp_path) as registry:
            assert registry.last_zxid >= zxid
            store = EmbeddedStore(registry)
            sessions.append(store.session_id)
            data = {path: get(store.get(path))[0] for path in answered}
            assert data == answered
            stat = get(store.exists("/n"))
            assert stat.version >= version
            version, zxid = stat.version, registry.last_zxid
    assert sessions == sorted(set(sessions))


def _root() -> str:
    return str(Path(__file__).resolve().parents[2])
