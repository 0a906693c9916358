"""What spark-submit makes of it: two executors in processes of their own, and files that it ships to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_kafkalite import Admin
from spark_kafkalite.testing.certificates import STORE_PASSWORD
from spark_kafkalite.testing.java_process import SHORT_LIVED_OPTIONS
from spark_kafkalite.testing.secure_kafka import ALICE, OAUTHBEARER, SCRAM_512, Listener, SecureKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_APP = Path(__file__).with_name("secured_app.py")
_URLS = "KAFKALITE_OAUTHBEARER_ALLOWED_URLS"


def spark_home(directory: Path) -> Path:
    """Return a SPARK_HOME beside PySpark's own: a cluster makes the directories of its workers in it."""
    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def submit(
    directory: Path, script: Path, *arguments: str, files: Sequence[Path] = (), conf: Mapping[str, str] = {}, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script on two executors, with ``directory`` as the driver's."""
    home = spark_home(directory)
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED_OPTIONS),
        "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED_OPTIONS),
        **conf,
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,512]"]
    if files:
        command += ["--files", ",".join(str(path) for path in files)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, **env, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [*command, str(script), *arguments],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_files_and_tokens_reach_the_executors(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """SCRAM with a shipped truststore, a shipped client certificate, and OAUTHBEARER with tokens from the driver."""
    tasks = 60
    shipped = tmp_path / "on-the-driver"
    shipped.mkdir()
    certificate = secure_kafka.authority.issue(ALICE.name)
    for source, name in ((secure_kafka.authority.jks_file(), "trusted.jks"), (certificate.pkcs12_file(), "key.p12")):
        (shipped / name).write_bytes(source.read_bytes())
    # Relative, so that an executor, which runs in another directory, has the shipped copy only.
    trusted = {
        "kafka.ssl.truststore.location": "on-the-driver/trusted.jks",
        "kafka.ssl.truststore.password": STORE_PASSWORD,
    }
    options = {
        "scram": secure_kafka.client_settings(Listener.SASL_SSL, SCRAM_512),
        "certificate": secure_kafka.client_settings(Listener.MTLS)
        | {"ssl.keystore.location": "on-the-driver/key.p12", "ssl.keystore.password": STORE_PASSWORD},
        "tokens": secure_kafka.client_settings(Listener.SASL_SSL, OAUTHBEARER)
        | {
            "sasl.oauthbearer.token.endpoint.url": secure_kafka.tokens.url,
            "sasl.oauthbearer.client.credentials.client.id": "client",
            "sasl.oauthbearer.client.credentials.client.secret": "secret",
        },
    }
    ways: dict[str, Any] = {}
    with Admin({"bootstrap.servers": secure_kafka.bootstrap}) as admin:
        for name, client in options.items():
            for setting in ("ssl.truststore.type", "ssl.keystore.type"):
                client.pop(setting, None)
            admin.create_topic(f"submitted-{name}", 2)
            ways[name] = {
                "options": {f"kafka.{setting}": value for setting, value in client.items()} | trusted,
                "topic": f"submitted-{name}",
                "tasks": tasks,
                "checkpoint": str(tmp_path / name),
            }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ways": ways}))
    asked_before = secure_kafka.tokens.request_count
    done = submit(
        tmp_path, _APP, str(config),
        files=[shipped / "trusted.jks", shipped / "key.p12"],
        # Only the driver may ask for tokens.
        conf={f"spark.executorEnv.{_URLS}": "https://nowhere.example/token"},
        **{_URLS: secure_kafka.tokens.url},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    read = {"batch": tasks, "tasks": tasks, "stream": tasks, "distinct": tasks}
    assert json.loads(done.stdout.strip().splitlines()[-1]) == dict.fromkeys(ways, read)
    asked = secure_kafka.tokens.request_count - asked_before
    print(f"{asked} requests for a token")
    # The processes that plan: they are few, and do not grow with the tasks.
    assert 0 < asked < 12
