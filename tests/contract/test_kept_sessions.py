"""Sessions of ``kafkalite registry`` over its own restart: as ZooKeeper keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient, KazooState

from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.registry.served.jute import write_string
from spark_kafkalite.registry.store import NoNode
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import open_embedded
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.contract.protocol_client import ProtocolClient
from tests.contract.test_tree_protocol import CREATE, EXISTS, SET, create
from tests.contract.test_tree_sessions import CLOSE, NO_NODE
from tests.patience import PATIENCE_S, wait_until


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    with RegistryProcess(tmp_path / "registry") as registry:
        yield registry


def owner_of(peer: ProtocolClient, path: str) -> int | None:
    """Return whose ephemeral node it is, None when there is none."""
    answer = peer.ask(EXISTS, write_string(path) + b"\0")
    return None if answer.error == NO_NODE else int.from_bytes(answer.body[44:52], "big")


@pytest.mark.parametrize("killed", [False, True])
def test_kazoo_goes_on_in_its_session(registry: RegistryProcess, killed: bool) -> None:
    client, states = KazooClient(registry.connect, timeout=10.0), []
    back = threading.Event()

    def changed(state: str) -> None:
        states.append(state)
        if state == KazooState.CONNECTED:
            back.set()

    client.start()
    try:
        client.create("/e", b"1", ephemeral=True)
        client.create("/e2", b"1", ephemeral=True)
        client.set("/e", b"2")
        client.delete("/e2")
        before, number = client.exists("/e"), client.client_id[0]
        client.add_listener(changed)
        if killed:
            registry.kill()
        else:
            assert registry.stop() == 0
        registry.start()
        assert back.wait(PATIENCE_S)
        assert states == [KazooState.SUSPENDED, KazooState.CONNECTED]
        assert client.client_id[0] == number
        assert client.get("/e") == (b"2", before)
        assert client.exists("/e2") is None
    finally:
        client.stop()
        client.close()
    # What ends in order is not there after the next start either.
    registry.kill()
    registry.start()
    with ProtocolClient(registry.connect) as peer:
        assert owner_of(peer, "/e") is None


def test_a_session_has_its_whole_time_from_the_first_moment_on(registry: RegistryProcess) -> None:
    with (
        ProtocolClient(registry.connect, timeout_ms=6000) as silent,
        ProtocolClient(registry.connect, timeout_ms=60_000) as alive,
    ):
        silent.ask(CREATE, create("/silent", flags=1))
        alive.ask(CREATE, create("/alive", flags=1))
        registry.kill()
    # Longer than the session.
    time.sleep(6.5)
    registry.start()
    with ProtocolClient(registry.connect) as other:
        # A new one with a tenth of its time goes before it does.
        with ProtocolClient(registry.connect, timeout_ms=600) as hasty:
            hasty.ask(CREATE, create("/hasty", flags=1))
        wait_until(lambda: owner_of(other, "/hasty") is None, "the hasty session to end")
        assert owner_of(other, "/silent") == silent.session_id
        wait_until(lambda: owner_of(other, "/silent") is None, "the silent session to end")
        assert owner_of(other, "/alive") == alive.session_id
        # One that comes too late, or with another's password, has no session; one that comes in time goes on.
        for number, password in ((silent.session_id, silent.password), (alive.session_id, bytes(16))):
            with ProtocolClient(registry.connect, session=(number, password)) as late:
                assert late.session_id == 0
        with ProtocolClient(registry.connect, session=(alive.session_id, alive.password)) as again:
            assert again.session_id == alive.session_id
            assert again.ask(CLOSE).error == 0
        assert owner_of(other, "/alive") is None


def test_numbers_do_not_come_again(registry: RegistryProcess) -> None:
    seen: list[int] = []
    for _ in range(3):
        with ProtocolClient(registry.connect) as first, ProtocolClient(registry.connect) as second:
            seen += [first.session_id, second.session_id]
            second.ask(CREATE, create("/e", flags=1))
            seen_zxid = second.ask(CLOSE).zxid
            registry.kill()
        registry.start()
        with ProtocolClient(registry.connect, seen_zxid=seen_zxid) as peer:
            assert owner_of(peer, "/e") is None
    assert seen == sorted(set(seen))


def test_a_node_that_changes_its_kind_is_what_it_was_last(registry: RegistryProcess) -> None:
    """In one commit with what came before, too: the group is formed while the first of them is synced."""
    with ProtocolClient(registry.connect) as peer:
        for flags, data in ((0, b"1"), (1, b"2"), (0, b"3"), (1, b"4")):
            peer.send(CREATE, create("/n", data, flags=flags))
            peer.send(2, write_string("/n") + (-1).to_bytes(4, "big", signed=True))
        for _ in range(8):
            assert peer.receive().error == 0
        peer.ask(CREATE, create("/n", b"5", flags=1))
        peer.ask(CREATE, create("/p", b"5"))
        peer.ask(SET, write_string("/p") + b"\0\0\0\1" + b"6" + (-1).to_bytes(4, "big", signed=True))
    registry.kill()
    registry.start()
    with ProtocolClient(registry.connect) as other:
        assert owner_of(other, "/n") == peer.session_id
        assert owner_of(other, "/p") == 0


def test_in_a_broker_they_end_with_the_process_that_kept_them(tmp_path: Path) -> None:
    with RegistryProcess(tmp_path / "registry") as registry:
        client = open_zookeeper(registry.connect, session_timeout_ms=60_000)
        client.create("/e", ephemeral=True).result(PATIENCE_S)
        client.create("/p/e", ephemeral=True, make_parents=True).result(PATIENCE_S)
        last_zxid = client.create("/last", ephemeral=True).result(PATIENCE_S) and client._client.last_zxid
        registry.kill()
        client.close()
    with EmbeddedRegistry(tmp_path / "registry") as broker:
        assert broker.last_zxid >= last_zxid
        assert not broker.kept_sessions
    for keeps in (False, True):
        store = open_embedded(tmp_path / "registry", keep_sessions=keeps)
        assert store.registry.last_zxid >= last_zxid
        assert store.children("/p").result() == []
        with pytest.raises(NoNode):
            store.get("/e").result()
        # Free for somebody else.
        store.create("/e", ephemeral=True).result()
        store.close()


def test_clients_that_have_seen_later_transactions_are_named_once_with_what_to_do(registry: RegistryProcess) -> None:
    """An older copy of the registry is served: nothing else in its log would say why no broker comes back."""
    for _ in range(2):
        with pytest.raises((OSError, EOFError)):
            ProtocolClient(registry.connect, seen_zxid=4711)
    said = [line for line in registry.stderr_path.read_text().splitlines() if "have seen transaction 4711" in line]
    assert len(said) == 1
    assert "recover-registry" in said[0]
