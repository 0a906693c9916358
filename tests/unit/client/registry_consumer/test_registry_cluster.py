"""The cluster as the registry shows it, over the embedded tree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.registry_consumer.cluster import RegistryCluster, live_brokers
from spark_kafkalite.client.registry_consumer.config import connector_config
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, broker_path


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Store]:
    with EmbeddedRegistry(tmp_path) as registry:
        session = EmbeddedStore(registry)
        yield session
        session.close()


@pytest.fixture
def link(nodes: Store) -> RegistryLink:
    link = RegistryLink()
    link.replace(nodes)
    return link


def test_brokers_are_found_by_what_they_registered(link: RegistryLink, nodes: Store) -> None:
    assert live_brokers(link) == {}
    for number in (2, 7):
        data = BrokerRegistration(number, "10.0.0.5", 9090 + number).encode()  # type: ignore[arg-type]
        nodes.create(broker_path(number), data, ephemeral=True, make_parents=True).result()
    assert [(number, each.port) for number, each in live_brokers(link).items()] == [(2, 9092), (7, 9097)]


def test_a_broker_that_cannot_be_read_hides_no_other(link: RegistryLink, nodes: Store) -> None:
    nodes.create(broker_path(2), b"{", make_parents=True).result()
    nodes.create(broker_path(7), BrokerRegistration(7, "10.0.0.5", 9097).encode()).result()  # type: ignore[arg-type]
    assert list(live_brokers(link)) == [7]


def test_brokers_are_reached_by_the_listener_that_speaks_the_connectors_protocol(
    link: RegistryLink, nodes: Store, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, object] = {
        "group.id": "g",
        "zookeeper.connect": "registry:1",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "canary",
    }
    config = connector_config(settings, {}).consumer.client
    for number, endpoint in ((2, "SASL_PLAINTEXT://b2:9094"), (7, "SSL://b7:9093")):
        fields = {"version": 5, "host": "b", "port": 9092, "endpoints": ["PLAINTEXT://b:9092", endpoint]}
        nodes.create(broker_path(number), json.dumps(fields).encode(), make_parents=True).result()
    nodes.create("/brokers/topics", make_parents=True).result()
    cluster = RegistryCluster(config, link)
    for _ in range(2):
        snapshot = cluster.refresh([], Deadline.after_ms(10_000))
        assert [(node.node_id, node.host, node.port) for node in snapshot.nodes.values()] == [(2, "b2", 9094)]
    assert caplog.messages == [
        "broker 7 has no listener with security.protocol=SASL_PLAINTEXT; its listeners are PLAINTEXT://b:9092, "
        "SSL://b7:9093"
    ]
    cluster.close()
