"""Where the cluster secret comes from: the file, the registry, and changes of both."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from spark_kafkalite.broker import secret_keeper
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.secret_keeper import SecretKeeper
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Store, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.security.cluster_secret import ClusterSecret
from tests.patience import PATIENCE_S, wait_until_async

ONE, TWO = "1" * 32, "2" * 32


class Place:
    """A keeper over a file and an embedded registry, and whatever secret it has given."""

    def __init__(self, path: Path, store: Store, io: IoThreads, **settings: object) -> None:
        config = BrokerConfig.from_properties({"zookeeper.connect": "127.0.0.1:1", **settings})
        self.wire = InnerWire(1, "PLAINTEXT", is_for_brokers_alone=False)
        self.path = path
        self.store = store
        self.keeper = SecretKeeper(config, self.wire, io, lambda: store)

    async def until(self, secret: str) -> None:
        expected = ClusterSecret((secret,))
        await wait_until_async(lambda: self.wire.secret == expected, "the other secret is in force", poll_s=0.001)


def run(tmp_path: Path, test: Callable[[Place], Awaitable[None]], **settings: object) -> None:
    async def running() -> None:
        registry = EmbeddedRegistry(tmp_path / "registry")
        io = IoThreads(asyncio.get_running_loop(), 1)
        store = EmbeddedStore(registry)
        place = Place(tmp_path / "secret", store, io, **settings)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await test(place)
        finally:
            place.keeper.stop()
            store.close()
            registry.close()
            await io.wait_until_idle()
            io.close()

    asyncio.run(running())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_keeper, "_LOOK_S", 0.005)


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file as a whole."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    os.replace(new, path)


def test_the_file_is_read_and_read_again_when_it_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "secret", ONE)

    async def test(place: Place) -> None:
        await place.keeper.start()
        assert place.wire.secret == ClusterSecret((ONE,))
        write(place.path, TWO + "\n")
        await place.until(TWO)
        # What is no secret changes nothing, however it comes, and is told.
        for spoil in (lambda: write(place.path, "short"), place.path.unlink):
            spoil()
            caplog.clear()
            await wait_until_async(
                lambda: "stays as it was" in caplog.text, "the keeper reports a file without a secret", poll_s=0.001
            )
            assert place.wire.secret == ClusterSecret((TWO,))
        write(place.path, ONE)
        await place.until(ONE)

    with caplog.at_level(logging.INFO, "spark_kafkalite"):
        run(tmp_path, test, **{"inter.broker.secret.file": str(tmp_path / "secret")})
    assert ONE not in caplog.text and TWO not in caplog.text


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604])
def test_a_file_that_others_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int) -> None:
    write(tmp_path / "secret", ONE, mode)

    async def test(place: Place) -> None:
        await place.keeper.start()

    run(tmp_path, test, **{"inter.broker.secret.file": str(tmp_path / "secret")})
    assert ("others can read" in caplog.text) == bool(mode & 0o077)


@pytest.mark.parametrize("content", [None, "", "short", "x" * 5000])
def test_a_start_without_a_good_file_fails_with_its_name(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        write(tmp_path / "secret", content)

    async def test(place: Place) -> None:
        with pytest.raises(ConfigError, match=r"inter\.broker\.secret\.file=.*/secret"):
            await place.keeper.start()

    run(tmp_path, test, **{"inter.broker.secret.file": str(tmp_path / "secret")})


def test_brokers_on_loopback_share_a_node_that_the_first_one_makes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(place: Place) -> None:
        await place.keeper.start()
        first = place.wire.secret
        assert first is not None
        data, _ = await answer(place.store.get(znodes.INTER_BROKER_SECRET))
        assert first == ClusterSecret((data.decode(),))
        await place.keeper.start()
        assert place.wire.secret == first
        await answer(place.store.set(znodes.INTER_BROKER_SECRET, TWO.encode()))
        await place.until(TWO)
        # Deleted, it stays in force.
        await answer(place.store.delete(znodes.INTER_BROKER_SECRET))
        await asyncio.sleep(0.05)
        assert place.wire.secret == ClusterSecret((TWO,))
        assert "all clients of the registry can read" in caplog.text

    run(tmp_path, test)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", ""])
def test_a_broker_that_others_reach_needs_a_secret(host: str) -> None:
    settings: dict[str, object] = {
        "zookeeper.connect": "127.0.0.1:1",
        "listeners": f"PLAINTEXT://{host}:9092",
        "advertised.listeners": "PLAINTEXT://broker.example:9092",
    }
    with pytest.raises(ConfigError, match=r"inter\.broker\.secret\.file .*zookeeper\.digest"):
        BrokerConfig.from_properties(settings)
    BrokerConfig.from_properties(settings | {"inter.broker.secret.file": "/x"})
    BrokerConfig.from_properties(settings | {"zookeeper.digest": "user:password"})
    del settings["zookeeper.connect"]
    BrokerConfig.from_properties(settings)


def test_a_listener_that_is_named_beside_others_is_the_brokers_own() -> None:
    settings: dict[str, object] = {
        "zookeeper.connect": "127.0.0.1:1",
        "listeners": "PLAINTEXT://127.0.0.1:9092,INNER://127.0.0.1:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
    }
    assert not BrokerConfig.from_properties(settings).inner_listener_is_for_brokers_alone
    named = BrokerConfig.from_properties(settings | {"inter.broker.listener.name": "INNER"})
    assert named.inner_listener_is_for_brokers_alone and named.inner_listener.name == "INNER"
    only = {"listeners": "PLAINTEXT://127.0.0.1:9092", "inter.broker.listener.name": "PLAINTEXT"}
    assert not BrokerConfig.from_properties(settings | only).inner_listener_is_for_brokers_alone
