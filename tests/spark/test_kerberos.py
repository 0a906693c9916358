"""Spark with Kerberos: keytabs that --files ships, jobs, and what is said where an executor has no keytab."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite import Admin, Producer
from spark_kafkalite.cli.doctor.command import command as doctor
from spark_kafkalite.cli.doctor.executors import look_on_executors
from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.kerberized_hdfs import kerberized_hdfs
from tests.interop.support.kerberized_kafka import ALICE, KerberizedKafka
from tests.interop.support.kerberos_realm import keys_of, keytab_jaas, spellings
from tests.lab import hdfs
from tests.lab.apache_kafka import properties_text
from tests.pool.names import own_numbers

from . import deployments
from .class_archive import java_options
from .job_processes import JobProcess
from .test_submitted import submit

pytestmark = [pytest.mark.kafka, pytest.mark.debian, pytest.mark.timeout(600)]

_APP = Path(__file__).with_name("secured_app.py")
# An executor in a process, and a directory, of its own.
_EXECUTOR = "local-cluster[1,2,512]"
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


@contextlib.contextmanager
def deployed(where: str, directory: Path) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Yield a master, settings and environment for ``submit`` of Spark's standalone cluster, or of YARN."""
    directory.mkdir()
    if where == "standalone":
        with deployments.standalone(directory) as master:
            yield master, {}, {}
    elif where == "yarn":
        with deployments.yarn(directory) as conf:
            settings = {"spark.yarn.jars": f"local:{deployments.HOME}/jars/*", "spark.executor.instances": "1"}
            yield "yarn", settings, {"HADOOP_CONF_DIR": str(conf)}
    else:
        yield _EXECUTOR, {}, {}


