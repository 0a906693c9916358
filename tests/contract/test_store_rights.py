"""Who may do what with what a Store over ZooKeeper's protocol creates, against every server of that protocol."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import Create, NoNode
from spark_kafkalite.registry.zookeeper import ZooKeeperStore, open_zookeeper
from tests.patience import PATIENCE_S

SERVERS = ["served", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]


@pytest.fixture(params=SERVERS)
def connect(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    return f"{server if isinstance(server, str) else server.connect}/{uuid.uuid4().hex}/{uuid.uuid4().hex}"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def opened(stack: contextlib.ExitStack, connect: str, digest: str | None, *, set_acl: bool = False) -> ZooKeeperStore:
    auth = None if digest is None else ("digest", digest)
    store = open_zookeeper(connect, auth=auth, set_acl=set_acl)
    stack.callback(store.close)
    return store


def test_what_is_created_with_acls_may_be_changed_by_its_creator_alone(
    connect: str, stack: contextlib.ExitStack
) -> None:
    owner = opened(stack, connect, "u:secret", set_acl=True)
    owner.create("/a/b", b"1", make_parents=True).result(PATIENCE_S)
    owner.multi([Create("/a/c", b"1")]).result(PATIENCE_S)
    owner.create("/consumers/g", make_parents=True).result(PATIENCE_S)
    for digest in (None, "u:other"):
        stranger = opened(stack, connect, digest)
        for path in ("/a/b", "/a/c"):
            assert stranger.get(path).result(PATIENCE_S)[0] == b"1"
            with pytest.raises(RegistryError, match="NoAuth"):
                stranger.set(path, b"2").result(PATIENCE_S)
        for path in ("/a/d", "/new"):
            with pytest.raises(RegistryError, match="NoAuth"):
                stranger.create(path).result(PATIENCE_S)
        stranger.create(f"/consumers/g/{digest}").result(PATIENCE_S)
    opened(stack, connect, "u:secret").set("/a/b", b"2").result(PATIENCE_S)


@pytest.mark.parametrize("in_multi", [False, True])
def test_a_private_node_is_for_who_proves_the_same(connect: str, stack: contextlib.ExitStack, in_multi: bool) -> None:
    owner = opened(stack, connect, "u:secret")
    if in_multi:
        owner.multi([Create("/secret", b"1", private=True)]).result(PATIENCE_S)
    else:
        owner.create("/secret", b"1", private=True).result(PATIENCE_S)
    assert opened(stack, connect, "u:secret").get("/secret").result(PATIENCE_S)[0] == b"1"
    stranger = opened(stack, connect, None)
    with pytest.raises(RegistryError, match="NoAuth"):
        stranger.get("/secret").result(PATIENCE_S)
    # Who has proved nothing cannot make one.
    with pytest.raises(RegistryError, match="InvalidACL"):
        stranger.create("/other", private=True).result(PATIENCE_S)
    assert stranger.exists("/other").result(PATIENCE_S) is None


def test_what_is_private_below_a_guarded_node_cannot_be_replaced(connect: str, stack: contextlib.ExitStack) -> None:
    owner = opened(stack, connect, "u:secret")
    owner.create("/a/secret", b"1", private=True, make_parents=True).result(PATIENCE_S)
    stranger = opened(stack, connect, None)
    # Without that the parent is open, and so others can delete what they cannot read.
    owner.guard("/a").result(PATIENCE_S)
    for attempt in (stranger.delete("/a/secret"), stranger.create("/a/other"), stranger.set("/a", b"2")):
        with pytest.raises(RegistryError, match="NoAuth"):
            attempt.result(PATIENCE_S)
    assert stranger.children("/a").result(PATIENCE_S) == ["secret"]
    # Once more changes nothing, and the owner goes on.
    owner.guard("/a").result(PATIENCE_S)
    owner.create("/a/other").result(PATIENCE_S)


def test_a_node_that_others_may_not_change_keeps_its_rights(connect: str, stack: contextlib.ExitStack) -> None:
    owner, other = opened(stack, connect, "u:secret", set_acl=True), opened(stack, connect, "v:secret")
    owner.create("/a/b", b"1", make_parents=True).result(PATIENCE_S)
    other.guard("/a/b").result(PATIENCE_S)
    owner.set("/a/b", b"2").result(PATIENCE_S)
    with pytest.raises(NoNode):
        owner.guard("/absent").result(PATIENCE_S)
