"""The fixtures that come with the package: a real broker, or a cluster of them, for one test.

pytest finds this module through the entry point ``pytest11``, so installing spark-kafkalite is all it takes::

    def test_orders_arrive(kafkalite_broker):
        with Producer(bootstrap_servers=kafkalite_broker.bootstrap) as producer:
            producer.send("orders", b"one").result(10)
        assert [record.value for record in kafkalite_broker.records("orders")] == [b"one"]

docs/testing.md describes more, such as tests of a Spark job. Each test has a broker of its own, on a free loopback port
and in the test's temporary directory, so tests may run in parallel. It is a process: ``kill()`` it, ``restart()`` it on
the same port, ``stop()`` it. It is gone when the test ends.

``kafkalite_cluster`` has three brokers and a registry, all processes: what it costs is a second::

    def test_orders_survive_a_crash(kafkalite_cluster):
        producer = Producer(bootstrap_servers=kafkalite_cluster.bootstrap)
        producer.send("orders", b"one").result(10)
        kafkalite_cluster.kill(kafkalite_cluster.leader_of("orders"))
        producer.send("orders", b"two").result(10)

``kafkalite_security`` secures both. Define it again, and give ``client_settings`` to clients::

    @pytest.fixture
    def kafkalite_security():
        return {"tls": True, "sasl": "SCRAM-SHA-512"}

    def test_orders_arrive(kafkalite_broker):
        producer = Producer(kafkalite_broker.client_settings)

pytest imports this module in every run of every project, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spark_kafkalite.processes.cluster import BrokerProcess
    from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster


@pytest.fixture
def kafkalite_broker_settings() -> Mapping[str, object]:
    """Broker settings for ``kafkalite_broker``, in Kafka's names; define this fixture again to give your own."""
    return {}


@pytest.fixture
def kafkalite_security() -> Mapping[str, Any]:
    """How brokers are secured: ``tls`` (bool) and ``sasl`` (a SCRAM mechanism); define this fixture again to have it.

    Needs the extra ``security``.
    """
    return {}


@pytest.fixture
def kafkalite_broker(
    tmp_path: Path, kafkalite_broker_settings: Mapping[str, object], kafkalite_security: Mapping[str, Any]
) -> Iterator[BrokerProcess]:
    """A running broker: its address is ``bootstrap``, and ``records(topic)`` returns what it has."""
    from spark_kafkalite.processes.cluster import BrokerProcess

    directory = tmp_path / "kafkalite-broker"
    with BrokerProcess(directory, overrides=kafkalite_broker_settings, **kafkalite_security) as broker:
        yield broker


@pytest.fixture
def kafkalite_cluster_settings() -> Mapping[str, object]:
    """Settings of the cluster's brokers, in Kafka's names; define this fixture again to give your own."""
    return {}


@pytest.fixture
def kafkalite_cluster_size() -> int:
    """How many brokers ``kafkalite_cluster`` has; define this fixture again to have more, or fewer."""
    return 3


@pytest.fixture
def kafkalite_cluster(
    tmp_path: Path,
    kafkalite_cluster_settings: Mapping[str, object],
    kafkalite_cluster_size: int,
    kafkalite_security: Mapping[str, Any],
) -> Iterator[KafkaliteCluster]:
    """A running cluster: ``bootstrap`` has its brokers' addresses, and ``records(topic)`` returns what it has."""
    from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster

    directory = tmp_path / "kafkalite-cluster"
    size, settings = kafkalite_cluster_size, kafkalite_cluster_settings
    with KafkaliteCluster(directory, size=size, overrides=settings, **kafkalite_security) as cluster:
        yield cluster
