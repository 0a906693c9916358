"""Spark with Kerberos: keytabs that --files ships, jobs, and what is said where an executor has no keytab."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.spark.jobs import hadoop_load
from spark_kafkalite.testing import hdfs
from spark_kafkalite.testing.apache_kafka import properties_text
from spark_kafkalite.testing.cluster import BrokerProcess
from spark_kafkalite.testing.java_process import SHORT_LIVED_OPTIONS
from tests.interop.support.kerberized_hdfs import kerberized_hdfs
from tests.interop.support.kerberized_kafka import ALICE, KerberizedKafka
from tests.interop.support.kerberos_realm import keytab_jaas
from tests.pool.names import own_numbers

from .job_processes import JobProcess
from .test_submitted import submit

pytestmark = [pytest.mark.kafka, pytest.mark.debian, pytest.mark.timeout(600)]

_APP = Path(__file__).with_name("secured_app.py")
_TWO_EXECUTORS = "local-cluster[2,1,512]"
_TASKS = 6
_NUMBERS = own_numbers()


@pytest.fixture(autouse=True)
def _in_the_realm(kerberized_kafka: KerberizedKafka) -> Iterator[None]:
    with kerberized_kafka.realm.entered():
        yield


def way(kafka: KerberizedKafka, directory: Path, client: dict[str, str]) -> dict[str, Any]:
    """Return what secured_app.py does with these settings and a new topic."""
    topic = f"kerberos-spark-{next(_NUMBERS)}"
    with Admin({"bootstrap.servers": kafka.bootstrap}) as admin:
        admin.create_topic(topic, 2)
    options = {f"kafka.{setting}": value for setting, value in client.items()}
    return {"options": options, "topic": topic, "tasks": _TASKS, "checkpoint": str(directory / topic)}


@pytest.fixture
def on_the_driver(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> Path:
    """A keytab below the driver's working directory: an executor, which has another one, finds a shipped copy only."""
    shipped = tmp_path / "on-the-driver" / "alice.keytab"
    shipped.parent.mkdir()
    shipped.write_bytes(kerberized_kafka.users[ALICE].read_bytes())
    return shipped


