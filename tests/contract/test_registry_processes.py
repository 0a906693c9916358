"""The registry as a process: alone, within a broker, and ZooKeeper itself from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.zookeeper import four_letters
from spark_kafkalite.registry.served.jute import write_string
from spark_kafkalite.registry.served.server import TreeServer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.registry.zookeeper_client import Client
from tests.contract.protocol_client import ProtocolClient
from tests.contract.test_tree_protocol import EXISTS
from tests.patience import PATIENCE_S


def test_the_registry_runs_alone_and_keeps_nodes_and_sessions(tmp_path: Path) -> None:
    with RegistryProcess(tmp_path / "registry") as registry:
        first = open_zookeeper(registry.connect)
        first.create("/kept", b"data").result(PATIENCE_S)
        first.create("/ephemeral", ephemeral=True).result(PATIENCE_S)
        stat = first.set("/kept", b"more").result(PATIENCE_S)
        assert registry.stop() == 0
        registry.start()
        second = open_zookeeper(registry.connect)
        assert second.get("/kept").result(PATIENCE_S) == (b"more", stat)
        assert second.get("/ephemeral").result(PATIENCE_S)[1].ephemeral_owner == first.session_id < second.session_id
        assert first.set("/ephemeral", b"more").result(PATIENCE_S).version == 1
        first.close()
        assert second.exists("/ephemeral").result(PATIENCE_S) is None
        second.close()


def test_a_registry_that_stood_still_expires_nobody(tmp_path: Path) -> None:
    with RegistryProcess(tmp_path / "registry") as registry:
        store = open_zookeeper(registry.connect, session_timeout_ms=3000)
        store.create("/e", ephemeral=True).result(PATIENCE_S)
        with ProtocolClient(registry.connect, timeout_ms=60_000) as other:
            registry.pause()
            # Longer than the session.
            threading.Event().wait(4)
            registry.resume()
            assert store.get("/e").result(PATIENCE_S)[1].ephemeral_owner == store.session_id
            assert other.ask(EXISTS, write_string("/e") + b"\0").error == 0
        store.close()


def test_four_letter_words_are_answered(tmp_path: Path) -> None:
    with RegistryProcess(tmp_path / "registry") as registry:
        assert four_letters(registry.port, "ruok") == "imok"
        assert four_letters(registry.port, "isro") == "rw"
        assert "Mode: standalone" in four_letters(registry.port, "srvr")
        client = open_zookeeper(registry.connect)
        assert "127.0.0.1" in four_letters(registry.port, "stat")
        client.close()


def test_a_broker_serves_its_registry(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker", registry_port=0) as broker:
        store = open_zookeeper(broker.registry_connect)
        assert store.children("/brokers/ids").result(PATIENCE_S) == ["1"]
        data, _ = store.get("/brokers/ids/1").result(PATIENCE_S)
        assert json.loads(data)["port"] == broker.port
        where = broker.registry_connect
        store.create("/consumers/g", make_parents=True).result(PATIENCE_S)
        store.close()
        broker.restart()
        assert broker.registry_connect == where
        store = open_zookeeper(where)
        assert store.exists("/consumers/g").result(PATIENCE_S) is not None
        store.close()
        assert broker.stop() == 0


def test_a_registry_with_a_digest_answers_who_proves_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("user:secret\n")
    command = [sys.executable, "-m", "spark_kafkalite.cli", "registry", "--data", str(tmp_path / "r"), "--port", "0"]
    process = ChildProcess([*command, "--digest-file", str(tmp_path / "secret")], tmp_path, "registry")
    try:
        process.wait_until(lambda: "\n" in process.stdout_text(), PATIENCE_S, "ready")
        address = process.stdout_text().split()[-1]
        store = open_zookeeper(address, auth=("digest", "user:secret"))
        assert store.create("/a").result(PATIENCE_S) == "/a"
        store.close()
        for wrong in (None, ("digest", "user:wrong")):
            for chroot in ("", "/part"):
                with pytest.raises(RegistryError, match="refuses this client"):
                    open_zookeeper(address + chroot, auth=wrong)
        stranger = KazooClient(address)
        stranger.start()
        with pytest.raises(NoAuthError):
            stranger.get("/a")
        stranger.stop()
        stranger.close()
        process.signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()


def test_a_refusal_that_comes_before_anybody_waits_for_it_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a busy machine does now and then: the session has come and gone before the one who opens it looks."""
    start = Client.start_async

    def start_and_be_refused(client: Client) -> object:
        connected = start(client)
        assert client._connection.connection_stopped.wait(PATIENCE_S)
        return connected

    with EmbeddedRegistry(tmp_path / "r") as registry:
        server = TreeServer(registry, digest="user:secret")
        address = f"127.0.0.1:{server.start('127.0.0.1', 0)}"
        monkeypatch.setattr(Client, "start_async", start_and_be_refused)
        with pytest.raises(RegistryError, match="refuses this client"):
            open_zookeeper(address, auth=("digest", "user:wrong"), connect_timeout_s=5)
        server.close()


def test_a_registry_for_other_hosts_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_kafkalite.cli", "registry", "--data", str(tmp_path / "r")]
    done = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "--host 0.0.0.0: the embedded registry serves this host only" in done.stderr
    assert "need a ZooKeeper ensemble (docs/cluster.md" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.zookeeper
def test_zookeeper_runs_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_kafkalite.cli", "zookeeper", "--data", str(tmp_path / "z"), "--port", "0"]
    process = ChildProcess(command, tmp_path, "zookeeper")
    try:
        process.wait_until(lambda: "\n" in process.stdout_text(), PATIENCE_S, "ready")
        address = process.stdout_text().removeprefix("kafkalite zookeeper ready on ").strip()
        store = open_zookeeper(address)
        assert store.create("/a").result(PATIENCE_S) == "/a"
        store.close()
        port = address.rpartition(":")[2]
        other = [*command[:-3], str(tmp_path / "other"), "--port", port]
        refused = subprocess.run(other, capture_output=True, text=True, timeout=PATIENCE_S)
        assert refused.returncode == 1
        assert refused.stderr == (
            f"kafkalite: ZooKeeper cannot serve on {address}: Address already in use. Choose another port (0: a free "
            "one), or stop what listens there\n"
        )
        process.signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert four_letters(int(address.rpartition(":")[2]), "ruok") == ""
    finally:
        process.kill()
