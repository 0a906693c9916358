"""What spark-submit makes of it: two executors in processes of their own, and files that it ships to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.jobs import hadoop_load
from tests.lab.certificates import STORE_PASSWORD
from tests.lab.secure_kafka import ALICE, OAUTHBEARER, SCRAM_512, SecuredListener, SecureKafka
from tests.patience import PATIENCE_S

from .class_archive import java_options
from .job_runs import BY_TASKS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

_APP = Path(__file__).with_name("secured_app.py")
_TWO_EXECUTORS = "local-cluster[2,1,512]"
_URLS = "KAFKALITE_OAUTHBEARER_ALLOWED_URLS"


def spark_home(directory: Path) -> Path:
    """Return a SPARK_HOME beside PySpark's own: a cluster makes the directories of its workers in it."""
    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def submit(
    directory: Path,
    script: Path,
    *arguments: str,
    master: str,
    files: Iterable[Path],
    conf: Mapping[str, str] | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a script with ``directory`` as the driver's own, and with these environment variables."""
    home = spark_home(directory)
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.executor.extraJavaOptions": java_options(),
        **(conf or {}),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", master, "--files", ",".join(map(str, files))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, **variables, "SPARK_HOME": str(home)}
    return subprocess.run(
        [*command, str(script), *arguments],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=9 * PATIENCE_S, check=False,
    )  # fmt: skip


def test_files_and_tokens_reach_the_executors(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """SCRAM and OAUTHBEARER, with a truststore that is shipped, and tokens that come from the driver."""
    tasks = 20
    shipped = tmp_path / "on-the-driver"
    shipped.mkdir()
    (shipped / "trusted.jks").write_bytes(secure_kafka.authority.jks_file().read_bytes())
    # Relative, so that an executor, which runs in another directory, has the shipped copy only.
    trusted = {
        "kafka.ssl.truststore.location": "on-the-driver/trusted.jks",
        "kafka.ssl.truststore.password": STORE_PASSWORD,
    }
    options = {
        "scram": secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512),
        "tokens": secure_kafka.client_settings(SecuredListener.SASL_SSL, OAUTHBEARER)
        | {
            "sasl.oauthbearer.token.endpoint.url": secure_kafka.tokens.url,
            "sasl.oauthbearer.client.credentials.client.id": "client",
            "sasl.oauthbearer.client.credentials.client.secret": "secret",
            # Tells these tokens from those that workers of other tests renew.
            "sasl.oauthbearer.scope": "submitted",
        },
    }
    ways: dict[str, Any] = {}
    with Admin({"bootstrap.servers": secure_kafka.bootstrap}) as admin:
        for name, client in options.items():
            del client["ssl.truststore.type"]
            admin.create_topic(f"submitted-{name}", 2)
            ways[name] = {
                "options": {f"kafka.{setting}": value for setting, value in client.items()} | trusted,
                "topic": f"submitted-{name}",
                "tasks": tasks,
                "checkpoint": str(tmp_path / name),
            }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ways": ways}))
    done = submit(
        tmp_path, _APP, str(config), master=_TWO_EXECUTORS,
        files=[shipped / "trusted.jks"],
        # Only the driver may ask for tokens.
        conf={f"spark.executorEnv.{_URLS}": "https://nowhere.example/token"},
        # Python has the path that Spark gives it.
        **{_URLS: secure_kafka.tokens.url, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    read = {"batch": tasks, "tasks": tasks, "stream": tasks, "distinct": tasks}
    assert json.loads(done.stdout.strip().splitlines()[-1]) == dict.fromkeys(ways, read)
    asked = sum(request.form.get("scope") == "submitted" for request in secure_kafka.tokens.requests)
    # The processes that plan: they are few, and do not grow with the tasks.
    assert 0 < asked < 12


@pytest.mark.soak
def test_a_job_takes_its_settings_from_a_shipped_file(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """The load job with a client certificate; file and keys lie elsewhere than where the driver runs."""
    shipped = tmp_path / "elsewhere"
    shipped.mkdir()
    certificate = secure_kafka.authority.issue(ALICE.name)
    (shipped / "key.p12").write_bytes(certificate.pkcs12_file().read_bytes())
    (shipped / "trusted.pem").write_bytes(secure_kafka.authority.pem_file().read_bytes())
    config = shipped / "client.properties"
    config.touch(0o600)
    config.write_text(
        "security.protocol=SSL\nssl.truststore.location=trusted.pem\nssl.keystore.location=key.p12\n"
        "ssl.keystore.password=${env:STORE_SECRET}\ngroup.id=of-another-tool\n"
    )
    with Producer({"bootstrap.servers": secure_kafka.bootstrap}) as producer:
        for number in range(30):
            producer.send("submitted-load", str(number).encode())
    destination = tmp_path / "loaded"
    done = submit(
        tmp_path, Path(hadoop_load.__file__).parent / "scripts" / "hadoop_load.py",
        "--bootstrap-server", secure_kafka.address(SecuredListener.MTLS.listener_name), "--topic", "submitted-load",
        "--destination", str(destination), "--command-config", "client.properties", "--json", *BY_TASKS,
        master="local[2]", files=sorted(shipped.iterdir()), STORE_SECRET=STORE_PASSWORD,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert json.loads(done.stdout.strip().splitlines()[-1])["records"] == 30
    written = "".join(path.read_text() for path in destination.rglob("*.json"))
    assert "submitted-load" in written
    assert STORE_PASSWORD not in written + done.stdout + done.stderr
