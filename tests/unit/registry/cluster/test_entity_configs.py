"""Settings of users are followed through notices, over a real embedded registry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from spark_kafkalite.registry import entity_nodes, znodes
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.config_nodes import alter_entity
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import Store, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.lab.fake_registry import FakeRegistry
from tests.patience import PATIENCE_S, wait_until_async

ALICE = "users/alice"


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), PATIENCE_S)

    asyncio.run(bounded())


def setting(name: str, value: str | None) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    def change(old: Mapping[str, str]) -> Mapping[str, str]:
        new = {**old, name: value or ""}
        return new if value is not None else {each: text for each, text in new.items() if each != name}

    return change


def test_changes_by_others_are_followed_and_merge(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        here, there = EmbeddedStore(registry), EmbeddedStore(registry)
        await alter_entity(there, ALICE, setting("x", "1"))
        configs, seen = EntityConfigs(), []
        configs.add_listener(lambda entity, config: seen.append((entity, dict(config))))
        watch = await configs.follow(here)
        assert seen == [(ALICE, {"x": "1"})]
        await alter_entity(there, ALICE, setting("y", "2"))
        await alter_entity(there, "users/bob/clients/c", setting("z", "3"))
        await wait_until_async(lambda: len(seen) == 3, "the change to be followed")
        assert configs.config(ALICE) == {"x": "1", "y": "2"}
        assert configs.config("users/bob/clients/c") == {"z": "3"}
        await alter_entity(there, ALICE, setting("x", None))
        await alter_entity(there, ALICE, setting("y", None))
        await wait_until_async(lambda: configs.config(ALICE) == {}, "the change to be followed")
        watch.close()
        registry.close()

    run(work)


def test_a_notice_with_a_number_of_its_own_hides_no_later_change(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        here, there = EmbeddedStore(registry), EmbeddedStore(registry)
        await alter_entity(there, ALICE, setting("x", "1"))
        configs = EntityConfigs()
        watch = await configs.follow(here)
        # Other clients of the registry may create it where zookeeper.set.acl is not true.
        largest = f"{znodes.CONFIG_CHANGES}/{entity_nodes.NOTICE_PREFIX}9999999999"
        await answer(there.create(largest, entity_nodes.encode_notice("users/bob")))
        await alter_entity(there, ALICE, setting("x", "2"))
        await wait_until_async(lambda: configs.config(ALICE) == {"x": "2"}, "the change to be followed")
        await alter_entity(there, ALICE, setting("x", None))
        await wait_until_async(lambda: configs.config(ALICE) == {}, "the change to be followed")
        watch.close()
        registry.close()

    run(work)


def test_a_notice_goes_with_its_change_and_names_the_entity_as_kafka_does(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        store = EmbeddedStore(registry)
        await alter_entity(store, entity_nodes.user_entity("a b/ü~"), setting("x", "1"))
        (name,) = await answer(store.children(znodes.CONFIG_CHANGES))
        data, _ = await answer(store.get(f"{znodes.CONFIG_CHANGES}/{name}"))
        assert data == b'{"version":2,"entity_path":"users/a%20b%2F%C3%BC%7E"}'
        assert entity_nodes.decode_notice(name, b'{"version":1,"entity_type":"users","entity_name":"a"}') == "users/a"
        with pytest.raises(MalformedNode):
            entity_nodes.decode_notice(name, b"{}")
        # A change that changes nothing leaves none.
        await alter_entity(store, entity_nodes.user_entity("a b/ü~"), setting("x", "1"))
        assert await answer(store.children(znodes.CONFIG_CHANGES)) == [name]
        registry.close()

    run(work)


def test_everything_is_read_again_in_the_next_session(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        other: Store = EmbeddedStore(registry)
        configs = EntityConfigs()
        first = EmbeddedStore(registry)
        watch = await configs.follow(first)
        await alter_entity(other, ALICE, setting("x", "1"))
        await wait_until_async(lambda: configs.config(ALICE) == {"x": "1"}, "the change to be followed")
        watch.close()
        first.close()
        await alter_entity(other, ALICE, setting("x", None))
        await alter_entity(other, "users/bob", setting("x", "2"))
        # The last known ones hold meanwhile.
        assert configs.config(ALICE) == {"x": "1"}
        watch = await configs.follow(EmbeddedStore(registry))
        assert configs.config(ALICE) == {} and configs.config("users/bob") == {"x": "2"}
        watch.close()
        registry.close()

    run(work)


@pytest.mark.parametrize("path", [entity_nodes.CONFIG_ROOT, f"{entity_nodes.CONFIG_ROOT}/users"])
@pytest.mark.parametrize("is_next_session", [False, True])
def test_users_are_written_again_when_the_node_above_all_of_them_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, is_next_session: bool
) -> None:
    """A single user's node stays removed: that is how an operator without a broker deletes one."""

    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        other, session = EmbeddedStore(registry), EmbeddedStore(registry)
        await answer(other.create(znodes.CLUSTER_ID, b"{}", make_parents=True))
        for entity in (ALICE, "users/bob", "users/bob/clients/c", "clients/d"):
            await alter_entity(other, entity, setting("x", "1"))
        configs = EntityConfigs()
        watch = await configs.follow(session)
        heard: list[str] = []
        configs.add_listener(lambda entity, _: heard.append(entity))
        if is_next_session:
            watch.close()
            session.close()
        await remove(other, path)
        if is_next_session:
            watch = await configs.follow(EmbeddedStore(registry))
        else:
            # What makes a broker look again: /config/changes is gone, or the connection was lost.
            watch._read_all_again()
        lines = 2 if path == entity_nodes.CONFIG_ROOT else 1
        await wait_until_async(lambda: caplog.text.count("written again") == lines, "the lines", poll_s=0.01)
        for entity in (ALICE, "users/bob", "users/bob/clients/c", "clients/d"):
            data, _ = await answer(other.get(entity_nodes.entity_node(entity)))
            assert entity_nodes.decode_settings(entity, data)[0] == configs.config(entity) == {"x": "1"}
        # No client was taken for deleted meanwhile.
        assert heard == []
        await answer(other.delete(entity_nodes.entity_node(ALICE)))
        watch._read_all_again()
        await wait_until_async(lambda: configs.config(ALICE) == {}, "the user to be gone", poll_s=0.01)
        watch.close()
        registry.close()

    run(work)


