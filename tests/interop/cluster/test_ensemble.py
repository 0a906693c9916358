"""Three brokers on an ensemble of three ZooKeeper servers that loses one: producers do not notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.testing.child_process import freeze
from spark_kafkalite.testing.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, available, four_letters
from tests.interop.cluster.streams import Ours
from tests.interop.cluster.test_failover import values_of, wait_until_acknowledged
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.zookeeper]

# Longer than an ensemble takes to agree on another leader, also where others use the processor.
SESSION_MS = 10_000


def is_leader(server: ZooKeeperServer) -> bool:
    return "Mode: leader" in four_letters(server.port, "srvr")


def broker_epochs(store: Store) -> dict[int, int]:
    """Return the creation zxids of the brokers' registrations."""
    found = {number: store.exists(znodes.broker_path(number)).result(PATIENCE_S) for number in (1, 2, 3)}
    return {number: stat.czxid for number, stat in found.items() if stat is not None}


@contextmanager
def paused(servers: list[ZooKeeperServer]) -> Iterator[None]:
    for server in servers:
        freeze(server.pid)
    try:
        yield
    finally:
        for server in servers:
            os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    if (reason := available()) is not None:
        pytest.skip(reason)
    with ZooKeeperEnsemble(tmp_path / "ensemble") as ensemble:
        yield ensemble


def test_an_ensemble_loses_a_follower_and_its_leader_under_load(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    connect = f"{ensemble.connect}/kafkalite"
    settings = {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": SESSION_MS}
    with (
        KafkaliteCluster(tmp_path / "cluster", overrides=settings) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        admin.create_topic("t", 1, 3)
        store = open_zookeeper(connect)
        stream = Ours(cluster.bootstrap, "t", tmp_path)
        try:
            before, state = broker_epochs(store), admin.describe_topics(["t"])["t"].partitions[0]
            wait_until_acknowledged({"ours": stream})
            for leads in (False, True):
                server = next(each for each in ensemble.servers if is_leader(each) is leads)
                server.kill()
                wait_until(lambda: any(map(is_leader, ensemble.servers)), "a leader of the ensemble")
                # What does need the registry.
                admin.create_topic(f"while-{server.port}-is-away", 3, 3)
                wait_until_acknowledged({"ours": stream})
                server.start()
                server.wait_until_serving()
            # What is written needs no registry: it goes on while no server answers.
            with paused(ensemble.servers):
                wait_until_acknowledged({"ours": stream})
            stream.stop()
            assert (stream.errors, stream.acknowledged) == ([], stream.sent)
            assert values_of(cluster.bootstrap, "t") == list(range(stream.sent))
            # No broker has lost its session, and no replica has left the ISR.
            assert broker_epochs(store) == before
            assert admin.describe_topics(["t"])["t"].partitions[0] == state
        finally:
            stream.stop()
            store.close()