def test_a_shipped_keytab_serves_executors(
    kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path
) -> None:
    name, principal = f"on-the-driver/{on_the_driver.name}", kerberized_kafka.named(ALICE)
    plain = kerberized_kafka.client_settings(None)
    clients = {
        "settings": {**plain, "sasl.kerberos.keytab": name, "sasl.kerberos.principal": principal},
        "jaas": {**plain, "sasl.jaas.config": keytab_jaas(name, principal)},
    }
    ways = {each: way(kerberized_kafka, tmp_path, client) for each, client in clients.items()}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ways": ways}))
    done = submit(
        tmp_path, _APP, str(config), master=_TWO_EXECUTORS, files=[on_the_driver],
        conf={"spark.executorEnv.KRB5_CONFIG": str(kerberized_kafka.realm.krb5_conf)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    read = {"batch": _TASKS, "tasks": _TASKS, "stream": _TASKS, "distinct": _TASKS}
    assert json.loads(done.stdout.strip().splitlines()[-1]) == dict.fromkeys(ways, read)
    # Neither a plan nor a checkpoint has a key.
    key = on_the_driver.read_bytes()[-16:]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".keytab" and not path.is_symlink():
            assert key not in path.read_bytes(), path


def test_an_executor_without_a_keytab_names_what_to_ship(
    kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path
) -> None:
    client = {
        **kerberized_kafka.client_settings(None),
        "sasl.kerberos.keytab": f"on-the-driver/{on_the_driver.name}",
        "sasl.kerberos.principal": kerberized_kafka.named(ALICE),
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ways": {"settings": way(kerberized_kafka, tmp_path, client)}}))
    done = submit(tmp_path, _APP, str(config), master=_TWO_EXECUTORS, files=[config])
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "there is no such keytab on" in said, said[-4000:]
    assert "ship it with spark-submit --files KEYTAB" in said


def test_load_and_mirror(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    topic = f"kerberos-job-{next(_NUMBERS)}"
    with Producer({"bootstrap.servers": kerberized_kafka.bootstrap}) as producer:
        for number in range(20):
            producer.send(topic, value=str(number).encode())
    settings = kerberized_kafka.client_settings()
    address = settings.pop("bootstrap.servers")
    config = tmp_path / "client.properties"
    config.touch(0o600)
    config.write_text(properties_text(settings))
    client = ("--bootstrap-server", address, "--command-config", str(config), "--topic", topic)
    with JobProcess(tmp_path, "hadoop_load", *client, "--destination", str(tmp_path / "loaded"), "--json") as load:
        assert load.result()["records"] == 20
    with BrokerProcess(tmp_path / "broker") as broker:
        arguments = (
            "--from-bootstrap-server", address, "--from-command-config", str(config), "--topic", topic,
            "--to-bootstrap-server", broker.bootstrap, "--checkpoint", str(tmp_path / "mirror"), "--json",
        )  # fmt: skip
        with JobProcess(tmp_path, "mirror", *arguments) as mirror:
            assert mirror.result()["copied"] == 20


@pytest.mark.hdfs
def test_a_load_into_a_kerberized_hdfs(kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path) -> None:
    """Both in one job, with executors: Spark gets tokens for HDFS, and the keytab that it ships is for Kafka."""
    if (reason := hdfs.available()) is not None:
        pytest.skip(reason)
    realm, topic = kerberized_kafka.realm, f"kerberos-hdfs-{next(_NUMBERS)}"
    with Producer({"bootstrap.servers": kerberized_kafka.bootstrap}) as producer:
        for number in range(20):
            producer.send(topic, value=str(number).encode())
    settings = {
        **kerberized_kafka.client_settings(None),
        "sasl.kerberos.keytab": f"on-the-driver/{on_the_driver.name}",
        "sasl.kerberos.principal": kerberized_kafka.named(ALICE),
    }
    address = settings.pop("bootstrap.servers")
    config = tmp_path / "client.properties"
    config.touch(0o600)
    config.write_text(properties_text(settings))
    java = " ".join([*SHORT_LIVED_OPTIONS, f"-Djava.security.krb5.conf={realm.krb5_conf}"])
    with kerberized_hdfs(tmp_path / "hdfs", realm) as files:
        done = submit(
            tmp_path, Path(hadoop_load.__file__).parent / "scripts" / "hadoop_load.py",
            "--bootstrap-server", address, "--command-config", str(config), "--topic", topic,
            "--destination", f"{files.uri}/loaded", "--json",
            master=_TWO_EXECUTORS, files=[on_the_driver],
            conf={
                "spark.kerberos.principal": kerberized_kafka.named(ALICE),
                "spark.kerberos.keytab": str(kerberized_kafka.users[ALICE]),
                "spark.driver.extraJavaOptions": java,
                "spark.executor.extraJavaOptions": java,
                "spark.executorEnv.KRB5_CONFIG": str(realm.krb5_conf),
            },
            HADOOP_CONF_DIR=str(files.conf_directory),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert json.loads(done.stdout.strip().splitlines()[-1])["records"] == 20


def test_doctor_authenticates_from_each_executor(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.touch(0o600)
    address = kerberized_kafka.client_settings()["bootstrap.servers"]

    def examined(**changed: str) -> subprocess.CompletedProcess[str]:
        settings = {
            **kerberized_kafka.client_settings(),
            **{key.replace("_", "."): val for key, val in changed.items()},
        }
        del settings["bootstrap.servers"]
        config.write_text(properties_text(settings))
        command = ["doctor", "--bootstrap-server", address, "--command-config", str(config), "--spark"]
        return subprocess.run(
            [sys.executable, "-m", "spark_kafkalite.cli", *command], capture_output=True, text=True, check=False
        )

    good = examined()
    assert good.returncode == 0 and "Nothing to do." in good.stdout, good.stdout + good.stderr
    bad = examined(sasl_kerberos_service_name="kafk")
    assert bad.returncode == 1
    assert f"does not know the service kafk/127.0.0.1@{kerberized_kafka.realm.realm}" in bad.stdout + bad.stderr
