"""ACLs are followed through notices, over a real embedded registry, and written without losing another's change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest

from spark_kafkalite.acls import AccessControlEntry, Operation, PatternType, PermissionType, Resource, ResourceType
from spark_kafkalite.registry import acl_nodes
from spark_kafkalite.registry.acl_changes import alter_acls, has_acls
from spark_kafkalite.registry.cluster.acl_watch import AclFollower
from spark_kafkalite.registry.store import BadArguments, NoNode, Store, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import CLUSTER_ID
from tests.lab.fake_registry import FakeRegistry
from tests.patience import PATIENCE_S, wait_until_async

TOPIC = Resource(ResourceType.TOPIC, PatternType.LITERAL, "t")
PREFIX = Resource(ResourceType.GROUP, PatternType.PREFIXED, "g")
READ = AccessControlEntry("User:a", "*", Operation.READ, PermissionType.ALLOW)
EVERYTHING_DENIED = AccessControlEntry("User:*", "*", Operation.ALL, PermissionType.DENY)
WRITE = AccessControlEntry("User:a", "*", Operation.WRITE, PermissionType.ALLOW)


class Followed(AclFollower):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.acls: dict[Resource, frozenset[AccessControlEntry]] = {}
        super().__init__(self._put, self.acls.items)

    def _put(self, resource: Resource, entries: Collection[AccessControlEntry]) -> None:
        self.acls[resource] = frozenset(entries)
        if not entries:
            del self.acls[resource]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), PATIENCE_S)

    asyncio.run(bounded())


def test_changes_by_others_are_followed(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        here, there = EmbeddedStore(registry), EmbeddedStore(registry)
        # Before there are any nodes, too.
        assert await alter_acls(there, TOPIC, lambda old: old | {READ}) == (frozenset(), {READ})
        followed = Followed()
        watch = await followed.follow(here)
        assert followed.acls == {TOPIC: {READ}}
        assert await alter_acls(there, TOPIC, lambda old: old | {WRITE}) == ({READ}, {READ, WRITE})
        await alter_acls(there, PREFIX, lambda old: old | {READ})
        await wait_until_async(lambda: followed.acls == {TOPIC: {READ, WRITE}, PREFIX: {READ}}, "both changes")
        await alter_acls(there, TOPIC, lambda _: frozenset())
        await wait_until_async(lambda: followed.acls == {PREFIX: {READ}}, "the deletion")
        with pytest.raises(NoNode):
            await answer(there.get(acl_nodes.acl_path(TOPIC)))
        assert await has_acls(there)
        watch.close()
        registry.close()

    run(work)


def test_acls_are_written_again_when_the_node_above_all_of_them_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def remove(store: Store, path: str) -> None:
        for name in await answer(store.children(path)):
            await remove(store, f"{path}/{name}")
        await answer(store.delete(path))

    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        here, there = EmbeddedStore(registry), EmbeddedStore(registry)
        await answer(there.create(CLUSTER_ID, b"{}", make_parents=True))
        await alter_acls(there, TOPIC, lambda _: frozenset({READ}))
        await alter_acls(there, PREFIX, lambda _: frozenset({WRITE}))
        followed = Followed()
        watch = await followed.follow(here)
        for path in (acl_nodes.LITERAL_ACLS, acl_nodes.EXTENDED_ACLS, acl_nodes.LITERAL_CHANGES):
            await remove(there, path)
        await wait_until_async(lambda: caplog.text.count("written again") == 2, "two lines", poll_s=0.01)
        for resource in (TOPIC, PREFIX):
            path = acl_nodes.acl_path(resource)
            assert acl_nodes.decode_acls(path, (await answer(there.get(path)))[0]) == followed.acls[resource]
        assert followed.acls == {TOPIC: {READ}, PREFIX: {WRITE}}
        watch.close()
        registry.close()

    run(work)


def test_a_notice_with_a_number_of_its_own_hides_no_later_change(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        here, there = EmbeddedStore(registry), EmbeddedStore(registry)
        await alter_acls(there, TOPIC, lambda old: old | {READ, WRITE})
        followed = Followed()
        watch = await followed.follow(here)
        # Other clients of the registry may create it where zookeeper.set.acl is not true.
        largest = f"{acl_nodes.LITERAL_CHANGES}/{acl_nodes.NOTICE_PREFIX}9999999999"
        await answer(there.create(largest, b"Group:other"))
        await alter_acls(there, TOPIC, lambda old: old - {WRITE})
        await wait_until_async(lambda: followed.acls == {TOPIC: {READ}}, "the revocation to be followed")
        await alter_acls(there, TOPIC, lambda _: frozenset())
        await wait_until_async(lambda: followed.acls == {}, "the deletion to be followed")
        watch.close()
        registry.close()

    run(work)


def test_two_alterations_at_once_both_count(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        stores = [EmbeddedStore(registry) for _ in range(8)]
        entries = [
            AccessControlEntry(f"User:{number}", "*", Operation.READ, PermissionType.ALLOW) for number in range(8)
        ]

        async def add(store: EmbeddedStore, entry: AccessControlEntry) -> None:
            await alter_acls(store, TOPIC, lambda old: old | {entry})

        await asyncio.gather(*map(add, stores, entries))
        data, _ = await answer(stores[0].get(acl_nodes.acl_path(TOPIC)))
        assert acl_nodes.decode_acls("", data) == set(entries)
        # A change that changes nothing leaves no notice.
        before = await answer(stores[0].children(acl_nodes.LITERAL_CHANGES))
        await alter_acls(stores[0], TOPIC, lambda old: old)
        assert await answer(stores[0].children(acl_nodes.LITERAL_CHANGES)) == before
        registry.close()

    run(work)


def test_everything_is_read_again_in_the_next_session(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        other, first = EmbeddedStore(registry), EmbeddedStore(registry)
        followed = Followed()
        watch = await followed.follow(first)
        await alter_acls(other, TOPIC, lambda old: old | {READ})
        await wait_until_async(lambda: followed.acls == {TOPIC: {READ}}, "the change")
        watch.close()
        first.close()
        await alter_acls(other, TOPIC, lambda _: frozenset())
        await alter_acls(other, PREFIX, lambda old: old | {READ})
        # The last known ones hold meanwhile.
        assert followed.acls == {TOPIC: {READ}}
        watch = await followed.follow(EmbeddedStore(registry))
        assert followed.acls == {PREFIX: {READ}}
        watch.close()
        registry.close()

    run(work)


def test_a_node_that_cannot_be_read_denies_everything_until_it_is_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        registry = FakeRegistry(tmp_path)
        other = registry.connect()
        followed = Followed()
        store = await asyncio.wrap_future(registry.open_session())
        watch = await followed.follow(store)
        await alter_acls(other, TOPIC, lambda old: old | {READ})
        await wait_until_async(lambda: followed.acls == {TOPIC: {READ}}, "the change")
        await answer(other.set(acl_nodes.acl_path(TOPIC), b"no json"))
        for entry in (READ, WRITE):
            # A notice that says nothing has everything read again.
            await answer(other.create(f"{acl_nodes.LITERAL_CHANGES}/acl_changes_", b"?", sequential=True))
            await alter_acls(other, PREFIX, lambda old, entry=entry: old | {entry})
            await wait_until_async(lambda entry=entry: entry in followed.acls.get(PREFIX, ()), "the change")
        assert followed.acls[TOPIC] == acl_nodes.UNREADABLE == {EVERYTHING_DENIED}
        # So does a broker that starts now.
        started = Followed()
        (await started.follow(registry.connect())).close()
        assert started.acls[TOPIC] == {EVERYTHING_DENIED}
        # What is added to it is added to the denial, which may have been in it, and has to be deleted by itself.
        assert await alter_acls(other, TOPIC, lambda old: old | {WRITE}) == (
            {EVERYTHING_DENIED},
            {EVERYTHING_DENIED, WRITE},
        )
        await wait_until_async(lambda: WRITE in followed.acls[TOPIC], "the repair")
        await answer(other.set(acl_nodes.acl_path(TOPIC), b"no json"))
        await alter_acls(other, TOPIC, lambda old: old - {EVERYTHING_DENIED})
        await wait_until_async(lambda: TOPIC not in followed.acls, "the deletion")
        watch.close()

    run(work)
    line = (
        "only super users may use topic 't': registry node /kafka-acl/Topic/t holds b'no json', which cannot be read: "
        "Expecting value: line 1 column 1 (char 0). Delete its ACLs (kafkalite acls delete --topic t), and add those "
        "that are needed again"
    )
    # One of each follower.
    assert [each for each in caplog.messages if "only super users" in each] == [line] * 2


@pytest.mark.parametrize("name", ["..", "a\x00b"])
def test_a_name_that_no_node_can_have_is_refused(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        with pytest.raises(BadArguments):
            await alter_acls(EmbeddedStore(registry), TOPIC._replace(name=name), lambda old: old | {READ})
        registry.close()

    run(work)


def test_more_than_a_node_holds_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        many = frozenset(READ._replace(principal=f"User:{'x' * 200}{number}") for number in range(5000))
        with pytest.raises(BadArguments, match="use fewer, or a prefix"):
            await alter_acls(EmbeddedStore(registry), TOPIC, lambda old: old | many)
        registry.close()

    run(work)
