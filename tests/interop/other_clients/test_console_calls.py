"""The calls of consoles, made by Kafka's AdminClient, have the answers of Apache Kafka; docs/consoles.md has the table.

AKHQ and kafbat use this client. Their settings in the page work as they are printed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tests.interop.cluster.test_commands import kafkalite as run_kafkalite
from tests.interop.support.java_clients import JAVA_SOURCES, compile_java
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab.apache_kafka import ApacheKafka, logging_options
from tests.lab.java import run_java
from tests.paths import PROJECT

pytestmark = [pytest.mark.kafka]
PAGE: Final = (PROJECT / "docs/consoles.md").read_text()
ANSWERS: Final = dict(re.findall(r"(?m)^\| ([^|`]+) \| [\w, ]+ \| (.*) \|$", PAGE.split("|---|---|---|")[1]))
# Calls of the table that the Java program does not make: the client has lost them.
RAW: Final = {"AlterConfigs (API 33)"}
# What the program does besides, so that the topic's leaders are seen to be as they are wanted.
UNLISTED: Final = {"electLeaders, not needed"}
PASSWORD: Final = "of-the-console"
TOPIC: Final = "called-by-consoles"
Outcomes = dict[str, str]


def printed(console: str) -> dict[str, Any]:
    """Return the configuration that the page prints for a console."""
    (found,) = re.findall(rf"(?s)\n## {console}\n.*?```yaml\n(.*?)```", PAGE)
    return yaml.safe_load(found)


def properties_of(console: str) -> dict[str, str]:
    """Return what the client of a console is made with."""
    if console == "AKHQ":
        (connection,) = printed(console)["akhq"]["connections"].values()
        return dict(connection["properties"])
    (cluster,) = printed(console)["kafka"]["clusters"]
    return {"bootstrap.servers": cluster["bootstrapServers"], **cluster["properties"]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # The program writes records of 2023, which retention would take.
    overrides = {"log.initial.task.delay.ms": 86_400_000}
    with BrokerProcess(tmp_path_factory.mktemp("plain") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    with BrokerProcess(tmp_path_factory.mktemp("secured") / "data", tls=True, sasl="SCRAM-SHA-512") as running:
        yield running


def asked(directory: Path, topic: str, *properties: dict[str, str]) -> list[Outcomes]:
    """Make the calls with each of some clients; return what came of them, by the names of the calls."""
    files = []
    for number, each in enumerate(properties):
        files.append(directory / f"{topic}-{number}.properties")
        files[-1].write_text("".join(f"{name}={value}\n" for name, value in each.items()))
    class_path = compile_java(JAVA_SOURCES / "ConsoleCalls.java")
    done = run_java(class_path, "ConsoleCalls", topic, *map(str, files), jvm_options=logging_options())
    outcomes: list[Outcomes] = [{} for _ in files]
    for line in done.stdout.splitlines():
        file, name, outcome = line.split("\t")
        outcomes[files.index(Path(file))][name] = outcome
    return outcomes


def test_the_answers_are_those_of_apache_kafka(plain: BrokerProcess, apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    ours, theirs = asked(
        tmp_path, TOPIC, *({"bootstrap.servers": address} for address in (plain.bootstrap, apache_kafka.bootstrap))
    )
    assert set(ours) == set(theirs) == set(ANSWERS) - RAW | UNLISTED
    for name, outcome in ours.items():
        answer = ANSWERS.get(name, "as Apache Kafka")
        if answer == "as Apache Kafka":
            assert outcome == theirs[name], name
        else:
            assert outcome != theirs[name], f"{name}: the page lists a difference that is gone"
            if error := re.match(r"`(\w+Exception)`", answer):
                assert outcome == f"error {error[1]}"


def test_alter_configs_that_the_client_has_lost(plain: BrokerProcess, apache_kafka: ApacheKafka) -> None:
    codes = []
    for address in (plain.bootstrap, apache_kafka.bootstrap):
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topic(f"{TOPIC}-altered", 1, 1)
            with RawClient(address) as client:
                for value in ("100000", "soon"):
                    config = AlterableConfig(name="retention.ms", value=value)
                    resource = AlterConfigsResource(resource_type=2, resource_name=f"{TOPIC}-altered", configs=[config])
                    answer = client.call(AlterConfigsRequest(resources=[resource], validate_only=False), 2)
                    codes.append(answer.responses[0].error_code)
            admin.delete_topics([f"{TOPIC}-altered"])
    assert codes[:2] == codes[2:] and codes[0] == 0 != codes[1]


@pytest.mark.parametrize("console", ["AKHQ", "kafbat"])
def test_the_printed_settings_reach_a_secured_broker(secured: BrokerProcess, console: str, tmp_path: Path) -> None:
    admin = tmp_path / "admin.properties"
    admin.write_text("".join(f"{name}={value}\n" for name, value in secured.client_settings.items()))
    commands = [shlex.split(line) for line in re.findall(r"(?m)^\$ kafkalite (.*)$", PAGE)]
    assert [each[:2] for each in commands] == [["users", "add"], ["acls", "add"]]
    for each in commands:
        arguments = [str(admin) if part == "admin.properties" else part for part in each]
        run_kafkalite(*arguments, "--bootstrap-server", secured.bootstrap, given=f"{PASSWORD}\n".encode())
    properties = properties_of(console) | {"bootstrap.servers": secured.bootstrap}
    properties["ssl.truststore.location"] = secured.client_settings["ssl.truststore.location"]
    properties["sasl.jaas.config"] = properties["sasl.jaas.config"].replace("PASSWORD", PASSWORD)
    (outcomes,) = asked(tmp_path, f"seen-by-{console}", properties)
    assert outcomes["describeCluster"].startswith("1 brokers") and outcomes["deleteTopics"] == "done"
    assert outcomes["listConsumerGroupOffsets"] == "4" and outcomes["deleteAcls"] == "done"


def test_the_settings_of_redpanda_console_name_the_same_broker() -> None:
    kafka = printed("Redpanda Console")["kafka"]
    akhq = properties_of("AKHQ")
    assert kafka["brokers"] == [akhq["bootstrap.servers"]]
    assert kafka["sasl"]["mechanism"] == akhq["sasl.mechanism"]
    assert kafka["tls"] == {"enabled": True, "caFilepath": akhq["ssl.truststore.location"]}
