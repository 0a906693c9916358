import pytest

from spark_kafkalite.registry.store import Create, Delete, EventType, NoNode, SetData, WatchEvent
from spark_kafkalite.registry.tree.tree import DataNode, Tree


def events(tree: Tree) -> list[WatchEvent]:
    return [event for _, event in tree.drain()[1]]


def test_touched_names_what_must_be_stored() -> None:
    tree = Tree()
    tree.apply([Create("/a"), Create("/a/b")], 1, 10, 5)
    assert tree.drain()[0] == {"/", "/a", "/a/b"}
    tree.apply([SetData("/a/b", b"x")], 1, 11, 6)
    assert tree.drain()[0] == {"/a/b"}
    tree.apply([Delete("/a/b")], 1, 12, 7)
    assert tree.drain()[0] == {"/a", "/a/b"}


def test_a_refused_transaction_leaves_no_trace() -> None:
    tree = Tree()
    tree.open_session(1)
    tree.apply([Create("/a", b"1")], 1, 10, 5)
    tree.get("/a", 1, lambda _: None)
    tree.drain()
    before = tree.nodes["/a"].stat(), tree.nodes["/"].stat()
    steps = [
        SetData("/a", b"2"),
        Create("/a/e", ephemeral=True),
        Delete("/a/e"),
        Create("/a/f", ephemeral=True),
        Delete("/x"),
    ]
    with pytest.raises(NoNode):
        tree.apply(steps, 1, 11, 6)
    assert (tree.nodes["/a"].stat(), tree.nodes["/"].stat()) == before
    assert tree.drain() == (set(), [])
    assert tree.sessions == {1: set()}
    assert set(tree.nodes) == {"/", "/a"}


def test_times_and_zxids_are_those_given() -> None:
    tree = Tree()
    tree.apply([Create("/a")], 1, 10, 500)
    tree.apply([SetData("/a", b"")], 1, 11, 600)
    tree.apply([Create("/a/b")], 1, 12, 700)
    stat = tree.nodes["/a"].stat()
    assert (stat.czxid, stat.mzxid, stat.pzxid, stat.ctime, stat.mtime) == (10, 11, 12, 500, 600)


def test_closing_a_session_removes_its_ephemerals_and_watches() -> None:
    tree = Tree()
    tree.open_session(1)
    tree.open_session(2)
    tree.apply([Create("/p")], 2, 9, 0)
    tree.apply([Create("/p/one", ephemeral=True), Create("/p/two", ephemeral=True)], 1, 10, 0)
    tree.children("/p", 1, lambda _: None)
    tree.children("/p", 2, lambda _: None)
    tree.drain()
    tree.close_session(1, 11, 0)
    assert tree.nodes["/p"].children == set()
    assert events(tree) == [WatchEvent(EventType.CHILDREN_CHANGED, "/p")]
    tree.close_session(1, 12, 0)
    assert events(tree) == []


def test_loading_needs_parents_first() -> None:
    tree = Tree()
    with pytest.raises(NoNode, match="without its parent"):
        tree.load("/a/b", DataNode(b"", 1, 1, 1, 0, 0))
