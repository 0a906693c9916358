"""Who may do what with what a Store over ZooKeeper's protocol creates, against every server of that protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from spark_kafkalite.acls import AccessControlEntry, Operation, PatternType, PermissionType, Resource, ResourceType
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, ControllerEpoch, LeaderEpoch
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.acl_changes import alter_acls
from spark_kafkalite.registry.cluster.acl_watch import AclFollower
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.cluster.registration import create_base_nodes
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.config_nodes import alter_entity
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
    secret, root = stranger.get_many(["/secret", "/"]).result(PATIENCE_S)
    assert isinstance(secret, RegistryError) and "NoAuth" in str(secret)
    assert root == stranger.get("/").result(PATIENCE_S)
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
    assert owner.guard("/a").result(PATIENCE_S) is True
    owner.create("/a/other").result(PATIENCE_S)
    assert owner.guard("/a/other", private=True).result(PATIENCE_S) is False
    assert owner.guard("/a", private=True).result(PATIENCE_S) is owner.guard("/a").result(PATIENCE_S) is False
    for attempt in (stranger.get("/a"), stranger.children("/a"), stranger.get("/a/other")):
        with pytest.raises(RegistryError, match="NoAuth"):
            attempt.result(PATIENCE_S)
    assert owner.children("/a").result(PATIENCE_S) == ["other", "secret"]


def test_a_topics_node_that_is_for_others_costs_only_what_it_holds(
    connect: str, stack: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    owner, stranger = opened(stack, connect, "u:secret"), opened(stack, connect, None)
    me = BrokerId(1)
    assignment = znodes.TopicAssignment(znodes.new_uuid(), {0: (me,), 1: (me,)})
    state = znodes.LeaderAndIsr(me, LeaderEpoch(1), (me,), ControllerEpoch(1)).encode()
    hidden = {znodes.topic_path("hidden"), znodes.topic_config_path("settings"), znodes.state_path("states", 0)}

    def create(path: str, data: bytes) -> None:
        owner.create(path, data, private=path in hidden, make_parents=True).result(PATIENCE_S)

    async def work() -> None:
        await create_base_nodes(stranger)
        for name in ("whole", "hidden", "settings", "states"):
            create(znodes.topic_path(name), assignment.encode())
            create(znodes.topic_config_path(name), znodes.encode_config({"retention.ms": "7"}))
            for number in assignment.partitions:
                create(znodes.state_path(name, number), state)
        watcher = ClusterWatcher(stranger, ClusterView())
        found = await asyncio.wait_for(watcher.start("c"), PATIENCE_S)
        for _ in range(2):
            assert set(found.topics) == {"whole", "settings", "states"}
            assert found.unreadable_topics == {"hidden"}
            assert [name for name, topic in found.topics.items() if not topic.config] == ["settings"]
            unreadable = [
                (name, number)
                for name, topic in found.topics.items()
                for number, partition in topic.partitions.items()
                if partition.unreadable
            ]
            assert unreadable == [("states", 0)]
            # Each is named in one line, however often it is read.
            errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
            assert len(errors) == 3 and all(sum(path in each for each in errors) == 1 for path in hidden)
            assert all("let this broker read the node" in each for each in errors)
            watcher._reads.put(watcher._read_all)
            found = await watcher.caught_up(PATIENCE_S)
        # What was known stands.
        for path in (znodes.topic_path("whole"), znodes.topic_config_path("whole"), znodes.state_path("whole", 0)):
            owner.guard(path, private=True).result(PATIENCE_S)
        before = found.topics["whole"]
        for path in hidden:
            owner._client.set_acls(path, OPEN_ACL_UNSAFE)
        watcher._reads.put(watcher._read_all)
        found = await watcher.caught_up(PATIENCE_S)
        assert found.topics["whole"] == before
        # What may be read again is served.
        assert found.unreadable_topics == set()
        for name in ("hidden", "settings", "states"):
            assert found.topics[name].config == {"retention.ms": "7"}
            assert [partition.leader for partition in found.topics[name].partitions.values()] == [me, me]
        watcher.close()

    asyncio.run(work())


@pytest.mark.parametrize("set_acl", [False, True])
def test_what_a_registry_had_before_brokers_had_an_identity_becomes_private_with_set_acl(
    connect: str, stack: contextlib.ExitStack, set_acl: bool
) -> None:
    """The nodes of users, quotas and ACLs, with all notices, of brokers without a digest, and then of ones with it."""
    entry = AccessControlEntry("User:a", "*", Operation.READ, PermissionType.ALLOW)
    entities = ("users/a", "users/a/clients/c", "clients/c", "ips/10.0.0.1")
    resources = [Resource(ResourceType.TOPIC, pattern, "t") for pattern in PatternType]

    def change_all(store: ZooKeeperStore, value: str) -> None:
        async def change() -> None:
            for entity in entities:
                await alter_entity(store, entity, lambda _: {"producer_byte_rate": value})
            for resource in resources:
                await alter_acls(store, resource, lambda old: old ^ {entry})

        asyncio.run(change())

    open_store, stranger = opened(stack, connect, None), opened(stack, connect, None)
    change_all(open_store, "1")

    def readable() -> set[str]:
        """What is about users, quotas and ACLs, and a stranger reads."""
        found = set()
        ask = [("config", each) for each in stranger.children("/config").result(PATIENCE_S)] + [
            ("", each) for each in stranger.children("/").result(PATIENCE_S) if each.startswith("kafka-acl")
        ]
        paths = [f"/{parent}/{name}".replace("//", "/") for parent, name in ask]
        while paths:
            path = paths.pop()
            with contextlib.suppress(RegistryError):
                stranger.get(path).result(PATIENCE_S)
                found.add(path)
                paths += [f"{path}/{name}" for name in stranger.children(path).result(PATIENCE_S)]
        return found - {"/config/changes"}

    old = readable()
    assert {"/config/users/a/clients/c", "/config/ips/10.0.0.1", "/kafka-acl/Topic/t"} <= old
    brokers = opened(stack, connect, "broker:secret", set_acl=set_acl)

    async def start_and_stop() -> None:
        (await EntityConfigs().follow(brokers)).close()
        (await AclFollower(lambda *_: None, lambda: ()).follow(brokers)).close()

    asyncio.run(start_and_stop())
    # Otherwise the deletion of a user could be kept from brokers.
    notice = brokers.children("/config/changes").result(PATIENCE_S)[0]
    for attempt in (stranger.delete(f"/config/changes/{notice}"), stranger.create("/config/changes/other")):
        with pytest.raises(RegistryError, match="NoAuth"):
            attempt.result(PATIENCE_S)
    if not set_acl:
        # Other brokers may not have the identity yet.
        assert readable() == old
        return
    # Notices of that time go within a quarter of an hour.
    assert {each for each in readable() if not each.startswith("/config/changes/")} == set()
    before = readable()
    change_all(brokers, "2")
    assert readable() == before


def test_a_node_that_others_may_not_change_keeps_its_rights(connect: str, stack: contextlib.ExitStack) -> None:
    owner, other = opened(stack, connect, "u:secret", set_acl=True), opened(stack, connect, "v:secret")
    owner.create("/a/b", b"1", make_parents=True).result(PATIENCE_S)
    other.guard("/a/b").result(PATIENCE_S)
    owner.set("/a/b", b"2").result(PATIENCE_S)
    with pytest.raises(NoNode):
        owner.guard("/absent").result(PATIENCE_S)
