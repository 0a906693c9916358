"""Three brokers on an ensemble of three ZooKeeper servers that loses one: nobody notices who produces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.testing.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, available, four_letters
from tests.interop.cluster.streams import Ours
from tests.interop.cluster.test_commands import wait_until
from tests.interop.cluster.test_failover import values_of, wait_until_acknowledged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.zookeeper]

# Longer than an ensemble takes to agree on another leader, also where others use the processor.
SESSION_MS = 10_000


def is_leader(server: ZooKeeperServer) -> bool:
    return "Mode: leader" in four_letters(server.port, "srvr")


def broker_epochs(store: Store) -> dict[int, int]:
    """Return the creation zxids of the brokers' registrations."""
    found = {number: store.exists(znodes.broker_path(number)).result(20) for number in (1, 2, 3)}
    return {number: stat.czxid for number, stat in found.items() if stat is not None}


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
            wait_until_acknowledged({"ours": stream}, time.monotonic())
            for leads in (False, True):
                server = next(each for each in ensemble.servers if is_leader(each) is leads)
                began_s = time.monotonic()
                server.kill()
                wait_until(lambda: any(map(is_leader, ensemble.servers)), "the ensemble has no leader")
                led_s = time.monotonic()
                # What does need the registry.
                admin.create_topic(f"while-{server.port}-is-away", 3, 3)
                wait_until_acknowledged({"ours": stream}, time.monotonic())
                gap_s = stream.longest_gap(began_s)
                print(f"{'leader' if leads else 'follower'} killed: longest gap {gap_s:.2f} s")
                # What is written needs no registry, so it goes on while the ensemble has no leader.
                assert not leads or any(began_s < each < led_s for each in stream.acknowledged)
                assert gap_s < SESSION_MS / 2000
                server.start()
                server.wait_until_serving()
            stream.stop()
            assert (stream.errors, len(stream.acknowledged)) == ([], stream.sent)
            assert values_of(cluster.bootstrap, "t") == list(range(stream.sent))
            # Nobody has lost a session, or been thrown out.
            assert broker_epochs(store) == before
            assert admin.describe_topics(["t"])["t"].partitions[0] == state
        finally:
            stream.stop()
            store.close()
