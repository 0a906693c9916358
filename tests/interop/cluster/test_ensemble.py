"""Three brokers on an ensemble of three ZooKeeper servers that loses one: producers do not notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.processes.child_process import freeze
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.processes.zookeeper import ZooKeeperServer, available, four_letters
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.operations_page import commands_of
from tests.interop.cluster.streams import Ours
from tests.interop.cluster.test_commands import kafkalite
from tests.interop.cluster.test_failover import values_of, wait_until_acknowledged
from tests.lab.zookeeper_ensemble import ZooKeeperEnsemble
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.zookeeper]

# Longer than an ensemble takes to agree on another leader, also where others use the processor.
SESSION_MS = 30_000


def is_leader(server: ZooKeeperServer) -> bool:
    return "Mode: leader" in four_letters(server.port, "srvr")


def broker_epochs(store: Store) -> dict[int, int]:
    """Return the creation zxids of the brokers' registrations."""
    # The server that answers may be behind the one that took a registration.
    store.sync().result(PATIENCE_S)
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


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers, for clusters with chroots of their own; each test leaves them running."""
    if (reason := available()) is not None:
        pytest.skip(reason)
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
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


def test_the_ensemble_loses_its_majority(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """docs/operations.md, "The ensemble has lost its majority"."""
    start, status = commands_of("The ensemble has lost its majority")
    assert start == "bin/zkServer.sh start"
    # As short as ZooKeeper's ticks allow.
    settings = {"zookeeper.connect": f"{ensemble.connect}/majority", "zookeeper.session.timeout.ms": 4_000}
    with (
        KafkaliteCluster(tmp_path / "cluster", overrides=settings) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topic("t", 1, 3)
        consumer.subscribe(["t"])

        def goes_on() -> None:
            sent = producer.send("t", b"x").result(PATIENCE_S).offset
            wait_until(
                lambda: any(record.offset == sent for record in consumer.poll(100)), "the group to read on", poll_s=0
            )
            consumer.commit()
            assert admin.group_offsets("g")[TopicPartition("t", 0)].offset == sent + 1

        def says() -> str:
            return kafkalite(*status.split()[1:], "--bootstrap-server", cluster.bootstrap).stdout

        goes_on()
        away = ensemble.servers[:2]
        for server in away:
            server.kill()
        wait_until(lambda: "controller none" in says(), "the brokers' leases to end")
        goes_on()
        for server in away:
            server.start(wait=False)
        for server in away:
            server.wait_until_serving()
        wait_until(lambda: "controller none" not in says(), "a controller")
        wait_until(lambda: "under-replicated: 0" in says(), "all replicas to be in sync")
        admin.create_topic("u", 1, 3)
        goes_on()
