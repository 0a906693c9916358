"""How brokers reach each other: listeners of their own, where the secret is from, and a controller that goes away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.security.cluster_secret import new_secret, parse_secrets
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.interop.cluster.conftest import SESSION
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S

NOT_CONTROLLER, ILLEGAL_SASL_STATE, LISTENER_NOT_FOUND = 41, 34, 72
SCRAM = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
Running = tuple[RegistryProcess, list[BrokerProcess]]
# There is no replication to wait for.
SINGLE = {"default.replication.factor": 1, "min.insync.replicas": 1, "offsets.topic.replication.factor": 1}
OF_CLUSTER = {**SINGLE, **SESSION}


def create(address: str, name: str, partitions: int = 4, timeout_ms: int = 50_000, replicas: int = 1) -> Any:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    with RawClient(address, PATIENCE_S) as client:
        (created,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 7).topics
    return created


def named(client: RawClient) -> dict[int, str]:
    answer = client.call(DescribeClusterRequest(), 1)
    return {broker.broker_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}


def listening(inner: int, *clients: tuple[str, int]) -> dict[str, object]:
    """Return the settings of a broker with listeners for clients, and one for brokers alone."""
    all_of_them = [*clients, ("INNER", inner)]
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in all_of_them),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "EXTRA", "INNER")),
        "inter.broker.listener.name": "INNER",
    }


def test_brokers_have_a_listener_to_themselves_and_clients_are_told_their_own(tmp_path: Path) -> None:
    plain_1, plain_2, extra, inner_1, inner_2 = free_ports(5)
    overrides_of = {
        1: listening(inner_1, ("PLAINTEXT", plain_1), ("EXTRA", extra)),
        2: listening(inner_2, ("PLAINTEXT", plain_2)),
    }
    with KafkaliteCluster(tmp_path, size=2, overrides=OF_CLUSTER, overrides_of=overrides_of) as cluster:
        assert cluster.brokers[1].bootstrap == f"127.0.0.1:{plain_1}"
        for number, port in ((1, plain_1), (2, plain_2)):
            created = create(f"127.0.0.1:{port}", f"through-{number}")
            assert created.error_code == 0, created.error_message
            with RawClient(f"127.0.0.1:{port}") as client:
                assert client.call(SCRAM, 1).error_code == ILLEGAL_SASL_STATE
                assert named(client) == {1: f"127.0.0.1:{plain_1}", 2: f"127.0.0.1:{plain_2}"}
        for port in (inner_1, inner_2):
            with RawClient(f"127.0.0.1:{port}") as client:
                client.send(MetadataRequest(topics=None), 12)
                assert client.is_closed()
            with RawClient(f"127.0.0.1:{port}") as client:
                assert client.call(SCRAM, 1).error_code == 0
        # And followers reach their leaders there.
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topic("copied", 2, 2, configs={"min.insync.replicas": "2"})
        cluster.wait_in_sync("copied")
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for partition in range(2):
                assert producer.send("copied", b"x", partition=partition).result(PATIENCE_S).offset == 0
        # Broker 2 cannot be reached from where only broker 1 listens.
        with RawClient(f"127.0.0.1:{extra}") as client:
            assert named(client) == {1: f"127.0.0.1:{extra}"}
            (topic,) = client.call(MetadataRequest(topics=[MetadataRequestTopic(name="through-1")]), 12).topics
            assert {(part.leader_id, part.error_code) for part in topic.partitions} == {
                (1, 0),
                (-1, LISTENER_NOT_FOUND),
            }


def test_a_crowd_of_clients_keeps_no_follower_out(tmp_path: Path) -> None:
    clients_1, clients_2, inner_1, inner_2 = free_ports(4)
    overrides_of = {
        1: listening(inner_1, ("PLAINTEXT", clients_1)) | {"max.connections": 10},
        2: listening(inner_2, ("PLAINTEXT", clients_2)),
    }
    with (
        KafkaliteCluster(tmp_path, size=2, overrides=SESSION, overrides_of=overrides_of) as cluster,
        contextlib.ExitStack() as crowd,
    ):
        created = create(f"127.0.0.1:{clients_2}", "replicated", replicas=2)
        assert created.error_code == 0, created.error_message
        cluster.wait_in_sync("replicated")
        for _ in range(10):
            crowd.enter_context(RawClient(f"127.0.0.1:{clients_1}"))
        with RawClient(f"127.0.0.1:{clients_1}") as one_more:
            assert one_more.is_closed()
        # It connects anew as a follower, and to say which partitions it serves.
        cluster.kill(2)
        cluster.wait_for_leader("replicated", other_than=2)
        cluster.restart(2)
        cluster.wait_in_sync("replicated")
        with RawClient(f"127.0.0.1:{clients_1}") as one_more:
            assert one_more.is_closed()
        assert "max.connections=10 is reached" in cluster.broker(1).stderr_path.read_text()


@contextlib.contextmanager
def two_brokers(
    tmp_path: Path, *settings_of: dict[str, object]
) -> Iterator[tuple[RegistryProcess, list[BrokerProcess]]]:
    with RegistryProcess(tmp_path / "registry") as registry, contextlib.ExitStack() as running:
        brokers = []
        for number, settings in enumerate(settings_of, 1):
            overrides = {"broker.id": number, "zookeeper.connect": registry.connect, **SINGLE, **settings}
            broker = BrokerProcess(tmp_path / f"broker-{number}", overrides=overrides)
            brokers.append(running.enter_context(broker))
        yield registry, brokers


def secret_node(registry: RegistryProcess, digest: str | None = None) -> str:
    store = open_zookeeper(registry.connect, auth=None if digest is None else ("digest", digest))
    try:
        data, _ = store.get(znodes.INTER_BROKER_SECRET).result(PATIENCE_S)
        return data.decode()
    finally:
        store.close()


@pytest.mark.parametrize("digest", [None, "cluster:password"])
def test_without_a_file_brokers_share_a_secret_in_the_registry(tmp_path: Path, digest: str | None) -> None:
    settings: dict[str, object] = {} if digest is None else {"zookeeper.digest": digest}
    with two_brokers(tmp_path, settings, settings) as (registry, brokers):
        for broker in brokers:
            created = create(broker.bootstrap, f"t-{broker.bootstrap.rpartition(':')[2]}")
            assert created.error_code == 0, created.error_message
        assert parse_secrets(secret_node(registry, digest), "node")
        if digest is not None:
            for other in (None, "cluster:wrong"):
                with pytest.raises(RegistryError):
                    secret_node(registry, other)
            stranger = BrokerProcess(
                tmp_path / "stranger", overrides={"broker.id": 9, "zookeeper.connect": registry.connect}
            )
            with pytest.raises(ChildFailed, match=r"zookeeper\.digest"), stranger:
                pass


def test_a_broker_with_another_secret_does_not_start(tmp_path: Path) -> None:
    with two_brokers(tmp_path, secret_file(tmp_path, 1)) as (registry, brokers):
        settings = {"broker.id": 2, "zookeeper.connect": registry.connect, **SINGLE, **secret_file(tmp_path, 2)}
        stranger = BrokerProcess(tmp_path / "broker-2", overrides=settings)
        with (
            pytest.raises(ChildFailed, match=r"another cluster secret \(from inter\.broker\.secret\.file=.*-2\)"),
            stranger,
        ):
            pass
        # It has not been there for a moment.
        with RawClient(brokers[0].bootstrap) as client:
            assert named(client).keys() == {1}
        assert "is refused as a broker" in brokers[0].stderr_path.read_text()
        # Its new directory can be used under another broker.id.
        stranger.overrides |= {"broker.id": 3, **secret_file(tmp_path, 1)}
        with stranger:
            pass


def test_a_secret_file_that_is_missing_is_named_before_the_registry_is_asked(tmp_path: Path) -> None:
    settings = {"broker.id": 1, "zookeeper.connect": "127.0.0.1:1", "inter.broker.secret.file": tmp_path / "none"}
    with pytest.raises(ChildFailed, match=r"inter\.broker\.secret\.file=.*none: cannot be read: No such file"):
        BrokerProcess(tmp_path / "broker", overrides=settings).start()


def secret_file(tmp_path: Path, number: int) -> dict[str, object]:
    """Return the setting for one of several secrets."""
    path = tmp_path / f"secret-{number}"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(new_secret())
    return {"inter.broker.secret.file": path}


def test_a_controller_that_is_killed_is_replaced_before_the_request_is_over(tmp_path: Path) -> None:
    with KafkaliteCluster(tmp_path, overrides=OF_CLUSTER) as cluster:
        controller = cluster.controller()
        assert controller is not None
        (asked, _) = (number for number in cluster.brokers if number != controller)
        assert create(cluster.brokers[asked].bootstrap, "before").error_code == 0
        cluster.kill(controller)
        created = create(cluster.brokers[asked].bootstrap, "after", timeout_ms=50_000)
        assert created.error_code == 0, created.error_message
        assert cluster.controller() not in {controller, None}
