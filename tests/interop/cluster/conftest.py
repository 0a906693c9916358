"""One cluster for all tests of this folder: it stays up, and each test finds it whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.processes.zookeeper import ZooKeeperServer, available
from tests.interop.cluster.heard import wait_until_all_know_all, wait_until_known
from tests.interop.cluster.recovered_cluster import Place
from tests.seeds import SOAK

# A broker that does not run for two seconds, as on a busy machine, would lose what it leads with a session of two.
SESSION_MS: Final = 2_000 if SOAK else 6_000
SESSION: Final = {"zookeeper.session.timeout.ms": SESSION_MS}

_topic_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    # A group's first members need not wait for more of them.
    overrides = {**SESSION, "group.initial.rebalance.delay.ms": 0, "log.initial.task.delay.ms": 86_400_000}
    with KafkaliteCluster(tmp_path_factory.mktemp("cluster"), overrides=overrides) as running:
        yield running


@pytest.fixture
def cluster(running_cluster: KafkaliteCluster) -> Iterator[KafkaliteCluster]:
    """Three brokers, whole at the beginning; what a test kills or freezes is brought back after it.

    All tests share it. So a test deletes its topics of fewer than three replicas: they lose their leaders where a later
    test stops brokers, and commands for all partitions name them. So it does with those that need all three in sync.
    """
    yield running_cluster
    for broker in running_cluster.brokers.values():
        if broker.running:
            broker.resume()
        else:
            broker.start()
    running_cluster.wait_in_sync()
    wait_until_all_know_all(running_cluster)


@pytest.fixture
def admin(cluster: KafkaliteCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as client:
        yield client


@pytest.fixture
def new_topic(cluster: KafkaliteCluster, admin: Admin) -> Callable[..., str]:
    """Makes a topic of three replicas, or as many as are asked for, and waits until they are in sync."""

    def make(partitions: int = 1, replication_factor: int = -1, **settings: object) -> str:
        name = f"topic-{next(_topic_numbers)}"
        configs = {setting.replace("_", "."): str(value) for setting, value in settings.items()}
        admin.create_topic(name, partitions, replication_factor, configs=configs)
        cluster.wait_in_sync(name)
        for broker in cluster.brokers.values():
            wait_until_known(broker.bootstrap, name)
        return name

    return make


@pytest.fixture(params=["registry", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    overrides = {**SESSION, "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}
    if request.param == "registry":
        with KafkaliteCluster(tmp_path / "cluster", overrides=overrides) as cluster:
            registry = cluster.registry
            yield Place(cluster, tmp_path, registry.data_dir, registry.start, registry.stop)
        return
    if (reason := available()) is not None:
        pytest.skip(reason)
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        overrides["zookeeper.connect"] = server.connect
        with KafkaliteCluster(tmp_path / "cluster", overrides=overrides) as cluster:
            yield Place(cluster, tmp_path, tmp_path / "zookeeper" / "data", server.start, server.stop)