@pytest.mark.parametrize(
    "where",
    [
        "local-cluster",
        pytest.param("standalone", marks=pytest.mark.soak),
        pytest.param("yarn", marks=[pytest.mark.soak, pytest.mark.hdfs]),
    ],
)
def test_a_shipped_keytab_serves_executors(
    kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path, where: str
) -> None:
    name, principal = f"on-the-driver/{on_the_driver.name}", kerberized_kafka.named(ALICE)
    kept = on_the_driver.with_name("kept.keytab")
    kept.write_bytes(on_the_driver.read_bytes())
    plain = kerberized_kafka.client_settings(None)
    clients = {
        "settings": {**plain, "sasl.kerberos.keytab": name, "sasl.kerberos.principal": principal},
        "jaas": {**plain, "sasl.jaas.config": keytab_jaas(name, principal)},
    }
    ways = {each: way(kerberized_kafka, tmp_path, client) for each, client in clients.items()}
    unshipped = {**plain, "sasl.kerberos.keytab": f"on-the-driver/{kept.name}", "sasl.kerberos.principal": principal}
    refused = {"unshipped": {**way(kerberized_kafka, tmp_path, unshipped), "refused": True}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ways": ways | refused}))
    with deployed(where, tmp_path / "cluster") as (master, settings, environment):
        done = submit(
            tmp_path, _APP, str(config), master=master, files=[on_the_driver],
            conf={"spark.executorEnv.KRB5_CONFIG": str(kerberized_kafka.realm.krb5_conf), **settings},
            **environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    read = {"batch": _TASKS, "tasks": _TASKS, "stream": _TASKS, "distinct": _TASKS}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    said = found.pop("unshipped")
    assert found == dict.fromkeys(ways, read)
    assert "there is no such keytab on" in said, said
    assert "ship it with spark-submit --files KEYTAB" in said
    # Neither a plan nor a checkpoint nor a log has a key.
    secrets = [spelling for key in keys_of(on_the_driver) for spelling in spellings(key)]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "offsets" for path in tmp_path.rglob("*"))
    for path in written:
        if path.suffix != ".keytab":
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path
    assert not any(secret in (done.stdout + done.stderr).encode() for secret in secrets)


def job_settings(kafka: KerberizedKafka, directory: Path, keytab: str) -> tuple[str, str]:
    """Write a file for --command-config; return the bootstrap address and the file's path."""
    settings = {
        **kafka.client_settings(None),
        "sasl.kerberos.keytab": keytab,
        "sasl.kerberos.principal": kafka.named(ALICE),
    }
    address = settings.pop("bootstrap.servers")
    config = directory / "client.properties"
    config.touch(0o600)
    config.write_text(properties_text(settings))
    return address, str(config)


def filled_topic(kafka: KerberizedKafka) -> str:
    """Make a topic of 20 records, and return its name."""
    topic = f"kerberos-job-{next(_NUMBERS)}"
    with Producer({"bootstrap.servers": kafka.bootstrap}) as producer:
        for number in range(20):
            producer.send(topic, value=str(number).encode())
    return topic


def script(job: str) -> Path:
    """Return the script of a job for spark-submit."""
    return Path(hadoop_load.__file__).parent / "scripts" / f"{job}.py"


@pytest.mark.soak
def test_a_load(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    topic = filled_topic(kerberized_kafka)
    address, config = job_settings(kerberized_kafka, tmp_path, str(kerberized_kafka.users[ALICE]))
    arguments = (
        "--bootstrap-server", address, "--command-config", config, "--topic", topic,
        "--destination", str(tmp_path / "loaded"), "--json",
    )  # fmt: skip
    with JobProcess(tmp_path, "hadoop_load", *arguments) as load:
        assert load.result()["records"] == 20


def test_a_mirror(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    topic = filled_topic(kerberized_kafka)
    address, config = job_settings(kerberized_kafka, tmp_path, str(kerberized_kafka.users[ALICE]))
    with BrokerProcess(tmp_path / "broker") as broker:
        arguments = (
            "--from-bootstrap-server", address, "--from-command-config", config, "--topic", topic,
            "--to-bootstrap-server", broker.bootstrap, "--checkpoint", str(tmp_path / "mirror"), "--json",
        )  # fmt: skip
        with JobProcess(tmp_path, "mirror", *arguments) as mirror:
            assert mirror.result()["copied"] == 20


@pytest.mark.soak
def test_a_mirror_with_executors(kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path) -> None:
    """Both of its sides log in by the shipped keytab: to the same cluster, under another name."""
    topic = filled_topic(kerberized_kafka)
    address, config = job_settings(kerberized_kafka, tmp_path, f"on-the-driver/{on_the_driver.name}")
    done = submit(
        tmp_path, script("mirror"),
        "--from-bootstrap-server", address, "--from-command-config", config, "--topic", topic,
        "--to-bootstrap-server", address, "--to-command-config", config, "--topic-prefix", "copied.",
        "--checkpoint", str(tmp_path / "mirror"), "--json",
        master=_EXECUTOR, files=[on_the_driver],
        conf={"spark.executorEnv.KRB5_CONFIG": str(kerberized_kafka.realm.krb5_conf)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert json.loads(done.stdout.strip().splitlines()[-1])["copied"] == 20


@pytest.mark.hdfs
def test_a_load_into_a_kerberized_hdfs(kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path) -> None:
    """Both in one job, with executors: Spark gets tokens for HDFS, and the keytab that it ships is for Kafka."""
    if (reason := hdfs.available()) is not None:
        pytest.skip(reason)
    realm, topic = kerberized_kafka.realm, filled_topic(kerberized_kafka)
    address, config = job_settings(kerberized_kafka, tmp_path, f"on-the-driver/{on_the_driver.name}")
    java = java_options(f"-Djava.security.krb5.conf={realm.krb5_conf}")
    with kerberized_hdfs(tmp_path / "hdfs", realm) as files:
        done = submit(
            tmp_path, script("hadoop_load"),
            "--bootstrap-server", address, "--command-config", config, "--topic", topic,
            "--destination", f"{files.uri}/loaded", "--json",
            master=_EXECUTOR, files=[on_the_driver],
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


def test_doctor_authenticates_on_this_host_and_from_each_executor(
    kerberized_kafka: KerberizedKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**kerberized_kafka.client_settings()}
    address = settings["bootstrap.servers"]
    host, port = address.rsplit(":", 1)
    # The session is older than the realm.
    for name in ("KRB5_CONFIG", "KRB5CCNAME"):
        monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])

    def examined(**changed: str) -> list[str | None]:
        changes = {name.replace("_", "."): value for name, value in changed.items()}
        [found], _ = look_on_executors(spark, settings | changes, [(host, int(port))])
        return [each["problem"] for each in found["addresses"]]

    assert examined() == [None]
    [said] = examined(sasl_kerberos_service_name="kafk")
    assert said is not None
    assert f"does not know the service kafk/127.0.0.1@{kerberized_kafka.realm.realm}" in said
    _, config = job_settings(kerberized_kafka, tmp_path, str(kerberized_kafka.users[ALICE]))
    done = CliRunner().invoke(doctor, ["--bootstrap-server", address, "--command-config", config])
    assert done.exit_code == 0 and "Nothing to do." in done.output, done.output
