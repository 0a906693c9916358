"""A first secured broker, and a cluster: made by --secure and by fixtures, and reached with the files they write."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import KafkaliteError, RegistryError, SaslAuthenticationFailed
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.settings import read_properties
from tests.interop.support.collect import collected
from tests.lab import apache_kafka
from tests.patience import PATIENCE_S, wait_until


def goes_through(settings: dict[str, Any], topic: str) -> None:
    with Producer({**settings, "acks": "all"}) as producer:
        producer.send(topic, b"one").result(PATIENCE_S)
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        assert [record.value for record in collected(lambda: consumer.poll(500, 10), 1)] == [b"one"]


@pytest.mark.parametrize(
    ("tls", "sasl"), [(True, None), (True, "SCRAM-SHA-512"), (True, "SCRAM-SHA-256"), (False, "SCRAM-SHA-512")]
)
def test_a_secured_broker_lets_in_its_user_alone(tmp_path: Path, tls: bool, sasl: str | None) -> None:
    with BrokerProcess(tmp_path / "data", tls=tls, sasl=sasl) as broker:
        goes_through(broker.client_settings, "t")
        with pytest.raises(KafkaliteError), Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.describe_cluster()
        if sasl is not None:
            assert broker.security is not None
            wrong = dict(broker.client_settings)
            wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace(broker.security.password, "wrong")
            with pytest.raises(SaslAuthenticationFailed), Admin(wrong) as admin:
                admin.describe_cluster()
            other = dict(broker.client_settings)
            other["sasl.jaas.config"] = (
                other["sasl.jaas.config"].replace(broker.security.password, "of-bob").replace("admin", "bob")
            )
            with Admin(broker.client_settings) as admin:
                admin.set_password("bob", "of-bob", mechanism=sasl)
            # Another user comes in, and has no rights.
            with Admin(other) as admin:
                assert "t" not in admin.list_topics()
        broker.restart()
        with Admin(broker.client_settings) as admin:
            assert "t" in admin.list_topics()


@pytest.mark.parametrize("sasl", [None, "SCRAM-SHA-512"])
def test_a_secured_cluster_replicates_and_survives_a_crash(tmp_path: Path, sasl: str | None) -> None:
    with KafkaliteCluster(tmp_path / "cluster", tls=True, sasl=sasl) as cluster:
        goes_through(cluster.client_settings, "t")
        # Who can write into the registry can do anything.
        with pytest.raises(RegistryError, match="refuses this client"):
            open_zookeeper(cluster.registry.connect)
        assert cluster.security is not None
        password = cluster.security.registry_digest_file.read_text().strip().partition(":")[2]
        assert mode_of(tmp_path / "cluster") == 0o700
        victim = cluster.wait_for_leader("t")
        cluster.kill(victim)
        cluster.wait_for_leader("t", other_than=victim)
        with Producer({**cluster.client_settings, "acks": "all"}) as producer:
            producer.send("t", b"two").result(PATIENCE_S)
        cluster.restart(victim)
        cluster.wait_in_sync("t")
        # Every user of the host sees the commands.
        assert password not in Path(f"/proc/{cluster.broker(victim).pid}/cmdline").read_text()


@pytest.fixture
def kafkalite_security() -> dict[str, Any]:
    return {"tls": True, "sasl": "SCRAM-SHA-512"}


def test_the_fixture_takes_how_it_is_secured(kafkalite_broker: BrokerProcess) -> None:
    assert kafkalite_broker.client_settings["security.protocol"] == "SASL_SSL"
    goes_through(kafkalite_broker.client_settings, "t")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def start(tmp_path: Path, port: int, number: int) -> ChildProcess:
    process = ChildProcess(
        [
            sys.executable, "-m", "spark_kafkalite.cli", "broker", "--secure", str(tmp_path / "secure"),
            "--override", f"log.dirs={tmp_path / 'data'}", "--override", f"listeners=SASL_SSL://127.0.0.1:{port}",
        ],
        tmp_path / "output",
        f"broker-{number}",
    )  # fmt: skip
    process.wait_until(lambda: "ready on" in process.stdout_text(), PATIENCE_S, "reporting that it is ready")
    return process


def stop(process: ChildProcess) -> None:
    os.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: not process.running, "the broker's end")


@pytest.mark.kafka
def test_the_files_that_secure_writes_serve_every_client(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = start(tmp_path, port, 1)
    secure = tmp_path / "secure"
    try:
        assert mode_of(tmp_path / "data") == 0o700
        ours = dict(read_properties(secure / "client.properties"))
        assert ours["bootstrap.servers"] == f"127.0.0.1:{port}"
        goes_through(ours, "t")
        of_librdkafka = dict(read_properties(secure / "librdkafka.properties"))
        assert "t" in confluent_kafka.admin.AdminClient(of_librdkafka).list_topics(timeout=PATIENCE_S).topics
        options = json.loads((secure / "spark.json").read_text())
        assert {f"kafka.{name}": value for name, value in ours.items()} == options
        if apache_kafka.available() is None:
            listed = apache_kafka.kafka_tool(
                "org.apache.kafka.tools.TopicCommand",
                "--bootstrap-server", f"127.0.0.1:{port}", "--list",
                "--command-config", str(secure / "client.properties"),
            )  # fmt: skip
            assert listed.stdout.split() == ["t"]
        assert "admin" in (said := process.stderr_path.read_text())
        assert (secure / "admin.password").read_text().strip() not in said
    finally:
        stop(process)
    again = start(tmp_path, port, 2)
    try:
        with Admin(ours) as admin:
            assert "t" in admin.list_topics()
    finally:
        stop(again)


def test_the_password_of_the_administrator_can_be_changed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    secure = tmp_path / "secure"
    process = start(tmp_path, port, 1)
    try:
        with Admin(dict(read_properties(secure / "client.properties"))) as admin:
            admin.set_password("admin", "another password")
    finally:
        stop(process)
    process = start(tmp_path, port, 2)
    try:
        told = f"user 'admin' has another password than {secure / 'admin.password'}"
        assert told in process.stderr_path.read_text()
    finally:
        stop(process)
    (secure / "admin.password").write_text("another password\n")
    process = start(tmp_path, port, 3)
    try:
        assert told not in process.stderr_path.read_text()
        goes_through(dict(read_properties(secure / "client.properties")), "t")
    finally:
        stop(process)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "listeners",
            "PLAINTEXT://127.0.0.1:0",
            "listener PLAINTEXT has the protocol PLAINTEXT, which is open; give listeners with SASL_SSL only",
        ),
        ("registry.listener", "127.0.0.1:0", "registry.listener is open: all that reach it can change topics"),
    ],
)
def test_what_is_open_is_not_secured(tmp_path: Path, name: str, value: str, problem: str) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "spark_kafkalite.cli", "broker", "--secure", str(tmp_path / "secure"),
            "--override", f"log.dirs={tmp_path / 'data'}", "--override", f"{name}={value}",
        ],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode != 0
    assert problem in done.stderr
    assert not (tmp_path / "data").exists()
