"""Brokers and registry consumers that authenticate to ZooKeeper by SASL: DIGEST-MD5, and Kerberos with a real KDC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, ConsumerConnector, Producer
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.test_commands import kafkalite
from tests.interop.support.kerberized_kafka import ALICE, KerberizedKafka
from tests.interop.support.kerberos_realm import keytab_jaas

pytestmark = [pytest.mark.zookeeper, pytest.mark.debian]

DIGEST = {"zookeeper.sasl.mechanism": "DIGEST-MD5", "zookeeper.digest": "brokers:secret"}
KERBEROS = {"zookeeper.sasl.mechanism": "GSSAPI"}
SERVICE = "zookeeper/127.0.0.1"


def secured(directory: Path, entry: str, *options: str) -> ZooKeeperServer:
    """Return a server whose clients authenticate by this login module, and that takes no others."""
    directory.mkdir()
    jaas = directory / "jaas.conf"
    jaas.write_text(f"Server {{ {entry} }};\n")
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    java = (
        f"-Djava.security.auth.login.config={jaas}",
        f"-Dzookeeper.authProvider.sasl={provider}",
        "-Dzookeeper.sessionRequireClientSASLAuth=true",
        *options,
    )
    return ZooKeeperServer(directory, jvm_options=java)


@pytest.fixture
def by_password(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    pytest.importorskip("puresasl", reason="pure-sasl is missing: make setup-kerberos")
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    with secured(tmp_path / "zookeeper", f'{module} required user_brokers="secret";') as server:
        yield server


@pytest.fixture
def by_kerberos(tmp_path: Path, kerberized_kafka: KerberizedKafka) -> Iterator[ZooKeeperServer]:
    """With it, this process and its brokers have a ticket of ALICE."""
    realm, cache = kerberized_kafka.realm, tmp_path / "cache"
    keytab = realm.service_keytab(SERVICE)
    entry = keytab_jaas(keytab, kerberized_kafka.named(SERVICE), isInitiator="false")
    realm.kinit(ALICE, kerberized_kafka.users[ALICE], cache)
    with (
        secured(tmp_path / "zookeeper", entry, f"-Djava.security.krb5.conf={realm.krb5_conf}") as server,
        realm.entered(KRB5CCNAME=f"FILE:{cache}"),
    ):
        yield server


def serve_and_consume(server: ZooKeeperServer, directory: Path, settings: dict[str, str]) -> None:
    """Start a broker with these settings, produce, and read by a registry consumer with the same."""
    overrides = {"zookeeper.connect": server.connect, "zookeeper.set.acl": "true", **settings}
    with BrokerProcess(directory, overrides=overrides) as broker:
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("by-sasl", value=b"first").result(60)
        own = {"zookeeper.connect": server.connect, "group.id": "g", "auto.offset.reset": "smallest", **settings}
        with ConsumerConnector(own) as consumer:
            (stream,) = consumer.create_message_streams({"by-sasl": 1})["by-sasl"]
            assert next(iter(stream)).value == b"first"


def test_digest_md5(by_password: ZooKeeperServer, tmp_path: Path) -> None:
    serve_and_consume(by_password, tmp_path / "broker", DIGEST)


@pytest.mark.parametrize("mechanism", ["DIGEST-MD5", "GSSAPI"])
def test_an_export_of_an_embedded_registry(request: pytest.FixtureRequest, tmp_path: Path, mechanism: str) -> None:
    by_password = mechanism == "DIGEST-MD5"
    server: ZooKeeperServer = request.getfixturevalue("by_password" if by_password else "by_kerberos")
    settings = DIGEST if by_password else KERBEROS
    alone = BrokerProcess(tmp_path / "broker")
    with alone, Producer({"bootstrap.servers": alone.bootstrap}) as producer:
        producer.send("moved", value=b"first").result(60)
    digest = tmp_path / "digest"
    digest.touch(0o600)
    digest.write_text("brokers:secret\n")
    arguments = ["--data", str(alone.data_dir / "_registry"), "--to", server.connect, "--set-acl"]
    arguments += ["--sasl-mechanism", mechanism, *(["--digest-file", str(digest)] if by_password else [])]
    shown = kafkalite("registry", "export", *arguments)
    assert f"nodes copied to {server.connect}" in shown.stderr and "was not copied" not in shown.stderr
    overrides = {"zookeeper.connect": server.connect, "zookeeper.set.acl": "true", **settings}
    with (
        BrokerProcess(tmp_path / "broker", overrides=overrides) as broker,
        Admin({"bootstrap.servers": broker.bootstrap}) as admin,
    ):
        assert admin.list_topics() == ["moved"]


def test_a_wrong_password_is_refused(by_password: ZooKeeperServer, tmp_path: Path) -> None:
    wrong = {**DIGEST, "zookeeper.digest": "brokers:wrong", "zookeeper.connect": by_password.connect}
    with (
        pytest.raises(ChildFailed, match=r"(?s)refuses this client.*zookeeper\.sasl\.mechanism"),
        BrokerProcess(tmp_path / "broker", overrides=wrong),
    ):
        pass
    with pytest.raises(RegistryError, match="refuses this client"):
        open_zookeeper(by_password.connect, auth=("DIGEST-MD5", "brokers:wrong"))


def test_kerberos(by_kerberos: ZooKeeperServer, tmp_path: Path) -> None:
    pytest.importorskip("kerberos", reason="pykerberos is missing: make setup-kerberos")
    serve_and_consume(by_kerberos, tmp_path / "broker", KERBEROS)


def test_without_a_ticket(by_kerberos: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    with pytest.raises(RegistryError) as caught:
        open_zookeeper(by_kerberos.connect, auth=("GSSAPI", ""), connect_timeout_s=5)
    assert "zookeeper" in str(caught.value)
