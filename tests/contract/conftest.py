"""Servers of ZooKeeper's protocol that the contract's tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes.zookeeper import available, four_letters
from spark_kafkalite.registry.served.server import TreeServer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from tests.lab.zookeeper_ensemble import ZooKeeperEnsemble


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of an embedded registry of this process."""
    with EmbeddedRegistry(tmp_path / "served") as registry:
        server = TreeServer(registry)
        yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
        server.close()


@pytest.fixture(scope="session")
def wounded_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connect string of three servers, whose first leader has been killed."""
    if (reason := available()) is not None:
        pytest.skip(reason)
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        leader = next(server for server in ensemble.servers if "Mode: leader" in four_letters(server.port, "srvr"))
        leader.kill()
        for server in ensemble.servers:
            if server is not leader:
                server.wait_until_serving()
        yield ensemble.connect
