"""``kafkalite configs`` as a process against a real broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.cli import main
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.pool.forking import run_command


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "data") as broker:
        yield broker


class Command:
    def __init__(self, broker: BrokerProcess) -> None:
        self._bootstrap = broker.bootstrap

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_command(*arguments, "--bootstrap-server", self._bootstrap)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def run(broker: BrokerProcess) -> Command:
    return Command(broker)


def test_settings_of_a_topic(run: Command) -> None:
    created = run("topics", "create", "--topic", "t", "--config", "retention.ms=5000")
    assert created.stderr == ""
    altered = run(
        "configs", "alter", "--topic", "t", "--add-config", "flush.ms=7,cleanup.policy=[compact,delete]",
        "--delete-config", "retention.ms",
    )  # fmt: skip
    assert altered.stdout == "Completed updating config for topic t.\n"
    shown = run("configs", "--describe", "--entity-type", "topics", "--entity-name", "t")
    assert shown.stdout.splitlines() == [
        "Dynamic configs for topic t are:",
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "  flush.ms=7 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:flush.ms=7, "
        "DEFAULT_CONFIG:log.flush.interval.ms=9223372036854775807}",
    ]
    run("configs", "alter", "--topic", "t", "--subtract-config", "cleanup.policy=delete")
    (described,) = json.loads(run("configs", "describe", "--topic", "t", "--all", "--json").stdout)
    assert (described["entityType"], described["entityName"]) == ("topics", "t")
    entries = {entry["name"]: entry for entry in described["configs"]}
    assert (entries["cleanup.policy"]["value"], entries["cleanup.policy"]["type"]) == ("compact", "list")
    assert entries["retention.ms"]["source"] == "DEFAULT_CONFIG"
    checked = run("configs", "alter", "--topic", "t", "--append-config", "cleanup.policy=delete", "--validate-only")
    assert checked.stdout == "The settings of topic t could be changed so.\n"
    everything = json.loads(run("configs", "describe", "--entity-type", "topics", "--json").stdout)
    described = next(each for each in everything if each["entityName"] == "t")
    assert {entry["name"]: entry["value"] for entry in described["configs"]} == {
        "cleanup.policy": "compact", "flush.ms": "7",
    }  # fmt: skip


def test_settings_from_a_file(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "topic.properties"
    file.write_text("# weekly\nretention.ms=604800001\ncleanup.policy=compact,delete\n")
    run("topics", "create", "--topic", "from-file")
    run("configs", "alter", "--topic", "from-file", "--add-config-file", str(file), "--add-config", "flush.ms=9")
    (described,) = json.loads(run("configs", "describe", "--topic", "from-file", "--json").stdout)
    assert {entry["name"]: entry["value"] for entry in described["configs"]} == {
        "cleanup.policy": "compact,delete", "flush.ms": "9", "retention.ms": "604800001",
    }  # fmt: skip


def test_settings_of_brokers(run: Command) -> None:
    altered = run("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config",
                  "log.retention.ms=77")  # fmt: skip
    assert altered.stdout == "Completed updating default config for brokers in the cluster.\n"
    run("configs", "alter", "--broker", "1", "--add-config", "log.retention.ms=66")
    shown = run("configs", "describe", "--entity-type", "brokers").stdout.splitlines()
    assert shown == [
        "Dynamic configs for broker 1 are:",
        "  log.retention.ms=66 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=66, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=77, DEFAULT_CONFIG:log.retention.ms=604800000}",
        "Default configs for brokers in the cluster are:",
        "  log.retention.ms=77 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=77}",
    ]
    (described,) = json.loads(run("configs", "describe", "--broker", "1", "--all", "--json").stdout)
    assert {entry["name"]: entry["readOnly"] for entry in described["configs"]}["log.dirs"] is True
    run("configs", "alter", "--broker", "1", "--delete-config", "log.retention.ms")
    run("configs", "alter", "--broker-defaults", "--delete-config", "log.retention.ms")


def test_quotas(run: Command) -> None:
    both = ("--user", "alice", "--client", "etl")
    altered = run("configs", "alter", *both, "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
    assert altered.stdout == "Completed updating config for user alice, client-id etl.\n"
    run("configs", "--alter", "--entity-type", "clients", "--entity-default", "--add-config", "consumer_byte_rate=5")
    run("configs", "alter", "--ip-defaults", "--add-config", "connection_creation_rate=1000")
    kinds = ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "etl")
    shown = "Quota configs for user-principal 'alice', client-id 'etl' are producer_byte_rate=1048576.0, "
    shown += "request_percentage=12.5\n"
    assert run("configs", "--describe", *kinds).stdout == shown
    assert run("configs", "describe", *both).stdout == shown
    clients = run("configs", "describe", "--entity-type", "clients").stdout
    assert clients == "Quota configs for the default client-id are consumer_byte_rate=5.0\n"
    described = json.loads(run("configs", "describe", "--entity-type", "ips", "--json").stdout)
    assert described == [{"entity": {"ip": None}, "quotas": {"connection_creation_rate": 1000.0}}]
    checked = run("configs", "alter", *both, "--add-config", "producer_byte_rate=7", "--validate-only")
    assert checked.stdout == "The quotas could be changed so.\n"
    assert run("configs", "describe", *both).stdout == shown
    run("configs", "alter", *both, "--delete-config", "producer_byte_rate,request_percentage")
    run("configs", "alter", "--client-defaults", "--delete-config", "consumer_byte_rate")
    run("configs", "alter", "--ip-defaults", "--delete-config", "connection_creation_rate")
    for kind in ("users", "clients", "ips"):
        nothing = run("configs", "describe", "--entity-type", kind)
        assert nothing.stdout == "" and "no such quota is set; quotas of users alone" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--user", "u", "--add-config", "producer_byte_rate=0"], 1, "must be greater than 0"),
        (["--user", "u", "--add-config", "producer_byte_rate=fast"], 2, "producer_byte_rate=fast: not a number"),
        (["--user", "u", "--add-config", "controller_mutation_rate=5"], 1, "stores no quota for it"),
        (["--user", "u", "--add-config", "SCRAM-SHA-512=[password=x]"], 2, "set with kafkalite users"),
        (["--user", "u", "--delete-config", "producer_byte_rate"], 1, "producer_byte_rate: not set for user u"),
        (["--user", "u", "--append-config", "producer_byte_rate=5"], 2, "set it with --add-config"),
        (["--user", "u", "--user-defaults", "--add-config", "a=1"], 2, "exclude each other"),
        (["--user", "u", "--entity-type", "clients", "--add-config", "a=1"], 2, "do not go together"),
        (["--ip", "somewhere", "--add-config", "connection_creation_rate=5"], 1, "somewhere is not a valid IP"),
        (["--entity-type", "users", "--add-config", "a=1"], 2, "give a name, or --entity-default"),
        (["--entity-type", "users", "--entity-type", "users", "--add-config", "a=1"], 2, "can be given once"),
        (["--entity-type", "users", "--entity-type", "topics", "--add-config", "a=1"], 2, "only users and clients"),
        (["--entity-type", "users", "--entity-type", "clients", "--entity-name", "u", "--add-config", "a=1"], 2,
         "one --entity-name"),
        (["--entity-type", "users", "--entity-name", "u", "--entity-default", "--add-config", "a=1"], 2,
         "together are not clear"),
    ],
)  # fmt: skip
def test_refusals_of_quotas_say_why(
    broker: BrokerProcess, arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["configs", "alter", *arguments, "--bootstrap-server", broker.bootstrap]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--add-config", "a=1"], 2, "name what is meant"),
        (["--topic", "t", "--broker", "1", "--add-config", "a=1"], 2, "name what is meant"),
        (["--entity-type", "topics", "--entity-default", "--add-config", "a=1"], 2, "settings of the brokers"),
        (["--broker", "one", "--add-config", "a=1"], 2, "'one' is not the number of a broker"),
        (["--entity-type", "topics", "--add-config", "a=1"], 2, "one topic, one broker or its loggers, or all"),
        (["--topic", "t"], 2, "nothing to change"),
        (["--topic", "t", "--add-config", "retention.ms"], 2, "not of the form name=value"),
        (["--topic", "refused", "--add-config", "retenton.ms=1"], 1, "did you mean 'retention.ms'"),
        (["--topic", "refused", "--add-config", "min.compaction.lag.ms=9,max.compaction.lag.ms=8"], 1,
         "min.compaction.lag.ms (9) > max.compaction.lag.ms (8)"),
        (["--topic", "refused", "--delete-config", "retention.ms"], 1, "retention.ms: not set for topic refused"),
        (["--broker", "1", "--add-config", "log.dirs=/x"], 1, "log.dirs is read-only"),
        (["--topic", "none", "--add-config", "flush.ms=1"], 1, "The topic 'none' does not exist."),
    ],
)  # fmt: skip
def test_refusals_say_why(
    broker: BrokerProcess, arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("refused", 1, 1, if_not_exists=True)
    # In this process, because starting another takes longer than everything else.
    assert main.run(["configs", "alter", *arguments, "--bootstrap-server", broker.bootstrap]) == code
    assert text in capsys.readouterr().err


def test_contradictions_that_a_broker_takes_are_warned_of(run: Command) -> None:
    created = run("topics", "create", "--topic", "odd", "--config", "segment.bytes=5000")
    assert "batches of more than segment.bytes=5000 are refused although max.message.bytes=1048588" in created.stderr
    altered = run("configs", "alter", "--topic", "odd", "--add-config",
                  "cleanup.policy=compact,retention.ms=5,max.message.bytes=4000")  # fmt: skip
    assert altered.stderr == (
        "kafkalite: warning: topic odd: retention.ms does nothing while cleanup.policy is 'compact'\n"
    )
    refused = run("topics", "create", "--topic", "odder", "--config", "min.compaction.lag.ms=9",
                  "--config", "max.compaction.lag.ms=8", code=1)  # fmt: skip
    assert "min.compaction.lag.ms (9) > max.compaction.lag.ms (8)" in refused.stderr


def test_levels_of_a_brokers_loggers(run: Command) -> None:
    loggers, name = ("--entity-type", "broker-loggers"), "spark_kafkalite.broker.upkeep.retention"
    altered = run("configs", "alter", *loggers, "--entity-name", "1", "--add-config", f"{name}=DEBUG")
    assert altered.stdout == "Completed updating config for broker-logger 1.\n"
    shown = run("configs", "describe", *loggers, "--entity-name", "1").stdout
    assert f"  {name}=DEBUG sensitive=false synonyms={{}}\n" in shown
    assert "  root=INFO " in shown
    run("configs", "alter", *loggers, "--entity-name", "1", "--delete-config", name)
    (described,) = json.loads(run("configs", "describe", *loggers, "--json").stdout)
    assert described["entityType"] == "broker-loggers"
    assert {each["name"]: each["value"] for each in described["configs"]}[name] == "INFO"
    wrong = run("configs", "alter", *loggers, "--entity-name", "1", "--add-config", "root=LOUD", code=1)
    assert "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN" in wrong.stderr
    assert "each broker has loggers of its own" in run("configs", "alter", *loggers, "--entity-default", code=2).stderr
