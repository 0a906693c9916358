"""Brokers that reach each other by TLS, beside clients that do not, and whose certificates change meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry import znodes
from tests.interop.cluster.conftest import SESSION
from tests.lab.certificates import LOOPBACK, Authority
from tests.patience import PATIENCE_S, wait_until

RENEWED = "listener INNER: new connections have the certificates that have changed"


def listening(plain: int, inner: int) -> dict[str, object]:
    return {"listeners": f"PLAINTEXT://127.0.0.1:{plain},INNER://127.0.0.1:{inner}"}


def secured(directory: Path, protocol: str, **more: object) -> tuple[KafkaliteCluster, Authority]:
    authority = Authority(directory / "certificates", "ours")
    ports = free_ports(6)
    overrides_of = {}
    for number in (1, 2, 3):
        store = directory / f"broker-{number}.pem"
        store.write_bytes(authority.issue(f"broker-{number}", *LOOPBACK).pem_file().read_bytes())
        store.chmod(0o600)
        overrides_of[number] = {
            **listening(*ports[2 * number - 2 : 2 * number]),
            "listener.name.inner.ssl.keystore.location": store,
        }
    overrides = {
        **SESSION,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,INNER:{protocol}",
        "inter.broker.listener.name": "INNER",
        "listener.name.inner.ssl.truststore.location": authority.pem_file(),
        "listener.name.inner.ssl.client.auth": "required",
        "ssl.allow.dn.changes": "true",
        **more,
    }
    return KafkaliteCluster(directory / "cluster", overrides=overrides, overrides_of=overrides_of), authority


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_brokers_replicate_by_tls_and_go_on_after_a_crash_and_a_renewal(tmp_path: Path, protocol: str) -> None:
    cluster, authority = secured(tmp_path, protocol)
    with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 6, 3, configs={"min.insync.replicas": "2"})
        cluster.wait_in_sync("t")
        registration = znodes.BrokerRegistration.decode(1, cluster._read(znodes.broker_path(1)) or b"")
        assert dict(registration.protocols) == {"PLAINTEXT": "PLAINTEXT", "INNER": protocol}
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for number in range(600):
                producer.send("t", b"%d" % number, partition=number % 6)
            producer.flush(PATIENCE_S)
            # A new certificate for all of them, by an authority that they trust: the next connections have it.
            for number, broker in cluster.brokers.items():
                store = tmp_path / f"broker-{number}.pem"
                renewed = tmp_path / f"renewed-{number}.pem"
                renewed.write_bytes(authority.issue(f"broker-{number}", *LOOPBACK).pem_file().read_bytes())
                renewed.replace(store)
                wait_until(lambda path=broker.stderr_path: RENEWED in path.read_text(), "the renewal")  # type: ignore[misc]
            victim = cluster.wait_for_leader("t")
            cluster.kill(victim)
            cluster.wait_for_leader("t", other_than=victim)
            for number in range(600):
                producer.send("t", b"%d" % number, partition=number % 6).result(PATIENCE_S)
        cluster.restart(victim)
        cluster.wait_in_sync("t")
        for broker in cluster.brokers.values():
            assert "Traceback" not in broker.stderr_path.read_text()


def test_a_broker_that_others_would_not_trust_does_not_start_and_one_without_tls_is_kept_out(tmp_path: Path) -> None:
    cluster, _ = secured(tmp_path, "SSL")
    stranger = Authority(tmp_path / "strange", "strange")
    store = tmp_path / "strange.pem"
    store.write_bytes(stranger.issue("broker-3", *LOOPBACK).pem_file().read_bytes())
    cluster._overrides_of[3]["listener.name.inner.ssl.keystore.location"] = store
    with pytest.raises(
        ChildFailed, match=r"other brokers with these settings would refuse this one: .* is not trusted"
    ):
        cluster.start()
    cluster.close()


def test_a_broker_with_an_authority_of_its_own_says_that_it_reaches_no_other(tmp_path: Path) -> None:
    cluster, _ = secured(tmp_path, "SSL")
    stranger = Authority(tmp_path / "strange", "strange")
    with cluster:
        cluster.stop(3)
        store = tmp_path / "broker-3.pem"
        store.write_bytes(stranger.issue("broker-3", *LOOPBACK).pem_file().read_bytes())
        broker = cluster.brokers[3]
        broker.overrides["listener.name.inner.ssl.truststore.location"] = stranger.pem_file()
        broker.start()
        assert "can copy nothing from other brokers: broker " in broker.stderr_path.read_text()


def test_a_cluster_gets_tls_between_its_brokers_one_after_the_other(tmp_path: Path) -> None:
    cluster, _ = secured(tmp_path, "SSL")
    settings = cluster._overrides
    with_tls = dict(settings)
    # First without: the same listener, in the clear.
    settings["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT"
    with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 6, 3, configs={"min.insync.replicas": "2"})
        cluster.wait_in_sync("t")
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for number in (1, 2, 3):
                cluster.stop(number)
                cluster.brokers[number].overrides.update(
                    {"listener.security.protocol.map": with_tls["listener.security.protocol.map"]}
                )
                cluster.brokers[number].start()
                cluster.wait_in_sync("t")
                for partition in range(6):
                    producer.send("t", b"x", partition=partition).result(PATIENCE_S)
