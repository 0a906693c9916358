"""A ZooKeeper of this folder's own, with the nodes of a running broker in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from spark_kafkalite import Admin, ConsumerConnector, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.settings import property_name
from tests.interop.streams.mirrored_nodes import MirroredBroker
from tests.patience import PATIENCE_S
from tests.pool.names import own_numbers

_numbers = own_numbers()


@pytest.fixture(scope="session")
def ensemble(our_broker: BrokerProcess, zookeeper: ZooKeeperServer) -> str:
    """The connect string of a part of ZooKeeper's tree where the broker's nodes are kept by :func:`registered`."""
    return f"{zookeeper.connect}/streams-{next(_numbers)}"


@pytest.fixture(scope="session")
def registered(our_broker: BrokerProcess, ensemble: str) -> Iterator[MirroredBroker]:
    # The node of a broker that does not stand still with this process.
    mirrored = MirroredBroker(our_broker.bootstrap, ensemble, 60_000)
    yield mirrored
    mirrored.close()


@pytest.fixture
def make_topic(our_broker: BrokerProcess, registered: MirroredBroker) -> Callable[..., str]:
    """Make a topic of its own for a test, known to the broker and in ZooKeeper."""

    def make(partitions: int = 4, prefix: str = "streams") -> str:
        name = f"{prefix}-{next(_numbers)}"
        with Admin(bootstrap_servers=our_broker.bootstrap) as admin:
            admin.create_topic(name, partitions, 1)
        registered.copy_topics()
        return name

    return make


@pytest.fixture(scope="session")
def producer(our_broker: BrokerProcess) -> Iterator[Producer]:
    with Producer(bootstrap_servers=our_broker.bootstrap) as made:
        yield made


@pytest.fixture
def connector(ensemble: str) -> Iterator[Callable[..., ConsumerConnector]]:
    """Make connectors of one group, which are shut down at the end."""
    made: list[ConsumerConnector] = []
    group = f"group-{next(_numbers)}"

    def make(settings: Mapping[str, object] | None = None, **keywords: object) -> ConsumerConnector:
        usual = {
            "group.id": group,
            "zookeeper.connect": ensemble,
            "auto.offset.reset": "smallest",
            "consumer.timeout.ms": int(PATIENCE_S * 1000),
            "rebalance.backoff.ms": 200,
            "rebalance.max.retries": 100,
        }
        named = {property_name(keyword): value for keyword, value in keywords.items() if keyword != "open_registry"}
        opener = {name: value for name, value in keywords.items() if name == "open_registry"}
        made.append(ConsumerConnector({**usual, **(settings or {}), **named}, **opener))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
