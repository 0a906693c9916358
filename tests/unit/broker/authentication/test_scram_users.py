"""The users of SCRAM over a real embedded registry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from spark_kafkalite.broker.authentication.scram_users import ScramUsers
from spark_kafkalite.errors import ResourceNotFound
from spark_kafkalite.registry import entity_nodes, znodes
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.config_nodes import alter_entity
from spark_kafkalite.registry.store import Store, answer
from spark_kafkalite.registry.tree.acl import Permission, allows
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.security.scram import credential_text, scram_credential
from tests.patience import PATIENCE_S, wait_until_async

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
FIRST = scram_credential(SHA_256, "one", b"salt", 4096)
SECOND = scram_credential(SHA_512, "two", b"salt", 8192)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), PATIENCE_S)

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def users_of(registry: EmbeddedRegistry) -> AsyncIterator[tuple[ScramUsers, Store]]:
    """One broker's users, and its session."""
    store, entities = EmbeddedStore(registry), EntityConfigs()
    users = ScramUsers(entities, lambda: store)
    watch = await entities.follow(store)
    await users.start()
    try:
        yield users, store
    finally:
        watch.close()


def test_what_one_broker_changes_the_others_follow(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        async with users_of(registry) as (here, store), users_of(registry) as (there, _):
            assert here.decoy_secret == there.decoy_secret
            # Another kind of settings is kept.
            await alter_entity(store, "users/alice", lambda old: {**old, "producer_byte_rate": "1"})
            await here.alter("alice", {SHA_256: FIRST, SHA_512: SECOND})
            # Whoever has made a change sees it at once.
            assert here.find(SHA_256, "alice") == FIRST and here.iterations("alice") == {SHA_256: 4096, SHA_512: 8192}
            await wait_until_async(lambda: there.find(SHA_512, "alice") == SECOND, "the other broker follows")
            with pytest.raises(ResourceNotFound):
                await there.alter("alice", {SHA_256: None, "SCRAM-SHA-1": None})
            await there.alter("alice", {SHA_256: None})
            await wait_until_async(lambda: here.find(SHA_256, "alice") is None, "the other broker follows")
            assert here.names() == {"alice"}
            await here.alter("alice", {SHA_512: None})
            assert here.names() == set()
            data, _ = await answer(store.get("/config/users/alice"))
            assert znodes.decode_config("/config/users/alice", data) == {
                "producer_byte_rate": "1",
                "SCRAM-SHA-256.deletions": "1",
                "SCRAM-SHA-512.deletions": "1",
            }
        registry.close()

    run(work)


def test_credentials_that_cannot_be_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        good = credential_text(FIRST)
        async with users_of(registry) as (users, store):
            await users.alter("alice", {SHA_256: FIRST})
            bad = good.replace("iterations=4096", "iterations=1")
            for user, text in (("broker-1", good), ("alice", bad), ("b", good)):
                await alter_entity(store, entity_nodes.user_entity(user), lambda _, text=text: {SHA_256: text})
            await wait_until_async(lambda: users.find(SHA_256, "b"), "the last one is taken")
            # A broken credential does not leave the old one in force.
            assert users.names() == {"b"}
        registry.close()

    with caplog.at_level(logging.WARNING):
        run(work)
    assert "names broker-NUMBER are those of the brokers" in caplog.text and "has 1 iterations" in caplog.text
    assert credential_text(FIRST)[:30] not in caplog.text


def test_only_the_process_of_an_embedded_registry_reads_credentials(tmp_path: Path) -> None:
    async def work() -> None:
        registry = EmbeddedRegistry(tmp_path)
        # Of a version that left it open.
        await answer(EmbeddedStore(registry).create("/config/clients/old", make_parents=True))
        async with users_of(registry) as (users, _):
            await users.alter("alice", {SHA_256: FIRST})
            for path in ("/config/users", "/config/users/alice", "/config/clients/old", entity_nodes.DECOY_SECRET):
                # What the sessions of other processes may be known as.
                assert not allows(registry.tree.nodes[path].acl, Permission.READ, {("digest", "broker:x")})
        registry.close()

    run(work)