async def remove(store: Store, path: str) -> None:
    for name in await answer(store.children(path)):
        await remove(store, f"{path}/{name}")
    await answer(store.delete(path))


def test_a_user_that_only_has_settings_of_its_clients_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        store = EmbeddedStore(registry)
        await alter_entity(store, "users/bob/clients/c", setting("x", "1"))
        configs = EntityConfigs()
        watch = await configs.follow(EmbeddedStore(registry))
        assert configs.config("users/bob") == {} and configs.config("users/bob/clients/c") == {"x": "1"}
        await alter_entity(store, "users/bob", setting("y", "2"))
        await wait_until_async(lambda: configs.config("users/bob") == {"y": "2"}, "the change to be followed")
        watch.close()
        registry.close()

    run(work)
    assert caplog.text == ""


def test_notices_that_are_removed_with_their_parent_cost_one_line_and_changes_are_followed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        other: Store = EmbeddedStore(registry)
        await answer(other.create(znodes.CLUSTER_ID, b"{}", make_parents=True))
        configs = EntityConfigs()
        watch = await configs.follow(EmbeddedStore(registry))
        for _ in range(20):
            await answer(other.create(f"{znodes.CONFIG_CHANGES}/config_change_", b"{", sequential=True))
        await wait_until_async(lambda: "are read again" in caplog.text, "the notices to be seen")
        assert caplog.text.count("are read again") == 1
        for name in await answer(other.children(znodes.CONFIG_CHANGES)):
            await answer(other.delete(f"{znodes.CONFIG_CHANGES}/{name}"))
        await answer(other.delete(znodes.CONFIG_CHANGES))
        while await answer(other.exists(znodes.CONFIG_CHANGES)) is None:
            await asyncio.sleep(0.01)
        await alter_entity(other, ALICE, setting("x", "1"))
        await wait_until_async(lambda: configs.config(ALICE) == {"x": "1"}, "the change to be followed")
        watch.close()
        registry.close()

    run(work)


def test_an_interrupted_connection_and_a_removed_notice_cost_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        registry = FakeRegistry(tmp_path)
        other = registry.connect()
        configs = EntityConfigs()
        store = await asyncio.wrap_future(registry.open_session())
        watch = await configs.follow(store)
        await answer(other.create("/config/users/alice", znodes.encode_config({"x": "1"})))
        # Its data cannot be read, so that nothing tells what has changed.
        await answer(other.create(f"{znodes.CONFIG_CHANGES}/config_change_", b"{", sequential=True))
        await wait_until_async(lambda: configs.config(ALICE) == {"x": "1"}, "the change to be followed")
        await answer(other.set("/config/users/alice", b"no json"))
        await alter_entity(other, "users/bob", setting("x", "1"))
        await wait_until_async(lambda: configs.config("users/bob") == {"x": "1"}, "the change to be followed")
        assert configs.config(ALICE) == {"x": "1"}
        watch.close()

    run(work)


@pytest.mark.parametrize("damage", [b"no json", b'{"version":2,"config":{"SCRAM-SHA-256":"salt=secret"}}'])
def test_a_node_that_cannot_be_read_leaves_the_quotas_and_no_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        store = EmbeddedStore(registry)
        await alter_entity(store, ALICE, lambda _: {"SCRAM-SHA-256": "salt=secret", "producer_byte_rate": "1"})
        known, started = EntityConfigs(), EntityConfigs()
        watch = await known.follow(store)
        await answer(store.set("/config/users/alice", damage))
        for configs, expected in ((known, {"producer_byte_rate": "1"}), (started, {})):
            for _ in range(2):
                (await configs.follow(EmbeddedStore(registry))).close()
            assert configs.config(ALICE) == expected
        await alter_entity(store, ALICE, setting("y", "2"))
        await wait_until_async(lambda: known.config(ALICE) == {"y": "2"}, "the repair")
        watch.close()
        registry.close()

    run(work)
    why = f"registry node /config/users/alice holds {len(damage)} bytes that are not the settings of an entity"
    lines = [each for each in caplog.messages if "cannot authenticate" in each]
    assert [(why in each, "stay as they were" in each, "default ones" in each) for each in lines] == [
        (True, True, False),
        (True, False, True),
    ]
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("entity", "user"),
    [
        ("users/a%20b", "a b"),
        ("users/<default>", None),
        ("users/%3Cdefault%3E", "<default>"),
        ("users/a/clients/c", None),
        ("clients/c", None),
        ("users", None),
    ],
)
def test_the_user_of_an_entity(entity: str, user: str | None) -> None:
    assert entity_nodes.user_of_entity(entity) == user
    if user is not None:
        assert entity_nodes.user_entity(user) == entity
