"""Spark with Kerberos: keytabs that --files ships, jobs, and what is said where an executor has no keytab."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from tests.interop.support.kerberized_hdfs import kerberized_hdfs
from tests.interop.support.kerberized_kafka import ALICE, KerberizedKafka
from tests.interop.support.kerberos_realm import keys_of, keytab_jaas, spellings
from tests.lab import hdfs
from tests.lab.apache_kafka import properties_text
from tests.pool.names import own_numbers

from . import deployments
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
        yield _TWO_EXECUTORS, {}, {}


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
    plain = kerberized_kafka.client_settings(None)
    clients = {
        "settings": {**plain, "sasl.kerberos.keytab": name, "sasl.kerberos.principal": principal},
        "jaas": {**plain, "sasl.jaas.config": keytab_jaas(name, principal)},
    }
    ways = {each: way(kerberized_kafka, tmp_path, client) for each, client in clients.items()}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ways": ways}))
    with deployed(where, tmp_path / "cluster") as (master, settings, environment):
        done = submit(
            tmp_path, _APP, str(config), master=master, files=[on_the_driver],
            conf={"spark.executorEnv.KRB5_CONFIG": str(kerberized_kafka.realm.krb5_conf), **settings},
            **environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    read = {"batch": _TASKS, "tasks": _TASKS, "stream": _TASKS, "distinct": _TASKS}
    assert json.loads(done.stdout.strip().splitlines()[-1]) == dict.fromkeys(ways, read)
    # Neither a plan nor a checkpoint nor a log has a key.
    secrets = [spelling for key in keys_of(on_the_driver) for spelling in spellings(key)]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "offsets" for path in tmp_path.rglob("*"))
    for path in written:
        if path.suffix != ".keytab":
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path
    assert not any(secret in (done.stdout + done.stderr).encode() for secret in secrets)


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


def test_load_and_mirror(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    topic = filled_topic(kerberized_kafka)
    address, config = job_settings(kerberized_kafka, tmp_path, str(kerberized_kafka.users[ALICE]))
    client = ("--bootstrap-server", address, "--command-config", config)
    loaded = ("--topic", topic, "--destination", str(tmp_path / "loaded"), "--json")
    with JobProcess(tmp_path, "hadoop_load", *client, *loaded) as load:
        assert load.result()["records"] == 20
    with BrokerProcess(tmp_path / "broker") as broker:
        arguments = (
            "--from-bootstrap-server", address, "--from-command-config", config, "--topic", topic,
            "--to-bootstrap-server", broker.bootstrap, "--checkpoint", str(tmp_path / "mirror"), "--json",
        )  # fmt: skip
        with JobProcess(tmp_path, "mirror", *arguments) as mirror:
            assert mirror.result()["copied"] == 20


def test_a_mirror_with_executors(kerberized_kafka: KerberizedKafka, tmp_path: Path, on_the_driver: Path) -> None:
    """Both of its sides log in by the shipped keytab: to the same cluster, under another name."""
    topic = filled_topic(kerberized_kafka)
    address, config = job_settings(kerberized_kafka, tmp_path, f"on-the-driver/{on_the_driver.name}")
    done = submit(
        tmp_path, script("mirror"),
        "--from-bootstrap-server", address, "--from-command-config", config, "--topic", topic,
        "--to-bootstrap-server", address, "--to-command-config", config, "--topic-prefix", "copied.",
        "--checkpoint", str(tmp_path / "mirror"), "--json",
        master=_TWO_EXECUTORS, files=[on_the_driver],
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
    java = " ".join([*SHORT_LIVED_OPTIONS, f"-Djava.security.krb5.conf={realm.krb5_conf}"])
    with kerberized_hdfs(tmp_path / "hdfs", realm) as files:
        done = submit(
            tmp_path, script("hadoop_load"),
            "--bootstrap-server", address, "--command-config", config, "--topic", topic,
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
