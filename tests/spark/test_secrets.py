"""A Spark application that logs in with secrets shows none of them: not in plans, the UI, logs, files and processes.

It runs with an executor of its own, against Apache Kafka, and with what docs/security.md says about Spark's redaction.
Without that Spark does show some of it, and the search has to find that.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.client.produce.producer import Producer
from tests import canary
from tests.lab.certificates import Certificate
from tests.lab.secure_kafka import ALICE, SCRAM_512, SecuredListener, SecureKafka, User, jaas
from tests.paths import PROJECT

from .class_archive import java_options
from .secrets_app import SQL_BEGINS, SQL_ENDS

pytestmark = [pytest.mark.kafka]

USER = User("canary", canary.PASSWORD)
ROWS = 20
TIMEOUT_S = 480
# As docs/security.md has it.
REDACTION = "(?i)url|password|secret|token|jaas|ssl[.].*(key|certificate)$"
# Every Python process of Spark logs all that it can. But for Py4J, which logs the arguments of every call to the JVM.
LOG_EVERYTHING = """
import logging
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.INFO)
"""


def encrypted_key(certificate: Certificate) -> str:
    """Return the encrypted key in a form that Spark shows by default.

    By default Spark hides each option whose name or value has "url" in it, in whatever case. One encrypted key in a
    hundred has these letters by chance (the encryption draws a new salt each time).
    """
    while "url" in (pem := certificate.key_pem(canary.CLIENT_SECRET)).lower():
        pass
    return pem


class Application:
    """One run of the application, and where it has left what."""

    def __init__(self, directory: Path, kafka: SecureKafka) -> None:
        self.directory = directory
        self.out = directory / "out"
        self.config = directory / "config.json"
        self.command_config = directory / "client.properties"
        self.log = directory / "log"
        for name in ("out", "events", "local", "python", "home"):
            (directory / name).mkdir()
        settings = kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512, USER)
        certificate = kafka.authority.issue(USER.name)
        # Nobody asks for them at this listener; they are made into a TLS context all the same.
        settings |= {
            "ssl.keystore.key": encrypted_key(certificate).replace("\n", " "),
            "ssl.keystore.certificate.chain": certificate.chain_pem,
            "ssl.key.password": canary.CLIENT_SECRET,
        }
        self.key = settings["ssl.keystore.key"].split()[5]
        self.options = {f"kafka.{name}": value for name, value in settings.items()}
        file_settings = {name: value.replace("\n", "\\n") for name, value in settings.items()}
        self.command_config.write_text("".join(f"{name}={value}\n" for name, value in file_settings.items()))
        self.command_config.chmod(0o600)
        self.config.write_text(json.dumps(self._document()))
        # All that were seen: a process may become another program, and has none when it has ended.
        self.command_lines: set[bytes] = set()
        self.exit_code: int | None = None

    def _document(self) -> dict[str, object]:
        conf = {
            "spark.master": "local-cluster[1,1,1024]",
            "spark.executor.memory": "512m",
            "spark.ui.port": "0",
            "spark.ui.showConsoleProgress": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (self.directory / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(self.directory / "local"),
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.driver.extraJavaOptions": java_options(),
            "spark.executor.extraJavaOptions": java_options(),
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.redaction.options.regex": REDACTION,
        }
        wrong_password = jaas(SCRAM_512, username=USER.name, password=f"{canary.PASSWORD}-wrong")
        return {
            "conf": conf,
            "options": self.options,
            "topic": "canary",
            "to_topic": "canary-copy",
            "out": str(self.out),
            "checkpoint": str(self.directory / "checkpoint"),
            "destination": str(self.directory / "loaded"),
            "command_config": str(self.command_config),
            "errors": [
                {"subscribe": "canary-not-there"},
                {"kafka.sasl.jaas.config": wrong_password},
                {"kafka.sasl.jaas.config": wrong_password.replace('"', "")},
                {"kafka.sasl.pasword": canary.PASSWORD},
            ],
        }

    def run(self) -> None:
        """Run it to its end, looking at the command lines of all its processes meanwhile."""
        (self.directory / "python" / "sitecustomize.py").write_text(LOG_EVERYTHING)
        # Executors leave their logs under SPARK_HOME: one of our own, made of links.
        home = self.directory / "home"
        for each in Path(pyspark.__file__).parent.iterdir():
            (home / each.name).symlink_to(each)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.directory / 'python'}:{PROJECT}",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }
        program = [sys.executable, str(PROJECT / "tests" / "spark" / "secrets_app.py"), str(self.config)]
        with (
            self.log.open("wb") as log,
            subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT, env=environment) as process,
        ):
            try:
                for _ in range(TIMEOUT_S * 4):
                    self.command_lines.update(canary.command_lines(process.pid).values())
                    try:
                        self.exit_code = process.wait(0.25)
                        break
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                process.kill()

    def leaks(self, text: str | bytes) -> list[str]:
        """Return what ``text`` shows of the secrets, of the private key as well."""
        data = text.encode() if isinstance(text, str) else text
        return [*canary.leaks(data), *(["the private key"] if self.key.encode() in data else [])]


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory, secure_kafka: SecureKafka) -> Application:
    secure_kafka.tool(
        "kafka.admin.ConfigCommand",
        *("--alter", "--entity-type", "users", "--entity-name", USER.name),
        *("--add-config", f"{SCRAM_512}=[password={USER.password}]"),
    )
    secure_kafka.allow(USER, "All", resource=("topic", "*"))
    with Producer(bootstrap_servers=secure_kafka.bootstrap) as producer:
        for number in range(ROWS):
            producer.send("canary", b"%d" % number)
        producer.send("canary-copy", b"")
        producer.flush()
    made = Application(tmp_path_factory.mktemp("application"), secure_kafka)
    made.run()
    assert made.exit_code == 0, made.log.read_text()[-4000:]
    return made


def test_it_has_done_what_it_was_to_do(application: Application) -> None:
    assert (application.out / "rows").read_text() == str(ROWS)
    assert json.loads((application.out / "job").read_text().splitlines()[-1])["records"] == ROWS
    pages = "".join(path.read_text() for path in application.out.glob("page-*"))
    assert "/StreamingQuery/statistics/?id=" in pages
    assert "/SQL/execution/?id=" in pages
    errors = [path.read_text() for path in sorted(application.out.glob("error-*"))]
    expected = ("TOPIC_NOT_FOUND", "AUTHENTICATION_FAILED", "INVALID_OPTION", "UNKNOWN_OPTION")
    for text, condition in zip(errors, expected, strict=True):
        assert f"[KAFKALITE_{condition}]" in text


def test_no_file_shows_a_secret(application: Application) -> None:
    given = [application.config, application.command_config]
    assert canary.file_leaks(application.directory, without=[*given, application.log]) == {}
    kinds = {path.relative_to(application.directory).parts[0] for path in application.directory.rglob("*")}
    assert {"events", "checkpoint", "loaded", "home", "out", "log"} <= kinds
    keys = [
        str(path.relative_to(application.directory))
        for path in application.directory.rglob("*")
        if path.is_file() and path not in given and application.key.encode() in path.read_bytes()
    ]
    assert set(keys) <= {"out/unredacted.plan", "log"}
    assert any((application.directory / "home" / "work").rglob("stderr"))
    assert any("eventlog" in str(path) for path in (application.directory / "events").rglob("*"))


def test_the_drivers_log_shows_no_secret_but_the_text_of_sql(application: Application) -> None:
    before, begins, rest = application.log.read_bytes().partition(SQL_BEGINS.encode())
    within, ends, after = rest.partition(SQL_ENDS.encode())
    assert begins
    assert ends
    assert b" DEBUG " in before
    assert application.leaks(before) == []
    assert application.leaks(after) == []
    # At DEBUG Spark logs the statements that it parses, with all that is in them.
    assert application.leaks(within) != []


def test_what_spark_shows_without_being_told(application: Application) -> None:
    plan = (application.out / "unredacted.plan").read_text()
    assert application.key in plan
    redacted = (application.out / "stream.plan").read_text()
    assert "kafka.bootstrap.servers" in redacted
    assert application.leaks(redacted) == []


def test_the_example_of_the_documentation(
    application: Application, secure_kafka: SecureKafka, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PROJECT / "docs" / "security.md").read_text()
    (program,) = [each for each in re.findall(r"(?ms)^```python\n(.*?)^```", page) if "spark.read" in each]
    program = program.replace("kafka.example:9093", secure_kafka.address(SecuredListener.SASL_SSL.listener_name))
    program = program.replace("/etc/kafka/ca.pem", str(secure_kafka.authority.pem_file()))
    monkeypatch.setenv("KAFKA_PASSWORD", ALICE.password)
    found: dict[str, Any] = {"spark": spark}
    exec(compile(program.replace('"events"', '"canary"'), "docs/security.md", "exec"), found)
    assert found["events"].count() == ROWS
    assert f"spark.sql.redaction.options.regex={REDACTION}\n" in page


def test_no_command_line_shows_a_secret(application: Application) -> None:
    lines = application.command_lines
    assert any(b"CoarseGrainedExecutorBackend" in line for line in lines)
    assert any(b"pyspark.daemon" in line for line in lines)
    assert [leak for line in lines for leak in application.leaks(line)] == []
